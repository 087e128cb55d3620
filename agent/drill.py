"""A drill on this node: what was ordered, and what was seen of it. Pure.

A drill makes trouble of one `Kind` for a bounded time, and then waits until all is as before. All times are monotonic;
what is reported is the time since the trouble was raised.

    waiting -> raised -> detected -> throttled -> evicted -> (trouble ends) -> recovered
                  any of them -> aborted | failed

`detected` is the first decision in which a rung that answers to this kind is engaged, `throttled` the first round in
which the kernel held a lower limit for BE, `evicted` the first eviction that the API took. A phase that does not come
is left out: a drill with a victim budget of 0 evicts nobody. What else a kind goes through stands in the timeline
(`agent.drill_steps` moves it on).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.eviction import Attempt, DrillOrder, Victim
from agent.policy.rung import RungStatus
from agent.pressure import Pressure

RAISED_PRESSURE: Final = 10.0
"""Value of the raised signal, in run delay per run time: far beyond any cut that can be set."""

_MOMENTS: Final = 256
"""Lines of a timeline; beyond them only the phases are added."""


class Kind(enum.StrEnum):
    """What trouble is made."""

    PRESSURE = "pressure"
    """LS pressure is reported as far beyond every cut; nothing runs."""
    LOAD = "load"
    """A helper burns CPU; what is measured decides."""
    MEMORY = "memory"
    """Available memory is reported as so low that the memory rung acts; nothing is allocated."""
    BANDWIDTH = "bandwidth"
    """LS is reported to lose cache and bandwidth to BE; needs resctrl."""
    AGENT_LOSS = "agent-loss"
    """LS pressure is raised, and once BE is throttled the control loop falls silent."""
    PREDICTOR_LOSS = "predictor-loss"
    """The streams to the predictors are cut."""
    STALE = "stale"
    """The streams stay, and no sample is sent."""


PRESSES_LS: Final = frozenset({Kind.PRESSURE, Kind.LOAD, Kind.AGENT_LOSS})
"""Kinds for which the eviction policy would take the gaps that LS pressure makes on the drill's account."""

EVICTS: Final = frozenset({Kind.PRESSURE, Kind.LOAD, Kind.MEMORY})
"""Kinds that may evict."""

KEEPS_SAMPLES: Final = frozenset({Kind.PREDICTOR_LOSS, Kind.STALE})
"""Kinds in which no sample leaves the node."""

RUNGS: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.PRESSURE: frozenset({"contention", "close", "evict"}),
    Kind.LOAD: frozenset({"contention", "close", "evict"}),
    Kind.MEMORY: frozenset({"memory", "close", "evict"}),
    Kind.BANDWIDTH: frozenset({"cache_bandwidth", "close"}),
    Kind.AGENT_LOSS: frozenset({"contention", "close"}),
    Kind.PREDICTOR_LOSS: frozenset(),
    Kind.STALE: frozenset(),
}
"""Rungs that each kind can engage; others answer to what is really there."""


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


