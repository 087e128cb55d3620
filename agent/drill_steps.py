"""Moves a drill on by what was seen: phases, rungs, evictions, what each kind goes through, and its end. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from agent.drill import (
    KEEPS_SAMPLES,
    RUNGS,
    Before,
    Drill,
    ForecastLook,
    Kind,
    Outside,
    Phase,
    Seen,
    SeenVictim,
    noted,
    reached,
)
from agent.drill_targets import misses
from agent.eviction import Outcome
from agent.policy.rung import RungStatus

SETTLE_SECONDS: Final = 2.0
"""The control loop falls silent this long after the raise at the latest, throttled or not."""

_SAID: Final = {
    Kind.PRESSURE: "LS pressure raised",
    Kind.LOAD: "load started",
    Kind.MEMORY: "available memory is reported as short",
    Kind.BANDWIDTH: "LS is reported to lose cache and bandwidth to BE",
    Kind.AGENT_LOSS: "LS pressure raised; the control loop falls silent once BE is throttled",
    Kind.PREDICTOR_LOSS: "streams to the predictors are cut",
    Kind.STALE: "samples are withheld",
}
_CPU: Final = frozenset({Kind.PRESSURE, Kind.LOAD, Kind.MEMORY, Kind.AGENT_LOSS})
"""Kinds after which no limit on BE's CPU may be left."""


def advance(drill: Drill, seen: Seen) -> Drill:
    """The next state; a drill that ended stays as it is."""
    if drill.phase.ended:
        return drill
    if drill.raised_at is None:
        return _raised(drill, seen)
    drill = _measured(_rungs(drill, seen), seen)
    drill = _gone(_evictions(_reactions(drill, seen), seen), seen)
    if drill.order.kind is Kind.AGENT_LOSS:
        drill = _agent_loss(drill, seen)
    elif drill.order.kind in KEEPS_SAMPLES:
        drill = _samples_kept(drill, seen)
    return _ending(drill, seen)


def _raised(drill: Drill, seen: Seen) -> Drill:
    levels = {name: status.level for name, status in seen.rungs.items()}
    before = Before(levels=levels, be_here=seen.be_here, lifted=seen.lifted, outside=seen.outside)
    drill = replace(drill, raised_at=seen.at, before=before, levels=levels, limit_millis=seen.be_limit_millis)
    return _measured(reached(drill, Phase.RAISED, seen.at, _SAID[drill.order.kind]), seen)


def _measured(drill: Drill, seen: Seen) -> Drill:
    if seen.pressure == drill.pressure:
        return drill
    known = [value for value in (seen.pressure, drill.pressure_max) if value is not None]
    return replace(drill, pressure=seen.pressure, pressure_max=max(known, default=None))


def _rungs(drill: Drill, seen: Seen) -> Drill:
    """Rungs that engaged, came to their end, or opened."""
    levels = {name: status.level for name, status in seen.rungs.items()}
    if levels == drill.levels:
        return drill
    for name, status in seen.rungs.items():
        before = drill.levels.get(name, 0)
        if status.level > before and (before == 0 or status.exhausted):
            detail = f"level {status.level} of {status.top}: {status.reason}"
            drill = noted(drill, f"rung:{name}", seen.at, detail)
        elif before and not status.engaged:
            drill = noted(drill, f"open:{name}", seen.at)
    return replace(drill, levels=levels)


def _reactions(drill: Drill, seen: Seen) -> Drill:
    answering = [status for name in sorted(RUNGS[drill.order.kind]) if (status := seen.rungs.get(name)) is not None]
    fresh = [one for one in answering if one.engaged and not drill.before.levels.get(one.name, 0)]
    # The mildest answer gives the reason: what closes a node closes it for what the others do.
    rung = min(fresh, key=lambda status: status.name in {"close", "evict"}, default=None)
    if drill.detected_at is None and rung is not None:
        drill = reached(replace(drill, detected_at=seen.at), Phase.DETECTED, seen.at, rung.reason)
    held = _held(drill.order.kind, seen)
    if drill.throttled_at is None and drill.detected_at is not None and held:
        drill = reached(replace(drill, throttled_at=seen.at), Phase.THROTTLED, seen.at, held)
    return _limited(drill, seen)


