"""What a drill would meet on this node now: why it may not start, whom it would evict, what will happen. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.drill import EVICTS, KEEPS_SAMPLES, Kind, Order, Outside
from agent.drill_hours import why_not_now
from agent.eviction import Victim, Way
from agent.policy.base import Plan
from agent.policy.victims import barred, candidates, cpu_use, memory_use, newest_first
from agent.settings import AgentSettings
from agent.snapshot import NodeSnapshot
from slacktide.tier import Tier

_SEVERE: Final = ("suppress", "contention", "cache_bandwidth", "memory", "io", "close", "evict", "kill")
"""Rungs beyond the mild ones."""

_BACKLOG_SAMPLES: Final = 30
"""More samples than these that wait already mean that a predictor does not take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the node stands, as of its last turn. `snapshot` None: there was none yet. `held` as in `agent.loop.Turn`.

    `watchdog` is why there is no watchdog that works (empty: there is), `load` why no load can be made. `outside` is
    what is seen of streams and forecast, None where nobody looked; `reports`: there is a predictor to report to.
    """

    snapshot: NodeSnapshot | None
    plan: Plan
    held: str
    watchdog: str
    load: str
    reports: bool
    outside: Outside | None = None


def refusals(kind: Kind, standing: Standing, settings: AgentSettings, wall: float) -> list[str]:
    """Why a drill of this kind may not start now, in words; none: it may."""
    hours = why_not_now(settings.drill.hours, settings.drill.time_zone, wall)
    found = [hours] if hours else []
    if standing.snapshot is None or standing.held:
        return [*found, f"the agent decides nothing yet: {standing.held or 'it has just started'}"]
    if settings.drill.refuse_in_trouble:
        found += _trouble(standing.snapshot, standing.plan)
    if standing.watchdog and not settings.observe_only:
        found.append(f"no watchdog would lift limits if the agent died now: {standing.watchdog}")
    return [*found, *_of_kind(kind, standing, standing.snapshot, settings)]


def _trouble(snapshot: NodeSnapshot, plan: Plan) -> Iterator[str]:
    if snapshot.shortage is not None and snapshot.shortage.short:
        yield f"the node is in trouble already: {snapshot.shortage.reason}"
    for name in _SEVERE:
        rung = plan.rungs.get(name)
        if rung is not None and rung.engaged:
            yield f"the node is in trouble already: rung {name} is at level {rung.level} of {rung.top}: {rung.reason}"


def _of_kind(kind: Kind, standing: Standing, snapshot: NodeSnapshot, settings: AgentSettings) -> Iterator[str]:
    plan = standing.plan
    if kind is Kind.LOAD and standing.load:
        yield standing.load
    elif kind is Kind.MEMORY:
        yield from _memory(snapshot, plan)
    elif kind is Kind.BANDWIDTH and "cache_bandwidth" not in plan.rungs:
        yield f"cache and bandwidth cannot be limited here: {plan.reasons.get('cache_bandwidth', 'no such policy')}"
    elif kind is Kind.AGENT_LOSS and settings.observe_only:
        yield "an agent that only observes has no watchdog"
    elif kind in KEEPS_SAMPLES:
        yield from _samples(standing)


def _memory(snapshot: NodeSnapshot, plan: Plan) -> Iterator[str]:
    if not snapshot.memory_available_bytes or not snapshot.capacity.memory_bytes:
        yield "available memory is not known on this node"
    if not {"memory", "close", "evict"} & plan.rungs.keys():
        yield "no rung of this node answers to memory: neither memory, close nor evict is there"


def _samples(standing: Standing) -> Iterator[str]:
    outside = standing.outside
    if not standing.reports:
        yield "this agent reports to no predictor"
    elif outside is None or not outside.connected:
        yield "no predictor answers: this is no drill"
    elif outside.waiting > _BACKLOG_SAMPLES:
        yield f"{outside.waiting} samples wait already: a predictor does not take them"
    elif outside.problem:
        yield f"the forecast of this node cannot be read, so nothing could be seen: {outside.problem}"
    elif outside.forecast is None:
        yield "this node has no forecast that could age"
    elif not outside.forecast.fresh or outside.forecast.silent:
        yield f"the forecast of this node is not fresh already: {outside.forecast.said}"


def expected_victims(order: Order, snapshot: NodeSnapshot, settings: AgentSettings) -> list[Victim]:
    """The pods that would go, in order, as things are now; at most the victim budget."""
    if order.kind not in EVICTS or not order.victims_max:
        return []
    spared = barred(snapshot, settings.evict.blocked_seconds, settings.evict.refused_seconds)
    use = memory_use if order.kind is Kind.MEMORY else cpu_use
    unit = "bytes" if order.kind is Kind.MEMORY else "m"
    ranked = [pod for pod in newest_first(candidates(snapshot, spared), use) if use(pod) != 0]
    return [
        Victim(
            namespace=pod.identity.namespace,
            name=pod.identity.name,
            uid=pod.identity.uid,
            group=pod.group,
            way=Way.EVICT,
            reason=f"lowest priority ({pod.identity.priority}), then newest; uses {_amount(use(pod), unit)}",
        )
        for pod in ranked[: order.victims_max]
    ]


def _amount(value: int | None, unit: str) -> str:
    return "an unknown amount" if value is None else f"{value}{unit}" if unit == "m" else f"{value} {unit}"


def expectations(order: Order, standing: Standing, settings: AgentSettings) -> list[str]:
    """What will happen, in order, in words."""
    be = len(standing.snapshot.pods_of(Tier.BE)) if standing.snapshot else 0
    said = [*_WILL[order.kind](order, standing, settings)]
    if order.kind not in KEEPS_SAMPLES and not be:
        said.insert(0, "no best-effort pod is here: nobody will be throttled or evicted")
    if order.kind in EVICTS:
        said.append(_evicting(order, settings))
    return [*said, f"after {order.duration_seconds:g} s, or an abort, all is given back as after real trouble"]


def _pressure(order: Order, standing: Standing, settings: AgentSettings) -> Sequence[str]:
    close = f"close: nothing is sold here after {settings.close.short_seconds:g} s of it"
    return [*_cut(standing), *([close] if settings.close.short_seconds < order.duration_seconds else [])]


def _cut(standing: Standing) -> Sequence[str]:
    if "contention" not in standing.plan.rungs:
        return ["no contention rung is on this node: BE will not be throttled"]
    return ["contention: BE is cut to half of its use at most with the next beat, then step by step to its floor"]


def _load(order: Order, standing: Standing, settings: AgentSettings) -> Sequence[str]:
    return [
        f"a helper burns {order.intensity_percent} % of the CPU that LS and SYSTEM leave idle",
        "what is measured decides: if LS gets what it needs, nothing more happens",
        *_pressure(order, standing, settings),
    ]


def _memory_told(order: Order, standing: Standing, settings: AgentSettings) -> Sequence[str]:
    percent = order.memory_percent or 0.0
    said = [f"{percent:g} % of the node's memory is reported as available; nothing is allocated"]
    if "memory" in standing.plan.rungs:
        said.append("memory: BE pods may not grow, and are asked for some of their memory")
    else:
        said.append(f"no memory rung is on this node: {standing.plan.reasons.get('memory', 'no such policy')}")
    closes = percent < settings.close.memory_percent and "close" in standing.plan.rungs
    return [*said, *(["close: nothing is sold here"] if closes else [])]


def _bandwidth(order: Order, standing: Standing, settings: AgentSettings) -> Sequence[str]:  # noqa: ARG001 - one shape for all kinds
    own = settings.cache_bandwidth
    return [
        f"cache_bandwidth: BE steps down at once to half of {own.steps} levels, then one each {own.settle_seconds:g} s",
        f"it comes back one level each {max(own.quiet_seconds, own.min_dwell_seconds):g} s",
    ]


def _agent_loss(order: Order, standing: Standing, settings: AgentSettings) -> Sequence[str]:
    return [
        *_cut(standing),
        f"once BE is cut the control loop is silent for {order.duration_seconds:g} s: nobody watches LS meanwhile",
        f"the watchdog lifts all hard limits of BE after {settings.watchdog_limit_seconds:g} s",
        "the first turn after it takes everything back",
    ]


def _samples_told(order: Order, standing: Standing, settings: AgentSettings) -> Sequence[str]:
    look = standing.outside.forecast if standing.outside else None
    how = "streams to the predictors are cut" if order.kind is Kind.PREDICTOR_LOSS else "samples are withheld"
    return [
        f"{how}: a sample each {settings.report.window_seconds:g} s waits on disk",
        f"the node's forecast ages and closes; now: {look.said if look else 'not known'}",
        "nothing new is sold here meanwhile; what runs is left alone, and LS is protected as ever",
        "afterwards all samples are delivered, and a fresh forecast follows",
    ]


_WILL: Final = {
    Kind.PRESSURE: _pressure,
    Kind.LOAD: _load,
    Kind.MEMORY: _memory_told,
    Kind.BANDWIDTH: _bandwidth,
    Kind.AGENT_LOSS: _agent_loss,
    Kind.PREDICTOR_LOSS: _samples_told,
    Kind.STALE: _samples_told,
}


def _evicting(order: Order, settings: AgentSettings) -> str:
    if not order.victims_max:
        return "evict: nobody, the victim budget is 0"
    memory = order.kind is Kind.MEMORY
    settle = settings.evict.memory_settle_seconds if memory else settings.evict.pressure_settle_seconds
    verb = "named" if order.dry_run else "evicted, disruption budgets permitting"
    since = "memory is short" if memory else "contention is at its end"
    return f"evict: at most {order.victims_max} pods are {verb}, the first {settle:g} s after {since}"
