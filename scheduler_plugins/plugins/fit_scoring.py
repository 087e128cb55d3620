"""Scoring by resources: how full a node is with the pod on it, resource by resource, as 0 to 100.

The strategies of the stock NodeResourcesFit: LeastAllocated, MostAllocated and RequestedToCapacityRatio. Whole-number
arithmetic as there: each resource is rounded down, and so is the weighted mean, but for RequestedToCapacityRatio, which
rounds half up. Source: kubernetes pkg/scheduler/framework/plugins/noderesources, 1.35.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.snapshot import Bools, Floats, Indices, Snapshot
from slacktide.resources import CPU, MEMORY

_MOST_WEIGHT: Final = 100
_FULL: Final = 100
_MOST_SHAPE_SCORE: Final = 10
_ALWAYS_COUNTED: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})

StrategyName = Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]


class _Args(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of the argument structs: names as in the stock configuration, nothing unknown."""


class ResourceSpec(_Args, frozen=True):
    """A resource and what it weighs, 1 to 100."""

    name: str
    weight: int = 1


class ShapePoint(_Args, frozen=True):
    """At `utilization` percent (0 to 100) a resource scores `score` (0 to 10)."""

    utilization: int = 0
    score: int = 0


class RequestedToCapacityRatio(_Args, frozen=True):
    """Points of a broken line, by rising utilization."""

    shape: tuple[ShapePoint, ...] = ()


DEFAULT_RESOURCES: Final = (ResourceSpec(name=CPU), ResourceSpec(name=MEMORY))


class ScoringStrategy(_Args, frozen=True):
    """How full nodes are liked, and by which resources; no resources mean cpu and memory alike."""

    type: StrategyName = "LeastAllocated"
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: RequestedToCapacityRatio | None = None

    def problems(self) -> list[str]:
        """What is wrong with it, each thing in one sentence."""
        found = weight_problems(self.resources)
        if self.type != "RequestedToCapacityRatio":
            return found
        if self.requested_to_capacity_ratio is None:
            return [*found, "type RequestedToCapacityRatio needs requestedToCapacityRatio.shape"]
        return found + _shape_problems(self.requested_to_capacity_ratio.shape)


def weight_problems(resources: Iterable[ResourceSpec]) -> list[str]:
    """Weights out of range."""
    return [
        f"weight of resource {resource.name} is {resource.weight}; it must be 1 to {_MOST_WEIGHT}"
        for resource in resources
        if not 1 <= resource.weight <= _MOST_WEIGHT
    ]


def _shape_problems(shape: Sequence[ShapePoint]) -> list[str]:
    if not shape:
        return ["shape needs at least one point"]
    found = []
    for before, point in zip((None, *shape), shape, strict=False):
        if not 0 <= point.utilization <= _FULL:
            found.append(f"utilization of a shape point is {point.utilization}; it must be 0 to {_FULL}")
        if not 0 <= point.score <= _MOST_SHAPE_SCORE:
            found.append(f"score of a shape point is {point.score}; it must be 0 to {_MOST_SHAPE_SCORE}")
        if before is not None and point.utilization <= before.utilization:
            text = f"utilization {point.utilization} stands after {before.utilization}; points must rise"
            found.append(f"shape: {text}")
    return found


def amounts(
    resource: str, pod: PodInfo, snapshot: Snapshot, where: Indices | slice, *, nonzero: bool
) -> tuple[Floats, Floats] | None:
    """(allocatable, requested with `pod` on it) of the nodes at `where`; None for a resource that does not count.

    `nonzero` takes 100m and 200 MiB for each container that asks for no cpu or memory. A resource beyond cpu, memory
    and local disk counts only when the pod asks for it. Floats, since dividing whole numbers costs several times more.
    """
    asked = pod.requests.get(resource, 0)
    if resource not in _ALWAYS_COUNTED and not asked:
        return None
    if nonzero and resource == CPU:
        used, asked = snapshot.column("nonzero_cpu_millis"), pod.nonzero_cpu_millis
    elif nonzero and resource == MEMORY:
        used, asked = snapshot.column("nonzero_memory_bytes"), pod.nonzero_memory_bytes
    else:
        used = snapshot.requested(resource)
    return snapshot.allocatable(resource)[where].astype(np.float64), (used[where] + asked).astype(np.float64)


def broken_line(points: Sequence[tuple[int, int]]) -> Callable[[int], int]:
    """Whole-number line through (x, y) points by rising x: constant outside, steps rounded towards the lower x."""

    def at(x: int) -> int:
        for i, (right, height) in enumerate(points):
            if x <= right:
                if i == 0:
                    return height
                left, start = points[i - 1]
                rise = (height - start) * (x - left)
                steps = abs(rise) // (right - left)
                return start + (steps if rise >= 0 else -steps)
        return points[-1][1]

    return at


