"""Policy *suppress*: a CPU quota on BE, written only when LS is short or about to be.

    protected = LS use + SYSTEM use
    cap       = capacity * target - protected                    (target_percent, or blind_target_percent)
    pressed   = capacity * pressed_target - protected            (pressed_target_percent), at most half of BE's use
    limit     = max(floor, ...), never above capacity; floor = max(be_min_millis, pods * be_pod_min_millis)

In calm times there is **no** quota. Beside the idle class a quota only hurts: measured at 60 % LS load, it made LS
p99 1.3 to 1.5 times alone instead of 1.03 to 1.1, since each throttled moment leaves CPUs with fewer BE threads, and
it cost BE a tenth of its share. So the limit is applied when

- LS cannot be measured (then BE gets its floor), or memory is nearly gone (a BE that cannot run cannot allocate),
- the protected use itself reaches `engage_percent` of the node: the cap then leaves the last percents to LS (the
  default is so high that a second of bad luck at 80 % load does not reach it),
- LS pressure beyond what LS makes itself (see `agent.pressure`) passes the cut while the CPUs are busy; if it
  persists for `settle_seconds` after a cut, the limit is halved down to the floor,
- there is no pressure signal on this node: then the cap always holds, with `blind_target_percent`, as there is
  nothing finer to go by.

Cut at once, also between turns (`urgent`; a beat needs evidence: a pressure that is missing waits for the turn).
Release one step (`step_percent` of capacity) after `quiet_turns` turns in which pressure was below `release_ratio`
of the cut and use below `engage_percent - hold_percent`; between both is the hold band where nothing moves. From
the step that reaches capacity on there is no limit. "No limit" is None and not a number: the first cut sets the
limit, it never steps down from somewhere.

The limit is split over BE pods by water-filling on demand (use, or all of it for a pod that was throttled), at
least `be_pod_min_millis` each. A quota that kubelet or systemd took away is put back by the executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.policy.base import Context, Desired, Request
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

ROUND_MILLIS: Final = 10
"""Quotas are multiples of this, so that noise does not become writes (and 1 ms of a 100 ms period is the least)."""

THROTTLED: Final = 0.05
"""A pod throttled in more than this share of periods wants more than it used."""

RESPLIT_TURNS: Final = 5


class SuppressSettings(Settings, frozen=True, kw_only=True):
    """Settings of the suppress policy. Percents are of the node's CPU capacity."""

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
    pressed_target_percent: Annotated[
        float, Meta(ge=1, le=100, description="Target at the first cut for pressure", extra={"reloadable": True})
    ] = 80.0
    ls_pressure_cut: Annotated[
        float,
        Meta(
            ge=0.05,
            le=100,
            description="Run delay of LS per second of LS CPU time, beyond LS alone, that cuts BE",
            extra={"reloadable": True},
        ),
    ] = 1.0
    ls_psi_cut: Annotated[
        float,
        Meta(
            ge=0.01,
            le=1,
            description="PSI share of LS, beyond LS alone, that cuts BE",
            extra={"reloadable": True},
        ),
    ] = 0.3
    busy_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="With the CPUs less busy than this BE is not what LS waits for",
            extra={"reloadable": True},
        ),
    ] = 75.0
    release_ratio: Annotated[
        float, Meta(ge=0, le=1, description="Share of the cut below which pressure is calm", extra={"reloadable": True})
    ] = 0.7
    settle_seconds: Annotated[
        float,
        Meta(ge=0.05, le=60, description="How long a cut may act before the next", extra={"reloadable": True}),
    ] = 0.25
    quiet_turns: Annotated[
        int, Meta(ge=1, le=3600, description="Calm turns before one step up", extra={"reloadable": True})
    ] = 2
    step_percent: Annotated[float, Meta(ge=1, le=100, description="One step up", extra={"reloadable": True})] = 10.0
    be_min_millis: Annotated[
        int,
        Meta(
            ge=10, le=1_000_000, description="BE as a whole always gets this (millicores)", extra={"reloadable": True}
        ),
    ] = 100
    be_pod_min_millis: Annotated[
        int, Meta(ge=10, le=1_000_000, description="Each BE pod gets this (millicores)", extra={"reloadable": True})
    ] = 20
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
    """`limit_millis` None is no limit. `split` is the last division over groups and how many turns ago it was made."""

    limit_millis: int | None = None
    quiet_turns: int = 0
    last_cut_at: float | None = None
    cause: str = ""
    split: tuple[tuple[str, int], ...] = ()
    split_of: int | None = None
    split_age: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The figures that decide, all in millicores."""

    capacity: int
    floor: int
    protected: int | None
    be_use: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`cap` bounds the limit from now on (None: nothing does); `calm` allows a step up."""

    cap: int | None
    calm: bool
    cause: str


