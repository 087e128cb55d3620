"""From what is known of one node to its forecast with all terms. Pure.

The forecast says what was computed; what goes out of it, and when, is decided in `predictor.publish`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from predictor.newcomers import NOBODY, Newcomers
from predictor.pools import NodeBounds
from predictor.reclaim import Demand, Reclaim, larger, reclaim, smaller
from predictor.samples import Sample
from predictor.silence import HEARD, Silence, faded_amount
from predictor.zones import split
from slacktide.forecast import UNKNOWN, Amount, Forecast, Origin, Terms, Zone

_NO_ORIGIN: Final = Origin()
_NO_PINS: Final[Mapping[int, Amount]] = MappingProxyType({})


class Peak(NamedTuple):
    """Highest LS + SYSTEM use that is expected of one resource, and how that came about.

    amount  millicores or bytes; None or NaN when nothing is known
    cold    it is what was seen, not a forecast: requests count
    """

    amount: float | None = None
    origin: Origin = _NO_ORIGIN
    cold: bool = True


NO_PEAK: Final = Peak()


class Knowledge(NamedTuple):
    """What is known of one node at one moment.

    latest       newest sample, None when none came since the start
    silence      what is left of the node's room when its samples stop
    cpu, memory  the peaks
    requested    plain requests of the LS pods bound to the node
    newcomers    what to add for LS pods that are too young to know
    capacity, allocatable  CPU and memory of the node object, None per part when unknown
    sold         batch requests of the BE pods bound to the node, None when pods are not known
    closed       why nothing more is to be sold there, whatever the numbers say; empty when it may
    zones        NUMA zones with their capacity, none when the agent does not say
    mid_sold     requests of the mid tier, below which what it is given never falls
    pinned       what LS pods that are bound to a zone take, by zone id
    """

    latest: Sample | None
    requested: Amount
    allocatable: Amount
    sold: Amount
    capacity: Amount = UNKNOWN
    silence: Silence = HEARD
    cpu: Peak = NO_PEAK
    memory: Peak = NO_PEAK
    newcomers: Newcomers = NOBODY
    closed: str = ""
    zones: tuple[Zone, ...] = ()
    mid_sold: Amount = UNKNOWN
    pinned: Mapping[int, Amount] = _NO_PINS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AssessRules:
    """Settings that enter the numbers. `mid_cap_percent` is None while the mid tier is off."""

    ttl_seconds: float
    horizon_seconds: float
    mid_cap_percent: float | None = None


def assess(known: Knowledge, at: float, rules: AssessRules, bounds: NodeBounds) -> Forecast:
    """The forecast of a node at `at` (seconds since the epoch). `closed` is set when anything it needs is missing."""
    demands = (_cpu(known), _memory(known))
    answers = (reclaim(demands[0], bounds.cpu), reclaim(demands[1], bounds.memory))
    computed = _both(answers, "reclaimable")
    share = known.silence.share
    reclaimable = faded_amount(computed, known.sold, share)
    return Forecast(
        at=at,
        ttl_seconds=rules.ttl_seconds,
        peak=_both(answers, "peak"),
        reclaimable=reclaimable,
        terms=_terms(known, demands, answers, bounds),
        closed=_closed(known, answers),
        zones=split(known.zones, reclaimable, known.pinned, _both(answers, "needed")),
        mid=_mid(known.mid_sold, demands, answers, rules.mid_cap_percent),
        horizon_seconds=rules.horizon_seconds,
    )


def _terms(
    known: Knowledge, demands: tuple[Demand, Demand], answers: tuple[Reclaim, Reclaim], bounds: NodeBounds
) -> Terms:
    count = known.newcomers.count
    notes = (answers[0].note, answers[1].note, f"young LS pods: {count}" if count else "")
    return Terms(
        capacity=Amount(cpu_millis=demands[0].capacity, memory_bytes=demands[1].capacity),
        reserve=_both(answers, "reserve"),
        peak=_both(answers, "peak"),
        now=Amount(cpu_millis=demands[0].now, memory_bytes=demands[1].now),
        sold=known.sold,
        requested=Amount(cpu_millis=demands[0].requested, memory_bytes=demands[1].requested),
        allocatable=known.allocatable,
        held=_both(answers, "held"),
        newcomers=_both(answers, "newcomers"),
        newcomer_pods=count,
        cap=_both(answers, "cap"),
        floor=_both(answers, "floor"),
        fading=known.silence.share if known.silence.words else None,
        model=known.cpu.origin.model,
        risk=known.cpu.origin.risk,
        cpu=known.cpu.origin,
        memory=known.memory.origin,
        pool=bounds.pool,
        note=_join(*notes, known.silence.words),
    )


def _closed(known: Knowledge, answers: tuple[Reclaim, Reclaim]) -> str:
    if known.silence.closed:
        return known.silence.words
    if known.latest is None:
        return "no sample from the agent yet"
    if known.sold.cpu_millis is None or known.sold.memory_bytes is None:
        return "what is sold here is not known"
    if known.closed:
        return known.closed
    if not (answers[0].missing or answers[1].missing):
        return ""
    return _join(
        *(f"{name}: {one.missing}" for name, one in zip(("cpu", "memory"), answers, strict=True) if one.missing)
    )


def _mid(
    sold: Amount, demands: tuple[Demand, Demand], answers: tuple[Reclaim, Reclaim], cap_percent: float | None
) -> Amount:
    """What LS pods asked for and are not expected to use, cut to what the node has left beside reserve and need.

    Never below what mid pods hold, nor unknown: a kubelet that restarts would reject them.
    """
    if cap_percent is None:
        return UNKNOWN
    cpu, memory = (_mid_part(demand, answer, cap_percent) for demand, answer in zip(demands, answers, strict=True))
    return Amount(cpu_millis=larger(cpu, sold.cpu_millis), memory_bytes=larger(memory, sold.memory_bytes))


def _mid_part(demand: Demand, answer: Reclaim, cap_percent: float) -> int | None:
    if demand.requested is None or demand.capacity is None or answer.needed is None or answer.reserve is None:
        return None
    unused = demand.requested + (demand.system_now or 0) - answer.needed
    left = demand.capacity - answer.reserve - (answer.held or 0) - answer.needed
    return max(0, min(unused, left, int(demand.capacity * cap_percent / 100)))


def _join(*parts: str) -> str:
    # Thousands of nodes have nothing to say.
    return "; ".join(dict.fromkeys(part for part in parts if part)) if any(parts) else ""


def _both(answers: tuple[Reclaim, Reclaim], field: str) -> Amount:
    cpu, memory = getattr(answers[0], field), getattr(answers[1], field)
    return UNKNOWN if cpu is None and memory is None else Amount(cpu_millis=cpu, memory_bytes=memory)


def _cpu(known: Knowledge) -> Demand:
    sample = known.latest
    return Demand(
        capacity=smaller(
            sample.capacity_cpu if sample else None, _either(known.capacity.cpu_millis, known.allocatable.cpu_millis)
        ),
        allocatable=known.allocatable.cpu_millis,
        now=sample.protected_cpu_mean if sample else None,
        system_now=sample.system_cpu_mean if sample else None,
        requested=larger(sample.ls_requested_cpu if sample else None, known.requested.cpu_millis),
        peak=known.cpu.amount,
        cold=known.cpu.cold,
        beyond_peak=known.newcomers.beyond_peak.cpu_millis or 0,
        beyond_now=known.newcomers.beyond_now.cpu_millis or 0,
    )


def _memory(known: Knowledge) -> Demand:
    sample = known.latest
    return Demand(
        capacity=smaller(
            sample.capacity_memory if sample else None,
            _either(known.capacity.memory_bytes, known.allocatable.memory_bytes),
        ),
        allocatable=known.allocatable.memory_bytes,
        now=sample.protected_memory_max if sample else None,
        system_now=sample.system_memory_max if sample else None,
        requested=larger(sample.ls_requested_memory if sample else None, known.requested.memory_bytes),
        peak=known.memory.amount,
        cold=known.memory.cold,
        beyond_peak=known.newcomers.beyond_peak.memory_bytes or 0,
        beyond_now=known.newcomers.beyond_now.memory_bytes or 0,
    )


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first
