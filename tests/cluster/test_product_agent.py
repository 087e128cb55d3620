"""The whole of Slacktide on a real control plane with one real node: this machine, its pods in cgroups of their own.

The node runner plays the kubelet here, so that pods are processes which the real agent can throttle and evict. A
second node exists in the API only. A drill makes LS short: whatever else this machine does must not.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from slacktide import names
from slacktide.cluster import EVENTS, NODES, PDBS, PODS
from slacktide.kernel.hierarchy import discover
from standalone.sweep import sweep
from tests.cluster.fake_kubelet import FakeKubelet, node_body
from tests.cluster.product import CONTROLLERS, DEPLOYMENTS, Cluster, Product, deployment, wait_for
from tests.cluster.simulated_agents import SimulatedAgents
from tests.whole.drills import drill
from tests.whole.node import Group

HIERARCHY = discover()
CPU = HIERARCHY.controllers.get("cpu")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CPU is None or os.geteuid() != 0 or not os.access(CPU.path, os.W_OK), reason="needs root and a cpu controller"
    ),
]

REAL, SPARE = "real", "spare"
MEMORY = 64 << 20
AGENT = """
turn_seconds: 0.25
policies: [batch_limits, weight, contention, close, evict]
shortage: {run_delay_cut: 100, psi_cut: 1}
contention: {step_percent: 50, quiet_seconds: 0, min_dwell_seconds: 0, settle_seconds: 0.1}
close: {exhausted_seconds: 1, short_seconds: 1, quiet_seconds: 0, min_dwell_seconds: 0}
evict:
  fresh_samples: 1
  pressure_settle_seconds: 5
  cooldown_seconds: 0
  quiet_seconds: 0
  min_dwell_seconds: 0
  blocked_seconds: 1
report: {window_seconds: 1}
"""
"""The node is closed before anybody is evicted, so that what is evicted does not come back here."""


class RealNode:
    """A runner and an agent on this machine, as a running Slacktide has them for the helpers of `tests.whole`."""

    def __init__(self, product, stack, cluster, namespace):
        self._cluster = cluster
        self._namespace = namespace
        root = f"slacktide-test-{secrets.token_hex(4)}"
        directory = product.directory
        self.state = SimpleNamespace(cgroup_root=root, drill_socket=f"{directory}/drill.sock")
        stack.callback(sweep, HIERARCHY, root, kill=True)
        flags = {"state_dir": f"{directory}/runner", "log_dir": f"{directory}/logs", "cgroup_root": root}
        self.runner = stack.enter_context(product.daemon("standalone.runner", "runner", node=REAL, **flags))
        (directory / "agent.yaml").write_text(AGENT)
        self.agent = stack.enter_context(
            product.daemon(
                "agent",
                "agent",
                node=REAL,
                state_dir=f"{directory}/agent",
                cgroup_root=root,
                predictor=product.predictor_address(),
                drill__listen=f"unix:{self.state.drill_socket}",
                config=f"{directory}/agent.yaml",
            )
        )

    def pod(self, name):
        return self._cluster.client.get(PODS, name, self._namespace)

    def logs(self):
        return "\n".join(str(line) for line in [*self.runner.log()[-15:], *self.agent.log()[-15:]])


@pytest.fixture
def everything(plane, namespace, client):
    """(cluster, node) with a predictor, our scheduler and the stock controllers."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        product, cluster = Product(plane, directory), Cluster(client)
        stack.callback(lambda: [client.delete(NODES, node.metadata.name) for node in client.list(NODES).items])
        stack.enter_context(plane.controllers(CONTROLLERS))
        stack.enter_context(FakeKubelet(client, lambda node: node == SPARE))
        stack.enter_context(product.predictor())
        stack.enter_context(product.scheduler())
        agents = stack.enter_context(SimulatedAgents(product.predictor_address(), directory))
        client.create(NODES, node_body(SPARE))
        cluster.cordon(SPARE)
        agents.add(SPARE)
        node = RealNode(product, stack, cluster, namespace)
        # The namespace ends first: pods, then what ran them.
        stack.callback(lambda: _clear(cluster, namespace))
        yield cluster, node


def _clear(cluster, namespace):
    cluster.client.delete(DEPLOYMENTS, "batch", namespace)
    wait_for(lambda: not cluster.client.list(PODS, namespace).items, "end of all pods")


def test_a_pod_is_placed_throttled_evicted_and_placed_elsewhere(everything, namespace):
    cluster, node = everything
    # Memory alone is asked for: this machine may have no CPU to spare while tests run.
    body = deployment("batch", 1, {names.BATCH_MEMORY: str(MEMORY)}, labels={names.TIER_LABEL: "be"})
    container = body["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": names.HOST_PROCESS_IMAGE, "command": ["sh", "-c", "while :; do :; done"]}
    cluster.client.create(DEPLOYMENTS, body, namespace)
    ((name, where),) = cluster.running(namespace, "batch", 1).items()
    assert where == REAL
    first = node.pod(name)
    group = Group(node, name)
    wait_for(lambda: group.idle() and group.memory() == MEMORY, "weight and memory limit of a batch pod")
    cluster.cordon(SPARE, unschedulable=False)
    kept = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "batch"}}}
    cluster.client.create(PDBS, {"metadata": {"name": "kept"}, "spec": kept}, namespace)
    wait_for(lambda: cluster.client.get(PDBS, "kept", namespace).status.observed_generation, "budget in force")

    with drill(node, 60, victim_budget=1) as one:
        wait_for(lambda: (group.quota() or 10_000) <= 100, "cut in the kernel")
        before = group.throttled()
        wait_for(lambda: group.throttled() > before, "throttled periods")
        wait_for(lambda: cluster.forecast(REAL).closed, "closed node in its annotation")
        wait_for(lambda: _event(cluster, namespace, "SlacktideEvictionBlocked"), "eviction that a budget blocks")
        assert node.pod(name).metadata.deletion_timestamp is None
        cluster.client.delete(PDBS, "kept", namespace)
        one.reaches("EVICTED")
        ((again, elsewhere),) = _replaced(cluster, namespace, name)
        assert elsewhere == SPARE
        assert cluster.running(namespace, "batch", 1) == {again: SPARE}
        event = wait_for(lambda: _event(cluster, namespace, "SlacktideEvicted"), "event of the eviction")
        assert event.involved_object.uid == first.metadata.uid
        one.abort()
    wait_for(lambda: not cluster.forecast(REAL).closed, "open node")


def _event(cluster, namespace, reason):
    found = cluster.client.list(EVENTS, namespace).items
    return next((event for event in found if event.reason == reason), None)


def _replaced(cluster, namespace, name):
    def others():
        return [
            (pod.metadata.name, pod.spec.node_name)
            for pod in cluster.pods(namespace, "batch")
            if pod.metadata.name != name and pod.spec.node_name
        ]

    return wait_for(others, "place of the pod that follows")
