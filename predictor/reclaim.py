"""How much of a node may be sold. Pure; one resource at a time, in whole units (millicores or bytes).

```
needed      = max(peak + newcomers beyond the peak, now + newcomers beyond now)
left        = min(capacity - reserve - held - needed, allocatable - needed)
reclaimable = max(0, left), at least floor, at most cap
```

held is the part of capacity - allocatable that SYSTEM does not use now: the node object keeps it from pods, and so do
we. floor lifts against the forecast only, never into what LS and SYSTEM use at this moment. None is not known and
never becomes more room: without capacity or use there is no answer, and without a peak the requests stand in for it.

Cold rule. The path `requests` means that the node has not shown its peak yet. Its peak is then taken as max(observed
peak, LS requests + SYSTEM use now): what its LS pods, newcomers among them, were promised, as if they used all of it.
A machine without LS pods therefore sells at once, and a machine full of them sells nothing until it has been seen.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final, NamedTuple

COLD_NOTE: Final = "cold: requests"


class Demand(NamedTuple):
    """What is known of one resource of one node; all in one unit, None = not known.

    capacity     what the node has; the smaller of what the agent measured and what the node object says
    allocatable  what the node object lets pods use; None is all of capacity
    now          LS + SYSTEM use in the newest sample: CPU its mean, memory its maximum
    system_now   the SYSTEM part of it
    requested    sum of plain requests of the LS pods on the node
    peak         highest LS + SYSTEM use that is expected, or that was seen where `cold`
    cold         the peak was not forecast: requests count
    beyond_peak, beyond_now  what newcomers add (predictor.newcomers)
    """

    capacity: int | None
    now: int | None
    system_now: int | None
    requested: int | None
    peak: float | None
    cold: bool = False
    allocatable: int | None = None
    beyond_peak: int = 0
    beyond_now: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Settings for one resource of one node, in percent of capacity."""

    reserve_percent: float = 0.0
    cap_percent: float = 100.0
    floor_percent: float = 0.0


class Reclaim(NamedTuple):
    """The answer for one resource with its terms. `missing` says in words what kept it from being known.

    newcomers is what they raise `needed` by; cap and floor are None where they bound nothing by the settings.
    """

    reclaimable: int | None
    peak: int | None
    reserve: int | None
    held: int | None = None
    needed: int | None = None
    newcomers: int | None = None
    cap: int | None = None
    floor: int | None = None
    note: str = ""
    missing: str = ""


def reclaim(demand: Demand, bounds: Bounds) -> Reclaim:
    """Reclaimable amount of one resource, never below 0 and never above capacity - reserve."""
    capacity, now = demand.capacity, demand.now
    reserve = None if capacity is None else math.ceil(capacity * bounds.reserve_percent / 100)
    peak, note = _peak(demand)
    missing = _missing(demand, peak)
    if missing or capacity is None or reserve is None or now is None or peak is None:
        return Reclaim(reclaimable=None, peak=peak, reserve=reserve, note=note, missing=missing)
    used = now + demand.beyond_now
    needed = max(peak + _beyond(demand), used)
    held = _held(demand, capacity)
    allocatable = capacity if demand.allocatable is None else min(capacity, demand.allocatable)
    left = min(capacity - reserve - held - needed, allocatable - needed)
    cap = None if bounds.cap_percent >= 100 else int(capacity * bounds.cap_percent / 100)
    floor = None if bounds.floor_percent <= 0 else int(capacity * bounds.floor_percent / 100)
    lifted = left if floor is None else max(left, min(floor, capacity - reserve - held - used, allocatable - used))
    return Reclaim(
        reclaimable=max(0, lifted if cap is None else min(lifted, cap)),
        peak=peak,
        reserve=reserve,
        held=held,
        needed=needed,
        newcomers=needed - max(peak, now),
        cap=cap,
        floor=floor,
        note=note,
    )


def _beyond(demand: Demand) -> int:
    """What newcomers add to the peak: nothing where it is their requests that stand for it."""
    return 0 if _is_cold(demand) else demand.beyond_peak


def _is_cold(demand: Demand) -> bool:
    return demand.cold or demand.peak is None or not math.isfinite(demand.peak)


def _peak(demand: Demand) -> tuple[int | None, str]:
    observed = None if demand.peak is None or not math.isfinite(demand.peak) else math.ceil(demand.peak)
    if not _is_cold(demand):
        return observed, ""
    if demand.requested is None or demand.system_now is None:
        return None, COLD_NOTE
    promised = demand.requested + demand.system_now
    return promised if observed is None else max(promised, observed), COLD_NOTE


def _held(demand: Demand, capacity: int) -> int:
    """Without a SYSTEM use all that the node object keeps is held."""
    if demand.allocatable is None:
        return 0
    return max(0, capacity - demand.allocatable - (demand.system_now or 0))


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
