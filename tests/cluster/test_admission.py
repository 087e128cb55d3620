"""Admission policies of the chart on a real API server: what they let in, refuse and change, and ways around them."""

from __future__ import annotations

import contextlib
import copy
import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.converting import Rules, convert
from slacktide import names, quantity
from slacktide.cluster.evict import eviction_body
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.objects import ObjectMeta, Pod
from tests.cluster import harness
from tests.cluster.policies import SYSTEM, Api, installed, rendered, until
from tests.deploy.tools import ToolsMissing

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
BE = {names.TIER_LABEL: "BE"}
DRY = "?dryRun=All"
NODE_NAME = "authentication.kubernetes.io/node-name"
NODES = ("n1", "n2")


def account(component):
    return f"system:serviceaccount:{SYSTEM}:slacktide-{component}"


def pods(namespace, name="", sub=""):
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


def container(name="main", **resources):
    return {"name": name, "image": "work", "resources": resources}


def both(**amounts):
    return {"requests": dict(amounts), "limits": dict(amounts)}


def pod(*containers, labels=BE, name="", **spec):
    meta = {"labels": dict(labels), **({"name": name} if name else {"generateName": "p-"})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": list(containers), **spec}}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """A control plane of its own: the policies are for the whole cluster."""
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    try:
        manifests = rendered()
    except ToolsMissing as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(harness.control_plane(tmp_path_factory.mktemp("admission")))
        api = stack.enter_context(contextlib.closing(Api(plane)))
        api.plane = plane
        prepare(api)
        stack.enter_context(installed(api, manifests))
        wait_active(api)
        yield api


def prepare(api):
    for name, labels in ((SYSTEM, {}), ("plain", {}), ("batch", {"slacktide.io/batch": "enabled"})):
        api.do("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    api.do(
        "POST",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": names.PRIORITY_CLASS}, "value": 5500, "preemptionPolicy": "Never"},
    )
    for name in NODES:
        api.do("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    for component in ("agent", "predictor", "scheduler", "uninstall"):
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
        api.do("POST", path, {"metadata": {"name": f"slacktide-{component}"}})
    # More rights than they need: what is refused below, the policies refuse.
    api.do(
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "everybody"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
        },
    )


def wait_active(api):
    fraction = pod(container(**both(**{BATCH_CPU: "1500m"})))
    until(lambda: api.call("POST", pods("plain") + DRY, fraction)[0] == 422, "policy in force")
    until(lambda: converted(api, pod(container(requests={"cpu": 1}))), "conversion in force")


def converted(api, body):
    status, said = api.call("POST", pods("batch") + DRY, body)
    return said if status == 201 and BATCH_CPU in str(said) else None


def refusal(api, body, namespace="plain", **who):
    """Why a pod is not let in; None where it is."""
    status, said = api.call("POST", pods(namespace) + DRY, body, **who)
    return None if status == 201 else said["message"]


# What a pod may ask for.

WHOLE = "must be a whole number"
EQUAL = "must both be there and be equal"
BESIDE = "must not ask for cpu or memory as well"

FRACTIONS = ["0.5", "1500m", "1.500", "100.5", 0.25, "1u", "3e-1", "1.0005k", "2500e-3", "0.001Ki"]


@pytest.mark.parametrize("amount", FRACTIONS)
@pytest.mark.parametrize("name", [BATCH_CPU, BATCH_MEMORY])
def test_volcano_4625_fractions_are_refused(api, name, amount):
    assert WHOLE in refusal(api, pod(container(**both(**{name: amount}))))


@pytest.mark.parametrize(
    "amount", [0, "0", 1, "200", "1k", "1e3", "1.500k", "+5", "1Ki", "1.5Gi", "100000000Ki", "100Ti", 2.0]
)
def test_whole_amounts_in_any_form_are_let_in(api, amount):
    assert refusal(api, pod(container(**both(**{BATCH_MEMORY: amount})))) is None


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    digits=st.integers(0, 10**12),
    places=st.integers(0, 6),
    suffix=st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e0", "e3", "e-3", "E2"]),
)
def test_exactly_the_whole_amounts_are_let_in(api, digits, places, suffix):
    text = f"{digits:0{places + 1}d}"
    text = (f"{text[:-places]}.{text[-places:]}" if places else text) + suffix
    # The API server rounds to thousandths before anybody sees the amount.
    whole = -(-quantity.parse(text).nanos // 10**6) % 1000 == 0
    assert (refusal(api, pod(container(**both(**{BATCH_MEMORY: text})))) is None) is whole


UNEQUAL = [
    {"requests": {BATCH_CPU: 100}},
    {"requests": {BATCH_CPU: None}},
    {"requests": {BATCH_CPU: 100}, "limits": {BATCH_CPU: 200}},
    {"requests": {BATCH_CPU: 0}, "limits": {BATCH_CPU: 200}},
    {"requests": {BATCH_CPU: 100, BATCH_MEMORY: 1}, "limits": {BATCH_CPU: 100}},
    {"requests": {BATCH_MEMORY: "1Gi"}, "limits": {BATCH_MEMORY: "1G"}},
]


@pytest.mark.parametrize("asked", UNEQUAL)
def test_request_and_limit_are_equal(api, asked):
    message = refusal(api, pod(container(**asked)))
    # A limit below the request the API server refuses by itself.
    assert EQUAL in message or "must be less than or equal to" in message


def test_a_limit_alone_is_its_own_request_as_the_api_has_it(api):
    assert refusal(api, pod(container(limits={BATCH_CPU: 100}))) is None


def test_forms_do_not_matter_for_equality(api):
    asked = {"requests": {BATCH_CPU: "1k", BATCH_MEMORY: "1Gi"}, "limits": {BATCH_CPU: 1000, BATCH_MEMORY: 1 << 30}}
    assert refusal(api, pod(container(**asked))) is None


BATCH = container(**both(**{BATCH_CPU: 100}))
NATIVE = [
    {"requests": {"cpu": "1m"}},
    {"requests": {"memory": 1}},
    {"limits": {"cpu": 1}},
    {"limits": {"memory": "1Gi"}},
]


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("where", ["same", "other", "init", "sidecar", "pod", "batch init, native app"])
def test_no_native_request_beside_batch_resources_anywhere_in_the_pod(api, where, native):
    other = container("other", **native)
    mixed = copy.deepcopy(BATCH)
    for side, amounts in native.items():
        mixed["resources"][side].update(amounts)
    bodies = {
        "same": pod(mixed),
        "other": pod(BATCH, other),
        "init": pod(BATCH, initContainers=[other]),
        "sidecar": pod(BATCH, initContainers=[{**other, "restartPolicy": "Always"}]),
        "pod": pod(BATCH, resources=native),
        "batch init, native app": pod(other, initContainers=[BATCH]),
    }
    assert BESIDE in refusal(api, bodies[where])


def test_koordinator_903_an_injected_sidecar_that_asks_for_nothing_is_let_in(api):
    assert refusal(api, pod(BATCH, container("injected"))) is None
    # Written to keep a LimitRange away.
    assert refusal(api, pod(BATCH, container("zero", requests={"cpu": 0, "memory": "0"}))) is None


@pytest.mark.parametrize(
    "body",
    [
        pod(container(requests={"cpu": "1500m", "memory": "1.5Gi"}, limits={"cpu": "2"})),
        pod(container(requests={"cpu": "0.1"}), labels={names.TIER_LABEL: "LS"}),
        pod(container(), labels={}),
        pod(container(requests={"cpu": 1}), resources={"requests": {"cpu": 2}}),
        pod(container(**both(**{"example.com/gpu": 1})), labels={}),
    ],
)
def test_pods_without_batch_resources_are_nobodys_business(api, body):
    assert refusal(api, body) is None


def test_overhead_is_of_the_runtime_class(api):
    for name, overhead in (("vm", {"cpu": "250m"}), ("whole", {BATCH_CPU: "250"}), ("half", {BATCH_CPU: "0.5"})):
        body = {"metadata": {"name": name}, "handler": "h", "overhead": {"podFixed": overhead}}
        api.do("POST", "/apis/node.k8s.io/v1/runtimeclasses", body)

    def answer(name, namespace="plain"):
        return refusal(api, pod(BATCH, runtimeClassName=name), namespace)

    until(lambda: "not found" not in str(answer("half")), "runtime class in view")
    # Native overhead is counted as such; the API server allows no other than that of the class.
    assert answer("vm") is None
    assert answer("vm", "batch") is None
    assert answer("whole") is None
    assert WHOLE in answer("half")


# Ways around.


@pytest.fixture
def batch_pod(api):
    body = api.do("POST", pods("plain"), pod(BATCH, container("second"), nodeName="n1"))
    yield body["metadata"]["name"]
    api.call("DELETE", pods("plain", body["metadata"]["name"]) + "?gracePeriodSeconds=0")


FRACTION = both(**{BATCH_CPU: "0.5"})


@pytest.mark.parametrize("sub", ["", "status", "resize", "ephemeralcontainers"])
@pytest.mark.parametrize("resources", [FRACTION, both(cpu="1"), {"requests": {"cpu": "1"}}])
def test_an_update_gets_no_batch_pod_what_creating_it_does_not(api, batch_pod, sub, resources):
    before = api.do("GET", pods("plain", batch_pod))["spec"]
    for kind, spec in (
        (STRATEGIC, {"containers": [{"name": "main", "resources": resources}]}),
        (STRATEGIC, {"ephemeralContainers": [{"name": "debug", "image": "x", "resources": resources}]}),
        (MERGE, {"resources": {"requests": {"cpu": "1"}}}),
        (MERGE, {"overhead": {"cpu": "1"}}),
    ):
        api.call("PATCH", pods("plain", batch_pod, sub), {"spec": spec}, kind)
    assert api.do("GET", pods("plain", batch_pod))["spec"] == before


def test_a_container_for_debugging_may_be_added(api, batch_pod):
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x"}]}}
    api.do("PATCH", pods("plain", batch_pod, "ephemeralcontainers"), body, STRATEGIC)


def test_generated_names_dry_runs_and_other_media_types_are_no_way_around(api):
    bad = pod(container(**FRACTION))
    assert WHOLE in refusal(api, bad)
    named = copy.deepcopy(bad)
    named["metadata"] = {"name": "named", "labels": BE}
    assert api.call("POST", pods("plain"), named)[0] == 422
    apply = {**named, "apiVersion": "v1", "kind": "Pod"}
    path = f"{pods('plain', 'named')}?fieldManager=me&force=true"
    assert api.call("PATCH", path, apply, "application/apply-patch+yaml")[0] == 422
    assert api.call("GET", pods("plain", "named"))[0] == 404


@pytest.mark.parametrize("user", ["system:kube-controller-manager", account("scheduler"), account("predictor"), "root"])
def test_no_account_may_create_what_others_may_not(api, user):
    assert WHOLE in refusal(api, pod(container(**FRACTION)), user=user, groups=("system:masters",))


def test_owners_make_no_pods_that_people_may_not(api):
    """The template of a Deployment is not looked at; the pods that its controllers make are."""

    def replicas(name, asked):
        labels = {"app": name, **BE}
        template = {"metadata": {"labels": labels}, "spec": pod(container(**asked))["spec"]}
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        api.do("POST", "/apis/apps/v1/namespaces/batch/deployments", {"metadata": {"name": name}, "spec": spec})

    def made(name):
        return api.do("GET", f"{pods('batch')}?labelSelector=app%3D{name}")["items"]

    def failed():
        sets = api.do("GET", "/apis/apps/v1/namespaces/batch/replicasets?labelSelector=app%3Dbad")["items"]
        return [
            one["message"]
            for rs in sets
            for one in rs["status"].get("conditions", ())
            if one["type"] == "ReplicaFailure"
        ]

    with api.plane.controllers("deployment-controller,replicaset-controller"):
        replicas("bad", both(**{BATCH_CPU: "0.5"}))
        replicas("good", {"requests": {"cpu": "1500m"}})
        (one,) = until(lambda: made("good"), "pod of the deployment")
        assert one["spec"]["containers"][0]["resources"] == both(**{BATCH_CPU: "1500"})
        assert WHOLE in until(failed, "word of the replica set")[0]
        assert made("bad") == []


def test_what_was_there_before_the_policies_can_still_be_finished(api):
    """A pod of before is labelled and deleted as ever; new resources are looked at."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/slacktide-batch-pods"
    binding = api.do("GET", path)
    api.do("DELETE", path)
    body = pod(container(**FRACTION), name="old")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    until(lambda: api.call("POST", pods("plain"), body)[0] == 201, "policy out of force")
    binding["metadata"] = {"name": "slacktide-batch-pods"}
    api.do("POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", binding)
    wait_active(api)
    api.do("PATCH", pods("plain", "old"), {"metadata": {"labels": {"a": "b"}}}, MERGE)
    api.do("PATCH", pods("plain", "old", "status"), {"status": {"phase": "Failed"}}, MERGE)
    api.do("PATCH", pods("plain", "old"), {"metadata": {"finalizers": []}}, MERGE)
    api.do("DELETE", pods("plain", "old") + "?gracePeriodSeconds=0")


# Conversion.


def asked_of(body):
    """Resources of all containers, batch amounts as numbers: the API server writes 2000 as 2k."""

    def number(name, amount):
        return str(quantity.parse(amount).value()) if name in (BATCH_CPU, BATCH_MEMORY) else amount

    every = (*body["spec"].get("initContainers", ()), *body["spec"]["containers"])
    return [
        {
            side: {name: number(name, amount) for name, amount in given.items()}
            for side, given in one["resources"].items()
        }
        for one in every
    ]


def test_a_best_effort_pod_of_an_opted_in_namespace_becomes_a_batch_pod(api):
    init = [
        container("init", limits={"memory": "1Gi"}),
        {**container("sidecar", requests={"cpu": "10m"}), "restartPolicy": "Always"},
    ]
    given = pod(
        container(requests={"cpu": "1500m", "example.com/a": 1}, limits={"example.com/a": 1}), initContainers=init
    )
    said = converted(api, given)
    assert asked_of(said) == [
        both(**{BATCH_MEMORY: str(1 << 30)}),
        both(**{BATCH_CPU: "10"}),
        both(**{BATCH_CPU: "1500", "example.com/a": "1"}),
    ]
    spec = said["spec"]
    assert (spec["schedulerName"], spec["priorityClassName"]) == (names.SCHEDULER_NAME, names.PRIORITY_CLASS)
    assert (spec["priority"], spec["preemptionPolicy"]) == (5500, "Never")
    assert said["status"]["qosClass"] == "BestEffort"


LEFT_ALONE = [
    {},
    {names.TIER_LABEL: "LS"},
    {names.TIER_LABEL: "system"},
    {"koordinator.sh/qosClass": "LS"},
    {names.TIER_LABEL: "ls", "koordinator.sh/qosClass": "BE"},
]


@pytest.mark.parametrize(
    ("labels", "namespace"), [*((one, "batch") for one in LEFT_ALONE), (BE, "plain"), (BE, SYSTEM)]
)
def test_latency_sensitive_pods_and_other_namespaces_are_left_alone(api, labels, namespace):
    given = pod(container(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2"}), labels=labels)
    said = api.do("POST", pods(namespace) + DRY, given)
    assert asked_of(said) == [{"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}]
    assert said["spec"]["schedulerName"] == "default-scheduler"
    assert said["spec"]["priority"] == 0


def test_the_mirror_of_a_static_pod_is_left_alone(api):
    given = pod(container(requests={"cpu": "1"}), name="mirror", nodeName="n1")
    given["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    given["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "n1",
            "controller": True,
            "uid": api.do("GET", "/api/v1/nodes/n1")["metadata"]["uid"],
        }
    ]
    said = api.do("POST", pods("batch") + DRY, given, user="system:node:n1", groups=("system:nodes",))
    assert asked_of(said) == [{"requests": {"cpu": "1"}}]


def test_a_limit_range_adds_nothing_to_a_batch_pod(api):
    """The API server puts its defaults in again after the conversion; a second round takes them out again."""
    body = {
        "limits": [{"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1", "memory": "64Mi"}}]
    }
    path = "/api/v1/namespaces/batch/limitranges"
    api.do("POST", path, {"metadata": {"name": "defaults"}, "spec": body})
    try:

        def with_defaults():
            said = converted(api, pod(container()))
            return said and BATCH_MEMORY in str(said) and said

        said = until(with_defaults, "defaults of the range")
        # What the range gives to a container that asks for nothing is an amount like any other.
        assert asked_of(said) == [both(**{BATCH_CPU: "2000", BATCH_MEMORY: str(64 << 20)})]
        said = converted(api, pod(BATCH))
        assert asked_of(said)[0]["requests"][BATCH_CPU] == "100"
        assert not {"cpu", "memory"} & (asked_of(said)[0]["requests"].keys() | asked_of(said)[0]["limits"].keys())
    finally:
        api.do("DELETE", f"{path}/defaults")
        until(lambda: asked_of(api.do("POST", pods("batch") + DRY, pod(container()))) == [{}], "end of the range")


def test_koordinator_903_what_another_policy_injects_is_converted_too(api):
    """A sidecar that comes later, as from a service mesh's webhook."""
    expression = (
        "object.spec.containers.exists(c, c.name == 'mesh') ? [] : [JSONPatch{op: 'add', path: '/spec/containers/-', "
        "value: {'name': dyn('mesh'), 'image': dyn('mesh'), 'resources': dyn({'requests': {'cpu': '100m'}})}}]"
    )
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    policy = {
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "zz-mesh"},
        "spec": {
            "matchConstraints": {"resourceRules": rules, "namespaceSelector": {"matchLabels": {"mesh": "on"}}},
            "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        },
    }
    bound = {
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "zz-mesh"},
        "spec": {"policyName": "zz-mesh"},
    }
    api.do(
        "POST",
        "/api/v1/namespaces",
        {"metadata": {"name": "mesh", "labels": {"slacktide.io/batch": "enabled", "mesh": "on"}}},
    )
    with installed(api, [policy, bound]):

        def injected():
            status, said = api.call("POST", pods("mesh") + DRY, pod(container(requests={"cpu": 1})))
            return status == 201 and len(said["spec"]["containers"]) == 2 and said

        assert asked_of(until(injected, "sidecar")) == [both(**{BATCH_CPU: "1000"}), both(**{BATCH_CPU: "100"})]


def test_scheduler_and_priority_class_of_a_pods_own(api):
    high = {"metadata": {"name": "high"}, "value": 1_000_000}
    api.do("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)
    given = pod(container(requests={"cpu": 1}), priorityClassName="high", schedulerName="volcano")
    said = until(lambda: converted(api, given), "priority class in view")["spec"]
    # A best-effort pod that preempts would cost LS its place.
    assert (said["priorityClassName"], said["priority"]) == (names.PRIORITY_CLASS, 5500)
    assert said["schedulerName"] == "volcano"


def test_what_cannot_be_converted_is_refused_in_words(api):
    assert "spec.resources" in refusal(api, pod(container(), resources={"requests": {"cpu": 1}}), "batch")
    assert WHOLE in refusal(api, pod(container(requests={BATCH_CPU: "0.5"}, limits={BATCH_CPU: "0.5"})), "batch")
    assert EQUAL in refusal(api, pod(container(requests={BATCH_CPU: 100})), "batch")
    assert refusal(
        api, pod(container(requests={"cpu": 1, "hugepages-2Mi": "4Mi"}, limits={"hugepages-2Mi": "4Mi"})), "batch"
    )


def test_where_nothing_converts_a_best_effort_pod_must_be_one_already(api):
    """As on an API server without MutatingAdmissionPolicy: the command is named, and its result is let in."""
    path = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
    binding = api.do("GET", f"{path}/slacktide-conversion")
    api.do("DELETE", f"{path}/slacktide-conversion")
    try:
        given = pod(container(requests={"cpu": 1}))
        until(lambda: converted(api, given) is None, "conversion out of force")
        assert "slacktide convert" in refusal(api, given, "batch")
        assert refusal(api, convert(given, Rules()).manifest, "batch") is None
        assert refusal(api, pod(container(requests={"cpu": 1}), labels={}), "batch") is None
    finally:
        binding["metadata"] = {"name": "slacktide-conversion"}
        api.do("POST", path, binding)
        wait_active(api)


CPUS = st.one_of(
    st.integers(0, 500),
    st.integers(0, 500_000).map("{}m".format),
    st.decimals(0, 100, places=3).map(str),
    st.sampled_from(["1k", "1e1", "15e-1", "1.500", "0.0001", "1Ki", 0.1, 1.5, "250e-3"]),
)
MEMORIES = st.one_of(
    st.integers(0, 1 << 44),
    st.integers(1, 9999).map("{}Mi".format),
    st.decimals(0, 900, places=2).map("{}Gi".format),
    st.sampled_from(["1G", "1e9", "1.5Ti", "100000000Ki", "5000000000Ki", "100m", "1500m", "1.0005k", "123456789012"]),
)


@st.composite
def resource_sets(draw):
    requests, limits = {}, {}
    for native, batch, amounts in (("cpu", BATCH_CPU, CPUS), ("memory", BATCH_MEMORY, MEMORIES)):
        if draw(st.booleans()):
            requests[native] = draw(amounts)
        if draw(st.booleans()):
            limits[native] = draw(amounts)
        if draw(st.integers(0, 4)) == 0:
            requests[batch] = limits[batch] = draw(st.integers(0, 10**6))
    if draw(st.integers(0, 4)) == 0:
        requests["example.com/a"] = limits["example.com/a"] = 1
    return {"requests": requests, "limits": limits}


@st.composite
def workloads(draw):
    def some(prefix, low, high):
        return [container(f"{prefix}{i}", **draw(resource_sets())) for i in range(draw(st.integers(low, high)))]

    init = some("i", 0, 2)
    for one in init:
        if draw(st.booleans()):
            one["restartPolicy"] = "Always"
    labels = draw(
        st.sampled_from([BE, {names.TIER_LABEL: "be"}, {"koordinator.sh/qosClass": "BE"}, {names.TIER_LABEL: "ls"}, {}])
    )
    spec = {"schedulerName": draw(st.sampled_from(["default-scheduler", "volcano"]))} if draw(st.booleans()) else {}
    return pod(*some("c", 1, 3), labels=labels, name="same", initContainers=init, **spec)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=workloads())
def test_policy_and_command_make_the_same_pod(api, body):
    def seen(namespace, given):
        status, said = api.call("POST", pods(namespace) + DRY, given)
        return (said["spec"], said["metadata"].get("labels")) if status == 201 else said["message"].split(":")[0]

    assert seen("batch", body) == seen("plain", convert(body, Rules()).manifest)


# Who writes what is ours.

SOLD = {"capacity": {BATCH_CPU: "4000", BATCH_MEMORY: "1000"}, "allocatable": {BATCH_CPU: "4000", BATCH_MEMORY: "1000"}}


def note(**annotations):
    return {"metadata": {"annotations": {f"slacktide.io/{key}": value for key, value in annotations.items()}}}


def write(api, node, body, sub="status", **who):
    """The status of the answer to a patch of a node, and its message."""
    status, said = api.call("PATCH", f"/api/v1/nodes/{node}" + (f"/{sub}" if sub else "") + DRY, body, MERGE, **who)
    return status, said.get("message", "")


PREDICTOR = {"user": account("predictor")}
AGENT = {"user": account("agent"), "extra": {NODE_NAME: "n1"}}
STRANGERS = [
    {},
    {"user": account("scheduler")},
    {"user": account("agent"), "extra": {NODE_NAME: "n2"}},
    {"user": "system:serviceaccount:default:slacktide-predictor"},
    {"user": "slacktide-predictor", "groups": (f"system:serviceaccounts:{SYSTEM}",)},
    {"user": "koordinator", "groups": ("system:masters",)},
    {"user": "system:node:n2", "groups": ("system:nodes", "system:masters")},
]


def test_the_predictor_publishes(api):
    body = {**SOLD, "conditions": None}
    assert (
        write(api, "n1", {**note(forecast="{}"), "status": {k: v for k, v in body.items() if v}}, **PREDICTOR)[0] == 200
    )


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize(
    ("sub", "body"),
    [
        ("status", {"status": SOLD}),
        ("status", {"status": {"allocatable": SOLD["allocatable"]}}),
        ("status", {"status": {"capacity": {BATCH_CPU: "0"}}}),
        ("status", note(forecast="{}")),
        ("", note(forecast="")),
        ("", note(gpus="{}")),
        ("status", note(gpus="{}")),
    ],
)
def test_nobody_else_writes_batch_resources_or_our_annotations(api, who, sub, body):
    status, message = write(api, "n1", body, sub, **who)
    assert status == 403
    assert "of Slacktide writes" in message or "agent" in message or "is not allowed" in message


def test_nor_takes_them_away_or_brings_them_with_a_new_node(api):
    path = "/api/v1/nodes/n2"
    api.do("PATCH", f"{path}/status", {**note(forecast="{}"), "status": SOLD}, MERGE, **PREDICTOR)
    gone = {"status": {"capacity": {BATCH_CPU: None}, "allocatable": {BATCH_CPU: None}}}
    assert write(api, "n2", gone)[0] == 403
    assert write(api, "n2", note(forecast=None), "")[0] == 403
    remove = [{"op": "remove", "path": "/metadata/annotations/slacktide.io~1forecast"}]
    assert api.call("PATCH", path, remove, JSON_PATCH)[0] == 403
    whole = api.do("GET", path)
    del whole["status"]["capacity"]
    assert api.call("PUT", f"{path}/status", whole)[0] == 403
    for body in ({"status": SOLD}, note(forecast="{}"), note(gpus="{}")):
        meta = {"name": "n3", **body.get("metadata", {})}
        assert api.call("POST", "/api/v1/nodes" + DRY, {**body, "metadata": meta})[0] == 403
    clean = {
        "status": {
            "capacity": {BATCH_CPU: None, BATCH_MEMORY: None},
            "allocatable": {BATCH_CPU: None, BATCH_MEMORY: None},
        }
    }
    api.do("PATCH", f"{path}/status", {**clean, **note(forecast=None)}, MERGE, user=account("uninstall"))


def test_everything_else_of_a_node_is_written_as_ever(api):
    kubelet = {"user": "system:node:n1", "groups": ("system:nodes", "system:masters")}
    report = {"status": {"capacity": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}}
    assert write(api, "n1", report, **kubelet)[0] == 200
    assert write(api, "n1", {"metadata": {"annotations": {"example.com/a": "b"}, "labels": {"c": "d"}}}, "")[0] == 200
    assert write(api, "n1", note(**{"gpu-wear-level": "0.5"}), "")[0] == 200
    assert write(api, "n1", {"spec": {"unschedulable": True}}, "")[0] == 200
    assert api.call("POST", "/api/v1/nodes" + DRY, {"metadata": {"name": "n3"}})[0] == 201
    assert api.call("DELETE", "/api/v1/nodes/n1" + DRY)[0] == 200


def test_the_kubelet_makes_allocatable_of_capacity_and_no_more(api):
    kubelet = {"user": "system:node:n2", "groups": ("system:nodes", "system:masters")}
    uneven = {"capacity": {BATCH_CPU: "4000"}, "allocatable": {BATCH_CPU: "3000"}}
    api.do("PATCH", "/api/v1/nodes/n2/status", {"status": uneven}, MERGE, **PREDICTOR)
    assert write(api, "n2", {"status": {"allocatable": {BATCH_CPU: "4000"}}}, **kubelet)[0] == 200
    assert write(api, "n2", {"status": {"allocatable": {BATCH_CPU: "5000"}}}, **kubelet)[0] == 403
    assert write(api, "n2", {"status": {"capacity": {BATCH_CPU: "3000"}}}, **kubelet)[0] == 403
    assert write(api, "n1", {"status": {"allocatable": {BATCH_CPU: "4000"}}}, **kubelet)[0] == 403
    api.do(
        "PATCH",
        "/api/v1/nodes/n2/status",
        {"status": {"capacity": {BATCH_CPU: None}, "allocatable": {BATCH_CPU: None}}},
        MERGE,
        **PREDICTOR,
    )


# What the token of an agent is good for.


@pytest.fixture(scope="module")
def tokens(api):
    """By node, the token of the agent there, as its pod gets it; under "" one that is bound to no pod."""
    found = {}
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/slacktide-agent/token"
    for node in NODES:
        body = pod(container(), labels={}, name=f"agent-{node}", nodeName=node, serviceAccountName="slacktide-agent")
        uid = api.do("POST", pods(SYSTEM), body)["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": f"agent-{node}", "uid": uid}
        found[node] = api.do("POST", path, {"spec": {"boundObjectRef": bound}})["status"]["token"]
    found[""] = api.do("POST", path, {"spec": {}})["status"]["token"]
    return found


@pytest.fixture
def victims(api):
    """A pod on each node, and one that is on none."""
    name = f"team-{secrets.token_hex(3)}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for node in (*NODES, ""):
        api.do(
            "POST", pods(name), pod(container(), name=f"on-{node or 'none'}", **({"nodeName": node} if node else {}))
        )
    return name


def evict(api, namespace, name, token="", **who):
    """As our client asks for it."""
    body = eviction_body(Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid="u")), None, dry_run=True)
    del body["deleteOptions"]["preconditions"]
    return api.call("POST", pods(namespace, name, "eviction") + DRY, body, token=token, **who)


