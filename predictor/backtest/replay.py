"""Recorded usage as the predictor would have seen it: at each decision the past and nothing else. No I/O, no clock.

Times are labels: the start of a slot, as the input names it. A decision at slot t is made when t is complete, sees the
slots up to and including t, and is about the slots after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import DAY_SECONDS, HOUR_SECONDS, Floats, History, Integers, Members, Usage

HISTORY_DAYS: Final = 14.0
"""How far back a model sees: what the running predictor holds of each node."""
PRESENT_SECONDS: Final = DAY_SECONDS
"""A series without a sample for so long is gone: its request no longer counts and models no longer see it."""
SHORT_HORIZON_SECONDS: Final = 6 * HOUR_SECONDS
_EVERY_LONG_SECONDS: Final = 6 * HOUR_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """Nodes made of series, over a timeline without holes: what was not measured is NaN.

    name         what it was made from.
    slot_seconds length of a slot.
    at0          label of the first slot: seconds since the epoch, or since the start where the input has no calendar.
    nodes        (nodes,) names.
    usage        (slots, nodes): sum of the node's series; NaN where none has a value.
    members      (slots, members): the series themselves; a series on several nodes is a member of each.
    owner        (members,): node of each member.
    requested    (members,) or, where requests change, (slots, members): NaN where they are not known.
    warmup_slots decisions before this slot are made and learned from, but not scored.
    """

    name: str
    slot_seconds: float
    at0: float
    nodes: tuple[str, ...]
    usage: Usage
    members: Usage
    owner: Integers
    requested: Floats
    warmup_slots: int = 0

    def label(self, slot: int) -> float:
        """The time by which the input knows the slot."""
        return self.at0 + slot * self.slot_seconds

    def slots_of(self, seconds: float) -> int:
        """How many slots a duration covers, at least one."""
        return max(1, round(seconds / self.slot_seconds))

    def present(self, slot: int) -> npt.NDArray[np.bool_]:
        """(members,) whether it had a sample within the last day, as known at the end of `slot`."""
        found: npt.NDArray[np.bool_] = ~np.isnan(self.members[slot])
        if not found.all():
            first = max(0, slot + 1 - self.slots_of(PRESENT_SECONDS))
            found |= ~np.isnan(self.members[first:slot]).all(axis=0)
        return found

    def asked(self, slot: int) -> Floats:
        """(members,) requests as they were in `slot`."""
        return self.requested if self.requested.ndim == 1 else np.asarray(self.requested[slot])

    def limits(self, slot: int) -> Floats:
        """(nodes,) requests of the series that are there at the end of `slot`; NaN where one is not known."""
        requested, kept = self.asked(slot), self.present(slot)
        total = np.asarray(np.bincount(self.owner[kept], requested[kept], minlength=len(self.nodes)), dtype=np.float64)
        total[np.bincount(self.owner[kept], minlength=len(self.nodes)) == 0] = np.nan
        return total


def every_for(horizon_seconds: float) -> float:
    """Seconds between decisions unless asked otherwise: an hour, for horizons above six hours six."""
    return HOUR_SECONDS if horizon_seconds <= SHORT_HORIZON_SECONDS else _EVERY_LONG_SECONDS


def decision_slots(replay: Replay, every_seconds: float) -> range:
    """Slots at whose end a decision is made: those whose label is a multiple of `every_seconds`."""
    step = replay.slots_of(every_seconds)
    return range(-round(replay.at0 / replay.slot_seconds) % step, len(replay.usage), step)


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """What decisions of a replay see, without the series' slots: small enough to be sent to another process.

    slots    (decisions,) slot at whose end each is made, rising.
    limits   (decisions, nodes) requests as far as they are known.
    present  (decisions, members) whether the member is there.
    asked    (members,) or (decisions, members) requests.
    hours    hourly maximum and mean of members (blocks, members), by the place in the hour that its blocks end on.
    """

    name: str
    slot_seconds: float
    at0: float
    nodes: tuple[str, ...]
    usage: Usage
    owner: Integers
    slots: Integers
    limits: Floats
    present: npt.NDArray[np.bool_]
    asked: Floats
    hours: Mapping[int, tuple[Usage, Usage]]
    warmup_slots: int = 0

    def label(self, slot: int) -> float:
        """The time by which the input knows the slot."""
        return self.at0 + slot * self.slot_seconds

    def slots_of(self, seconds: float) -> int:
        """How many slots a duration covers, at least one."""
        return max(1, round(seconds / self.slot_seconds))

    def history(self, number: int) -> History:
        """What decision `number` sees of all nodes: the last `HISTORY_DAYS` days. Views: not to be written to."""
        end = int(self.slots[number]) + 1
        return History(
            usage=self.usage[max(0, end - self.slots_of(HISTORY_DAYS * DAY_SECONDS)) : end],
            requested=self.limits[number],
            slot_seconds=self.slot_seconds,
            at=self.label(end),
            members=self._members(number, end),
        )

    def _members(self, number: int, end: int) -> Members:
        per_hour = self.slots_of(HOUR_SECONDS)
        offset = end % per_hour
        highest, mean = self.hours[offset]
        last = end // per_hour + (offset > 0)
        first = max(0, last - round(HISTORY_DAYS * DAY_SECONDS / (per_hour * self.slot_seconds)))
        requested = self.asked if self.asked.ndim == 1 else self.asked[number]
        kept = self.present[number]
        if kept.all():
            return Members(self.owner, highest[first:last], mean[first:last], requested)
        return Members(self.owner[kept], highest[first:last, kept], mean[first:last, kept], requested[kept])


def script(replay: Replay, slots: range) -> Script:
    """What the decisions at the ends of `slots` see.

    A block of an hour holds its own slots only, so those up to a decision are the same whatever comes later.
    """
    per_hour = replay.slots_of(HOUR_SECONDS)
    places = {(slot + 1) % per_hour for slot in slots[:per_hour]}
    members, nodes = len(replay.owner), len(replay.nodes)
    return Script(
        name=replay.name,
        slot_seconds=replay.slot_seconds,
        at0=replay.at0,
        nodes=replay.nodes,
        usage=replay.usage,
        owner=replay.owner,
        slots=np.array(slots, dtype=np.int64),
        limits=np.array([replay.limits(slot) for slot in slots]).reshape(len(slots), nodes),
        present=np.array([replay.present(slot) for slot in slots]).reshape(len(slots), members),
        asked=replay.requested if replay.requested.ndim == 1 else replay.requested[list(slots)],
        hours={place: _blocks(replay.members, per_hour, place) for place in places},
        warmup_slots=replay.warmup_slots,
    )


def decisions(
    replay: Replay, horizon_seconds: float, every_seconds: float | None = None, *, slots: range | None = None
) -> Iterator[tuple[int, History]]:
    """Each decision's slot and what is known at its end, oldest first. `slots` replaces the rhythm."""
    made = script(replay, slots or decision_slots(replay, every_seconds or every_for(horizon_seconds)))
    for number, slot in enumerate(made.slots):
        yield int(slot), made.history(number)


