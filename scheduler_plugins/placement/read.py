"""From nodes and pods to a Problem: which pods may move, which are alike, where each may be, what a node can take.

Where a pod may be at all is asked of the plugins themselves (cordon, taints, node affinity), with all pods that may
move taken off; a pod that is bound is asked about as if it were not. What batch work may use of a node is what its
forecast leaves, where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo, PodReader
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.snapshot import Bools, Ints, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS
from scheduler_plugins.framework.unobserved import Unobserved
from scheduler_plugins.placement.problem import Group, Problem, Spread
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.affinity_terms import RawAffinity
from scheduler_plugins.plugins.label_selectors import LabelSelector
from scheduler_plugins.plugins.spread_constraints import RawConstraint
from slacktide import forecast as wire
from slacktide import names
from slacktide.errors import SlacktideError
from slacktide.names import FORECAST_ANNOTATION, HOSTNAME_LABEL
from slacktide.objects import Node, Pod, is_terminal, is_terminating, owner_group
from slacktide.settings import ResourceNames

ELIGIBILITY: Final = ("NodeUnschedulable", "TaintToleration", "NodeAffinity")
"""Plugins whose verdict does not depend on other pods."""

_PODS: Final = "pods"


@dataclass(frozen=True, slots=True)
class Rules:
    """What other pods mean to the pods of a group, as far as a linear program can say it."""

    apart: bool
    spreads: tuple[RawConstraint, ...]
    unjudged: tuple[str, ...]


def problem_of(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    moves: Callable[[Pod], bool],
    framework: Framework,
    resources_named: ResourceNames,
    topologies: Sequence[str],
    now: float,
) -> Problem:
    """All nodes; pods that `moves` picks become groups, the others stay where they are.

    `framework` has the plugins of ELIGIBILITY; every group is also spread over each of `topologies` (label keys) as a
    wish. `now` is seconds since the epoch, for the age of forecasts. Raises SlacktideError when there is no node.
    """
    reader, cache = PodReader(resources_named), Cache()
    for node in nodes:
        cache.set_node(node)
    moving: dict[bytes, list[PodInfo]] = {}
    for pod in pods:
        if is_terminal(pod) or is_terminating(pod):
            continue
        info = reader.read(pod)
        if moves(pod) and not info.problem:
            moving.setdefault(_likeness(info), []).append(info)
        elif pod.spec.node_name:
            cache.add_pod(info)
    snapshot = framework.new_snapshot()
    cache.refresh(snapshot)
    if not len(snapshot):
        raise SlacktideError("there is no node to place anything on")
    groups = [_group(alike, framework, snapshot, topologies) for alike in moving.values()]
    asked = {name for alike in moving.values() for name in alike[0].requests}
    resources = [*sorted(asked), _PODS]
    return Problem(
        nodes=tuple(snapshot.names),
        resources=resources,
        capacity=_capacity(snapshot, resources, resources_named, now),
        fixed=np.stack([_requested(snapshot, name) for name in resources], axis=1),
        groups=groups,
    )


def check_framework() -> Framework:
    """A profile of the plugins of ELIGIBILITY, which nobody observes."""
    registry = default_registry()
    handle = Handle(
        wall_seconds=time.time,
        bind=lambda _pod, _node: SUCCESS,
        cpu_resource=names.BATCH_CPU,
        memory_resource=names.BATCH_MEMORY,
    )
    plugins = [registry.build(name, {}, handle) for name in ("PrioritySort", *ELIGIBILITY, "DefaultBinder")]
    return Framework("placement-check", plugins, {}, Unobserved())


def rules_of(info: PodInfo) -> Rules:
    """Reads affinity and spread rules. Rules about other pods, or that cannot be read, are `unjudged`."""
    spec, labels = info.pod.spec, info.pod.metadata.labels
    try:
        affinity = msgspec.convert(spec.affinity or {}, RawAffinity)
        constraints = msgspec.convert(spec.topology_spread_constraints, list[RawConstraint])
    except msgspec.ValidationError as error:
        return Rules(apart=False, spreads=(), unjudged=(f"affinity or spread that cannot be read ({error})",))
    unjudged: list[str] = []
    apart = False
    if affinity.pod_affinity and affinity.pod_affinity.required_during_scheduling_ignored_during_execution:
        unjudged.append("required pod affinity")
    anti = affinity.pod_anti_affinity
    for term in anti.required_during_scheduling_ignored_during_execution if anti else ():
        if term.topology_key == HOSTNAME_LABEL and _only_selects(term.label_selector, labels) and not term.namespaces:
            apart = True
        else:
            unjudged.append(f"required pod anti-affinity over {term.topology_key}")
    spreads = []
    for constraint in constraints:
        if constraint.when_unsatisfiable != "DoNotSchedule":
            continue
        if _only_selects(constraint.label_selector, labels) and constraint.min_domains is None:
            spreads.append(constraint)
        else:
            unjudged.append(f"spread over {constraint.topology_key}")
    return Rules(apart, tuple(spreads), tuple(unjudged))


def _only_selects(selector: LabelSelector | None, labels: dict[str, str]) -> bool:
    """Whether a selector is about pods with these labels, so that like pods are what it counts."""
    if selector is None or selector.match_expressions or not selector.match_labels:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items())


def _likeness(info: PodInfo) -> bytes:
    """Equal for pods that may stand for one another."""
    spec, metadata = info.pod.spec, info.pod.metadata
    owner = owner_group(info.pod) or metadata.name
    return msgspec.json.encode(
        (
            metadata.namespace,
            owner,
            sorted(info.requests.items()),
            sorted(spec.node_selector.items()),
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
        )
    )


def _group(alike: list[PodInfo], framework: Framework, snapshot: Snapshot, topologies: Sequence[str]) -> Group:
    first = alike[0]
    rules = rules_of(first)
    now = np.zeros(len(snapshot), dtype=np.int64)
    unplaced = 0
    for info in alike:
        row = snapshot.index.get(info.pod.spec.node_name)
        if row is None:
            unplaced += 1
        else:
            now[row] += 1
    hard = {constraint.topology_key: constraint.max_skew for constraint in rules.spreads}
    spreads = tuple(_spread(snapshot, key, hard.get(key)) for key in dict.fromkeys((*hard, *topologies)))
    return Group(
        name=owner_group(first.pod) or first.key,
        requests=first.requests,
        eligible=_eligible(framework, snapshot, first),
        now=now,
        unplaced=unplaced,
        apart=rules.apart,
        spreads=spreads,
        unjudged=rules.unjudged,
    )


def _spread(snapshot: Snapshot, key: str, max_skew: int | None) -> Spread:
    ids, values = snapshot.label(key)
    return Spread(key, ids.astype(np.int64) - 1, [value or "" for value in values[1:]], max_skew)


def _eligible(framework: Framework, snapshot: Snapshot, info: PodInfo) -> Bools:
    """(nodes,) where the plugins let a pod like this be."""
    free = info.on("")
    state, diagnosis = CycleState(), Diagnosis(names=tuple(snapshot.names))
    found = np.zeros(len(snapshot), dtype=np.bool_)
    filtered = framework.run_pre_filter(state, free, snapshot, diagnosis)
    if filtered.status.ok:
        status, rows = framework.run_filter(state, free, snapshot, filtered.rows, diagnosis)
        if status.ok:
            found[rows] = True
    return found


def _requested(snapshot: Snapshot, resource: str) -> Ints:
    return snapshot.column("pod_count").copy() if resource == _PODS else snapshot.requested(resource).copy()


def _capacity(snapshot: Snapshot, resources: Sequence[str], batch: ResourceNames, now: float) -> Ints:
    capacity = np.stack([snapshot.allocatable(name) for name in resources], axis=1)
    for resource in (batch.cpu, batch.memory):
        if resource in resources:
            index = resources.index(resource)
            for row, node in enumerate(snapshot.nodes):
                room = _forecast_room(node.node, resource == batch.cpu, now)
                if room is not None:
                    capacity[row, index] = min(int(capacity[row, index]), room)
    return np.minimum(capacity, LARGEST)


def _forecast_room(node: Node | None, cpu: bool, now: float) -> int | None:
    """What the forecast of a node leaves to batch work; None where there is no forecast to go by."""
    text = node.metadata.annotations.get(FORECAST_ANNOTATION) if node is not None else None
    if text is None:
        return None
    try:
        forecast = wire.decode(text)
    except wire.ForecastError:
        return 0
    if forecast.closed:
        return 0
    amount = forecast.reclaimable.cpu_millis if cpu else forecast.reclaimable.memory_bytes
    return int((amount or 0) * wire.trust(forecast, now))
