"""Preemption of ours against that of the stock kube-scheduler, on the same random clusters.

In each case pods of all priorities fill some nodes, disruption budgets protect some of them, and one pod comes that
mostly fits nowhere. What the stock scheduler of a real control plane makes of it is read from the API: the node that it
nominates, and the pods that are going, which take an hour for that and so stay to be seen. Ours must take the same node
and the same victims, or where the stock one finds none find none either, and on as many nodes no use in looking.

Of nodes that cost the same the stock scheduler takes any: counted as a tie, and the victims there are compared. Best-
effort pods are left out: that they go first is ours alone (`docs/scheduler-preemption.md`).
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from scheduler_plugins.cycle import NoFitError, place
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Status
from scheduler_plugins.plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from scheduler_plugins.plugins.preemption_candidates import Candidate, rank
from slacktide.cluster import NAMESPACES, NODES, PDBS, PODS, Client
from slacktide.cluster.errors import AlreadyExists
from slacktide.cluster.kinds import Kind, Namespace
from slacktide.objects import Node, Pod
from slacktide.settings import ResourceNames
from tests.cluster.differential import Comparison
from tests.cluster.harness import ControlPlane
from tests.cluster.random_cases import BATCH, Json, case, selector, some
from tests.cluster.stock_profile import Objects, stock_framework, stock_handle
from tests.patience import PATIENCE

PRIORITY_CLASSES: Final = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False, Namespace)
PRIORITIES: Final = {"minus": -10, "low": 5, "middle": 50, "high": 500, "top": 800}
POLITE: Final = "polite"
"""A class of the highest priority that makes nobody give way."""

_NOT_HELPFUL: Final = re.compile(r"(?P<nodes>\d+) Preemption is not helpful for scheduling")
_GOING_SECONDS: Final = 3600
_SETTLE_SECONDS: Final = 10.0 * PATIENCE
_AGAIN: Final = 2


@dataclass(slots=True)
class Preemptions:
    """What came of one run. `differences` says each in one line; `late` are those that were none the second time."""

    preempted: int = 0
    victims: int = 0
    hopeless: int = 0
    placed: int = 0
    ties: int = 0
    late: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Crowded:
    """One cluster. `started` has by pod the second at which it started, `budgets` how many disruptions are allowed."""

    nodes: list[Json]
    placed: list[Json]
    started: Mapping[str, int]
    budgets: Mapping[str, tuple[Json, int]]
    probe: Json


def crowded(draw: random.Random) -> Crowded:
    """A cluster in which the probe has mostly no place."""
    count = draw.randint(2, 7)
    drawn = case(draw, count, draw.randint(3, 7) * count, 1, apart=some(draw, 0.5))
    for one in drawn.placed:
        one["spec"]["terminationGracePeriodSeconds"] = _GOING_SECONDS
        if some(draw, 0.85):
            one["spec"]["priorityClassName"] = draw.choice(list(PRIORITIES))
        for container in one["spec"]["containers"]:
            if some(draw, 0.6):
                container["resources"]["requests"]["cpu"] = f"{draw.choice([200, 500, 900, 1500])}m"
    probe = drawn.probes[0]
    probe["spec"]["priorityClassName"] = draw.choice(["low", "middle", "high", "top", "top", "top", "top", POLITE])
    if some(draw, 0.8):
        _needing_room(draw, probe, drawn.nodes)
    for one in (*drawn.placed, probe):
        for container in (*one["spec"]["containers"], *one["spec"].get("initContainers", [])):
            container["resources"]["requests"].pop(BATCH, None)
    seconds = draw.sample(range(3600), len(drawn.placed))
    started = {one["metadata"]["name"]: at for one, at in zip(drawn.placed, seconds, strict=True)}
    budgets = {f"budget-{i}": (selector(draw), draw.randint(0, 2)) for i in range(draw.randint(0, 3))}
    return Crowded(drawn.nodes, drawn.placed, started, budgets, probe)


def _needing_room(draw: random.Random, probe: Json, nodes: list[Json]) -> None:
    """Have the pod ask for most of what some node has, and for little else."""
    spec = probe["spec"]
    whole = draw.choice(nodes)["status"]["allocatable"]
    asked = {"cpu": f"{int(int(whole['cpu'].rstrip('m')) * draw.uniform(0.4, 1.0))}m", "memory": "64Mi"}
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        container["resources"] = {"requests": {}, "limits": {}}
    spec["containers"][0]["resources"]["requests"] = asked
    spec["tolerations"] = [{"operator": "Exists"}]
    spec.pop("nodeSelector", None)
    spec.get("affinity", {}).pop("nodeAffinity", None)


class _Preempting(DefaultPreemption):
    """Remembers between which nodes it chose."""

    candidates: tuple[Candidate, ...] = ()

    def _candidates(self, *asked: Any) -> tuple[list[Candidate], int]:
        found, not_tried = super()._candidates(*asked)
        self.candidates = tuple(found)
        return found, not_tried


class _Evictor:
    """Nobody goes."""

    def preempt(self, victim: PodInfo, by: PodInfo, node_name: str) -> Status:
        return SUCCESS

    def withdraw(self, pod: PodInfo) -> Status:
        return SUCCESS

    def attempted(self) -> None:
        pass

    def chosen(self, victims: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Ours:
    """What ours makes of a probe: the node on which it fits, or the candidates, the best first, or the words."""

    placed: bool
    candidates: tuple[Candidate, ...]
    message: str

    def best(self) -> tuple[Candidate, ...]:
        """The candidates that cost least."""
        least = min((rank(one.victims) for one in self.candidates), default=None)
        return tuple(one for one in self.candidates if rank(one.victims) == least)

    def victims_on(self, node: str) -> set[str] | None:
        """Names of the pods that go there; None where nobody can make room."""
        found = [one for one in self.candidates if one.node == node]
        return {pod.pod.metadata.name for pod in found[0].victims.pods} if found else None


def decide(nodes: list[Node], pods: list[Pod], objects: Objects, probe: Pod) -> Ours:
    """One cycle of ours over the objects as the API has them."""
    reader, cache = PodReader(ResourceNames()), Cache()
    for node in nodes:
        cache.set_node(node)
    for pod in pods:
        cache.add_pod(reader.read(pod))
    # A clock that stands still: however busy the machine, all nodes are tried.
    handle = stock_handle(objects, monotonic=lambda: 0.0, evictor=_Evictor())
    plugin = _Preempting(DefaultPreemptionArgs(), handle, choose=lambda _: 0)
    framework = stock_framework(handle, plugin)
    snapshot = framework.new_snapshot()
    cache.refresh(snapshot)
    try:
        place(framework, CycleState(), reader.read(probe), snapshot, lambda _: 0)
    except NoFitError as error:
        chosen = [one for one in plugin.candidates if one.node == error.nominate]
        others = [one for one in plugin.candidates if one.node != error.nominate]
        return Ours(False, (*chosen, *others), str(error))
    return Ours(True, (), "")


class PreemptionComparison(Comparison):
    """One namespace of one control plane, with the stock scheduler running."""

    canary_class = POLITE

    def __init__(self, client: Client, namespace: str) -> None:
        super().__init__(client, namespace)
        self.preemptions = Preemptions()

    def run_crowded(self, drawn: Crowded, title: str) -> None:
        """Judge a case, a second time where the first differs: what a late watch of theirs made is gone then."""
        for turn in range(_AGAIN):
            with self._cluster(drawn):
                difference = self._judged(drawn.probe)
            if difference is None:
                self.preemptions.late += turn
                return
        self.preemptions.differences.append(f"{title}: {difference}")

    @contextlib.contextmanager
    def _cluster(self, drawn: Crowded) -> Iterator[None]:
        client, namespace = self._client, self._namespace
        try:
            for name, (chosen, allowed) in drawn.budgets.items():
                client.create(PDBS, {"metadata": {"name": name}, "spec": {"selector": chosen}}, namespace)
                status = {"disruptionsAllowed": allowed, "currentHealthy": 9, "desiredHealthy": 1, "expectedPods": 9}
                client.patch(PDBS, name, namespace, {"status": {**status, "observedGeneration": 1}}, "status")
            for node in drawn.nodes:
                self._add_node(node)
            for pod in drawn.placed:
                name = client.create(PODS, pod, namespace).metadata.name
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + drawn.started[name]))
                client.patch(PODS, name, namespace, {"status": {"phase": "Running", "startTime": at}}, "status")
            self._wait_seen(drawn.nodes[-1]["metadata"]["name"])
            yield
        finally:
            self._clear()
            for name in drawn.budgets:
                client.delete(PDBS, name, namespace)

    def _judged(self, probe: Json) -> str | None:
        """None where both agree, else what differs."""
        client = self._client
        nodes, pods = list(client.list(NODES).items), list(client.list(PODS).items)
        objects = Objects(client.list(NAMESPACES).items, client.list(PDBS).items)
        created = client.create(PODS, probe, self._namespace)
        ours = decide(nodes, pods, objects, created)
        placed, words = self._decision(created.metadata.name)
        if placed or ours.placed:
            self.preemptions.placed += 1
            return None if placed and ours.placed else f"stock: {placed or words}; ours: {ours.message or 'fits'}"
        node, going = self._nominated(created.metadata.name, ours)
        if not node:
            self.preemptions.hopeless += 1
            same = not ours.candidates and _hopeless(words) == _hopeless(ours.message)
            return None if same else f"stock: {words}; ours: {ours.message}, {_shown(ours)}"
        self.preemptions.preempted += 1
        self.preemptions.victims += len(going)
        best = [one.node for one in ours.best()]
        self.preemptions.ties += len(best) > 1
        if node in best and ours.victims_on(node) == going:
            return None
        return f"stock: {node} without {sorted(going)}; ours: {_shown(ours) or ours.message}"

    def _nominated(self, name: str, ours: Ours) -> tuple[str, set[str]]:
        """(Node that the stock scheduler nominated or "", pods that are going), once it agrees or enough time is up."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            pods = self._client.list(PODS, namespace=self._namespace).items
            node = next(one for one in pods if one.metadata.name == name).status.nominated_node_name
            going = {one.metadata.name for one in pods if one.metadata.deletion_timestamp}
            agreed = going == ours.victims_on(node) if node else not ours.candidates
            if agreed or time.monotonic() > deadline:
                return node, going
            time.sleep(0.01)


