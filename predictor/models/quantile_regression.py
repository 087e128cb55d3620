"""Quantile regression pooled over nodes: a weighted sum of a few features for each risk.

Fitted by statsmodels on pooled nodes of public traces (predictor.training), in shares of S, the highest use of the
last seven days. It needs nothing but the series itself. Three sets of weights: for histories of a week and more, of a
day and more, and shorter ones, each on the features that such a history has; where one is missing in a gap the next
shorter set answers. Weights exist for 1 h and 24 h; other horizons take the next longer, longer ones ask each day at
its part of the risk. Source: overcommit.md, sections 4 and 5 ("QuantReg-ext").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import DAY_SECONDS, HOUR_SECONDS, Floats, History
from predictor.models.features import feature_names, features
from predictor.models.levels import at_risks
from predictor.models.weights import fitted_hours, load

_SHORT: Final = ("max_1h", "max_3h", "max_6h", "mean_1h", "mean_6h", "half_mean", "slots_sd", "half_trend")
_DAY: Final = (*_SHORT, "max_24h", "mean_24h", "sd_24h", "hours_top2_24h", "clock_1d", "rise_hour_p90_24h")
_WEEK: Final = (
    *_DAY,
    "mean_168h",
    "sd_168h",
    "hours_p90_168h",
    "day_top2",
    "day_top3",
    "clock_top1",
    "clock_top2",
    "clock_mean",
    "clock_wide_top1",
    "clock_rise_top2",
    "rise_hour_p95_168h",
    "rise_day_p95_168h",
)
SETS: Final = (("short", _SHORT, 3.0), ("day", _DAY, DAY_SECONDS / HOUR_SECONDS), ("week", _WEEK, 168.0))
"""Name, features and least hours of history of each set, from the poorest to the richest."""


@dataclasses.dataclass(frozen=True, slots=True)
class QuantileRegression:
    """Linear quantiles of the peak, at the risks that weights are there for and between them."""

    name: str = "quantile_regression"
    states_risk: bool = True

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """(risks, series) peaks in the unit of the usage; NaN where too little is known of a series."""
        hours = fitted_hours(horizon_seconds)
        seconds = hours * HOUR_SECONDS
        names = feature_names(seconds)
        stored = load(self.name, hours, names)
        scale, table = features(history, seconds)
        shares = linear_shares(stored, table, names)
        return np.maximum(at_risks(stored["risks"], shares, risks, horizon_seconds), 0.0) * scale


def linear_shares(
    weights: Mapping[str, npt.NDArray[Any]], table: npt.NDArray[np.float32], names: tuple[str, ...]
) -> Floats:
    """(risks, series) shares of S by `LABEL.weights` of each set; NaN for a series that is ready for none."""
    fitted = [(label, used, least) for label, used, least in SETS if f"{label}.weights" in weights]
    shares = np.full((len(weights[f"{fitted[0][0]}.weights"]), len(table)), np.nan)
    for label, used, least in fitted:
        inputs = design(table, names, used)
        ready = np.isfinite(inputs).all(axis=1) & (table[:, names.index("hours_known")] >= least)
        shares[:, ready] = weights[f"{label}.weights"] @ inputs[ready].T
    return shares


def design(table: npt.NDArray[np.float32], names: tuple[str, ...], used: tuple[str, ...]) -> Floats:
    """(series, 1 + features) inputs of a set: a constant and the features it uses."""
    places = [names.index(name) for name in used]
    return np.column_stack([np.ones(len(table)), table[:, places].astype(np.float64)])


def build(window_days: float = 0.0) -> QuantileRegression:  # noqa: ARG001 - how far back it looks was fixed when it was fitted
    """The model; it looks back up to 14 days whatever the window."""
    return QuantileRegression()
