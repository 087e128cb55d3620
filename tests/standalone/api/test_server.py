from __future__ import annotations

import json
import threading

import pytest

from tests.standalone.api.client import JSON_PATCH, MERGE, STRATEGIC, pod

PODS = "/api/v1/pods"


def test_a_pods_life(api, space):
    made = api.post(f"{space}/pods", pod())
    assert made.code == 201
    assert made.headers["Content-Type"].startswith("application/json")
    assert made.json["kind"], made.json["apiVersion"] == ("Pod", "v1")
    assert api.get(f"{space}/pods/web").json == made.json
    listed = api.get(f"{space}/pods").json
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert int(listed["metadata"]["resourceVersion"]) >= int(made.json["metadata"]["resourceVersion"])
    assert listed["items"] == [{k: v for k, v in made.json.items() if k not in {"kind", "apiVersion"}}]
    bound = api.post(f"{space}/pods/web/binding", {"target": {"kind": "Node", "name": "n1"}})
    assert (bound.code, bound.json["status"]) == (201, "Success")
    running = api.patch(f"{space}/pods/web/status", {"status": {"phase": "Running"}})
    assert (running.code, running.json["status"]["phase"]) == (200, "Running")
    going = api.delete(f"{space}/pods/web")
    assert (going.code, going.json["metadata"]["deletionGracePeriodSeconds"]) == (200, 30)
    uid = made.json["metadata"]["uid"]
    wrong = api.delete(f"{space}/pods/web", {"preconditions": {"uid": "other"}, "gracePeriodSeconds": 0})
    assert (wrong.code, wrong.reason) == (409, "Conflict")
    gone = api.delete(f"{space}/pods/web", {"preconditions": {"uid": uid}, "gracePeriodSeconds": 0})
    assert (gone.code, gone.json["kind"]) == (200, "Pod")
    assert api.get(f"{space}/pods/web").code == 404


def test_what_is_not_there(api, space):
    gone = api.get(f"{space}/pods/none")
    assert (gone.code, gone.json["status"], gone.reason) == (404, "Failure", "NotFound")
    assert gone.json["message"] == 'pods "none" not found'
    assert gone.json["details"] == {"name": "none", "kind": "pods"}
    lease = api.get(space.replace("/api/v1", "/apis/coordination.k8s.io/v1") + "/leases/none")
    assert lease.json["message"] == 'leases.coordination.k8s.io "none" not found'
    for method, path in (
        ("PATCH", f"{space}/pods/none"),
        ("DELETE", f"{space}/pods/none"),
        ("PUT", f"{space}/pods/none"),
    ):
        assert api.call(method, path, pod("none"), MERGE if method == "PATCH" else "application/json").code == 404
    assert api.post(f"{space}/pods/none/eviction", {}).code == 404
    assert api.get("/api/v1/namespaces/none/pods").json["items"] == []
    assert api.post("/api/v1/namespaces/none/pods", pod()).json["message"] == 'namespaces "none" not found'


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/services",
        "/api/v2/pods",
        "/apis/apps/v1/deployments",
        "/nothing",
        "/api/v1/namespaces/default/pods/a/exec",
        "/apis/policy/v1/pods",
        "/api/v1//pods",
    ],
)
def test_what_is_not_served(api, path):
    found = api.get(path)
    assert (found.code, found.reason) == (404, "NotFound")
    assert found.json["message"] == "the server could not find the requested resource"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", PODS),
        ("DELETE", PODS),
        ("PUT", "/api/v1/namespaces/default/pods"),
        ("POST", "/api/v1/nodes/x"),
        ("DELETE", "/api/v1/namespaces"),
        ("GET", "/api/v1/namespaces/default/pods/x/binding"),
        ("DELETE", "/api/v1/nodes/x/status"),
        ("GET", "/api/v1/namespaces/default/bindings"),
    ],
)
def test_verbs_that_are_not_served(api, method, path):
    found = api.call(method, path, {} if method in {"POST", "PUT"} else None)
    assert (found.code, found.reason) == (405, "MethodNotAllowed")


def test_bodies_that_cannot_be_used(api, space):
    path = f"{space}/pods"
    assert api.call("POST", path, b"{").code == 400
    assert api.call("POST", path, b"[]").code == 400
    assert api.call("POST", path, b"\xff\xfe").code == 400
    assert api.call("POST", path, b"").code in {400, 422}
    assert api.call("POST", path, b"a: b", "application/yaml").code == 415
    assert api.call("POST", path, b"k8s", "application/vnd.kubernetes.protobuf").code == 415
    assert api.call("POST", path, b'{"a":' * 5000 + b"1" + b"}" * 5000).code == 400
    assert api.call("POST", path, b"[" * 100_000).code == 400
    large = api.call("POST", path, json.dumps(pod(x="y" * 3 * 1024 * 1024)).encode())
    assert (large.code, large.reason) == (413, "RequestEntityTooLarge")
    assert api.call("GET", path, headers={"Accept": "application/vnd.kubernetes.protobuf"}).code == 406
    assert api.get(path).json["items"] == []


