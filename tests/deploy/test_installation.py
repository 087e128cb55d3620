"""The chart on a real API server: every object is taken, and a release comes, changes, goes back and goes."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from slacktide import names
from slacktide.cluster import NAMESPACES, NODES, PODS
from slacktide.cluster.errors import ApiError
from slacktide.quantity import parse
from tests.cluster.product import wait_for
from tests.deploy.chart import CHART, MATRIX, NAMESPACE, Refused, key, workloads
from tests.deploy.installation import living, make_node, secret

# Their definitions are not part of Kubernetes.
FOREIGN = ("PodMonitor", "PrometheusRule", "Certificate")
PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
PLURALS |= {f"{kind}AdmissionPolicy": f"{kind.lower()}admissionpolicies" for kind in ("Mutating", "Validating")}
BATCH = {names.BATCH_CPU: "4000", names.BATCH_MEMORY: "8589934592"}


def path_of(found, name=""):
    version = found["apiVersion"]
    kind = found["kind"]
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    namespace = found["metadata"].get("namespace")
    parts = ["apis" if "/" in version else "api", version, *(["namespaces", namespace] if namespace else []), plural]
    return "/" + "/".join([*parts, *([name] if name else [])])


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_the_server_takes_every_object(client, namespace, helm, name):
    for found in helm.template(MATRIX[name]):
        if found["kind"] in FOREIGN or (found["kind"] == "Namespace"):
            continue
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        try:
            client.request("POST", path_of(found), query, json.dumps(found).encode())
        except ApiError as error:
            pytest.fail(f"{key(found)}: {error}")


def test_central_pods_meet_the_restricted_level_and_the_agent_needs_privileged(client, helm):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    client.create(NAMESPACES, {"metadata": {"name": "restricted", "labels": labels}})
    for component, spec in workloads(helm.template(MATRIX["everything"])).items():
        account = {"metadata": {"name": spec["serviceAccountName"]}}
        client.request("POST", "/api/v1/namespaces/restricted/serviceaccounts", body=json.dumps(account).encode())
        volumes = [{"name": one, "emptyDir": {}} for one in ["history"] if component == "predictor"]
        pod = {"metadata": {"name": component}, "spec": {**spec, "volumes": [*spec.get("volumes", []), *volumes]}}
        create = ("POST", "/api/v1/namespaces/restricted/pods", {"dryRun": "All"}, json.dumps(pod).encode())
        if component == "agent":
            with pytest.raises(ApiError, match="host namespaces"):
                client.request(*create)
        else:
            client.request(*create)


@pytest.fixture
def previous(tmp_path):
    """The chart as an earlier release of it would be."""
    chart = tmp_path / "slacktide"
    shutil.copytree(CHART, chart)
    about = chart / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^(version|appVersion): .*$", r"\1: 0.0.9", about.read_text()))
    return chart


def images(client):
    return {
        pod.spec.containers[0].image
        for pod in client.list(PODS, NAMESPACE).items
        if pod.metadata.deletion_timestamp is None
    }


@pytest.mark.timeout(600)
def test_a_release_comes_changes_goes_back_and_goes(plane, client, namespace, any_helm, previous, tmp_path):
    forecast = {names.FORECAST_ANNOTATION: "{}"}
    make_node(client, "n1", BATCH, {**forecast, names.GPUS_ANNOTATION: "{}", "other": "stays"})
    make_node(client, "n2", BATCH, forecast)
    make_node(client, "foreign", BATCH, {})

    def run(*arguments):
        return any_helm.run(
            *arguments, "--namespace", NAMESPACE, "--kubeconfig", plane.kubeconfig(), "--timeout", "120s"
        )

    values = ("--set", "predictor.persistence.enabled=false,extender.enabled=true,agent.drills.enabled=true")
    with living(plane, client, tmp_path) as jobs:
        run("install", "slacktide", str(previous), *values, "--wait")
        assert {image.rpartition(":")[2] for image in images(client)} == {"0.0.9"}
        assert len(client.list(PODS, NAMESPACE, label_selector="app.kubernetes.io/component=agent").items) == 3
        keys = secret(client, "slacktide-predictor-tls")

        run("upgrade", "slacktide", str(CHART), *values, "--wait")
        wait_for(
            lambda: {image.rpartition(":")[2] for image in images(client)} == {"0.1.0"}, "pods of the new release only"
        )
        assert secret(client, "slacktide-predictor-tls") == keys

        run("rollback", "slacktide", "1", "--wait")
        wait_for(
            lambda: {image.rpartition(":")[2] for image in images(client)} == {"0.0.9"}, "pods of the old release only"
        )
        assert secret(client, "slacktide-predictor-tls") == keys

        with pytest.raises(Refused, match="max_per_huor"):
            run("upgrade", "slacktide", str(CHART), "--set", "agent.settings.evict.max_per_huor=1")

        run("uninstall", "slacktide", "--wait")
        assert [(done.returncode, done.stderr) for done in jobs.ran] == [(0, jobs.ran[0].stderr)]
        assert "foreign" in jobs.ran[0].stderr
        for name in ("n1", "n2"):
            node = client.get(NODES, name)
            assert not BATCH.keys() & (node.status.capacity.keys() | node.status.allocatable.keys())
            assert not {names.FORECAST_ANNOTATION, names.GPUS_ANNOTATION} & node.metadata.annotations.keys()
        assert client.get(NODES, "n1").metadata.annotations["other"] == "stays"
        assert parse(client.get(NODES, "foreign").status.capacity[names.BATCH_CPU]).value() == 4000
        wait_for(lambda: not client.list(PODS, NAMESPACE).items, "end of all pods")
    left = json.loads(client.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"))["items"]
    for name in ("n1", "n2", "foreign"):
        client.delete(NODES, name)
    assert not [role for role in left if role["metadata"]["name"].startswith("slacktide")]
