"""NodeAffinity: nodeSelector and required node affinity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scheduler_plugins.framework.events import NODE, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, NodeFilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status, unresolvable
from scheduler_plugins.plugins.hints import node_of
from scheduler_plugins.plugins.node_selector import Wanted, wanted

_WANTED: Final = StateKey[Wanted]("NodeAffinity/wanted")
_REFUSAL: Final = unresolvable("node(s) didn't match Pod's node affinity/selector")


class NodeAffinity(PreFilterPlugin, NodeFilterPlugin, EnqueueExtensions):
    """Judges labels and name of the node."""

    name = "NodeAffinity"

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Reads the selector once; narrows the search when it names nodes."""
        try:
            required = wanted(pod.pod)
        except msgspec.ValidationError as error:
            return PreFilterResult(unresolvable(f"the pod's node affinity cannot be read: {error}"))
        if required.nothing:
            return PreFilterResult(SKIP)
        state.write(_WANTED, required)
        names = required.node_names()
        if names is not None and not names:
            return PreFilterResult(unresolvable("pod affinity terms conflict"))
        return PreFilterResult(SUCCESS, names)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Refuses nodes that do not match."""
        return SUCCESS if node.node is not None and state.read(_WANTED).matches(node.node) else _REFUSAL

    def events_to_register(self) -> Sequence[Registration]:
        """A node that matches and did not before."""
        return (Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL), self._matches_now),)

    @staticmethod
    def _matches_now(pod: PodInfo, old: Any, new: Any) -> Hint:
        required = wanted(pod.pod)
        before = old is not None and required.matches(node_of(old))
        return Hint.QUEUE if required.matches(node_of(new)) and not before else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeAffinity.name, lambda _args, _handle: NodeAffinity(), NoArgs)