def test_optimistic_locking(api, space):
    made = api.post(f"{space}/pods", pod()).json
    made["metadata"]["labels"] = {"a": "1"}
    first = api.put(f"{space}/pods/web", made)
    assert first.code == 200
    again = api.put(f"{space}/pods/web", made)
    assert (again.code, again.reason) == (409, "Conflict")
    assert "the object has been modified; please apply your changes to the latest version" in again.json["message"]
    del made["metadata"]["resourceVersion"]
    made["metadata"]["labels"] = {"a": "2"}
    assert api.put(f"{space}/pods/web", made).code == 200
    assert api.patch(f"{space}/pods/web", {"metadata": {"resourceVersion": "1"}}).code == 409
    assert api.put(f"{space}/pods/other", made).code == 400


def test_leases_are_locked_and_made_by_put(api, space):
    path = space.replace("/api/v1", "/apis/coordination.k8s.io/v1") + "/leases/l"
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    made = api.put(path, body)
    assert made.code == 201
    assert api.put(path, body).code == 422
    fresh = made.json
    fresh["spec"]["holderIdentity"] = "b"
    assert api.put(path, fresh).code == 200
    assert api.put(path, fresh).code == 409
    gone = api.delete(path)
    assert (gone.code, gone.json["kind"], gone.json["status"]) == (200, "Status", "Success")
    assert gone.json["details"] == {
        "name": "l",
        "group": "coordination.k8s.io",
        "kind": "leases",
        "uid": made.json["metadata"]["uid"],
    }


