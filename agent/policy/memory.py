"""Policy *memory*: while memory gets short, BE stops growing and gives some back, long before anyone is evicted.

    level 1  high      available < high_percent, or LS waits for memory     memory.high on every BE pod
    level 2  reclaim   available < reclaim_percent                          and memory.reclaim, bounded, every
                                                                            reclaim_period_seconds

memory.high is the working set at entry and some headroom: what is there stays, what grows beyond is reclaimed and the
pod slowed down. It only ever moves down while the rung is engaged (a pod that shrank does not grow again), so a pod
that grows meets it, and not a mark that runs ahead. It is never below `be_pod_min_bytes` nor the working set, so it is
no means to push out what a pod uses. A pod that is held there without any gain for the node stays held: since kernel
5.9 the kernel bounds each delay, and what is still short then is for the eviction rung.

What LS waits for counts only while less than `psi_available_percent` is available, and not for an LS pod near its
own limit: that one waits for itself.

Pods that end or were sent away have no memory.high, or they could not exit. Below kernel 5.9 it is not used at all:
a process that allocates faster than memory is reclaimed could be pinned for ever there (kubernetes KEP-2570). cgroup
v1 has neither file; its soft limit is no substitute, since it acts only under global reclaim. On such nodes there is
no such rung, *suppress* takes BE's CPU when memory is nearly gone, and *evict* does not wait.

Reclaim asks for what is missing to `reclaim_percent` plus `hold_percent`, at most `reclaim_step_bytes` a time, divided
by working sets, at most `reclaim_pod_percent` of a pod's; not while an ask is still in the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context, Desired, Reclaim, Request
from agent.policy.gaps import available_bytes
from agent.policy.rung import RungRules, RungState, Verdict, advance, status_of
from agent.policy.victims import begun_attempts
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

MIB: Final = 1 << 20
SAFE_KERNEL: Final = (5, 9)
"""From here on a task at memory.high is delayed for a bounded time."""

NEAR_OWN_LIMIT: Final = 0.9
"""An LS pod whose working set is beyond this share of its own limit waits for itself."""


class MemorySettings(Settings, frozen=True, kw_only=True):
    """Settings of the memory policy. Percents are of the node's memory, if not said otherwise."""

    high_percent: Annotated[
        float, Meta(ge=0, le=90, description="BE may not grow with less memory available", extra={"reloadable": True})
    ] = 15.0
    reclaim_percent: Annotated[
        float, Meta(ge=0, le=90, description="BE gives memory back with less available", extra={"reloadable": True})
    ] = 10.0
    hold_percent: Annotated[
        float,
        Meta(ge=0, le=50, description="A level is held until so much more is available", extra={"reloadable": True}),
    ] = 5.0
    ls_psi_cut: Annotated[
        float, Meta(ge=0.01, le=1, description="LS waits for memory this share of the time", extra={"reloadable": True})
    ] = 0.1
    psi_available_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="With more memory available BE is not what LS waits for",
            extra={"reloadable": True},
        ),
    ] = 30.0
    headroom_percent: Annotated[
        float,
        Meta(ge=0, le=100, description="memory.high beyond the working set, of that", extra={"reloadable": True}),
    ] = 10.0
    headroom_bytes: Annotated[
        int, Meta(ge=0, le=1 << 40, description="and at least so much beyond it", extra={"reloadable": True})
    ] = 64 * MIB
    be_pod_min_bytes: Annotated[
        int, Meta(ge=MIB, le=1 << 40, description="memory.high is never below this", extra={"reloadable": True})
    ] = 64 * MIB
    reclaim_step_bytes: Annotated[
        int, Meta(ge=MIB, le=1 << 40, description="One ask for all pods together", extra={"reloadable": True})
    ] = 256 * MIB
    reclaim_pod_percent: Annotated[
        float, Meta(ge=0, le=100, description="One ask, of a pod's working set", extra={"reloadable": True})
    ] = 10.0
    reclaim_period_seconds: Annotated[
        float, Meta(ge=0.5, le=600, description="Time between two asks", extra={"reloadable": True})
    ] = 5.0
    quiet_seconds: Annotated[
        float,
        Meta(
            ge=0, le=3600, description="Enough memory for this long before one level down", extra={"reloadable": True}
        ),
    ] = 10.0
    min_dwell_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="A level lasts at least this long", extra={"reloadable": True})
    ] = 10.0

    def __post_init__(self) -> None:
        """Rules that span fields. Raises ValueError."""
        if self.reclaim_percent > self.high_percent:
            raise ValueError(f"reclaim_percent {self.reclaim_percent} is above high_percent {self.high_percent}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """`highs` is memory.high by group, in bytes. `reclaims` are the last asks, made at `asked_at`."""

    rung: RungState = field(default_factory=RungState)
    highs: Mapping[str, int] = field(default_factory=dict)
    reclaims: tuple[Reclaim, ...] = ()
    asked_at: float | None = None


class Memory:
    """See the module."""

    name = "memory"
    urgent = False

    def start(self, context: Context) -> MemoryState:  # noqa: ARG002 - the same on every node
        """Begin open: what an earlier agent held BE to is given back by the executor."""
        return MemoryState()

    def decide(
        self, snapshot: NodeSnapshot, state: MemoryState, settings: MemorySettings, context: Context
    ) -> tuple[Desired, MemoryState]:
        """memory.high of BE pods, and what to ask back."""
        means, lacking = _means(context.capabilities)
        if not means:
            return Desired(reason=lacking), MemoryState()
        pods = _holdable(snapshot)
        rules = RungRules(
            top=len(means), quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds
        )
        verdict = _judge(snapshot, state.rung.level, settings, means, be_here=bool(snapshot.pods_of(Tier.BE)))
        rung = advance(state.rung, verdict, snapshot.at, rules)
        state = replace(state, rung=rung)
        active = means[: rung.level]
        state = replace(state, highs=_highs(pods, state.highs, settings) if "high" in active else {})
        if "reclaim" in active:
            state = _asked(snapshot, pods, state, settings)
        else:
            state = replace(state, reclaims=(), asked_at=None)
        requests = tuple(
            Request(policy=self.name, group=group, knob=Knob.MEMORY_HIGH, value=size, reason=rung.reason)
            for group, size in state.highs.items()
        )
        status = status_of(
            self.name,
            rung,
            rules.top,
            f"{settings.high_percent + settings.hold_percent:g} % of memory is available, LS waits for none",
        )
        reason = rung.reason or verdict.reason
        return Desired(requests=requests, reason=reason, rung=status, reclaims=state.reclaims), state


def _means(capabilities: Capabilities) -> tuple[tuple[str, ...], str]:
    """What this node can do, mildest first, and why it cannot do anything, in words."""
    means = []
    lacking = "memory.high cannot be set on this node"
    if capabilities.memory_version != 2:
        return (), "cgroup v1 has no memory.high" if capabilities.memory_version == 1 else lacking
    if Knob.MEMORY_HIGH in capabilities.writable:
        if capabilities.kernel is not None and capabilities.kernel >= SAFE_KERNEL:
            means.append("high")
        else:
            lacking = "memory.high is not safe below kernel 5.9"
    if capabilities.reclaim:
        means.append("reclaim")
    return tuple(means), lacking


def _holdable(snapshot: NodeSnapshot) -> list[PodSnapshot]:
    """BE pods that stay: those that end must be able to."""
    going: Collection[str] = {attempt.uid for attempt in begun_attempts(snapshot)}
    return [pod for pod in snapshot.pods_of(Tier.BE) if not pod.identity.terminating and pod.identity.uid not in going]


def _judge(
    snapshot: NodeSnapshot, level: int, settings: MemorySettings, means: tuple[str, ...], *, be_here: bool
) -> Verdict:
    available, total = available_bytes(snapshot), snapshot.capacity.memory_bytes
    if available is None or not total:
        return Verdict(needed=None, calm=False, reason="held: available memory is not known")
    percent = 100 * available / total
    marks = [settings.high_percent if what == "high" else settings.reclaim_percent for what in means]
    psi = ls_waits(snapshot)
    blamed = psi is not None and percent < settings.psi_available_percent
    if not be_here:
        return Verdict(needed=0, calm=True, reason="no BE pod is here")
    needed = sum(percent < mark for mark in marks)
    reason = f"{percent:.1f} % of memory is available"
    if blamed and psi is not None and psi > settings.ls_psi_cut:
        needed, reason = max(1, needed), f"{reason}, and LS waits for memory {100 * psi:.0f} % of the time"
    calm = percent >= marks[max(0, level - 1)] + settings.hold_percent
    calm = calm and not (blamed and psi is not None and psi > settings.ls_psi_cut / 2)
    return Verdict(needed=needed, calm=calm, reason=reason if needed or calm else f"held: {reason}")


def ls_waits(snapshot: NodeSnapshot) -> float | None:
    """The highest share of time in which an LS pod, not near its own limit, waited for memory; None if not known."""
    return max(
        (
            pod.psi_memory
            for pod in snapshot.pods_of(Tier.LS)
            if pod.psi_memory is not None and not _near_own_limit(pod)
        ),
        default=None,
    )


def _near_own_limit(pod: PodSnapshot) -> bool:
    limit, use = pod.memory.limit_bytes if pod.memory else None, pod.usage.memory_bytes
    return limit is not None and use is not None and use > NEAR_OWN_LIMIT * limit


def _highs(pods: Collection[PodSnapshot], old: Mapping[str, int], settings: MemorySettings) -> dict[str, int]:
    """memory.high by group. A pod that was never measured has none; one that has one only ever gets less."""
    highs = {}
    for pod in pods:
        use, before = pod.usage.memory_bytes, old.get(pod.group)
        if use is None:
            if before is not None:
                highs[pod.group] = before
            continue
        headroom = max(settings.headroom_bytes, int(use * settings.headroom_percent / 100))
        mark = -(-max(settings.be_pod_min_bytes, use + headroom) // MIB) * MIB
        # A mark that follows every byte down would be a write a turn.
        highs[pod.group] = mark if before is None or mark < before - headroom // 2 else before
    return highs


def _asked(
    snapshot: NodeSnapshot, pods: Collection[PodSnapshot], state: MemoryState, settings: MemorySettings
) -> MemoryState:
    """With new asks when they are due; until then the last ones stand, which are not done twice."""
    busy = snapshot.reclaimer is not None and snapshot.reclaimer.busy_since is not None
    recent = state.asked_at is not None and snapshot.at - state.asked_at < settings.reclaim_period_seconds
    available, total = available_bytes(snapshot), snapshot.capacity.memory_bytes
    if busy or recent or available is None or not total:
        return state
    goal = int(total * (settings.reclaim_percent + settings.hold_percent) / 100)
    missing = min(goal - available, settings.reclaim_step_bytes)
    sizes = {pod.group: pod.usage.memory_bytes for pod in pods if pod.usage.memory_bytes}
    whole = sum(sizes.values())
    if missing <= 0 or not whole:
        return replace(state, reclaims=())
    reclaims = tuple(
        Reclaim(group=group, bytes=part, reason=state.rung.reason, at=snapshot.at)
        for group, size in sizes.items()
        if (part := int(min(missing * size / whole, size * settings.reclaim_pod_percent / 100)))
    )
    return replace(state, reclaims=reclaims, asked_at=snapshot.at)
