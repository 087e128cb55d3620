from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standalone.api import podactions, tables, writes
from standalone.api.errors import ApiError
from standalone.api.kinds import EVENTS, KINDS, LEASES, NAMESPACES, NODES, PDBS, PODS, PRIORITY_CLASSES
from standalone.api.records import record as make_record
from tests.standalone.api.client import pod
from tests.standalone.api.world import Cluster


@pytest.fixture
def cluster():
    return Cluster()


def refused(call, *arguments, **named):
    with pytest.raises(ApiError) as found:
        call(*arguments, **named)
    return found.value


def fields(problem):
    return [cause.field for cause in problem.causes]


def test_new_pod_is_filled_in(cluster):
    made = cluster.create(PODS, pod())
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"] | {"resourceVersion": ""} == {
        "name": "web",
        "namespace": "default",
        "uid": made["metadata"]["uid"],
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "generation": 1,
        "resourceVersion": "",
    }
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (spec["terminationGracePeriodSeconds"], spec["priority"]) == (30, 0)
    assert spec["containers"][0]["imagePullPolicy"] == "Always"


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("r:5000/a", "Always"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(cluster, image, policy):
    made = cluster.create(PODS, pod(containers=[{"name": "main", "image": image}]))
    assert made["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_limits_become_requests_and_quantities_are_canonical(cluster):
    resources = {"limits": {"cpu": 0.5, "memory": "1024Ki"}, "requests": {"cpu": "0.25"}}
    made = cluster.create(PODS, pod(containers=[{"name": "main", "image": "a", "resources": resources}]))
    found = made["spec"]["containers"][0]["resources"]
    assert found == {"limits": {"cpu": "500m", "memory": "1Mi"}, "requests": {"cpu": "250m", "memory": "1Mi"}}
    assert made["status"]["qosClass"] == "Burstable"


def test_unknown_fields_are_kept_and_nulls_are_not(cluster):
    body = pod(futureField={"a": [1, 2]}, affinity=None)
    made = cluster.create(PODS, body)
    assert made["spec"]["futureField"] == {"a": [1, 2]}
    assert "affinity" not in made["spec"]
    cluster.update(PODS, "web", {"metadata": {"labels": {"a": "b"}}})
    assert cluster.get(PODS, "web")["spec"]["futureField"] == {"a": [1, 2]}


def test_generated_names(cluster):
    cluster.tails = iter(["bbbbb", "bbbbb", "ccccc"])
    body = {**pod(), "metadata": {"generateName": "job-"}}
    assert cluster.create(PODS, body)["metadata"]["name"] == "job-bbbbb"
    assert cluster.create(PODS, body)["metadata"]["name"] == "job-ccccc"
    cluster.tails = iter(["ddddd"])
    long = {**pod(), "metadata": {"generateName": "x" * 80}}
    assert cluster.create(PODS, long)["metadata"]["name"] == "x" * 58 + "ddddd"


def container(**more):
    return pod(containers=[{"name": "main", "image": "a", **more}])


def asks(**requests):
    return container(
        resources={"requests": {key.replace("__", "/").replace("_", "-"): v for key, v in requests.items()}}
    )


RESOURCES = "spec.containers[0].resources"
BATCH = "kubernetes.io/batch-cpu"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (pod("Bad_Name"), ["metadata.name"]),
        (pod("a" * 254), ["metadata.name"]),
        (pod(""), ["metadata.name"]),
        (pod(containers=[]), ["spec.containers"]),
        (pod(containers=[{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]), ["spec.containers[1].name"]),
        (pod(containers=[{"name": "A.b", "image": "i"}]), ["spec.containers[0].name"]),
        (pod(containers=[{"image": "i"}]), ["spec.containers[0].name"]),
        (pod(containers=[{"name": "a"}]), ["spec.containers[0].image"]),
        (pod(restartPolicy="Sometimes"), ["spec.restartPolicy"]),
        (pod(terminationGracePeriodSeconds=-1), ["spec.terminationGracePeriodSeconds"]),
        (pod(activeDeadlineSeconds=0), ["spec.activeDeadlineSeconds"]),
        (pod(tolerations=[{"operator": "Equal"}]), ["spec.tolerations[0].operator"]),
        (pod(tolerations=[{"key": "a", "effect": "Never"}]), ["spec.tolerations[0].effect"]),
        (pod(nodeName="n1", schedulingGates=[{"name": "a"}]), ["spec.nodeName"]),
        (pod(schedulingGates=[{"name": "a"}, {"name": "a"}]), ["spec.schedulingGates[1]"]),
        (container(env=[{"name": "A=B"}]), ["spec.containers[0].env[0].name"]),
        (container(env=[{"value": "x"}]), ["spec.containers[0].env[0].name"]),
        (container(ports=[{"containerPort": 0}]), ["spec.containers[0].ports[0].containerPort"]),
        (asks(cpu="-1"), [f"{RESOURCES}.requests[cpu]"]),
        (asks(kubernetes_io=1), [f"{RESOURCES}.requests"]),
        (container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), [f"{RESOURCES}.requests"]),
        (container(resources={"requests": {BATCH: "200m"}}), [f"{RESOURCES}.requests[{BATCH}]"]),
        (container(resources={"requests": {BATCH: "0.5"}}), [f"{RESOURCES}.requests[{BATCH}]"]),
        (container(resources={"requests": {BATCH: "-1"}}), [f"{RESOURCES}.requests[{BATCH}]"]),
        (
            container(resources={"requests": {"kubernetes.io/batch-memory": "1500m"}}),
            [f"{RESOURCES}.requests[kubernetes.io/batch-memory]"],
        ),
        (container(resources={"requests": {"vendor.com/gpu": "1"}}), [f"{RESOURCES}.limits"]),
        ({**pod(), "metadata": {"name": "a", "labels": {"-x": "y"}}}, ["metadata.labels"]),
        ({**pod(), "metadata": {"name": "a", "labels": {"x": "y z"}}}, ["metadata.labels"]),
        ({**pod(), "metadata": {"name": "a", "annotations": {"x y": "z"}}}, ["metadata.annotations"]),
        ({**pod(), "metadata": {"name": "a", "annotations": {"x": "z" * 262144}}}, ["metadata.annotations"]),
    ],
)
def test_pods_that_are_invalid(cluster, body, where):
    problem = refused(cluster.create, PODS, body)
    assert (problem.code, problem.reason, fields(problem)) == (422, "Invalid", where)
    assert all(cause.message and cause.reason.startswith("FieldValue") for cause in problem.causes)
    assert f'Pod "{body["metadata"].get("name", "")}" is invalid' in problem.message


