"""Cluster events: what changed, as plugins register for it and as the queue judges it.

An event is a resource and a set of actions. Events are derived from two versions of an object, one for each aspect
that really changed, so that a heartbeat wakes nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.errors import QuantityError
from slacktide.objects import Node, Pod
from slacktide.resources import node_allocatable, requests_of


class Action(enum.IntFlag):
    """What happened to a resource; a registration may name several."""

    ADD = 1 << 0
    DELETE = 1 << 1
    UPDATE_NODE_ALLOCATABLE = 1 << 2
    UPDATE_NODE_LABEL = 1 << 3
    UPDATE_NODE_TAINT = 1 << 4
    UPDATE_NODE_CONDITION = 1 << 5
    UPDATE_NODE_ANNOTATION = 1 << 6
    UPDATE_POD_LABEL = 1 << 7
    UPDATE_POD_SCALE_DOWN = 1 << 8
    UPDATE_POD_TOLERATION = 1 << 9
    UPDATE_POD_GATES_ELIMINATED = 1 << 10
    UPDATE_OTHER = 1 << 11
    UPDATE = (
        UPDATE_NODE_ALLOCATABLE
        | UPDATE_NODE_LABEL
        | UPDATE_NODE_TAINT
        | UPDATE_NODE_CONDITION
        | UPDATE_NODE_ANNOTATION
        | UPDATE_POD_LABEL
        | UPDATE_POD_SCALE_DOWN
        | UPDATE_POD_TOLERATION
        | UPDATE_POD_GATES_ELIMINATED
        | UPDATE_OTHER
    )
    ALL = ADD | DELETE | UPDATE


_ACTION_NAMES: Final = {
    Action.ADD: "Add",
    Action.DELETE: "Delete",
    Action.UPDATE_NODE_ALLOCATABLE: "UpdateNodeAllocatable",
    Action.UPDATE_NODE_LABEL: "UpdateNodeLabel",
    Action.UPDATE_NODE_TAINT: "UpdateNodeTaint",
    Action.UPDATE_NODE_CONDITION: "UpdateNodeCondition",
    Action.UPDATE_NODE_ANNOTATION: "UpdateNodeAnnotation",
    Action.UPDATE_POD_LABEL: "UpdatePodLabel",
    Action.UPDATE_POD_SCALE_DOWN: "UpdatePodScaleDown",
    Action.UPDATE_POD_TOLERATION: "UpdatePodToleration",
    Action.UPDATE_POD_GATES_ELIMINATED: "UpdatePodSchedulingGatesEliminated",
    Action.UPDATE_OTHER: "Update",
    Action.UPDATE: "Update",
    Action.ALL: "All",
}

POD: Final = "Pod"
"""Registering for Pod matches assigned pods and pods that wait alike."""
ASSIGNED_POD: Final = "AssignedPod"
UNSCHEDULABLE_POD: Final = "UnschedulablePod"
NODE: Final = "Node"
ANY: Final = "*"

NAMESPACE: Final = "Namespace"
SERVICE: Final = "Service"
PERSISTENT_VOLUME: Final = "PersistentVolume"
PERSISTENT_VOLUME_CLAIM: Final = "PersistentVolumeClaim"
STORAGE_CLASS: Final = "storage.k8s.io/StorageClass"
CSI_NODE: Final = "storage.k8s.io/CSINode"
CSI_DRIVER: Final = "storage.k8s.io/CSIDriver"
CSI_STORAGE_CAPACITY: Final = "storage.k8s.io/CSIStorageCapacity"
VOLUME_ATTACHMENT: Final = "storage.k8s.io/VolumeAttachment"
POD_GROUP: Final = "podgroups.v1alpha1.scheduling.x-k8s.io"
"""Of scheduler-plugins; other kinds are named alike. These change as a whole: Add, Delete or UPDATE_OTHER."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """`resource` is one of the names above or a custom `plural.version.group`; `action` has what happened.

    A registration for UPDATE covers every kind of update, one for ALL everything that can happen to the resource.
    """

    resource: str
    action: Action
    custom_label: str = ""

    @property
    def label(self) -> str:
        """Value of the `event` label of metrics, such as NodeUpdateNodeTaint."""
        return self.custom_label or f"{self.resource}{_ACTION_NAMES.get(self.action, 'Update')}"

    @property
    def wildcard(self) -> bool:
        """Whether anything may have changed."""
        return self.resource == ANY

    def covers(self, incoming: ClusterEvent) -> bool:
        """Whether a registration for this event is asked when `incoming` happens.

        An incoming action wider than the registered one is not covered; an incoming wildcard only by a wildcard.
        """
        if self.wildcard:
            return True
        same = self.resource == incoming.resource or (
            self.resource == POD and incoming.resource in (ASSIGNED_POD, UNSCHEDULABLE_POD)
        )
        return same and bool(self.action & incoming.action) and not incoming.action & ~self.action


ALL_EVENTS: Final = ClusterEvent(ANY, Action.ALL)
UNSCHEDULABLE_TIMEOUT: Final = ClusterEvent(ANY, Action.ALL, "UnschedulableTimeout")
FORCE_ACTIVATE: Final = ClusterEvent(ANY, Action.ALL, "ForceActivate")
POD_ADD: Final = ClusterEvent(UNSCHEDULABLE_POD, Action.ADD)
ASSIGNED_POD_ADD: Final = ClusterEvent(ASSIGNED_POD, Action.ADD)
ASSIGNED_POD_DELETE: Final = ClusterEvent(ASSIGNED_POD, Action.DELETE)
NODE_ADD: Final = ClusterEvent(NODE, Action.ADD)
NODE_DELETE: Final = ClusterEvent(NODE, Action.DELETE)

ATTEMPT_FAILURE: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
POP_FROM_BACKOFF: Final = "PopFromBackoffQ"


class Hint(enum.Enum):
    """Whether an event may make a pod fit that the plugin refused."""

    SKIP = "QueueSkip"
    QUEUE = "Queue"


HintFunction = Callable[[PodInfo, Any, Any], Hint]
"""(waiting pod, old object or None, new object or None) -> Hint; one that raises counts as QUEUE.

