"""Policy *suppress*: BE's CPU has a cap by a formula, in force only while the node is nearly full of LS.

    protected = max(LS use, its peak of the last `peak_seconds`) + SYSTEM use
    cap       = capacity * target - protected                    (target_percent, or blind_target_percent)
    limit     = max(floor, cap), never above capacity; floor = max(be_min_millis, pods * be_pod_min_millis)

In calm times there is **no** limit, since beside the idle class it only hurts (see *contention*). It applies when

- LS cannot be measured (then BE gets its floor), or memory is nearly gone (a BE that cannot run cannot allocate),
- LS and SYSTEM use reach `engage_percent` of the node: the cap then leaves the last percents to LS (the default is so
  high that a second of bad luck at 80 % load does not reach it),
- LS pressure is not known: then the cap always holds, with `blind_target_percent`, as there is nothing finer. Below
  the cap nothing is given back until pressure is known again, unless this node has never shown any.

Cut at once, for memory also between turns. Release one step (`step_percent` of capacity) after `quiet_seconds` of turns
in which LS is calm (`agent.policy.shortage`) and protected use is below `engage_percent - hold_percent`; between both
is the hold band where nothing moves.

`mode` says how the limit is enforced. `quota` (default, measured) divides it over the pods. `cpuset` confines BE to
whole CPUs (`agent.policy.cpusets`); it is rounded down to whole cores, and below one core there is a quota beside it.
A node where the chosen knob cannot be written gets the other one. A mode that is changed gives the old knob its
original back: what is no longer asked for is restored. A quota or cpuset that kubelet or systemd took away is put back
by the executor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context, Desired, Glimpse
from agent.policy.cpusets import MILLIS, CpusetState, confined
from agent.policy.gaps import available_bytes
from agent.policy.limit import (
    Division,
    Judgement,
    LimitSettings,
    LimitState,
    Room,
    adopted,
    divided,
    leaves,
    moved,
    protected_use,
    room_of,
    signalled,
    status,
)
from agent.policy.peak import Peak
from agent.policy.rung import RungStatus
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.tier import Tier

OPENS_WHEN = "LS and SYSTEM leave room and LS is calm, one step at a time"


class SuppressSettings(LimitSettings, frozen=True, kw_only=True):
    """Settings of the suppress policy. Percents are of the node's CPU capacity."""

    mode: Annotated[
        Literal["quota", "cpuset"],
        Meta(description="limit BE by CPU time, or to some CPUs", extra={"reloadable": True}),
    ] = "quota"
    target_percent: Annotated[
        float, Meta(ge=1, le=100, description="LS + SYSTEM + BE may use at most this", extra={"reloadable": True})
    ] = 98.0
    blind_target_percent: Annotated[
        float,
        Meta(ge=1, le=100, description="Target on a node without a pressure signal", extra={"reloadable": True}),
    ] = 85.0
    engage_percent: Annotated[
        float, Meta(ge=1, le=100, description="LS + SYSTEM use from which BE is capped", extra={"reloadable": True})
    ] = 95.0
    hold_percent: Annotated[
        float, Meta(ge=0, le=50, description="Width of the band in which nothing moves", extra={"reloadable": True})
    ] = 5.0
    peak_seconds: Annotated[
        float,
        Meta(ge=0, le=600, description="LS counts with its peak over this long", extra={"reloadable": True}),
    ] = 5.0
    memory_low_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=50,
            description="With less memory available BE goes to its floor",
            extra={"reloadable": True},
        ),
    ] = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressState:
    """The limit, how it is divided or which CPUs it stands for, and the recent peak of LS.

    `signalled`: LS pressure was read at least once.
    """

    limit: LimitState = field(default_factory=LimitState)
    division: Division | None = None
    cpusets: CpusetState = field(default_factory=CpusetState)
    ls_peak: Peak = field(default_factory=Peak)
    signalled: bool = False


