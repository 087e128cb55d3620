"""Holt-Winters: additive daily season on hourly maxima, plus a quantile of its own past misses.

For use that follows the clock: it sees the morning come and lets the night be sold. The forecast of the peak over a
horizon is the highest of its hours; on top goes the quantile, at the risk asked, of what this series' peaks were above
such forecasts in the last 14 days. Without that the formula would miss half of all peaks, as it predicts typical ones.

Smoothing parameters are fitted by statsmodels for each series on the seven days before the last midnight of a week
(the epoch's: Thursdays) and kept for that week; level and season are then carried through every hour of the window.
A fit costs some 30 ms, so a call makes at most `fits_per_call` of them; a series whose turn has not come runs with the
parameters in `UNFITTED`, and so does one with too many gaps in its seven days. Answers then differ a little between a
model that has run for long and a new one; nothing else is kept between calls.

No answer (NaN), so that another model is used: fewer than three days of history and a horizon; a quarter of the hours
are gaps, or the last hour is; the back-test is poor, that is, on the window itself the forecasts missed by a quarter
more than the mean of the day before did.
Source: Holt and Winters as in statsmodels' ExponentialSmoothing (Hyndman's form); overcommit tables of the design.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from typing import Final, NamedTuple

import numpy as np
from statsmodels.tools.sm_exceptions import ConvergenceWarning
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from predictor.models.base import HOUR_SECONDS, WEEK_SECONDS, Floats, History, Integers
from predictor.models.windows import hour_slots, hourly_maxima

SEASON: Final = 24
WINDOW_HOURS: Final = 14 * SEASON
FIT_HOURS: Final = 7 * SEASON
LEAST_FIT_HOURS: Final = 3 * SEASON
START_HOURS: Final = 2 * SEASON
LEAST_MISSES: Final = SEASON
POOR: Final = 1.25
MOST_GAPS: Final = 0.25
MOST_GAPS_AHEAD: Final = 0.1
UNFITTED: Final = (0.4, 0.1)
"""Smoothing of level and season without a fit. On public traces the peaks hardly depend on either."""
DEFAULT_FITS_PER_CALL: Final = 50
_ROUNDING: Final = 1e-9


class Run(NamedTuple):
    """What carrying the states through the window gives.

    forecast  (series,) highest of the hours of the horizon from now on.
    misses    (hours, series) past peaks minus what was forecast for them; NaN where either is not known.
    errors    (series,) mean absolute miss.
    plain     (series,) the same for the mean of the day before in place of the forecast.
    """

    forecast: Floats
    misses: Floats
    errors: Floats
    plain: Floats


@dataclasses.dataclass(slots=True)
class HoltWinters:
    """Additive daily Holt-Winters without trend, with its own residual quantile."""

    fits_per_call: int = DEFAULT_FITS_PER_CALL
    name: str = "holt_winters"
    states_risk: bool = True
    _week: int = -1
    _fitted: dict[bytes, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """(risks, series) in the unit of the usage; a horizon below an hour counts as an hour; NaN as said above."""
        answer = np.full((len(risks), history.usage.shape[1]), np.nan)
        horizon = max(1, math.ceil(horizon_seconds / HOUR_SECONDS))
        hours = hourly_maxima(history.usage, hour_slots(history.slot_seconds))[-WINDOW_HOURS:]
        if len(hours) < START_HOURS + horizon + LEAST_MISSES:
            return answer
        gaps = np.isnan(hours)
        known = (gaps.mean(axis=0) <= MOST_GAPS) & ~gaps[-1] & ~np.isnan(_first_season(hours)).any(axis=0)
        series = np.flatnonzero(known)
        run = carry(hours[:, series], self._parameters(history, series), horizon)
        good = run.errors <= POOR * run.plain
        for row, risk in enumerate(risks):
            peak = run.forecast + upper_quantile(run.misses, float(risk))
            answer[row, series] = np.where(good, np.maximum(peak, 0.0), np.nan)
        return answer

    def _parameters(self, history: History, series: Integers) -> Floats:
        """(2, series) smoothing of level and season: from this week's fit where there is one."""
        found = np.tile(np.array(UNFITTED)[:, None], len(series))
        past = _before_the_week(history)
        if len(past) < LEAST_FIT_HOURS:
            return found
        week = int(history.at // WEEK_SECONDS)
        if week != self._week:
            self._week, self._fitted = week, {}
        left = self.fits_per_call
        for index, column in enumerate(series):
            values = np.ascontiguousarray(past[:, column])
            key = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
            if key not in self._fitted and left > 0:
                self._fitted[key] = fit(values)
                left -= 1
            found[:, index] = self._fitted.get(key, UNFITTED)
        return found


def _before_the_week(history: History) -> Floats:
    """(hours, series) maxima of the seven days, or what there is of them, that end with the last week."""
    gone = round((history.at % WEEK_SECONDS) / history.slot_seconds)
    usage = history.usage[: len(history.usage) - gone]
    return hourly_maxima(usage, hour_slots(history.slot_seconds))[-FIT_HOURS:]


def fit(hours: Floats) -> tuple[float, float]:
    """Smoothing (level, season) that fits one series of hourly maxima (hours,) best; `UNFITTED` where none can."""
    filled = _filled(hours)
    scale = float(np.max(filled, initial=0.0))
    if np.isnan(filled).any() or scale <= 0:
        return UNFITTED
    season = _first_season(filled[:, None])[:, 0] / scale
    model = ExponentialSmoothing(
        filled / scale,
        seasonal="add",
        seasonal_periods=SEASON,
        initialization_method="known",
        initial_level=season.mean(),
        initial_seasonal=season - season.mean(),
    )
    # A perfect fit has the logarithm of zero in a criterion that is not used here. A search that stopped early still
    # has the best parameters it met, and the misses are measured anyway.
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = model.fit(optimized=True, use_brute=False).params
    pair = float(found["smoothing_level"]), float(found["smoothing_seasonal"])
    return pair if all(math.isfinite(value) for value in pair) else UNFITTED


def _filled(hours: Floats) -> Floats:
    """Gaps become the median of their hour of the day; NaN stays where that hour was never measured."""
    days = len(hours) // SEASON
    days_of = hours[len(hours) - days * SEASON :].reshape(days, SEASON)
    if np.isnan(days_of).mean() > MOST_GAPS or np.isnan(days_of).all(axis=0).any():
        return np.full(days * SEASON, np.nan)
    return np.where(np.isnan(days_of), np.nanmedian(days_of, axis=0), days_of).ravel()


def _first_season(hours: Floats) -> Floats:
    """(24, series) mean of the first two days by hour, of one where the other is a gap."""
    one, other = hours[:START_HOURS].reshape(2, SEASON, hours.shape[1])
    both: Floats = (np.where(np.isnan(one), other, one) + np.where(np.isnan(other), one, other)) / 2
    return both


def carry(hours: Floats, parameters: Floats, horizon: int) -> Run:
    """Carry level and season of all series through the window at once; a gap changes neither.

    hours       (hours, series), oldest first; the first two days start the states and count for nothing else.
    parameters  (2, series) smoothing of level and season.
    horizon     in hours.
    """
    alpha, gamma = parameters
    season = _first_season(hours)
    level = season.mean(axis=0)
    season = season - level
    ahead = np.arange(1, horizon + 1)
    forecasts = np.full_like(hours, np.nan)
    for row in range(START_HOURS, len(hours)):
        phase = row % SEASON
        error = hours[row] - level - season[phase]
        error = np.where(np.isnan(error), 0.0, error)
        season[phase] += gamma * error
        level = level + alpha * error
        forecasts[row] = level + season[(row + ahead) % SEASON].max(axis=0)
    past = slice(START_HOURS, len(hours) - horizon)
    peaks = peaks_after(hours, horizon)
    misses = (peaks - forecasts)[past]
    return Run(forecasts[-1], misses, _mean_size(misses), _mean_size((peaks - _mean_before(hours))[past]))


def peaks_after(hours: Floats, horizon: int) -> Floats:
    """(hours, series) highest of the `horizon` rows after each; NaN where over a tenth of them are gaps or to come."""
    count, series = hours.shape
    padded = np.concatenate([hours, np.full((horizon, series), np.nan)])
    peaks = np.full((count, series), np.nan)
    gaps = np.zeros((count, series))
    for step in range(1, horizon + 1):
        later = padded[step : step + count]
        np.fmax(peaks, later, out=peaks)
        gaps += np.isnan(later)
    peaks[gaps > MOST_GAPS_AHEAD * horizon] = np.nan
    return peaks


def _mean_before(hours: Floats) -> Floats:
    """(hours, series) mean of each row and the 23 before it; gaps are left out."""
    known = ~np.isnan(hours)
    edge = np.zeros((1, hours.shape[1]))
    sums, counts = (
        np.concatenate([edge, np.cumsum(values, axis=0)]) for values in (np.where(known, hours, 0.0), known)
    )
    first = np.maximum(np.arange(1, len(hours) + 1) - SEASON, 0)
    with np.errstate(invalid="ignore"):
        mean: Floats = (sums[1:] - sums[first]) / (counts[1:] - counts[first])
    return mean


def _mean_size(misses: Floats) -> Floats:
    """(series,) mean of the absolute values; NaN where there are none."""
    known = ~np.isnan(misses)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known, np.abs(misses), 0.0).sum(axis=0) / known.sum(axis=0)
    return mean


def upper_quantile(values: Floats, risk: float) -> Floats:
    """(series,) value that the next one exceeds with a chance of at most `risk`, the highest where they are too few.

    values  (rows, series); NaN is not counted. Rank ceil((n + 1) (1 - risk)), the finite-sample rank of conformal
    prediction.
    """
    ranked = np.sort(values, axis=0)
    count = np.count_nonzero(~np.isnan(ranked), axis=0)
    rank = np.clip(np.ceil((count + 1) * (1 - risk) - _ROUNDING).astype(np.int64), 1, np.maximum(count, 1))
    answer: Floats = ranked[rank - 1, np.arange(values.shape[1])]
    return answer


def build(window_days: float) -> HoltWinters:  # noqa: ARG001 - its window is fixed: two weeks of days and residuals
    """The model; it looks back 14 days whatever `window_days` is."""
    return HoltWinters()
