from __future__ import annotations

import pytest

from slacktide.cluster import EVENTS, LEASES, NODES, PDBS, PODS, Outcome, errors
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.objects import Lease, LeaseSpec, ObjectMeta, Pod
from tests.slacktide.cluster.fakeapi import CUT, Reply, line, listing, pod, status

POD = Pod(metadata=ObjectMeta(name="a", namespace="ns", uid="u1"))
PODS_PATH = "/api/v1/namespaces/ns/pods"


def test_paths():
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "status") == "/api/v1/namespaces/ns/pods/a/status"
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    assert LEASES.path("ns", "l") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
    assert PODS.path("ns", "../a/b") == "/api/v1/namespaces/ns/pods/..%2Fa%2Fb"
    for wrong in (lambda: NODES.path("ns", "n"), lambda: PODS.path(None, "a"), lambda: NODES.path(name="")):
        with pytest.raises(ValueError, match=r"namespace|empty"):
            wrong()


def test_get(api, client):
    api.on("GET", f"{PODS_PATH}/a", Reply(pod("a", 5, phase="Running")))
    found = client.get(PODS, "a", "ns")
    assert (found.metadata.resource_version, found.status.phase) == ("5", "Running")
    with pytest.raises(errors.NotFound):
        client.get(PODS, "b", "ns")


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"[]", b'{"spec": {"priority": "high"}}'])
def test_answer_that_is_no_such_object(api, client, body):
    api.on("GET", f"{PODS_PATH}/a", Reply(body))
    with pytest.raises(errors.Unreadable, match="Pod"):
        client.get(PODS, "a", "ns")


def test_list_follows_pages_and_keeps_selectors(api, client):
    api.on("GET", "/api/v1/pods", listing([pod("a")], 5, "next"), listing([pod("b")], 5))
    found = client.list(PODS, field_selector="spec.nodeName=n", label_selector="x=y")
    assert [p.metadata.name for p in found.items] == ["a", "b"]
    first, second = api.calls
    assert first.query == {"fieldSelector": "spec.nodeName=n", "labelSelector": "x=y", "limit": "500"}
    assert second.query == {**first.query, "continue": "next"}


def test_list_starts_over_where_a_page_expired(api, client):
    expired = status(410, "Expired", "continue token too old")
    api.on("GET", "/api/v1/pods", listing([pod("gone")], 5, "next"), expired, listing([pod("a")], 9))
    found = client.list(PODS)
    assert ([p.metadata.name for p in found.items], found.resource_version) == (["a"], "9")


def test_list_asks_for_all_at_once_where_pages_keep_expiring(api, client):
    def answer(call):
        if "limit" not in call.query:
            return listing([pod("a")], 9)
        return status(410, "Expired") if "continue" in call.query else listing([pod("x")], 5, "next")

    api.on("GET", "/api/v1/pods", answer)
    assert [p.metadata.name for p in client.list(PODS).items] == ["a"]
    assert len(api.calls) == 7


def test_empty_list_of_a_go_server_is_null(api, client):
    api.on("GET", "/api/v1/nodes", Reply({"metadata": {"resourceVersion": "3"}, "items": None}))
    assert client.list(NODES).items == ()


def test_one_odd_object_does_not_hide_the_others(api, make_client):
    metrics = ClusterMetrics()
    client = make_client(api.url, metrics=metrics)
    odd = {**pod("odd"), "spec": {"containers": "none"}}
    api.on("GET", "/api/v1/pods", listing([pod("a"), odd, pod("b")], 5))
    found = client.list(PODS)
    assert ([p.metadata.name for p in found.items], found.skipped) == (["a", "b"], 1)
    assert metrics.unreadable.labels("Pod")._value.get() == 1


