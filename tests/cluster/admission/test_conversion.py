"""Best-effort pods of namespaces that opted in become batch pods; the command does the same to files."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.converting import Rules, convert
from slacktide import names
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.cluster.admission.bodies import (
    BATCH,
    BE,
    DRY,
    EQUAL,
    WHOLE,
    asked_of,
    both,
    container,
    converted,
    pod,
    pods,
    refusal,
    wait_active,
)
from tests.cluster.policies import SYSTEM, installed, until
from tests.pki import Pki


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


def test_nobody_else_passes_a_pod_off_as_a_mirror(api):
    given = pod(container(requests={"cpu": "1"}), nodeName="n1")
    given["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    assert asked_of(api.do("POST", pods("batch") + DRY, given)) == [both(**{BATCH_CPU: "1000"})]


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


@pytest.fixture
def injector(tmp_path):
    """URL and authority of a webhook that adds a sidecar, as a service mesh has it."""
    patch = [{"op": "add", "path": "/spec/containers/-", "value": container("mesh", requests={"cpu": "100m"})}]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            names_ = [one["name"] for one in asked["request"]["object"]["spec"]["containers"]]
            text = base64.b64encode(json.dumps([] if "mesh" in names_ else patch).encode()).decode()
            said = {"uid": asked["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": text}
            body = json.dumps({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": said}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    pki = Pki(str(tmp_path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pki.issue("webhook", "/CN=webhook", "subjectAltName=IP:127.0.0.1"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}/", base64.b64encode(Path(pki.ca).read_bytes()).decode()
        finally:
            server.shutdown()
            thread.join()


def test_koordinator_903_what_a_webhook_injects_is_converted_too(api, injector):
    url, authority = injector
    hook = {
        "name": "mesh.example.com",
        "clientConfig": {"url": url, "caBundle": authority},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"hook": "on"}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    labels = {"slacktide.io/batch": "enabled", "hook": "on"}
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": "hooked", "labels": labels}})
    with installed(api, [{"kind": "MutatingWebhookConfiguration", "metadata": {"name": "mesh"}, "webhooks": [hook]}]):

        def injected():
            status, said = api.call("POST", pods("hooked") + DRY, pod(container(requests={"cpu": 1})))
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
    assert refusal(api, pod(container(requests={"memory": "1e20"})), "batch")
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