@pytest.mark.parametrize("amount", ["1.5.2", "1e", "", "1 Gi", "abc", "1KiB", "--1"])
def test_text_that_is_no_quantity_cannot_be_read(cluster, amount):
    problem = refused(cluster.create, PODS, asks(cpu=amount))
    assert (problem.code, problem.reason, fields(problem)) == (400, "BadRequest", [])
    assert "quantities must match" in problem.message
    assert f"{RESOURCES}.requests[cpu]" in problem.message


def test_a_batch_request_that_no_node_can_have_is_the_schedulers_business(cluster):
    made = cluster.create(PODS, container(resources={"requests": {BATCH: "9000000000"}}))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {BATCH: "9G"}


@pytest.mark.parametrize(
    "body",
    [
        pod(containers="x"),
        pod(containers=[1]),
        pod(nodeName=5),
        {**pod(), "metadata": {"name": 5}},
        {**pod(), "metadata": {"name": "a", "labels": {"a": 1}}},
        {**pod(), "kind": "Node"},
        {**pod(), "apiVersion": "v2"},
        {**pod(), "metadata": []},
    ],
)
def test_pods_of_the_wrong_shape(cluster, body):
    assert refused(cluster.create, PODS, body).code == 400


def test_what_must_be_there_for_a_create(cluster):
    assert refused(cluster.create, PODS, pod(), "nowhere").message == 'namespaces "nowhere" not found'
    other = {**pod(), "metadata": {"name": "a", "namespace": "other"}}
    assert refused(cluster.create, PODS, other).code == 400
    cluster.create(PODS, pod())
    again = refused(cluster.create, PODS, pod())
    assert (again.code, again.reason, again.message) == (409, "AlreadyExists", 'pods "web" already exists')