def test_watch(api, client):
    lines = line("ADDED", **pod("a", 6)) + line("BOOKMARK", metadata={"resourceVersion": "8"})
    api.on("GET", "/api/v1/pods", Reply(chunks=[lines[:40], lines[40:]]))
    events = list(client.watch(PODS, resource_version="5", field_selector="spec.nodeName=n"))
    assert [(e.type, e.object.metadata.resource_version) for e in events] == [("ADDED", "6"), ("BOOKMARK", "8")]
    query = api.calls[0].query
    assert 240 <= int(query.pop("timeoutSeconds")) <= 300
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "fieldSelector": "spec.nodeName=n",
    }


def test_watch_of_an_old_version_is_gone_either_way(api, client):
    gone = line("ERROR", kind="Status", code=410, reason="Expired", message="too old")
    api.on("GET", "/api/v1/pods", status(410, "Expired"), Reply(chunks=[gone]))
    with pytest.raises(errors.Gone):
        client.watch(PODS, resource_version="1")
    with pytest.raises(errors.Gone):
        list(client.watch(PODS, resource_version="1"))


def test_silent_watch_is_cut(api, client):
    api.on("GET", "/api/v1/pods", Reply(chunks=[line("ADDED", **pod("a")), api.hang]))
    events = iter(client.watch(PODS, resource_version="1", inactivity_seconds=0.1))
    assert next(events).type == "ADDED"
    with pytest.raises(errors.Unreachable, match="silent"):
        next(events)


def test_watch_that_the_server_forgets_to_end(api, client, monkeypatch):
    monkeypatch.setattr("slacktide.cluster.client._WATCH_SLACK_SECONDS", -0.95)

    def chatter():
        while not api.closing.wait(0.005):
            yield line("BOOKMARK", metadata={"resourceVersion": "2"})

    api.on("GET", "/api/v1/pods", lambda _: Reply(chunks=chatter()))
    watch = client.watch(PODS, resource_version="1", timeout_seconds=1)
    assert {e.type for e in watch} == {"BOOKMARK"}


def test_create_sends_kind_and_namespace_of_a_view(api, client):
    api.on("POST", PODS_PATH, lambda call: Reply({**call.body, "metadata": {"name": "a", "uid": "u"}}, 201))
    assert client.create(PODS, POD).metadata.uid == "u"
    body = api.calls[0].body
    assert (body["apiVersion"], body["kind"], body["metadata"]["namespace"]) == ("v1", "Pod", "ns")
    with pytest.raises(ValueError, match="namespace"):
        client.create(PODS, {"metadata": {"name": "a"}})


def test_create_is_sent_once(api, client):
    api.on("POST", PODS_PATH, CUT)
    with pytest.raises(errors.Unreachable):
        client.create(PODS, POD)
    assert len(api.calls) == 1


@pytest.mark.parametrize(
    ("patch_type", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("json", "application/json-patch+json"),
    ],
)
def test_patch(api, client, patch_type, content_type):
    api.on("PATCH", f"{PODS_PATH}/a/status", Reply(pod("a", 9)))
    body = [{"op": "remove", "path": "/x"}] if patch_type == "json" else {"status": {"reason": None}}
    assert client.patch(PODS, "a", "ns", body, "status", patch_type).metadata.resource_version == "9"
    assert (api.calls[0].headers["Content-Type"], api.calls[0].body) == (content_type, body)


def test_patch_honours_retry_after(api, client):
    api.on("PATCH", f"{PODS_PATH}/a", status(429, "TooManyRequests", headers={"Retry-After": "0"}), Reply(pod("a")))
    client.patch(PODS, "a", "ns", {})
    assert len(api.calls) == 2


def test_json_patch_is_sent_once(api, client):
    api.on("PATCH", f"{PODS_PATH}/a", status(429, "TooManyRequests", headers={"Retry-After": "0"}), Reply(pod("a")))
    with pytest.raises(errors.TooManyRequests):
        client.patch(PODS, "a", "ns", [], patch_type="json")


def test_get_survives_a_server_that_restarted(api, client):
    api.on("GET", f"{PODS_PATH}/a", Reply(pod("a")), CUT, Reply(pod("a", 2)))
    client.get(PODS, "a", "ns")
    assert client.get(PODS, "a", "ns").metadata.resource_version == "2"


