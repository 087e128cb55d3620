"""Objects beside pods and nodes: listed before the first cycle, kept up to date, and their changes wake pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.event_names import event_resource
from scheduler_plugins.framework.events import Action, ClusterEvent
from scheduler_plugins.objects import InformerStore
from slacktide.cluster import NAMESPACES, NODES, PDBS, PODS, Client, ClusterMetrics, Informer, Kind, connect
from slacktide.cluster.indexed import Index
from slacktide.objects import View
from slacktide.settings import ClusterSettings
from tests.patience import PATIENCE
from tests.slacktide.cluster.fakeapi import FakeApi, Reply, line, listing, status

GROUPS = Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", True, View)
NEW_GROUPS = Kind("scheduling.k8s.io/v1beta1", "PodGroup", "podgroups", True, View)
CLASSES = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", False, View)


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        (NAMESPACES, events.NAMESPACE),
        (Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, View), events.PERSISTENT_VOLUME_CLAIM),
        (PDBS, "PodDisruptionBudget"),
        (Kind("apps/v1", "ReplicaSet", "replicasets", True, View), "ReplicaSet"),
        (CLASSES, events.STORAGE_CLASS),
        (GROUPS, events.POD_GROUP),
        (NEW_GROUPS, "scheduling.k8s.io/PodGroup"),
        (Kind("example.com/v1", "Queue", "queues", True, View), "queues.v1.example.com"),
    ],
)
def test_names_under_which_plugins_register(kind: Kind[Any], want: str) -> None:
    assert event_resource(kind) == want


def soon(what: str, check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not check():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)


def namespace(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Store:
    """A store over a scripted server, and the events that it told."""

    def __init__(self, one: Client) -> None:
        self.events: list[tuple[ClusterEvent, str, str]] = []
        self.pods = Informer(one, PODS, name="pods-of-the-host")
        self.store = InformerStore(one, self.happened, ClusterMetrics())

    def happened(self, event: ClusterEvent, old: Any, new: Any) -> None:
        self.events.append((event, old.metadata.name if old else "", new.metadata.name if new else ""))


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def store(api: FakeApi) -> Iterator[Store]:
    client = connect(ClusterSettings(server=api.url), user_agent="test")
    one = Store(client)
    yield one
    one.store.stop()
    client.close()


def test_objects_are_followed_and_each_change_is_an_event(api: FakeApi, store: Store) -> None:
    def answer(call: Any) -> Reply:
        if not call.watching:
            return listing([namespace("a", 5)], 5)
        changes = line("ADDED", **namespace("b", 6)) + line("MODIFIED", **namespace("b", 7))
        return Reply(chunks=[changes + line("DELETED", **namespace("a", 8)), api.hang])

    api.on("GET", "/api/v1/namespaces", answer)
    store.store.use([NAMESPACES, NAMESPACES, PODS], {PODS: store.pods})
    assert store.store.not_synced() == ["Namespace"]
    store.store.start()
    soon("all changes", lambda: len(store.events) == 4)
    assert store.store.not_synced() == []
    assert store.events == [
        (ClusterEvent("Namespace", Action.ADD), "", "a"),
        (ClusterEvent("Namespace", Action.ADD), "", "b"),
        (ClusterEvent("Namespace", Action.UPDATE_OTHER), "b", "b"),
        (ClusterEvent("Namespace", Action.DELETE), "a", ""),
    ]
    assert [one.metadata.name for one in store.store.all(NAMESPACES)] == ["b"]
    found = store.store.get(NAMESPACES, "", "b")
    assert found is not None
    assert found.metadata.resource_version == "7"
    assert store.store.get(NAMESPACES, "", "a") is None
    assert list(store.store.all(PODS)) == []
    with pytest.raises(KeyError):
        store.store.all(NODES)


def test_kinds_that_nobody_installed_have_no_objects_and_two_groups_do_not_mix(
    api: FakeApi,
    store: Store,
) -> None:
    for path in ("/apis/scheduling.x-k8s.io/v1alpha1/podgroups", "/apis/scheduling.k8s.io/v1beta1/podgroups"):
        api.on("GET", path, lambda _: status(404, "NotFound"))
    store.store.use([GROUPS, NEW_GROUPS], {})
    store.store.start()
    soon("both are known to be absent", lambda: not store.store.not_synced())
    assert list(store.store.all(GROUPS)) == list(store.store.all(NEW_GROUPS)) == []


def test_objects_are_found_by_what_they_have_in_common(api: FakeApi, store: Store) -> None:
    def answer(call: Any) -> Reply:
        if not call.watching:
            return listing([namespace("aa", 5), namespace("ab", 5), namespace("b", 5)], 5)
        return Reply(chunks=[line("DELETED", **namespace("ab", 6)) + line("ADDED", **namespace("ac", 7)), api.hang])

    api.on("GET", "/api/v1/namespaces", answer)
    store.store.use([NAMESPACES], {})
    store.store.start()
    initials: Index[Any, str] = Index(lambda one: (one.metadata.name[0], one.metadata.name))
    soon("all changes", lambda: set(store.store.indexed(NAMESPACES, initials, "a")) == {"aa", "ac"})
    assert store.store.indexed(NAMESPACES, initials, "b") == ("b",)
    assert store.store.indexed(NAMESPACES, initials, "c") == ()
    with pytest.raises(KeyError):
        store.store.indexed(NODES, initials, "a")
