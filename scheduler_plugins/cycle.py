"""One scheduling cycle: where a pod goes, or why it fits nowhere. No clock; extenders are asked over the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis, FitError
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.runtime import Framework, ScoreTable
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import PluginFailure, Status

Choose = Callable[[int], int]
"""Index of one of that many equally good nodes."""


class NoNodesError(Exception):
    """There is no node at all; nothing refused the pod."""

    def __init__(self) -> None:
        super().__init__("no nodes available to schedule pods")


class NoFitError(FitError):
    """The pod fits nowhere. `nominate` is what the PostFilter plugins say of its nomination, see PostFilterResult."""

    def __init__(self, diagnosis: Diagnosis, nominate: str | None) -> None:
        self.nominate = nominate
        super().__init__(diagnosis)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the pod goes. `scores` is None when only one node was feasible and none was rated."""

    node: str
    evaluated: int
    feasible: int
    diagnosis: Diagnosis
    scores: ScoreTable | None = None


def place(framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, choose: Choose) -> Placement:
    """PreFilter, Filter, PostFilter, PreScore and Score over all nodes; the nominated node alone where it suits.

    Raises NoNodesError, NoFitError with the diagnosis, or PluginFailure when a plugin could not answer. A diagnosis
    speaks of the snapshot as it is: ask it before that changes.
    """
    if not len(snapshot):
        raise NoNodesError
    diagnosis = Diagnosis(names=snapshot.names)
    filtered = framework.run_pre_filter(state, pod, snapshot, diagnosis)
    _must_answer(filtered.status)
    diagnosis.absent = filtered.absent
    diagnosis.absent_count = len(snapshot) - len(filtered.rows)
    if filtered.status.rejected:
        diagnosis.pre_filter_message = filtered.status.message
        raise _unfit(framework, state, pod, snapshot, diagnosis)
    nominated = _on_nominated(framework, state, pod, snapshot, filtered.rows)
    if nominated is not None:
        return nominated
    rows = _fitting(framework, state, pod, snapshot, filtered.rows, diagnosis)
    if not len(rows):
        raise _unfit(framework, state, pod, snapshot, diagnosis)
    evaluated = len(filtered.rows)
    if len(rows) == 1:
        return Placement(snapshot.names[rows[0]], evaluated, 1, diagnosis)
    status, table = framework.run_score(state, pod, snapshot, rows)
    _must_answer(status)
    best = np.flatnonzero(table.totals == table.totals.max())
    row = table.rows[best[choose(len(best))]]
    return Placement(snapshot.names[row], evaluated, len(rows), diagnosis, table)


def _fitting(
    framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
) -> Indices:
    """Rows that plugins and extenders let pass."""
    status, rows = framework.run_filter(state, pod, snapshot, rows, diagnosis)
    _must_answer(status)
    status, rows = framework.run_extender_filters(pod, snapshot, rows, diagnosis)
    _must_answer(status)
    return rows


def _on_nominated(
    framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices
) -> Placement | None:
    """The node on which room was made for the pod, if it suits; whatever is wrong with it, the others are judged."""
    row = snapshot.index.get(framework.nominated_node(pod))
    if row is None or row not in rows:
        return None
    diagnosis = Diagnosis(names=(snapshot.names[row],))
    try:
        left = _fitting(framework, state, pod, snapshot, np.array([row], dtype=np.intp), diagnosis)
    except PluginFailure:
        return None
    return Placement(snapshot.names[row], 1, 1, diagnosis) if len(left) else None


def _must_answer(status: Status) -> None:
    if not status.ok and not status.rejected:
        raise PluginFailure(status)


def _unfit(
    framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis
) -> NoFitError:
    nominate = None
    if framework.has_post_filter:
        result = framework.run_post_filter(state, pod, snapshot, diagnosis)
        _must_answer(result.status)
        diagnosis.post_filter_message = result.status.message
        nominate = result.nominate
    return NoFitError(diagnosis, nominate)
