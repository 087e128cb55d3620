"""What every forecast model is given and what it answers.

All arrays are float64 and columnar: rows are time slots, columns are series (a series is what is forecast: the
LS + SYSTEM use of a node, or of a pod group). The unit of the answer is the unit of the usage; a model never
knows whether it forecasts millicores or bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """Past usage of some series.

    usage       (slots, series): what stands for each slot (CPU: 90th percentile of the use inside it, memory: the
                highest), oldest first; the last row is the slot that is being filled now. NaN is a gap: not
                measured, never 0.
    requested   (series,): what the pods behind the series asked for, NaN when unknown.
    slot_seconds length of a slot in seconds.
    """

    usage: Floats
    requested: Floats
    slot_seconds: float


class Model(Protocol):
    """One forecaster."""

    @property
    def name(self) -> str:
        """The registered name."""
        ...

    @property
    def states_risk(self) -> bool:
        """Whether the answer depends on the risk asked. If not, all rows of `predict` are alike."""
        ...

    def predict(self, history: History, horizon_seconds: float, risks: Floats) -> Floats:
        """Quantiles of the highest use within the next `horizon_seconds`.

        risks    (risks,): chance, 0 to 1, that the peak turns out higher than the answer.
        returns  (risks, series): the peaks, in the unit of the usage; NaN where the model cannot say.
        """
        ...
