"""NodeName: a pod that names its node goes nowhere else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from scheduler_plugins.framework.events import NODE, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, FilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import node_of

_REASON = (Reason("node(s) didn't match the requested node name"),)


class NodeName(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """Judges by spec.nodeName; silent for pods without one."""

    name = "NodeName"

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods that name no node."""
        return PreFilterResult() if pod.pod.spec.node_name else PreFilterResult(SKIP)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses every other node."""
        name = pod.pod.spec.node_name
        others = np.asarray(rows != snapshot.index.get(name, -1)) if name else np.zeros(len(rows), dtype=np.bool_)
        same_words = np.zeros(len(rows), dtype=np.int8)
        return Verdicts.where(others, Code.UNRESOLVABLE, lambda _: _REASON, kinds=same_words)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """The node that the pod names."""
        return pod.pod.spec.node_name

    def events_to_register(self) -> Sequence[Registration]:
        """Only the node of that name helps when it comes; taints are named so that they wake nobody."""
        return (Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), self._came),)

    @staticmethod
    def _came(pod: PodInfo, old: Any, new: Any) -> Hint:
        named = node_of(new).metadata.name == pod.pod.spec.node_name
        return Hint.QUEUE if old is None and named else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeName.name, lambda _args, _handle: NodeName(), NoArgs)