def test_the_three_patches(api, space):
    api.post(f"{space}/pods", pod())
    path = f"{space}/pods/web"
    merged = api.patch(path, {"metadata": {"labels": {"a": "1"}}}, MERGE)
    assert merged.json["metadata"]["labels"] == {"a": "1"}
    strategic = api.patch(path, {"spec": {"containers": [{"name": "main", "image": "new"}]}}, STRATEGIC)
    assert strategic.json["spec"]["containers"][0]["image"] == "new"
    version = strategic.json["metadata"]["resourceVersion"]
    listed = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/metadata/labels/b", "value": "2"},
    ]
    assert api.patch(path, listed, JSON_PATCH).json["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert api.patch(path, listed, JSON_PATCH).code == 422
    assert api.patch(path, {}, JSON_PATCH).code == 400
    assert api.patch(path, [], MERGE).code == 400
    assert api.patch(path, {"spec": {"containers": [{"image": "x"}]}}, STRATEGIC).code == 400
    assert api.patch(path, {"metadata": None}, MERGE).code == 400
    assert api.patch(path, {"kind": "Node"}, MERGE).code == 400
    apply = api.patch(path, {}, "application/apply-patch+yaml")
    assert (apply.code, apply.reason) == (415, "UnsupportedMediaType")
    assert "server-side" in apply.json["message"]


def test_dry_runs_store_nothing(api, space):
    tried = api.post(f"{space}/pods", pod(), dryRun="All")
    assert tried.code == 201
    assert tried.json["metadata"]["uid"]
    assert api.names(f"{space}/pods") == []
    api.post(f"{space}/pods", pod())
    assert api.patch(f"{space}/pods/web", {"metadata": {"labels": {"a": "b"}}}, dryRun="All").json["metadata"]["labels"]
    assert api.delete(f"{space}/pods/web", dryRun="All").code == 200
    assert api.delete(f"{space}/pods/web", {"dryRun": ["All"]}).code == 200
    assert api.post(f"{space}/pods/web/eviction", {"deleteOptions": {"dryRun": ["All"]}}).code == 201
    found = api.get(f"{space}/pods/web").json
    assert "labels" not in found["metadata"]
    assert "deletionTimestamp" not in found["metadata"]
    assert api.post(f"{space}/pods", pod("b"), dryRun="Some").code == 422


def test_deleting_a_collection(api, space):
    for name, tier in (("a", "be"), ("b", "be"), ("c", "ls")):
        api.post(f"{space}/pods", {**pod(name), "metadata": {"name": name, "labels": {"tier": tier}}})
    gone = api.delete(f"{space}/pods", labelSelector="tier=be")
    assert (gone.code, gone.json["kind"], len(gone.json["items"])) == (200, "PodList", 2)
    assert api.names(f"{space}/pods") == ["c"]


def test_evictions(api, space):
    body = {**pod(nodeName="n1"), "metadata": {"name": "web", "labels": {"app": "a"}}}
    api.post(f"{space}/pods", body)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    api.patch(f"{space}/pods/web/status", status)
    budgets = space.replace("/api/v1", "/apis/policy/v1") + "/poddisruptionbudgets"
    assert api.post(budgets, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}}).code == 201
    path = f"{space}/pods/web/eviction"
    blocked = api.post(path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}})
    assert (blocked.code, blocked.reason, "Retry-After" in blocked.headers) == (429, "TooManyRequests", False)
    assert blocked.json["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert api.post(path, {"metadata": {"name": "other"}}).code == 400
    version = api.get(f"{budgets}/b").json["metadata"]["resourceVersion"]
    api.patch(f"{budgets}/b", {"spec": {"minAvailable": 0}, "metadata": {"resourceVersion": version}})
    assert api.post(path, {"deleteOptions": {"preconditions": {"uid": "other"}}}).code == 409
    assert api.post(path, {"deleteOptions": {"gracePeriodSeconds": 3}}).code == 201
    assert api.get(f"{space}/pods/web").json["metadata"]["deletionGracePeriodSeconds"] == 3


def test_selecting(api, space):
    api.post(f"{space}/pods", {**pod("a", nodeName="n1"), "metadata": {"name": "a", "labels": {"x": "1"}}})
    api.post(f"{space}/pods", pod("b", schedulerName="mine"))
    path = f"{space}/pods"
    assert api.names(path, fieldSelector="spec.nodeName=n1") == ["a"]
    assert api.names(path, fieldSelector="spec.nodeName=") == ["b"]
    assert api.names(path, fieldSelector="spec.schedulerName=mine,status.phase!=Failed") == ["b"]
    assert api.names(path, fieldSelector="metadata.name=a", labelSelector="x in (1,2)") == ["a"]
    assert api.names(path, labelSelector="!x") == ["b"]
    assert api.get(path, fieldSelector="spec.unknown=1").code == 400
    assert api.get(path, labelSelector="a in").code == 400


def test_pages_show_one_version(api, space):
    path = f"{space}/pods"
    for name in "acegi":
        api.post(path, pod(name))
    first = api.get(path, limit=2).json
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "c"]
    assert first["metadata"]["remainingItemCount"] == 3
    api.post(path, pod("f"))
    api.delete(f"{path}/g")
    api.patch(f"{path}/e", {"metadata": {"labels": {"new": "1"}}})
    second = api.get(path, limit=2, **{"continue": first["metadata"]["continue"]}).json
    assert [item["metadata"]["name"] for item in second["items"]] == ["e", "g"]
    assert "labels" not in second["items"][0]["metadata"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = api.get(path, limit=2, **{"continue": second["metadata"]["continue"]}).json
    assert [item["metadata"]["name"] for item in last["items"]] == ["i"]
    assert "continue" not in last["metadata"]
    exact = api.names(path, resourceVersion=first["metadata"]["resourceVersion"], resourceVersionMatch="Exact")
    assert exact == ["a", "c", "e", "g", "i"]
    assert api.names(path) == ["a", "c", "e", "f", "i"]
    assert api.get(path, **{"continue": "nonsense"}).code == 400


def test_versions_of_lists(api, space):
    now = int(api.get(f"{space}/pods").json["metadata"]["resourceVersion"])
    assert api.get(f"{space}/pods", resourceVersion=str(now)).code == 200
    assert api.get(f"{space}/pods", resourceVersion="0").code == 200
    late = api.get(f"{space}/pods", resourceVersion=str(now + 1000))
    assert (late.code, late.json["details"]["retryAfterSeconds"]) == (504, 1)
    assert api.get(f"{space}/pods", resourceVersion="x").code == 400
    assert api.get(f"{space}/pods", resourceVersionMatch="Exact").code == 422
    assert api.get(f"{space}/pods", limit="many").code == 400


def test_generated_names_and_concurrent_creates(api, space):
    codes = []

    def make():
        codes.append(api.post(f"{space}/pods", {**pod(), "metadata": {"generateName": "job-"}}).code)
        codes.append(api.post(f"{space}/pods", pod("same")).code)

    threads = [threading.Thread(target=make) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [201] * 11 + [409] * 9
    assert len(api.names(f"{space}/pods")) == 11


def test_tables_and_metadata_only(api, space):
    api.post(f"{space}/pods", pod())
    table = api.call(
        "GET", f"{space}/pods", headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    ).json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in table["columnDefinitions"]]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Ready"], row["Status"], row["Node"]) == ("web", "0/1", "Pending", "<none>")
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    partial = api.call("GET", f"{space}/pods", headers=accept).json
    assert partial["kind"] == "PartialObjectMetadataList"
    assert partial["items"][0].keys() == {"metadata"}


def test_discovery_and_health(api):
    assert api.get("/healthz").text == api.get("/livez").text == api.get("/readyz").text == b"ok"
    assert api.get("/version").json["major"] == "1"
    for path in api.get("/").json["paths"]:
        assert api.get(path).code == 200
    assert api.get("/api").json["versions"] == ["v1"]
    groups = {group["name"] for group in api.get("/apis").json["groups"]}
    assert groups == {"authorization.k8s.io", "coordination.k8s.io", "policy", "scheduling.k8s.io"}
    served = {found["name"]: found for found in api.get("/api/v1").json["resources"]}
    assert {
        "pods",
        "pods/status",
        "pods/binding",
        "pods/eviction",
        "pods/log",
        "nodes",
        "nodes/status",
        "events",
    } <= served.keys()
    assert served["pods"]["verbs"] == [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ]
    aggregated = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}
    found = api.call("GET", "/apis", headers=aggregated)
    assert "as=APIGroupDiscoveryList" in found.headers["Content-Type"]
    assert {item["metadata"]["name"] for item in found.json["items"]} == groups
    for path in api.get("/openapi/v3").json["paths"].values():
        assert api.get(path["serverRelativeURL"]).json["openapi"] == "3.0.0"
    assert api.get("/openapi/v3/apis/none/v1").code == 404


