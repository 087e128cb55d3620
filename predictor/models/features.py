"""The features of the fitted models: one pure function, used alike where weights are fitted and where they are used.

Every feature is a share of S, the highest use of the series' last seven days, a count, a share of hours or a time, so
they do not change with the unit or the size of a node. What a history is too short for, or what needs pods where none
are known, is NaN. What pods asked for is no feature: in the traces that weights are fitted on it was made from the
future (overcommit.md, section 4). Source of the selection: overcommit.md, section 8.
"""

from __future__ import annotations

import functools
import math
import weakref
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.models.base import HOUR_SECONDS, History, Members
from predictor.models.member_features import member_features, pods
from predictor.models.node_features import HOURS, WEEK, Columns, Floats32, node_features, past

_BLOCK: Final = 1024
"""Series worked on at a time, so that a block's hours stay in the processor's cache."""
_LONGEST: Final = 24


class _Made(NamedTuple):
    """The newest answer and what it is of."""

    history: weakref.ref[History]
    hours: int
    answer: tuple[npt.NDArray[np.float64], Floats32]


class _Newest:
    """Several models ask one after another for the features of one history: they are made once."""

    def __init__(self) -> None:
        self._made: _Made | None = None

    def get(self, history: History, hours: int) -> tuple[npt.NDArray[np.float64], Floats32] | None:
        """What was made last, if it is of this very history."""
        made = self._made
        return made.answer if made is not None and made.history() is history and made.hours == hours else None

    def put(self, history: History, hours: int, answer: tuple[npt.NDArray[np.float64], Floats32]) -> None:
        """Keep an answer while its history lives. It is shared from now on, so nobody may change it."""
        for array in answer:
            array.flags.writeable = False
        self._made = _Made(weakref.ref(history, self._forget), hours, answer)

    def _forget(self, gone: weakref.ref[History]) -> None:
        made = self._made
        if made is not None and made.history is gone:
            self._made = None


_newest: Final = _Newest()


def feature_names(horizon_seconds: float) -> tuple[str, ...]:
    """Names of the columns of `features` for a horizon."""
    return _names(horizon_hours(horizon_seconds))


def horizon_hours(horizon_seconds: float) -> int:
    """Whole hours that features look at for a horizon: rounded up, 1 to 24."""
    return min(_LONGEST, max(1, math.ceil(horizon_seconds / HOUR_SECONDS)))


def features(history: History, horizon_seconds: float) -> tuple[npt.NDArray[np.float64], Floats32]:
    """Features of all series of a history, up to its newest slot.

    returns  S (series,): highest use of the last seven days, in the unit of the usage, NaN where nothing is known;
             (series, features) float32 in the order of `feature_names`; NaN is unknown. Under an hour of history, or
             slots of more than an hour, say nothing. Neither may be written to.
    """
    hours = horizon_hours(horizon_seconds)
    answer = _newest.get(history, hours)
    if answer is None:
        answer = _features(history, hours)
        _newest.put(history, hours, answer)
    return answer


def _features(history: History, hours: int) -> tuple[npt.NDArray[np.float64], Floats32]:
    series = history.usage.shape[1]
    names = _names(hours)
    table = np.full((series, len(names)), np.nan, dtype=np.float32)
    scale = np.full(series, np.nan)
    if history.slot_seconds > HOUR_SECONDS:
        return scale, table
    slots = max(1, round(HOUR_SECONDS / history.slot_seconds))
    members = _sorted(history.members)
    for first in range(0, series, _BLOCK):
        block = slice(first, min(series, first + _BLOCK))
        usage = np.ascontiguousarray(history.usage[-HOURS * slots :, block], dtype=np.float32)
        columns, scale[block] = _block(usage, slots, hours, members, block)
        for place, name in enumerate(names):
            if name in columns:
                table[block, place] = columns[name]
    return scale, table


def _block(
    usage: Floats32, slots: int, hours: int, members: Members | None, block: slice
) -> tuple[Columns, npt.NDArray[np.float64]]:
    own = past(usage, slots)
    columns = node_features(own, hours)
    if members is not None and len(members.hourly_max):
        first, last = np.searchsorted(members.series, [block.start, block.stop])
        if last > first:
            column = members.series[first:last] - block.start
            highest = np.asarray(members.hourly_max[-WEEK - 1 :, first:last], dtype=np.float32)
            mean = np.asarray(members.hourly_mean[-WEEK - 1 :, first:last], dtype=np.float32)
            columns |= member_features(pods(highest, mean, column, own.scale), hours)
    known = own.known[HOURS] > 0
    scale = np.where(known, own.scale * np.where(np.fmax.reduce(own.highest[-WEEK:], axis=0) > 0, 1, 0), np.nan)
    return columns, scale.astype(np.float64)


def _sorted(members: Members | None) -> Members | None:
    """Members in the order of their series; those without one are left out."""
    if members is None:
        return None
    order = np.argsort(members.series, kind="stable")
    order = order[members.series[order] >= 0]
    if len(order) == len(members.series) and np.all(order[1:] > order[:-1]):
        return members
    return Members(
        members.series[order], members.hourly_max[:, order], members.hourly_mean[:, order], members.requested[order]
    )


@functools.cache
def _names(hours: int) -> tuple[str, ...]:
    """The names that a series with pods and a full history has, in the order they are made."""
    usage = np.ones((HOURS, 1), dtype=np.float32)
    own = past(usage, 1)
    names = [*node_features(own, hours)]
    behind = pods(usage, usage, np.zeros(1, dtype=np.int64), own.scale)
    names += [*member_features(behind, hours)]
    return tuple(names)
