"""Policy *contention*: while LS is short of CPU, BE's CPU limit is cut, within one beat.

    first cut   what `pressed_target_percent` of the node leaves beside LS and SYSTEM, at most half of what BE uses
                (not looked at while a BE pod is too young to have a use)
    next cuts   half of the limit, and at most half of BE's use, each time `settle_seconds` after the last, down to
                the floor: max(be_min_millis, pods * be_pod_min_millis)

Whether LS is short is judged in one place (`agent.policy.shortage`) and stands in the snapshot. In calm times there
is **no** quota: beside the idle class a quota only hurts. Measured at 60 % LS load, it made LS p99 1.3 to 1.5 times
alone instead of 1.03 to 1.1, since each throttled moment leaves CPUs with fewer BE threads, and it cost BE a tenth
of its share.

Release: one step (`step_percent` of the node) after `quiet_seconds` of calm turns, then two, then four. Neither short
nor calm is the hold band, where nothing moves. A signal that is missing holds, too, unless this node has never given
one (then only a drill or CPI can have cut). At the floor the rung is exhausted: what stays is for the next rungs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from agent.capabilities import Knob
from agent.policy.base import Context, Desired, Glimpse
from agent.policy.limit import (
    Division,
    Judgement,
    LimitSettings,
    LimitState,
    Room,
    divided,
    leaves,
    moved,
    protected_use,
    room_of,
    signalled,
    status,
)
from agent.snapshot import NodeSnapshot
from slacktide.tier import Tier

OPENS_WHEN = "LS is calm, one step at a time"


class ContentionSettings(LimitSettings, frozen=True, kw_only=True):
    """Settings of the contention policy. Percents are of the node's CPU capacity."""

    pressed_target_percent: Annotated[
        float, Meta(ge=1, le=100, description="Target at the first cut", extra={"reloadable": True})
    ] = 80.0
    settle_seconds: Annotated[
        float, Meta(ge=0.05, le=60, description="How long a cut may act before the next", extra={"reloadable": True})
    ] = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionState:
    """The limit and its last division. `signalled`: LS pressure was read at least once.

    `present` are the BE pods of the last turn, `grown` those of the last two: only their use is that of a whole turn.
    """

    limit: LimitState = field(default_factory=LimitState)
    division: Division | None = None
    signalled: bool = False
    present: frozenset[str] = frozenset()
    grown: frozenset[str] = frozenset()


class Contention:
    """See the module."""

    name = "contention"
    urgent = True
    prompt = True

    def start(self, context: Context) -> ContentionState:  # noqa: ARG002 - what was there before is adopted by suppress
        """Begin without a limit; *suppress* adopts that of an earlier agent."""
        return ContentionState()

    def alarmed(self, glimpse: Glimpse, state: ContentionState, settings: ContentionSettings) -> bool:  # noqa: ARG002 - see UrgentPolicy
        """While LS is short."""
        return bool(glimpse.shortage.short)

    def decide(
        self, snapshot: NodeSnapshot, state: ContentionState, settings: ContentionSettings, context: Context
    ) -> tuple[Desired, ContentionState]:
        """The limit on BE while LS is short."""
        pods = snapshot.pods_of(Tier.BE)
        room = room_of(snapshot, len(pods), settings)
        seen = signalled(snapshot, before=state.signalled)
        groups = frozenset(pod.group for pod in pods)
        if not snapshot.urgent:
            state = replace(state, present=groups, grown=state.present & groups)
        use = snapshot.of(Tier.BE).cpu_millis if groups <= state.grown else None
        judgement = _judge(snapshot, state.limit, settings, room, use, be_here=bool(pods), seen=seen)
        limit = moved(state.limit, judgement, snapshot.at, room, settings, urgent=snapshot.urgent)
        after = replace(state, limit=limit, division=None, signalled=seen)
        if Knob.QUOTA not in context.capabilities.writable:
            return Desired(reason="a CPU quota cannot be set on this node"), after
        rung = status(self.name, limit, room, OPENS_WHEN)
        if limit.limit_millis is None:
            return Desired(reason=judgement.reason if pods else "no BE pod is here", rung=rung), after
        division = divided(
            state.division, pods, limit, room, settings.be_pod_min_millis, self.name, urgent=snapshot.urgent
        )
        desired = Desired(
            requests=division.requests, reason=limit.reason, be_limit_millis=limit.limit_millis, rung=rung
        )
        return desired, replace(after, division=division)


def _judge(
    snapshot: NodeSnapshot,
    state: LimitState,
    settings: ContentionSettings,
    room: Room,
    use: int | None,
    *,
    be_here: bool,
    seen: bool,
) -> Judgement:
    verdict = snapshot.shortage
    if verdict is None:
        return Judgement(cap=None, calm=False, reason="nobody judged whether LS is short")
    if verdict.short and be_here:
        return Judgement(cap=_cut(snapshot, state, settings, room, use), calm=False, reason=verdict.reason)
    if verdict.short:
        return Judgement(cap=None, calm=False, reason="LS is short of CPU, but no BE pod is here")
    if protected_use(snapshot) is None:
        return Judgement(cap=None, calm=False, reason="LS use is not known")
    calm = verdict.calm or (verdict.short is None and not seen)
    return Judgement(cap=None, calm=calm, reason=verdict.reason)


def _cut(snapshot: NodeSnapshot, state: LimitState, settings: ContentionSettings, room: Room, use: int | None) -> int:
    """The limit while LS is short: the first cut, the next one, or what holds until the last one has settled."""
    first = leaves(room, protected_use(snapshot), settings.pressed_target_percent)
    limit = state.limit_millis
    if limit is not None and state.cut_at is not None and snapshot.at - state.cut_at < settings.settle_seconds:
        return min(limit, first)
    halves = [half // 2 for half in (limit, use) if half is not None]
    return room.clamped(min([first, *halves]))
