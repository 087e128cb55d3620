"""NodeAffinity: nodeSelector, required and preferred node affinity, and what the profile adds to every pod's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.events import NODE, Action, ClusterEvent, Hint, Registration
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
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import node_of
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.node_selector import NodeAffinityTerms, Wanted, matching_rows, wanted, worth
from slacktide.errors import SettingsError

_REASON: Final = (Reason("node(s) didn't match Pod's node affinity/selector"),)
_ENFORCED: Final = (Reason("node(s) didn't match scheduler-enforced node affinity"),)


class NodeAffinityArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`addedAffinity`, in the form of a pod's nodeAffinity, holds for every pod beside the pod's own."""

    added_affinity: NodeAffinityTerms | None = None


_NOTHING_ADDED: Final = NodeAffinityArgs()


class NodeAffinity(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions, Reusable):
    """Judges labels and name of the node, each distinct value of a label once."""

    name = "NodeAffinity"

    def __init__(self, args: NodeAffinityArgs = _NOTHING_ADDED) -> None:
        problems = args.added_affinity.problems() if args.added_affinity is not None else []
        if problems:
            raise SettingsError([f"arguments of plugin {self.name}: addedAffinity: {one}" for one in problems])
        self._added = Wanted.of(args.added_affinity)
        self._judged = Judgements()

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Narrows the search when the pod names nodes; Skip when every node will do."""
        try:
            required = wanted(pod)
        except msgspec.ValidationError as error:
            return PreFilterResult(unresolvable(f"the pod's node affinity cannot be read: {error}"))
        if required.nothing and self._added.nothing:
            return PreFilterResult(SKIP)
        names = required.node_names()
        if names is not None and not names:
            return PreFilterResult(unresolvable("pod affinity terms conflict"))
        return PreFilterResult(SUCCESS, names)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes that do not match the pod, or what the profile adds."""
        kinds = np.zeros(len(rows), dtype=np.int8)
        refused = ~matching_rows(wanted(pod), snapshot, rows, self._judged)
        if not self._added.nothing:
            enforced = ~matching_rows(self._added, snapshot, rows, self._judged)
            kinds[enforced] = 1
            refused |= enforced
        return Verdicts.where(refused, Code.UNRESOLVABLE, lambda i: _ENFORCED if kinds[i] else _REASON, kinds=kinds)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip when nothing is preferred."""
        return SUCCESS if wanted(pod).preferred or self._added.preferred else SKIP

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """Sum of the weights of the preferred terms that the node has."""
        total = worth(wanted(pod), snapshot, self._judged)
        if self._added.preferred:
            total += worth(self._added, snapshot, self._judged)
        return total.take(rows)

    def normalize(self, state: CycleState, pod: PodInfo, scores: NDArray[Any]) -> NDArray[np.int64]:  # noqa: ARG002  # part of the extension point
        """The best node gets 100."""
        return default_normalize(scores)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """What the pod wants of its node; a pod that names nodes, or cannot be read, is one of its kind."""
        try:
            asked = wanted(pod)
        except msgspec.ValidationError:
            return None
        return asked if asked.node_names() is None else None

    def events_to_register(self) -> Sequence[Registration]:
        """A node that matches and did not before; taints are named so that they wake nobody."""
        actions = Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (Registration(ClusterEvent(NODE, actions), self._matches_now),)

    def _matches_now(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        asked = (wanted(pod), self._added)
        if not all(one.matches(node_of(new)) for one in asked):
            return Hint.SKIP
        before = old is not None and all(one.matches(node_of(old)) for one in asked)
        return Hint.SKIP if before else Hint.QUEUE


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeAffinity.name, lambda args, _handle: NodeAffinity(args), NodeAffinityArgs)
