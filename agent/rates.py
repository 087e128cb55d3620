"""Rates from two readings of one counter by one clock. Pure.

A counter that fell is a new baseline, and a gap of no time or of more than three periods (a clock that was set, a
suspended machine, a stalled agent) gives no rate. None is "not known", never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent.counters import IoReading, MemoryReading, PodPsi, PsiTotals
from agent.pressure import psi_share

MAX_GAP_PERIODS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Shares of time, 0 to 1, in which some (or, `memory_full`, every) task waited for a resource."""

    cpu: float | None = None
    memory: float | None = None
    memory_full: float | None = None
    io: float | None = None


NO_STALLS: Final = Stalls()


def per_second(before: int | None, after: int | None, seconds: float | None) -> float | None:
    """Growth a second; `seconds` is from `gap`."""
    if before is None or after is None or seconds is None or after < before:
        return None
    return (after - before) / seconds


def gap(before: float | None, after: float | None, period_seconds: float) -> float | None:
    """Seconds between two readings that come every `period_seconds`; None where they make no rate."""
    if before is None or after is None:
        return None
    elapsed = after - before
    return elapsed if 0 < elapsed <= MAX_GAP_PERIODS * period_seconds else None


def memory_high_rate(before: MemoryReading | None, after: MemoryReading | None, period_seconds: float) -> float | None:
    """How often a second a cgroup was throttled at memory.high."""
    if before is None or after is None:
        return None
    return per_second(before.high_events, after.high_events, gap(before.at, after.at, period_seconds))


def io_rate(before: IoReading | None, after: IoReading | None, period_seconds: float) -> float | None:
    """Bytes read and written a second; None also when one of both counters fell."""
    if before is None or after is None:
        return None
    seconds = gap(before.at, after.at, period_seconds)
    read = per_second(before.read_bytes, after.read_bytes, seconds)
    written = per_second(before.write_bytes, after.write_bytes, seconds)
    return None if read is None or written is None else read + written


def stalls(before: PodPsi | None, after: PodPsi | None, period_seconds: float) -> Stalls:
    """Shares of time that tasks of a cgroup, or of the node, waited."""
    if before is None or after is None:
        return NO_STALLS
    seconds = gap(before.at, after.at, period_seconds)
    if seconds is None:
        return NO_STALLS
    return Stalls(
        cpu=_some(before.cpu, after.cpu, seconds),
        memory=_some(before.memory, after.memory, seconds),
        memory_full=_full(before.memory, after.memory, seconds),
        io=_some(before.io, after.io, seconds),
    )


def _some(before: PsiTotals | None, after: PsiTotals | None, seconds: float) -> float | None:
    return psi_share(before, after, seconds) if before is not None and after is not None else None


def _full(before: PsiTotals | None, after: PsiTotals | None, seconds: float) -> float | None:
    if before is None or after is None:
        return None
    rate = per_second(before.full_us, after.full_us, seconds)
    return None if rate is None else min(1.0, rate / 1e6)