class Suppress:
    """See the module."""

    name = "suppress"
    urgent = True
    prompt = True

    def start(self, context: Context) -> SuppressState:
        """Begin where an earlier agent left BE: its limit is released in steps, as any other."""
        return SuppressState(limit=adopted(context.adopted_be_limit_millis))

    def alarmed(self, glimpse: Glimpse, state: SuppressState, settings: SuppressSettings) -> bool:  # noqa: ARG002 - see UrgentPolicy
        """While memory is nearly gone: of what bounds BE here only that is read in a beat."""
        return _memory_low(glimpse.memory_available_bytes, glimpse.memory_capacity_bytes, settings)

    def decide(
        self, snapshot: NodeSnapshot, state: SuppressState, settings: SuppressSettings, context: Context
    ) -> tuple[Desired, SuppressState]:
        """The limit on BE and how it is enforced."""
        pods = snapshot.pods_of(Tier.BE)
        room = room_of(snapshot, len(pods), settings)
        peak = state.ls_peak
        if not snapshot.urgent:
            peak = peak.seen(snapshot.at, snapshot.of(Tier.LS).cpu_millis, settings.peak_seconds)
        seen = signalled(snapshot, before=state.signalled)
        judgement = _judge(snapshot, peak.value, settings, room, seen=seen)
        limit = moved(state.limit, judgement, snapshot.at, room, settings, urgent=snapshot.urgent)
        state = SuppressState(limit=limit, division=state.division, cpusets=state.cpusets, ls_peak=peak, signalled=seen)
        if not context.capabilities.writable & {Knob.QUOTA, Knob.CPUSET}:
            return Desired(reason="neither a CPU quota nor a cpuset can be set on this node"), state
        rung = status(self.name, limit, room, OPENS_WHEN)
        if limit.limit_millis is None:
            free = SuppressState(limit=limit, ls_peak=peak, signalled=seen)
            return Desired(reason=judgement.reason if pods else "no BE pod is here", rung=rung), free
        return _enforced(snapshot, pods, state, settings, context.capabilities, room, rung)


def _enforced(
    snapshot: NodeSnapshot,
    pods: tuple[PodSnapshot, ...],
    state: SuppressState,
    settings: SuppressSettings,
    capabilities: Capabilities,
    room: Room,
    rung: RungStatus,
) -> tuple[Desired, SuppressState]:
    """The limit by CPUs, if that is asked for and can be had, else by quota; by both where it is less than a core."""
    limit, reason = state.limit.limit_millis, state.limit.reason
    assert limit is not None
    cpusets, by_cpus = CpusetState(), False
    if Knob.CPUSET in capabilities.writable and (settings.mode == "cpuset" or Knob.QUOTA not in capabilities.writable):
        cpusets = confined(state.cpusets, snapshot, pods, limit, Suppress.name, reason)
        by_cpus = bool(cpusets.chosen)
        reason = f"{reason}; {cpusets.note}" if by_cpus else f"{reason}; {cpusets.note}, so by quota"
    in_force = MILLIS * len(cpusets.chosen)
    division = None
    if Knob.QUOTA in capabilities.writable and (not by_cpus or limit < in_force):
        division = divided(
            state.division, pods, state.limit, room, settings.be_pod_min_millis, Suppress.name, urgent=snapshot.urgent
        )
        in_force = limit
    requests = cpusets.requests + (division.requests if division else ())
    desired = Desired(requests=requests, reason=reason, be_limit_millis=in_force, rung=rung)
    after = SuppressState(
        limit=state.limit, division=division, cpusets=cpusets, ls_peak=state.ls_peak, signalled=state.signalled
    )
    return desired, after


def _judge(snapshot: NodeSnapshot, ls_peak: int, settings: SuppressSettings, room: Room, *, seen: bool) -> Judgement:
    """What bounds BE now; the first rule that speaks decides, from the most severe to the mildest."""
    now, protected = protected_use(snapshot), protected_use(snapshot, ls_peak)
    if not snapshot.capacity.cpu_millis or now is None or protected is None:
        return Judgement(cap=room.floor, calm=False, reason="LS use is not known: BE gets its floor")
    if _memory_low(available_bytes(snapshot), snapshot.capacity.memory_bytes, settings):
        return Judgement(cap=room.floor, calm=False, reason="memory is nearly gone: BE gets its floor")
    used = 100 * now / room.capacity
    if used >= settings.engage_percent:
        reason = f"LS and SYSTEM use {used:.0f} % of the node (cap from {settings.engage_percent:g} %)"
        return Judgement(cap=leaves(room, protected, settings.target_percent), calm=False, reason=reason)
    verdict = snapshot.shortage
    if verdict is None or verdict.short is None:
        return _blind(snapshot, protected, settings, room, seen=seen)
    if 100 * protected / room.capacity >= settings.engage_percent - settings.hold_percent:
        return Judgement(cap=None, calm=False, reason="LS needed nearly all of the node a moment ago")
    return Judgement(cap=None, calm=verdict.calm, reason=verdict.reason)


def _blind(snapshot: NodeSnapshot, protected: int, settings: SuppressSettings, room: Room, *, seen: bool) -> Judgement:
    """The cap without knowledge of LS pressure: an upper bound where there was a signal, all there is elsewhere."""
    if snapshot.urgent:
        return Judgement(cap=None, calm=False, reason="this beat has no LS pressure signal")
    reason = f"no LS pressure signal: at most {settings.blind_target_percent:g} % of the node for all"
    return Judgement(cap=leaves(room, protected, settings.blind_target_percent), calm=not seen, reason=reason)


def _memory_low(available: int | None, total: int | None, settings: SuppressSettings) -> bool:
    if not available or not total:
        return False
    return 100 * available < settings.memory_low_percent * total