def _hopeless(message: str) -> str:
    """On how many nodes preemption is no help; of the others the stock scheduler repeats why the pod does not fit."""
    found = _NOT_HELPFUL.search(message)
    return found["nodes"] if found else ""


def _shown(ours: Ours) -> str:
    return "; ".join(
        f"{one.node} without {[pod.pod.metadata.name for pod in one.victims.pods]} {rank(one.victims)}"
        for one in sorted(ours.candidates, key=lambda one: rank(one.victims))
    )


def compare_preemptions(plane: ControlPlane, seed: int, cases: int) -> Preemptions:
    """Run `cases` random clusters."""
    namespace = f"preempting-{seed}"
    with contextlib.closing(plane.client()) as client, plane.scheduler():
        client.create(NAMESPACES, {"metadata": {"name": namespace}})
        for name, value in PRIORITIES.items():
            _class(client, {"metadata": {"name": name}, "value": value})
        _class(client, {"metadata": {"name": POLITE}, "value": 900, "preemptionPolicy": "Never"})
        comparison = PreemptionComparison(client, namespace)
        for index in range(cases):
            comparison.run_crowded(crowded(random.Random(seed * 10_000 + index)), f"seed {seed} preemption {index}")
    return comparison.preemptions


def _class(client: Client, body: Json) -> None:
    with contextlib.suppress(AlreadyExists):
        client.create(PRIORITY_CLASSES, msgspec.to_builtins(body))
