"""LSTM: a small recurrent network that reads the last day hour by hour and says quantiles of the next peak.

Each step is one hour of a node: its maximum and mean, whether it was measured, and the maximum of the hour after it
one day earlier. What the network remembers at the end goes, with what a day does not show (the same hours on each of
the last seven days, maxima, means and spreads up to a week), through one dense layer to the quantiles. Everything is
in shares of S, the highest use of the last seven days. Fitted with the pinball loss at all of its risks at once on
pooled nodes of public traces (predictor.training.lstm, which needs the extra `lstm`); evaluated here in numpy, which
needs nothing. Weights exist for 1 h and 24 h; other horizons take the next longer, longer ones ask each day at its
part of the risk. How it compares is in docs/forecasting.md.

Cost: about 0.1 ms a series. Source: Hochreiter and Schmidhuber 1997 for the cell; quantile outputs as in Wen et al.,
"A Multi-Horizon Quantile Recurrent Forecaster" (2017).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.models.base import Floats, History, Usage
from predictor.models.levels import at_risks
from predictor.models.weights import fitted_hours, load
from predictor.models.windows import hour_slots, hourly_maxima

Single = npt.NDArray[np.float32]

STEPS: Final = 24
DAY: Final = 24
LEAST_HOURS: Final = 3
_DAYS: Final = 7
_WINDOWS: Final = (3, 6, 12, 24, 72)
_SPANS: Final = (24, 72, 168)
_DAY_RANKS: Final = (1, 2, 3)
_COLUMNS: Final = 2048
"""Series taken at once, so that a fleet's states need little memory."""

CHANNELS: Final = ("hour_max", "hour_mean", "measured", "next_hour_yesterday")
FIXED: Final = (
    "last_hour",
    "last_slot",
    "last_slots_mean",
    *(f"max_{hours}h" for hours in _WINDOWS),
    *(f"mean_{hours}h" for hours in _SPANS),
    *(f"deviation_{hours}h" for hours in _SPANS),
    *(f"same_hours_{day}d" for day in range(1, _DAYS + 1)),
    *(f"day_rank_{rank}" for rank in _DAY_RANKS),
    "days_known",
    "hours_known",
)
NAMES: Final = (*CHANNELS, *FIXED)


class Inputs(NamedTuple):
    """What the network reads.

    scale     (series,) S; 0 where all use was 0, NaN where nothing was measured in seven days.
    sequence  (STEPS, series, CHANNELS) oldest first; zeros where an hour is a gap.
    fixed     (series, FIXED).
    """

    scale: Floats
    sequence: Single
    fixed: Single


@dataclasses.dataclass(frozen=True, slots=True)
class Lstm:
    """The network with the shipped weights."""

    name: str = "lstm"
    states_risk: bool = True

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """(risks, series) peaks in the unit of the usage; NaN with under three measured hours in the last day."""
        hours = fitted_hours(horizon_seconds)
        stored = load(self.name, hours, NAMES)
        parts = []
        for first in range(0, history.usage.shape[1], _COLUMNS):
            seen = dataclasses.replace(history, usage=history.usage[:, first : first + _COLUMNS])
            given = inputs(seen, hours)
            shares = forward(stored, given.sequence, given.fixed).astype(np.float64).T
            shares[:, given.sequence[:, :, 2].sum(axis=0) < LEAST_HOURS] = np.nan
            parts.append(np.maximum(at_risks(stored["risks"], shares, risks, horizon_seconds), 0.0) * given.scale)
        return np.concatenate(parts, axis=1) if parts else np.empty((len(risks), 0))


def forward(weights: Mapping[str, npt.NDArray[Any]], sequence: Single, fixed: Single) -> Single:
    """(series, risks) shares of S, falling as the risk rises."""
    size = weights["recurrent"].shape[0]
    state = np.zeros((sequence.shape[1], size), dtype=np.float32)
    cell = np.zeros_like(state)
    for step in sequence:
        gates = step @ weights["input"] + state @ weights["recurrent"] + weights["gate_bias"]
        taken, kept, shown = np.split(_sigmoid(gates[:, : 3 * size]), 3, axis=1)
        cell = kept * cell + taken * np.tanh(gates[:, 3 * size :])
        state = shown * np.tanh(cell)
    hidden = np.tanh(np.concatenate([state, fixed], axis=1) @ weights["dense"] + weights["dense_bias"])
    out = hidden @ weights["out"] + weights["out_bias"]
    rises = np.logaddexp(out[:, :-1], np.float32(0))
    highest_risk = fixed[:, :1] + out[:, -1:]
    answer: Single = np.concatenate([highest_risk + np.cumsum(rises[:, ::-1], axis=1)[:, ::-1], highest_risk], axis=1)
    return answer


