"""`slacktide doctor --cluster` against a real API server: what is sound, and what is wrong with what to do about it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from cli.main import main
from predictor.permissions import PERMISSIONS
from slacktide.cluster import LEASES, NODES, PODS, connect
from slacktide.cluster.kinds import NAMESPACES, Kind
from slacktide.forecast import Amount, Forecast, Terms, encode
from slacktide.names import BATCH_CPU, FORECAST_ANNOTATION
from slacktide.objects import View

ROLES = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False, View)
BINDINGS = Kind("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False, View)
NOTHING = Amount()
NO_TERMS = Terms(capacity=NOTHING, reserve=NOTHING, peak=NOTHING, now=NOTHING, sold=NOTHING)
INFO = {"kubeletVersion": "v1.36.3", "kernelVersion": "6.12.1-generic", "operatingSystem": "linux", "osImage": "D"}


@pytest.fixture
def ask(plane, capsys):
    def asked(namespace="slacktide-none", user="admin"):
        code = main(
            ["doctor", "--cluster", "-n", namespace, "--kubeconfig", plane.kubeconfig(user), "--output", "json"]
        )
        answer = json.loads(capsys.readouterr().out)
        assert answer["problems"] == sum(one["verdict"] == "problem" for one in answer["findings"])
        assert code == (1 if answer["problems"] else 0)
        assert all(one["remedy"] for one in answer["findings"] if one["verdict"] != "ok")
        found = {}
        for one in answer["findings"]:
            found.setdefault(one["name"], []).append(one)
        return found

    return asked


@pytest.fixture
def node(client, namespace):
    """A node of the test's own, as a kubelet would register it; its lease goes with it."""
    name = f"n-{namespace}"

    def put(annotations=None, amounts=None, info=INFO):
        ready = [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}]
        body = {"metadata": {"annotations": annotations or {}}, "status": {"nodeInfo": info, "conditions": ready}}
        if amounts:
            body["status"] |= {"capacity": amounts, "allocatable": amounts}
        client.patch(NODES, name, None, body, subresource="status")
        return name

    # Fields are tracked from the start or not at all, and only where something was set.
    client.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    put()
    yield put
    client.delete(NODES, name)
    for lease in client.list(LEASES, "kube-node-lease").items:
        if lease.metadata.name == name:
            client.delete(LEASES, name, "kube-node-lease")


def renewed(client, name, seconds_ago):
    """The node's lease; kube-node-lease is made by the server itself, after a while."""
    deadline = time.monotonic() + 60
    while not any(one.metadata.name == "kube-node-lease" for one in client.list(NAMESPACES).items):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    when = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    client.create(LEASES, {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec})


def daemon_pod(client, namespace, name, image, node_name, labels=None):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "x", "controller": True}
    pod = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}, "ownerReferences": [owner]},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "image": image}],
            "volumes": [{"name": "h", "hostPath": {"path": "/sys/fs/cgroup"}}],
        },
    }
    client.create(PODS, pod)


def test_an_empty_cluster_is_told_what_to_install(ask, node):
    found = ask()
    assert found["your rights"][0]["verdict"] == "ok"
    assert found["api server"][0]["verdict"] == "ok"
    assert found["api server"][0]["evidence"].startswith("v1.36")
    assert found["kubelets"][0]["verdict"] == "ok"
    assert found["kernel"][0]["verdict"] == "ok"
    assert found["clocks of nodes"][0]["verdict"] == "ok"
    assert found["agent"][0] | {"remedy": ""} == {
        "name": "agent",
        "verdict": "problem",
        "evidence": "no pod of it",
        "remedy": "",
    }
    assert "install it with the chart" in found["predictor"][0]["remedy"]
    # No kubelet answers here, which is said and not taken for sound.
    assert found["kubelet settings"][0]["verdict"] == "unknown"
    assert found["admission"][0]["verdict"] == "warning"
    assert "0 namespaces opted in" in found["conversion"][0]["evidence"]


def test_what_is_wrong_with_nodes_is_found(ask, node, client):
    old = {**INFO, "kubeletVersion": "v1.32.1", "kernelVersion": "5.10.0-8-amd64"}
    name = node(info=old)
    renewed(client, name, -600)
    found = ask()
    assert found["kubelets"][0]["verdict"] == "problem"
    assert "upgrade v1.32.1" in found["kubelets"][0]["remedy"]
    assert found["kernel"][0]["verdict"] == "warning"
    assert "cpu.idle" in found["kernel"][0]["remedy"]
    (clocks,) = found["clocks of nodes"]
    assert clocks["verdict"] == "problem"
    assert re.search(rf"{name} by (59|60)\d s", clocks["evidence"])