def test_priority_is_resolved_at_creation(cluster):
    cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "batch"}, "value": 5500, "preemptionPolicy": "Never"})
    made = cluster.create(PODS, pod(priorityClassName="batch"))
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (5500, "Never")
    unknown = refused(cluster.create, PODS, pod("b", priorityClassName="no"))
    assert (unknown.code, unknown.reason) == (403, "Forbidden")
    assert "no PriorityClass with name no was found" in unknown.message
    assert refused(cluster.create, PODS, pod("b", priority=7)).code == 403
    cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "usual"}, "value": 10, "globalDefault": True})
    assert cluster.create(PODS, pod("c"))["spec"]["priorityClassName"] == "usual"
    assert fields(refused(cluster.create, PRIORITY_CLASSES, {"metadata": {"name": "system-x"}, "value": 1})) == [
        "metadata.name"
    ]
    assert fields(refused(cluster.create, PRIORITY_CLASSES, {"metadata": {"name": "x"}, "value": 2 * 10**9})) == [
        "value"
    ]
    assert fields(refused(cluster.update, PRIORITY_CLASSES, "batch", {"value": 1})) == ["value"]


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"nodeName": "n2"}},
        {"spec": {"schedulerName": "other"}},
        {"spec": {"containers": [{"name": "main", "image": "i", "command": ["x"]}]}},
        {"spec": {"containers": [{"name": "other", "image": "i"}]}},
        {"spec": {"priority": 5}},
        {"spec": {"terminationGracePeriodSeconds": 5}},
        {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}},
        {"spec": {"schedulingGates": [{"name": "late"}]}},
    ],
)
def test_what_of_a_pod_may_not_change(cluster, change):
    cluster.bound()
    assert refused(cluster.update, PODS, "web", change).code == 422


def test_what_of_a_pod_may_change(cluster):
    before = cluster.create(
        PODS, pod(tolerations=[{"key": "a", "operator": "Exists"}], schedulingGates=[{"name": "g"}])
    )
    assert before["status"]["conditions"][0]["reason"] == "SchedulingGated"
    image = [{**before["spec"]["containers"][0], "image": "new"}]
    more = [{"key": "b", "operator": "Exists"}, *before["spec"]["tolerations"]]
    change = {"spec": {"containers": image, "tolerations": more, "activeDeadlineSeconds": 5, "schedulingGates": []}}
    after = cluster.update(PODS, "web", change)
    assert after["metadata"]["generation"] == 2
    assert after["spec"]["containers"][0]["image"] == "new"
    assert refused(cluster.update, PODS, "web", {"spec": {"tolerations": []}}).code == 422


def test_spec_and_status_do_not_touch_each_other(cluster):
    cluster.bound()
    after = cluster.update(PODS, "web", {"status": {"phase": "Failed"}})
    assert after["status"]["phase"] == "Pending"
    running = {"status": {"phase": "Running"}, "spec": {"nodeName": "other"}, "metadata": {"labels": {"by": "status"}}}
    after = cluster.update(PODS, "web", running, status=True)
    assert (after["status"]["phase"], after["spec"]["nodeName"]) == ("Running", "n1")
    assert after["metadata"]["labels"] == {"by": "status"}
    assert after["metadata"]["generation"] == 1


def test_an_update_that_changes_nothing_makes_no_version(cluster):
    cluster.bound()
    before = cluster.store.version
    cluster.update(PODS, "web", {"metadata": {"labels": {}}})
    middle = cluster.store.version
    cluster.update(PODS, "web", {"metadata": {"labels": {}}})
    assert (middle, cluster.store.version) == (before + 1, middle)


