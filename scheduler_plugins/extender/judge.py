"""What the plugins of a profile say to the questions of an extender. No I/O, no clock, no wire.

An answer is total: every node that was asked about is kept or has a reason. Reasons that removing pods cannot cure are
kept apart, because the caller preempts only where it may help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.interfaces import MAX_SCORE
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.runtime import Framework, PreFiltered, ScoreTable
from scheduler_plugins.framework.snapshot import Bools, Indices, Ints, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code, PluginFailure, Status
from slacktide.tier import Tier

UNKNOWN_NODE: Final = "the extender does not know this node yet"
"""Reason of a node that the caller has and our informer has not; its next event wakes the pod."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of some nodes, in order; good while the snapshot has this layout."""

    rows: Indices
    layout: int


@dataclass(slots=True)
class Answer:
    """Verdict on nodes by name: those left, in the order asked, and the reason of each other one.

    `found` are the rows of those left; None where the nodes were not looked up.
    """

    kept: list[str] = field(default_factory=list)
    found: Found | None = None
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)

    def refuse(self, names: Iterable[str], code: Code, text: str) -> None:
        """Give all of `names` one reason. Only Unschedulable may be cured by preemption."""
        (self.failed if code is Code.UNSCHEDULABLE else self.unresolvable).update(dict.fromkeys(names, text))


def filter_nodes(framework: Framework, pod: PodInfo, snapshot: Snapshot, names: Sequence[str]) -> Answer:
    """Which of the nodes `names` are left for `pod`. Raises PluginFailure when a plugin could not answer."""
    answer = Answer()
    if pod.problem:
        answer.refuse(names, Code.UNRESOLVABLE, f"cannot read {pod.problem}")
        return answer
    asked, unknown = _rows(snapshot, names)
    answer.refuse(unknown, Code.UNRESOLVABLE, UNKNOWN_NODE)
    state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
    filtered = _pre_filter(framework, state, pod, snapshot, diagnosis)
    if filtered.status.rejected:
        answer.refuse((snapshot.names[row] for row in asked), filtered.status.code, filtered.status.message)
        return answer
    rows = _within(asked, filtered.rows, snapshot)
    if len(rows) < len(asked) and filtered.absent is not None:
        absent = np.setdiff1d(asked, rows, assume_unique=True)
        answer.refuse((snapshot.names[row] for row in absent), filtered.absent.code, filtered.absent.message)
    status, left = framework.run_filter(state, pod, snapshot, rows, diagnosis)
    _must_answer(status)
    for refusals in diagnosis.refusals:
        for code, told, text in _texts(refusals):
            answer.refuse((snapshot.names[row] for row in told), code, text)
    # The list itself where nothing was refused: the names need not be looked up again.
    answer.kept = list(names) if len(left) == len(names) else [snapshot.names[row] for row in left.tolist()]
    answer.found = Found(left, snapshot.layout)
    return answer


def score_nodes(
    framework: Framework,
    pod: PodInfo,
    snapshot: Snapshot,
    names: Sequence[str],
    highest: int,
    found: Found | None = None,
) -> Ints:
    """Score of each of `names`, in whole numbers from 0 to `highest`; 0 for an unknown node.

    The best total that the plugins which scored could give becomes `highest`. `found` are the rows of
    `names`, where they were looked up before. Raises PluginFailure.
    """
    scores: Ints = np.zeros(len(names), dtype=np.int64)
    if pod.problem:
        return scores
    known = found is not None and found.layout == snapshot.layout
    asked = found.rows if found is not None and known else _rows(snapshot, names)[0]
    state = CycleState()
    filtered = _pre_filter(framework, state, pod, snapshot, Diagnosis(names=snapshot.names))
    rows = _within(asked, filtered.rows, snapshot)
    if not len(rows):
        return scores
    status, table = framework.run_score(state, pod, snapshot, rows)
    _must_answer(status)
    scaled = _scaled(table, highest)
    if len(rows) == len(names):
        return scaled
    of = dict(zip(rows.tolist(), scaled.tolist(), strict=True))
    for i, name in enumerate(names):
        scores[i] = of.get(snapshot.index.get(name, -1), 0)
    return scores


