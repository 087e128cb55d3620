"""How much is known about a node, and so which path its forecast takes. No I/O, no clock."""

from __future__ import annotations

import enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import DAY_SECONDS, WEEK_SECONDS, Floats, History, Integers
from predictor.prior import Group

GROUPS: Final = tuple(Group)
"""Groups in the order of their indices."""


class Path(enum.StrEnum):
    """How a published peak was made."""

    UNKNOWN = "unknown"
    """Nothing is known: no use, no requests. The peak is NaN and nothing is sold."""
    REQUESTS = "requests"
    """Too little measured to say more than what its pods asked for."""
    SHORT = "short"
    """A model, with under a day of history."""
    WEEK = "week"
    """A model, with under a week of history."""
    MODEL = "model"
    """A model that sees a week or more."""
    FALLBACK = "fallback"
    """The champion could not say; another model did."""


BY_GROUP: Final = (Path.SHORT, Path.WEEK, Path.MODEL)
"""Path of a node whose champion answered, by its group's index."""


def measured_seconds(history: History, columns: Any = slice(None)) -> Floats:
    """(columns,) time for which each series was measured: gaps do not count, so that one old sample is no week."""
    return np.asarray((~np.isnan(history.usage[:, columns])).sum(axis=0) * history.slot_seconds, dtype=np.float64)


def groups_of(measured: Floats) -> Integers:
    """(series,) index into GROUPS by how long each was measured.

    A tenth may be missing: a node seen for a week with some gaps is no newcomer.
    """
    return (measured >= 0.9 * DAY_SECONDS).astype(np.int64) + (measured >= 0.9 * WEEK_SECONDS)


def scale_of(history: History) -> Floats:
    """(series,) S: highest use of the last seven days, the measure of all residuals; NaN where there is none."""
    slots = max(1, int(np.ceil(WEEK_SECONDS / history.slot_seconds)))
    return highest(history.usage[-slots:])


def highest(usage: npt.NDArray[np.floating[Any]]) -> Floats:
    """(series,) highest of some slots, NaN where all are gaps."""
    return np.asarray(np.fmax.reduce(usage, axis=0, initial=np.nan), dtype=np.float64)
