"""The times that a drill is held against, and which of them it missed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from agent.drill import EVICTS, KEEPS_SAMPLES, Drill, Kind, Phase, Target
from slacktide.settings import Settings

if TYPE_CHECKING:
    from agent.settings import AgentSettings

_TURNS: Final = frozenset({Kind.MEMORY, Kind.BANDWIDTH})
"""Kinds that only turns answer to."""


def _millis(text: str) -> Meta:
    return Meta(ge=0, le=3_600_000, description=text, extra={"reloadable": True})


class DrillTargets(Settings, frozen=True, kw_only=True):
    """Times that a drill must keep to pass; 0 is not judged."""

    detected_millis: Annotated[int, _millis("From the raise to the first decision of a rung; 0: not judged")] = 500
    throttled_millis: Annotated[int, _millis("From the raise to the first limit on BE; 0: not judged")] = 1000
    evicted_millis: Annotated[int, _millis("From the raise to the first eviction; 0: not judged")] = 60_000
    recovered_millis: Annotated[int, _millis("From the end of the trouble until all is as before; 0: not judged")] = (
        90_000
    )
    relaxed_millis: Annotated[
        int, _millis("How much later than `watchdog_seconds` the watchdog may lift limits; 0: not judged")
    ] = 3000
    retaken_millis: Annotated[int, _millis("From the end of silence until limits are back; 0: not judged")] = 3000
    closed_millis: Annotated[int, _millis("Until a node that is not heard of sells nothing; 0: not judged")] = 0
    delivered_millis: Annotated[int, _millis("Until samples that had waited are taken; 0: not judged")] = 60_000
    fresh_millis: Annotated[int, _millis("Until a fresh forecast is seen again; 0: not judged")] = 90_000


def recover_seconds(kind: Kind, settings: AgentSettings) -> float:
    """How long after the trouble all must be as before; longer where levels open one by one."""
    return max(settings.drill.recover_seconds, _opening_seconds(kind, settings) + 30.0)


def _opening_seconds(kind: Kind, settings: AgentSettings) -> float:
    """What the settings of the ladder alone take to open cache and bandwidth from the end."""
    if kind is not Kind.BANDWIDTH:
        return 0.0
    own = settings.cache_bandwidth
    return own.steps * max(own.quiet_seconds, own.min_dwell_seconds) + settings.close.quiet_seconds


def targets_of(kind: Kind, duration_seconds: float, victims_max: int, settings: AgentSettings) -> tuple[Target, ...]:
    """The targets of a drill; those that its trouble does not last for are left out."""
    return tuple(
        target
        for target in _all(kind, victims_max, settings)
        if target.after_lowered or kind is Kind.AGENT_LOSS or target.within_seconds <= duration_seconds
    )


def _all(kind: Kind, victims_max: int, settings: AgentSettings) -> Iterator[Target]:
    asked = settings.drill.targets
    slower = 2000 * settings.turn_seconds if kind in _TURNS else 0.0
    wanted: list[tuple[str, float, bool]] = []
    if kind is not Kind.LOAD and kind not in KEEPS_SAMPLES:
        wanted += [
            ("detected", asked.detected_millis and asked.detected_millis + slower, False),
            ("throttled", asked.throttled_millis and asked.throttled_millis + slower, False),
        ]
    if kind in EVICTS and victims_max and kind is not Kind.LOAD:
        wanted.append(("evicted", asked.evicted_millis, False))
    if kind is Kind.AGENT_LOSS:
        limit = 1000 * settings.watchdog_limit_seconds
        wanted += [
            ("relaxed", asked.relaxed_millis and limit + asked.relaxed_millis, False),
            ("retaken", asked.retaken_millis, True),
        ]
    if kind in KEEPS_SAMPLES:
        spooled = 2000 * settings.report.window_seconds + 5000
        wanted += [("spooled", spooled, False), ("closed", asked.closed_millis, False)]
        wanted += [("delivered", asked.delivered_millis, True), ("fresh", asked.fresh_millis, True)]
    longest = 1000 * _opening_seconds(kind, settings)
    wanted.append(("recovered", asked.recovered_millis and max(asked.recovered_millis, longest + 15_000), True))
    for step, millis, after_lowered in wanted:
        if millis:
            yield Target(step=step, within_seconds=millis / 1000, after_lowered=after_lowered)


def misses(drill: Drill) -> tuple[str, ...]:
    """The targets that a drill that ran to its end missed, in words."""
    missed = [
        said for target in drill.order.targets if _expected(drill, target.step) and (said := _miss(drill, target))
    ]
    grown = next((moment.detail for moment in drill.timeline if moment.step == "grown"), "")
    return (*missed, *((grown,) if grown else ()))


def _expected(drill: Drill, step: str) -> bool:
    """Whether a step could come at all: nobody can be throttled or evicted where no BE pod is."""
    if step == "retaken":
        return drill.throttled_at is not None
    if step == "fresh":
        return drill.before.outside is not None and drill.before.outside.forecast is not None
    if step == "evicted":
        return drill.before.be_here and not drill.order.dry_run
    if step == "throttled" and drill.order.kind is Kind.MEMORY:
        return drill.before.be_here and "memory" in drill.before.levels
    return step not in {"detected", "throttled"} or drill.before.be_here


def _miss(drill: Drill, target: Target) -> str:
    at = drill.at(target.step)
    since = drill.lowered_at if target.after_lowered else drill.raised_at
    wanted = f"{target.step} within {target.within_seconds:g} s"
    if since is None:
        return ""
    if at is None:
        return "" if drill.phase is Phase.ABORTED else f"{wanted}: did not happen"
    took = at - since
    return f"{wanted}: took {took:.2f} s" if took > target.within_seconds else ""