class Suppress:
    """See the module."""

    name = "suppress"
    urgent = True

    def start(self, context: Context) -> SuppressState:
        """Begin where an earlier agent left BE: its limit is released in steps, as any other."""
        return SuppressState(limit_millis=context.adopted_be_limit_millis, cause="adopted from before the restart")

    def decide(
        self, snapshot: NodeSnapshot, state: SuppressState, settings: SuppressSettings, context: Context
    ) -> tuple[Desired, SuppressState]:
        """The limit on BE and its division over the BE pods."""
        pods = snapshot.pods_of(Tier.BE)
        view = _view(snapshot, len(pods), settings)
        state = _next(snapshot, state, settings, view, _judge(snapshot, state, settings, view))
        if Knob.QUOTA not in context.capabilities.writable:
            return Desired(reason="a CPU quota cannot be set on this node"), state
        if state.limit_millis is None:
            calm = "no limit" if state.cause == "" else state.cause
            return Desired(reason=calm if pods else "no BE pod is here"), replace(state, split=(), split_of=None)
        state = _divide(pods, state, settings, view, urgent=snapshot.urgent)
        requests = tuple(
            Request(policy=self.name, group=group, knob=Knob.QUOTA, value=millis, reason=state.cause)
            for group, millis in state.split
        )
        return Desired(requests=requests, reason=state.cause, be_limit_millis=state.limit_millis), state


def _view(snapshot: NodeSnapshot, pods: int, settings: SuppressSettings) -> View:
    floor = max(settings.be_min_millis, pods * settings.be_pod_min_millis)
    ls, system = snapshot.of(Tier.LS).cpu_millis, snapshot.of(Tier.SYSTEM).cpu_millis
    capacity = snapshot.capacity.cpu_millis
    return View(
        capacity=capacity if capacity is not None else floor,
        floor=min(floor, capacity) if capacity is not None else floor,
        protected=ls + system if ls is not None and system is not None else None,
        be_use=snapshot.of(Tier.BE).cpu_millis,
    )


def _judge(snapshot: NodeSnapshot, state: SuppressState, settings: SuppressSettings, view: View) -> Verdict:
    """What bounds BE now; the first rule that speaks decides, from the most severe to the mildest."""
    if snapshot.capacity.cpu_millis is None or view.protected is None:
        return Verdict(cap=view.floor, calm=False, cause="LS use is not known: BE gets its floor")
    if _memory_low(snapshot, settings):
        return Verdict(cap=view.floor, calm=False, cause="memory is nearly gone: BE gets its floor")
    pressed = _pressed(snapshot, state, settings, view)
    used = 100 * view.protected / view.capacity
    engaged = used >= settings.engage_percent
    target = _leaves(view, settings.target_percent)
    if pressed is not None:
        return replace(pressed, cap=min(pressed.cap or target, target)) if engaged else pressed
    if engaged:
        cause = f"LS and SYSTEM use {used:.0f} % of the node (cap from {settings.engage_percent:g} %)"
        return Verdict(cap=target, calm=False, cause=cause)
    if snapshot.pressure is None and snapshot.urgent:
        return Verdict(cap=None, calm=False, cause=state.cause)
    if snapshot.pressure is None:
        cause = f"no LS pressure signal: held to {settings.blind_target_percent:g} %"
        return Verdict(cap=_leaves(view, settings.blind_target_percent), calm=True, cause=cause)
    calm = used < settings.engage_percent - settings.hold_percent and not _near_cut(snapshot, settings)
    return Verdict(cap=None, calm=calm, cause="LS is calm" if calm else "held: LS is neither short nor calm")


def _leaves(view: View, percent: float) -> int:
    """What `percent` of capacity leaves beside the protected use, within floor and capacity."""
    assert view.protected is not None
    return min(view.capacity, max(view.floor, int(view.capacity * percent / 100) - view.protected))


def _memory_low(snapshot: NodeSnapshot, settings: SuppressSettings) -> bool:
    available, total = snapshot.memory_available_bytes, snapshot.capacity.memory_bytes
    return available is not None and bool(total) and 100 * available < settings.memory_low_percent * (total or 0)


def _cut_of(snapshot: NodeSnapshot, settings: SuppressSettings) -> float:
    assert snapshot.pressure is not None
    return settings.ls_psi_cut if snapshot.pressure.kind == "psi" else settings.ls_pressure_cut


def _near_cut(snapshot: NodeSnapshot, settings: SuppressSettings) -> bool:
    pressure = snapshot.pressure
    return pressure is None or pressure.excess > settings.release_ratio * _cut_of(snapshot, settings)


