from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.standalone.api.client import eventually, pod


def labelled(name, **labels):
    return {**pod(name), "metadata": {"name": name, "labels": labels}}


def shown(event):
    return event["type"], event["object"]["metadata"]["name"]


def version(api, path):
    return api.get(path).json["metadata"]["resourceVersion"]


def test_a_watch_from_a_version_replays_and_goes_on(api, space):
    path = f"{space}/pods"
    start = version(api, path)
    api.post(path, pod("a"))
    api.delete(f"{path}/a")
    with api.watch(path, resourceVersion=start) as following:
        first, marked, second = following(), following(), following()
        assert [shown(first), shown(marked), shown(second)] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        assert (first["object"]["kind"], first["object"]["apiVersion"]) == ("Pod", "v1")
        assert int(second["object"]["metadata"]["resourceVersion"]) > int(
            first["object"]["metadata"]["resourceVersion"]
        )
        api.post(path, pod("b"))
        assert shown(following()) == ("ADDED", "b")
        api.patch(f"{path}/b", {"metadata": {"labels": {"x": "y"}}})
        assert shown(following()) == ("MODIFIED", "b")


@pytest.mark.parametrize("start", [{}, {"resourceVersion": "0"}])
def test_a_watch_without_version_begins_with_what_is_there(api, space, start):
    api.post(f"{space}/pods", pod("a"))
    with api.watch(f"{space}/pods", **start) as following:
        assert shown(following()) == ("ADDED", "a")
        api.post(f"{space}/pods", pod("b"))
        assert shown(following()) == ("ADDED", "b")


def test_objects_that_enter_and_leave_a_selection(api, space):
    path = f"{space}/pods"
    api.post(path, labelled("a", x="1"))
    with api.watch(path, resourceVersion=version(api, path), labelSelector="x=1") as following:
        left = api.patch(f"{path}/a", {"metadata": {"labels": {"x": "2"}}}).json
        api.patch(f"{path}/a", {"metadata": {"labels": {"x": "3"}}})
        api.patch(f"{path}/a", {"metadata": {"labels": {"x": "1"}}})
        event = following()
        assert shown(event) == ("DELETED", "a")
        assert event["object"]["metadata"]["labels"] == {"x": "1"}
        assert event["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]
        assert shown(following()) == ("ADDED", "a")


def test_pods_that_are_bound_leave_the_unbound(api, space):
    path = f"{space}/pods"
    unbound = {"fieldSelector": "spec.nodeName="}
    with api.watch(path, **unbound) as waiting, api.watch(path, fieldSelector="spec.nodeName=n1") as mine:
        api.post(path, pod("a"))
        assert shown(waiting()) == ("ADDED", "a")
        api.post(f"{path}/a/binding", {"target": {"name": "n1"}})
        assert shown(waiting()) == ("DELETED", "a")
        assert shown(mine()) == ("ADDED", "a")


def test_a_watch_ends_at_its_timeout_with_a_bookmark(api, space):
    path = f"{space}/pods"
    now = version(api, path)
    query = {"timeoutSeconds": "1", "resourceVersion": now}
    with api.watch(path, **query) as following:
        assert following() is None
    with api.watch(path, allowWatchBookmarks="true", **query) as following:
        event = following()
        assert event["type"] == "BOOKMARK"
        assert event["object"]["kind"] == "Pod"
        assert int(event["object"]["metadata"]["resourceVersion"]) >= int(now)
        assert following() is None


def test_initial_events_end_with_a_marked_bookmark(api, space):
    api.post(f"{space}/pods", pod("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with api.watch(f"{space}/pods", **query) as following:
        assert shown(following()) == ("ADDED", "a")
        event = following()
        assert event["type"] == "BOOKMARK"
        assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_version_that_is_too_old_is_gone(served, api, space, monkeypatch):
    path = f"{space}/pods"
    api.post(path, pod("a"))
    store = served[0]._store
    first = api.get(path, limit=1).json
    api.post(path, pod("b"))
    page = api.get(path, limit=1).json["metadata"]["continue"]
    monkeypatch.setattr(store, "_floor", store.version + 1)
    with api.watch(path, resourceVersion=first["metadata"]["resourceVersion"]) as following:
        event = following()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert following() is None
    gone = api.get(path, limit=1, **{"continue": page})
    assert (gone.code, gone.reason) == (410, "Expired")
    rest = api.get(path, **{"continue": gone.json["metadata"]["continue"]})
    monkeypatch.undo()
    assert rest.code == 410 or [item["metadata"]["name"] for item in rest.json["items"]] == ["b"]


def test_watches_of_clients_that_left_are_forgotten(served, api, space):
    before = len(served[0]._hub)
    with api.watch(f"{space}/pods", resourceVersion="0"):
        eventually(lambda: len(served[0]._hub) == before + 1)
    eventually(lambda: len(served[0]._hub) == before)


def test_tables_are_watched_too(api, space):
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    api.post(f"{space}/pods", pod("a"))
    with api.watch(f"{space}/pods", headers=accept) as following:
        first = following()["object"]
        api.patch(f"{space}/pods/a/status", {"status": {"phase": "Running"}})
        second = following()["object"]
    assert [column["name"] for column in first["columnDefinitions"]][:3] == ["Name", "Ready", "Status"]
    assert second["columnDefinitions"] == []
    assert [table["rows"][0]["cells"][2] for table in (first, second)] == ["Pending", "Running"]


steps = st.lists(
    st.tuples(st.sampled_from(["create", "label", "unlabel", "bind", "delete", "now"]), st.sampled_from("abc")),
    max_size=25,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_whoever_applies_the_events_ends_with_the_list(api, operations):
    space = api.post("/api/v1/namespaces", {"metadata": {"generateName": "p"}}).json["metadata"]["name"]
    path = f"/api/v1/namespaces/{space}/pods"
    labelled_only = {"labelSelector": "x=1"}
    with (
        api.watch(path, resourceVersion=version(api, path)) as all_events,
        api.watch(path, **labelled_only) as some_events,
    ):
        for action, name in operations:
            one = f"{path}/{name}"
            match action:
                case "create":
                    api.post(path, pod(name))
                case "label" | "unlabel":
                    api.patch(one, {"metadata": {"labels": {"x": "1" if action == "label" else "2"}}})
                case "bind":
                    api.post(f"{one}/binding", {"target": {"name": "n1"}})
                case "delete":
                    api.delete(one)
                case "now":
                    api.delete(one, gracePeriodSeconds="0")
        api.post(path, labelled("zz", x="1"))
        for following, query in ((all_events, {}), (some_events, labelled_only)):
            state = {}
            last = 0
            while "zz" not in state:
                event = following()
                name = event["object"]["metadata"]["name"]
                assert int(event["object"]["metadata"]["resourceVersion"]) > last
                last = int(event["object"]["metadata"]["resourceVersion"])
                assert (event["type"] == "ADDED") is (name not in state)
                if event["type"] == "DELETED":
                    del state[name]
                else:
                    state[name] = {k: v for k, v in event["object"].items() if k not in {"kind", "apiVersion"}}
            assert [state[name] for name in sorted(state)] == api.get(path, **query).json["items"]
