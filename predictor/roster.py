"""What is remembered of each node between forecasts: one row a node, by name. No I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.confidence import measured_seconds
from predictor.drift import Exceptions
from predictor.models.base import DAY_SECONDS, Floats, History, Integers

FORGET_SECONDS: Final = 7 * DAY_SECONDS
"""A node that has not been asked for in so long is forgotten."""


class Roster:
    """Rows of nodes. Nodes come and go; a row stays its node's until the node is forgotten.

    before    (candidates + 1, rows) float64: what each candidate's answer had come to, slow to fall, and last
              what was published; NaN for none.
    measured  (rows,) float32: seconds of use that the node had at the last count.
    risen     (rows,) float64: when its level last rose above anything seen, -inf for never.
    seen      (rows,) float64: when it was last forecast, -inf for never.
    """

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._row_of: dict[str, int] = {}
        self.before = np.full((candidates + 1, 0), np.nan)
        self.measured = np.zeros(0, dtype=np.float32)
        self.risen = np.zeros(0)
        self.seen = np.zeros(0)
        self.exceptions = Exceptions.none(0)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each row."""
        return tuple(self._row_of)

    def __len__(self) -> int:
        return len(self._row_of)

    def rows(self, names: Sequence[str], history: History, *, recount: bool) -> Integers:
        """(names,) row of each, made where it is new. `recount` measures all of them again, not the new ones alone."""
        first_new = len(self)
        for name in names:
            self._row_of.setdefault(name, len(self._row_of))
        rows = np.fromiter((self._row_of[name] for name in names), dtype=np.int64, count=len(names))
        self._grow(len(self) - first_new)
        counted = np.arange(len(names)) if recount else np.flatnonzero(rows >= first_new)
        if len(counted):
            columns = slice(None) if recount else counted
            self.measured[rows[counted]] = measured_seconds(history, columns)
        return rows

    def columns(self, names_rows: Integers) -> Integers:
        """(rows,) column of each row among the series whose rows are given, -1 for nodes that are not there."""
        answer = np.full(len(self), -1, dtype=np.int64)
        answer[names_rows] = np.arange(len(names_rows))
        return answer

    def forget(self, at: float) -> Integers | None:
        """Drop nodes not seen for long; (old rows,) new row of each, -1 for the dropped; None when all stay."""
        stay = self.seen > at - FORGET_SECONDS
        if stay.all():
            return None
        moved = np.where(stay, np.cumsum(stay) - 1, -1)
        self.restore(
            [name for name, kept in zip(self._row_of, stay, strict=True) if kept],
            self.before[:, stay],
            self.measured[stay],
            np.vstack([self.risen[stay], self.seen[stay]]),
            np.vstack([self.exceptions.decisions, self.exceptions.violations, self.exceptions.extra])[:, stay],
        )
        return moved

    def restore(
        self,
        names: Sequence[str],
        before: Floats,
        measured: npt.NDArray[np.float32],
        times: Floats,
        exceptions: npt.NDArray[np.float32],
    ) -> None:
        """Take over what was remembered. Raises ValueError when the shapes do not fit one another."""
        count = len(names)
        wanted = ((self._candidates + 1, count), (count,), (2, count), (3, count))
        if len(set(names)) != count or (before.shape, measured.shape, times.shape, exceptions.shape) != wanted:
            raise ValueError(f"what is remembered of {count} nodes does not fit together")
        self._row_of = {name: row for row, name in enumerate(names)}
        self.before, self.measured = before.copy(), measured.copy()
        self.risen, self.seen = times[0].copy(), times[1].copy()
        self.exceptions = Exceptions(*(row.copy() for row in exceptions))

    def _grow(self, more: int) -> None:
        if more <= 0:
            return
        self.before = np.hstack([self.before, np.full((self._candidates + 1, more), np.nan)])
        self.measured = np.append(self.measured, np.zeros(more, dtype=np.float32))
        self.risen = np.append(self.risen, np.full(more, -math.inf))
        self.seen = np.append(self.seen, np.full(more, -math.inf))
        new, old = Exceptions.none(more), self.exceptions
        self.exceptions = Exceptions(
            np.append(old.decisions, new.decisions),
            np.append(old.violations, new.violations),
            np.append(old.extra, new.extra),
        )
