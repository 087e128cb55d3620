"""The chart with our daemons as it starts them: its rights, settings, certificates, tokens, on a real API server."""

from __future__ import annotations

import json

import pytest

from slacktide import names
from slacktide.cluster import NODES, PODS
from slacktide.kernel.hierarchy import discover
from slacktide.objects import is_terminating
from standalone.sweep import directories
from tests.cluster import harness
from tests.cluster.local_node import why_not
from tests.cluster.product import Cluster, wait_for
from tests.deploy.chart import NAMESPACE, Refused
from tests.deploy.local import NODE, local_cluster

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]


def batch_pod(name, cpu_millis):
    amounts = {names.BATCH_CPU: str(cpu_millis), names.BATCH_MEMORY: str(64 << 20)}
    container = {
        "name": "main",
        "image": "none",
        "command": ["sleep", "1000"],
        "resources": {"requests": amounts, "limits": amounts},
    }
    return {
        "metadata": {"name": name, "labels": {names.TIER_LABEL: "BE"}},
        "spec": {
            "schedulerName": names.SCHEDULER_NAME,
            "priorityClassName": "slacktide-batch",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


def runs_or_says_why(pod):
    said = [condition.message for condition in pod.status.conditions if condition.type == "PodScheduled"]
    return pod.status.phase == "Running" or any("no forecast room" in one for one in said)


@pytest.mark.timeout(900)
def test_installed_by_the_chart_it_sells_places_and_leaves_nothing(tmp_path, helm):
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    with local_cluster(tmp_path, helm) as local:
        client, cluster = local.client, Cluster(local.client)
        try:
            # A busy machine would be closed by its agent, and nothing is published where that was so from the first.
            local.install(**{"agent.settings.policies": "{batch_limits,weight,spread}"})
        except Refused as error:
            pytest.fail(f"{error}\n{local.words()}")
        # How much is sold is up to what else this machine does now.
        wait_for(lambda: cluster.published(NODE) is not None, local.words, 120)
        assert cluster.forecast(NODE) is not None
        client.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=b'{"metadata":{"name":"x"}}')
        client.create(PODS, batch_pod("batch", 100), "default")
        wait_for(lambda: runs_or_says_why(client.get(PODS, "batch", "default")), local.words)
        client.delete(PODS, "batch", "default")
        wait_for(lambda: not client.list(PODS, "default").items, "end of the batch pod")
        local.helm("uninstall", "slacktide", "--wait", "--timeout", "200s")
        wait_for(
            lambda: not [p for p in client.list(PODS, NAMESPACE).items if not is_terminating(p)], "end of our pods"
        )
        node = client.get(NODES, NODE)
        assert cluster.published(NODE) is None
        assert names.FORECAST_ANNOTATION not in node.metadata.annotations
        assert json.loads(client.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"))["items"] == []
        root = local.node.cgroup_root
    assert directories(discover(), root) == []
