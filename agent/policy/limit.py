"""A CPU limit on BE as a whole: cut at once, held, released by steps. Pure; *suppress* and *contention* use it.

Releases that no cut comes between grow: one step, two, four, four. A cut for one noisy moment is over in a few of
them, and where LS does suffer the next cut begins anew with one.

"No limit" is None and not a number: the first cut sets the limit, it never steps down from somewhere, and the step
that would reach capacity takes it away. As a rung (`agent.policy.rung`) its level is the number of single steps
that are left until there is no limit, so a cut raises the level at once and releases lower it. The limit itself is
finer than a step: a cut is exact.

The limit is divided over BE pods by water-filling on demand (use, or all of it for a pod that was throttled), at
least `be_pod_min_millis` each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.policy.base import Request
from agent.policy.rung import RungRules, RungState, RungStatus, Verdict, advance
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

ROUND_MILLIS: Final = 10
"""Quotas are multiples of this, so that noise does not become writes (and 1 ms of a 100 ms period is the least)."""

THROTTLED: Final = 0.05
"""A pod throttled in more than this share of periods wants more than it used."""

RESPLIT_TURNS: Final = 5

MOST_STEPS: Final = 4
"""Steps in one release."""


class LimitSettings(Settings, frozen=True, kw_only=True):
    """What every limit on BE has. Percents are of the node's CPU capacity."""

    step_percent: Annotated[float, Meta(ge=1, le=100, description="One step up", extra={"reloadable": True})] = 10.0
    quiet_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Calm before one step up; a turn and a half means each second turn",
            extra={"reloadable": True},
        ),
    ] = 1.5
    min_dwell_seconds: Annotated[
        float,
        Meta(
            ge=0, le=3600, description="A limit stays at least this long before a step up", extra={"reloadable": True}
        ),
    ] = 1.0
    be_min_millis: Annotated[
        int,
        Meta(
            ge=10, le=1_000_000, description="BE as a whole always gets this (millicores)", extra={"reloadable": True}
        ),
    ] = 100
    be_pod_min_millis: Annotated[
        int, Meta(ge=10, le=1_000_000, description="Each BE pod gets this (millicores)", extra={"reloadable": True})
    ] = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The figures that bound a limit, in millicores. `floor` is what BE always gets, `step` one step of release."""

    capacity: int
    floor: int
    step: int

    def steps(self, limit: int) -> int:
        """Steps of release from `limit` to no limit; at least one."""
        return max(1, math.ceil((self.capacity - limit) / self.step))

    def clamped(self, limit: int) -> int:
        """`limit` between floor and capacity."""
        return min(self.capacity, max(self.floor, limit))


def room_of(snapshot: NodeSnapshot, be_pods: int, settings: LimitSettings) -> Room:
    """The room on this node; a capacity that is not known leaves BE its floor alone."""
    floor = max(settings.be_min_millis, be_pods * settings.be_pod_min_millis)
    capacity = snapshot.capacity.cpu_millis
    if not capacity:
        return Room(capacity=floor, floor=floor, step=1)
    step = max(1, int(capacity * settings.step_percent / 100))
    return Room(capacity=capacity, floor=min(floor, capacity), step=step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The limit `of` divided over groups, as requests, and how many turns ago that was."""

    of: int
    groups: tuple[str, ...]
    requests: tuple[Request, ...]
    age: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """`limit_millis` None is no limit. `cut_at` is when it was last cut, monotonic seconds, `releases` those since."""

    limit_millis: int | None = None
    cut_at: float | None = None
    releases: int = 0
    rung: RungState = field(default_factory=RungState)

    @property
    def reason(self) -> str:
        """Why the limit is what it is; empty without one."""
        return self.rung.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`cap` bounds the limit from now on (None: nothing does); `calm` allows a step up, as far as the cap."""

    cap: int | None
    calm: bool
    reason: str


def adopted(limit_millis: int | None) -> LimitState:
    """The state that an earlier agent left: released in steps, as any other."""
    if limit_millis is None:
        return LimitState()
    rung = RungState(level=1, reason="adopted from before the restart")
    return LimitState(limit_millis=limit_millis, rung=rung)


def moved(
    state: LimitState, judgement: Judgement, now: float, room: Room, settings: LimitSettings, *, urgent: bool
) -> LimitState:
    """Cut at once; hold; or, in a turn, one step up after enough calm. A beat (`urgent`) never gives anything."""
    limit = None if state.limit_millis is None else room.clamped(state.limit_millis)
    cap = None if judgement.cap is None else room.clamped(judgement.cap)
    if cap is not None and (limit is None or cap < limit):
        rung = RungState(level=room.steps(cap), since=now, reason=judgement.reason)
        return LimitState(limit_millis=cap, cut_at=now, rung=rung)
    if limit is None:
        return LimitState()
    held = _at(state, limit, now, room)
    rung = held.rung
    if urgent:
        return held if cap is None or rung.quiet_since is None else replace(held, rung=replace(rung, quiet_since=None))
    rules = RungRules(
        top=rung.level, quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds
    )
    reason = judgement.reason if cap is not None else f"held: {judgement.reason}"
    after = advance(rung, Verdict(needed=0, calm=judgement.calm, reason=reason), now, rules)
    if after.level == rung.level:
        return replace(held, rung=after)
    return _raised(held, limit, after, cap, room, judgement.reason)


def _at(state: LimitState, limit: int, now: float, room: Room) -> LimitState:
    """The same state when nothing about the node changed; a beat must be quick."""
    rung, level = state.rung, room.steps(limit)
    if rung.level == level and rung.since is not None and limit == state.limit_millis:
        return state
    rung = replace(rung, level=level, since=now if rung.since is None else rung.since)
    return replace(state, limit_millis=limit, rung=rung)


def _raised(held: LimitState, limit: int, after: RungState, cap: int | None, room: Room, reason: str) -> LimitState:
    steps = min(MOST_STEPS, 1 << held.releases)
    raised = limit + room.step * steps
    if cap is None and raised >= room.capacity:
        return LimitState(rung=RungState(since=after.since))
    raised = min(raised, room.capacity if cap is None else max(limit, cap))
    if raised == limit:
        return replace(held, rung=replace(held.rung, reason=reason))
    rung = replace(
        after, level=room.steps(raised), reason=f"{reason}: released {'one step' if steps == 1 else f'{steps} steps'}"
    )
    return replace(held, limit_millis=raised, rung=rung, releases=min(held.releases + 1, MOST_STEPS))


def status(name: str, state: LimitState, room: Room, opens_when: str) -> RungStatus:
    """Where the rung stands; the top level is the floor and nothing else."""
    top = max(2, room.steps(room.floor))
    if state.limit_millis is None:
        level = 0
    elif state.limit_millis <= room.floor:
        level = top
    else:
        level = min(room.steps(state.limit_millis), top - 1)
    return RungStatus(
        name=name, level=level, top=top, since=state.rung.since, reason=state.reason, opens_when=opens_when
    )


def divided(
    old: Division | None,
    pods: Sequence[PodSnapshot],
    state: LimitState,
    room: Room,
    minimum: int,
    policy: str,
    *,
    urgent: bool,
) -> Division:
    """Quotas of the pods: made anew when limit or pods changed, else every few turns."""
    limit = state.limit_millis
    assert limit is not None
    groups = tuple(pod.group for pod in pods)
    if old is not None and old.of == limit and old.groups == groups and (urgent or old.age < RESPLIT_TURNS):
        age = old.age if urgent else old.age + 1
        if not old.requests or old.requests[0].reason == state.reason:
            return old if urgent else replace(old, age=age)
        return replace(old, age=age, requests=tuple(replace(one, reason=state.reason) for one in old.requests))
    parts = water_fill(limit, {pod.group: _demand(pod, room) for pod in pods}, minimum)
    requests = tuple(
        Request(policy=policy, group=group, knob=Knob.QUOTA, value=millis, reason=state.reason)
        for group, millis in sorted(parts.items())
    )
    return Division(of=limit, groups=groups, requests=requests)


def _demand(pod: PodSnapshot, room: Room) -> int:
    """What a pod would use without a limit; a throttled or unmeasured one may want everything."""
    use = pod.usage.cpu_millis
    if use is None or (pod.throttled_ratio or 0.0) > THROTTLED:
        return room.capacity
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


def leaves(room: Room, protected: int | None, percent: float) -> int:
    """What `percent` of capacity leaves beside the protected use, within floor and capacity; the floor if unknown."""
    if protected is None:
        return room.floor
    return room.clamped(int(room.capacity * percent / 100) - protected)


def protected_use(snapshot: NodeSnapshot, ls_peak: int = 0) -> int | None:
    """LS use (or its recent peak, if higher) + SYSTEM use; None when either is not known. Neither is below 0."""
    ls, system = snapshot.of(Tier.LS).cpu_millis, snapshot.of(Tier.SYSTEM).cpu_millis
    if ls is None or system is None:
        return None
    return max(0, ls, ls_peak) + max(0, system)


def signalled(snapshot: NodeSnapshot, *, before: bool) -> bool:
    """Whether this node has ever shown how long LS waits. One that has not is judged without; one that has is held."""
    return before or (snapshot.pressure is not None and snapshot.pressure.kind in {"psi", "run-delay"})
