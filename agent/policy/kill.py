"""Policy *kill*: the two things that are left when eviction is too slow or cannot be asked for.

*Memory emergency*: processes of one BE pod are killed, then it is evicted so that it does not start again here.

    available < emergency_percent, and falling or memory PSI `full` >= emergency_psi
    available < stalled_percent, falling, and memory PSI `full` >= emergency_psi
    either for emergency_seconds (judged in beats, too)

Order: lowest priority, then the largest working set, since the gap cannot wait; a pod of unknown size after those of
its priority, one of size 0 never. One kill, then `settle_seconds` to see what came back: a kill takes effect late
(oomd e9e97ae, 1651104), and memory that rises again is no emergency. Memory that is not known, or 0 on a machine that
still runs us (psutil#1915), is none either. `max_per_hour` bounds it, also over a restart.

*API away*: while the API does not answer for `api_away_seconds` and LS is short with the contention rung at its end
for `hurt_seconds`, BE pods are frozen, one each `step_seconds`, lowest priority first, then newest. Nothing is lost by
it. A pod is thawed

    at once            when it is being deleted or evicted (a frozen process cannot exit: containerd#8102), and after
                       `freeze_max_seconds`, since nothing may be stopped for ever; it then runs for `thaw_seconds`
    one by one         each `thaw_seconds` in which LS is calm, the last frozen first

and when the API is back, those that are still frozen are evicted, and thawed with that; one that the API will not
let go within `back_seconds` is thawed all the same. Freezing is a knob like any other (journal, restart, watchdog).
Never for a drill.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.eviction import Victim, Way
from agent.policy.base import Context, Desired, Glimpse, Request
from agent.policy.gaps import measured_bytes, percent, seconds
from agent.policy.rung import RungStatus
from agent.policy.victims import (
    NOTHING_DONE,
    barred,
    begun_attempts,
    candidates,
    cpu_use,
    described,
    largest_first,
    memory_use,
    newest_first,
    spent_within,
)
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings

FREEZING: Final = 1
KILLING: Final = 2
_LOOK_BACK_SECONDS: Final = 2.0
_LEAST_BACK_SECONDS: Final = 0.5
"""Memory falls when it is lower than at the oldest look of the last 2 s that is half a second old or more."""

_WATCHED_FROM: Final = 2.0
"""Beats look at memory below so many times the share that may be an emergency; turns always do."""


class KillSettings(Settings, frozen=True, kw_only=True):
    """Settings of the kill policy. Percents are of the node's memory."""

    fresh_samples: Annotated[
        int, Meta(ge=1, le=3600, description="Turns to see after a start", extra={"reloadable": True})
    ] = 3
    emergency_percent: Annotated[float, percent("Kill with less memory available that falls or stalls")] = 2.0
    stalled_percent: Annotated[float, percent("Kill with less memory available that falls and stalls")] = 5.0
    emergency_psi: Annotated[
        float,
        Meta(ge=0.01, le=1, description="Share of time in which all wait for memory", extra={"reloadable": True}),
    ] = 0.4
    emergency_seconds: Annotated[float, seconds(0, 60, "An emergency must last this long")] = 0.5
    settle_seconds: Annotated[float, seconds(0.1, 600, "Pause after a kill, to see what it freed")] = 5.0
    max_per_hour: Annotated[
        int, Meta(ge=0, le=1000, description="Kills an hour; 0 kills nobody", extra={"reloadable": True})
    ] = 6
    api_away_seconds: Annotated[float, seconds(1, 3600, "The API must be silent this long before BE is frozen")] = 10.0
    hurt_seconds: Annotated[float, seconds(0, 3600, "LS must be short this long before BE is frozen")] = 10.0
    step_seconds: Annotated[float, seconds(0.1, 3600, "Pause between two pods that are frozen")] = 5.0
    thaw_seconds: Annotated[float, seconds(1, 3600, "LS must be calm this long before a pod is thawed")] = 30.0
    back_seconds: Annotated[float, seconds(1, 3600, "The API may take this long to let a frozen pod go")] = 60.0
    freeze_max_seconds: Annotated[float, seconds(1, 86_400, "No pod is frozen for longer")] = 900.0
    blocked_seconds: Annotated[float, seconds(1, 86_400, "A pod that the API protects is left alone this long")] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """One pod that is frozen since `since` (monotonic). `reason` is why."""

    uid: str
    since: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillState:
    """`memory` are (monotonic seconds, available bytes) of the last two seconds. The other times are monotonic, too.

    `frozen` are oldest first; `rested` are those that were frozen for as long as may be, with the time of that.
    `back_since` is when the API answered again while pods were frozen.
    """

    fresh: int = 0
    memory: tuple[tuple[float, int], ...] = ()
    emergency_since: float | None = None
    hurt_since: float | None = None
    calm_since: float | None = None
    back_since: float | None = None
    frozen: tuple[Frozen, ...] = ()
    rested: tuple[tuple[str, float], ...] = ()
    level: int = 0
    since: float | None = None