class FitScorer:
    """Scores nodes by one strategy."""

    def __init__(self, strategy: ScoringStrategy) -> None:
        self._resources = strategy.resources or DEFAULT_RESOURCES
        self._is_ratio = strategy.type == "RequestedToCapacityRatio"
        self._of_one = _MEASURES_OF_ONE.get(strategy.type)
        self._measure = _MEASURES[strategy.type](strategy)

    def score_of(self, pod: PodInfo, node: NodeInfo) -> float | None:
        """The score of one node; None for a strategy that is asked by arrays only."""
        if self._of_one is None:
            return None
        total = weights = 0.0
        for resource in self._resources:
            name, used = resource.name, node.requested.get(resource.name, 0)
            asked = pod.requests.get(name, 0)
            if name not in _ALWAYS_COUNTED and not asked:
                continue
            if name == CPU:
                used, asked = node.nonzero_cpu_millis, pod.nonzero_cpu_millis
            elif name == MEMORY:
                used, asked = node.nonzero_memory_bytes, pod.nonzero_memory_bytes
            allocatable = node.allocatable.get(name, 0)
            if allocatable > 0:
                weights += resource.weight
                total += self._of_one(allocatable, min(used, LARGEST) + asked) * resource.weight
        return float(math.floor(total / max(weights, 1.0)))

    def score(self, pod: PodInfo, snapshot: Snapshot, where: Indices | slice, count: int) -> Floats:
        """Score 0..100 of the `count` nodes at `where`, in whole numbers: 0 for one that offers nothing that counts."""
        total = np.zeros(count)
        everywhere, here = 0, np.zeros(count)
        for resource in self._resources:
            given = amounts(resource.name, pod, snapshot, where, nonzero=True)
            if given is None:
                continue
            allocatable, requested = given
            counts: Bools = allocatable > 0
            offered = bool(counts.all())
            points = self._measure(allocatable if offered else np.maximum(allocatable, 1), requested)
            if self._is_ratio:
                counts &= points > 0
            if offered and not self._is_ratio:
                everywhere += resource.weight
                total += points if resource.weight == 1 else points * resource.weight
            else:
                here += counts * float(resource.weight)
                total += points * counts * resource.weight
        mean = total / (np.maximum(here + everywhere, 1) if here.any() else max(everywhere, 1))
        return np.floor(mean + 0.5) if self._is_ratio else np.floor(mean)


def _least_of(allocatable: int, requested: int) -> float:
    return max(math.floor((allocatable - requested) * _FULL / allocatable), 0.0)


def _most_of(allocatable: int, requested: int) -> float:
    return float(math.floor(min(requested, allocatable) * _FULL / allocatable))


_MEASURES_OF_ONE: Final[Mapping[str, Callable[[int, int], float]]] = {
    "LeastAllocated": _least_of,
    "MostAllocated": _most_of,
}
"""(allocatable above 0, requested) of one node -> 0 to 100 in whole numbers."""

_Measure = Callable[[Floats, Floats], Floats]
"""(allocatable above 0, requested) -> 0 to 100 in whole numbers."""


def _least(_strategy: ScoringStrategy) -> _Measure:
    return lambda allocatable, requested: np.maximum(_percent(allocatable - requested, allocatable), 0)


def _most(_strategy: ScoringStrategy) -> _Measure:
    return lambda allocatable, requested: _percent(np.minimum(requested, allocatable), allocatable)


def _ratio(strategy: ScoringStrategy) -> _Measure:
    shape = strategy.requested_to_capacity_ratio.shape if strategy.requested_to_capacity_ratio is not None else ()
    scale = _FULL // _MOST_SHAPE_SCORE
    line = broken_line([(point.utilization, point.score * scale) for point in shape])
    table = np.array([line(x) for x in range(_FULL + 1)], dtype=np.float64)

    def measure(allocatable: Floats, requested: Floats) -> Floats:
        utilization = _percent(np.minimum(requested, allocatable), allocatable)
        scores: Floats = table.take(utilization.astype(np.intp))
        return scores

    return measure


_MEASURES: Final[dict[str, Callable[[ScoringStrategy], _Measure]]] = {
    "LeastAllocated": _least,
    "MostAllocated": _most,
    "RequestedToCapacityRatio": _ratio,
}


def _percent(part: Floats, whole: Floats) -> Floats:
    """Whole percent, rounded down; exact while amounts stay under 2**46 (70 TB), where a float holds a hundredfold."""
    result = part * _FULL
    result /= whole
    return np.floor(result, out=result)
