"""Commands of the pages that are about a cluster are run on a real API server, from the installation on, by kubectl."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from cli.drillrecords import ClusterRecords
from cli.drillreport import Report, Target
from slacktide import forecast
from slacktide.cluster import NAMESPACES
from slacktide.forecast import Amount, Forecast, Terms
from slacktide.names import FORECAST_ANNOTATION
from tests.cluster import harness
from tests.deploy.chart import NAMESPACE
from tests.deploy.installation import make_node
from tests.marked import PAGES, ROOT, blocks, run, workshop

INSTALL = ROOT / "docs" / "install.md"
"""Goes first: what it installs, the others find."""

OTHERS = [page for page in PAGES if page != INSTALL and any(block.on_cluster for block in blocks(page))]
NODE, DRILL = "worker-7", "de437c8dfcb8"
"""As the pages call them."""

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: nightly, namespace: reports}
spec:
  template:
    metadata: {labels: {slacktide.io/tier: BE}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: report, resources: {requests: {cpu: 500m, memory: 1Gi}}}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: reports}
spec:
  containers: [{name: main, image: report}]
"""

pytestmark = [pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A control plane of its own, with a node that sells and a Deployment; nothing is installed."""
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    with (
        harness.control_plane(tmp_path_factory.mktemp("plane")) as plane,
        contextlib.closing(plane.client()) as client,
    ):
        amount = Amount(cpu_millis=4000, memory_bytes=8 << 30)
        none = Amount(cpu_millis=0, memory_bytes=0)
        terms = Terms(capacity=amount, reserve=none, peak=none, now=none, sold=none)
        said = Forecast(at=time.time(), ttl_seconds=3600.0, peak=none, reclaimable=amount, terms=terms)
        make_node(client, NODE, {}, {FORECAST_ANNOTATION: forecast.encode(said)})
        client.create(NAMESPACES, {"metadata": {"name": "reports"}})
        labels = {"app": "nightly"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "report"}]}}
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "nightly"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        path = "/apis/apps/v1/namespaces/reports/deployments"
        client.request("POST", path, body=json.dumps(body).encode())
        yield plane, client


@pytest.fixture(scope="module")
def installed(own, tmp_path_factory):
    """The same after the installation of its page; what that printed."""
    return own, walk(INSTALL, own[0], tmp_path_factory.mktemp("install"))


def walk(page, plane, directory):
    """Run the page's blocks; what each printed."""
    mine = [block for block in blocks(page) if block.on_cluster]
    lacking = {name for block in mine for name in block.missing()}
    if lacking:
        pytest.skip(f"not installed: {', '.join(sorted(lacking))}")
    folder = workshop(directory)
    (folder / "job.yaml").write_text(JOB)
    (folder / "pod.yaml").write_text(POD)
    return [run(block, folder, directory / "none", KUBECONFIG=plane.kubeconfig()) for block in mine]


def test_the_installation_without_helm(installed):
    (_, client), _ = installed
    found = json.loads(client.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"))["items"]
    assert [one["metadata"]["name"] for one in found] == ["slacktide-agent"]
    labels = client.get(NAMESPACES, "reports").metadata.labels
    assert labels["slacktide.io/batch"] == "enabled"


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
def test_commands_of_a_page_run_as_they_stand(page, installed, tmp_path):
    (plane, client), _ = installed
    target = Target(step="detected", within_millis=500, took_millis=700)
    drilled = Report(id=DRILL, node=NODE, kind="pressure", phase="recovered", passed=False, targets=(target,))
    ClusterRecords(client, NAMESPACE).put(drilled)
    printed = "".join(walk(page, plane, tmp_path))
    wanted = {
        "cli.md": f"{NODE}: fresh",
        "game-day.md": DRILL,
        "admission.md": "slacktide",
    }.get(page.name, "")
    assert wanted in printed
    if page.name == "game-day.md":
        assert '"took_millis": 700' in printed
