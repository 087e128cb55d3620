"""Filter with nominated pods: a node must suit a pod with those that are to come there, and without them.

Those count that are nominated to the node, are not the pod itself and do not give way to it. They may never arrive, so
that a node which suits only with them (such as by their affinity) does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Status, failed
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.framework.yielding import gives_way

Judge = Callable[[CycleState, PodInfo, Snapshot, Indices, Diagnosis], tuple[Status, Indices]]
"""All Filter plugins of a profile, as `Framework.run_filter`."""


class Extensions(Protocol):
    """The PreFilter extensions of a profile."""

    def run_add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """`added` is taken to be on `node`."""
        ...

    def run_remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """`removed` is taken to be gone from `node`."""
        ...


class NominatedFilter:
    """Judges nodes twice where pods are nominated to them, once everywhere else."""

    def __init__(self, judge: Judge, extensions: Extensions, nominations: api.Nominations) -> None:
        self._judge = judge
        self._extensions = extensions
        self._nominations = nominations

    def run(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
    ) -> tuple[Status, Indices]:
        """(Success or Error, rows that pass); refusals go to `diagnosis`."""
        status, rows = self._judge(state, pod, snapshot, rows, diagnosis)
        if not status.ok or not len(rows):
            return status, rows
        claimed = [snapshot.index[name] for name in self._nominations.nodes() if name in snapshot.index]
        if not claimed:
            return status, rows
        refused: dict[int, Status] = {}
        for position in np.flatnonzero(np.isin(rows, claimed)):
            status = self._with_nominated(state, pod, snapshot, int(rows[position]))
            if not status.ok and not status.rejected:
                return status, rows
            if status.rejected:
                refused[int(position)] = status
        return SUCCESS, self._drop(rows, refused, diagnosis)

    def _with_nominated(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Status:
        node = snapshot.nodes[row]
        coming = [
            other
            for other in self._nominations.on(node.name)
            if other.uid != pod.uid and not gives_way(other, to=pod) and other.uid not in node.pods
        ]
        if not coming:
            return SUCCESS
        node, state = node.clone(), state.clone()
        for other in coming:
            node.add_pod(other)
            status = self._extensions.run_add_pod(state, pod, other, node)
            if not status.ok:
                return failed(f"nominated pod {other.key} on node {node.name}: {status.message}").by(status.plugin)
        return alone(self._judge, state, pod, snapshot, node)

    @staticmethod
    def _drop(rows: Indices, refused: dict[int, Status], diagnosis: Diagnosis) -> Indices:
        for plugin in sorted({status.plugin for status in refused.values()}):
            positions = np.array([p for p, status in refused.items() if status.plugin == plugin], dtype=np.intp)
            verdicts = Verdicts.of([refused[int(p)] for p in positions])
            diagnosis.refusals.append(Refusals(plugin, rows[positions], np.arange(len(positions)), verdicts))
        for status in refused.values():
            diagnosis.note(status)
        return np.delete(rows, list(refused)) if refused else rows


def alone(judge: Judge, state: CycleState, pod: PodInfo, snapshot: Snapshot, node: NodeInfo) -> Status:
    """What `judge` says about `node` as it is given, whatever the snapshot has: Success, first refusal or Error."""
    one = snapshot.single(node)
    diagnosis = Diagnosis(names=(node.name,))
    status, _ = judge(state, pod, one, one.all(), diagnosis)
    if not status.ok or not diagnosis.refusals:
        return status
    refusal = diagnosis.refusals[0]
    return next(status for _, status in refusal.statuses()).by(refusal.plugin)


class WhatIf:
    """Answers a PostFilter's questions with the Filter plugins of one profile; see `interfaces.WhatIf`."""

    def __init__(self, filters: NominatedFilter, extensions: Extensions, snapshot: Snapshot) -> None:
        self._filters = filters
        self._extensions = extensions
        self._snapshot = snapshot

    def judge(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        """See `interfaces.WhatIf`."""
        return alone(self._filters.run, state, pod, self._snapshot, node)

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:
        """See `interfaces.WhatIf`."""
        node.add_pod(added)
        return self._extensions.run_add_pod(state, pod, added, node)

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:
        """See `interfaces.WhatIf`."""
        node.remove_pod(removed.uid)
        return self._extensions.run_remove_pod(state, pod, removed, node)
