"""How short of CPU the latency-sensitive tier is: pure arithmetic over what the beat reads.

Two signals, in the kernel's own terms. *Run delay*: nanoseconds that LS threads waited on a run queue per
nanosecond that they ran. *PSI*: the share of time in which some LS thread waited (`some`), the highest of the LS
pods. LS waits for itself too: with random arrivals on c CPUs at load p, Erlang's C formula gives how much. That
part is `natural`; taking BE's CPU away cannot cure it, so policies judge `value - natural`.

A thread that never gets on a CPU adds no run delay until it does; cpu.idle and weight keep such waits short.
Source: kernel Documentation/scheduler/sched-stats.rst, Documentation/accounting/psi.rst; M/M/c queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from agent.counters import PsiTotals, RunDelay

MAX_NATURAL_LOAD = 0.85
"""Above this load the queue of LS alone grows without bound, so the allowance stops growing here."""

MIN_RUN_SHARE = 0.05
"""LS that ran less than this share of one CPU is judged as if it had, or a few microseconds would make a ratio."""

Kind = Literal["run-delay", "psi", "no-ls", "drill"]


TYPICAL_CUT: Final[dict[Kind, float]] = {"psi": 0.3, "run-delay": 1.0, "no-ls": 1.0, "drill": 1.0}
"""What makes one unit of each kind comparable: the default cuts of `agent.policy.shortage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """LS pressure over `window_seconds`; `natural` is what LS would suffer alone at this load, in the same unit.

    Kind `drill` is no measurement: somebody raised the signal on purpose.
    """

    kind: Kind
    value: float
    natural: float = 0.0
    window_seconds: float

    @property
    def excess(self) -> float:
        """What is left to blame on others; negative when LS waits less than expected."""
        return self.value - self.natural


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Whether LS is short of CPU because of BE, judged once a look by `agent.policy.shortage`.

    `short` None is "not known". `calm` is far enough from short to give BE more; neither short nor calm is the hold
    band. Both are never true at once.
    """

    short: bool | None
    calm: bool
    reason: str
    disturbed: bool = False
    """Whether an LS pod's own cycles per instruction say so: a neighbour takes its cache or its memory bus."""


def erlang_c(load: float, cpus: int) -> float:
    """Probability that an arrival has to wait on `cpus` servers at `load` (0 to below 1 of all of them)."""
    offered = load * cpus
    if offered <= 0:
        return 0.0
    term, total = 1.0, 1.0
    for count in range(1, cpus):
        term *= offered / count
        total += term
    last = term * offered / cpus / (1.0 - load)
    return last / (total + last)


def natural_wait(load: float, cpus: int) -> float:
    """Mean wait per mean service time of an M/M/c queue; `load` is cut to MAX_NATURAL_LOAD."""
    load = min(max(load, 0.0), MAX_NATURAL_LOAD)
    return erlang_c(load, cpus) / (cpus * (1.0 - load))


@dataclass(frozen=True, slots=True)
class Waited:
    """Time on a CPU and time waiting, in nanoseconds, scaled up to all LS threads."""

    run_ns: float
    delay_ns: float


def sum_deltas(before: RunDelay, after: RunDelay) -> Waited | None:
    """Sum over the threads that both readings hold, scaled to all threads; None when there is none.

    A thread whose counter fell is another thread with a recycled id: it is left out.
    """
    run = delay = count = 0
    known = before.times
    for tid, times in after.times.items():
        old = known.get(tid)
        if old is None:
            continue
        if old is not times:
            run_ns, delay_ns = times
            if run_ns < old[0] or delay_ns < old[1]:
                continue
            run += run_ns - old[0]
            delay += delay_ns - old[1]
        count += 1
    if not count:
        return None
    scale = max(1.0, after.threads / count)
    return Waited(run * scale, delay * scale)


def pressure_of(
    waited: Waited | None, window_seconds: float, cpus: int, ls_load: float | None = None
) -> Pressure | None:
    """Pressure of `waited` over a window on a node with `cpus` CPUs.

    `ls_load` is the load of all LS as a share of the node, where `waited` is of some of it only.
    """
    if waited is None or window_seconds <= 0:
        return None
    run_seconds = waited.run_ns / 1e9
    base = max(run_seconds, MIN_RUN_SHARE * window_seconds)
    return Pressure(
        kind="run-delay",
        value=waited.delay_ns / 1e9 / base,
        natural=natural_wait(max(run_seconds / window_seconds / cpus, ls_load or 0.0), cpus),
        window_seconds=window_seconds,
    )


def psi_share(before: PsiTotals, after: PsiTotals, window_seconds: float) -> float | None:
    """Share of the window with some thread waiting, 0 to 1; None for a reset counter or no time."""
    stalled = after.some_us - before.some_us
    if stalled < 0 or window_seconds <= 0:
        return None
    return min(1.0, stalled / 1e6 / window_seconds)


def psi_pressure(shares: list[float], ls_load: float | None, cpus: int, window_seconds: float) -> Pressure | None:
    """The highest share of the LS pods, with the chance to wait at the LS load alone as its natural part."""
    if not shares:
        return None
    load = 0.0 if ls_load is None or math.isnan(ls_load) else min(max(ls_load, 0.0), MAX_NATURAL_LOAD)
    return Pressure(kind="psi", value=max(shares), natural=erlang_c(load, cpus), window_seconds=window_seconds)


def worst(one: Pressure | None, other: Pressure | None) -> Pressure | None:
    """Of two pressures of different LS pods the one that is further beyond what LS makes itself; None if both are."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other, key=lambda pressure: pressure.excess / TYPICAL_CUT[pressure.kind])