def test_preconditions(cluster):
    made = cluster.bound()
    old = {"metadata": {"resourceVersion": "1"}}
    assert refused(cluster.update, PODS, "web", old).reason == "Conflict"
    assert refused(cluster.update, PODS, "web", {"metadata": {"uid": "other"}}).reason == "Invalid"
    assert refused(cluster.update, PODS, "web", {"metadata": {"name": "other"}}).code == 400
    fresh = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "b"}}}
    assert cluster.update(PODS, "web", fresh)["metadata"]["labels"] == {"a": "b"}
    wrong = refused(cluster.delete, PODS, "web", uid="other")
    assert (wrong.code, wrong.reason) == (409, "Conflict")
    assert "the UID in the precondition (other) does not match" in wrong.message
    assert refused(cluster.delete, PODS, "web", resource_version="1").code == 409


def test_deleting_a_pod_that_no_node_holds_removes_it_at_once(cluster):
    cluster.create(PODS, pod())
    assert cluster.delete(PODS, "web")[1]
    assert cluster.get(PODS, "web") is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_deleting_a_pod_that_has_ended_removes_it_at_once(cluster, phase):
    cluster.bound()
    cluster.update(PODS, "web", {"status": {"phase": phase}}, status=True)
    assert cluster.delete(PODS, "web")[1]


def test_deleting_a_running_pod_waits_for_the_node(cluster):
    cluster.bound()
    found, gone = cluster.delete(PODS, "web")
    metadata = found.object()["metadata"]
    assert not gone
    assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == ("2026-01-01T00:00:30Z", 30)
    cluster.later(5)
    longer, _ = cluster.delete(PODS, "web", grace_period_seconds=60)
    assert longer.object()["metadata"] == metadata
    again, _ = cluster.delete(PODS, "web")
    assert again.object()["metadata"] == metadata
    shorter, gone = cluster.delete(PODS, "web", grace_period_seconds=10)
    assert not gone
    assert shorter.object()["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:10Z"
    assert shorter.object()["metadata"]["deletionGracePeriodSeconds"] == 10
    assert cluster.delete(PODS, "web", grace_period_seconds=0)[1]
    assert cluster.changes[-1].type == "DELETED"
    assert cluster.changes[-1].new.object()["metadata"]["deletionTimestamp"]


def test_finalizers_hold_an_object(cluster):
    cluster.bound(metadata={"finalizers": ["example.com/a", "example.com/b"]})
    found, gone = cluster.delete(PODS, "web", grace_period_seconds=0)
    assert not gone
    assert found.object()["metadata"]["deletionTimestamp"]
    added = {"metadata": {"finalizers": ["example.com/a", "example.com/b", "example.com/c"]}}
    assert refused(cluster.update, PODS, "web", added).code == 422
    cluster.update(PODS, "web", {"metadata": {"finalizers": ["example.com/b"]}})
    assert cluster.get(PODS, "web") is not None
    cluster.update(PODS, "web", {"metadata": {"finalizers": []}})
    assert cluster.get(PODS, "web") is None


def binding(node="n1", **metadata):
    return {"metadata": metadata, "target": {"kind": "Node", "name": node}}


def bind(cluster, name="web", body=None):
    return cluster.decide(lambda tx: podactions.bind(tx, cluster.world, "default", name, body or binding())).object()


def test_binding_sets_node_condition_and_annotations_in_one_write(cluster):
    made = cluster.create(PODS, {**pod(), "metadata": {"name": "web", "annotations": {"kept": "1"}}})
    before = cluster.store.version
    found = bind(cluster, body=binding(uid=made["metadata"]["uid"], annotations={"gpu": "0"}))
    assert cluster.store.version == before + 1
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"] == {"kept": "1", "gpu": "0"}
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    again = refused(bind, cluster)
    assert (again.code, again.reason) == (409, "Conflict")
    assert 'already assigned to node "n1"' in again.message


def test_bindings_that_are_refused(cluster):
    assert refused(bind, cluster).code == 404
    cluster.create(PODS, pod(schedulingGates=[{"name": "g"}]))
    assert "schedulingGates" in refused(bind, cluster).message
    cluster.create(PODS, {**pod("b"), "metadata": {"name": "b", "finalizers": ["example.com/x"]}})
    assert refused(bind, cluster, "b", binding(uid="other")).code == 409
    assert refused(bind, cluster, "b", binding("")).code == 422
    assert refused(bind, cluster, "b", {"metadata": {}, "target": {"kind": "Pod", "name": "x"}}).code == 422
    cluster.delete(PODS, "b")
    assert "being deleted" in refused(bind, cluster, "b").message


def ready(cluster, name, **labels):
    cluster.bound(name, metadata={"labels": labels})
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.update(PODS, name, {"status": status}, status=True)


def evict(cluster, name, **options):
    wanted = writes.DeleteOptions(**options)
    return cluster.decide(lambda tx: podactions.evict(tx, cluster.world, "default", name, wanted))


def budget(name="b", **spec):
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "a"}}, **spec}}


