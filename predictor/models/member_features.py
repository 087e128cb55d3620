"""What the pods behind a series say about its next peak, in shares of S of the series.

A node's peak is made by one to three pods that jump. Each pod is looked at by itself, over its hourly maxima and
means of the last week: how far it is below what it has reached, how often and how far it jumps, whether it jumped at
the hour of the day that comes next, and whether a job of another period is due. Sums and roots of summed squares over
the pods of a series are its features.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import Integers
from predictor.models.node_features import DAY, WEEK, Columns, Floats32, zeroed

_JUMPED: Final = 0.05
_STEPS: Final = (3, 6, 12, 25, 50)
"""Sizes of jumps that are counted, in % of S."""
_LAGS: Final = (2, 3, 4, 6, 8, 12)
_LEAST_HOURS: Final = 12
"""Hours beyond the horizon before jumps are spoken of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pods:
    """Pods of a block of series, sorted by series.

    highest, mean  (hours, pods): of the last week and one hour more, oldest first, in shares of S; 0 where the pod was
                   not there.
    starts         (series with pods,): the first pod of each.
    group          (pods,): number of its series among those with pods.
    columns        (series with pods,): their columns.
    width          series in the block.
    """

    highest: Floats32
    mean: Floats32
    starts: Integers
    group: Integers
    columns: Integers
    width: int

    def spread(self, values: Floats32) -> Floats32:
        """Values of the series with pods as (width,), NaN for the others."""
        out = np.full(self.width, np.nan, dtype=np.float32)
        out[self.columns] = values
        return out

    def sums(self, values: Floats32) -> Floats32:
        """(width,) sums over the pods."""
        return self.spread(np.add.reduceat(values, self.starts))

    def root(self, values: Floats32) -> Floats32:
        """(width,) roots of the summed squares."""
        return self.spread(np.sqrt(np.add.reduceat(values**2, self.starts)))

    def largest(self, name: str, values: Floats32) -> Columns:
        """The largest and the second largest pod."""
        first = np.maximum.reduceat(values, self.starts)
        rest = np.where(values == first[self.group], -np.inf, values)
        second = np.maximum.reduceat(rest, self.starts)
        return {
            f"{name}_1": self.spread(first),
            f"{name}_2": self.spread(np.where(np.isfinite(second), second, 0)),
        }


def pods(highest: Floats32, mean: Floats32, column: Integers, scale: Floats32) -> Pods:
    """Pods of a block: (hours, pods) in the unit of the usage, their columns (sorted), S (series,)."""
    columns, starts, group = np.unique(column, return_index=True, return_inverse=True)
    scales = scale[column]
    recent = slice(-WEEK - 1, None)
    return Pods(
        zeroed(highest[recent]) / scales,
        zeroed(mean[recent]) / scales,
        starts,
        group,
        columns,
        len(scale),
    )


def member_features(own: Pods, horizon: int) -> Columns:
    """All features of the pods; `horizon` in hours, 1 to 24. Those that need a longer history are absent."""
    hours = len(own.highest)
    out = _levels(own)
    if hours > horizon + _LEAST_HOURS:
        jumps = _ahead(own.highest, horizon)[horizon:] - own.highest[:-horizon]
        out |= _jumps(own, jumps)
        if horizon == 1:
            out |= _lagged(own, jumps) | _due(own, jumps)
    days = [day for day in range(1, 8) if hours > DAY * day]
    if days:
        out |= _clock(own, days, horizon)
    return out


def _ahead(highest: Floats32, hours: int) -> Floats32:
    out, span = highest, 1
    while 2 * span <= hours:
        out = np.concatenate([out[:span], np.maximum(out[span:], out[:-span])])
        span *= 2
    rest = hours - span
    return np.concatenate([out[:rest], np.maximum(out[rest:], out[:-rest])]) if rest else out


def _levels(own: Pods) -> Columns:
    """What pods use now and what they have reached."""
    hours = len(own.highest)
    newest, mean = own.highest[-1], own.mean[-1]
    out: Columns = {"pods_max_1h": own.sums(newest), "pods_over_mean": own.sums(newest - mean)}
    for window in (3, DAY, WEEK):
        if 2 * hours < window:
            continue
        top = own.highest[-window:].max(axis=0)
        gap = top - newest
        out[f"pods_max_{window}h"] = own.sums(top)
        out[f"pods_gap_{window}h"] = own.root(gap)
        out[f"pods_gap3_{window}h"] = np.cbrt(own.sums(gap**3))
        out |= own.largest(f"pods_gap_top_{window}h", gap)
    for window in (DAY, WEEK):
        out[f"pods_sd_{window}h"] = np.sqrt(own.sums(own.mean[-window:].var(axis=0)))
    out["pods_mean_24h"] = own.sums(own.mean[-DAY:].mean(axis=0))
    out["pods_concentration"] = _concentration(own, mean)
    out["pods_concentration_168h"] = _concentration(own, own.highest[-WEEK:].max(axis=0))
    for step in _STEPS:
        above = _count(own.highest > newest + np.float32(step / 100))
        out[f"pods_above_{step}"] = own.sums(above / np.float32(hours))
    return out | own.largest("pods_share", mean)


