"""NodeUnschedulable: cordoned nodes take no new pods."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np

from scheduler_plugins.framework.events import NODE, UNSCHEDULABLE_POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, FilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Column, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import node_of, pod_of
from scheduler_plugins.plugins.tolerations import tolerates
from slacktide.objects import Taint

_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_COLUMN: Final = "NodeUnschedulable/cordoned"
_REASON: Final = (Reason("node(s) were unschedulable"),)


def _tolerates_cordon(pod: PodInfo) -> bool:
    return any(tolerates(toleration, _CORDON) for toleration in pod.pod.spec.tolerations)


def _cordoned(node: NodeInfo) -> bool:
    return node.node is not None and node.node.spec.unschedulable


class NodeUnschedulable(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """Judges by spec.unschedulable of the node."""

    name = "NodeUnschedulable"

    def columns(self) -> Sequence[Column]:
        """One flag a node."""
        return (Column(_COLUMN, "bool", _cordoned, of_object=True),)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods that tolerate the cordon, and when no node has one."""
        nothing = not snapshot.column(_COLUMN).any() or _tolerates_cordon(pod)
        return PreFilterResult(SKIP) if nothing else PreFilterResult()

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses cordoned nodes."""
        if _tolerates_cordon(pod):
            return Verdicts.where(np.zeros(len(rows), dtype=np.bool_), Code.UNRESOLVABLE, lambda _: _REASON)
        same_words = np.zeros(len(rows), dtype=np.int8)
        return Verdicts.where(
            snapshot.column(_COLUMN).take(rows), Code.UNRESOLVABLE, lambda _: _REASON, kinds=same_words
        )

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Whether the pod minds the cordon."""
        return _tolerates_cordon(pod)

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:  # noqa: ARG002  # part of the protocol
        """Whether any node is cordoned."""
        return bool(snapshot.column(_COLUMN).any())

    def events_to_register(self) -> Sequence[Registration]:
        """A node that is or becomes schedulable, or a toleration of the pod's own."""
        return (
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), self._schedulable),
            Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION), self._tolerated),
        )

    @staticmethod
    def _schedulable(_pod: PodInfo, old: Any, new: Any) -> Hint:
        was = old is None or node_of(old).spec.unschedulable
        return Hint.QUEUE if was and not node_of(new).spec.unschedulable else Hint.SKIP

    @staticmethod
    def _tolerated(pod: PodInfo, _old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        return Hint.QUEUE if changed.uid == pod.uid and _tolerates_cordon(changed) else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeUnschedulable.name, lambda _args, _handle: NodeUnschedulable(), NoArgs)
