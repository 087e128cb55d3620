"""How much each BE thread ran and waited of late, and what LS and SYSTEM take of each CPU. Pure.

Shares are of one CPU, smoothed over turns. A thread that was not measured yet counts as busy. A waiting thread adds to
its delay only when it gets on a CPU, and beside a full LS that can take seconds: it is told by its state instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.threads import ThreadKey, ThreadReading

_WEIGHT: Final = 0.5
"""Of the newest turn, for threads."""

_OTHERS_WEIGHT: Final = 0.25
"""Of the newest turn, for the use by others: a second of chance must not move BE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A thread's totals when it was last measured, and its smoothed shares (`ran` None: not measured yet).

    `quiet` and `starved` count turns in a row.
    """

    run_ns: int
    delay_ns: int
    ran: float | None = None
    waited: float = 0.0
    quiet: int = 0
    starved: int = 0

    def is_busy(self, share: float) -> bool:
        """Whether it wants at least `share` of a CPU."""
        return self.ran is None or self.ran + self.waited >= share

    @property
    def served(self) -> float:
        """What it got of what it wanted, 0 to 1."""
        ran = self.ran or 0.0
        return ran / (ran + self.waited) if ran + self.waited > 0 else 1.0


def measured(old: Load | None, reading: ThreadReading, seconds: float | None) -> Load:
    """The load after a turn of `seconds`; without them, or where a counter fell, only the totals are taken."""
    if old is None:
        return Load(run_ns=reading.run_ns, delay_ns=reading.delay_ns)
    run, delay = reading.run_ns - old.run_ns, reading.delay_ns - old.delay_ns
    if not seconds or run < 0 or delay < 0:
        return replace(old, run_ns=reading.run_ns, delay_ns=reading.delay_ns)
    ran, waited = run / 1e9 / seconds, 1.0 if reading.waiting else delay / 1e9 / seconds
    if old.ran is not None:
        ran, waited = _smooth(old.ran, ran, _WEIGHT), _smooth(old.waited, waited, _WEIGHT)
    return Load(
        run_ns=reading.run_ns,
        delay_ns=reading.delay_ns,
        ran=ran,
        waited=waited,
        quiet=old.quiet,
        starved=old.starved,
    )


def judged(loads: Mapping[ThreadKey, Load], busy_share: float, starve_ratio: float) -> dict[ThreadKey, Load]:
    """Count the turns in which each was quiet (below half of busy), or served worse than `starve_ratio` of the mean."""
    served = [load.served for load in loads.values() if load.ran is not None and load.is_busy(busy_share)]
    bar = starve_ratio * sum(served) / len(served) if served else 0.0
    return {key: _counted(load, busy_share, bar) for key, load in loads.items()}


def _counted(load: Load, busy_share: float, bar: float) -> Load:
    quiet = 0 if load.is_busy(busy_share / 2) else load.quiet + 1
    starves = load.ran is not None and load.is_busy(busy_share) and load.served < bar
    starved = load.starved + 1 if starves else 0
    return load if (quiet, starved) == (load.quiet, load.starved) else replace(load, quiet=quiet, starved=starved)


def others_of(
    old: Mapping[int, float],
    before: Mapping[int, float],
    now: Mapping[int, float],
    seconds: float | None,
    be: Iterable[tuple[int, float]],
) -> dict[int, float]:
    """Share of each CPU that was busy with anything but BE. `be` has (CPU, seconds run) of pinned BE threads."""
    if not seconds:
        return dict(old)
    used = {cpu: busy - before[cpu] for cpu, busy in now.items() if cpu in before}
    for cpu, ran in be:
        if cpu in used:
            used[cpu] -= ran
    shares = {cpu: min(1.0, max(0.0, busy / seconds)) for cpu, busy in used.items()}
    return {cpu: _smooth(old[cpu], share, _OTHERS_WEIGHT) if cpu in old else share for cpu, share in shares.items()}


def _smooth(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)