def test_budgets_follow_their_pods_in_the_same_write(cluster):
    ready(cluster, "p0", app="a")
    cluster.create(PDBS, budget(minAvailable=1))
    assert cluster.get(PDBS, "b")["status"]["disruptionsAllowed"] == 0
    ready(cluster, "p1", app="a")
    status = cluster.get(PDBS, "b")["status"]
    assert (status["expectedPods"], status["currentHealthy"], status["disruptionsAllowed"]) == (2, 2, 1)
    assert status["observedGeneration"] == cluster.get(PDBS, "b")["metadata"]["generation"] == 1
    cluster.update(PDBS, "b", {"spec": {"minAvailable": 2}})
    assert cluster.get(PDBS, "b")["status"]["disruptionsAllowed"] == 0
    assert cluster.get(PDBS, "b")["status"]["observedGeneration"] == 2


def test_evictions_respect_the_budget(cluster):
    ready(cluster, "p0", app="a")
    ready(cluster, "p1", app="a")
    cluster.create(PDBS, budget(minAvailable=1))
    evict(cluster, "p0", grace_period_seconds=5)
    found = cluster.get(PODS, "p0")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 5
    assert found["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"
    blocked = refused(evict, cluster, "p1")
    assert (blocked.code, blocked.retry_after_seconds, blocked.causes[0].reason) == (429, 0, "DisruptionBudget")
    assert cluster.get(PODS, "p1")["metadata"].get("deletionTimestamp") is None
    # Being evicted already, it needs no budget any more.
    evict(cluster, "p0")
    cluster.delete(PODS, "p0", grace_period_seconds=0)
    assert refused(evict, cluster, "p1").code == 429


def test_evictions_without_need_of_a_budget(cluster):
    cluster.create(PDBS, budget(minAvailable=5))
    cluster.bound("pending", metadata={"labels": {"app": "a"}})
    evict(cluster, "pending")
    assert cluster.get(PODS, "pending")["metadata"]["deletionTimestamp"]
    ready(cluster, "other", app="z")
    evict(cluster, "other")
    assert refused(evict, cluster, "absent").code == 404
    ready(cluster, "uid", app="z")
    assert refused(evict, cluster, "uid", uid="other").code == 409


def test_eviction_under_several_budgets_is_an_error(cluster):
    ready(cluster, "p", app="a")
    cluster.create(PDBS, budget("b1", minAvailable=0))
    cluster.create(PDBS, budget("b2", minAvailable=0))
    assert refused(evict, cluster, "p").code == 500


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "spec"),
        ({"minAvailable": -1}, "spec.minAvailable"),
        ({"maxUnavailable": "x"}, "spec.maxUnavailable"),
        ({"maxUnavailable": "101%"}, "spec.maxUnavailable"),
        ({"unhealthyPodEvictionPolicy": "x"}, "spec.unhealthyPodEvictionPolicy"),
    ],
)
def test_budgets_that_are_invalid(cluster, spec, where):
    assert fields(refused(cluster.create, PDBS, budget(**spec))) == [where]


