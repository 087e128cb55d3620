"""What a pod may ask of batch resources, and ways around that."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide import names, quantity
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.cluster.admission.bodies import (
    BATCH,
    BE,
    BESIDE,
    EQUAL,
    FRACTION,
    MERGE,
    STRATEGIC,
    WHOLE,
    account,
    both,
    container,
    pod,
    pods,
    refusal,
    wait_active,
)
from tests.cluster.policies import until

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


OTHERS = [
    {names.TIER_LABEL: "ls"},
    {names.TIER_LABEL: "LS"},
    {names.TIER_LABEL: "System"},
    {"koordinator.sh/qosClass": "LSR"},
    {names.TIER_LABEL: "ls", "koordinator.sh/qosClass": "BE"},
    {names.TIER_LABEL: "other", "koordinator.sh/qosClass": "LS"},
]


@pytest.mark.parametrize("labels", OTHERS)
def test_batch_resources_are_for_best_effort_pods_alone(api, batch_pod, labels):
    assert "is best-effort" in refusal(api, pod(BATCH, labels=labels))
    gone = {"koordinator.sh/qosClass": None, names.TIER_LABEL: None}
    status, said = api.call("PATCH", pods("plain", batch_pod), {"metadata": {"labels": {**gone, **labels}}}, MERGE)
    assert status == 422
    assert "is best-effort" in said["message"]


@pytest.mark.parametrize("labels", [{}, BE, {"koordinator.sh/qosClass": "BE"}, {names.TIER_LABEL: "other"}])
def test_without_a_label_what_it_asks_for_makes_a_pod_best_effort(api, batch_pod, labels):
    assert refusal(api, pod(BATCH, labels=labels)) is None
    api.do("PATCH", pods("plain", batch_pod), {"metadata": {"labels": labels}}, MERGE)


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


def test_the_expressions_have_no_type_errors(api):
    """The API server's own check, by the controller that writes it into the status of a policy."""

    def checked():
        found = api.do("GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
        return found if all("typeChecking" in one.get("status", {}) for one in found) else None

    with api.plane.controllers("validatingadmissionpolicy-status-controller"):
        found = until(checked, "type check of all policies", 60.0)
    assert [one["status"]["typeChecking"].get("expressionWarnings", []) for one in found] == [[]] * len(found)
