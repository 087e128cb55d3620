"""The 5-minute grid that history and models share, and the fleet's recent use on it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

SLOT_SECONDS: Final = 300
SLOT_MILLIS: Final = SLOT_SECONDS * 1000

_EMPTY: Final = -1
_FIRST_COLUMNS: Final = 8


def slot_of(end_millis: int) -> int:
    """Number of the slot that a window ending at `end_millis` belongs to, counted from the epoch.

    A window that ends exactly on the edge belongs to the slot before it: that is when its use happened.
    """
    return (end_millis - 1) // SLOT_MILLIS


class SlotRing:
    """Highest use per slot of many nodes over the last `slots` slots: one row a slot, one column a node.

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
        """(slots, len(columns)) maxima up to and including `now_slot`, oldest first, NaN = gap.

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
