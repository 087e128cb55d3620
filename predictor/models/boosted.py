"""Boosted trees: where the peak is likely to be, and how far it may stray.

Two sets of trees, fitted on pooled nodes of public traces (predictor.training), say the mean of the peak over the
horizon and its mean deviation from that, both in shares of S, the highest use of the last seven days. The answer at a
risk is location + reach x deviation, with one reach for each risk, for series that are known for a week and for younger
ones. That prices risk: nodes that stray far have longer tails, so the same reach covers less of them than of calm ones,
and much reserve for little safety is not spent. The reach is part of the weights, so the answer for a series depends on
no other series. Of what lies near or above the highest use of a whole week only a part of the reach counts (the bend):
peaks seldom get there, however far a series strays below. Weights exist for 1 h and 24 h; other horizons take the next
longer, and those beyond ask each day at its part of the risk.

Cost: about 0.3 ms a series with 14 days and 25 pods. Source: overcommit.md, section 8 (location-scale trees).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from predictor.models.base import HOUR_SECONDS, Floats, History
from predictor.models.features import feature_names, features
from predictor.models.levels import at_risks
from predictor.models.node_features import WEEK
from predictor.models.trees import Trees
from predictor.models.weights import fitted_hours, load


@dataclasses.dataclass(frozen=True, slots=True)
class Boosted:
    """Location-scale trees."""

    name: str = "boosted"
    states_risk: bool = True

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """(risks, series) peaks in the unit of the usage; NaN where nothing is known of a series."""
        hours = fitted_hours(horizon_seconds)
        seconds = hours * HOUR_SECONDS
        names = feature_names(seconds)
        stored = load(self.name, hours, names)
        scale, table = features(history, seconds)
        location = Trees.of(stored, "location").predict(table)
        deviation = np.exp(Trees.of(stored, "deviation").predict(table))
        known = table[:, names.index("hours_known")]
        shares = reached(location, deviation, stored["reach"], stored["bend"], known)
        return np.maximum(at_risks(stored["risks"], shares, risks, horizon_seconds), 0.0) * scale


def reached(
    location: Floats, deviation: Floats, reach: Floats, bend: Floats, hours_known: npt.NDArray[np.float32]
) -> Floats:
    """(risks, series) answers in shares of S: location + reach x deviation.

    reach  (2, risks): of series that are known for less than a week, and of the others.
    bend   (2,): a share of S, and the part of the reach that counts for what lies above it, where a week is known. S of
           less than that says little of how high a series goes.
    """
    level, part = bend
    young, known = (factor[:, None] * deviation for factor in reach)
    bent = np.minimum(location + known, np.maximum(level, location + part * known))
    return np.asarray(np.where(hours_known >= WEEK, bent, location + young), dtype=np.float64)


def reach_needed(
    location: Floats, deviation: Floats, peak: Floats, bend: Floats, hours_known: npt.NDArray[np.float32]
) -> Floats:
    """(series,) the least reach whose answer is not below the peaks (shares of S); `bend` as in `reached`."""
    level, part = bend
    needed = (peak - location) / deviation
    return np.where((hours_known >= WEEK) & (peak > level) & (needed > 0), needed / part, needed)


def build(window_days: float = 0.0) -> Boosted:  # noqa: ARG001 - how far back it looks was fixed when it was fitted
    """The model; it looks back up to 14 days whatever the window."""
    return Boosted()