Nodes come as `Node`, pods as `PodInfo`."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A plugin wants to be asked by `hint` when `event` happens; no hint means that the event always helps.

    `alike` gives a hashable value on which alone the hint's answer for a pod depends, such as its requests: of the
    waiting pods that have it in common only one is asked. Without it each pod is asked.
    """

    event: ClusterEvent
    hint: HintFunction | None = None
    alike: Callable[[PodInfo], Hashable] | None = None


def _allocatable_differs(old: Node, new: Node) -> bool:
    if old.status.allocatable == new.status.allocatable:
        return False
    try:
        return node_allocatable(old) != node_allocatable(new)
    except QuantityError:
        return True


def _conditions(node: Node) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}


def node_events(old: Node, new: Node) -> tuple[ClusterEvent, ...]:
    """Events of a node update, one an aspect; none when only heartbeats or the resource version moved."""
    changed = (
        (_allocatable_differs(old, new), Action.UPDATE_NODE_ALLOCATABLE),
        (old.metadata.labels != new.metadata.labels, Action.UPDATE_NODE_LABEL),
        (
            old.spec.taints != new.spec.taints or (old.spec.unschedulable and not new.spec.unschedulable),
            Action.UPDATE_NODE_TAINT,
        ),
        (_conditions(old) != _conditions(new), Action.UPDATE_NODE_CONDITION),
        (old.metadata.annotations != new.metadata.annotations, Action.UPDATE_NODE_ANNOTATION),
    )
    return tuple(ClusterEvent(NODE, action) for differs, action in changed if differs)


def _requests(pod: Pod) -> Mapping[str, int]:
    try:
        return requests_of(pod)
    except QuantityError:
        return {}


def _given(pod: Pod) -> list[tuple[object, object]]:
    """How far a resize in place has come: what the node has given to the containers, or that it never will."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    given: list[tuple[object, object]] = [(status.allocated_resources, status.resources) for status in statuses]
    return given + [(c.status, c.reason) for c in pod.status.conditions if c.type == "PodResizePending"]


def _scaled_down(old: Pod, new: Pod) -> bool:
    same_spec = old.spec.containers == new.spec.containers and old.spec.resources == new.spec.resources
    if same_spec and _given(old) == _given(new):
        return False
    before, after = _requests(old), _requests(new)
    return any(after.get(name, 0) < amount for name, amount in before.items())


def pod_events(old: Pod, new: Pod) -> tuple[ClusterEvent, ...]:
    """Events of a pod update; none when nothing but the status or the resource version moved.

    A request that grew, an annotation or a gate that is not the last one give the plain update. A status by which the
    pod counts for less from now on, because it was resized in place, is a scale-down.
    """
    resource = ASSIGNED_POD if new.spec.node_name else UNSCHEDULABLE_POD
    if old.spec == new.spec and old.metadata.labels == new.metadata.labels:
        if old.metadata.annotations == new.metadata.annotations:
            shrank = _scaled_down(old, new)
            return (ClusterEvent(resource, Action.UPDATE_POD_SCALE_DOWN),) if shrank else ()
        changed: tuple[tuple[bool, Action], ...] = ((_scaled_down(old, new), Action.UPDATE_POD_SCALE_DOWN),)
    else:
        changed = (
            (old.metadata.labels != new.metadata.labels, Action.UPDATE_POD_LABEL),
            (_scaled_down(old, new), Action.UPDATE_POD_SCALE_DOWN),
            (
                bool(old.spec.scheduling_gates) and not new.spec.scheduling_gates,
                Action.UPDATE_POD_GATES_ELIMINATED,
            ),
            (len(new.spec.tolerations) > len(old.spec.tolerations), Action.UPDATE_POD_TOLERATION),
        )
    specific = tuple(ClusterEvent(resource, action) for differs, action in changed if differs)
    return specific or (ClusterEvent(resource, Action.UPDATE_OTHER),)
