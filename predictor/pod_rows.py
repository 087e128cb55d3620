"""What pods used, in numbers: one column a pod, slots of the last hours, hours of the last days. No I/O, no clock.

Of each slot stands, as for nodes, the 90th percentile of the windows' CPU and the highest working set; of each hour
the highest slot and the mean of its slots. The hour that is not over holds the last twelve slots instead. CPU is in
millicores, memory in bytes, NaN is a gap. Which pod a column is of is the pod table's business (predictor.members).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from predictor.models.base import Floats, Integers, Members
from predictor.pods import OpenSlot, cpu_90
from predictor.slots import SLOTS_PER_HOUR, Floats32, Rows
from predictor.store.columns import PodHours

HOURLY: Final = ("cpu_max", "cpu_mean", "memory_max", "memory_mean")

_RECENT_SLOTS: Final = 2 * SLOTS_PER_HOUR
_LEAST_GROWTH: Final = 64


class Peak(NamedTuple):
    """The highest hour of a pod or a group: millicores and bytes, None = not known."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None

    def or_higher(self, other: Peak) -> Peak:
        """The higher of both, part by part."""
        return Peak(_higher(self.cpu_millis, other.cpu_millis), _higher(self.memory_bytes, other.memory_bytes))


class PodRows:
    """Use and requests of all pods over the last `days`."""

    def __init__(self, days: float) -> None:
        hours = int(days * 24) + 1
        self._hours = {name: Rows(hours, SLOTS_PER_HOUR) for name in HOURLY}
        self._recent = {name: Rows(_RECENT_SLOTS + 2, SLOTS_PER_HOUR) for name in ("cpu", "memory")}
        # CPU and memory by column.
        self._requested: Floats = np.full((2, 0), np.nan)

    def add(self, column: int, cpu: float | None, memory: float | None) -> None:
        """A pod takes `column`, and requests so much."""
        have = self._requested.shape[1]
        if column >= have:
            more = np.full((2, max(_LEAST_GROWTH, column // 8)), np.nan)
            self._requested = np.concatenate([self._requested, more], axis=1)
        self._requested[:, column] = floats([cpu, memory])

    def ask(self, columns: Integers, cpu: Sequence[int | None], memory: Sequence[int | None]) -> None:
        """What the pods in `columns` request by now."""
        self._requested[0, columns] = floats(cpu)
        self._requested[1, columns] = floats(memory)

    def requested(self, columns: Integers) -> Floats:
        """(2, columns): requests of CPU and of memory."""
        return self._requested[:, columns]

    def fold(self, slot: int, opened: Sequence[OpenSlot]) -> Floats32 | None:
        """Work out one slot of some nodes, all at once: a call for each would cost a large fleet seconds.

        Where the slot is too old to stand among the recent ones, nothing is kept of it and its CPU is returned, pod
        after pod; see `fold_late`.
        """
        columns = np.concatenate([one.columns for one in opened])
        memory = np.concatenate([one.memory for one in opened])
        cpu = cpu_90(np.concatenate([one.cpu for one in opened], axis=1))
        kept = self._recent["cpu"].put_many(columns, slot, cpu)
        self._recent["memory"].put_many(columns, slot, memory)
        return None if kept else cpu

    def fold_late(self, hour: int, count: int, columns: Integers, cpu: Floats32, memory: Floats32) -> None:
        """A slot that a spool brings long after its time goes into its hour directly, as the `count`th of it."""
        for name, values in (("cpu", cpu), ("memory", memory)):
            highest = self._hours[f"{name}_max"].row(columns, hour)
            mean = self._hours[f"{name}_mean"].row(columns, hour)
            weighted = np.where(np.isnan(mean), values, mean + (values - mean) / max(2, count))
            self._hours[f"{name}_max"].put_many(columns, hour, np.fmax(highest, values))
            self._hours[f"{name}_mean"].put_many(columns, hour, weighted)

    def sum_up(self, hour: int, last_slot: int, count: int) -> None:
        """Bring an hour of the first `count` columns up to date, by its slots up to `last_slot`."""
        columns = np.arange(count)
        for name, recent in self._recent.items():
            slots = recent.span(last_slot, count, SLOTS_PER_HOUR)
            counts = np.count_nonzero(~np.isnan(slots), axis=0)
            if not counts.any():
                continue
            with np.errstate(invalid="ignore"):
                mean = np.nansum(slots, axis=0) / np.where(counts > 0, counts, np.nan)
            self._hours[f"{name}_max"].put_many(columns, hour, np.fmax.reduce(slots, axis=0))
            self._hours[f"{name}_mean"].put_many(columns, hour, mean)

    def highest(self, columns: Integers) -> Peak:
        """The highest hour or recent slot of any of `columns`."""
        found: list[int | None] = []
        for name, recent in self._recent.items():
            values = [self._hours[f"{name}_max"].columns(columns), recent.columns(columns)]
            known = np.concatenate([part[~np.isnan(part)] for part in values])
            found.append(round(float(known.max())) if len(known) else None)
        return Peak(*found)

    def before(self, column: int, kind: str, slot: int) -> tuple[int, Floats32, Floats32]:
        """What a pod used before `slot`, by slots: of each hour the highest slot ("max") or the mean ("mean").

        Number of the first slot, CPU, memory.
        """
        first, cpu = self._hours[f"cpu_{kind}"].history(column)
        start, memory = self._hours[f"memory_{kind}"].history(column)
        base = min(first, start)
        count = max(0, slot - base * SLOTS_PER_HOUR)

        def by_slot(begin: int, values: Floats32) -> Floats32:
            padded = np.concatenate([np.full(begin - base, np.nan, dtype=np.float32), values])
            return np.repeat(padded, SLOTS_PER_HOUR)[:count]

        return base * SLOTS_PER_HOUR, by_slot(first, cpu), by_slot(start, memory)

    def inherit(self, heir: int, column: int) -> None:
        """The hours of `column` fill the gaps of `heir`."""
        for rows in self._hours.values():
            rows.fill(heir, column)

    def hour(self, columns: Integers, hour: int) -> dict[str, Floats]:
        """A copy of one hour, by the names of HOURLY."""
        return {name: self._hours[name].row(columns, hour).astype(np.float64) for name in HOURLY}

    def measured_slots(self, columns: Integers, hour: int) -> Integers:
        """(columns,) in how many slots of an hour each pod was measured."""
        first = hour * SLOTS_PER_HOUR
        slots: Integers = np.zeros(len(columns), dtype=np.int64)
        for slot in range(first, first + SLOTS_PER_HOUR):
            slots += ~np.isnan(self._recent["cpu"].row(columns, slot))
        # What came late, or was read back, has no slots any more; it counts as a whole hour.
        return np.where(slots == 0, SLOTS_PER_HOUR, slots)

    def members(self, last_slot: int, series: Integers) -> tuple[Members, Members]:
        """The first len(series) columns as members of `series`, up to slot `last_slot`: of CPU, and of memory."""
        count, hour = len(series), last_slot // SLOTS_PER_HOUR
        cpu, memory = (
            Members(
                series=series,
                hourly_max=self._hours[f"{name}_max"].span(hour, count),
                hourly_mean=self._hours[f"{name}_mean"].span(hour, count),
                requested=self._requested[row, :count].copy(),
            )
            for row, name in enumerate(self._recent)
        )
        return cpu, memory

    def restore(self, hours: PodHours, columns: Integers) -> None:
        """Take what the history remembers; `columns` are those of `hours.pod`."""
        newest = int(hours.hour.max())
        for name in HOURLY:
            self._hours[name].observe_at(columns, hours.hour, getattr(hours, name))
        # The slots of the newest hours are not known one by one: the first stands for the highest, the others for
        # the mean, so that the hours come out of them as they went in.
        recent = hours.hour > newest - 2
        for name, rows in self._recent.items():
            for part in range(SLOTS_PER_HOUR):
                values = getattr(hours, f"{name}_{'mean' if part else 'max'}")[recent]
                rows.observe_at(columns[recent], hours.hour[recent] * SLOTS_PER_HOUR + part, values)

    def keep(self, columns: Integers) -> None:
        """Keep these columns only, in this order; what was handed out before stays what it was."""
        for rows in (*self._hours.values(), *self._recent.values()):
            rows.keep(columns)
        self._requested = self._requested[:, columns]


def floats(values: Sequence[float | None]) -> Floats32:
    """None becomes NaN."""
    return np.asarray(values, dtype=np.float32)


def _higher(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