def _blocks(values: Usage, per_hour: int, offset: int) -> tuple[Usage, Usage]:
    """Maximum and mean of blocks of `per_hour` rows from row `offset` on; rows before it are a block of their own."""
    parts = [values[:offset][None]] if offset else []
    whole = (len(values) - offset) // per_hour
    if whole > 0:
        parts.append(values[offset : offset + whole * per_hour].reshape(whole, per_hour, values.shape[1]))
    reduced = [_reduce(part) for part in parts]
    return np.concatenate([highest for highest, _ in reduced]), np.concatenate([mean for _, mean in reduced])


def _reduce(blocks: Usage) -> tuple[Usage, Usage]:
    """(blocks, rows, members) to the maximum and the mean over rows, as float32; NaN where all rows are gaps."""
    shape = (blocks.shape[0], blocks.shape[2])
    highest = np.full(shape, np.nan, dtype=np.float32)
    total, count = np.zeros(shape), np.zeros(shape, dtype=np.int32)
    for row in range(blocks.shape[1]):
        value = blocks[:, row]
        known = ~np.isnan(value)
        np.fmax(highest, value, out=highest, casting="same_kind")
        np.add(total, value, out=total, where=known)
        count += known
    with np.errstate(invalid="ignore"):
        return highest, np.asarray(total / np.where(count, count, np.nan), dtype=np.float32)


def select(history: History, nodes: Integers) -> History:
    """The history of some nodes alone, in the order given; members go with their node."""
    members = history.members
    if members is not None:
        place = np.full(history.usage.shape[1], -1, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        kept = place[members.series] >= 0
        members = Members(
            place[members.series[kept]],
            members.hourly_max[:, kept],
            members.hourly_mean[:, kept],
            members.requested[kept],
        )
    return dataclasses.replace(
        history, usage=history.usage[:, nodes], requested=history.requested[nodes], members=members
    )


def carry_forward(values: Usage, limit: int | None = None) -> Usage:
    """(slots, series) with gaps filled by the value before them, at most `limit` slots long; None: however long."""
    rows = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, rows), axis=0)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    late = last < 0 if limit is None else (last < 0) | (rows - last > limit)
    filled[late] = np.nan
    return filled


def node_usage(members: Usage, owner: Integers, nodes: int) -> Floats:
    """(slots, nodes) sum of each node's members; NaN where none of them has a value."""
    if len(owner) == nodes and np.array_equal(owner, np.arange(nodes)):
        return np.asarray(members, dtype=np.float64)
    usage = np.full((len(members), nodes), np.nan)
    order = np.argsort(owner, kind="stable")
    for node, mine in _groups(owner[order], order):
        part = members[:, mine]
        known = ~np.isnan(part).all(axis=1)
        usage[known, node] = np.nansum(part[known], axis=1, dtype=np.float64)
    return usage


def _groups(ordered: Integers, order: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    values, starts = np.unique(ordered, return_index=True)
    yield from zip((int(value) for value in values), np.split(order, starts[1:]), strict=True)