def test_first_objects(api):
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= set(api.names("/api/v1/namespaces"))
    assert api.delete("/api/v1/namespaces/default").code == 403
    critical = api.get("/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical").json
    assert critical["value"] == 2_000_001_000


def test_nodes(api, space):
    made = api.post("/api/v1/nodes", {"metadata": {"name": "node-crud"}, "status": {"capacity": {"cpu": "4"}}})
    assert (made.code, made.json["status"]["allocatable"]) == (201, {"cpu": "4"})
    both = {"metadata": {"annotations": {"a": "b"}}, "status": {"capacity": {"kubernetes.io/batch-cpu": "4000"}}}
    patched = api.patch("/api/v1/nodes/node-crud/status", both).json
    assert patched["metadata"]["annotations"] == {"a": "b"}
    assert patched["status"]["capacity"] == {"cpu": "4", "kubernetes.io/batch-cpu": "4k"}
    assert "status" in patched
    plain = api.patch("/api/v1/nodes/node-crud", {"status": {"capacity": None}, "spec": {"unschedulable": True}}).json
    assert plain["status"]["capacity"]["cpu"] == "4"
    assert api.names("/api/v1/nodes", fieldSelector="spec.unschedulable=true") == ["node-crud"]
    assert api.delete("/api/v1/nodes/node-crud").json["status"] == "Success"


def test_binding_through_the_namespaces_collection(api, space):
    api.post(f"{space}/pods", pod())
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web"},
        "target": {"kind": "Node", "name": "n9"},
    }
    assert api.post(f"{space}/bindings", body).code == 201
    assert api.get(f"{space}/pods/web").json["spec"]["nodeName"] == "n9"
    assert api.post(f"{space}/pods/web/binding", body).code == 409
    assert api.post(f"{space}/pods/web/binding", {**body, "metadata": {"name": "x"}}).code == 400
    for wrong in (
        {"target": 5},
        {"target": {"name": 5}},
        {"metadata": {"annotations": 5}},
        {"metadata": []},
        {"kind": "Pod"},
    ):
        assert api.post(f"{space}/pods/web/binding", {**body, **wrong}).code == 400
    for wrong in ({"deleteOptions": 5}, {"deleteOptions": {"gracePeriodSeconds": "x"}}, {"metadata": 5}):
        assert api.post(f"{space}/pods/web/eviction", wrong).code == 400


def test_unknown_fields_are_refused_when_asked_for(api, space):
    body = pod(containers=[{"name": "main", "image": "i", "imagee": "typo"}], volumes=[{"name": "v", "emptyDir": {}}])
    refused = api.post(f"{space}/pods", body, fieldValidation="Strict")
    assert (refused.code, refused.fields) == (400, ["spec.containers[0].imagee"])
    assert 'strict decoding error: unknown field "spec.containers[0].imagee"' in refused.json["message"]
    assert api.post(f"{space}/pods", body, fieldValidation="Other").code == 422
    assert api.post(f"{space}/pods", body).json["spec"]["containers"][0]["imagee"] == "typo"
    labels = {"metadata": {"labels": {"any.key/at-all": "x"}}}
    assert api.patch(f"{space}/pods/web", labels, fieldValidation="Strict").code == 200
    assert api.patch(f"{space}/pods/web", {"spce": {}}, fieldValidation="Strict").fields == ["spce"]
