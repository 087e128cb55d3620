"""Cuts of a history that several models take: the last days, and blocks of an hour. All look back from the last row."""

from __future__ import annotations

import numpy as np

from predictor.models.base import DAY_SECONDS, HOUR_SECONDS, Floats, History, Usage


def last_days(history: History, days: float) -> Usage:
    """(slots, series) use of the last `days` days, at least one slot, at most what there is; a view, no copy."""
    slots = max(1, int(np.ceil(days * DAY_SECONDS / history.slot_seconds)))
    return history.usage[-slots:]


def hour_slots(slot_seconds: float) -> int:
    """Slots in an hour; 1 where a slot is longer than that."""
    return max(1, round(HOUR_SECONDS / slot_seconds))


def hourly_maxima(usage: Usage, per_hour: int) -> Floats:
    """(hours, series) highest use of each block of `per_hour` slots, oldest first; the last block ends at the last row.

    Slots at the old end that fill no block are left out. NaN where a block is all gaps.
    """
    hours = len(usage) // per_hour
    blocks = usage[len(usage) - hours * per_hour :].reshape(hours, per_hour, usage.shape[1])
    highest: Floats = np.fmax.reduce(blocks, axis=1, initial=np.nan).astype(np.float64)
    return highest


def alike(peak: Usage, risks: Floats) -> Floats:
    """(risks, series) the same peaks for each risk: the answer of a model that states none."""
    answer: Floats = np.broadcast_to(peak, (len(risks), len(peak))).astype(np.float64)
    return answer


def percentile(values: Usage, share: float) -> Floats:
    """(columns,) the value that `share` of each column does not exceed, linear between ranks; gaps are left out.

    NaN where a column is all gaps. As numpy.nanpercentile, but without its loop over columns.
    """
    if not len(values):
        return np.full(values.shape[1], np.nan)
    ranked = np.sort(values.T, axis=1)
    last = np.count_nonzero(~np.isnan(ranked), axis=1) - 1
    rank = np.maximum(last, 0) * share
    low = np.floor(rank).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(last, 0))
    column = np.arange(len(ranked))
    at_low = ranked[column, low].astype(np.float64)
    answer: Floats = at_low + (ranked[column, high] - at_low) * (rank - low)
    return answer
