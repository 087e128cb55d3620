"""Packing: fills nodes with best-effort pods one after the other, or spreads them.

The score is the share of what a node sells that is sold after the placement, or that is left. Most allocated keeps
whole nodes free for large pods and for LS; least allocated keeps best-effort pods out of each other's way. Pods of
other tiers are not rated.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from scheduler_plugins.framework.interfaces import MAX_SCORE, Handle, PreScorePlugin, ScorePlugin
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Floats, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status
from scheduler_plugins.plugins.batch_room import batch_resources
from slacktide.errors import SettingsError
from slacktide.tier import Tier

_Weight = Annotated[int, Meta(ge=0, le=100)]


class PackingArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which way, and what CPU weighs against memory. A resource that the pod does not ask for is not looked at."""

    strategy: Literal["MostAllocated", "LeastAllocated"] = "MostAllocated"
    cpu_weight: _Weight = 1
    memory_weight: _Weight = 1


class Packing(PreScorePlugin, ScorePlugin, Reusable):
    """Raises SettingsError where nothing has a weight."""

    name = "Packing"

    def __init__(self, args: PackingArgs, handle: Handle) -> None:
        if not args.cpu_weight + args.memory_weight:
            raise SettingsError([f"arguments of plugin {self.name}: cpuWeight and memoryWeight are both 0"])
        self._most = args.strategy == "MostAllocated"
        weights = (args.cpu_weight, args.memory_weight)
        self._resources = tuple(zip(batch_resources(handle), weights, strict=True))

    def _asked(self, pod: PodInfo) -> int:
        """Sum of the weights of what `pod` asks for."""
        return sum(weight for resource, weight in self._resources if resource.need(pod))

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip for every tier but best effort, and for a pod that asks for nothing."""
        return SUCCESS if pod.tier is Tier.BE and self._asked(pod) else SKIP

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Batch requests of a best-effort pod; all others are alike."""
        return tuple(resource.need(pod) for resource, _ in self._resources) if pod.tier is Tier.BE else ()

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100; a node that cannot hold the pod gets 0 either way."""
        total = np.zeros(len(rows))
        fits = np.ones(len(rows), dtype=np.bool_)
        for resource, weight in self._resources:
            need = resource.need(pod)
            if not (need and weight):
                continue
            offered = snapshot.allocatable(resource.name)[rows]
            sold = snapshot.requested(resource.name)[rows] + need
            fits &= sold <= offered
            share: Floats = sold / np.maximum(offered, 1)
            total += weight * (share if self._most else 1.0 - share)
        scores: NDArray[Any] = np.where(fits, total * MAX_SCORE / self._asked(pod), 0.0)
        return scores


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(Packing.name, Packing, PackingArgs)
