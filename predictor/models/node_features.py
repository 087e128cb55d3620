"""What a series' own past says about its next peak, in shares of S, its highest use of the last seven days.

Hours are blocks of slots counted back from the newest one, so "this clock hour on an earlier day" needs no calendar:
with the newest complete hour in row -1, the hour that comes next was in row -24 yesterday. Windows that the history
covers by less than half are NaN; those it covers in part say what there is.
"""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]
Columns = dict[str, Floats32]
"""Name of a feature -> (series,) values."""

WEEK: Final = 168
HOURS: Final = 2 * WEEK
"""How far back features look, in hours."""
DAY: Final = 24

_NEVER: Final = float(HOURS)
_FLOOR: Final = -9.0
_MAXIMA: Final = (1, 2, 3, 6, 12, 24, 48, 72, 120, HOURS)
_MEANS: Final = (1, 3, 6, 12, 24, 72, WEEK, HOURS)
_RISEN: Final = 0.02
"""Share of S above which a rise counts as one, and is not noise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """Hours of a block of series, oldest first, NaN where unknown.

    highest, mean, square  (HOURS, series): highest slot, mean and mean square of the slots of the hour, in shares of S.
    last                   (slots of an hour, series): the newest slots, in shares of S.
    scale                  (series,): S; 1 where nothing was used or known.
    known                  (series,) each: how many are known of the last so many hours.
    """

    highest: Floats32
    mean: Floats32
    square: Floats32
    last: Floats32
    scale: Floats32
    known: dict[int, npt.NDArray[np.int64]]

    def enough(self, values: Floats32, hours: int) -> Floats32:
        """`values`, NaN for series that know less than half of the last `hours`."""
        return np.where(2 * self.known[hours] >= hours, values, np.float32(np.nan))


def past(usage: Floats32, slots_an_hour: int) -> Past:
    """Hours of (slots, series) usage; a part of an hour at the old end is left out."""
    usage = usage[-HOURS * slots_an_hour :]
    hours = len(usage) // slots_an_hour
    usage = usage[len(usage) - hours * slots_an_hour :]
    blocks = usage.reshape(hours, slots_an_hour, usage.shape[1])
    seen = ~np.isnan(blocks)
    if seen.all():
        mean, square = blocks.mean(axis=1), np.einsum("hsn,hsn->hn", blocks, blocks) / np.float32(slots_an_hour)
    else:
        count = seen.sum(axis=1).astype(np.float32)
        count[count == 0] = np.nan
        filled = zeroed(blocks)
        mean, square = filled.sum(axis=1) / count, np.einsum("hsn,hsn->hn", filled, filled) / count
    highest = _padded(np.fmax.reduce(blocks, axis=1))
    scale = np.fmax.reduce(highest[-WEEK:], axis=0)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    finite = np.isfinite(highest)
    known = {hours: np.count_nonzero(finite[-hours:], axis=0) for hours in sorted({*_MAXIMA, *_MEANS})}
    last = np.full((slots_an_hour, usage.shape[1]), np.nan, dtype=np.float32)
    if hours:
        last[:] = usage[-slots_an_hour:] / scale
    square = _padded(square) / (scale * scale)
    return Past(highest / scale, _padded(mean) / scale, square, last, scale, known)


def zeroed(values: Floats32) -> Floats32:
    """Zero in place of what is unknown."""
    return np.where(np.isnan(values), np.float32(0), values)


def _padded(hourly: Floats32) -> Floats32:
    out = np.full((HOURS, hourly.shape[1]), np.nan, dtype=np.float32)
    out[HOURS - len(hourly) :] = hourly
    return out


def node_features(own: Past, horizon_hours: int) -> Columns:
    """All features that need nothing but the series itself; `horizon_hours` is 1 to 24."""
    ahead = sliding_max(own.highest, horizon_hours)
    return {
        **_newest(own),
        **_windows(own),
        **_ranks(own),
        **_rises(own, ahead, horizon_hours),
        **_clock(own, horizon_hours),
        **_lags(own),
        **_days(own),
    }


def shifted(hourly: Floats32, hours: int) -> Floats32:
    """The rows of `hours` ago, NaN before the first."""
    out = np.full_like(hourly, np.nan)
    out[hours:] = hourly[:-hours]
    return out


def sliding_max(hourly: Floats32, hours: int) -> Floats32:
    """Highest of each row and the `hours` - 1 before it."""
    out, span = hourly, 1
    while 2 * span <= hours:
        out = np.fmax(out, shifted(out, span))
        span *= 2
    return np.fmax(out, shifted(out, hours - span)) if span < hours else out


def _mean(rows: Floats32) -> Floats32:
    """Mean of the rows that are known."""
    count = np.isfinite(rows).sum(axis=0).astype(np.float32)
    count[count == 0] = np.nan
    return np.asarray(zeroed(rows).sum(axis=0) / count, dtype=np.float32)


def _newest(own: Past) -> Columns:
    slots = len(own.last)
    half = max(1, slots // 2)
    late, early = _mean(own.last[-half:]), _mean(own.last[:half])
    strayed = own.last - _mean(own.last)
    return {
        "slot_1": own.last[-1],
        "slot_2": own.last[-min(2, slots)],
        "slot_3": own.last[-min(3, slots)],
        "half_mean": late,
        "half_before": early,
        "half_trend": late - early,
        "half_max": np.fmax.reduce(own.last[-half:], axis=0),
        "slots_sd": np.sqrt(_mean(strayed * strayed)),
        "slots_min": np.fmin.reduce(own.last, axis=0),
        "hours_known": own.known[HOURS].astype(np.float32),
    }


def _windows(own: Past) -> Columns:
    out: Columns = {}
    for hours, highest in _up_to(own.highest[::-1], _MAXIMA, np.fmax).items():
        out[f"max_{hours}h"] = own.enough(highest, hours)
    means = _up_to(zeroed(own.mean[::-1]), _MEANS, np.add)
    squares = _up_to(zeroed(own.square[::-1]), _MEANS, np.add)
    for hours in _MEANS:
        count = np.maximum(own.known[hours], 1).astype(np.float32)
        mean = means[hours] / count
        out[f"mean_{hours}h"] = own.enough(mean, hours)
        if hours > 3:
            variance = np.maximum(squares[hours] / count - mean**2, 0)
            out[f"sd_{hours}h"] = own.enough(np.sqrt(variance), hours)
    return out


def _up_to(rows: Floats32, counts: tuple[int, ...], of: np.ufunc) -> dict[int, Floats32]:
    """The first so many rows, row after row, in one: to the last digit as accumulating them, which takes ten times as
    long."""
    if rows.shape[1] == 1:
        # A single column would be added up in another order.
        running = of.accumulate(rows, axis=0)
        return {count: running[count - 1] for count in counts}
    out: dict[int, Floats32] = {}
    so_far, begin = rows[:0], 0
    for count in counts:
        out[count] = of.reduce(np.concatenate([so_far, rows[begin:count]]), axis=0)
        so_far, begin = out[count][None], count
    return out


def _ranks(own: Past) -> Columns:
    """Quantiles of the hourly maxima, and the highest but one, two and four."""
    out: Columns = {}
    for hours, percents in ((DAY, (50, 75, 90)), (WEEK, (10, 50, 75, 90, 95, 98))):
        ranked = _Ranked.of(own.highest[-hours:])
        for percent in percents:
            out[f"hours_p{percent}_{hours}h"] = own.enough(ranked.quantile(percent), hours)
        for rank in (2, 3, 5):
            out[f"hours_top{rank}_{hours}h"] = own.enough(ranked.from_top(rank), hours)
    return out


class _Ranked(NamedTuple):
    """Rows in rising order, NaN last: (series, rows), and how many of each series are known."""

    values: Floats32
    known: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Floats32) -> _Ranked:
        # Side by side in memory they are sorted in half the time.
        values = np.sort(np.ascontiguousarray(rows.T), axis=1)
        return cls(values, np.count_nonzero(np.isfinite(rows), axis=0))

    def quantile(self, percent: float) -> Floats32:
        """The smallest value that `percent` % do not exceed."""
        return self._at(np.ceil(percent / 100 * self.known).astype(np.int64) - 1)

    def from_top(self, rank: int) -> Floats32:
        """The highest, second and so on."""
        return self._at(self.known - rank)

    def _at(self, places: npt.NDArray[np.int64]) -> Floats32:
        series, rows = self.values.shape
        return self.values[np.arange(series), np.clip(places, 0, rows - 1)]


def _rises(own: Past, ahead: Floats32, horizon: int) -> Columns:
    """How far peaks of this horizon rose, hour by hour, above the hour, the three hours and the day before them."""
    out: Columns = {}
    for base, hours_of_base, windows in (
        ("hour", 1, ((WEEK, (50, 75, 90, 95, 98)), (DAY, (75, 90)))),
        ("day", DAY, ((WEEK, (75, 90, 95, 98)), (HOURS, (95, 98)))),
        ("three", 3, ((WEEK, (90, 95, 98)),)),
    ):
        rise = ahead - shifted(sliding_max(own.highest, hours_of_base), horizon)
        for hours, percents in windows:
            for name, values in _spread(rise[-hours:], percents).items():
                out[f"rise_{base}_{name}_{hours}h"] = own.enough(values, hours)
        if base == "hour":
            out["since_rise"] = _since(rise > 0.1)
    return out


def _spread(rise: Floats32, percents: tuple[int, ...]) -> Columns:
    ranked = _Ranked.of(rise)
    count = np.maximum(ranked.known, 1).astype(np.float32)
    upward = np.maximum(zeroed(rise), 0)
    return {
        **{f"p{percent}": ranked.quantile(percent) for percent in percents},
        "top1": ranked.from_top(1),
        "top2": ranked.from_top(2),
        "mean": upward.sum(axis=0) / count,
        "rms": np.sqrt((upward**2).sum(axis=0) / count),
        "share": np.count_nonzero(upward > _RISEN, axis=0) / count,
    }


def _since(happened: npt.NDArray[np.bool_]) -> Floats32:
    """Hours since the last row that is true."""
    back = np.ascontiguousarray(happened[::-1].T)
    return np.where(back.any(axis=1), back.argmax(axis=1), _NEVER).astype(np.float32)


def tops(name: str, rows: Floats32, ranks: tuple[int, ...]) -> Columns:
    """The highest, second and so on of a few rows; NaN where there are fewer."""
    ranked = np.sort(np.where(np.isfinite(rows), rows, np.float32(_FLOOR)), axis=0)
    return {f"{name}_top{rank}": np.where(ranked[-rank] > _FLOOR, ranked[-rank], np.float32(np.nan)) for rank in ranks}


def _clock(own: Past, horizon: int) -> Columns:
    """The same hours of the day on the last 14 days: their peaks, and how far these rose above what went before."""
    highest, day_max = own.highest, sliding_max(own.highest, DAY)
    starts = [HOURS - DAY * days for days in range(1, 15)]
    empty = np.full(highest.shape[1], np.nan, dtype=np.float32)
    peaks = np.array([np.fmax.reduce(highest[at : at + horizon], axis=0) for at in starts])
    rises = peaks - np.array([highest[at - 1] if at else empty for at in starts])
    new = peaks - np.array([day_max[at - 1] if at else empty for at in starts])
    wide = np.array([np.fmax.reduce(highest[max(0, at - 1) : at + horizon + 1], axis=0) for at in starts[:7]])
    later = np.array([np.fmax.reduce(highest[at : at + horizon + 2], axis=0) for at in starts[:7]])
    later = later - np.array([highest[at - 1] for at in starts[:7]])
    count = np.isfinite(peaks[:7]).sum(axis=0).astype(np.float32)
    count[count == 0] = np.nan
    return {
        **{f"clock_{day}d": peaks[day - 1] for day in (1, 2, 7, 14)},
        **{f"clock_rise_{day}d": rises[day - 1] for day in (1, 2, 7)},
        **{f"clock_new_{day}d": new[day - 1] for day in (1, 7)},
        **tops("clock", peaks[:7], (1, 2, 3, 4)),
        **tops("clock_rise", rises[:7], (1, 2, 3, 4)),
        **tops("clock_new", new[:7], (1, 2, 3)),
        **tops("clock_wide", wide, (1, 2, 3)),
        **tops("clock_later", later, (1, 2)),
        **tops("clock_fortnight", peaks, (1, 2, 3)),
        **tops("clock_rise_fortnight", rises, (1, 2, 3)),
        "clock_mean": zeroed(peaks[:7]).sum(axis=0) / count,
        "clock_rise_mean": zeroed(rises[:7]).sum(axis=0) / count,
    }


def _lags(own: Past) -> Columns:
    """Hours a few hours ago, which jobs with other periods than a day repeat, and the time since spikes."""
    highest = own.highest
    out: Columns = {}
    for lag in (2, 3, 4, 6, 8, 12):
        out[f"lag_{lag}h"] = highest[-lag]
        out[f"lag_rise_{lag}h"] = highest[-lag] - highest[-lag - 1]
    for lag in (4, 6, 8, 12):
        out[f"lag_twice_{lag}h"] = np.fmin(out[f"lag_rise_{lag}h"], highest[-2 * lag] - highest[-2 * lag - 1])
    for percent in (50, 75, 90):
        above = highest >= percent / 100
        out[f"since_p{percent}"] = _since(above)
        count = np.maximum(own.known[WEEK], 1)
        out[f"share_p{percent}"] = (np.count_nonzero(above[-WEEK:], axis=0) / count).astype(np.float32)
    return out


def _days(own: Past) -> Columns:
    """Maxima of the last 14 windows of a day."""
    days = np.fmax.reduce(own.highest.reshape(-1, DAY, own.highest.shape[1]), axis=1)[::-1]
    return {
        **tops("day", days[:7], (2, 3, 4, 6)),
        **tops("day_fortnight", days, (1, 2, 3, 5)),
        "day_2d": days[1],
        "day_7d": days[6],
    }
