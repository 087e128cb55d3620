"""Preemption on a small cluster: what is tried, who is chosen, and what the world is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from scheduler_plugins.cycle import NoFitError, place
from scheduler_plugins.framework.extending import Victims
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Status
from scheduler_plugins.plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from scheduler_plugins.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from scheduler_plugins.plugins.node_ports import NodePorts
from scheduler_plugins.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs
from scheduler_plugins.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from slacktide.cluster.kinds import PDBS, PodDisruptionBudget
from slacktide.objects import Node, Pod
from tests.scheduler_plugins.build import READER, Clock, framework, handle, node, pod, snapshot_of
from tests.scheduler_plugins.plugins.cases import Objects

LOW, MID, HIGH, HIGHEST = 0, 100, 1000, 10_000
SMALL, MEDIUM, LARGE, WHOLE = 100, 200, 300, 500
"""Millicores of a pod; a node has WHOLE."""


def sized(name: str, cpu: int, priority: int | None = LOW, start: int | None = None, **spec: Any) -> Pod:
    """A pod that asks for `cpu` millicores; `start` is a minute of its day."""
    status = spec.pop("status", {"phase": "Running"})
    if start is not None:
        status = {**status, "startTime": f"2026-01-01T00:{start:02}:00Z"}
    requests = {"cpu": f"{cpu}m"} if cpu else {}
    return pod(name, requests, priority=priority, status=status, **spec)


def small_node(name: str, **fields: Any) -> Node:
    return node(name, {"cpu": f"{WHOLE}m", "memory": "1Gi", "pods": "32"}, **fields)


def budget(name: str, labels: Mapping[str, str] | None, allowed: int, going: Iterable[str] = ()) -> PodDisruptionBudget:
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {} if labels is None else {"selector": {"matchLabels": dict(labels)}},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(going, "2026-01-01T00:00:00Z")},
    }
    return msgspec.convert(body, PodDisruptionBudget)


class Evicting:
    """Evictor that keeps what it is told; `refuse` are names of pods that the API does not delete."""

    def __init__(self, refuse: Mapping[str, Status] | None = None) -> None:
        self.refuse = dict(refuse or {})
        self.gone: list[str] = []
        self.withdrawn: list[str] = []
        self.attempts = 0
        self.counts: list[int] = []

    def preempt(self, victim: PodInfo, by: PodInfo, node_name: str) -> Status:
        self.gone.append(victim.pod.metadata.name)
        return self.refuse.get(victim.pod.metadata.name, SUCCESS)

    def withdraw(self, pod: PodInfo) -> Status:
        self.withdrawn.append(pod.pod.metadata.name)
        return SUCCESS

    def attempted(self) -> None:
        self.attempts += 1

    def chosen(self, victims: Sequence[PodInfo]) -> None:
        self.counts.append(len(victims))


class Watching:
    """Extender with a preempt verb that sees all candidates, and answers as told."""

    name = "watching"
    ignorable = filters = prioritizes = binds = False
    preempts = True

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or (lambda candidates: candidates)
        self.seen: Mapping[str, Victims] = {}

    def interested(self, pod: PodInfo) -> bool:
        return True

    def preempt(self, pod: PodInfo, candidates: Mapping[str, Victims]) -> Mapping[str, Victims]:
        self.seen = dict(candidates)
        answer: Mapping[str, Victims] = self.answer(candidates)
        return answer


@dataclass
class Preempted:
    """What came of one attempt."""

    nominate: str | None
    message: str
    victims: list[str]
    evictor: Evicting
    plugin: DefaultPreemption
    activated: list[str]


class World:
    """A cluster with one profile in it, and everything that a host lends."""

    def __init__(
        self,
        nodes: Sequence[Node],
        placed: Mapping[str, Sequence[Pod]],
        *more: Any,
        budgets: Iterable[PodDisruptionBudget] = (),
        extenders: Sequence[Any] = (),
        args: DefaultPreemptionArgs | None = None,
        refuse: Mapping[str, Status] | None = None,
        nominator: Nominator | None = None,
        plugins: Sequence[Any] | None = None,
        clock: Any = None,
    ) -> None:
        self.evictor, self.nominator = Evicting(refuse), nominator or Nominator()
        self.activated: list[str] = []
        lent = replace(
            handle(),
            objects=Objects({PDBS: budgets}),
            evictor=self.evictor,
            extenders=extenders,
            nominations=self.nominator,
            activate=lambda pods: self.activated.extend(one.pod.metadata.name for one in pods),
            monotonic=clock or Clock(),
        )
        self.plugin = DefaultPreemption(args or DefaultPreemptionArgs(), lent, choose=lambda count: 0)
        stock = [
            NodePorts(),
            NodeResourcesFit(NodeResourcesFitArgs(), lent),
            PodTopologySpread(PodTopologySpreadArgs(), lent),
            InterPodAffinity(InterPodAffinityArgs(), lent),
        ]
        self.nodes, self.placed = list(nodes), {name: list(pods) for name, pods in placed.items()}
        self.profile = framework(
            *(stock if plugins is None else plugins),
            *more,
            self.plugin,
            nominations=self.nominator,
            extenders=extenders,
        )

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.profile, self.nodes, self.placed)

    def attempt(self, who: Pod, snapshot: Snapshot | None = None) -> Preempted:
        """One cycle of a pod that fits nowhere."""
        snapshot = snapshot or self.snapshot()
        before = len(self.evictor.gone)
        with pytest.raises(NoFitError) as caught:
            place(self.profile, CycleState(), READER.read(who), snapshot, lambda count: 0)
        error = caught.value
        gone = self.evictor.gone[before:]
        return Preempted(
            error.nominate, error.diagnosis.post_filter_message, gone, self.evictor, self.plugin, self.activated
        )
