"""Boosted trees: where the peak is likely to be, how far it may stray, and how much of that is worth covering.

Two sets of trees, fitted on pooled nodes of public traces (predictor.training), say the mean of the peak over the
horizon and its mean deviation from that, both in shares of S, the highest use of the last seven days. The answer at a
risk is their weighted sum with terms that price risk: to cover a node whose use strays far takes much reserve for
little safety, so such a node gets less of its deviation covered and calm ones more, at the asked risk on average. The
price depends on the risk alone and is part of the weights, so the answer for a series depends on no other series.
Weights exist for 1 h and 24 h; other horizons take the next longer, longer ones ask each day at its part of the risk.

Cost: about 0.1 ms a series with 14 days and 25 pods. Source: overcommit.md, section 8 (location-scale, risk-priced).
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor.models.base import HOUR_SECONDS, Floats, History
from predictor.models.features import feature_names, features
from predictor.models.levels import at_risks
from predictor.models.trees import Trees
from predictor.models.weights import fitted_hours, load

_LEAST_DEVIATION: Final = 0.001


@dataclasses.dataclass(frozen=True, slots=True)
class Boosted:
    """Location-scale trees with priced risk."""

    name: str = "boosted"
    states_risk: bool = True

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """(risks, series) peaks in the unit of the usage; NaN where nothing is known of a series."""
        hours = fitted_hours(horizon_seconds)
        seconds = hours * HOUR_SECONDS
        stored = load(self.name, hours, feature_names(seconds))
        scale, table = features(history, seconds)
        location = Trees.of(stored, "location").predict(table)
        deviation = np.exp(Trees.of(stored, "deviation").predict(table))
        shares = stored["price"] @ priced_terms(location, deviation)
        return np.maximum(at_risks(stored["risks"], shares, risks, horizon_seconds), 0.0) * scale


def priced_terms(location: Floats, deviation: Floats) -> Floats:
    """(terms, series) what the price of a risk, a row of `price`, weighs."""
    deviation = np.maximum(deviation, _LEAST_DEVIATION)
    return np.stack([np.ones_like(location), location, deviation, deviation * np.log(deviation)])


def build(window_days: float = 0.0) -> Boosted:  # noqa: ARG001 - how far back it looks was fixed when it was fitted
    """The model; it looks back up to 14 days whatever the window."""
    return Boosted()