def _pressed(snapshot: NodeSnapshot, state: SuppressState, settings: SuppressSettings, view: View) -> Verdict | None:
    """The cut for LS pressure; None when LS is not short of CPU, or not because of BE."""
    pressure, busy = snapshot.pressure, snapshot.node_busy_ratio
    if not snapshot.pods_of(Tier.BE):
        return None
    if pressure is None or pressure.excess <= _cut_of(snapshot, settings):
        return None
    if busy is not None and 100 * busy < settings.busy_percent:
        return None
    cause = (
        f"LS waits for CPU: {pressure.kind} {pressure.value:.2f}, alone it would be {pressure.natural:.2f}, "
        f"cut at {_cut_of(snapshot, settings):g} more"
    )
    if state.limit_millis is None:
        first = _leaves(view, settings.pressed_target_percent)
        if view.be_use is not None:
            first = min(first, max(view.floor, view.be_use // 2))
        return Verdict(cap=first, calm=False, cause=cause)
    settled = state.last_cut_at is None or snapshot.at - state.last_cut_at >= settings.settle_seconds
    cap = max(view.floor, state.limit_millis // 2) if settled else state.limit_millis
    return Verdict(cap=min(cap, _leaves(view, settings.pressed_target_percent)), calm=False, cause=cause)


def _next(
    snapshot: NodeSnapshot, state: SuppressState, settings: SuppressSettings, view: View, verdict: Verdict
) -> SuppressState:
    """Cut at once, hold, or step up after enough calm turns."""
    limit = state.limit_millis
    if limit is not None:
        limit = min(view.capacity, max(view.floor, limit))
    if verdict.cap is not None and (limit is None or verdict.cap < limit):
        return replace(state, limit_millis=verdict.cap, quiet_turns=0, last_cut_at=snapshot.at, cause=verdict.cause)
    if limit is None:
        return replace(state, limit_millis=None, quiet_turns=0, cause="")
    if snapshot.urgent:
        return replace(state, limit_millis=limit)
    if not verdict.calm:
        return replace(state, limit_millis=limit, quiet_turns=0, cause=verdict.cause)
    if state.quiet_turns + 1 < settings.quiet_turns:
        return replace(state, limit_millis=limit, quiet_turns=state.quiet_turns + 1)
    return _step_up(state, settings, view, verdict, limit)


def _step_up(
    state: SuppressState, settings: SuppressSettings, view: View, verdict: Verdict, limit: int
) -> SuppressState:
    raised = limit + max(1, int(view.capacity * settings.step_percent / 100))
    if verdict.cap is None and raised >= view.capacity:
        return replace(state, limit_millis=None, quiet_turns=0, last_cut_at=None, cause="")
    raised = min(raised, view.capacity if verdict.cap is None else max(limit, verdict.cap))
    cause = f"{verdict.cause}: released one step" if raised > limit else verdict.cause
    return replace(state, limit_millis=raised, quiet_turns=0, cause=cause)


def _divide(
    pods: Sequence[PodSnapshot], state: SuppressState, settings: SuppressSettings, view: View, *, urgent: bool
) -> SuppressState:
    """The split of the limit over pods: made anew when limit or pods changed, else every few turns."""
    assert state.limit_millis is not None
    groups = {pod.group for pod in pods}
    same = state.split_of == state.limit_millis and groups == {group for group, _ in state.split}
    if same and (urgent or state.split_age < RESPLIT_TURNS):
        return replace(state, split_age=state.split_age + (0 if urgent else 1))
    demands = {pod.group: _demand(pod, view) for pod in pods}
    split = water_fill(state.limit_millis, demands, settings.be_pod_min_millis)
    return replace(state, split=tuple(sorted(split.items())), split_of=state.limit_millis, split_age=0)


def _demand(pod: PodSnapshot, view: View) -> int:
    """What a pod would use without a limit; a throttled or unmeasured one may want everything."""
    use = pod.usage.cpu_millis
    if use is None or (pod.throttled_ratio or 0.0) > THROTTLED:
        return view.capacity
    return use


def water_fill(total: int, demands: Mapping[str, int], minimum: int) -> dict[str, int]:
    """Divide `total` so that small demands are met in full and the rest shares evenly; what is left goes to all.

    Each part is at least `minimum` and a multiple of ROUND_MILLIS (rounded down); the parts sum up to at most
    max(total, len(demands) * minimum).
    """
    if not demands:
        return {}
    parts: dict[str, int] = {}
    left = total
    waiting = sorted(demands, key=lambda group: (demands[group], group))
    for index, group in enumerate(waiting):
        fair = left // (len(waiting) - index)
        parts[group] = max(minimum, min(demands[group], fair))
        left -= parts[group]
    spare = max(0, left) // len(waiting)
    return {group: max(minimum, (part + spare) // ROUND_MILLIS * ROUND_MILLIS) for group, part in parts.items()}
