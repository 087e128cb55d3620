"""A drill on this node: what was ordered, and what was seen of detection, throttle, eviction and recovery. Pure.

A drill raises LS pressure (a signal, or real load by `agent.act.drill_load`), for a bounded time, and then waits until
the ladder is open again. All times are monotonic; what is reported is the time since the pressure was raised.

    waiting -> raised -> detected -> throttled -> evicted -> (pressure ends) -> recovered
                  any of them -> aborted | failed

`detected` is the first decision in which the contention rung is engaged, `throttled` the first round in which the
kernel held a lower limit for BE, `evicted` the first eviction that the API took. A phase that does not come is left
out: a drill with a victim budget of 0 evicts nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.eviction import Attempt, DrillOrder, Outcome, Victim
from agent.policy.rung import RungStatus
from agent.pressure import Pressure

CONTENTION: Final = "contention"
"""The rung that answers to LS pressure."""

RAISED_PRESSURE: Final = 10.0
"""Value of the raised signal, in run delay per run time: far beyond any cut that can be set."""


class Kind(enum.StrEnum):
    """How the pressure is raised."""

    SIGNAL = "signal"
    LOAD = "load"


class Phase(enum.StrEnum):
    """How far a drill is; the last three are its ends."""

    WAITING = "waiting"
    RAISED = "raised"
    DETECTED = "detected"
    THROTTLED = "throttled"
    EVICTED = "evicted"
    RECOVERED = "recovered"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self in {Phase.RECOVERED, Phase.ABORTED, Phase.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for. `victims_max` 0 evicts nobody; `intensity_percent` is of the CPU that LS leaves idle."""

    id: str
    kind: Kind
    duration_seconds: float
    dry_run: bool
    victims_max: int
    reason: str
    caller: str
    dead_man_seconds: float
    recover_seconds: float
    intensity_percent: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVictim:
    """A pod that the drill evicted, or would have; `why_not` is what kept it, as far as anybody said."""

    victim: Victim
    evicted: bool
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """State of a drill. `*_at` are monotonic seconds, None for what did not happen (yet)."""

    order: Order
    phase: Phase = Phase.WAITING
    raised_at: float | None = None
    detected_at: float | None = None
    throttled_at: float | None = None
    evicted_at: float | None = None
    lowered_at: float | None = None
    recovered_at: float | None = None
    victims: tuple[SeenVictim, ...] = ()
    message: str = "waits for the next beat"

    @property
    def pressing(self) -> bool:
        """Whether the pressure is raised now."""
        return self.raised_at is not None and self.lowered_at is None and not self.phase.ended

    def since_raised(self, at: float | None) -> float | None:
        """Seconds from the raise to `at`; None when either is missing."""
        return None if at is None or self.raised_at is None else at - self.raised_at

    @property
    def for_policies(self) -> DrillOrder | None:
        """What the eviction policy may do for it; None when it does not press now."""
        if not self.pressing:
            return None
        taken = len(self.victims) if self.order.dry_run else sum(seen.evicted for seen in self.victims)
        left = max(0, self.order.victims_max - taken)
        return DrillOrder(id=self.order.id, victims_left=left, dry_run=self.order.dry_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the control thread saw in one decision. `be_limit_millis` is in force in the kernel, None is no limit."""

    at: float
    rungs: Mapping[str, RungStatus]
    be_limit_millis: int | None
    victims: tuple[Victim, ...] = ()
    attempts: tuple[Attempt, ...] = ()


def raised(window_seconds: float) -> Pressure:
    """The signal of a drill, in place of what is measured."""
    return Pressure(kind="drill", value=RAISED_PRESSURE, window_seconds=window_seconds)


def advance(drill: Drill, seen: Seen) -> Drill:
    """The next state; a drill that ended stays as it is."""
    if drill.phase.ended:
        return drill
    if drill.raised_at is None:
        what = "LS pressure raised" if drill.order.kind is Kind.SIGNAL else "load started"
        return replace(drill, phase=Phase.RAISED, raised_at=seen.at, message=what)
    raised_at = drill.raised_at
    drill = _evictions(_reactions(drill, seen), seen)
    return _ending(drill, raised_at, seen)


def _ending(drill: Drill, raised_at: float, seen: Seen) -> Drill:
    """Lower the pressure when its time is over, and judge the recovery from then on."""
    if drill.lowered_at is None:
        if seen.at - raised_at < drill.order.duration_seconds:
            return drill
        return replace(drill, lowered_at=seen.at, message="pressure is off; waits until BE has its room back")
    if seen.be_limit_millis is None and not any(_holds(status) for status in seen.rungs.values()):
        return replace(drill, phase=Phase.RECOVERED, recovered_at=seen.at, message="BE has its room back")
    if seen.at - drill.lowered_at >= drill.order.recover_seconds:
        held = ", ".join(sorted(name for name, status in seen.rungs.items() if _holds(status))) or "a limit on BE"
        why = f"not recovered {drill.order.recover_seconds:g} s after the pressure was off: {held} still in force"
        return replace(drill, phase=Phase.FAILED, message=why)
    return drill


def abort(drill: Drill, why: str, at: float) -> Drill:
    """End it now; the next decision finds the pressure as it is measured."""
    if drill.phase.ended:
        return drill
    return replace(drill, phase=Phase.ABORTED, lowered_at=drill.lowered_at or at, message=why)


_OF_A_DRILL: Final = frozenset({CONTENTION, "close", "evict"})
"""Rungs that a drill's pressure can engage; others answer to what is really there."""


def _holds(status: RungStatus) -> bool:
    return status.engaged and status.name in _OF_A_DRILL


def _reactions(drill: Drill, seen: Seen) -> Drill:
    rung = seen.rungs.get(CONTENTION)
    if drill.detected_at is None and rung is not None and rung.engaged:
        drill = replace(drill, phase=Phase.DETECTED, detected_at=seen.at, message=rung.reason)
    if drill.throttled_at is None and drill.detected_at is not None and seen.be_limit_millis is not None:
        said = f"BE is limited to {seen.be_limit_millis}m"
        drill = replace(drill, phase=Phase.THROTTLED, throttled_at=seen.at, message=said)
    return drill


def _evictions(drill: Drill, seen: Seen) -> Drill:
    """Victims of this drill by uid: once named, evicted when the API took it."""
    known = {one.victim.uid: one for one in drill.victims}
    sent = {attempt.uid for attempt in seen.attempts if attempt.outcome in {Outcome.SENT, Outcome.GONE}}
    kept = {attempt.uid: attempt.detail for attempt in seen.attempts if attempt.uid not in sent}
    for victim in seen.victims:
        if victim.drill == drill.order.id:
            known.setdefault(victim.uid, SeenVictim(victim=victim, evicted=False))
    victims = tuple(_seen_again(one, evicted=uid in sent, why_not=kept.get(uid)) for uid, one in known.items())
    if victims == drill.victims:
        return drill
    drill = replace(drill, victims=victims)
    if drill.evicted_at is None and any(one.evicted for one in victims):
        first = next(one.victim for one in victims if one.evicted)
        said = f"evicted {first.namespace}/{first.name}"
        drill = replace(drill, phase=Phase.EVICTED, evicted_at=seen.at, message=said)
    return drill


def _seen_again(one: SeenVictim, *, evicted: bool, why_not: str | None) -> SeenVictim:
    """What is known of it now; what was evicted stays so, and nothing kept it."""
    if one.evicted or evicted:
        return replace(one, evicted=True, why_not="")
    return one if why_not is None else replace(one, why_not=why_not)