def _count(flags: npt.NDArray[np.bool_]) -> Floats32:
    """(columns,) how many rows are true, of a week of hours at most: counted in bytes, which is ten times as fast."""
    counted: npt.NDArray[np.uint8] = np.add.reduce(flags.view(np.uint8), axis=0, dtype=np.uint8)
    return counted.astype(np.float32)


def _concentration(own: Pods, level: Floats32) -> Floats32:
    total = own.sums(level)
    return np.asarray(own.sums(level * level) / np.maximum(total * total, 1e-9), dtype=np.float32)


def _jumps(own: Pods, jumps: Floats32) -> Columns:
    """How often pods jump and how far: expected jumps of each size, root of the second and third moment."""
    rows = np.float32(len(jumps))
    out: Columns = {}
    for step in _STEPS:
        above = _count(jumps > np.float32(step / 100))
        out[f"pods_jumps_{step}"] = own.sums(above / rows)
    upward = np.maximum(jumps, 0)
    square = upward * upward
    out["pods_jump_mean"] = own.sums(upward.sum(axis=0) / rows)
    out["pods_jump_rms"] = np.sqrt(own.sums(square.sum(axis=0) / rows))
    out["pods_jump_cube"] = np.cbrt(own.sums(np.einsum("tp,tp->p", square, upward) / rows))
    return out | own.largest("pods_jump_top", upward.max(axis=0))


def _clock(own: Pods, days: list[int], horizon: int) -> Columns:
    """What pods did in these hours of the last days: a forecast of each pod by itself."""
    hours, highest = len(own.highest), own.highest
    peaks = np.array([highest[hours - DAY * day :][:horizon].max(axis=0) for day in days])
    rises = np.maximum(peaks - np.array([highest[hours - DAY * day - 1] for day in days]), 0)
    gaps = np.maximum(peaks - highest[-1], 0)
    by_gap, by_rise = np.sort(gaps, axis=0), np.sort(rises, axis=0)
    second, third = max(-2, -len(days)), max(-3, -len(days))
    day_gaps = np.array([own.sums(row) for row in gaps])
    day_rises = np.array([own.sums(row) for row in rises])
    both = np.minimum(gaps, rises).max(axis=0)
    out: Columns = {
        "pods_clock_mean": own.sums(peaks.mean(axis=0)),
        "pods_clock_max": own.sums(peaks.max(axis=0)),
        "pods_clock_both": own.sums(both),
        "pods_clock_gap_median": own.sums(np.median(gaps, axis=0)),
        "pods_clock_gap_root": own.root(by_gap[-1]),
        "pods_clock_rise_root": own.root(by_rise[-1]),
        "pods_clock_gap_day": day_gaps.max(axis=0),
        "pods_clock_rise_day": day_rises.max(axis=0),
        "pods_clock_jumped": own.sums((by_rise[-1] > _JUMPED).astype(np.float32)),
        "pods_clock_jumped_twice": own.sums((by_rise[second] > _JUMPED).astype(np.float32)),
    }
    for rank, row in ((1, -1), (2, second), (3, third)):
        out[f"pods_clock_gap_{rank}"] = own.sums(by_gap[row])
        out[f"pods_clock_rise_{rank}"] = own.sums(by_rise[row])
    for day in (1, 7):
        if day in days:
            out[f"pods_clock_gap_{day}d"] = day_gaps[day - 1]
            out[f"pods_clock_rise_{day}d"] = day_rises[day - 1]
    return out | own.largest("pods_clock_both", both) | own.largest("pods_clock_twice", by_rise[second])


def _lagged(own: Pods, jumps: Floats32) -> Columns:
    """Jumps that pods made a few hours ago, and those they made at that lag and at twice the lag."""
    out: Columns = {}
    for lag in _LAGS:
        once = np.maximum(jumps[-lag], 0)
        out[f"pods_lag_{lag}h"] = own.sums(once)
        if len(jumps) >= 2 * lag:
            out[f"pods_lag_twice_{lag}h"] = own.sums(np.minimum(once, np.maximum(jumps[-2 * lag], 0)))
    return out


def _due(own: Pods, jumps: Floats32) -> Columns:
    """Jumps that come again now, were the last two or three of a pod of one period, whatever that is."""
    back = jumps[::-1]
    places = np.arange(back.shape[1])
    # The hours of a pod side by side: that is how its first jump is found fast.
    jumped = np.ascontiguousarray((back > np.maximum(np.float32(0.02), np.float32(0.3) * back.max(axis=0))).T)
    ages, found = [], []
    for _ in range(3):
        age = jumped.argmax(axis=1)
        ages.append(age)
        found.append(jumped[places, age])
        jumped[places, age] = False
    size = np.where(found[0], back[ages[0], places], 0)
    next_age = ages[0] + 1
    once = found[1] & (ages[1] - ages[0] == next_age)
    twice = found[2] & (ages[2] - ages[0] == next_age)
    fresh = size / next_age.astype(np.float32)
    return {
        "pods_due": own.sums(np.where(once, size, 0)),
        "pods_due_third": own.sums(np.where(once | twice, size, 0)),
        "pods_jump_fresh": own.spread(np.maximum.reduceat(fresh, own.starts)),
    }
