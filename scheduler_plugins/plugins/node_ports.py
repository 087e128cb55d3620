"""NodePorts: two pods of one node cannot hold the same host port."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from scheduler_plugins.framework.events import NODE_ADD, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, NodeFilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import HostPort, PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status, unschedulable
from scheduler_plugins.plugins.hints import assigned, pod_of

_REFUSAL: Final = unschedulable("node(s) didn't have free ports for the requested pod ports")


def _conflict(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> bool:
    taken = tuple(used)
    return any(port.conflicts(other) for port in wanted for other in taken)


class NodePorts(PreFilterPlugin, NodeFilterPlugin, EnqueueExtensions):
    """Judges the host ports of the pods on the node."""

    name = "NodePorts"

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods without host ports."""
        return PreFilterResult() if pod.host_ports else PreFilterResult(SKIP)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Refuses nodes where a port is taken."""
        return _REFUSAL if _conflict(pod.host_ports, node.ports) else SUCCESS

    def events_to_register(self) -> Sequence[Registration]:
        """A new node, or a pod that gave a conflicting port back."""
        return (Registration(NODE_ADD), Registration(ClusterEvent(POD, Action.DELETE), self._freed))

    @staticmethod
    def _freed(pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        return Hint.QUEUE if assigned(gone) and _conflict(pod.host_ports, gone.host_ports) else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodePorts.name, lambda _args, _handle: NodePorts(), NoArgs)
