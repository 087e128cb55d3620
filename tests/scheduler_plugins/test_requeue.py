"""Requeue table: a pod that these plugins refused, one change in the cluster, and whether the pod is tried again.

Everything is real but the API: plugins, hints, handlers and queue. Without backoff a pod that wakes is ready at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_plugins.cycle import NoFitError, place
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.queue import QueueTimes, SchedulingQueue
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.handlers import ClusterHandlers
from scheduler_plugins.plugins import default_registry
from slacktide import names
from slacktide.objects import Node, Pod
from tests.scheduler_plugins.build import READER, Clock, Silent, framework, handle, node, pod

NO_BACKOFF = QueueTimes(initial_backoff=0, maximum_backoff=0)
ZONE = "topology.kubernetes.io/zone"
Step = Callable[["Cluster"], None]


class Cluster:
    """Nodes and pods as the watch tells of them, and a queue whose pods are tried once."""

    def __init__(self, nodes: list[Node], placed: list[Pod], *plugins: str) -> None:
        registry = default_registry()
        enabled = ("SchedulingGates", *plugins)
        self.profile = framework(*(registry.build(name, {}, handle()) for name in enabled))
        self.clock, self.cache = Clock(), Cache()
        self.queue = SchedulingQueue(self.profile, Silent(), self.clock, NO_BACKOFF)
        self.handlers = ClusterHandlers(self.cache, self.queue, READER, [names.SCHEDULER_NAME], WaitingRoom(self.clock))
        self.nodes = {one.metadata.name: one for one in nodes}
        self.pods = {one.metadata.name: one for one in placed}
        for one in nodes:
            self.handlers.node_added(one)
        for one in placed:
            self.handlers.pod_added(one)
        self.snapshot = self.profile.new_snapshot()

    def attempt(self, waiting: Pod) -> set[str]:
        """Try the pod, which must be refused; by whom."""
        self.handlers.pod_added(waiting)
        self.pods[waiting.metadata.name] = waiting
        queued = self.queue.pop(0)
        assert queued is not None
        self.cache.refresh(self.snapshot)
        with pytest.raises(NoFitError) as refused:
            place(self.profile, CycleState(), queued.info, self.snapshot, lambda count: 0)
        queued.unschedulable_plugins |= refused.value.diagnosis.unschedulable_plugins
        self.queue.requeue(queued)
        assert self.queue.where(queued.info) == "unschedulable"
        self.clock.forward(1)
        return queued.rejectors

    def put_node(self, new: Node) -> None:
        old = self.nodes.get(new.metadata.name)
        self.nodes[new.metadata.name] = new
        if old is None:
            self.handlers.node_added(new)
        else:
            self.handlers.node_updated(old, new)

    def put_pod(self, new: Pod) -> None:
        old = self.pods.get(new.metadata.name)
        self.pods[new.metadata.name] = new
        if old is None:
            self.handlers.pod_added(new)
        else:
            self.handlers.pod_updated(old, new)

    def delete_pod(self, name: str) -> None:
        self.handlers.pod_deleted(self.pods.pop(name))


def small(**fields: Any) -> Node:
    return node("n", {"cpu": "1", "memory": "1Gi", "pods": "1", **fields.pop("more", {})}, **fields)


def roomy(name: str = "m", **fields: Any) -> Node:
    return node(name, {"cpu": "16", "memory": "64Gi", "pods": "9"}, **fields)


def labelled(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


TAINT = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
TOLERATED = [{"key": "k", "operator": "Exists"}]
PORT = [{"name": "c", "ports": [{"hostPort": 80}]}]
OTHER_PORT = [{"name": "c", "ports": [{"hostPort": 81}]}]
SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
]
AWAY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE}
        ]
    }
}
WEB = labelled(app="web")


def on(where: str, name: str, **spec: Any) -> Pod:
    return pod(name, nodeName=where, **spec)


BIG = pod("p", {"cpu": "4"})
FIT, TAINTS, AFFINITY, PORTS = "NodeResourcesFit", "TaintToleration", "NodeAffinity", "NodePorts"
CORDON, SPREADING, PODS = "NodeUnschedulable", "PodTopologySpread", "InterPodAffinity"

ROWS: list[tuple[str, list[Node], list[Pod], Pod, set[str], Step, bool]] = [
    ("allocatable grows", [small()], [], BIG, {FIT}, lambda c: c.put_node(small(more={"cpu": "8"})), True),
    ("grows, too little", [small()], [], BIG, {FIT}, lambda c: c.put_node(small(more={"cpu": "2"})), False),
    ("unrequested grows", [small()], [], BIG, {FIT}, lambda c: c.put_node(small(more={"memory": "9Gi"})), False),
    ("label changes", [small()], [], BIG, {FIT}, lambda c: c.put_node(small(labels={"a": "b"})), False),
    ("big node", [small()], [], BIG, {FIT}, lambda c: c.put_node(roomy()), True),
    ("small node", [small()], [], BIG, {FIT}, lambda c: c.put_node(node("m", {"cpu": "1", "pods": "9"})), False),
    ("pod count", [small()], [on("n", "x")], pod("p"), {FIT}, lambda c: c.put_node(small(more={"pods": "2"})), True),
    (
        "pod with cpu leaves",
        [small()],
        [on("n", "x", requests={"cpu": "1"})],
        pod("p", {"cpu": "1"}),
        {FIT},
        lambda c: c.delete_pod("x"),
        True,
    ),
    (
        "taint goes",
        [small(taints=TAINT)],
        [],
        pod("p"),
        {TAINTS},
        lambda c: c.put_node(small()),
        True,
    ),
    (
        "tainted, allocatable grows",
        [small(taints=TAINT)],
        [],
        pod("p"),
        {TAINTS},
        lambda c: c.put_node(small(taints=TAINT, more={"cpu": "8"})),
        False,
    ),
    (
        "tainted node comes",
        [small(taints=TAINT)],
        [],
        pod("p"),
        {TAINTS},
        lambda c: c.put_node(roomy(taints=TAINT)),
        False,
    ),
    ("untainted node comes", [small(taints=TAINT)], [], pod("p"), {TAINTS}, lambda c: c.put_node(roomy()), True),
    ("own label", [small(taints=TAINT)], [], pod("p"), {TAINTS}, lambda c: c.put_pod(pod("p", **WEB)), False),
    (
        "own toleration",
        [small(taints=TAINT)],
        [],
        pod("p"),
        {TAINTS},
        lambda c: c.put_pod(pod("p", tolerations=TOLERATED)),
        True,
    ),
    (
        "label comes to match",
        [small()],
        [],
        pod("p", nodeSelector={"a": "b"}),
        {AFFINITY},
        lambda c: c.put_node(small(labels={"a": "b"})),
        True,
    ),
    (
        "matched before, too small",
        [small(labels={"a": "b"})],
        [],
        pod("p", {"cpu": "4"}, nodeSelector={"a": "b"}),
        {FIT},
        lambda c: c.put_node(small(labels={"a": "b", "c": "d"})),
        False,
    ),
    (
        "other label",
        [small()],
        [],
        pod("p", nodeSelector={"a": "b"}),
        {AFFINITY},
        lambda c: c.put_node(small(labels={"a": "c"})),
        False,
    ),
    (
        "matching node",
        [small()],
        [],
        pod("p", nodeSelector={"a": "b"}),
        {AFFINITY},
        lambda c: c.put_node(roomy(labels={"a": "b"})),
        True,
    ),
    ("uncordon", [small(unschedulable=True)], [], pod("p"), {CORDON}, lambda c: c.put_node(small()), True),
    (
        "cordoned node",
        [small(unschedulable=True)],
        [],
        pod("p"),
        {CORDON},
        lambda c: c.put_node(roomy(unschedulable=True)),
        False,
    ),
    ("open node", [small(unschedulable=True)], [], pod("p"), {CORDON}, lambda c: c.put_node(roomy()), True),
    (
        "port freed",
        [roomy("n")],
        [on("n", "x", containers=PORT)],
        pod("p", containers=PORT),
        {PORTS},
        lambda c: c.delete_pod("x"),
        True,
    ),
    (
        "other port freed",
        [roomy("n")],
        [on("n", "x", containers=PORT), on("n", "y", containers=OTHER_PORT)],
        pod("p", containers=PORT),
        {PORTS},
        lambda c: c.delete_pod("y"),
        False,
    ),
    (
        "name and fit: the named node grows",
        [small(), roomy()],
        [],
        pod(
            "p",
            {"cpu": "4"},
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
                        ]
                    }
                }
            },
        ),
        {FIT, AFFINITY},
        lambda c: c.put_node(small(more={"cpu": "8"})),
        True,
    ),
    (
        "spread: a matching pod leaves",
        [roomy("n", labels={ZONE: "a"}), roomy(labels={ZONE: "b"}, unschedulable=True)],
        [on("n", "x", **WEB)],
        pod("p", topologySpreadConstraints=SPREAD, **WEB),
        {SPREADING, CORDON},
        lambda c: c.delete_pod("x"),
        True,
    ),
    (
        "spread: another pod leaves",
        [roomy("n", labels={ZONE: "a"}), roomy(labels={ZONE: "b"}, unschedulable=True)],
        [on("n", "x", **WEB), on("n", "y")],
        pod("p", topologySpreadConstraints=SPREAD, **WEB),
        {SPREADING, CORDON},
        lambda c: c.delete_pod("y"),
        False,
    ),
    (
        "spread: a matching pod comes",
        [roomy("n", labels={ZONE: "a"}), roomy(labels={ZONE: "b"}, unschedulable=True)],
        [on("n", "x", **WEB)],
        pod("p", topologySpreadConstraints=SPREAD, **WEB),
        {SPREADING, CORDON},
        lambda c: c.put_pod(on("m", "y", **WEB)),
        True,
    ),
    (
        "spread: node with the key",
        [roomy("n")],
        [],
        pod("p", topologySpreadConstraints=SPREAD, **WEB),
        {SPREADING},
        lambda c: c.put_node(roomy(labels={ZONE: "a"})),
        True,
    ),
    (
        "spread: node without the key",
        [roomy("n")],
        [],
        pod("p", topologySpreadConstraints=SPREAD, **WEB),
        {SPREADING},
        lambda c: c.put_node(roomy()),
        False,
    ),
    (
        "away: the blocking pod leaves",
        [roomy("n", labels={ZONE: "a"})],
        [on("n", "x", **WEB)],
        pod("p", affinity=AWAY),
        {PODS},
        lambda c: c.delete_pod("x"),
        True,
    ),
    (
        "away: its label goes",
        [roomy("n", labels={ZONE: "a"})],
        [on("n", "x", **WEB)],
        pod("p", affinity=AWAY),
        {PODS},
        lambda c: c.put_pod(on("n", "x")),
        True,
    ),
    (
        "away: another pod leaves",
        [roomy("n", labels={ZONE: "a"})],
        [on("n", "x", **WEB), on("n", "y")],
        pod("p", affinity=AWAY),
        {PODS},
        lambda c: c.delete_pod("y"),
        False,
    ),
]


@pytest.mark.parametrize(
    ("nodes", "placed", "waiting", "refusers", "change", "moves"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_requeue_table(
    nodes: list[Node], placed: list[Pod], waiting: Pod, refusers: set[str], change: Step, moves: bool
) -> None:
    """The last row of section 8.3, and #122018: a node name from PreFilter and a refusal by Fit ask both plugins."""
    cluster = Cluster(nodes, placed, CORDON, TAINTS, AFFINITY, PORTS, FIT, SPREADING, PODS)
    assert cluster.attempt(waiting) == refusers
    change(cluster)
    assert (cluster.queue.counts()["active"] == 1) == moves
