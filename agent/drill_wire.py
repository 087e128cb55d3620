"""Drills as messages, and requests as orders. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from agent.drill import Drill, Kind, Moment, Order, Phase, SeenVictim, Target
from agent.drill_targets import recover_seconds, targets_of
from agent.eviction import Victim
from slacktide.v1 import drill_pb2 as pb

if TYPE_CHECKING:
    from agent.settings import AgentSettings

_REASON_CHARACTERS: Final = 256

KINDS: Final = {
    pb.PRESSURE_KIND_SIGNAL: Kind.PRESSURE,
    pb.PRESSURE_KIND_LOAD: Kind.LOAD,
    pb.PRESSURE_KIND_MEMORY: Kind.MEMORY,
    pb.PRESSURE_KIND_BANDWIDTH: Kind.BANDWIDTH,
    pb.PRESSURE_KIND_AGENT_LOSS: Kind.AGENT_LOSS,
    pb.PRESSURE_KIND_PREDICTOR_LOSS: Kind.PREDICTOR_LOSS,
    pb.PRESSURE_KIND_STALE: Kind.STALE,
}
_NUMBERS: Final = {kind: number for number, kind in KINDS.items()}
PHASES: Final = {
    Phase.WAITING: pb.DRILL_PHASE_WAITING,
    Phase.RAISED: pb.DRILL_PHASE_RAISED,
    Phase.DETECTED: pb.DRILL_PHASE_DETECTED,
    Phase.THROTTLED: pb.DRILL_PHASE_THROTTLED,
    Phase.EVICTED: pb.DRILL_PHASE_EVICTED,
    Phase.RECOVERED: pb.DRILL_PHASE_RECOVERED,
    Phase.ABORTED: pb.DRILL_PHASE_ABORTED,
    Phase.FAILED: pb.DRILL_PHASE_FAILED,
}
ENDED: Final = frozenset(number for phase, number in PHASES.items() if phase.ended)


def problem_of(request: pb.StartDrillRequest, node: str, settings: AgentSettings) -> str:
    """What is wrong with a request, in words; empty when nothing is."""
    drill, kind = settings.drill, KINDS.get(request.pressure)
    longest = int(drill.duration_max_seconds * 1000)
    shortest = int(1500 * settings.watchdog_limit_seconds) if kind is Kind.AGENT_LOSS else 1
    checks = (
        (request.node in {"", node}, f"node is {request.node!r}, this is {node!r}"),
        (
            kind is not None,
            f"pressure {request.pressure} is not known; known: {', '.join(known.value for known in Kind)}",
        ),
        (
            shortest <= request.duration_millis <= longest,
            f"duration_millis is {request.duration_millis}; range {shortest} to {longest}",
        ),
        (
            request.victim_budget <= drill.victims_max,
            f"victim_budget is {request.victim_budget}; at most {drill.victims_max} here",
        ),
        (request.intensity_percent <= 100, f"intensity_percent is {request.intensity_percent}; range 0 to 100"),
    )
    return "; ".join(text for good, text in checks if not good)


def order_of(request: pb.StartDrillRequest, drill_id: str, caller: str, settings: AgentSettings, wall: float) -> Order:
    """The order that a request without a problem stands for. `wall` is seconds since the epoch."""
    kind = KINDS[request.pressure]
    asked = request.dead_man_millis / 1000 or settings.drill.dead_man_seconds
    seconds = request.duration_millis / 1000
    return Order(
        id=drill_id,
        kind=kind,
        duration_seconds=seconds,
        dry_run=request.dry_run,
        victims_max=request.victim_budget,
        reason=request.reason[:_REASON_CHARACTERS],
        caller=caller,
        dead_man_seconds=min(asked, settings.drill.dead_man_seconds),
        recover_seconds=recover_seconds(kind, settings),
        intensity_percent=request.intensity_percent or 100,
        memory_percent=memory_percent(request.victim_budget, settings) if kind is Kind.MEMORY else None,
        targets=targets_of(kind, seconds, request.victim_budget, settings),
        started_wall=wall,
    )


def memory_percent(victims_max: int, settings: AgentSettings) -> float:
    """What a memory drill reports as available: enough for the memory rung, and for eviction where pods may go."""
    mark = settings.evict.memory_percent if victims_max else settings.memory.reclaim_percent
    low = 0.8 * min(mark, settings.memory.reclaim_percent)
    # Without victims not below what evicts, where the marks leave room for that.
    spared = settings.evict.memory_percent < settings.memory.reclaim_percent
    return max(low, settings.evict.memory_percent) if not victims_max and spared else low


def message_of(drill: Drill, told: int) -> pb.WatchDrillResponse:
    """One message of the stream, with the moments beyond the first `told`; the last one carries the result."""
    newest = max((at for at in _times(drill) if at is not None), default=None)
    message = pb.WatchDrillResponse(
        phase=PHASES[drill.phase],
        message=drill.message,
        elapsed_millis=millis(drill.since_raised(newest)),
        moments=[_moment(drill, one) for one in drill.timeline[told:]],
        ls_pressure=drill.pressure,
    )
    if drill.phase.ended:
        message.result.CopyFrom(result_of(drill))
    return message


def _times(drill: Drill) -> tuple[float | None, ...]:
    return (
        *(drill.raised_at, drill.detected_at, drill.throttled_at, drill.evicted_at, drill.lowered_at),
        *(drill.recovered_at, *(moment.at for moment in drill.timeline[-1:])),
    )


def record_of(drill: Drill, node: str) -> pb.DrillRecord:
    """A drill as its node remembers it."""
    order = drill.order
    return pb.DrillRecord(
        drill_id=order.id,
        node=node,
        pressure=_NUMBERS[order.kind],
        phase=PHASES[drill.phase],
        message=drill.message,
        caller=order.caller,
        reason=order.reason,
        dry_run=order.dry_run,
        victim_budget=order.victims_max,
        started_unix_millis=round(order.started_wall * 1000),
        duration_millis=round(order.duration_seconds * 1000),
        intensity_percent=order.intensity_percent if order.kind is Kind.LOAD else 0,
        result=result_of(drill),
    )


def result_of(drill: Drill) -> pb.DrillResult:
    """What is known of a drill so far."""
    return pb.DrillResult(
        detected_millis=millis(drill.since_raised(drill.detected_at)),
        throttled_millis=millis(drill.since_raised(drill.throttled_at)),
        evicted_millis=millis(drill.since_raised(drill.evicted_at)),
        recovered_millis=millis(drill.since_raised(drill.recovered_at)),
        victims=[
            victim_of(seen.victim, _reason(seen, dry_run=drill.order.dry_run), evicted=seen.evicted)
            for seen in drill.victims
        ],
        timeline=[_moment(drill, one) for one in drill.timeline],
        targets=wire_targets(drill.order.targets),
        ls_pressure_max=drill.pressure_max,
        misses=drill.misses,
    )


def victim_of(victim: Victim, reason: str, *, evicted: bool = False) -> pb.Victim:
    """A pod that was, would be or is expected to be evicted."""
    return pb.Victim(namespace=victim.namespace, name=victim.name, uid=victim.uid, reason=reason, evicted=evicted)


def wire_targets(targets: Sequence[Target]) -> list[pb.DrillTarget]:
    """Targets as messages."""
    return [
        pb.DrillTarget(step=one.step, within_millis=round(one.within_seconds * 1000), after_lowered=one.after_lowered)
        for one in targets
    ]


def _moment(drill: Drill, moment: Moment) -> pb.DrillMoment:
    return pb.DrillMoment(
        step=moment.step, elapsed_millis=millis(drill.since_raised(moment.at)) or 0, detail=moment.detail
    )


def _reason(seen: SeenVictim, *, dry_run: bool) -> str:
    """Why this pod, and what kept it."""
    kept = "a dry run evicts nobody" if dry_run else seen.why_not
    return f"{seen.victim.reason}; not evicted: {kept}" if kept and not seen.evicted else seen.victim.reason


def millis(seconds: float | None) -> int | None:
    """Whole milliseconds; None stays None."""
    return None if seconds is None else max(0, round(seconds * 1000))