class Kill:
    """See the module."""

    name = "kill"
    urgent = True

    def start(self, context: Context) -> KillState:  # noqa: ARG002 - the same for every node
        """Nobody is frozen: what an earlier agent froze is not asked for any more, and so given back."""
        return KillState()

    def alarmed(self, glimpse: Glimpse, state: KillState, settings: KillSettings) -> bool:
        """From well above the emergency on, since whether memory falls shows in the looks before it."""
        available, total = glimpse.memory_available_bytes, glimpse.memory_capacity_bytes
        if state.emergency_since is not None or not available or not total:
            return state.emergency_since is not None
        return 100 * available < _WATCHED_FROM * max(settings.emergency_percent, settings.stalled_percent) * total

    def decide(
        self, snapshot: NodeSnapshot, state: KillState, settings: KillSettings, context: Context
    ) -> tuple[Desired, KillState]:
        """Whom to kill now, and who is frozen."""
        killed, said, state = _emergency(snapshot, state, settings)
        if not snapshot.urgent:
            state = _freezing(snapshot, state, settings, Knob.FREEZE in context.capabilities.writable)
        held = _held(snapshot, state)
        evicted = _evicted(state, held)
        level = KILLING if state.emergency_since is not None and said else FREEZING if held else 0
        since = state.since if level == state.level else snapshot.at
        state = replace(state, level=level, since=since)
        reason = said or "; ".join(f"{pod.label} is frozen: {frozen.reason}" for pod, frozen in held)
        status = RungStatus(
            name=self.name,
            level=level,
            top=KILLING,
            since=since,
            reason=reason,
            opens_when="memory is no longer an emergency, and LS is calm or the API answers",
        )
        desired = Desired(
            requests=tuple(_request(pod, frozen) for pod, frozen in held),
            reason=reason or "no emergency",
            rung=status,
            victims=(*killed, *evicted, *(_victim(pod, Way.FREEZE, frozen.reason, ()) for pod, frozen in held)),
        )
        return desired, state


def _request(pod: PodSnapshot, frozen: Frozen) -> Request:
    return Request(policy=Kill.name, group=pod.group, knob=Knob.FREEZE, value=1, reason=frozen.reason)


