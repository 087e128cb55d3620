"""Resource-Central-like percentile: the sum, over the pods of a node, of a percentile of each pod's use.

It knows pods but not that they peak at different times, so it is safe and sells little. Percentile of the last day's
hourly maxima, as pods are kept by hours; a node counts with at least the same percentile of its own hourly maxima,
because what is no pod (the system's use) is in the node's use only. It states no risk.

Cold pods (under two hours, as in the source) count with what they request, or with the highest use seen when that is
more; a pod of which neither is known leaves the node without an answer, as counting it 0 would sell its room.
Source: "RC-like" of Google's overcommit simulator ("Take it to the limit", EuroSys 2021), after Resource Central
(SOSP 2017); koordlet's maximum of node and pods.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor.models.base import Floats, History, Members
from predictor.models.windows import alike, hour_slots, hourly_maxima, last_days, percentile

DEFAULT_WINDOW_DAYS: Final = 1.0
DEFAULT_PERCENTILE: Final = 95.0
LEAST_HOURS: Final = 2


@dataclasses.dataclass(frozen=True, slots=True)
class RcPercentile:
    """Sum of the pods' `percentile` over the last `window_days` days; the node's own where no pods are known."""

    window_days: float = DEFAULT_WINDOW_DAYS
    percentile: float = DEFAULT_PERCENTILE
    least_hours: int = LEAST_HOURS
    name: str = "rc_percentile"
    states_risk: bool = False

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:  # noqa: ARG002 - this model looks back only
        """(risks, series) in the unit of the usage; NaN where the window is all gaps or a pod is wholly unknown."""
        window = last_days(history, self.window_days)
        per_hour = hour_slots(history.slot_seconds)
        hourly = hourly_maxima(window, per_hour) if len(window) >= per_hour else window
        node = percentile(hourly, self.percentile / 100)
        if history.members is None or not len(history.members.series):
            return alike(node, risks)
        pods = self._pods(history.members)
        summed = np.bincount(history.members.series, weights=pods, minlength=len(node))
        return alike(np.maximum(node, summed), risks)

    def _pods(self, members: Members) -> Floats:
        hours = max(1, round(self.window_days * 24))
        recent = members.hourly_max[-hours:]
        seen = np.count_nonzero(~np.isnan(recent), axis=0)
        highest = np.fmax.reduce(recent, axis=0, initial=np.nan).astype(np.float64)
        cold = np.fmax(members.requested, highest)
        return np.where(seen >= self.least_hours, percentile(recent, self.percentile / 100), cold)


def build(window_days: float = DEFAULT_WINDOW_DAYS) -> RcPercentile:
    """The model over the last day, or over `window_days` if that is less."""
    return RcPercentile(min(window_days, DEFAULT_WINDOW_DAYS))
