"""NodeResourcesFit: the pod's requests against what is left of the node's allocatable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, FilterPlugin, Handle
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.snapshot import Bools, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.amounts import in_words
from scheduler_plugins.plugins.hints import assigned, node_of, pod_of


class NodeResourcesFitArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Resources that are left to somebody else: names, and groups (what stands before the slash)."""

    ignored_resources: list[str] = []
    ignored_resource_groups: list[str] = []


class NodeResourcesFit(FilterPlugin, EnqueueExtensions):
    """Judges pod count and each requested resource; a request above allocatable itself cannot be cured."""

    name = "NodeResourcesFit"

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._millis = frozenset({handle.cpu_resource})
        self._bytes = frozenset({handle.memory_resource})

    def _wanted(self, pod: PodInfo) -> dict[str, int]:
        return {
            name: amount
            for name, amount in pod.requests.items()
            if amount > 0 and name not in self._ignored and not self._in_ignored_group(name)
        }

    def _in_ignored_group(self, name: str) -> bool:
        group, slash, _ = name.partition("/")
        return bool(slash) and group in self._ignored_groups

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Collects every resource that is lacking, as "Insufficient NAME"."""
        full: Bools = snapshot.column("pod_count")[rows] + 1 > snapshot.column("pods_allocatable")[rows]
        refused = full.copy()
        hopeless = np.zeros(len(rows), dtype=np.bool_)
        wanted = self._wanted(pod)
        for name, amount in wanted.items():
            allocatable = snapshot.allocatable(name)[rows]
            refused |= amount > allocatable - snapshot.requested(name)[rows]
            hopeless |= amount > allocatable
        codes = np.where(hopeless, np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE))
        return Verdicts.where(refused, codes, lambda i: self._explain(wanted, snapshot.nodes[rows[i]]))

    def _explain(self, wanted: dict[str, int], node: NodeInfo) -> tuple[Reason, ...]:
        reasons = []
        room = node.allocatable.get("pods", 0)
        if len(node.pods) + 1 > room:
            reasons.append(Reason("Too many pods", f"{len(node.pods)} of {room}"))
        for name, amount in wanted.items():
            free = node.allocatable.get(name, 0) - node.requested.get(name, 0)
            if amount > free:
                asked, left = (in_words(name, value, self._millis, self._bytes) for value in (amount, max(0, free)))
                reasons.append(Reason(f"Insufficient {name}", f"asks for {asked}, free {left}", float(amount - free)))
        return tuple(reasons)

    def events_to_register(self) -> Sequence[Registration]:
        """A pod that left or shrank, a new node, or a node that grew in something that the pod asks for."""
        return (
            Registration(ClusterEvent(POD, Action.DELETE), self._pod_left),
            Registration(ClusterEvent(POD, Action.UPDATE_POD_SCALE_DOWN), self._pod_shrank),
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE), self._node_grew),
        )

    @staticmethod
    def _pod_left(_pod: PodInfo, old: Any, _new: Any) -> Hint:
        return Hint.QUEUE if assigned(pod_of(old)) else Hint.SKIP

    @staticmethod
    def _pod_shrank(pod: PodInfo, _old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        return Hint.QUEUE if assigned(changed) or changed.uid == pod.uid else Hint.SKIP

    def _node_grew(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        wanted = self._wanted(pod)
        now = NodeInfo.of(node_of(new)).allocatable
        if now.get("pods", 0) < 1 or any(amount > now.get(name, 0) for name, amount in wanted.items()):
            return Hint.SKIP
        if old is None:
            return Hint.QUEUE
        before = NodeInfo.of(node_of(old)).allocatable
        grew = any(now.get(name, 0) > before.get(name, 0) for name in ("pods", *wanted))
        return Hint.QUEUE if grew else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeResourcesFit.name, NodeResourcesFit, NodeResourcesFitArgs)
