"""NodeName: a pod that names its node goes nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_plugins.framework.events import NODE_ADD, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, FilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts

_REASON = (Reason("node(s) didn't match the requested node name"),)


class NodeName(PreFilterPlugin, FilterPlugin, EnqueueExtensions):
    """Judges by spec.nodeName; silent for pods without one."""

    name = "NodeName"

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods that name no node."""
        return PreFilterResult() if pod.pod.spec.node_name else PreFilterResult(SKIP)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses every other node."""
        wanted = snapshot.index.get(pod.pod.spec.node_name, -1)
        return Verdicts.where(np.asarray(rows != wanted), Code.UNRESOLVABLE, lambda _: _REASON)

    def events_to_register(self) -> Sequence[Registration]:
        """Only a new node helps."""
        return (Registration(NODE_ADD),)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeName.name, lambda _args, _handle: NodeName(), NoArgs)
