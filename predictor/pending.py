"""Forecasts whose outcome is not known yet, and the outcome once it is. No I/O, no clock."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.confidence import highest
from predictor.models.base import Floats, History, Integers

EXACT: Final = 1e-6
"""Answers are kept as float32: a peak above one by less than this share is a rounding, not a violation."""
_MOST_GAPS: Final = 0.1
"""A node with a larger share of gaps in the horizon cannot be judged: its peak may lie in one."""

Single = npt.NDArray[np.float32]


@dataclasses.dataclass(slots=True)
class Decision:
    """What was said at one moment, (nodes,) or (candidates, nodes) each, in rows of the roster.

    raw      what each candidate answered, slow to fall; NaN for none.
    shadow   the same, calibrated: what would be published if it were the champion.
    peak     what was published.
    limit    requests, NaN where they are not known.
    over     whether the use has been above `peak` since.
    groups   index of the group of each.
    """

    at: float
    rows: Integers
    scale: Single
    groups: Integers
    raw: Single
    shadow: Single
    peak: Single
    limit: Single
    over: npt.NDArray[np.bool_]

    def watch(self, history: History, columns: Integers, since: float) -> None:
        """Look at the slots after `since` and after the decision: which nodes are above what was published."""
        rows = rows_after(history, max(since, self.at))
        there = columns[self.rows]
        if rows == 0 or not len(there):
            return
        seen = highest(history.usage[-rows:])[there]
        self.over |= (there >= 0) & (seen > self.peak * (1.0 + EXACT))

    def outcome(self, history: History, columns: Integers, horizon_seconds: float) -> Floats | None:
        """(nodes,) highest use within the horizon, NaN for nodes that cannot be judged.

        None when it is too late: the history no longer holds the horizon. Only to be asked for once it is complete.
        """
        slots = max(1, round(horizon_seconds / history.slot_seconds))
        late = rows_after(history, self.at + horizon_seconds)
        end = len(history.usage) - late
        if end < slots:
            return None
        window = history.usage[end - slots : end]
        gaps = np.isnan(window).sum(axis=0)
        peak = np.where(gaps <= _MOST_GAPS * slots, highest(window), np.nan)
        there = columns[self.rows]
        return np.where(there >= 0, peak[there], np.nan) if len(peak) else np.full(len(there), np.nan)

    def moved(self, where: Integers) -> Decision:
        """The same after rows of the roster moved; nodes that are gone are left out."""
        kept = where[self.rows] >= 0
        return Decision(
            self.at,
            where[self.rows[kept]],
            self.scale[kept],
            self.groups[kept],
            self.raw[:, kept],
            self.shadow[:, kept],
            self.peak[kept],
            self.limit[kept],
            self.over[kept],
        )


def rows_after(history: History, moment: float) -> int:
    """How many of the newest rows lie after `moment`, all of the history at most."""
    return min(len(history.usage), max(0, round((history.at - moment) / history.slot_seconds)))
