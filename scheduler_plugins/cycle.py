"""One scheduling cycle: where a pod goes, or why it fits nowhere. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis, FitError
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.runtime import Framework, ScoreTable
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import PluginFailure, Status

Choose = Callable[[int], int]
"""Index of one of that many equally good nodes."""


class NoNodesError(Exception):
    """There is no node at all; nothing refused the pod."""

    def __init__(self) -> None:
        super().__init__("no nodes available to schedule pods")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the pod goes. `scores` is None when only one node was feasible and none was rated."""

    node: str
    evaluated: int
    feasible: int
    scores: ScoreTable | None = None


def place(framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, choose: Choose) -> Placement:
    """PreFilter, Filter, PostFilter, PreScore and Score over all nodes.

    Raises NoNodesError, FitError with the diagnosis, or PluginFailure when a plugin could not answer.
    """
    if not len(snapshot):
        raise NoNodesError
    diagnosis = Diagnosis(names=tuple(snapshot.names))
    filtered = framework.run_pre_filter(state, pod, snapshot, diagnosis)
    _must_answer(filtered.status)
    diagnosis.absent = filtered.absent
    diagnosis.absent_count = len(snapshot) - len(filtered.rows)
    if filtered.status.rejected:
        diagnosis.pre_filter_message = filtered.status.message
        raise _unfit(framework, state, pod, snapshot, diagnosis)
    status, rows = framework.run_filter(state, pod, snapshot, filtered.rows, diagnosis)
    _must_answer(status)
    if not len(rows):
        raise _unfit(framework, state, pod, snapshot, diagnosis)
    evaluated = len(filtered.rows)
    if len(rows) == 1:
        return Placement(snapshot.names[rows[0]], evaluated, 1)
    status, table = framework.run_score(state, pod, snapshot, rows)
    _must_answer(status)
    best = np.flatnonzero(table.totals == table.totals.max())
    row = table.rows[best[choose(len(best))]]
    return Placement(snapshot.names[row], evaluated, len(rows), table)


def _must_answer(status: Status) -> None:
    if not status.ok and not status.rejected:
        raise PluginFailure(status)


def _unfit(framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis) -> FitError:
    if framework.has_post_filter:
        status = framework.run_post_filter(state, pod, snapshot, diagnosis)
        _must_answer(status)
        diagnosis.post_filter_message = status.message
    return FitError(diagnosis)