def _limited(drill: Drill, seen: Seen) -> Drill:
    """Each lower limit on BE, and the end of all."""
    limit, before = seen.be_limit_millis, drill.limit_millis
    if limit == before:
        return drill
    drill = replace(drill, limit_millis=limit)
    if limit is None:
        return noted(drill, "unlimited", seen.at, "no limit on BE")
    if before is not None and limit < before:
        return noted(drill, "limit", seen.at, f"BE is limited to {limit}m")
    return drill


def _held(kind: Kind, seen: Seen) -> str:
    """What of BE is held now that a drill of this kind answers for, in words; empty when nothing is."""
    if kind is Kind.MEMORY and seen.memory_held:
        return "memory of BE pods is held"
    if kind is Kind.BANDWIDTH:
        return "cache and bandwidth of BE are held" if seen.class_held else ""
    if kind in _CPU and seen.be_limit_millis is not None:
        return f"BE is limited to {seen.be_limit_millis}m"
    return ""


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
    before = {one.victim.uid: one for one in drill.victims}
    drill = replace(drill, victims=victims)
    for one in victims:
        drill = _told(drill, before.get(one.victim.uid), one, seen.at)
    return drill


def _told(drill: Drill, before: SeenVictim | None, one: SeenVictim, at: float) -> Drill:
    """With what became of a victim."""
    name = f"{one.victim.namespace}/{one.victim.name}"
    if one.evicted and not (before and before.evicted):
        if drill.evicted_at is None:
            return reached(replace(drill, evicted_at=at), Phase.EVICTED, at, f"evicted {name}")
        return noted(drill, "eviction", at, f"evicted {name}")
    if before is None:
        return noted(drill, "named", at, f"{name}: {one.victim.reason}")
    if one.why_not and one.why_not != before.why_not:
        return noted(drill, "kept", at, f"{name}: {one.why_not}")
    return drill


def _seen_again(one: SeenVictim, *, evicted: bool, why_not: str | None) -> SeenVictim:
    """What is known of it now; what was evicted stays so, and nothing kept it."""
    if one.evicted or evicted:
        return replace(one, evicted=True, why_not="")
    return one if why_not is None else replace(one, why_not=why_not)


def _gone(drill: Drill, seen: Seen) -> Drill:
    """Evicted pods that are no longer here."""
    if seen.present is None:
        return drill
    left = [one for one in drill.victims if one.evicted and not one.gone and one.victim.uid not in seen.present]
    if not left:
        return drill
    uids = {one.victim.uid for one in left}
    victims = tuple(replace(one, gone=True) if one.victim.uid in uids else one for one in drill.victims)
    drill = replace(drill, victims=victims)
    for one in left:
        drill = noted(drill, "gone", seen.at, f"{one.victim.namespace}/{one.victim.name}")
    return drill


def _agent_loss(drill: Drill, seen: Seen) -> Drill:
    """Silent once there is something that must be lifted; the watchdog lifts it; the loop takes it back."""
    assert drill.raised_at is not None
    if drill.lowered_at is not None:
        back = drill.throttled_at is not None and drill.at("relaxed") is not None and drill.at("retaken") is None
        limit = seen.be_limit_millis
        said = "no limit is needed any more" if limit is None else f"BE is limited to {limit}m again"
        return noted(drill, "retaken", seen.at, said) if back else drill
    if drill.silent_at is None:
        waits = seen.be_here and drill.throttled_at is None and seen.at - drill.raised_at < SETTLE_SECONDS
        if waits:
            return drill
        said = "the control loop is silent; the watchdog is to lift hard limits"
        return noted(replace(drill, silent_at=seen.at, message=said), "silent", seen.at)
    if seen.lifted > drill.before.lifted and drill.at("relaxed") is None:
        said = "the watchdog lifted the hard limits of BE"
        return noted(replace(drill, message=said), "relaxed", seen.at, said)
    return drill


def _samples_kept(drill: Drill, seen: Seen) -> Drill:
    """What becomes of samples and forecast while nothing leaves the node, and afterwards."""
    outside = seen.outside
    if outside is None or drill.raised_at is None or outside.at <= drill.raised_at:
        return drill
    return _kept(drill, outside, seen.at) if drill.lowered_at is None else _let_go(drill, outside, seen.at)


