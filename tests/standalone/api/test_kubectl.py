from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.standalone.api.client import pod

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  containers:
  - {{name: main, image: "{image}", command: [sleep, "100"], resources: {{limits: {{cpu: {cpu}, memory: 64Mi}}}}}}
"""


@pytest.fixture
def kubectl(served, space, tmp_path):
    """Runs kubectl in the test's namespace, as a user would: with the kubeconfig that the server wrote."""
    namespace = space.rpartition("/")[2]

    def run(*arguments, text=None, ok=True):
        environ = {
            "HOME": str(tmp_path),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "KUBECONFIG": served[1].kubeconfig_file,
        }
        found = subprocess.run(
            ["kubectl", "-n", namespace, *arguments],
            input=text,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (found.returncode == 0) is ok, found.stdout + found.stderr
        return found.stdout + found.stderr

    return run


def manifest(name="web", image="app:1", cpu="500m"):
    return MANIFEST.format(name=name, image=image, cpu=cpu)


def test_apply_get_describe_delete_of_a_pod(kubectl, api, space):
    assert "pod/web created" in kubectl("apply", "-f", "-", text=manifest())
    assert "pod/web unchanged" in kubectl("apply", "-f", "-", text=manifest())
    assert "pod/web configured" in kubectl("apply", "-f", "-", text=manifest(image="app:2"))
    assert api.get(f"{space}/pods/web").json["spec"]["containers"][0]["image"] == "app:2"
    refused = kubectl("apply", "-f", "-", text=manifest(image="app:2", cpu="1"), ok=False)
    assert "pod updates may not change fields" in refused
    header, row = kubectl("get", "pods", "-o", "wide").splitlines()
    assert header.split() == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "IP",
        "NODE",
        "NOMINATED",
        "NODE",
        "READINESS",
        "GATES",
    ]
    assert row.split()[:4] == ["web", "0/1", "Pending", "0"]
    event = {"metadata": {"name": "web.1"}, "reason": "FailedScheduling", "message": "no room here", "type": "Warning"}
    about = {
        "kind": "Pod",
        "name": "web",
        "namespace": space.rpartition("/")[2],
        "uid": api.get(f"{space}/pods/web").json["metadata"]["uid"],
    }
    assert api.post(f"{space}/events", {**event, "involvedObject": about}).code == 201
    described = kubectl("describe", "pod", "web")
    assert "no room here" in described
    assert "QoS Class:        Guaranteed" in described
    assert "FailedScheduling" in kubectl("get", "events")
    assert "labeled" in kubectl("label", "pod", "web", "tier=be")
    assert "annotated" in kubectl("annotate", "pod", "web", "note=yes")
    assert "patched" in kubectl("patch", "pod", "web", "-p", '{"metadata":{"labels":{"x":"y"}}}')
    assert api.get(f"{space}/pods/web").json["metadata"]["labels"] == {"app": "web", "tier": "be", "x": "y"}
    assert "deleted" in kubectl("delete", "pod", "web")
    assert "No resources found" in kubectl("get", "pods")


def test_nodes(kubectl, api):
    ready = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"cpu": "4"},
        "nodeInfo": {"kubeletVersion": "v1"},
    }
    api.post("/api/v1/nodes", {"metadata": {"name": "kubectl-node"}, "status": ready})
    assert kubectl("get", "nodes", "kubectl-node", "-o", "wide").splitlines()[1].split()[:3] == [
        "kubectl-node",
        "Ready",
        "<none>",
    ]
    assert "Allocatable" in kubectl("describe", "node", "kubectl-node")
    assert "cordoned" in kubectl("cordon", "kubectl-node")
    assert "tainted" in kubectl("taint", "node", "kubectl-node", "a=b:NoSchedule")
    assert "SchedulingDisabled" in kubectl("get", "node", "kubectl-node")
    assert "deleted" in kubectl("delete", "node", "kubectl-node")


def test_what_kubectl_says_to_bad_manifests(kubectl):
    for amount in ("1.5.2", "1e"):
        refused = kubectl("apply", "-f", "-", text=manifest(cpu=amount), ok=False)
        assert "quantities must match the regular expression" in refused
    assert "metadata.name: Invalid value" in kubectl("apply", "-f", "-", text=manifest(name="Not_Good"), ok=False)
    assert "must be greater than or equal to 0" in kubectl("apply", "-f", "-", text=manifest(cpu='"-1"'), ok=False)


def test_a_misspelt_field_is_an_error(kubectl):
    refused = kubectl("apply", "-f", "-", text=manifest().replace("command:", "comand:"), ok=False)
    assert 'unknown field "spec.containers[0].comand"' in refused


def test_a_namespace_comes_and_goes(kubectl, api):
    text = "{apiVersion: v1, kind: Namespace, metadata: {name: kubectl-ns}}"
    assert "created" in kubectl("apply", "-f", "-", text=text)
    assert "deleted" in kubectl("delete", "ns", "kubectl-ns")
    assert api.get("/api/v1/namespaces/kubectl-ns").code == 404


def test_logs_and_other_kinds(kubectl, api, space):
    api.post(f"{space}/pods", pod("web", nodeName="n1"))
    assert "waiting to start" in kubectl("logs", "web", ok=False)
    budget = {"metadata": {"name": "b"}, "spec": {"maxUnavailable": "50%", "selector": {}}}
    api.post(space.replace("/api/v1", "/apis/policy/v1") + "/poddisruptionbudgets", budget)
    assert kubectl("get", "pdb").splitlines()[1].split()[:4] == ["b", "N/A", "50%", "0"]
    assert "system-node-critical" in kubectl("get", "priorityclasses")
    assert "kube-node-lease" in kubectl("get", "ns")
    assert "poddisruptionbudgets" in kubectl("api-resources")
    assert "web" in kubectl("get", "all", "-o", "name")
    assert "nodeName: n1" in kubectl("get", "pod", "web", "-o", "yaml")
