"""What others do, as models: the formulas of overcommit.md, sections 2.3 and 5, beside the product's own models.

Each is called by its name in NAMES, with the contract of predictor.models.base. Some need each series' use in every
slot, which a History does not hold, so all are made for one replay and find their place in it by the history's end.
They are re-implementations from published formulas with the constants of the systems they are named after; none
states a risk. Cold rules (a pod younger than a day counts with its request) are left out, as in those tables.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.backtest.replay import Replay
from predictor.models.base import HOUR_SECONDS, Floats, History, Model
from predictor.models.histogram import decayed_percentile
from predictor.models.holt_winters import peaks_after, upper_quantile
from predictor.models.windows import alike, hourly_maxima, percentile
from slacktide.errors import SlacktideError

DAY: Final = 24.0
"""Windows are in hours."""
_CONFORMAL_RISK: Final = 0.01
_DSP_MARGINS: Final = (1.01, 1.10, 1.15, 1.20)
_DSP_SPECTRUM: Final = (3, 50)
_DSP_DAYS: Final = 15
_TINY: Final = 1e-3

Formula = Callable[["Past", History, int], Floats]
"""What is known of the replay, the history at hand and the slots of the horizon to (series,) peaks."""


class Past:
    """A replay up to some slot. Series that stand on several nodes are worked out once."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        codes = [hash(column.tobytes()) for column in np.ascontiguousarray(replay.members.T)]
        _, self._first, self._place = np.unique(codes, return_index=True, return_inverse=True)
        self._series = np.ascontiguousarray(replay.members[:, self._first])
        self._slot = -1

    def at(self, history: History) -> Past:
        """The same, as of the history's last slot."""
        self._slot = round((history.at - self._replay.at0) / self._replay.slot_seconds) - 1
        return self

    def slots(self, hours: float) -> int:
        """Slots in that many hours."""
        return self._replay.slots_of(hours * HOUR_SECONDS)

    def nodes(self, hours: float) -> Floats:
        """(slots, nodes) use of the last hours."""
        return _last(self._replay.usage, self._slot, self.slots(hours))

    def series(self, hours: float) -> Floats:
        """(slots, distinct series) use of the last hours."""
        return _last(self._series, self._slot, self.slots(hours))

    def summed(self, values: Floats) -> Floats:
        """(nodes,) sum over each node's series of a value of each distinct series; a series without one adds none."""
        each = np.nan_to_num(values)[self._place]
        summed = np.bincount(self._replay.owner, weights=each, minlength=len(self._replay.nodes))
        return summed.astype(np.float64)

    def weights(self, rows: int, half_life_hours: float) -> Floats:
        """(rows,) half as much for each half-life of age."""
        ages = np.arange(rows - 1, -1, -1) * self._replay.slot_seconds
        return np.asarray(np.exp2(-ages / (half_life_hours * HOUR_SECONDS)))


