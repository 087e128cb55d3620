"""Decaying histogram: a percentile of past use, where use counts half as much for each half-life that it is old.

The form of the Vertical Pod Autoscaler, koordlet and Crane: buckets that grow by 5 %, and the percentile is the *end*
of its bucket, so up to 5 % high. They keep a histogram and add to it; this one is evaluated from the window at hand,
which gives the same number, needs no checkpoint and never differs from what the history holds. Buckets end at 2^(k/14)
in the unit of the usage: fixed ends keep the answer monotone (more use never lowers it), and a power of two scales it
exactly; any other factor does so up to one bucket.

Defaults are Crane's at node level (p99, half-life 24 h, no margin): of the three systems' constants they hand out the
most at equal risk. A percentile of samples is no percentile of peaks, so it states no risk.
Source: VPA recommender, koordlet prediction, Crane percentile predictor.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor.models.base import DAY_SECONDS, Floats, History, Usage
from predictor.models.windows import alike, last_days

DEFAULT_WINDOW_DAYS: Final = 7.0
DEFAULT_HALF_LIFE_SECONDS: Final = DAY_SECONDS
DEFAULT_PERCENTILE: Final = 99.0

BUCKETS_PER_DOUBLING: Final = 14
_LOWEST: Final = 25 * BUCKETS_PER_DOUBLING
"""Buckets below that of the highest use: what is under 2^-25 of it falls into the first one."""
_COLUMNS: Final = 128
"""Series taken at once: a week of their slots stays in the CPU's cache while the bucket is searched."""
_ROUNDING: Final = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """`percentile` of the use of the last `window_days` days, decayed by `half_life_seconds`, plus `margin_percent`."""

    window_days: float = DEFAULT_WINDOW_DAYS
    half_life_seconds: float = DEFAULT_HALF_LIFE_SECONDS
    percentile: float = DEFAULT_PERCENTILE
    margin_percent: float = 0.0
    name: str = "histogram"
    states_risk: bool = False

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:  # noqa: ARG002 - this model looks back only
        """(risks, series) in the unit of the usage; NaN where the window is all gaps."""
        window = last_days(history, self.window_days)
        ages = np.arange(len(window) - 1, -1, -1) * history.slot_seconds
        peak = decayed_percentile(window, np.exp2(-ages / self.half_life_seconds), self.percentile)
        return alike(peak * (1 + self.margin_percent / 100), risks)


def decayed_percentile(usage: Usage, weights: Floats, percentile: float) -> Floats:
    """(series,) end of the bucket below which `percentile` % of the weight of each series lies.

    usage    (slots, series), NaN is a gap.
    weights  (slots,) what each slot counts.
    """
    parts = [
        _search(np.ascontiguousarray(usage[:, first : first + _COLUMNS]), weights, percentile)
        for first in range(0, usage.shape[1], _COLUMNS)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _search(usage: Usage, weights: Floats, percentile: float) -> Floats:
    """Bisect, for all series at once, the lowest bucket end above which no more than the rest of the weight lies."""
    light = weights.astype(np.float32)
    total = light @ ~np.isnan(usage)
    allowed = total * (1 - percentile / 100) + _ROUNDING * total
    highest = np.fmax.reduce(usage, axis=0, initial=np.nan).astype(np.float64)
    with np.errstate(divide="ignore"):
        top = np.ceil(np.log2(highest) * BUCKETS_PER_DOUBLING)
    high = np.where(np.isfinite(top), top, 0.0)
    low = high - _LOWEST
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        fits = light @ (usage > _end(middle)) <= allowed
        high = np.where(fits, middle, high)
        low = np.where(fits, low, middle)
    answer: Floats = np.where(highest > 0, _end(high), highest)
    return answer


def _end(bucket: Floats) -> Floats:
    return np.exp2(bucket / BUCKETS_PER_DOUBLING)


def build(window_days: float = DEFAULT_WINDOW_DAYS) -> Histogram:
    """The model over the last `window_days` days."""
    return Histogram(window_days)
