"""Answers at any risk, from those at the few risks that weights were fitted for."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from predictor.models.base import DAY_SECONDS, Floats

_LONGEST_FITTED_SECONDS: Final = DAY_SECONDS


def at_risks(fitted_risks: Floats, answers: Floats, risks: Floats, horizon_seconds: float) -> Floats:
    """(risks, series) answers from those at `fitted_risks` (rising), (fitted, series).

    Between two fitted risks the answer is a straight line over the logarithm of the risk, beyond them it is that of
    the nearest. A lower risk never gets a lower answer. A horizon of several days is so many days, each of which may
    exceed: each is asked at its part of the risk.
    """
    days = max(1, math.ceil(horizon_seconds / _LONGEST_FITTED_SECONDS))
    falling = np.maximum.accumulate(answers[::-1], axis=0)[::-1]
    place = np.interp(np.log(np.maximum(risks / days, 1e-12)), np.log(fitted_risks), np.arange(len(fitted_risks)))
    below = np.minimum(place.astype(np.int64), len(fitted_risks) - 1)
    above = np.minimum(below + 1, len(fitted_risks) - 1)
    part = (place - below)[:, None]
    out: Floats = falling[below] * (1 - part) + falling[above] * part
    return out