def _emergency(
    snapshot: NodeSnapshot, state: KillState, settings: KillSettings
) -> tuple[tuple[Victim, ...], str, KillState]:
    """The pod to kill, the emergency in words (empty when there is none), and the state with this look at memory."""
    available, total = measured_bytes(snapshot), snapshot.capacity.memory_bytes
    if available is None or not total:
        return (), "", replace(state, memory=(), emergency_since=None)
    memory = tuple(look for look in state.memory if snapshot.at - look[0] <= _LOOK_BACK_SECONDS)
    why = _why(snapshot, available, total, memory, settings)
    since = None if not why else snapshot.at if state.emergency_since is None else state.emergency_since
    state = replace(
        state,
        memory=(*memory, (snapshot.at, available)),
        emergency_since=since,
        fresh=state.fresh if snapshot.urgent else min(state.fresh + 1, settings.fresh_samples),
    )
    if since is None or snapshot.at - since < settings.emergency_seconds or state.fresh < settings.fresh_samples:
        return (), "", state
    pod, waits = _to_kill(snapshot, settings)
    if pod is None:
        return (), f"{why}; {waits}", state
    numbers = (
        ("available_bytes", str(available)),
        ("emergency_percent", f"{settings.emergency_percent:g}"),
        ("psi_memory_full", "unknown" if (psi := snapshot.node_psi_memory_full) is None else f"{psi:.2f}"),
    )
    reason = f"{why}; lowest priority ({pod.identity.priority}), then largest"
    return (_victim(pod, Way.KILL, reason, numbers),), why, state


def _why(
    snapshot: NodeSnapshot,
    available: int,
    total: int,
    memory: tuple[tuple[float, int], ...],
    settings: KillSettings,
) -> str:
    """The emergency in words; empty when there is none."""
    share, psi = 100 * available / total, snapshot.node_psi_memory_full
    if share >= max(settings.emergency_percent, settings.stalled_percent):
        return ""
    falling = bool(memory) and snapshot.at - memory[0][0] >= _LEAST_BACK_SECONDS and available < memory[0][1]
    stalled = psi is not None and psi >= settings.emergency_psi
    if share < settings.emergency_percent and (falling or stalled):
        how = "and falls" if falling else f"and all wait for memory {100 * (psi or 0):.0f} % of the time"
        return f"{share:.1f} % of memory is available, below {settings.emergency_percent:g} %, {how}"
    if share < settings.stalled_percent and falling and stalled:
        return f"{share:.1f} % of memory is available and falls, all wait for it {100 * (psi or 0):.0f} % of the time"
    return ""


def _to_kill(snapshot: NodeSnapshot, settings: KillSettings) -> tuple[PodSnapshot | None, str]:
    """The pod, or why there is none."""
    spent = (snapshot.evictor or NOTHING_DONE).spent
    last = max((one.at for one in spent if one.way is Way.KILL), default=None)
    if last is not None and snapshot.at - last < settings.settle_seconds:
        return None, f"looks for {settings.settle_seconds:g} s what the last kill freed"
    if spent_within(spent, snapshot.at, {Way.KILL}) >= settings.max_per_hour:
        return None, "the kills of this hour are used up"
    hit = {attempt.uid for attempt in begun_attempts(snapshot)}
    ranked = largest_first(candidates(snapshot, hit), memory_use)
    return next((pod for pod in ranked if memory_use(pod) != 0), None), "no BE pod is left that would free any"


def _freezing(snapshot: NodeSnapshot, state: KillState, settings: KillSettings, can_freeze: bool) -> KillState:
    """Thaw whom it is time to, then freeze one more where that is called for."""
    view = snapshot.evictor or NOTHING_DONE
    state = _clocks(snapshot, state, away=view.api_away_seconds is not None)
    state = _released(snapshot, state, settings)
    state = replace(state, frozen=_thawed(snapshot, state, settings))
    if state.frozen and state.calm_since is not None and snapshot.at - state.calm_since >= settings.thaw_seconds:
        return replace(state, frozen=state.frozen[:-1], calm_since=snapshot.at)
    if not can_freeze or (view.api_away_seconds or 0.0) < settings.api_away_seconds:
        return state
    if state.hurt_since is None or snapshot.at - state.hurt_since < settings.hurt_seconds:
        return state
    if state.frozen and snapshot.at - state.frozen[-1].since < settings.step_seconds:
        return state
    not_now = {one.uid for one in state.frozen} | {uid for uid, _ in state.rested}
    not_now |= {attempt.uid for attempt in begun_attempts(snapshot)}
    ranked = newest_first(candidates(snapshot, not_now), cpu_use)
    pod = next((pod for pod in ranked if cpu_use(pod) != 0), None)
    if pod is None:
        return state
    reason = f"LS is short and the API is away for {view.api_away_seconds or 0.0:.0f} s: {_shortage(snapshot)}"
    return replace(state, frozen=(*state.frozen, Frozen(uid=pod.identity.uid, since=snapshot.at, reason=reason)))


