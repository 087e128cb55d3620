"""TaintToleration: a node with a NoSchedule or NoExecute taint takes only pods that tolerate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from scheduler_plugins.framework.events import NODE, UNSCHEDULABLE_POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, FilterPlugin
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.snapshot import Indices, Interned, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import node_of, pod_of
from scheduler_plugins.plugins.tolerations import HARD_EFFECTS, untolerated
from slacktide.objects import Taint

_COLUMN: Final = "TaintToleration/taints"


def _hard_taints(node: NodeInfo) -> tuple[Taint, ...]:
    taints = node.node.spec.taints if node.node is not None else ()
    return tuple(taint for taint in taints if taint.effect in HARD_EFFECTS)


class TaintToleration(FilterPlugin, EnqueueExtensions):
    """Judges each distinct set of taints once."""

    name = "TaintToleration"

    def interned(self) -> Sequence[Interned]:
        """The taints that forbid a node."""
        return (Interned(_COLUMN, _hard_taints),)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes with a taint that the pod does not tolerate."""
        ids, values = snapshot.interned(_COLUMN)
        blocking = [untolerated(taints, pod.pod.spec.tolerations) for taints in values]
        blocked = np.fromiter((taint is not None for taint in blocking), dtype=np.bool_, count=len(blocking))
        mine = ids[rows]

        def explain(i: int) -> tuple[Reason, ...]:
            taint = blocking[mine[i]]
            return (Reason(f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"),) if taint else ()

        return Verdicts.where(blocked[mine], Code.UNRESOLVABLE, explain)

    def events_to_register(self) -> Sequence[Registration]:
        """A node whose taints are tolerated now, or a toleration of the pod's own."""
        return (
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), self._tolerable),
            Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION), self._own),
        )

    @staticmethod
    def _tolerable(pod: PodInfo, old: Any, new: Any) -> Hint:
        tolerations = pod.pod.spec.tolerations
        before = old is not None and untolerated(node_of(old).spec.taints, tolerations) is None
        now = untolerated(node_of(new).spec.taints, tolerations) is None
        return Hint.QUEUE if now and not before else Hint.SKIP

    @staticmethod
    def _own(pod: PodInfo, _old: Any, new: Any) -> Hint:
        return Hint.QUEUE if pod_of(new).uid == pod.uid else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(TaintToleration.name, lambda _args, _handle: TaintToleration(), NoArgs)
