"""SchedulingGates: a pod with gates stays out of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_plugins.framework.events import UNSCHEDULABLE_POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, PreEnqueuePlugin
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.status import SUCCESS, Status, unresolvable
from scheduler_plugins.plugins.hints import pod_of


class SchedulingGates(PreEnqueuePlugin, EnqueueExtensions):
    """Gates pods whose spec.schedulingGates is not empty."""

    name = "SchedulingGates"

    def pre_enqueue(self, pod: PodInfo) -> Status:
        """Names the gates that are left."""
        gates = [gate.name for gate in pod.pod.spec.scheduling_gates]
        return unresolvable(f"waiting for scheduling gates: {', '.join(gates)}") if gates else SUCCESS

    def events_to_register(self) -> Sequence[Registration]:
        """Only the removal of the pod's own last gate helps."""
        return (Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE_POD_GATES_ELIMINATED), self._ungated),)

    @staticmethod
    def _ungated(pod: PodInfo, _old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        return Hint.QUEUE if changed.uid == pod.uid and not changed.pod.spec.scheduling_gates else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(SchedulingGates.name, lambda _args, _handle: SchedulingGates(), NoArgs)