def _kept(drill: Drill, outside: Outside, at: float) -> Drill:
    least, most = drill.least_waiting, max(drill.most_waiting, outside.waiting)
    least = outside.waiting if least is None else min(least, outside.waiting)
    if (least, most) != (drill.least_waiting, drill.most_waiting):
        drill = replace(drill, least_waiting=least, most_waiting=most)
    if drill.order.kind is Kind.PREDICTOR_LOSS and not outside.connected:
        drill = _once(drill, "cut", at, "no predictor is connected")
    if outside.waiting > least:
        # What was on its way at the raise leaves the spool a moment later, so the first count is not the measure.
        drill = _once(drill, "spooled", at, f"{outside.waiting} samples wait on disk")
    look = outside.forecast
    if look is None:
        return drill
    if look.silent or not look.fresh:
        if drill.silent_offer_millis is None:
            drill = replace(drill, silent_offer_millis=look.offered_millis)
        drill = _once(drill, "ageing", at, look.said)
        if _grew(drill, look):
            drill = _once(drill, "grown", at, f"offers {look.offered_millis}m although nothing is heard of the node")
    return _once(drill, "closed", at, look.said) if look.shut else drill


def _grew(drill: Drill, look: ForecastLook) -> bool:
    before, now = drill.silent_offer_millis, look.offered_millis
    return before is not None and now is not None and now > before


def _let_go(drill: Drill, outside: Outside, at: float) -> Drill:
    assert drill.lowered_at is not None
    if outside.at <= drill.lowered_at:
        return drill
    if outside.connected and drill.order.kind is Kind.PREDICTOR_LOSS:
        drill = _once(drill, "connected", at, "a predictor answers")
    if outside.connected and outside.waiting <= 1:
        drill = _once(drill, "delivered", at, f"{drill.most_waiting} samples that had waited were taken")
    look = outside.forecast
    newer = look is not None and (drill.lowered_forecast_at is None or look.at > drill.lowered_forecast_at)
    if look is not None and newer and look.fresh and not look.silent:
        drill = _once(drill, "fresh", at, look.said)
    return drill


def _once(drill: Drill, step: str, at: float, detail: str) -> Drill:
    return drill if drill.at(step) is not None else noted(replace(drill, message=detail), step, at, detail)


def _ending(drill: Drill, seen: Seen) -> Drill:
    """Lower the trouble when its time is over, and judge the recovery from then on."""
    if drill.lowered_at is None:
        return _lowered(drill, seen)
    left, late = _left(drill, seen), seen.at - drill.lowered_at >= drill.order.recover_seconds
    if not left:
        drill = replace(drill, recovered_at=seen.at)
        return _judged(reached(drill, Phase.RECOVERED, seen.at, _BACK.get(drill.order.kind, "BE has its room back")))
    if late:
        why = f"not recovered {drill.order.recover_seconds:g} s after the trouble was over: {', '.join(left)}"
        return _judged(reached(drill, Phase.FAILED, seen.at, why))
    return drill


_BACK: Final = {
    Kind.PREDICTOR_LOSS: "all samples were delivered, and the forecast is fresh",
    Kind.STALE: "all samples were delivered, and the forecast is fresh",
}


def _judged(drill: Drill) -> Drill:
    return replace(drill, misses=misses(drill))


def _lowered(drill: Drill, seen: Seen) -> Drill:
    began = drill.silent_at if drill.order.kind is Kind.AGENT_LOSS else drill.raised_at
    if began is None or seen.at - began < drill.order.duration_seconds:
        return drill
    look = seen.outside.forecast if seen.outside else None
    said = "the trouble is over; waits until all is as before"
    drill = replace(drill, lowered_at=seen.at, message=said, lowered_forecast_at=look.at if look else None)
    return noted(drill, "lowered", seen.at, said)


def _left(drill: Drill, seen: Seen) -> list[str]:
    """What is not yet as it was, in words."""
    kind = drill.order.kind
    if kind in KEEPS_SAMPLES:
        # A node without a forecast gets none by being heard of again.
        known = drill.before.outside is not None and drill.before.outside.forecast is not None
        wanted = ("delivered", "fresh") if known else ("delivered",)
        names = {"delivered": "samples still wait", "fresh": "no fresh forecast was seen"}
        return [names[step] for step in wanted if drill.at(step) is None]
    left = [f"{name} still in force" for name, status in sorted(seen.rungs.items()) if _holds(kind, status)]
    held = _held(kind, seen)
    return left or ([held] if held else [])


def _holds(kind: Kind, status: RungStatus) -> bool:
    return status.engaged and status.name in RUNGS[kind]
