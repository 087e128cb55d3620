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


def _seconds(text: str) -> Meta:
    return Meta(ge=0, le=3600, description=text, extra={"reloadable": True})


class DrillTargets(Settings, frozen=True, kw_only=True):
    """Times that a drill must keep to pass; 0 is not judged."""

    detected_seconds: Annotated[float, _seconds("From the raise to the first decision of a rung; 0: not judged")] = 0.5
    throttled_seconds: Annotated[float, _seconds("From the raise to the first limit on BE; 0: not judged")] = 1.0
    evicted_seconds: Annotated[float, _seconds("From the raise to the first eviction; 0: not judged")] = 60.0
    recovered_seconds: Annotated[
        float, _seconds("From the end of the trouble until all is as before; 0: not judged")
    ] = 90.0
    relaxed_seconds: Annotated[
        float, _seconds("How much later than `watchdog_seconds` the watchdog may lift limits; 0: not judged")
    ] = 3.0
    retaken_seconds: Annotated[float, _seconds("From the end of silence until limits are back; 0: not judged")] = 3.0
    ageing_seconds: Annotated[
        float, _seconds("From the raise until a node that is not heard of offers less; 0: not judged")
    ] = 120.0
    closed_seconds: Annotated[
        float, _seconds("From the raise until a node that is not heard of sells nothing; 0: not judged")
    ] = 0.0
    delivered_seconds: Annotated[
        float, _seconds("From the end of the trouble until samples that waited are taken; 0: not judged")
    ] = 60.0
    fresh_seconds: Annotated[
        float, _seconds("From the end of the trouble until a fresh forecast is seen; 0: not judged")
    ] = 90.0


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
    asked = settings.drill_targets
    if kind in KEEPS_SAMPLES:
        # A window may just have begun, and its sample takes a moment to the disk.
        yield Target(step="spooled", within_seconds=2 * settings.report.window_seconds + 5.0)
        yield from _target("ageing", asked.ageing_seconds)
        yield from _target("closed", asked.closed_seconds)
        yield from _target("delivered", asked.delivered_seconds, after_lowered=True)
        yield from _target("fresh", asked.fresh_seconds, after_lowered=True)
    elif kind is not Kind.LOAD:
        slower = 2 * settings.turn_seconds if kind in _TURNS else 0.0
        yield from _target("detected", asked.detected_seconds, slower)
        yield from _target("throttled", asked.throttled_seconds, slower)
    if kind in EVICTS and victims_max and kind is not Kind.LOAD:
        yield from _target("evicted", asked.evicted_seconds)
    if kind is Kind.AGENT_LOSS:
        yield from _target("relaxed", asked.relaxed_seconds, settings.watchdog_limit_seconds)
        yield from _target("retaken", asked.retaken_seconds, after_lowered=True)
    longer = max(0.0, _opening_seconds(kind, settings) + 15.0 - asked.recovered_seconds)
    yield from _target("recovered", asked.recovered_seconds, longer, after_lowered=True)


def _target(step: str, asked: float, more: float = 0.0, *, after_lowered: bool = False) -> Iterator[Target]:
    if asked:
        yield Target(step=step, within_seconds=asked + more, after_lowered=after_lowered)


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
    if step in {"fresh", "ageing", "closed"}:
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