def test_a_namespace_goes_when_its_contents_are_gone(cluster):
    cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
    cluster.create(LEASES, {"metadata": {"name": "l"}}, "team")
    body = {"metadata": {"name": "web"}, "spec": {**pod()["spec"], "nodeName": "n1"}}
    cluster.create(PODS, body, "team")
    cluster.delete(NAMESPACES, "team")
    assert cluster.get(NAMESPACES, "team")["status"]["phase"] == "Terminating"
    assert cluster.get(LEASES, "l", "team") is None
    assert cluster.get(PODS, "web", "team")["metadata"]["deletionTimestamp"]
    closed = refused(cluster.create, LEASES, {"metadata": {"name": "m"}}, "team")
    assert (closed.code, closed.causes[0].reason) == (403, "NamespaceTerminating")
    cluster.delete(PODS, "web", "team", grace_period_seconds=0)
    assert cluster.get(NAMESPACES, "team") is None


def test_other_kinds_that_are_invalid(cluster):
    about = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other"}}
    assert fields(refused(cluster.create, EVENTS, about)) == ["involvedObject.namespace"]
    assert fields(
        refused(cluster.create, LEASES, {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}})
    ) == ["spec.leaseDurationSeconds"]
    assert fields(
        refused(cluster.create, NODES, {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "x"}]}})
    ) == ["spec.taints[0].effect"]
    assert fields(
        refused(cluster.create, NODES, {"metadata": {"name": "n"}, "status": {"capacity": {BATCH: "1.5"}}})
    ) == [f"status.{field}[{BATCH}]" for field in ("capacity", "allocatable")]
    assert fields(refused(cluster.create, NAMESPACES, {"metadata": {"name": "a.b"}})) == ["metadata.name"]
    node = cluster.create(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": 4}}})
    assert node["status"]["allocatable"] == {"cpu": "4"}


FULL = {
    "metadata": {
        "name": "web",
        "labels": {"a": "b"},
        "annotations": {"a": "b"},
        "finalizers": [],
        "ownerReferences": [],
    },
    "spec": {
        "containers": [
            {
                "name": "m",
                "image": "i",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {}}}],
                "ports": [{"containerPort": 1}],
                "resources": {"requests": {"cpu": 1}, "limits": {"cpu": 1}},
                "livenessProbe": {"httpGet": {}},
                "readinessProbe": {},
            }
        ],
        "initContainers": [],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
        "readinessGates": [{"conditionType": "x"}],
        "resources": {},
        "overhead": {},
        "nodeSelector": {},
        "schedulingGates": [],
        "minAvailable": 1,
        "selector": {"matchLabels": {"a": "b"}},
        "taints": [],
        "leaseDurationSeconds": 1,
        "finalizers": [],
        "holderIdentity": "x",
        "unschedulable": True,
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"cpu": 1},
        "allocatable": {},
        "addresses": [],
        "containerStatuses": [
            {"name": "m", "state": {"running": {}}, "lastState": {"terminated": {"finishedAt": "x"}}}
        ],
        "nodeInfo": {},
        "initContainerStatuses": [],
        "disruptedPods": {"a": "b"},
    },
    "involvedObject": {"name": "x"},
    "source": {},
    "series": {},
    "count": 1,
    "value": 1,
    "message": "x",
}

json_values = st.recursive(
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab-/", max_size=2), inner, max_size=2),
    max_leaves=4,
)


def paths_of(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from paths_of(item, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KINDS), st.sampled_from([path for path in paths_of(FULL) if path]), json_values, st.booleans())
def test_nonsense_anywhere_is_refused_or_stored_and_never_breaks_the_server(kind, path, value, through_status):
    cluster, problem = Cluster(), None
    body = replaced(FULL, path, value)
    try:
        if through_status:
            cluster.create(kind, {**replaced(FULL, ("metadata", "name"), "web"), "status": {}})
            name = "web"
            cluster.update(kind, name, body, status=True)
        else:
            name = cluster.create(kind, body)["metadata"]["name"]
    except ApiError as found:
        problem = found
    if problem is not None:
        # The one 500 without a reason is kube-apiserver's answer to a create with a resourceVersion.
        assert (problem.code, problem.reason) == (500, "") or problem.code in {400, 403, 404, 409, 422}
        return
    stored = cluster.record(kind, name)
    tables.table(kind, [stored], cluster.now, "Metadata", "v1")
    assert make_record(stored.key, stored.version, stored.object()).body == stored.body
    assert stored.attributes.fields["metadata.name"] == name