def _sigmoid(values: Single) -> Single:
    half: Single = np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1))
    return half


def inputs(history: History, horizon_hours: int) -> Inputs:
    """What the network reads of the last eight days of a history."""
    per_hour = hour_slots(history.slot_seconds)
    usage = history.usage[-(_DAYS + 1) * DAY * per_hour :]
    highest = hourly_maxima(usage, per_hour)
    hours = _padded(highest, (_DAYS + 1) * DAY)
    means = _padded(_hourly_means(usage[-STEPS * per_hour :], per_hour), STEPS)
    week = hours[-_DAYS * DAY :]
    scale = np.fmax.reduce(np.concatenate([week, usage[-1:]]), axis=0, initial=np.nan)
    with np.errstate(invalid="ignore"):
        size = np.where(scale > 0, scale, 1.0)
    return Inputs(scale, _sequence(hours / size, means / size), _fixed(hours / size, usage / size, horizon_hours))


def _sequence(hours: Floats, means: Floats) -> Single:
    now = hours[-STEPS:]
    yesterday = hours[-STEPS - DAY + 1 :][:STEPS]
    measured = ~np.isnan(now)
    later = np.where(np.isnan(yesterday), now, yesterday)
    steps: Single = np.nan_to_num(np.stack([now, means, measured, later], axis=2)).astype(np.float32)
    return steps


def _fixed(hours: Floats, usage: Usage, horizon: int) -> Single:
    """See FIXED. What is not known is what is nearest to it: an hour's maximum the day's, a mean the shorter one."""
    last_hour = np.where(np.isnan(hours[-1]), np.fmax.reduce(hours[-LEAST_HOURS:], axis=0), hours[-1])
    peaks = [np.fmax.reduce(hours[-span:], axis=0, initial=np.nan) for span in _WINDOWS]
    spans = [_moments(hours[-span:]) for span in _SPANS]
    same, known = _same_hours(hours, horizon)
    same = np.where(known, same, peaks[_WINDOWS.index(DAY)])
    days = np.sort(np.nan_to_num(np.fmax.reduce(hours[-_DAYS * DAY :].reshape(_DAYS, DAY, -1), axis=1)), axis=0)
    columns = [
        last_hour,
        np.where(np.isnan(usage[-1]), last_hour, usage[-1]) if len(usage) else last_hour,
        _moments(usage[-LEAST_HOURS:])[0],
        *peaks,
        *(mean for mean, _ in spans),
        *(deviation for _, deviation in spans),
        *same,
        *(days[-rank] for rank in _DAY_RANKS),
        known.mean(axis=0),
        np.log1p(np.count_nonzero(~np.isnan(hours), axis=0)) / np.log1p(len(hours)),
    ]
    table: Single = np.nan_to_num(np.stack(columns, axis=1)).astype(np.float32)
    return table


def _same_hours(hours: Floats, horizon: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(days, series) highest of the horizon's hours one to seven days before, and whether any of them was measured."""
    rows = len(hours)
    same = np.stack(
        [np.fmax.reduce(hours[rows - day * DAY :][:horizon], axis=0, initial=np.nan) for day in range(1, _DAYS + 1)]
    )
    return same, ~np.isnan(same)


def _moments(values: Usage) -> tuple[Floats, Floats]:
    """(series,) mean and standard deviation without the gaps; NaN where all are."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        count = known.sum(axis=0)
        mean = np.where(known, values, 0.0).sum(axis=0, dtype=np.float64) / count
        square = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0, dtype=np.float64) / count
    return mean, np.sqrt(square)


def _hourly_means(usage: Usage, per_hour: int) -> Floats:
    hours = len(usage) // per_hour
    blocks = usage[len(usage) - hours * per_hour :].reshape(hours, per_hour, usage.shape[1])
    known = ~np.isnan(blocks)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known, blocks, 0.0).sum(axis=1, dtype=np.float64) / known.sum(axis=1)
    return mean


def _padded(hours: Floats, rows: int) -> Floats:
    """The last `rows` rows, gaps before the first."""
    missing = np.full((max(0, rows - len(hours)), hours.shape[1]), np.nan)
    return np.concatenate([missing, hours[-rows:]])


def build(window_days: float = 0.0) -> Lstm:  # noqa: ARG001 - how far back it looks was fixed when it was fitted
    """The model; it looks back eight days whatever the window."""
    return Lstm()
