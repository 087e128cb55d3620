"""Which events may let a gang be placed that was refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scheduler_plugins.framework.event_names import event_resource
from scheduler_plugins.framework.events import (
    ASSIGNED_POD,
    NODE,
    POD,
    Action,
    ClusterEvent,
    Hint,
    Registration,
)
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.plugins.gang_group import GangId, gang_of
from scheduler_plugins.plugins.hints import node_of, pod_of
from scheduler_plugins.plugins.kinds import POD_GROUPS, SIGS_POD_GROUPS
from slacktide.errors import QuantityError
from slacktide.objects import Node
from slacktide.resources import node_allocatable

_MEMBER = Action.ADD | Action.UPDATE_POD_LABEL | Action.UPDATE_POD_GATES_ELIMINATED | Action.UPDATE_OTHER
_ROOM = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE
_FREED = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN


def gang_events(
    could_start: Callable[[GangId], bool], lacking: Callable[[GangId], frozenset[str]]
) -> Sequence[Registration]:
    """A pod of the gang or its group comes or changes; or, where room was lacking, there is more of what lacked.

    `could_start`: the gang is there and has enough pods. `lacking`: what there was not enough of, if that was why.
    """

    def member(pod: PodInfo, old: Any, new: Any) -> Hint:
        gang = gang_of(pod)
        about = gang in {gang_of(pod_of(one)) for one in (old, new) if one is not None}
        return _queue(gang is not None and about and could_start(gang))

    def group(of_sigs: bool) -> Callable[[PodInfo, Any, Any], Hint]:  # which of two kinds
        def changed(pod: PodInfo, _old: Any, new: Any) -> Hint:
            gang, metadata = gang_of(pod), new.metadata
            if gang is None or gang.stated or gang.of_sigs is not of_sigs:
                return Hint.SKIP
            same = (gang.namespace, gang.name) == (metadata.namespace, metadata.name)
            return _queue(same and could_start(gang))

        return changed

    def freed(pod: PodInfo, old: Any, new: Any) -> Hint:
        gang = gang_of(pod)
        lacks = frozenset() if gang is None else lacking(gang)
        left = {} if new is None else pod_of(new).requests
        less = {name for name, amount in pod_of(old).requests.items() if left.get(name, 0) < amount}
        return _queue(not lacks.isdisjoint(less if new is not None else {*less, "pods"}))

    def room(pod: PodInfo, old: Any, new: Any) -> Hint:
        gang = gang_of(pod)
        lacks = frozenset() if gang is None else lacking(gang)
        return _queue(bool(lacks) and not lacks.isdisjoint(_grown(old, node_of(new))))

    changed = Action.ADD | Action.UPDATE
    return (
        Registration(ClusterEvent(POD, _MEMBER), member, gang_of),
        Registration(ClusterEvent(event_resource(SIGS_POD_GROUPS), changed), group(of_sigs=True), gang_of),
        Registration(ClusterEvent(event_resource(POD_GROUPS), changed), group(of_sigs=False), gang_of),
        Registration(ClusterEvent(ASSIGNED_POD, _FREED), freed, gang_of),
        # Taints are no matter of ours; named, they are not taken to be what every new node waits for.
        Registration(ClusterEvent(NODE, _ROOM | Action.UPDATE_NODE_TAINT), room, gang_of),
    )


def _queue(helps: bool) -> Hint:  # the answer itself
    return Hint.QUEUE if helps else Hint.SKIP


def _grown(old: Any, new: Node) -> frozenset[str]:
    """Resources of which the node offers more than before."""
    try:
        before = {} if old is None else node_allocatable(node_of(old))
        now = node_allocatable(new)
    except QuantityError:
        return frozenset()
    return frozenset(name for name, amount in now.items() if amount > before.get(name, 0))
