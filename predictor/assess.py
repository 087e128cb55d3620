"""From what is known of one node to its forecast with all terms. Pure.

The forecast says what was computed; what goes out of it, and when, is decided in `predictor.publish`.
"""

from __future__ import annotations

import dataclasses

from predictor.reclaim import Demand, Reclaim, larger, reclaim, smaller
from predictor.samples import Sample
from slacktide.forecast import Amount, Forecast, Terms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of one node at one moment.

    latest           newest sample, None when none came since the start
    silent           why the newest sample no longer counts, in words; empty while it does
    covered_seconds  measured time inside the model's window
    peak_cpu, peak_memory  the model's answer in millicores and bytes, NaN or None when it has none
    requested        plain requests of the LS pods bound to the node
    allocatable      CPU and memory of the node object, None per part when unknown
    sold             batch requests of the BE pods bound to the node, None when pods are not known
    closed           why the agent asks that nothing more be sold there; empty when it may
    """

    latest: Sample | None
    silent: str
    covered_seconds: float
    peak_cpu: float | None
    peak_memory: float | None
    requested: Amount
    allocatable: Amount
    sold: Amount
    closed: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AssessRules:
    """Settings that enter the numbers."""

    cold_seconds: float
    reserve_cpu_percent: float
    reserve_memory_percent: float
    ttl_seconds: float
    model: str
    risk: float | None


def assess(known: Knowledge, at: float, rules: AssessRules) -> Forecast:
    """The forecast of a node at `at` (seconds since the epoch). `closed` is set when anything it needs is missing."""
    sample = None if known.silent else known.latest
    cold = known.covered_seconds < rules.cold_seconds
    cpu_demand, memory_demand = _cpu(sample, known), _memory(sample, known)
    cpu = reclaim(cpu_demand, rules.reserve_cpu_percent, cold)
    memory = reclaim(memory_demand, rules.reserve_memory_percent, cold)
    peak = Amount(cpu_millis=cpu.peak, memory_bytes=memory.peak)
    return Forecast(
        at=at,
        ttl_seconds=rules.ttl_seconds,
        peak=peak,
        reclaimable=Amount(cpu_millis=cpu.reclaimable, memory_bytes=memory.reclaimable),
        terms=Terms(
            capacity=Amount(cpu_millis=cpu_demand.capacity, memory_bytes=memory_demand.capacity),
            reserve=Amount(cpu_millis=cpu.reserve, memory_bytes=memory.reserve),
            peak=peak,
            now=Amount(cpu_millis=cpu_demand.now, memory_bytes=memory_demand.now),
            sold=known.sold,
            requested=Amount(cpu_millis=cpu_demand.requested, memory_bytes=memory_demand.requested),
            model=rules.model,
            risk=rules.risk,
            note=_join(cpu.note, memory.note),
        ),
        closed=_closed(known, cpu, memory),
    )


def _closed(known: Knowledge, cpu: Reclaim, memory: Reclaim) -> str:
    if known.silent:
        return known.silent
    if known.latest is None:
        return "no sample from the agent yet"
    if known.sold.cpu_millis is None or known.sold.memory_bytes is None:
        return "what is sold here is not known"
    if known.closed:
        return f"closed by the agent: {known.closed}"
    parts = (f"cpu: {cpu.missing}" if cpu.missing else "", f"memory: {memory.missing}" if memory.missing else "")
    return _join(*parts)


def _join(*parts: str) -> str:
    return "; ".join(dict.fromkeys(part for part in parts if part))


def _cpu(sample: Sample | None, known: Knowledge) -> Demand:
    return Demand(
        capacity=smaller(sample.capacity_cpu if sample else None, known.allocatable.cpu_millis),
        now=sample.protected_cpu_mean if sample else None,
        system_now=sample.system_cpu_mean if sample else None,
        requested=larger(sample.ls_requested_cpu if sample else None, known.requested.cpu_millis),
        peak=known.peak_cpu,
    )


def _memory(sample: Sample | None, known: Knowledge) -> Demand:
    return Demand(
        capacity=smaller(sample.capacity_memory if sample else None, known.allocatable.memory_bytes),
        now=sample.protected_memory_max if sample else None,
        system_now=sample.system_memory_max if sample else None,
        requested=larger(sample.ls_requested_memory if sample else None, known.requested.memory_bytes),
        peak=known.peak_memory,
    )
