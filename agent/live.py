"""The live status that `/status` serves, of the last turn; made when it is asked for, on the thread that asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from agent.capabilities import Capabilities, Knob
from agent.drill import Drill
from agent.eviction import EvictorView
from agent.gpu import Gpu
from agent.loop import Turn
from agent.policy.base import Plan
from agent.policy.rung import RungStatus
from agent.snapshot import PodSnapshot
from slacktide import __version__
from slacktide.status import AgentStatus, DrillReport, GpuReport, PodReport, RungReport, VictimReport
from slacktide.tier import Tier

NOTHING_MISSING: Mapping[str, str] = MappingProxyType({})


def status_of(
    node: str,
    turn: Turn,
    capabilities: Capabilities,
    counters: Mapping[str, int],
    *,
    observe_only: bool = False,
    drill: Drill | None = None,
    missing: Mapping[str, str] = NOTHING_MISSING,
) -> AgentStatus:
    """What the agent knows and does right now. `missing` is what cannot be read or had now, beside the capabilities."""
    snapshot = turn.snapshot
    nothing_written = observe_only or capabilities.observe_only
    return AgentStatus(
        node=node,
        version=__version__,
        at=turn.wall,
        turn=turn.number,
        turn_seconds=turn.seconds,
        line=turn.line,
        capacity=snapshot.capacity,
        node_usage=snapshot.node,
        tiers={tier: snapshot.of(tier) for tier in Tier},
        pods=[_pod(pod, turn.plan, observe_only=nothing_written) for pod in snapshot.pods],
        ls_pressure=snapshot.pressure.value if snapshot.pressure else None,
        be_quota_millis=turn.plan.be_limit_millis,
        reasons=dict(turn.plan.reasons) if not turn.held else {"held": turn.held},
        skipped={**capabilities.skipped, **missing},
        counters=dict(counters),
        rungs=[_rung(status, snapshot.at) for status in turn.plan.rungs.values()],
        closed=turn.plan.closed,
        observe_only=nothing_written,
        victims=_victims(turn.plan, snapshot.evictor),
        drill=_drill(drill),
        gpus=None if snapshot.gpus is None else [_gpu(gpu) for gpu in snapshot.gpus],
    )


def _rung(status: RungStatus, now: float) -> RungReport:
    return RungReport(
        name=status.name,
        level=status.level,
        top=status.top,
        reason=status.reason,
        for_seconds=None if status.since is None else max(0.0, now - status.since),
        opens_when=status.opens_when,
    )


def _victims(plan: Plan, evictor: EvictorView | None) -> list[VictimReport]:
    """Those that the plan names, with what became of each so far."""
    outcomes = {attempt.uid: attempt.outcome.value for attempt in evictor.attempts} if evictor else {}
    return [
        VictimReport(
            namespace=victim.namespace,
            name=victim.name,
            uid=victim.uid,
            way=victim.way.value,
            reason=victim.reason,
            outcome=outcomes.get(victim.uid, ""),
            drill=victim.drill,
        )
        for victim in plan.victims
    ]


def _drill(drill: Drill | None) -> DrillReport | None:
    if drill is None:
        return None
    order = drill.order
    return DrillReport(
        id=order.id,
        phase=drill.phase.value,
        message=drill.message,
        caller=order.caller,
        reason=order.reason,
        kind=order.kind.value,
    )


def _gpu(gpu: Gpu) -> GpuReport:
    return GpuReport(
        index=gpu.index,
        name=gpu.name,
        utilisation_percent=gpu.utilisation_percent,
        memory_used_bytes=gpu.memory_used_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        temperature_celsius=gpu.temperature_celsius,
    )


def _pod(pod: PodSnapshot, plan: Plan, *, observe_only: bool) -> PodReport:
    """Quota as the plan has it, idle as the kernel has it unless it was set in this very turn."""
    quota = plan.settings.get((pod.group, Knob.QUOTA))
    idle = plan.settings.get((pod.group, Knob.IDLE))
    held = pod.knobs.idle if pod.knobs else None
    return PodReport(
        namespace=pod.identity.namespace,
        name=pod.identity.name,
        uid=pod.identity.uid,
        tier=pod.tier,
        usage=pod.usage,
        throttled_ratio=pod.throttled_ratio,
        quota_millis=int(quota.value) if quota and not observe_only else None,
        idle=bool(idle.value) if idle and not observe_only else held,
    )


class Live:
    """Holds what the newest status is made of."""

    def __init__(self) -> None:
        self._make: Callable[[], AgentStatus] | None = None

    def set(self, make: Callable[[], AgentStatus]) -> None:
        """Replace it; one assignment, so readers need no lock. `make` works on values that do not change."""
        self._make = make

    def body(self) -> bytes:
        """The newest status as JSON; an empty object before the first turn."""
        make = self._make
        return b"{}" if make is None else msgspec.json.encode(make())
