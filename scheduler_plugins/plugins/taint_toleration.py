"""TaintToleration: a node with a NoSchedule or NoExecute taint takes only pods that tolerate it.

Nodes with fewer PreferNoSchedule taints that the pod does not tolerate are better.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.events import NODE, UNSCHEDULABLE_POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    FilterPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
    default_normalize,
)
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Indices, Interned, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import node_of, own
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.rows import index_of
from scheduler_plugins.plugins.tolerations import TAINTS, Taints, disliked, forbidden, tolerations_of, untolerated


class TaintToleration(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions, Reusable):
    """Judges each distinct set of taints once for each set of tolerations."""

    name = "TaintToleration"

    def __init__(self) -> None:
        self._judged = Judgements()

    def interned(self) -> Sequence[Interned]:
        """The taints of each node."""
        return (TAINTS,)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip when the pod tolerates all that nodes have."""
        flags, _ = forbidden(pod, snapshot, self._judged)
        return PreFilterResult() if flags.any() else PreFilterResult(SKIP)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes with a taint that the pod does not tolerate."""
        flags, numbers = forbidden(pod, snapshot, self._judged)
        mine = numbers[index_of(snapshot, rows)]
        values: list[Taints] = snapshot.interned(TAINTS.name)[1]

        def explain(i: int) -> tuple[Reason, ...]:
            taint = untolerated(values[mine[i]].hard, tolerations_of(pod))
            return (Reason(f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"),) if taint else ()

        return Verdicts.where(flags.take(mine), Code.UNRESOLVABLE, explain, kinds=mine)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip when no node has anything that the pod would rather not have: all would get the same."""
        counts, _ = disliked(pod, snapshot, self._judged)
        return SUCCESS if counts.any() else SKIP

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """Number of PreferNoSchedule taints that the pod does not tolerate."""
        counts, numbers = disliked(pod, snapshot, self._judged)
        return counts.take(numbers[index_of(snapshot, rows)])

    def normalize(self, state: CycleState, pod: PodInfo, scores: NDArray[Any]) -> NDArray[np.int64]:  # noqa: ARG002  # part of the extension point
        """The fewer the better."""
        return default_normalize(scores, reverse=True)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Tolerations."""
        return tolerations_of(pod)

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        """Whether there is anything to judge, and to rate."""
        if not any(one.hard or one.soft for one in snapshot.interned(TAINTS.name)[1]):
            return False, False
        flags, counts = forbidden(pod, snapshot, self._judged)[0], disliked(pod, snapshot, self._judged)[0]
        return bool(flags.any()), bool(counts.any())

    def events_to_register(self) -> Sequence[Registration]:
        """A node whose taints are tolerated now, or a toleration of the pod's own."""
        return (
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), self._tolerable, tolerations_of),
            Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION), own),
        )

    @staticmethod
    def _tolerable(pod: PodInfo, old: Any, new: Any) -> Hint:
        tolerations = tolerations_of(pod)
        if untolerated(node_of(new).spec.taints, tolerations) is not None:
            return Hint.SKIP
        before = old is not None and untolerated(node_of(old).spec.taints, tolerations) is None
        return Hint.SKIP if before else Hint.QUEUE


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(TaintToleration.name, lambda _args, _handle: TaintToleration(), NoArgs)
