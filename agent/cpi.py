"""Cycles per instruction from counts of the hardware. Pure.

Cycles and instructions are counted in one group, so both ran for the same time however the kernel shared the counters
out: their ratio needs no scaling on one CPU. Over several CPUs each is scaled to the time it was wanted, so that a CPU
weighs by what the pod did there and not by how often its counters happened to run. Core cycles, never reference
cycles: those tick at one rate whatever the clock does and skew the ratio (koordinator#1470, #1482, #1489).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MIN_INSTRUCTIONS: Final = 10_000_000
"""Fewer say more of start and end of the collection than of the pod."""

MIN_RUNNING_SECONDS: Final = 0.05
MIN_SHARE: Final = 0.1
"""Counters that ran for less of the time they were wanted saw a sample too small to scale."""


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Counts of one cgroup on one CPU since its counters were opened; times in nanoseconds.

    `enabled_ns` is how long they were wanted (the cgroup ran there), `running_ns` how long the hardware counted.
    """

    cycles: int
    instructions: int
    enabled_ns: int
    running_ns: int


def since(before: GroupCount, after: GroupCount) -> GroupCount | None:
    """What was counted between two readings; None where a counter went back."""
    parts = (
        after.cycles - before.cycles,
        after.instructions - before.instructions,
        after.enabled_ns - before.enabled_ns,
        after.running_ns - before.running_ns,
    )
    return None if min(parts) < 0 else GroupCount(*parts)


def cpi_of(counts: Sequence[GroupCount]) -> float | None:
    """Cycles per instruction of a pod from its counts on all CPUs; None when too little was counted to tell."""
    enabled, running = sum(count.enabled_ns for count in counts), sum(count.running_ns for count in counts)
    if running < MIN_RUNNING_SECONDS * 1e9 or running < MIN_SHARE * enabled:
        return None
    counted = [count for count in counts if count.running_ns > 0]
    if sum(count.instructions for count in counted) < MIN_INSTRUCTIONS:
        return None
    cycles = sum(count.cycles * max(1.0, count.enabled_ns / count.running_ns) for count in counted)
    instructions = sum(count.instructions * max(1.0, count.enabled_ns / count.running_ns) for count in counted)
    return cycles / instructions if cycles > 0 else None
