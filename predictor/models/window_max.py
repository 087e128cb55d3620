"""Sliding-window maximum: the peak of the next hour is the highest use of the last N days.

The fallback of every other model, and the model of a node with under a week of history. It never learns and
never forgets inside its window, so it is safe after a quiet night and slow to sell again after a burst.
Source: the "max" decorator of Google's simulator and Autopilot's moving-window peak
(EuroSys 2020, 2021; design, section 4).
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor.models.base import Floats, History
from predictor.models.windows import alike, last_days

DEFAULT_WINDOW_DAYS: Final = 7.0


@dataclasses.dataclass(frozen=True, slots=True)
class WindowMax:
    """Highest use of the last `window_days` days."""

    window_days: float = DEFAULT_WINDOW_DAYS
    name: str = "window_max"
    states_risk: bool = False

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:  # noqa: ARG002 - this model looks back only
        """(risks, series) maxima over the window, in the unit of the usage; NaN where the window is all gaps."""
        return alike(np.fmax.reduce(last_days(history, self.window_days), axis=0, initial=np.nan), risks)


def build(window_days: float = DEFAULT_WINDOW_DAYS) -> WindowMax:
    """The model over the last `window_days` days."""
    return WindowMax(window_days)