def eviction(namespace, name, version="v1", **labels):
    return {
        "apiVersion": f"policy/{version}",
        "kind": "Eviction",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {f"slacktide.io/{key.replace('_', '-')}": text for key, text in labels.items()},
        },
    }


def test_an_agent_writes_its_note_of_gpus_on_its_own_node(api, tokens):
    for node in NODES:
        for other in NODES:
            status, message = write(api, node, note(gpus="{}"), "", token=tokens[other])
            assert status == (200 if node == other else 403), message
    assert write(api, "n1", note(gpus="{}"), "", token=tokens[""])[0] == 403


@pytest.mark.parametrize(
    ("sub", "body"),
    [
        ("status", {"status": SOLD}),
        ("", note(forecast="{}")),
        ("", {"spec": {"unschedulable": True}}),
        ("", {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
        ("", {"metadata": {"labels": {"a": "b"}}}),
        ("", {"metadata": {"annotations": {"a": "b"}}}),
        ("", {"metadata": {"finalizers": ["a.b/c"]}}),
        ("status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ("status", {"status": {"capacity": {"cpu": "1"}}}),
    ],
)
def test_a_stolen_token_of_an_agent_changes_nothing_else_there(api, tokens, sub, body):
    assert write(api, "n1", body, sub, token=tokens["n1"])[0] == 403


def test_nor_does_it_delete_create_or_touch_pods_elsewhere(api, tokens, victims):
    token = tokens["n1"]
    assert api.call("DELETE", "/api/v1/nodes/n1" + DRY, token=token)[0] == 403
    assert api.call("POST", "/api/v1/nodes" + DRY, {"metadata": {"name": "n3"}}, token=token)[0] == 403
    assert api.call("POST", pods(victims) + DRY, pod(container(), labels={}), token=token)[0] == 403
    for name, status in (("on-n1", 200), ("on-n2", 403), ("on-none", 403)):
        body = {"metadata": {"labels": {"a": "b"}}}
        assert api.call("PATCH", pods(victims, name) + DRY, body, MERGE, token=token)[0] == status
        assert api.call("DELETE", pods(victims, name) + DRY, token=token)[0] == status
    assert api.call("DELETE", pods(victims) + DRY, token=token)[0] == 403


def test_an_agent_evicts_on_its_own_node_only(api, tokens, victims):
    for node in NODES:
        for other in NODES:
            # The API server's cache of pods may be a moment behind: a pod that it does not know yet is no parameter.
            wanted = 201 if node == other else 403
            until(lambda: evict(api, victims, f"on-{node}", tokens[other])[0] == wanted, f"{wanted}")  # noqa: B023 - called at once
    assert "its own node" in evict(api, victims, "on-n2", tokens["n1"])[1]["message"]
    assert evict(api, victims, "on-none", tokens["n1"])[0] == 403
    assert evict(api, victims, "on-n1", tokens[""])[0] == 403


def test_ways_around_the_node_of_an_eviction(api, tokens, victims):
    until(lambda: evict(api, victims, "on-n2", tokens["n1"])[0] == 403, "pods in view")
    token, path = tokens["n1"], pods(victims, "on-n2", "eviction")
    ways = [
        # The name in the body is another than that in the path.
        (path, eviction(victims, "on-n1", evicted_by="agent")),
        (pods(victims, "on-n1", "eviction"), eviction(victims, "on-n2", evicted_by="agent")),
        (path, eviction(victims, "", evicted_by="agent")),
        # Without the label that leads to the policy, with another, and in the older version.
        (path, eviction(victims, "on-n2")),
        (path, eviction(victims, "on-n2", evicted_by="me")),
        (path, eviction(victims, "on-n2", "v1beta1")),
        (path, eviction(victims, "on-n2", "v1beta1", evicted_by="agent")),
    ]
    for where, body in ways:
        status, said = api.call("POST", where, body, token=token)
        assert status in (400, 403, 404, 422), said
    for name in ("on-n1", "on-n2"):
        assert "deletionTimestamp" not in api.do("GET", pods(victims, name))["metadata"]


def test_others_evict_as_ever(api, victims):
    assert evict(api, victims, "on-n2")[0] == 201
    assert evict(api, victims, "none")[0] == 404
    assert evict(api, SYSTEM, "none")[0] == 404
    assert evict(api, victims, "on-n1", user="system:serviceaccount:kube-system:descheduler")[0] == 201


def test_the_expressions_have_no_type_errors(api):
    """The API server's own check, by the controller that writes it into the status of a policy."""

    def checked():
        found = api.do("GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
        return found if all("typeChecking" in one.get("status", {}) for one in found) else None

    with api.plane.controllers("validatingadmissionpolicy-status-controller"):
        found = until(checked, "type check of all policies", 60.0)
    assert [one["status"]["typeChecking"].get("expressionWarnings", []) for one in found] == [[]] * len(found)