def _last(values: npt.NDArray[np.floating], slot: int, slots: int) -> Floats:
    return np.asarray(values[max(0, slot + 1 - slots) : slot + 1], dtype=np.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """A formula as a model of one replay."""

    name: str
    formula: Formula
    past: Past
    states_risk: bool = False

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """(risks, series) in the unit of the usage, all rows alike; NaN where the formula has no answer."""
        slots = max(1, round(horizon_seconds / history.slot_seconds))
        return alike(self.formula(self.past.at(history), history, slots), risks)


def share_of_requests(share: float) -> Formula:
    """Requests times a constant: no overcommit at 1, borg-default at 0.9."""
    return lambda past, history, horizon: history.requested * share  # noqa: ARG005 - one signature for all formulas


def koordinator_batch(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
    """Use now, and a margin of 40 % of what was requested (CPUReclaimThresholdPercent 60)."""
    return np.asarray(past.nodes(0.0)[-1] + 0.4 * history.requested)


def koordinator_mid(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
    """Koordlet's predictor: p95 with a half-life of 12 h of the pods, summed, or of the node if more, plus 10 %."""
    pods, node = (
        decayed_percentile(use, past.weights(len(use), 12.0), 95.0)
        for use in (past.series(4 * DAY), past.nodes(4 * DAY))
    )
    return np.fmax(past.summed(pods), node) * 1.1


def vpa_target(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
    """Sum over pods of VPA's target: p90 with a half-life of 24 h, plus 15 %."""
    use = past.series(8 * DAY)
    return past.summed(decayed_percentile(use, past.weights(len(use), 24.0), 90.0)) * 1.15


def crane_percentile(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
    """Crane's percentile predictor on the node: p99 with a half-life of 24 h over 7 days, no margin."""
    use = past.nodes(7 * DAY)
    return decayed_percentile(use, past.weights(len(use), 24.0), 99.0)


def resource_central(share: float, hours: float = DAY) -> Formula:
    """Sum over pods of a percentile of their slots."""
    return lambda past, history, horizon: past.summed(percentile(past.series(hours), share))  # noqa: ARG005 - as above


def n_sigma(sigmas: float, hours: float = DAY) -> Formula:
    """Mean plus so many sample deviations of the node's slots."""

    def formula(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
        use = past.nodes(hours)
        return np.asarray(use.mean(axis=0) + sigmas * use.std(axis=0, ddof=1))

    return formula


def higher(*formulas: Formula) -> Formula:
    """The highest of several."""
    return lambda past, history, horizon: functools.reduce(np.maximum, [f(past, history, horizon) for f in formulas])


def last_max(hours: float) -> Formula:
    """The highest use of the last hours."""
    return lambda past, history, horizon: np.asarray(past.nodes(hours).max(axis=0))  # noqa: ARG005 - one signature for all formulas


def seasonal_max(days: int) -> Formula:
    """The highest use of the same hours on the days before; NaN where not one whole day is known."""

    def formula(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
        day = past.slots(DAY)
        use = past.nodes(days * DAY)
        ahead = min(horizon, day)
        same = [use[len(use) - back * day :][:ahead] for back in range(1, days + 1) if back * day <= len(use)]
        return np.max(np.concatenate(same), axis=0) if same else np.full(use.shape[1], np.nan)

    return formula


def conformal(fleet: bool) -> Formula:
    """The last day's maximum times the 99 % quantile of what past peaks were of it, over 14 days of hours."""

    def formula(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
        hours = hourly_maxima(past.nodes(15 * DAY), past.slots(1.0))
        ahead = max(1, round(horizon / past.slots(1.0)))
        base = _rolling_max(hours, round(DAY))
        ratios = (peaks_after(hours, ahead) / np.where(base > 0, base, np.nan))[round(DAY) - 1 : len(hours) - ahead]
        scores = ratios.reshape(-1, 1) if fleet else ratios
        if not scores.size:
            return np.full(hours.shape[1], np.nan)
        return np.asarray(base[-1] * upper_quantile(scores, _CONFORMAL_RISK))

    return formula


def _rolling_max(hours: Floats, width: int) -> Floats:
    """(hours, series) highest of each row and the `width` - 1 before it, as far as there are any."""
    highest = hours.copy()
    for back in range(1, width):
        highest[back:] = np.fmax(highest[back:], hours[:-back])
    return highest


def crane_dsp(past: Past, history: History, horizon: int) -> Floats:  # noqa: ARG001 - one signature for all formulas
    """Crane's DSP: the strongest frequencies of 15 days, their last period repeated; best of 8 on the period before.

    The period is a day, or a week where that lies on itself better. NaN with less than two days.
    """
    use = past.nodes(_DSP_DAYS * DAY)
    day = past.slots(DAY)
    if len(use) < 2 * day:
        return np.full(use.shape[1], np.nan)
    use = np.clip(use, *np.percentile(use, [0.1, 99.9], axis=0))
    weekly = _likeness(use, 7 * day) > _likeness(use, day)
    peak = np.empty(use.shape[1])
    for period, chosen in ((day, ~weekly), (7 * day, weekly)):
        if chosen.any():
            peak[chosen] = _best_spectrum(use[:, chosen], period)[np.arange(horizon) % period].max(axis=0)
    return peak


def _likeness(use: Floats, lag: int) -> Floats:
    """(series,) correlation of the use with that of `lag` slots before; -1 with less than two lags of it."""
    if len(use) < 2 * lag:
        return np.full(use.shape[1], -1.0)
    now, before = use[lag:] - use[lag:].mean(axis=0), use[:-lag] - use[:-lag].mean(axis=0)
    size = np.sqrt((now**2).sum(axis=0) * (before**2).sum(axis=0))
    return np.asarray((now * before).sum(axis=0) / np.where(size > 0, size, 1.0))


def _best_spectrum(use: Floats, period: int) -> Floats:
    """(period, series) the forecast of the variant that did best on the last period without having seen it."""
    truth = use[-period:]
    best = np.full(use.shape[1], np.inf)
    answer = np.empty_like(truth)
    for kept in _DSP_SPECTRUM:
        rehearsal, forecast = (_strongest(part, kept)[-period:] for part in (use[:-period], use))
        for margin in _DSP_MARGINS:
            error = _weighted_error(rehearsal * margin, truth)
            answer = np.where(error < best, forecast * margin, answer)
            best = np.minimum(best, error)
    return answer


def _strongest(use: Floats, kept: int) -> Floats:
    """The series from its mean and its `kept` strongest frequencies, never below zero."""
    length = len(use) - len(use) % 2
    spectrum = np.fft.rfft(use[-length:], axis=0)
    strength = np.abs(spectrum[1:])
    if kept < len(strength):
        least = np.partition(strength, -kept, axis=0)[-kept]
        spectrum[1:][strength < least] = 0
    return np.maximum(np.fft.irfft(spectrum, length, axis=0), 0.0)


def _weighted_error(forecast: Floats, truth: Floats) -> Floats:
    """(series,) mean relative error, what lies below the truth amplified by -ln(1 - x) / ln 1.25 of its share x."""
    share = np.abs(forecast - truth) / np.where(truth < _TINY, 1.0, truth)
    amplified = -np.log(np.maximum(1 - share, 1e-9)) / np.log(1.25)
    return np.asarray(np.where((forecast < truth) & (truth >= _TINY), amplified, share).mean(axis=0))


_FORMULAS: Final[Mapping[str, Formula]] = {
    "static": share_of_requests(1.0),
    "borg_default": share_of_requests(0.9),
    "koordinator_batch": koordinator_batch,
    "koordinator_mid": koordinator_mid,
    "vpa_target": vpa_target,
    "crane_percentile": crane_percentile,
    "crane_dsp": crane_dsp,
    "rc_p95": resource_central(0.95),
    "rc_p99": resource_central(0.99),
    "n_sigma_3": n_sigma(3.0),
    "n_sigma_5": n_sigma(5.0),
    "n_sigma_5_10h": n_sigma(5.0, 10.0),
    "n_sigma_10": n_sigma(10.0),
    "max_n_sigma_5_rc_p99": higher(n_sigma(5.0), resource_central(0.99)),
    "max_n_sigma_3_rc_p95": higher(n_sigma(3.0), resource_central(0.95)),
    "last_1h_max": last_max(1.0),
    "last_24h_max": last_max(DAY),
    "last_7d_max": last_max(7 * DAY),
    "seasonal_naive": seasonal_max(1),
    "seasonal_max_7d": seasonal_max(7),
    "conformal99_node": conformal(fleet=False),
    "conformal99_fleet": conformal(fleet=True),
}
NAMES: Final = tuple(_FORMULAS)


def create(name: str, replay: Replay) -> Model:
    """The baseline called `name` for the decisions of one replay. Raises SlacktideError that lists the known names."""
    formula = _FORMULAS.get(name)
    if formula is None:
        raise SlacktideError(f"baseline {name!r} is not known; choose one of: {', '.join(NAMES)}")
    return Baseline(name, formula, Past(replay))
