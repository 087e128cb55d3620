"""Policy *evict*: BE pods go to another node when milder means were in force and did not do.

Three gaps, each judged every turn; a pod is chosen only for what it frees (`agent.policy.victims`).

    memory         available < memory_percent                 frees working sets until memory_target_percent
                   for memory_settle_seconds with the memory rung at its end (or none),
                   for memory_patience_seconds without
    satisfaction   limit / requests <= satisfaction_lower     frees requests x (upper - limit / requests)
                   and BE uses >= starved_use of the limit,
                   for satisfaction_seconds
    pressure       LS is short with the contention rung       frees one pod that runs, then looks again
                   at its end for pressure_settle_seconds

`requests` are batch CPU requests of living BE pods (koordinator 3.5 counts Succeeded and Failed ones, too). `limit` is
what BE can really get: the room that LS and SYSTEM leave, no more than the quotas in force where every pod has one,
no more than the CPUs of its cpusets (koordinator 871, 914, 1932). What is released is the lesser of what is needed
now and what was needed in the mean of the time.

Pods on their way out count as released, in every gap. One victim at a time, then `cooldown_seconds` to see what it
did; up to `max_concurrent` at once where the gap is beyond `large_percent` of the node. `max_per_hour` bounds what a
node loses, also over a restart. A drill that presses LS takes the pressure and satisfaction gaps on its own account,
one that reports memory as short the memory gap: its victims carry its id and count against its own budget.

Nothing is evicted before `fresh_samples` turns were measured whole, and nothing for a figure that is not known.
`victims` is a state: a pod is asked for as long as it should go; what became of it stands in the next snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.eviction import Attempt, Outcome, Spent, Victim, Way
from agent.policy.base import Context, Desired
from agent.policy.gaps import (
    MEMORY,
    PRESSURE,
    SATISFACTION,
    Gap,
    GapSettings,
    measured_whole,
    memory_gap,
    pressure_gap,
    satisfaction_gap,
    seconds,
    total_of,
)
from agent.policy.rung import RungRules, RungState, RungStatus, Verdict, advance
from agent.policy.victims import (
    NOTHING_DONE,
    Leaving,
    Measure,
    Pick,
    barred,
    begun_attempts,
    candidates,
    choose,
    cpu_request,
    cpu_use,
    credited,
    described,
    leaving,
    memory_use,
    newest_first,
    spent_within,
)
from agent.snapshot import NodeSnapshot, PodSnapshot

_OF_LS: Final = frozenset({SATISFACTION, PRESSURE})
"""Gaps that a drill which presses LS makes."""

_FREES: Final[Mapping[str, tuple[Measure, Measure]]] = {
    MEMORY: (memory_use, memory_use),
    SATISFACTION: (cpu_request, cpu_use),
    PRESSURE: (cpu_use, cpu_use),
}
"""What a pod gives towards each gap, and the use without which it gives nothing."""


class EvictSettings(GapSettings, frozen=True, kw_only=True):
    """Settings of the evict policy: those of the gaps, and how many pods may go, and when."""

    fresh_samples: Annotated[
        int, Meta(ge=1, le=3600, description="Whole turns to see after a start", extra={"reloadable": True})
    ] = 10
    max_concurrent: Annotated[
        int, Meta(ge=1, le=100, description="Pods on their way out at a time", extra={"reloadable": True})
    ] = 3
    max_per_hour: Annotated[
        int, Meta(ge=0, le=1000, description="Evictions an hour; 0 evicts nobody", extra={"reloadable": True})
    ] = 12
    cooldown_seconds: Annotated[float, seconds(0, 3600, "Pause after an eviction, to see what it did")] = 20.0
    large_cooldown_seconds: Annotated[float, seconds(0, 3600, "The same while the gap is large")] = 3.0
    blocked_seconds: Annotated[float, seconds(1, 86_400, "A pod that a budget protects is left alone this long")] = 60.0
    refused_seconds: Annotated[float, seconds(1, 86_400, "A pod that the API refuses is left alone this long")] = 600.0
    margin_seconds: Annotated[float, seconds(0, 3600, "A pod counts as gone this long beyond its grace period")] = 15.0
    credit_seconds: Annotated[float, seconds(1, 86_400, "A pod on its way out counts as gone this long at most")] = (
        300.0
    )
    quiet_seconds: Annotated[float, seconds(0, 3600, "No gap may show for this long before the rung opens")] = 10.0
    min_dwell_seconds: Annotated[float, seconds(0, 3600, "The rung stays engaged at least")] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictState:
    """`fresh` counts whole turns. `since` is when each gap showed first, `acting` those that were there long enough.

    `releases` are (monotonic seconds, millicores) that satisfaction needed. `going` is when each pod began to leave,
    `named` the pods that a dry drill has named, by their time.
    """

    rung: RungState = field(default_factory=RungState)
    fresh: int = 0
    since: Mapping[str, float] = field(default_factory=dict)
    acting: frozenset[str] = frozenset()
    releases: tuple[tuple[float, int], ...] = ()
    going: tuple[Leaving, ...] = ()
    named: tuple[Leaving, ...] = ()


class Evict:
    """See the module."""

    name = "evict"
    urgent = False

    def start(self, context: Context) -> EvictState:  # noqa: ARG002 - the same for every node
        """Nothing was seen yet: what was evicted before a restart comes with the snapshot."""
        return EvictState()

    def decide(
        self,
        snapshot: NodeSnapshot,
        state: EvictState,
        settings: EvictSettings,
        context: Context,  # noqa: ARG002 - what is not measured is None in the snapshot
    ) -> tuple[Desired, EvictState]:
        """Who shall go now."""
        state = _rehearsed(snapshot, replace(state, going=leaving(snapshot, state.going)))
        gone = _gone(snapshot, state, settings)
        gaps, state = _timed(_gaps(snapshot, state, settings, gone), snapshot, state, settings)
        whole = measured_whole(snapshot)
        state = replace(state, fresh=min(state.fresh + whole, settings.fresh_samples))
        acting = [gap for gap in gaps if gap.cause in state.acting]
        victims, said = _victims(snapshot, state, settings, acting, gone)
        reason = "; ".join([gap.reason for gap in acting] + said) or _waits(gaps, snapshot, state)
        verdict = Verdict(needed=1 if acting else (0 if whole else None), calm=whole and not gaps, reason=reason)
        rules = RungRules(top=1, quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds)
        rung = advance(state.rung, verdict, snapshot.at, rules)
        status = _status(rung, reason, stuck=bool(acting and not victims and not gone), settings=settings)
        return Desired(reason=reason, rung=status, victims=victims), _named(
            replace(state, rung=rung), snapshot, victims
        )


def _status(rung: RungState, reason: str, *, stuck: bool, settings: EvictSettings) -> RungStatus:
    """Level 2 is: somebody should go, and nobody can be sent."""
    return RungStatus(
        name=Evict.name,
        level=rung.level + 1 if rung.level and stuck else rung.level,
        top=2,
        since=rung.since,
        reason=reason if rung.level else "",
        opens_when=f"no gap shows for {settings.quiet_seconds:g} s",
    )


def _gone(snapshot: NodeSnapshot, state: EvictState, settings: EvictSettings) -> tuple[PodSnapshot, ...]:
    """Pods that count as released although they are here."""
    going = (*state.going, *state.named)
    return credited(snapshot, going, settings.margin_seconds, settings.credit_seconds)


def _gaps(snapshot: NodeSnapshot, state: EvictState, settings: EvictSettings, gone: Sequence[PodSnapshot]) -> list[Gap]:
    """What is missing now, the most urgent first. A gap that is acted on stays one until its target is reached."""
    found = (
        memory_gap(snapshot, settings, gone, acting=MEMORY in state.acting),
        satisfaction_gap(snapshot, settings, gone, acting=SATISFACTION in state.acting),
        pressure_gap(snapshot, gone),
    )
    return [gap for gap in found if gap is not None]


def _timed(
    gaps: list[Gap], snapshot: NodeSnapshot, state: EvictState, settings: EvictSettings
) -> tuple[list[Gap], EvictState]:
    """Gaps with their time: what satisfaction needs is smoothed, and those that lasted long enough are acted on."""
    since = {gap.cause: state.since.get(gap.cause, snapshot.at) for gap in gaps}
    acting = {
        cause
        for cause in since
        if cause in state.acting or snapshot.at - since[cause] >= _patience(cause, snapshot, settings)
    }
    if state.fresh < settings.fresh_samples:
        acting = set()
    releases: tuple[tuple[float, int], ...] = ()
    smoothed = []
    for gap in gaps:
        if gap.cause == SATISFACTION and gap.amount is not None:
            kept = [one for one in state.releases if snapshot.at - one[0] <= settings.satisfaction_seconds]
            releases = (*kept, (snapshot.at, gap.amount))
            mean = sum(millis for _, millis in releases) // len(releases)
            gap = replace(gap, amount=min(gap.amount, mean))
        smoothed.append(gap)
    return smoothed, replace(state, since=since, acting=frozenset(acting), releases=releases)


def _patience(cause: str, snapshot: NodeSnapshot, settings: EvictSettings) -> float:
    """How long a gap must have lasted, in seconds."""
    if cause == SATISFACTION:
        return settings.satisfaction_seconds
    if cause == PRESSURE:
        return settings.pressure_settle_seconds
    rung = snapshot.ladder.get("memory")
    done = rung is None or rung.exhausted
    return settings.memory_settle_seconds if done else settings.memory_patience_seconds


def _victims(
    snapshot: NodeSnapshot,
    state: EvictState,
    settings: EvictSettings,
    gaps: Sequence[Gap],
    gone: Sequence[PodSnapshot],
) -> tuple[tuple[Victim, ...], list[str]]:
    """Who shall go for these gaps, and why nobody or no more."""
    spared = barred(snapshot, settings.blocked_seconds, settings.refused_seconds)
    spared |= {pod.identity.uid for pod in gone} | {one.uid for one in state.named}
    living = candidates(snapshot, spared)
    chosen: dict[str, Victim] = {}
    said: list[str] = []
    for gap in gaps:
        if gap.amount == 0 or (gap.cause == PRESSURE and chosen):
            continue
        if gap.amount is None:
            said.append("waits for a pod of unknown size to go")
            continue
        drill = _drill_of(gap, snapshot, settings, acting=gap.cause in state.acting)
        most, why = _allowance(snapshot, state, settings, large=gap.large, drill=drill)
        frees, use = _FREES[gap.cause]
        free = [pod for pod in living if pod.identity.uid not in chosen]
        already = total_of(frees(pod) for pod in living if pod.identity.uid in chosen)
        if already is None:
            continue
        ranked = newest_first(free, use)
        picks = choose(ranked, gap.amount - already, frees=frees, use=use, most=most - len(chosen))
        if not picks and already < gap.amount:
            said.append(why or "no BE pod is left that may go and would help")
        chosen.update((pick.pod.identity.uid, _victim(pick, gap, drill)) for pick in picks)
    return tuple(chosen.values()), said


def _drill_of(gap: Gap, snapshot: NodeSnapshot, settings: EvictSettings, *, acting: bool) -> str:
    """Id of the drill that makes this gap; empty in earnest, also where it would be there without the drill."""
    drill = snapshot.drill
    if drill is None:
        return ""
    if gap.cause == MEMORY:
        real = memory_gap(replace(snapshot, drill=None), settings, (), acting=acting)
        return drill.id if drill.memory_percent is not None and real is None else ""
    return drill.id if drill.presses_ls and gap.cause in _OF_LS else ""


def _allowance(
    snapshot: NodeSnapshot, state: EvictState, settings: EvictSettings, *, large: bool, drill: str
) -> tuple[int, str]:
    """How many pods may be asked for now, and why none may."""
    view = snapshot.evictor or NOTHING_DONE
    begun = [one for one in begun_attempts(snapshot) if one.way is Way.EVICT and one.outcome is not Outcome.GONE]
    last = max([attempt.at for attempt in begun] + [one.since for one in state.named], default=None)
    # Two turns at least: what an eviction used up of a drill's budget shows a turn later.
    pause = settings.large_cooldown_seconds if large else settings.cooldown_seconds
    pause = max(pause, 2 * (snapshot.window_seconds or 0.0))
    if last is not None and snapshot.at - last < pause:
        return 0, f"looks for {pause:g} s what the last eviction did"
    going = len(_ours(begun, snapshot, state, settings))
    if going >= settings.max_concurrent:
        return 0, f"{going} evicted pods have not gone yet (max_concurrent)"
    left = _budget_left(view.spent, snapshot, settings, drill)
    if left <= 0:
        whose = f"drill {drill}" if drill else "this node"
        return 0, f"the victim budget of {whose} is used up"
    return min(left, settings.max_concurrent - going) if large else 1, ""


def _ours(begun: Iterable[Attempt], snapshot: NodeSnapshot, state: EvictState, settings: EvictSettings) -> set[str]:
    """Pods that we evicted (or a dry drill named) and that are going, within their time."""
    uids = {attempt.uid for attempt in begun} | {one.uid for one in state.named}
    return uids & {pod.identity.uid for pod in _gone(snapshot, state, settings)}


def _budget_left(spent: Iterable[Spent], snapshot: NodeSnapshot, settings: EvictSettings, drill: str) -> int:
    if drill and snapshot.drill:
        return snapshot.drill.victims_left
    return settings.max_per_hour - spent_within(spent, snapshot.at, {Way.EVICT})


def _victim(pick: Pick, gap: Gap, drill: str) -> Victim:
    identity = pick.pod.identity
    numbers = (
        *described(pick.pod),
        ("gap", f"{gap.cause} {gap.amount}"),
        ("frees", "unknown" if pick.frees is None else str(pick.frees)),
        ("freed_before", str(pick.before)),
        *gap.numbers,
    )
    return Victim(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        group=pick.pod.group,
        way=Way.EVICT,
        reason=f"{gap.reason}; lowest priority ({identity.priority}), then newest",
        numbers=numbers,
        drill=drill,
    )


def _rehearsed(snapshot: NodeSnapshot, state: EvictState) -> EvictState:
    """Forget what a dry drill named once it is over."""
    rehearses = snapshot.drill is not None and snapshot.drill.dry_run
    return state if rehearses or not state.named else replace(state, named=())


def _named(state: EvictState, snapshot: NodeSnapshot, victims: Sequence[Victim]) -> EvictState:
    """A dry drill counts those that it names as evicted, so that it names the same pods as one in earnest."""
    if snapshot.drill is None or not snapshot.drill.dry_run:
        return state
    fresh = tuple(Leaving(uid=one.uid, since=snapshot.at) for one in victims if one.drill)
    return replace(state, named=(*state.named, *fresh))


def _waits(gaps: Sequence[Gap], snapshot: NodeSnapshot, state: EvictState) -> str:
    if not gaps:
        return "nobody has to go"
    return "; ".join(f"{gap.reason}, for {snapshot.at - state.since[gap.cause]:.0f} s" for gap in gaps)