class Hold(enum.StrEnum):
    """What a drill does to the streams of samples."""

    NOTHING = "nothing"
    WITHHELD = "withheld"
    """The streams stay, and nothing is sent."""
    CUT = "cut"
    """There are no streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A step of the timeline that must come within so many seconds, from `raised` or (`after_lowered`) `lowered`."""

    step: str
    within_seconds: float
    after_lowered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for. `victims_max` 0 evicts nobody; `intensity_percent` is of the CPU that LS leaves idle.

    `memory_percent` is what a memory drill reports as available, of the node's. `recover_seconds` is how long after
    the trouble all must be as before. `started_wall` is seconds since the epoch.
    """

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
    memory_percent: float | None = None
    targets: tuple[Target, ...] = ()
    started_wall: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVictim:
    """A pod that the drill evicted, or would have; `why_not` is what kept it, as far as anybody said."""

    victim: Victim
    evicted: bool
    why_not: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline; `at` is monotonic seconds."""

    step: str
    at: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLook:
    """What the node's forecast says: when it was made (the predictor's clock), how fresh it is, what it offers.

    `silent`: the predictor has not heard of the node lately. `shut`: nothing may be sold by it any more.
    """

    at: float
    silent: bool
    shut: bool
    fresh: bool
    offered_millis: int | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What is seen beyond the node: the streams to the predictors, the samples that wait, the node's forecast.

    `at` is monotonic seconds. `forecast` is None where there is none, or (`problem` says why) it cannot be read.
    """

    at: float
    connected: bool
    waiting: int
    forecast: ForecastLook | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """How things stood when the trouble was raised."""

    levels: Mapping[str, int] = field(default_factory=dict)
    be_here: bool = False
    lifted: int = 0
    outside: Outside | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """State of a drill. `*_at` are monotonic seconds, None for what did not happen (yet).

    `levels` are those of the rungs and `limit_millis` is the limit on BE at the last look, `pressure_max` the highest
    LS pressure that was measured since the raise. `silent_at` is when the control loop fell silent. `least_waiting`
    and `most_waiting` count the samples that waited at a time, `lowered_forecast_at` is the time of the forecast when
    they were let go, `silent_offer_millis` what the node offered when it was first known to be silent.
    """

    order: Order
    phase: Phase = Phase.WAITING
    raised_at: float | None = None
    detected_at: float | None = None
    throttled_at: float | None = None
    evicted_at: float | None = None
    silent_at: float | None = None
    lowered_at: float | None = None
    recovered_at: float | None = None
    ended_at: float | None = None
    victims: tuple[SeenVictim, ...] = ()
    message: str = "waits for the next beat"
    timeline: tuple[Moment, ...] = ()
    before: Before = Before()
    levels: Mapping[str, int] = field(default_factory=dict)
    limit_millis: int | None = None
    pressure: float | None = None
    pressure_max: float | None = None
    least_waiting: int | None = None
    most_waiting: int = 0
    lowered_forecast_at: float | None = None
    silent_offer_millis: int | None = None
    misses: tuple[str, ...] = ()

    @property
    def pressing(self) -> bool:
        """Whether the trouble is there now."""
        return self.raised_at is not None and self.lowered_at is None and not self.phase.ended

    @property
    def silences(self) -> bool:
        """Whether the control loop is to be silent now."""
        return self.pressing and self.silent_at is not None

    @property
    def hold(self) -> Hold:
        """What it does to the streams of samples now."""
        if not self.pressing or self.order.kind not in KEEPS_SAMPLES:
            return Hold.NOTHING
        return Hold.CUT if self.order.kind is Kind.PREDICTOR_LOSS else Hold.WITHHELD

    @property
    def passed(self) -> bool:
        """Whether it ended well, and within all targets."""
        return self.phase is Phase.RECOVERED and not self.misses

    def since_raised(self, at: float | None) -> float | None:
        """Seconds from the raise to `at`; None when either is missing."""
        return None if at is None or self.raised_at is None else at - self.raised_at

    def at(self, step: str) -> float | None:
        """When a step came first; None when it did not."""
        return next((moment.at for moment in self.timeline if moment.step == step), None)

    @property
    def for_policies(self) -> DrillOrder | None:
        """What policies are to make of it; None when it does not press now."""
        if not self.pressing:
            return None
        kind = self.order.kind
        taken = len(self.victims) if self.order.dry_run else sum(seen.evicted for seen in self.victims)
        left = max(0, self.order.victims_max - taken) if kind in EVICTS else 0
        return DrillOrder(
            id=self.order.id,
            victims_left=left,
            dry_run=self.order.dry_run,
            presses_ls=kind in PRESSES_LS,
            memory_percent=self.order.memory_percent,
            takes_bandwidth=kind is Kind.BANDWIDTH,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen in one decision. `be_limit_millis` is in force in the kernel, None is no limit.

    memory_held, class_held  whether the plan holds memory of BE pods, or cache and bandwidth of the class of BE
    be_here, present         whether BE pods are here; UIDs of all pods, None where they were not looked at
    pressure                 LS pressure as it is measured
    lifted                   how often the watchdog has lifted hard limits
    """

    at: float
    rungs: Mapping[str, RungStatus]
    be_limit_millis: int | None
    victims: tuple[Victim, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    memory_held: bool = False
    class_held: bool = False
    be_here: bool = True
    present: frozenset[str] | None = None
    pressure: float | None = None
    lifted: int = 0
    outside: Outside | None = None


def raised(window_seconds: float) -> Pressure:
    """The signal of a drill, in place of what is measured."""
    return Pressure(kind="drill", value=RAISED_PRESSURE, window_seconds=window_seconds)


_ALWAYS: Final = frozenset({*Phase, "lowered"})


def noted(drill: Drill, step: str, at: float, detail: str = "") -> Drill:
    """With one more line in the timeline; a full one takes no more than the phases."""
    if len(drill.timeline) >= _MOMENTS and step not in _ALWAYS:
        return drill
    return replace(drill, timeline=(*drill.timeline, Moment(step=step, at=at, detail=detail)))


def reached(drill: Drill, phase: Phase, at: float, message: str) -> Drill:
    """In this phase, with its line in the timeline."""
    drill = noted(replace(drill, phase=phase, message=message), phase.value, at, message)
    return replace(drill, ended_at=at) if phase.ended else drill


def abort(drill: Drill, why: str, at: float) -> Drill:
    """End it now; the next decision finds everything as it is measured."""
    if drill.phase.ended:
        return drill
    return reached(replace(drill, lowered_at=drill.lowered_at or at), Phase.ABORTED, at, why)
