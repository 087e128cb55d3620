"""Lists in pages, selectors, watches, bookmarks, history that is gone."""

from __future__ import annotations

import threading

import pytest

from slacktide.cluster import PODS, errors
from slacktide.cluster.client import PAGE_ITEMS
from tests.client_suite.objects import make, names, ready
from tests.slacktide.cluster.fakeapi import wait_for


def test_selectors(client, ns, node):
    for name, labels in (("a", {"tier": "be"}), ("b", {"tier": "ls"}), ("c", {})):
        make(client, ns, name, labels, schedulerName="slacktide-scheduler" if name == "a" else "other")
    client.bind(client.get(PODS, "b", ns), node.metadata.name)
    ready(client, client.get(PODS, "b", ns))

    def fields(selector):
        return names(client.list(PODS, ns, field_selector=selector).items)

    def labels(selector):
        return names(client.list(PODS, ns, label_selector=selector).items)

    assert fields("metadata.name=a") == ["a"]
    assert fields(f"spec.nodeName={node.metadata.name}") == ["b"]
    assert fields("spec.nodeName=") == ["a", "c"]
    assert fields("spec.schedulerName=slacktide-scheduler") == ["a"]
    assert fields("status.phase=Running") == ["b"]
    assert fields("status.phase!=Running,spec.schedulerName=other") == ["c"]
    assert labels("tier=be") == ["a"]
    assert labels("tier in (be, ls)") == ["a", "b"]
    assert labels("!tier") == ["c"]
    assert labels("tier,tier!=be") == ["b"]
    assert names(client.list(PODS, field_selector=f"spec.nodeName={node.metadata.name}").items) == ["b"]
    with pytest.raises(errors.BadRequest):
        fields("spec.nosuch=1")


def test_list_in_pages(client, ns, monkeypatch):
    for number in range(7):
        make(client, ns, f"p{number}")
    whole = client.list(PODS, ns)
    assert PAGE_ITEMS > 7
    monkeypatch.setattr("slacktide.cluster.client.PAGE_ITEMS", 3)
    paged = client.list(PODS, ns)
    assert paged.items == whole.items


def test_watch_tells_what_happens_after_a_list(client, ns):
    make(client, ns, "before")
    version = client.list(PODS, ns).resource_version
    pod = make(client, ns, "a")
    client.patch(PODS, "a", ns, {"metadata": {"labels": {"x": "y"}}})
    client.delete(PODS, "a", ns, uid=pod.metadata.uid, grace_period_seconds=0)
    watch = client.watch(PODS, namespace=ns, resource_version=version, timeout_seconds=1)
    events = [event for event in watch if event.type != "BOOKMARK"]
    assert {e.object.metadata.name for e in events} == {"a"}
    # A pod is marked before it goes, also where it goes at once.
    assert [e.type for e in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert events[2].object.metadata.deletion_timestamp
    versions = [int(e.object.metadata.resource_version) for e in events]
    assert versions == sorted(set(versions))
    assert versions[0] > int(version)


def test_watch_with_selector_sees_objects_come_and_go(client, ns):
    version = client.list(PODS, ns).resource_version
    make(client, ns, "a")
    make(client, ns, "other")
    for value in ("be", "ls"):
        client.patch(PODS, "a", ns, {"metadata": {"labels": {"tier": value}}})
    watch = client.watch(PODS, namespace=ns, resource_version=version, label_selector="tier=be", timeout_seconds=1)
    events = [(e.type, e.object.metadata.name) for e in watch if e.type != "BOOKMARK"]
    assert events == [("ADDED", "a"), ("DELETED", "a")]


def test_bookmark_moves_the_version_on(client, ns):
    version = client.list(PODS, ns).resource_version
    # Changes that the selector hides still move the bookmark.
    latest = make(client, ns, "hidden").metadata.resource_version

    def bookmarks():
        watch = client.watch(
            PODS, namespace=ns, resource_version=version, field_selector="metadata.name=none", timeout_seconds=6
        )
        return [event.object.metadata.resource_version for event in watch if event.type == "BOOKMARK"]

    # A real server sends one in the last two seconds of a watch, if it comes to it.
    marks = next(filter(None, (bookmarks() for _ in range(5))), None)
    assert marks
    assert int(marks[-1]) >= int(latest)


def test_version_that_is_too_old_is_gone(client, ns):
    with pytest.raises(errors.Gone):
        list(client.watch(PODS, namespace=ns, resource_version="1", timeout_seconds=1))


def test_watch_is_ended_from_another_thread(client, ns):
    watch = client.watch(PODS, namespace=ns, resource_version=client.list(PODS, ns).resource_version)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (list(watch), done.set()))
    thread.start()
    watch.close()
    assert done.wait(10)
    thread.join(10)


def test_informer(client, ns, follow):
    log = []
    make(client, ns, "a")
    informer = follow(
        client,
        PODS,
        namespace=ns,
        on_add=lambda p: log.append(f"+{p.metadata.name}"),
        on_update=lambda _, p: log.append(f"~{p.metadata.name}"),
        on_delete=lambda p: log.append(f"-{p.metadata.name}"),
    )
    make(client, ns, "b")
    client.patch(PODS, "a", ns, {"metadata": {"labels": {"x": "y"}}})
    client.delete(PODS, "b", ns, grace_period_seconds=0)
    wait_for(lambda: len(log) == 5, "all changes")
    assert log == ["+a", "+b", "~a", "~b", "-b"]
    assert names(informer.items()) == ["a"]