def _shortage(snapshot: NodeSnapshot) -> str:
    return snapshot.shortage.reason if snapshot.shortage else "not known"


def _clocks(snapshot: NodeSnapshot, state: KillState, *, away: bool) -> KillState:
    """Since when LS is hurt, since when it is calm, since when the API is back. Not known is neither hurt nor calm."""
    shortage, rung = snapshot.shortage, snapshot.ladder.get("contention") or snapshot.ladder.get("suppress")
    drilled = snapshot.drill is not None and snapshot.drill.presses_ls
    hurt = shortage is not None and bool(shortage.short) and not drilled and (rung is None or rung.exhausted)
    return replace(
        state,
        hurt_since=_since(state.hurt_since, snapshot.at, holds=hurt),
        calm_since=_since(state.calm_since, snapshot.at, holds=shortage is not None and shortage.calm),
        back_since=_since(state.back_since, snapshot.at, holds=bool(state.frozen) and not away),
    )


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _released(snapshot: NodeSnapshot, state: KillState, settings: KillSettings) -> KillState:
    """Let go of those that were frozen for as long as may be; they then run for a while."""
    over = {one.uid for one in state.frozen if snapshot.at - one.since >= settings.freeze_max_seconds}
    rested = tuple((uid, at) for uid, at in state.rested if snapshot.at - at < settings.thaw_seconds)
    return replace(
        state,
        frozen=tuple(one for one in state.frozen if one.uid not in over),
        rested=(*rested, *((uid, snapshot.at) for uid in sorted(over))),
    )


def _thawed(snapshot: NodeSnapshot, state: KillState, settings: KillSettings) -> tuple[Frozen, ...]:
    """Those who stay frozen."""
    here = {pod.identity.uid: pod for pod in snapshot.pods}
    begun = {attempt.uid for attempt in begun_attempts(snapshot)}
    stay = tuple(
        one
        for one in state.frozen
        if one.uid in here and not here[one.uid].identity.terminating and one.uid not in begun
    )
    if state.back_since is not None:
        spared = barred(snapshot, settings.blocked_seconds, settings.blocked_seconds)
        late = snapshot.at - state.back_since >= settings.back_seconds
        return () if late else tuple(one for one in stay if one.uid not in spared)
    return stay


def _held(snapshot: NodeSnapshot, state: KillState) -> list[tuple[PodSnapshot, Frozen]]:
    """Pods that are frozen, with why."""
    if not state.frozen:
        return []
    here = {pod.identity.uid: pod for pod in snapshot.pods}
    return [(here[one.uid], one) for one in state.frozen if one.uid in here]


def _evicted(state: KillState, held: Iterable[tuple[PodSnapshot, Frozen]]) -> tuple[Victim, ...]:
    """Frozen pods to evict now that the API answers again."""
    if state.back_since is None:
        return ()
    return tuple(
        _victim(pod, Way.EVICT, f"it was frozen while the API was away: {frozen.reason}", ()) for pod, frozen in held
    )


def _victim(pod: PodSnapshot, way: Way, reason: str, numbers: tuple[tuple[str, str], ...]) -> Victim:
    identity = pod.identity
    return Victim(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        group=pod.group,
        way=way,
        reason=reason,
        numbers=(*described(pod), *numbers),
    )
