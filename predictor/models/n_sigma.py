"""N-sigma: the mean of the last day plus five sample standard deviations.

Cheap, and good where the use of a node is the sum of many alike parts; on nodes with rare tall jobs it fails, as
their spread is not that of a normal distribution. It states no risk: what five deviations cover differs by workload.
Source: Google's overcommit simulator ("Take it to the limit", EuroSys 2021), whose documented example has N = 5; a
window of a day violates less than its two hours. Cold series (fewer than 24 samples, as there) get no answer.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor.models.base import Floats, History
from predictor.models.windows import alike, last_days

DEFAULT_SIGMAS: Final = 5.0
DEFAULT_WINDOW_DAYS: Final = 1.0
LEAST_SAMPLES: Final = 24


@dataclasses.dataclass(frozen=True, slots=True)
class NSigma:
    """Mean + `sigmas` sample standard deviations over the last `window_days` days.

    A higher use can lower the answer when it makes the window more even: this model is not monotone.
    """

    window_days: float = DEFAULT_WINDOW_DAYS
    sigmas: float = DEFAULT_SIGMAS
    least_samples: int = LEAST_SAMPLES
    name: str = "n_sigma"
    states_risk: bool = False

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:  # noqa: ARG002 - this model looks back only
        """(risks, series) in the unit of the usage; NaN with fewer than `least_samples` slots that are no gaps."""
        window = last_days(history, self.window_days).astype(np.float64)
        measured = ~np.isnan(window)
        count = measured.sum(axis=0).astype(np.float64)
        count[count < max(self.least_samples, 2)] = np.nan
        mean = np.nansum(window, axis=0) / count
        squares = np.nansum((window - mean) ** 2, axis=0)
        return alike(mean + self.sigmas * np.sqrt(squares / (count - 1)), risks)


def build(window_days: float = DEFAULT_WINDOW_DAYS) -> NSigma:
    """The model over the last day, or over `window_days` if that is less."""
    return NSigma(min(window_days, DEFAULT_WINDOW_DAYS))
