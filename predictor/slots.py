"""The 5-minute grid that history and models share, and the fleet's recent use on it. No I/O, no clock.

What stands for a slot. Memory: the highest working set. CPU: the 90th percentile of the sample windows' means, which
follows the peak of a machine best (Google's simulator, EuroSys 2021). The highest second does not: one second of full
use in a week would leave nothing to sell, while the agent gives CPU back within a second whenever LS wants it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

SLOT_SECONDS: Final = 300
SLOT_MILLIS: Final = SLOT_SECONDS * 1000

_EMPTY: Final = -1
_FIRST_COLUMNS: Final = 8
_OPEN: Final = 3


def slot_of(end_millis: int) -> int:
    """Number of the slot that a window ending at `end_millis` belongs to, counted from the epoch.

    A window that ends exactly on the edge belongs to the slot before it: that is when its use happened.
    """
    return (end_millis - 1) // SLOT_MILLIS


def percentile_90(values: Iterable[float]) -> float:
    """The smallest of at least one value that 90 % of them do not exceed; of fewer than ten values the highest.

    The same as SQL's quantile_disc: never between two values, so that a first busy window counts in full.
    """
    ranked = sorted(values)
    return ranked[(9 * len(ranked) + 9) // 10 - 1]


class OpenSlots:
    """CPU of one node in the slots that are still being filled, by the end of each window, so that repeats do no harm.

    What stood for a slot before its first window came (read back from the history after a restart) is its least.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[int, float]] = {}
        self._least: dict[int, float] = {}

    def put(self, slot: int, end_millis: int, value: float, standing: float) -> float | None:
        """Add one window's mean; the value of the slot so far, None for a slot that is no longer open.

        `standing` is what stands for the slot now, NaN when nothing does.
        """
        if slot not in self._slots:
            if len(self._slots) == _OPEN and slot < min(self._slots):
                return None
            self._slots[slot] = {}
            self._least[slot] = 0.0 if math.isnan(standing) else standing
            if len(self._slots) > _OPEN:
                oldest = min(self._slots)
                del self._slots[oldest], self._least[oldest]
        self._slots[slot][end_millis] = value
        return max(self._least[slot], percentile_90(self._slots[slot].values()))


class SlotRing:
    """Use per slot of many nodes over the last `slots` slots: one row a slot, one column a node.

    Values are float64 in the unit given; NaN is a gap. Rows are reused as time goes on, so memory is bounded by
    slots x nodes x 8 bytes.
    """

    def __init__(self, slots: int) -> None:
        self._values = np.full((slots, _FIRST_COLUMNS), np.nan)
        self._row_slot = np.full(slots, _EMPTY, dtype=np.int64)
        self._newest = _EMPTY

    def observe(self, column: int, slot: int, value: float) -> None:
        """Raise the maximum of `column` in `slot` to at least `value`; a slot that has left the window is ignored."""
        if not self._open(slot):
            return
        self._grow(column)
        row = slot % len(self._row_slot)
        self._values[row, column] = np.fmax(self._values[row, column], value)

    def get(self, column: int, slot: int) -> float:
        """What stands for `column` in `slot`; NaN is a gap."""
        row = slot % len(self._row_slot)
        if self._row_slot[row] != slot or column >= self._values.shape[1]:
            return float("nan")
        return float(self._values[row, column])

    def put(self, column: int, slot: int, value: float) -> None:
        """Replace what stands for `column` in `slot`; a slot that has left the window is ignored."""
        if self._open(slot):
            self._grow(column)
            self._values[slot % len(self._row_slot), column] = value

    def restore(
        self, columns: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
    ) -> None:
        """Observe many at once: three arrays of one length, NaN values are gaps."""
        if not len(columns):
            return
        for slot in np.unique(slots):
            self._open(int(slot))
        self._grow(int(columns.max()))
        rows = slots % len(self._row_slot)
        kept = self._row_slot[rows] == slots
        np.fmax.at(self._values, (rows[kept], columns[kept]), values[kept])

    def clear(self, column: int) -> None:
        """Make `column` all gaps, for another node to use."""
        if column < self._values.shape[1]:
            self._values[:, column] = np.nan

    def matrix(self, columns: Sequence[int], now_slot: int) -> npt.NDArray[np.float64]:
        """(slots, len(columns)) values up to and including `now_slot`, oldest first, NaN = gap.

        Slots beyond `now_slot` come from nodes whose clock runs ahead; they count as the last row.
        """
        count = len(self._row_slot)
        if columns:
            self._grow(max(columns))
        wanted = np.arange(now_slot - count + 1, now_slot + 1)
        rows = wanted % count
        taken = self._values[np.ix_(rows, np.asarray(columns, dtype=np.int64))]
        taken[self._row_slot[rows] != wanted] = np.nan
        ahead = self._row_slot > now_slot
        if ahead.any():
            early = self._values[np.ix_(ahead, np.asarray(columns, dtype=np.int64))]
            taken[-1] = np.fmax(taken[-1], np.fmax.reduce(early, axis=0))
        return taken

    def _open(self, slot: int) -> bool:
        count = len(self._row_slot)
        if slot <= self._newest - count or slot < 0:
            return False
        row = slot % count
        if self._row_slot[row] != slot:
            self._values[row] = np.nan
            self._row_slot[row] = slot
        self._newest = max(self._newest, slot)
        return True

    def _grow(self, column: int) -> None:
        have = self._values.shape[1]
        if column < have:
            return
        wider = np.full((len(self._row_slot), max(column + 1, 2 * have)), np.nan)
        wider[:, :have] = self._values
        self._values = wider
