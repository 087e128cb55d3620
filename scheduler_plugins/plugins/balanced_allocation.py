"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod makes evenly used.

Judged by the change: how even the used fractions are with the pod, against how even they are without it, so that a
node where the pod fills up what is idle is better than one that was even before (Kubernetes from 1.36 on; up to 1.35
evenness with the pod was the score). A pod that asks for none of the resources is not scored, or many such pods would
pile up on the most even node (kubernetes #129138).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.interfaces import MAX_SCORE, PreScorePlugin, ScorePlugin
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Floats, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status
from scheduler_plugins.plugins.fit_scoring import DEFAULT_RESOURCES, ResourceSpec, amounts
from scheduler_plugins.plugins.rows import index_of
from slacktide.errors import SettingsError


class NodeResourcesBalancedAllocationArgs(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Resources that should be used evenly; every weight is 1. None given means cpu and memory."""

    resources: tuple[ResourceSpec, ...] = ()

    def problems(self) -> list[str]:
        """What is wrong with the arguments, each thing in one sentence."""
        names = [resource.name for resource in self.resources]
        found = [f"resource {name} is named twice" for name in sorted({n for n in names if names.count(n) > 1})]
        return found + [
            f"weight of resource {resource.name} is {resource.weight}; it must be 1, since evenness has no weights"
            for resource in self.resources
            if resource.weight != 1
        ]


_DEFAULT_ARGS: Final = NodeResourcesBalancedAllocationArgs()


class NodeResourcesBalancedAllocation(PreScorePlugin, ScorePlugin, Reusable):
    """Judges by requests as they stand, without the defaults that NodeResourcesFit scores with."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self, args: NodeResourcesBalancedAllocationArgs = _DEFAULT_ARGS) -> None:
        if problems := args.problems():
            raise SettingsError([f"arguments of plugin {self.name}: {problem}" for problem in problems])
        self._resources = tuple(resource.name for resource in args.resources or DEFAULT_RESOURCES)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip for a pod that asks for none of the resources."""
        return SUCCESS if self._asked(pod) else SKIP

    def _asked(self, pod: PodInfo) -> bool:
        return any(pod.requests.get(name) for name in self._resources)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Requests."""
        return tuple(pod.requests.get(name) for name in self._resources)

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """75 where the pod changes nothing, up to 100 and down to 50; 0 everywhere for a pod that should be skipped."""
        if not self._asked(pod):
            return np.zeros(len(rows))
        before, after = self.evenness(pod, snapshot, index_of(snapshot, rows), len(rows))
        half = MAX_SCORE // 2
        return half + np.floor((half + after - before) / 2)

    def evenness(self, pod: PodInfo, snapshot: Snapshot, where: Indices | slice, count: int) -> tuple[Floats, Floats]:
        """How evenly the resources of the `count` nodes at `where` are used without and with `pod`: 0..100, whole."""
        without: list[Floats] = []
        used: list[Floats] = []
        offered: list[Bools] = []
        everywhere = True
        for name in self._resources:
            given = amounts(name, pod, snapshot, where, nonzero=False)
            if given is None:
                continue
            allocatable, requested = given
            here: Bools = allocatable > 0
            if not here.all():
                everywhere, allocatable = False, np.maximum(allocatable, 1)
            offered.append(here)
            used.append(np.minimum(requested / allocatable, 1.0))
            without.append(np.minimum((requested - pod.requests.get(name, 0)) / allocatable, 1.0))
        before, after = (
            _deviation(fractions, count) if everywhere else _mixed(fractions, offered, count)
            for fractions in (without, used)
        )
        return np.trunc((1.0 - before) * MAX_SCORE), np.trunc((1.0 - after) * MAX_SCORE)


def _mixed(fractions: list[Floats], offered: list[Bools], count: int) -> Floats:
    """Deviation of the fractions of what each node offers, where nodes offer different things."""
    result = np.zeros(count)
    kinds = np.stack(offered, axis=1) @ (1 << np.arange(len(offered)))
    for kind in np.unique(kinds):
        nodes = np.flatnonzero(kinds == kind)
        present = [one[nodes] for bit, one in enumerate(fractions) if kind >> bit & 1]
        result[nodes] = _deviation(present, len(nodes))
    return result


def _deviation(fractions: list[Floats], count: int) -> Floats:
    """Standard deviation over the resources, one a node; 0 for fewer than two resources."""
    if len(fractions) < 2:
        return np.zeros(count)
    if len(fractions) == 2:
        half: Floats = np.abs(fractions[0] - fractions[1]) / 2
        return half
    mean = sum(fractions[1:], start=fractions[0]) / len(fractions)
    squares = [(one - mean) ** 2 for one in fractions]
    deviation: Floats = np.sqrt(sum(squares[1:], start=squares[0]) / len(fractions))
    return deviation


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(
        NodeResourcesBalancedAllocation.name,
        lambda args, _handle: NodeResourcesBalancedAllocation(args),
        NodeResourcesBalancedAllocationArgs,
    )
