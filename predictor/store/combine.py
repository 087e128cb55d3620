"""Several rows of one series and time become one: what came late stands beside what was stored before. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from predictor.store.columns import SLOTS_PER_HOUR, Floats, Integers, PodHours, Window


def combined_window(window: Window) -> Window:
    """`window` with one row for each node and slot: the higher value of each."""
    if _unique(window.slot, window.node):
        return window
    where, first = _groups(window.slot, window.node)
    return Window(
        window.names,
        window.node[first],
        window.slot[first],
        _highest(where, window.cpu_millis),
        _highest(where, window.memory_bytes),
    )


def combined_hours(hours: PodHours) -> PodHours:
    """`hours` with one row for each pod and hour: the higher maximum, the mean by slots."""
    if _unique(hours.hour, hours.pod):
        return hours
    where, first = _groups(hours.hour, hours.pod)
    slots = np.bincount(where, hours.slots).astype(np.int64)
    return PodHours(
        hours.pods,
        hours.pod[first],
        hours.hour[first],
        np.minimum(slots, SLOTS_PER_HOUR),
        _mean(where, hours.cpu_mean, hours.slots),
        _highest(where, hours.cpu_max),
        _mean(where, hours.memory_mean, hours.slots),
        _highest(where, hours.memory_max),
    )


def joined_windows(parts: Sequence[Window]) -> Window:
    """The rows of at least one part, all with the same names, one after another."""
    columns = zip(*(part[1:] for part in parts), strict=True)
    return Window._make([parts[0].names, *(np.concatenate(pieces) for pieces in columns)])


def picked_window(window: Window, which: npt.NDArray[np.bool_]) -> Window:
    """The rows of `window` that `which` names."""
    return Window._make([window.names, *(column[which] for column in window[1:])])


def picked_hours(hours: PodHours, which: npt.NDArray[np.bool_]) -> PodHours:
    """The rows of `hours` that `which` names."""
    return PodHours._make([hours.pods, *(column[which] for column in hours[1:])])


def joined_hours(one: PodHours, other: PodHours) -> PodHours:
    """The rows of both, each counting in the pods of both."""
    if not len(one.pod):
        return other
    moved = other._replace(pod=other.pod + len(one.pods))
    columns = zip(one[1:], moved[1:], strict=True)
    return PodHours._make([one.pods + other.pods, *(np.concatenate(pair) for pair in columns)])


def _unique(time: Integers, member: Integers) -> bool:
    """A table of flags is ten times as fast as sorting, and nearly always says yes."""
    if not len(time):
        return True
    first, width = int(time.min()), int(member.max()) + 1
    seen = np.zeros((int(time.max()) - first + 1, width), dtype=np.bool_)
    seen[time - first, member] = True
    return int(np.count_nonzero(seen)) == len(time)


def _groups(time: Integers, member: Integers) -> tuple[Integers, Integers]:
    """Number of the group of each row, and the first row of each group; groups run in order of time."""
    key = (time - time.min()) * (int(member.max()) + 1) + member
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    return where, first


def _mean(where: Integers, values: Floats, slots: Integers) -> Floats:
    weight = np.where(np.isnan(values), 0, slots).astype(np.float64)
    total = np.bincount(where, weight)
    summed = np.bincount(where, np.where(np.isnan(values), 0.0, values) * weight)
    means: Floats = np.divide(summed, total, out=np.full(len(total), np.nan), where=total > 0)
    return means


def _highest(where: Integers, values: Floats) -> Floats:
    highest: Floats = np.full(int(where.max()) + 1, np.nan)
    np.fmax.at(highest, where, values)
    return highest