def _scaled(table: ScoreTable, highest: int) -> Ints:
    best = MAX_SCORE * sum(table.weights[name] for name in table.by_plugin)
    if not best:
        return np.zeros(len(table.rows), dtype=np.int64)
    scaled: Ints = (table.totals * highest + best // 2) // best
    return scaled


def preempt_on(
    framework: Framework,
    pod: PodInfo,
    snapshot: Snapshot,
    candidates: Mapping[str, Sequence[str]],
) -> list[str]:
    """Which candidates (node name -> uids of its victims) would fit once the victims are gone. Raises PluginFailure.

    A victim that is unknown here has left already, or will be seen soon: it changes nothing in our books. A best-effort
    pod preempts best-effort pods only.
    """
    asked, _ = _rows(snapshot, list(candidates))
    state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
    filtered = _pre_filter(framework, state, pod, snapshot, diagnosis)
    if pod.problem or (filtered.status.rejected and filtered.status.code is not Code.UNSCHEDULABLE):
        return []
    rows = _within(asked, filtered.rows, snapshot) if filtered.status.ok else asked
    left = []
    for row in rows:
        name = snapshot.names[row]
        if _fits_without(framework, state.clone(), pod, snapshot, int(row), candidates[name]):
            left.append(name)
    return left


def _fits_without(
    framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, victims: Sequence[str]
) -> bool:
    node = snapshot.nodes[row].clone()
    for uid in victims:
        gone = node.remove_pod(uid)
        if gone is None:
            continue
        if pod.tier is Tier.BE and gone.tier is not Tier.BE:
            return False
        _must_answer(framework.run_remove_pod(state, pod, gone, node))
    one = snapshot.single(node)
    status, rows = framework.run_filter(state, pod, one, one.all(), Diagnosis(names=(node.name,)))
    _must_answer(status)
    return len(rows) == 1


def _rows(snapshot: Snapshot, names: Sequence[str]) -> tuple[Indices, list[str]]:
    """(rows of the known names, unknown names), both in the order asked; a name that is repeated counts once."""
    try:
        rows = np.fromiter(map(snapshot.index.__getitem__, names), dtype=np.intp, count=len(names))
    except KeyError:
        known = [row for row in map(snapshot.index.get, names) if row is not None]
        rows = np.array(known, dtype=np.intp)
        unknown = [name for name in names if name not in snapshot.index]
    else:
        unknown = []
    if np.count_nonzero(_mask(snapshot, rows)) < len(rows):
        rows = np.array(list(dict.fromkeys(rows.tolist())), dtype=np.intp)
    return rows, unknown


def _mask(snapshot: Snapshot, rows: Indices) -> Bools:
    mask = np.zeros(len(snapshot), dtype=np.bool_)
    mask[rows] = True
    return mask


def _within(asked: Indices, allowed: Indices, snapshot: Snapshot) -> Indices:
    """Those of `asked` that are in `allowed`, in the order asked."""
    if len(allowed) == len(snapshot):
        return asked
    return asked[_mask(snapshot, allowed)[asked]]


def _pre_filter(
    framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis
) -> PreFiltered:
    filtered = framework.run_pre_filter(state, pod, snapshot, diagnosis)
    _must_answer(filtered.status)
    return filtered


def _must_answer(status: Status) -> None:
    if not status.ok and not status.rejected:
        raise PluginFailure(status)


def _texts(refusals: Refusals) -> Iterator[tuple[Code, Indices, str]]:
    """(code, rows, reason) of all nodes that a plugin refused.

    The caller counts equal texts, so the nodes of one kind share theirs, without numbers; the nearest of them carries
    its own, and comes last.
    """
    codes, kinds = refusals.verdicts.codes[refusals.positions], refusals.verdicts.kinds
    if kinds is None:
        for row, status in refusals.statuses():
            yield status.code, np.array([row], dtype=np.intp), status.message
        return
    of_refused = kinds[refusals.positions]
    for _, nearest, status in refusals.kinds():
        kind = of_refused[np.flatnonzero(refusals.rows == nearest)[0]]
        plain = ", ".join(part.text for part in status.parts)
        for code in np.unique(codes[of_refused == kind]):
            yield Code(int(code)), refusals.rows[(of_refused == kind) & (codes == code)], plain
        yield status.code, np.array([nearest], dtype=np.intp), status.message