def test_delete(api, client):
    api.on("DELETE", f"{PODS_PATH}/a", Reply(pod("a")))
    client.delete(PODS, "a", "ns", uid="u1", grace_period_seconds=0)
    body = api.calls[0].body
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u1"}, 0)
    client.delete(PODS, "a", "ns")
    assert api.calls[1].body == {"apiVersion": "v1", "kind": "DeleteOptions"}


def test_replace_needs_a_version_and_says_conflict(api, client):
    path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
    stored = {"metadata": {"name": "l", "namespace": "ns", "resourceVersion": "4"}, "spec": {"strategy": "x"}}
    api.on("GET", path, Reply(stored))
    api.on("PUT", path, status(409, "Conflict", "the object has been modified"))
    with pytest.raises(ValueError, match="resourceVersion"):
        client.replace(LEASES, {"metadata": {"name": "l", "namespace": "ns"}})
    body = client.get_dict(LEASES, "l", "ns")
    assert body == stored, "fields that no view knows are kept"
    with pytest.raises(errors.Conflict, match="modified"):
        client.replace(LEASES, body)
    assert api.calls[-1].body["kind"] == "Lease"


def test_lease_of_a_view(api, client):
    api.on("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases", lambda call: Reply(call.body, 201))
    lease = Lease(metadata=ObjectMeta(name="l", namespace="ns"), spec=LeaseSpec(holder_identity="me"))
    assert client.create(LEASES, lease).spec.holder_identity == "me"


