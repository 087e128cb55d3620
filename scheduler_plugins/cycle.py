"""One scheduling cycle: where a pod goes, or why it fits nowhere. No clock; extenders are asked over the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis, FitError
from scheduler_plugins.framework.kept import ALONE, ANEW, REUSED, Fit, Found, Kept, best_positions
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
    """Where the pod goes. `scores` is None when only one node was feasible and none was rated.

    `refused` has how many nodes each plugin refused, each node counted once. Where the cycle `reused` what an earlier
    one had found out, that is all that is known of the refusals, and the scores are those of the best nodes.
    """

    node: str
    evaluated: int
    feasible: int
    diagnosis: Diagnosis
    scores: ScoreTable | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    reused: bool = False


def place(
    framework: Framework,
    state: CycleState,
    pod: PodInfo,
    snapshot: Snapshot,
    choose: Choose,
    kept: Kept | None = None,
) -> Placement:
    """PreFilter, Filter, PostFilter, PreScore and Score over all nodes; the nominated node alone where it suits.

    With `kept`, which belongs to framework and snapshot, a pod like an earlier one has only those nodes judged that
    changed since; verdicts and choice are the same. Raises NoNodesError, NoFitError with the diagnosis, or
    PluginFailure when a plugin could not answer. A diagnosis speaks of the snapshot as it is: ask it before that
    changes.
    """
    if not len(snapshot):
        raise NoNodesError
    signature = None if kept is None else framework.signature(pod, snapshot)
    if kept is None:
        return _anew(framework, state, pod, snapshot, choose, None)
    if signature is None:
        kept.judged(ALONE)
        return _anew(framework, state, pod, snapshot, choose, None)
    found = kept.take(signature)
    again = None if found is None else _again(framework, state, pod, snapshot, choose, found)
    if found is not None and again is not None:
        kept.keep(signature, found)
        kept.judged(REUSED)
        return again
    kept.judged(ANEW)
    state.clear()
    return _anew(framework, state, pod, snapshot, choose, lambda found: kept.keep(signature, found))


def _anew(
    framework: Framework,
    state: CycleState,
    pod: PodInfo,
    snapshot: Snapshot,
    choose: Choose,
    keep: Callable[[Found], None] | None,
) -> Placement:
    """A cycle over all nodes; what it found out goes to `keep`, if it may serve others."""
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
    node, table = snapshot.names[rows[0]], None
    if len(rows) > 1:
        status, table = framework.run_score(state, pod, snapshot, rows)
        _must_answer(status)
        best = np.flatnonzero(table.totals == table.totals.max())
        node = snapshot.names[table.rows[best[choose(len(best))]]]
    if keep is not None and not diagnosis.absent_count:
        keep(Found(state, snapshot, Fit(diagnosis, len(snapshot)), table))
    return Placement(node, len(filtered.rows), len(rows), diagnosis, table, _counted(diagnosis))


def _again(
    framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, choose: Choose, found: Found
) -> Placement | None:
    """The same from what an earlier cycle found out; None where that cannot be, and what was found is of no use."""
    changed = found.changed(snapshot)
    if changed is None or not found.update(framework, state, pod, snapshot, changed).ok:
        return None
    fit, diagnosis = found.fit, Diagnosis(names=snapshot.names)
    if not len(fit.rows):
        # Why it fits nowhere is told in words, for which all nodes must be asked.
        return None
    if len(fit.rows) == 1:
        found.not_rated()
        return Placement(snapshot.names[fit.rows[0]], len(snapshot), 1, diagnosis, None, fit.refused, reused=True)
    status, rated = found.rate(framework, state, pod, snapshot, changed)
    if not status.ok or rated is None:
        return None
    totals = rated.totals if len(fit.rows) == len(snapshot) else rated.totals[fit.rows]
    best = np.flatnonzero(totals == totals.max())
    chosen = best[choose(len(best))]
    status, unrated = framework.unrated(state, pod, snapshot, fit.rows)
    if not status.ok:
        return None
    table = rated.table(fit.rows[best_positions(totals, best, chosen)], unrated)
    node = snapshot.names[fit.rows[chosen]]
    return Placement(node, len(snapshot), len(fit.rows), diagnosis, table, fit.refused, reused=True)


def _counted(diagnosis: Diagnosis) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for refusals in diagnosis.refusals:
        counts[refusals.plugin] = counts.get(refusals.plugin, 0) + len(refusals.positions)
    return counts


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
