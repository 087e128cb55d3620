"""How much of a node may be sold: reclaimable = capacity - reserve - max(peak, use now). Pure.

One resource at a time, in whole units (millicores or bytes). None is not known and never becomes more room: without
capacity or use there is no answer, and without a peak the requests stand in for it.

Cold rule. A node whose measured time is shorter than `cold_seconds` has not shown its peak yet. Its peak is taken
as max(observed peak, LS requests + SYSTEM use now): what its LS pods were promised, as if they used all of it.
A machine without LS pods therefore sells at once, and a machine full of them sells nothing until it has been seen.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from slacktide.forecast import Amount

COLD_NOTE: Final = "cold: requests"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is known of one resource of one node; all in one unit, None = not known.

    capacity    what the node has; the smaller of what the agent measured and what the node object allocates
    now         LS + SYSTEM use in the newest sample: CPU its mean, memory its maximum
    system_now  the SYSTEM part of it
    requested   sum of plain requests of the LS pods on the node
    peak        the model's answer, LS + SYSTEM
    """

    capacity: int | None
    now: int | None
    system_now: int | None
    requested: int | None
    peak: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """The answer for one resource with its terms. `missing` says in words what kept it from being known."""

    reclaimable: int | None
    peak: int | None
    reserve: int | None
    note: str = ""
    missing: str = ""


def reclaim(demand: Demand, reserve_percent: float, cold: bool) -> Reclaim:
    """Reclaimable amount of one resource, never below 0 and never above capacity - reserve."""
    reserve = None if demand.capacity is None else math.ceil(demand.capacity * reserve_percent / 100)
    peak, note = _peak(demand, cold)
    missing = _missing(demand, peak)
    if missing or demand.capacity is None or reserve is None or demand.now is None or peak is None:
        return Reclaim(reclaimable=None, peak=peak, reserve=reserve, note=note, missing=missing)
    left = demand.capacity - reserve - max(peak, demand.now)
    return Reclaim(reclaimable=max(0, left), peak=peak, reserve=reserve, note=note)


def _peak(demand: Demand, cold: bool) -> tuple[int | None, str]:
    observed = None if demand.peak is None or not math.isfinite(demand.peak) else math.ceil(demand.peak)
    if not cold and observed is not None:
        return observed, ""
    if demand.requested is None or demand.system_now is None:
        return None, COLD_NOTE
    promised = demand.requested + demand.system_now
    return promised if observed is None else max(promised, observed), COLD_NOTE


def _missing(demand: Demand, peak: int | None) -> str:
    if demand.capacity is None:
        return "capacity is not known"
    if demand.now is None:
        return "LS and SYSTEM use is not measured"
    if peak is None:
        return "the node is cold and its LS requests or SYSTEM use are not known"
    return ""


def smaller(one: int | None, other: int | None) -> int | None:
    """The smaller of two amounts of which either may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def larger(one: int | None, other: int | None) -> int | None:
    """The larger of two amounts of which either may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def amount(cpu: int | None, memory: int | None) -> Amount:
    """Both resources together."""
    return Amount(cpu_millis=cpu, memory_bytes=memory)
