"""What every forecast model is given and what it answers.

All arrays are columnar: rows are time slots, columns are series (a series is what is forecast: the LS + SYSTEM use
of a node). The unit of the answer is the unit of the usage; a model never knows whether it forecasts millicores or
bytes. Answers are float64 whatever the input is.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Usage = npt.NDArray[np.floating[Any]]
"""Usage may come as float32, which halves what a fleet holds in memory."""
Integers = npt.NDArray[np.int64]

HOUR_SECONDS: Final = 3600.0
DAY_SECONDS: Final = 86400.0
WEEK_SECONDS: Final = 7 * DAY_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """The pods behind the series, by hours, oldest first; the last row is the newest hour, which may not be full.

    Hours are blocks of the slots: row -1 holds the last hour's worth of slots of the history, row -2 the one before.

    series       (members,): column of the history that the member belongs to.
    hourly_max   (hours, members): highest slot value in the hour; NaN is a gap.
    hourly_mean  (hours, members): mean of the slot values in the hour; NaN is a gap.
    requested    (members,): what the pod asked for, NaN when unknown.
    """

    series: Integers
    hourly_max: Usage
    hourly_mean: Usage
    requested: Floats


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True)
class History:
    """Past usage of some series.

    usage        (slots, series): what stands for each slot (CPU: 90th percentile of the use inside it, memory: the
                 highest), oldest first. All rows are complete slots. NaN is a gap: not measured, never 0.
    requested    (series,): what the pods behind the series asked for, NaN when unknown.
    slot_seconds length of a slot in seconds.
    at           end of the last row in seconds since the epoch (UTC), or since any midnight for series without a
                 calendar.
    members      the pods behind the series, where they are known.
    """

    usage: Usage
    requested: Floats
    slot_seconds: float
    at: float = 0.0
    members: Members | None = None


class Model(Protocol):
    """One forecaster. It looks back only, has no state, and answers for each series by that series alone, unless
    its documentation says that it prices risk over the fleet."""

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