def test_bind(api, client):
    api.on("POST", f"{PODS_PATH}/a/binding", status(201, message=""), status(409, "Conflict", "already assigned to n2"))
    client.bind(POD, "n1", {"slacktide.io/device": "0"})
    assert api.calls[0].body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "namespace": "ns", "uid": "u1", "annotations": {"slacktide.io/device": "0"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    with pytest.raises(errors.Conflict, match="already assigned to n2"):
        client.bind(POD, "n1")
    assert "annotations" not in api.calls[1].body["metadata"]


def failure(code, reason, message="no", **details):
    return status(code, reason, message, **details)


@pytest.mark.parametrize(
    ("reply", "outcome", "retry_after"),
    [
        (Reply({"kind": "Status"}, 201), Outcome.EVICTED, None),
        (Reply({"kind": "Status"}, 200), Outcome.EVICTED, None),
        (failure(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget"}]), Outcome.BLOCKED, None),
        (
            failure(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget"}], retryAfterSeconds=10),
            Outcome.BLOCKED,
            10.0,
        ),
        (failure(429, "TooManyRequests", retryAfterSeconds=1), Outcome.THROTTLED, 1.0),
        (
            failure(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"),
            Outcome.SEVERAL_BUDGETS,
            None,
        ),
        (failure(404, "NotFound", name="a", kind="pods"), Outcome.GONE, None),
        (
            failure(409, "Conflict", "Precondition failed: UID in precondition: u1, UID in object meta: u2", name="a"),
            Outcome.UID_MISMATCH,
            None,
        ),
        (failure(409, "Conflict", "the object has been modified", name="a"), Outcome.CONFLICT, None),
        (failure(403, "Forbidden", "negative", kind="poddisruptionbudgets", name="b"), Outcome.BUDGET_BROKEN, None),
        (
            failure(403, "Forbidden", causes=[{"reason": "NamespaceTerminating"}]),
            Outcome.NAMESPACE_TERMINATING,
            None,
        ),
        (failure(404, "NotFound", causes=[{"reason": "NamespaceTerminating"}]), Outcome.NAMESPACE_TERMINATING, None),
    ],
)
def test_evict(api, client, reply, outcome, retry_after):
    api.on("POST", f"{PODS_PATH}/a/eviction", reply)
    eviction = client.evict(POD, grace_period_seconds=5)
    assert (eviction.outcome, eviction.retry_after) == (outcome, retry_after)
    assert eviction.evicted == (outcome is Outcome.EVICTED)
    assert eviction.gone == (outcome in (Outcome.GONE, Outcome.UID_MISMATCH))
    assert len(api.calls) == 1, "an eviction is never repeated behind the caller's back"
    assert api.calls[0].body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ns", "labels": {"slacktide.io/evicted-by": "agent"}},
        "deleteOptions": {"preconditions": {"uid": "u1"}, "gracePeriodSeconds": 5},
    }


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (failure(403, "Forbidden", "may not create pods/eviction", kind="pods", name="a"), errors.Forbidden),
        (failure(400, "BadRequest"), errors.BadRequest),
        (failure(500, "InternalError", "etcd"), errors.ServerError),
        (Reply(b"404 page not found", 404), errors.NotFound),
        (failure(401, "Unauthorized"), errors.Unauthorized),
    ],
)
def test_evict_that_is_a_real_error_raises(api, client, reply, error):
    api.on("POST", f"{PODS_PATH}/a/eviction", reply)
    with pytest.raises(error):
        client.evict(POD)


def test_evict_dry_run_and_without_uid(api, client):
    api.on("POST", f"{PODS_PATH}/a/eviction", Reply({}, 201))
    client.evict(POD, dry_run=True)
    assert api.calls[0].body["deleteOptions"] == {"preconditions": {"uid": "u1"}, "dryRun": ["All"]}
    with pytest.raises(ValueError, match="no uid"):
        client.evict(Pod(metadata=ObjectMeta(name="a", namespace="ns")))


def test_logs(api, client):
    api.on("GET", f"{PODS_PATH}/a/log", Reply(chunks=[b"one\n", b"two\n"]))
    assert b"".join(client.logs("ns", "a", container="main", follow=True, tail_lines=0)) == b"one\ntwo\n"
    assert api.calls[0].query == {"container": "main", "follow": "true", "tailLines": "0"}
    b"".join(client.logs("ns", "a", stream="Stderr"))
    assert api.calls[1].query == {"stream": "Stderr"}


def test_401_reads_the_token_again_and_tries_once_more(api, make_client, tmp_path):
    token = tmp_path / "token"
    token.write_text("old\n")

    def answer(call):
        if call.headers["Authorization"] == "Bearer new":
            return Reply(pod("a"))
        token.write_text("new\n")
        return status(401, "Unauthorized")

    api.on("GET", f"{PODS_PATH}/a", answer)
    client = make_client(api.url, token_file=str(token))
    assert client.get(PODS, "a", "ns").metadata.name == "a"
    assert [c.headers["Authorization"] for c in api.calls] == ["Bearer old", "Bearer new"]


def test_401_with_the_same_token_is_not_repeated(api, make_client, tmp_path):
    (tmp_path / "token").write_text("old")
    api.on("GET", f"{PODS_PATH}/a", status(401, "Unauthorized"))
    with pytest.raises(errors.Unauthorized):
        make_client(api.url, token_file=str(tmp_path / "token")).get(PODS, "a", "ns")
    assert len(api.calls) == 1


def test_calls_are_counted(api, make_client):
    metrics = ClusterMetrics()
    client = make_client(api.url, metrics=metrics)
    api.on("GET", f"{PODS_PATH}/a", Reply(pod("a")), CUT, CUT)
    client.get(PODS, "a", "ns")
    with pytest.raises(errors.Unreachable):
        client.get(PODS, "a", "ns")
    with pytest.raises(errors.NotFound):
        client.get(PODS, "b", "ns")

    def count(code):
        return metrics.requests.labels("GET", code)._value.get()

    assert (count("2xx"), count("unreachable"), count("404")) == (1, 2, 1)


def test_raw_request(api, client):
    api.on("GET", "/openapi/v2", Reply(b"anything"))
    assert client.request("GET", "/openapi/v2", {"a": "b"}) == b"anything"


def test_events_kind_is_core():
    assert EVENTS.path("ns") == "/api/v1/namespaces/ns/events"
    assert PDBS.path("ns") == "/apis/policy/v1/namespaces/ns/poddisruptionbudgets"
