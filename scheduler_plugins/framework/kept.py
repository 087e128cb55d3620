"""Kept: what cycles found out about the nodes, brought up to date for the next pod that is alike; see `reusable`.

Only nodes that changed since are judged and rated again. Raw scores of the others stay, plugins that normalise do so
anew where any raw score or the set of nodes that fit has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.asking import Unrated, ask_normalised, ask_raw, ask_score
from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.runtime import Framework, ScoreTable
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Status, failed

SHOWN_NODES: Final = 20
"""Of the nodes that were rated so many, the best, are in the score table of a cycle that reuses."""

_MOST_KINDS: Final = 8
"""Kinds of pods of which the last cycle is kept; each costs some 200 bytes a node."""

_FITS: Final = -1


class Rated:
    """Scores of all nodes by row, those that do not fit with stale ones."""

    def __init__(self, table: ScoreTable, nodes: int) -> None:
        def by_row(values: NDArray[Any]) -> NDArray[Any]:
            column = np.zeros(nodes, dtype=values.dtype)
            column[table.rows] = values
            return column

        self._raw = {name: by_row(values) for name, values in table.raw.items()}
        self._marks = {name: by_row(values) for name, values in table.by_plugin.items()}
        self._weights = table.weights
        self._stale = False
        self._unscored = int(table.totals[0])
        self.totals: NDArray[np.int64] = by_row(table.totals)

    def update(
        self, plugin: api.ScorePlugin, state: CycleState, pod: PodInfo, snapshot: Snapshot, changed: Indices, fit: Fit
    ) -> Status:
        """Rate the nodes `changed`, which fit, by one plugin."""
        name = plugin.name
        if type(plugin).normalize is api.ScorePlugin.normalize:
            if not len(changed):
                return SUCCESS
            scored = ask_score(plugin, state, pod, snapshot, changed)
            return scored.status if not scored.status.ok else self._set(name, changed, scored.raw, scored.normalised)
        if len(changed):
            status, raw = ask_raw(plugin, state, pod, snapshot, changed)
            if not status.ok:
                return status
            if not fit.moved and np.array_equal(raw, self._raw[name][changed]):
                return SUCCESS
            status = self._set(name, changed, raw, None)
            if not status.ok:
                return status
        elif not fit.moved:
            return SUCCESS
        scored = ask_normalised(plugin, state, pod, snapshot, fit.rows, self._raw[name][fit.rows])
        if scored.status.ok:
            self._marks[name][fit.rows] = scored.normalised
            self._stale = True
        return scored.status

    def _set(self, name: str, rows: Indices, raw: NDArray[Any], marks: NDArray[np.int64] | None) -> Status:
        if not np.can_cast(raw.dtype, self._raw[name].dtype):
            return failed(f"plugin {name} gave scores of type {raw.dtype}, before of {self._raw[name].dtype}")
        self._raw[name][rows] = raw
        if marks is not None:
            self._marks[name][rows] = marks
        return SUCCESS

    def sum_up(self, changed: Indices, fit: Fit) -> None:
        """Bring the totals up to date once every plugin was asked."""
        rows = fit.rows if self._stale else changed
        self._stale = False
        total = np.zeros(len(rows), dtype=np.int64)
        for name, marks in self._marks.items():
            total += marks[rows] * self._weights[name]
        self.totals[rows] = total if self._marks else self._unscored

    def table(self, rows: Indices, unrated: Unrated) -> ScoreTable:
        """The scores of some nodes, and what plugins could not rate of all."""
        marks = {name: values[rows] for name, values in self._marks.items()}
        raw = {name: values[rows] for name, values in self._raw.items()}
        return ScoreTable(rows, self.totals[rows], marks, raw, self._weights, unrated=unrated)


class Fit:
    """Which nodes fit, and which plugin refused each of the others."""

    def __init__(self, diagnosis: Diagnosis, nodes: int) -> None:
        self._plugins: list[str] = []
        self._by: NDArray[np.int16] = np.full(nodes, _FITS, dtype=np.int16)
        self.moved = False
        """Whether other nodes fit since the last update."""
        self._note(diagnosis.refusals)
        self._count()

    def _note(self, refusals: Sequence[Refusals]) -> None:
        for refusal in refusals:
            if refusal.plugin not in self._plugins:
                self._plugins.append(refusal.plugin)
            self._by[refusal.rows] = self._plugins.index(refusal.plugin)

    def _count(self) -> None:
        self.rows: Indices = np.flatnonzero(self._by == _FITS)
        counts = np.bincount(self._by[self._by != _FITS], minlength=len(self._plugins)).tolist()
        self.refused = {plugin: count for plugin, count in zip(self._plugins, counts, strict=True) if count}

    def update(self, changed: Indices, refusals: Sequence[Refusals]) -> None:
        """The nodes `changed` were judged again."""
        before = self._by[changed]
        self._by[changed] = _FITS
        self._note(refusals)
        after = self._by[changed]
        self.moved = bool(((before == _FITS) != (after == _FITS)).any())
        if (before != after).any():
            self._count()

    def among(self, rows: Indices) -> Indices:
        """Those of `rows` that fit."""
        fitting: Indices = rows[self._by[rows] == _FITS]
        return fitting


class Found:
    """What one cycle found out. `rated` is None where only one node fitted and none was rated."""

    def __init__(self, state: CycleState, snapshot: Snapshot, fit: Fit, table: ScoreTable | None) -> None:
        self._state = CycleState()
        self._state.share(state)
        self._layout = snapshot.layout
        self._version = snapshot.version
        self.fit = fit
        self._rated = None if table is None else Rated(table, len(snapshot))

    def changed(self, snapshot: Snapshot) -> Indices | None:
        """Rows to judge again; None where it is too late for that."""
        if snapshot.layout != self._layout:
            return None
        changed = snapshot.changed_since(self._version)
        return None if changed is None or 4 * len(changed) > len(snapshot) else changed

    def update(
        self, framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, changed: Indices
    ) -> Status:
        """Judge and rate the rows `changed`; afterwards it holds for `snapshot` as it is, unless a plugin failed."""
        state.share(self._state)
        self._version = snapshot.version
        if len(changed):
            diagnosis = Diagnosis(names=snapshot.names)
            status, _ = framework.run_filter(state, pod, snapshot, changed, diagnosis)
            if not status.ok:
                return status
            self.fit.update(changed, diagnosis.refusals)
        return SUCCESS

    def rate(
        self, framework: Framework, state: CycleState, pod: PodInfo, snapshot: Snapshot, changed: Indices
    ) -> tuple[Status, Rated | None]:
        """(Success, the scores) after `update`; two nodes or more must fit."""
        fit = self.fit
        if self._rated is None:
            status, table = framework.run_score(state, pod, snapshot, fit.rows)
            self._rated = Rated(table, len(snapshot)) if status.ok else None
            # What PreScore said, which no earlier cycle had asked: the next pod is rated by the same plugins.
            self._state.share(state)
            return status, self._rated
        rated, changed = self._rated, fit.among(changed)
        if len(changed) or fit.moved:
            status = framework.run_scorers(
                state, lambda plugin: rated.update(plugin, state, pod, snapshot, changed, fit)
            )
            if not status.ok:
                return status, None
            rated.sum_up(changed, fit)
        return SUCCESS, rated

    def not_rated(self) -> None:
        """One node fits and none was rated: the scores of the others are those of an earlier moment."""
        self._rated = None


REUSED: Final = "reused"
"""Only nodes that changed since were judged."""
ANEW: Final = "anew"
"""All nodes were judged, though another pod may be like this one: nothing was kept of it, or too much has changed."""
ALONE: Final = "alone"
"""All nodes were judged, and no other pod is like this one: a plugin looks beyond single nodes."""


def _nobody(_: str) -> None:
    """Without metrics nobody counts."""


class Kept:
    """What was found out about the last few kinds of pods. Belongs to one framework and one snapshot.

    `judged` is told of each cycle how it came by its verdicts: REUSED, ANEW or ALONE.
    """

    def __init__(self, judged: Callable[[str], None] = _nobody) -> None:
        self.judged = judged
        self._found: OrderedDict[Hashable, Found] = OrderedDict()

    def take(self, signature: Hashable) -> Found | None:
        """What was found for a pod of this signature. It is to be kept again once it was of use, and only then."""
        return self._found.pop(signature, None)

    def keep(self, signature: Hashable, found: Found) -> None:
        """Remember it; the kind that was asked for longest ago goes."""
        self._found[signature] = found
        if len(self._found) > _MOST_KINDS:
            self._found.popitem(last=False)


def best_positions(totals: NDArray[np.int64], best: Indices, chosen: int, most: int = SHOWN_NODES) -> Indices:
    """Positions of `most` of the greatest of `totals`, and `chosen`; `best` are those of the greatest one."""
    if len(totals) <= most:
        return np.arange(len(totals))
    first = best[:most] if len(best) >= most else np.argpartition(totals, -most)[-most:]
    return first if chosen in first else np.append(first, chosen)
