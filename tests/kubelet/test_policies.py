"""A real kubelet under the chart's admission policies: it reports its node and runs pods as without them."""

from __future__ import annotations

import contextlib

import pytest

from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.cluster.policies import SYSTEM, Api, installed, rendered, until
from tests.deploy.tools import ToolsMissing
from tests.kubelet.machine import NAME
from tests.kubelet.pods import MIB, batch, native

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1200)]

STATUS = f"/api/v1/nodes/{NAME}/status"
PREDICTOR = {"user": f"system:serviceaccount:{SYSTEM}:slacktide-predictor", "groups": ("system:masters",)}
RESOURCES = {BATCH_CPU: "4000", BATCH_MEMORY: str(2048 * MIB)}
SOLD = {"status": {"capacity": RESOURCES, "allocatable": RESOURCES}}
MERGE = "application/strategic-merge-patch+json"


@pytest.fixture
def api(node):
    """The node's API server, with the policies in force."""
    try:
        manifests = rendered()
    except ToolsMissing as error:
        pytest.skip(str(error))
    with contextlib.closing(Api(node.machine.plane)) as api, installed(api, manifests):
        until(lambda: api.call("PATCH", f"{STATUS}?dryRun=All", SOLD, MERGE)[0] == 403, "policy in force")
        yield api


def test_the_kubelet_reports_keeps_what_is_sold_and_runs_pods(node, api):
    api.do("PATCH", STATUS, SOLD, MERGE, **PREDICTOR)
    node.next_heartbeat(2)
    assert node.sold()[1][BATCH_CPU] == "4k"
    node.pods.create("be", [batch(500, 64 * MIB)])
    node.pods.create("ls", [native("100m", "64Mi")])
    assert node.pods.running("be").status.qos_class == "BestEffort"
    assert node.pods.running("ls").status.qos_class != "BestEffort"
    # Its last word on a pod is a write too: without it the pod would stay.
    node.pods.delete("be")
    assert not [line for line in node.machine.kubelet_log() if "denied request" in line]
