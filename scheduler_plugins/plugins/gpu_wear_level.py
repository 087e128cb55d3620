"""GPUWearLevel: prefers nodes whose GPUs are least worn, by one number in a node annotation that somebody publishes.

The key of the annotation and the scale of its value are arguments. Score: 100 for no wear, 0 for the whole of it. A
node without the annotation gets 0; so does one whose value is malformed, with a reason in the score table: that node
loses its score, the cycle goes on.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from scheduler_plugins.framework.interfaces import MAX_SCORE, Handle, PreScorePlugin, ScorePlugin
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.score_reasons import MOST_REASONS, ScoreReasons
from scheduler_plugins.framework.snapshot import Column, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status

_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}", re.ASCII)
_ABSENT: Final = -1.0
_MALFORMED: Final = -2.0


class GpuWearLevelArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where the level stands.

    annotation  key of the node annotation
    scale       fraction: 0 to 1, percent: 0 to 100
    resource    pods that ask for it are rated; empty: all pods
    """

    annotation: Annotated[str, Meta(min_length=1, max_length=317)] = "slacktide.io/gpu-wear-level"
    scale: Literal["fraction", "percent"] = "fraction"
    resource: str = ""


class GpuWearLevel(PreScorePlugin, ScorePlugin, ScoreReasons, Reusable):
    """One number a node."""

    name = "GPUWearLevel"

    def __init__(self, args: GpuWearLevelArgs, handle: Handle) -> None:  # noqa: ARG002  # form of a factory
        self._args = args
        self._most = 1.0 if args.scale == "fraction" else 100.0
        self._column = f"{self.name}/{args.annotation}/{args.scale}"

    def columns(self) -> Sequence[Column]:
        """The level as a fraction, or what kept it from being read."""
        return (Column(self._column, "float64", self._level, of_object=True),)

    def _text(self, info: NodeInfo) -> str | None:
        return info.node.metadata.annotations.get(self._args.annotation) if info.node is not None else None

    def _level(self, info: NodeInfo) -> float:
        text = self._text(info)
        if text is None:
            return _ABSENT
        level = float(text) if _NUMBER.fullmatch(text) else _MALFORMED
        return level / self._most if 0 <= level <= self._most else _MALFORMED

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip for pods that do not ask for the resource."""
        return SUCCESS if not self._args.resource or pod.requests.get(self._args.resource) else SKIP

    def reuse_key(self, pod: PodInfo) -> Hashable:
        """Pods that are rated are alike, and so are the others."""
        return not self._args.resource or bool(pod.requests.get(self._args.resource))

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100."""
        level = snapshot.column(self._column)[rows]
        scores: NDArray[Any] = np.where(level >= 0, np.rint((1.0 - level) * MAX_SCORE), 0.0)
        return scores

    def score_reasons(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Mapping[str, str]:  # noqa: ARG002  # part of the extension point
        """Nodes whose value is malformed."""
        odd = rows[snapshot.column(self._column)[rows] == _MALFORMED]
        return {snapshot.names[row]: self._malformed(snapshot.nodes[row]) for row in odd[:MOST_REASONS]}

    def _malformed(self, info: NodeInfo) -> str:
        text = (self._text(info) or "")[:40]
        return (
            f"annotation {self._args.annotation} is {text!r}; it must be a number from 0 to {self._most:g}"
            f" (scale {self._args.scale})"
        )


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(GpuWearLevel.name, GpuWearLevel, GpuWearLevelArgs)
