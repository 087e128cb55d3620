"""Trial of one node: which pods have to go so that every Filter plugin lets the pod pass.

All that may go are taken away; if the node suits then, they are put back in the order of their importance, and those
with which it suits no more are the victims. Neighbours are put back together and taken apart only where that fails,
which comes to the same with far fewer questions; every set that is accepted has passed the filters as a whole.
Source: kubernetes pkg/scheduler/framework/plugins/defaultpreemption (SelectVictimsOnNode).
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_plugins.framework.interfaces import WhatIf
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import PluginFailure, Status


class Trial:
    """One node as it would be. Every question raises PluginFailure when a plugin cannot answer."""

    def __init__(self, what_if: WhatIf, state: CycleState, pod: PodInfo, node: NodeInfo) -> None:
        self._what_if = what_if
        self._state = state.clone()
        self._pod = pod
        self._node = node.clone()

    def victims(self, removable: Sequence[PodInfo], foretold: Sequence[PodInfo]) -> Sequence[PodInfo] | None:
        """Which of `removable` have to go, the most important first; None if the pod does not fit without them either.

        If it fits once those are gone that are `foretold`, no others are looked at: none of these could stay.
        """
        self._remove(foretold)
        if foretold and self._suits():
            return foretold
        gone = {pod.uid for pod in foretold}
        self._remove([pod for pod in removable if pod.uid not in gone])
        return self._reprieve(removable) if self._suits() else None

    def _reprieve(self, block: Sequence[PodInfo]) -> list[PodInfo]:
        """Put back what can stay of `block`; what cannot."""
        self._add(block)
        if self._suits():
            return []
        self._remove(block)
        if len(block) == 1:
            return [*block]
        half = len(block) // 2
        return [*self._reprieve(block[:half]), *self._reprieve(block[half:])]

    def _suits(self) -> bool:
        status = self._what_if.judge(self._state, self._pod, self._node)
        if not status.ok and not status.rejected:
            raise PluginFailure(status)
        return status.ok

    def _add(self, pods: Sequence[PodInfo]) -> None:
        for pod in pods:
            _must(self._what_if.add_pod(self._state, self._pod, pod, self._node))

    def _remove(self, pods: Sequence[PodInfo]) -> None:
        for pod in pods:
            _must(self._what_if.remove_pod(self._state, self._pod, pod, self._node))


def _must(status: Status) -> None:
    if not status.ok:
        raise PluginFailure(status)
