"""NodePorts: two pods of one node cannot hold the same host port."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, FilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import HostPort, PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Indices, Interned, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import assigned, new_node, pod_of
from scheduler_plugins.plugins.judgements import Judgements

_COLUMN: Final = "NodePorts/used"
_REASON: Final = (Reason("node(s) didn't have free ports for the requested pod ports"),)


def _used(node: NodeInfo) -> frozenset[HostPort]:
    return frozenset(node.ports)


def _conflict(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> bool:
    taken = tuple(used)
    return any(port.conflicts(other) for port in wanted for other in taken)


class NodePorts(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """Judges the host ports of the pods on the node, each distinct set of ports once."""

    name = "NodePorts"

    def __init__(self) -> None:
        self._judged = Judgements()

    def interned(self) -> Sequence[Interned]:
        """Host ports that are taken; nodes with the same agents have the same."""
        return (Interned(_COLUMN, _used),)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods without host ports."""
        return PreFilterResult() if pod.host_ports else PreFilterResult(SKIP)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes where a port is taken."""
        numbers, values = snapshot.interned(_COLUMN)
        wanted = pod.host_ports
        taken = self._judged.of(_COLUMN, values, wanted, lambda used: _conflict(wanted, used))
        same_words = np.zeros(len(rows), dtype=np.int8)
        return Verdicts.where(taken.take(numbers.take(rows)), Code.UNSCHEDULABLE, lambda _: _REASON, kinds=same_words)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Host ports."""
        return pod.host_ports

    def events_to_register(self) -> Sequence[Registration]:
        """A new node, or a pod that gave a conflicting port back; taints are named so that they wake nobody."""
        return (
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), new_node),
            Registration(ClusterEvent(POD, Action.DELETE), self._freed),
        )

    @staticmethod
    def _freed(pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        return Hint.QUEUE if assigned(gone) and _conflict(pod.host_ports, gone.host_ports) else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodePorts.name, lambda _args, _handle: NodePorts(), NoArgs)
