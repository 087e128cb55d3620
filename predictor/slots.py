"""The 5-minute grid that history and models share, and arrays of recent values on such a grid. No I/O, no clock.

What stands for a slot. Memory: the highest working set. CPU: the 90th percentile of the sample windows' means, which
follows the peak of a machine best (Google's simulator, EuroSys 2021). The highest second does not: one second of full
use in a week would leave nothing to sell, while the agent gives CPU back within a second whenever LS wants it.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

SLOT_SECONDS: Final = 300
SLOT_MILLIS: Final = SLOT_SECONDS * 1000
SLOTS_PER_HOUR: Final = 3600 // SLOT_SECONDS

Floats32 = npt.NDArray[np.float32]

_OPEN: Final = 3
_SPARE_ROWS: Final = 4
"""Rows that a window may reach beyond the moment it is looked at: nodes whose clock runs ahead, the open slot."""

_FIRST_COLUMNS: Final = 8
_LEAST_GROWTH: Final = 64


def slot_of(end_millis: int) -> int:
    """Number of the slot that a window ending at `end_millis` belongs to, counted from the epoch.

    A window that ends exactly on the edge belongs to the slot before it: that is when its use happened.
    """
    return (end_millis - 1) // SLOT_MILLIS


def percentile_90(values: Iterable[float]) -> float:
    """The smallest of at least one value that 90 % of them do not exceed; of fewer than ten values the highest.

    The same as SQL's quantile_disc: never between two values, so that a first busy window counts in full.
    """
    return _ranked_90(sorted(values))


def _ranked_90(ranked: Sequence[float]) -> float:
    return ranked[(9 * len(ranked) + 9) // 10 - 1]


class _Windows:
    """The windows of one slot: their ends for telling repeats, their values in rising order."""

    __slots__ = ("ends", "least", "ranked")

    def __init__(self, standing: float) -> None:
        self.ends = array("q")
        self.ranked = array("d")
        self.least = 0.0 if math.isnan(standing) else standing

    def put(self, end_millis: int, value: float) -> float:
        newest = not self.ends or end_millis > self.ends[-1]
        if newest or end_millis not in self.ends:
            if newest:
                self.ends.append(end_millis)
            else:
                bisect.insort(self.ends, end_millis)
            bisect.insort(self.ranked, value)
        return max(self.least, _ranked_90(self.ranked))


class OpenSlots:
    """CPU of one node in the slots that are still being filled, by the end of each window, so that repeats do no harm.

    What stood for a slot before its first window came (read back from the history after a restart) is its least.
    Beside the newest slots one older slot may be open: a spool that is replayed brings old slots one after another.
    """

    __slots__ = ("_late", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, _Windows] = {}
        self._late: tuple[int, _Windows] | None = None

    def put(self, slot: int, end_millis: int, value: float, standing: float) -> float:
        """Add one window's mean; the value of the slot so far.

        `standing` is what stands for the slot now, NaN when nothing does.
        """
        windows = self._slots.get(slot)
        if windows is None:
            windows = self._open(slot, standing)
        return windows.put(end_millis, value)

    def _open(self, slot: int, standing: float) -> _Windows:
        if len(self._slots) == _OPEN and slot < min(self._slots):
            if self._late is None or self._late[0] != slot:
                self._late = slot, _Windows(standing)
            return self._late[1]
        opened = self._slots[slot] = _Windows(standing)
        if len(self._slots) > _OPEN:
            del self._slots[min(self._slots)]
        return opened


class Rows:
    """One row a slot (or an hour), one column a series, over the last `window` rows. float32, NaN is a gap.

    The rows lie in one block in order, so a span of them is a view that costs nothing. When the block is full a new
    one is made `slack` rows further on; views of the old block stay what they were. Memory is bounded by
    (window + slack) x columns x 4 bytes, twice that for the moment of a move.
    """

    def __init__(self, window: int, slack: int) -> None:
        self._window = window
        self._slack = slack
        self._values: Floats32 = np.full((window + _SPARE_ROWS + slack, _FIRST_COLUMNS), np.nan, dtype=np.float32)
        self._base: int | None = None
        self._newest = 0
        self._oldest = 0

    def get(self, column: int, number: int) -> float:
        """What stands for `column` in row `number`; NaN is a gap."""
        if self._base is None or not self._base <= number <= self._newest or column >= self._values.shape[1]:
            return math.nan
        return float(self._values[number - self._base, column])

    def put(self, column: int, number: int, value: float) -> None:
        """Replace what stands for `column` in row `number`; a row that has left the window is ignored."""
        if self.reach(number):
            self.grow(column + 1)
            self._values[number - self._first(), column] = value

    def observe(self, column: int, number: int, value: float) -> None:
        """Raise `column` in row `number` to at least `value`; a row that has left the window is ignored."""
        # `not >=` is true for a gap as well.
        if not self.get(column, number) >= value:
            self.put(column, number, value)

    def put_many(self, columns: npt.NDArray[np.int64], number: int, values: npt.NDArray[np.floating]) -> bool:
        """Replace many columns of one row; NaN leaves what stands. False when the row has left the window."""
        if not self.reach(number):
            return False
        if len(columns):
            self.grow(int(columns.max()) + 1)
            known = ~np.isnan(values)
            self._values[number - self._first(), columns[known]] = values[known]
        return True

    def row(self, columns: npt.NDArray[np.int64], number: int) -> Floats32:
        """A copy of many columns of one row."""
        if not len(columns) or self._base is None or not self._base <= number <= self._newest:
            return np.full(len(columns), np.nan, dtype=np.float32)
        self.grow(int(columns.max()) + 1)
        found: Floats32 = self._values[number - self._base, columns]
        return found

    def columns(self, columns: npt.NDArray[np.int64]) -> Floats32:
        """A copy of all rows of some columns."""
        self.grow(int(columns.max(initial=-1)) + 1)
        return self._values[: self._newest - self._first() + 1, columns]

    def fill(self, column: int, other: int) -> None:
        """Give `column` what `other` has wherever it has a gap."""
        self.grow(max(column, other) + 1)
        mine, theirs = self._values[:, column], self._values[:, other]
        np.copyto(mine, theirs, where=np.isnan(mine))

    def observe_at(
        self, columns: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], values: npt.NDArray[np.floating]
    ) -> None:
        """Observe many at once: three arrays of one length, NaN values are gaps."""
        if not len(columns):
            return
        newest = int(numbers.max())
        if not self.reach(newest):
            return
        self.reach(max(int(numbers.min()), newest - self._window + 1))
        self.grow(int(columns.max()) + 1)
        kept = numbers >= self._first()
        if not kept.all():
            numbers, columns, values = numbers[kept], columns[kept], values[kept]
        # A restart puts a hundred million values here, and hardly ever two into one cell.
        cells = (numbers - self._first()) * self._values.shape[1] + columns
        flat = self._values.reshape(-1)
        raised = np.fmax(flat[cells], values.astype(np.float32))
        flat[cells] = raised
        if (~(flat[cells] >= raised) & ~np.isnan(raised)).any():
            np.fmax.at(flat, cells, raised)

    def add(self, column: int, first: int, values: npt.NDArray[np.floating]) -> None:
        """Add `values` to the rows of `column` from row `first` on, never below 0; gaps on either side stay."""
        if self._base is None or column >= self._values.shape[1]:
            return
        start, stop = max(first, self._base), min(first + len(values), self._newest + 1)
        if start >= stop:
            return
        target = self._values[start - self._base : stop - self._base, column]
        change = np.nan_to_num(values[start - first : stop - first], nan=0.0)
        np.maximum(target + change, 0.0, out=target, where=~np.isnan(target))

    def span(self, last: int, columns: int, rows: int | None = None) -> Floats32:
        """A view: the rows up to `last`, oldest first, at most a window (or `rows`) of them, at least one."""
        self.reach(last)
        self.grow(columns)
        base = self._first()
        first = max(last - (rows or self._window) + 1, base, min(self._oldest, last))
        return self._values[first - base : last - base + 1, :columns]

    def beyond(self, last: int, columns: int) -> Floats32:
        """A view of the rows after `last`; there may be none."""
        self.grow(columns)
        base = self._first()
        return self._values[max(0, last + 1 - base) : self._newest - base + 1, :columns]

    def history(self, column: int) -> tuple[int, Floats32]:
        """Number of the oldest row and all values of one column."""
        self.grow(column + 1)
        base = self._first()
        return base, self._values[: self._newest - base + 1, column]

    def clear(self, column: int) -> None:
        """Make `column` all gaps."""
        if column < self._values.shape[1]:
            self._values[:, column] = np.nan

    def keep(self, columns: npt.NDArray[np.int64]) -> None:
        """Keep these columns only, in this order; views taken before stay what they were."""
        self.grow(int(columns.max(initial=-1)) + 1)
        self._values = np.take(self._values, columns, axis=1)

    def reach(self, number: int) -> bool:
        """Make room for row `number`; False when it has left the window."""
        if self._base is None:
            self._base = number - self._window + 1 - _SPARE_ROWS
            self._newest = self._oldest = number
        if number <= self._newest - self._window or number < 0:
            return False
        self._oldest = min(self._oldest, number)
        if number > self._newest:
            if number - self._base >= len(self._values):
                self._move(number)
            self._newest = number
        return True

    def grow(self, columns: int) -> None:
        """Make room for so many columns."""
        have = self._values.shape[1]
        if columns <= have:
            return
        # An eighth at a time: doubling would leave half of hundreds of megabytes unused.
        wider = np.empty((len(self._values), max(columns, have + max(_LEAST_GROWTH, have // 8))), dtype=np.float32)
        wider[:, :have] = self._values
        wider[:, have:] = np.nan
        self._values = wider

    def _first(self) -> int:
        return 0 if self._base is None else self._base

    def _move(self, newest: int) -> None:
        base = newest - self._window + 1 - _SPARE_ROWS
        moved = np.full_like(self._values, np.nan)
        kept = self._values[base - self._first() :]
        moved[: len(kept)] = kept
        self._values, self._base = moved, base