def test_other_systems_are_found_by_pods_and_by_what_they_wrote(ask, node, client, namespace, plane):
    name = node()
    daemon_pod(client, namespace, "koordlet-x", "example/koordlet:v1.8.0", name)
    with contextlib.closing(connect(plane.settings(), user_agent="koord-manager/v1.8")) as other:
        amounts = {BATCH_CPU: "4000"}
        other.patch(NODES, name, None, {"status": {"capacity": amounts, "allocatable": amounts}}, subresource="status")
    agents, writers = ask()["other systems"]
    assert agents["evidence"] == f"agent of Koordinator on {name}"
    assert "uninstall Koordinator" in agents["remedy"]
    assert writers["evidence"] == f"batch resources written by Koordinator: node {name} by koord-manager"
    assert "resources.cpu" in writers["remedy"]


def test_our_own_writing_is_nobody_elses(ask, node, client, plane):
    name = node()
    forecast = Forecast(
        at=time.time(), ttl_seconds=60.0, peak=Amount(), reclaimable=Amount(cpu_millis=4000), terms=NO_TERMS
    )
    amounts = {BATCH_CPU: "4000"}
    body = {
        "metadata": {"annotations": {FORECAST_ANNOTATION: encode(forecast)}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    with contextlib.closing(connect(plane.settings(), user_agent="slacktide-predictor")) as ours:
        ours.patch(NODES, name, None, body, subresource="status")
    found = ask()
    assert found["other systems"][0]["verdict"] == "ok"
    assert found["forecasts"][0]["verdict"] == "ok"
    expired = encode(
        Forecast(
            at=time.time() - 3600, ttl_seconds=60.0, peak=Amount(), reclaimable=Amount(), closed="gone", terms=NO_TERMS
        )
    )
    node({FORECAST_ANNOTATION: expired}, {BATCH_CPU: "1500m"})
    found = ask()
    assert found["forecasts"][0]["evidence"] == f"expired on {name}"
    assert found["closed nodes"][0]["evidence"] == f"{name} (gone)"
    assert found["fractions"][0]["verdict"] == "problem"


def test_components_that_are_not_ready_and_nodes_without_agent_are_named(ask, node, client, namespace):
    name = node()
    labels = {"app.kubernetes.io/name": "slacktide", "app.kubernetes.io/component": "agent"}
    daemon_pod(client, namespace, "slacktide-agent-x", "slacktide-agent", name, labels)
    assert f"{namespace}/slacktide-agent-x" in ask(namespace)["agent"][0]["evidence"]
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    client.patch(PODS, "slacktide-agent-x", namespace, status, subresource="status")
    assert ask(namespace)["agent"][0]["verdict"] == "ok"
    other = f"bare-{namespace}"
    client.create(NODES, {"metadata": {"name": other}})
    try:
        assert ask(namespace)["agent"][0]["evidence"] == f"none on {other}"
    finally:
        client.delete(NODES, other)


def test_a_verb_that_is_missing_is_named_with_what_it_is_for(ask, client, namespace):
    rules = [
        {
            "apiGroups": [one.group],
            "resources": [f"{one.resource}/{one.subresource}" if one.subresource else one.resource],
            "verbs": [one.verb],
        }
        for one in PERMISSIONS
        if (one.verb, one.resource) != ("patch", "nodes")
    ]
    name = f"predictor-{namespace}"
    subject = {"kind": "ServiceAccount", "name": "slacktide-predictor", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    client.create(ROLES, {"metadata": {"name": name}, "rules": rules})
    client.create(BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    try:
        (mine,) = [
            one for one in ask(namespace)["permissions"] if f"{namespace}/slacktide-predictor" in one["evidence"]
        ]
    finally:
        client.delete(BINDINGS, name)
        client.delete(ROLES, name)
    assert mine["verdict"] == "problem"
    assert "patch nodes/status (publish the forecast and the batch resources)" in mine["evidence"]
    assert "list nodes " not in mine["evidence"]


def test_who_may_see_less_is_told_what_was_not_looked_at(ask):
    found = ask(user="scheduler")
    (rights,) = found["your rights"]
    assert rights["verdict"] == "unknown"
    assert "get nodes/proxy (kubelet settings)" in rights["evidence"]
    assert found["kubelets"][0]["verdict"] != "unknown"


def test_one_node_and_its_agent_that_cannot_be_asked(plane, node, client, capsys):
    name, where = node(), ["--kubeconfig", plane.kubeconfig()]
    assert main(["doctor", "--cluster", "--node", name, "-o", "json", *where]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["node"]["verdict"] == "ok"
    assert found["kubelets"]["evidence"] == "1 x v1.36.3"
    assert found["agent"]["evidence"] == "no pod of it"
    assert "no pod of the agent of node" in found["agent says"]["evidence"]
    client.patch(NODES, name, None, {"spec": {"unschedulable": True}})
    assert main(["doctor", "--node", name, "-o", "json", *where]) == 1
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["node"]["evidence"] == "Ready, cordoned"
    assert main(["doctor", "--node", f"{name}x", *where]) == 1
    assert f"do you mean {name}" in capsys.readouterr().err


def test_the_table_for_people(plane, capsys):
    assert main(["doctor", "--cluster", "--kubeconfig", plane.kubeconfig()]) == 1
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("CHECK", "VERDICT", "EVIDENCE", "REMEDY", "api server"))
