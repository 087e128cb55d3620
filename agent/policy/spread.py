"""Policy *spread*: every busy BE thread is pinned to one CPU, the same number on each, so that the kernel has no
reason to migrate them. What hurts LS beside the idle class is the migration of BE threads more than their presence.

Measured on two CPUs at 60 % LS load: four BE threads in the idle class, LS p99 1.19 times alone; pinned two a CPU,
0.96 times, and BE gets more (0.93 of what LS leaves instead of 0.89), as it keeps its caches.

Each turn looks at all threads of BE pods; a beat that finds new ones places those at once. A thread that wants less
than `active_percent` of a CPU gets its mask back after `release_turns`, and what it makes then starts wide. What was
pinned moves only when two CPUs are `imbalance` threads apart, or when it starves for `starve_turns` (behind LS, say),
and at most `moves_per_turn` threads. See `placement` for the rules, `origin` for what the workload allowed.

Only masks inside the workload's own are asked for; a thread with one CPU of its own is counted there and left alone.
Cores are filled evenly, and a thread stays near its memory and cache where there is a choice.

A cgroup that makes more than `storm_threads` a second for two turns is left wide until that stopped for
`release_turns`: most of what it makes ends before it could be placed, and would pile up on the CPU of its maker.

`ballast` (off unless asked for): while a BE thread is busy and LS is here, each CPU without a pinned busy BE thread
gets one of the agent's own idle-class threads, so that all CPUs look alike to the kernel's load balancer. One BE
thread on two CPUs at 60 % LS load: LS p99 1.6 to 3 times alone without, 1.0 to 1.15 times with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.policy.base import Context, Desired, Glimpse
from agent.policy.demand import Load, judged, measured, others_of
from agent.policy.origin import (
    NO_FAMILY,
    NOWHERE,
    Family,
    Known,
    Origin,
    allowed,
    entry_of,
    family_of,
    first_seen,
    new_origin,
    seen_again,
)
from agent.policy.placement import Candidate, place
from agent.snapshot import MAX_GAP_PERIODS, NodeSnapshot
from agent.threads import (
    GroupKey,
    GroupMasks,
    Mask,
    MaskPlan,
    MaskWish,
    ThreadKey,
    ThreadReading,
    ThreadSweep,
    format_cpus,
)
from agent.topology import Topology
from slacktide.settings import Settings
from slacktide.tier import Tier


class SpreadSettings(Settings, frozen=True, kw_only=True):
    """Settings of the spread policy."""

    active_percent: Annotated[
        float,
        Meta(
            ge=1,
            le=100,
            description="A thread that ran or waited for this share of a CPU is busy",
            extra={"reloadable": True},
        ),
    ] = 10.0
    release_turns: Annotated[
        int,
        Meta(
            ge=1,
            le=3600,
            description="Turns below half of active_percent before a thread gets its mask back",
            extra={"reloadable": True},
        ),
    ] = 5
    imbalance: Annotated[
        int,
        Meta(
            ge=2,
            le=1000,
            description="Busy BE threads by which two CPUs differ before one moves",
            extra={"reloadable": True},
        ),
    ] = 2
    starve_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="A thread that gets less than this part of what BE threads get on average starves",
            extra={"reloadable": True},
        ),
    ] = 0.5
    starve_turns: Annotated[
        int, Meta(ge=1, le=3600, description="Turns that a thread starves before it moves", extra={"reloadable": True})
    ] = 5
    moves_per_turn: Annotated[
        int, Meta(ge=0, le=10_000, description="Pinned threads moved in one turn", extra={"reloadable": True})
    ] = 4
    max_threads: Annotated[
        int,
        Meta(
            ge=1, le=65_536, description="BE threads looked at; those beyond are left alone", extra={"reloadable": True}
        ),
    ] = 2048
    new_threads: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="New BE threads read in one beat or turn; the rest follows with the next",
            extra={"reloadable": True},
        ),
    ] = 128
    storm_threads: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="A cgroup that makes more threads a second is left to the kernel",
            extra={"reloadable": True},
        ),
    ] = 64
    ballast: Annotated[
        bool,
        Meta(
            description="burn idle time on CPUs that BE leaves without a thread while LS is here; read at start",
        ),
    ] = False


_STORM_TURNS: Final = 2
"""A job that starts its threads at once does so in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """A cgroup that makes many threads: turns in a row in which it did, and in which it did not since."""

    hot: int
    calm: int = 0

    @property
    def raging(self) -> bool:
        """Whether its threads are left alone."""
        return self.hot >= _STORM_TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadState:
    """Everything by thread and cgroup. `adopted` are journal entries whose cgroups no sweep has shown yet."""

    known: Mapping[ThreadKey, Known] = field(default_factory=dict)
    loads: Mapping[ThreadKey, Load] = field(default_factory=dict)
    origins: Mapping[GroupKey, Origin] = field(default_factory=dict)
    family: Family = NO_FAMILY
    others: Mapping[int, float] = field(default_factory=dict)
    busy_seconds: Mapping[int, float] = field(default_factory=dict)
    at: float | None = None
    storms: Mapping[GroupKey, Storm] = field(default_factory=dict)
    ballast: Mask = NOWHERE
    adopted: Mapping[GroupKey, GroupMasks] = field(default_factory=dict)
    lost: bool = False
    reason: str = "BE threads were not looked at yet"


class Spread:
    """See the module."""

    name = "spread"
    urgent = True
    prompt = True

    def start(self, context: Context) -> SpreadState:
        """Begin with what an earlier agent pinned."""
        return SpreadState(adopted={entry.key: entry for entry in context.adopted_masks}, lost=context.journal_lost)

    def alarmed(self, glimpse: Glimpse, state: SpreadState, settings: SpreadSettings) -> bool:  # noqa: ARG002 - see UrgentPolicy
        """When there are new threads."""
        return glimpse.new_threads

    def decide(
        self, snapshot: NodeSnapshot, state: SpreadState, settings: SpreadSettings, context: Context
    ) -> tuple[Desired, SpreadState]:
        """Masks for the threads of `snapshot.threads`; a beat without new threads only repeats the reason."""
        sweep = snapshot.threads
        if not context.capabilities.affinity:
            return Desired(reason=context.capabilities.skipped.get("affinity", "no affinity on this node")), state
        if sweep is None:
            return Desired(reason=state.reason, ballast=state.ballast), state
        learned, counted = _learn(state, sweep)
        if not sweep.fresh:
            learned = _measure(learned, state, sweep, settings, snapshot.window_seconds)
        placed, moved = _place(learned, settings, sweep, snapshot.topology)
        counted.update(moved)
        placed = replace(placed, ballast=_ballast(placed, settings, snapshot))
        placed = replace(placed, reason=_reason(placed, settings, sweep))
        plan = MaskPlan(whole=not sweep.fresh, groups=_journal(placed), wishes=_wishes(learned, placed, sweep))
        return Desired(reason=placed.reason, masks=plan, counted=counted, ballast=placed.ballast), placed


def _learn(state: SpreadState, sweep: ThreadSweep) -> tuple[SpreadState, Counter[str]]:
    """Know every thread of the sweep: whose mask it has, and what it was."""
    counted: Counter[str] = Counter()
    origins, changed = _origins(state, sweep)
    known: dict[ThreadKey, Known] = dict(state.known) if sweep.fresh else {}
    for reading in sweep.threads:
        old, origin = state.known.get(reading.key), origins[reading.group]
        if old is None or old.group != reading.group:
            known[reading.key] = first_seen(reading, origin, state.family)
            counted["spread_new"] += 1
            continue
        known[reading.key] = seen_again(
            old,
            reading.mask,
            origin,
            cpuset_changed=reading.group in changed,
            refused=reading.key in sweep.refused,
        )
        counted["spread_foreign"] += known[reading.key].changes - old.changes
    seen = {reading.group for reading in sweep.threads}
    origins = {
        key: replace(origin, journaled=None) if origin.journaled and key in seen and not sweep.fresh else origin
        for key, origin in origins.items()
    }
    adopted = {key: entry for key, entry in state.adopted.items() if key not in origins}
    lost = state.lost and sweep.fresh
    return replace(state, known=known, origins=origins, adopted=adopted, lost=lost), counted


def _origins(state: SpreadState, sweep: ThreadSweep) -> tuple[dict[GroupKey, Origin], set[GroupKey]]:
    """The cgroups of the sweep, and those whose cpuset changed."""
    origins = dict(state.origins) if sweep.fresh else {}
    changed: set[GroupKey] = set()
    by_group: dict[GroupKey, list[ThreadReading]] = {}
    for reading in sweep.threads:
        by_group.setdefault(reading.group, []).append(reading)
    for key, readings in by_group.items():
        old, cpuset = state.origins.get(key), sweep.cpusets.get(key, NOWHERE)
        if old is None:
            origins[key] = new_origin(readings, cpuset, state.adopted.get(key), lost=state.lost)
        else:
            origins[key] = old
            if cpuset != old.cpuset:
                origins[key] = replace(old, cpuset=cpuset)
                changed.add(key)
    return origins, changed


def _measure(
    learned: SpreadState, before: SpreadState, sweep: ThreadSweep, settings: SpreadSettings, window: float | None
) -> SpreadState:
    """Loads of the threads and of the CPUs. A gap (`window`, the turn's, far exceeded) gives no rates."""
    seconds = sweep.at - before.at if before.at is not None else None
    if seconds is not None and window is not None and seconds > MAX_GAP_PERIODS * window:
        seconds = None
    loads = {reading.key: measured(before.loads.get(reading.key), reading, seconds) for reading in sweep.threads}
    be = [
        (next(iter(reading.mask)), (reading.run_ns - before.loads[reading.key].run_ns) / 1e9)
        for reading in sweep.threads
        if len(reading.mask) == 1 and reading.key in before.loads
    ]
    return replace(
        learned,
        storms=_storms(before.storms, sweep, settings, seconds),
        loads=judged(loads, settings.active_percent / 100, settings.starve_ratio),
        others=others_of(before.others, before.busy_seconds, sweep.busy_seconds, seconds, be),
        busy_seconds=sweep.busy_seconds,
        at=sweep.at,
    )


def _storms(
    before: Mapping[GroupKey, Storm], sweep: ThreadSweep, settings: SpreadSettings, seconds: float | None
) -> dict[GroupKey, Storm]:
    """Cgroups that made too many threads a second of late. Without a known time nothing changes."""
    if not seconds:
        return dict(before)
    storms: dict[GroupKey, Storm] = {}
    for key in before.keys() | sweep.made.keys():
        old = before.get(key, Storm(hot=0))
        if sweep.made.get(key, 0) > settings.storm_threads * seconds:
            storms[key] = Storm(hot=min(old.hot + 1, _STORM_TURNS))
        elif old.raging and old.calm + 1 < settings.release_turns:
            storms[key] = replace(old, calm=old.calm + 1)
    return storms


def _is_left_wide(state: SpreadState, group: GroupKey) -> bool:
    storm = state.storms.get(group)
    return storm is not None and storm.raging


def _place(
    state: SpreadState, settings: SpreadSettings, sweep: ThreadSweep, topology: Topology | None
) -> tuple[SpreadState, Counter[str]]:
    """A CPU for each thread that wants one, and none for those that went quiet or are left wide."""
    share = settings.active_percent / 100
    candidates: list[Candidate] = []
    fixed: Counter[int] = Counter()
    for key, one in state.known.items():
        load = state.loads.get(key)
        busy = load is None or load.is_busy(share)
        mask = allowed(one.original, state.origins[one.group].cpuset)
        if len(mask) < 2 or not one.manageable:
            fixed.update(one.held if busy and len(one.held) == 1 else ())
        elif _is_left_wide(state, one.group):
            continue
        elif busy or (one.cpu is not None and load is not None and load.quiet < settings.release_turns):
            candidates.append(_candidate(key, one, load, mask, settings, busy=busy))
    moves = 0 if sweep.fresh else settings.moves_per_turn
    cpus = place(candidates, fixed, state.others, imbalance=settings.imbalance, moves=moves, topology=topology)
    known = {
        key: one if cpus.get(key) == one.cpu else replace(one, cpu=cpus.get(key)) for key, one in state.known.items()
    }
    moved = [
        key
        for key, one in known.items()
        if None not in (one.cpu, state.known[key].cpu) and one.cpu != state.known[key].cpu
    ]
    loads = dict(state.loads)
    for key in loads.keys() & set(moved):
        loads[key] = replace(loads[key], starved=0)
    pinned = {key for key, one in known.items() if one.cpu is not None}
    origins = _touched(state.origins, [known[key] for key in pinned])
    placed = replace(state, known=known, loads=loads, origins=origins, family=family_of(known, state.family))
    return placed, Counter({"spread_moves": len(moved)})


def _candidate(
    key: ThreadKey, one: Known, load: Load | None, mask: frozenset[int], settings: SpreadSettings, *, busy: bool
) -> Candidate:
    starved = load.starved if load else 0
    return Candidate(
        key=key,
        allowed=mask,
        cpu=one.cpu,
        busy=busy,
        starving=starved >= settings.starve_turns,
        ran=(load.ran or 0.0) if load else 0.0,
        near=one.near,
    )


def _touched(origins: Mapping[GroupKey, Origin], pinned: list[Known]) -> dict[GroupKey, Origin]:
    """Remember which CPUs were given to threads of which cgroup."""
    touched = dict(origins)
    for one in pinned:
        origin = touched[one.group]
        if one.cpu is not None and (one.cpu not in origin.cpus or not origin.touched):
            touched[one.group] = replace(origin, touched=True, cpus=origin.cpus | {one.cpu})
    return touched


def _ballast(state: SpreadState, settings: SpreadSettings, snapshot: NodeSnapshot) -> Mask:
    """CPUs without a pinned busy BE thread, while BE and LS share the node."""
    if not settings.ballast or not snapshot.pods_of(Tier.LS):
        return NOWHERE
    share = settings.active_percent / 100
    busy = [one for key, one in state.known.items() if (load := state.loads.get(key)) is None or load.is_busy(share)]
    if not busy:
        return NOWHERE
    carries = {cpu for one in busy for cpu in ({one.cpu} if one.cpu is not None else one.held) if _is_single(one)}
    return frozenset(state.busy_seconds) - carries


def _is_single(one: Known) -> bool:
    return one.cpu is not None or len(one.held) == 1


def _wishes(before: SpreadState, after: SpreadState, sweep: ThreadSweep) -> tuple[MaskWish, ...]:
    """What shall be in force for the threads of the sweep, wherever we have or had a say."""
    wishes = []
    for reading in sweep.threads:
        one = after.known[reading.key]
        stray = len(reading.mask) == 1 and one.original != reading.mask and _is_left_wide(after, one.group)
        if one.cpu is not None or before.known[reading.key].cpu is not None or (stray and one.manageable):
            wishes.append(
                MaskWish(key=reading.key, group=one.group, cpu=one.cpu, original=one.original, held=reading.mask)
            )
    return tuple(wishes)


def _journal(state: SpreadState) -> tuple[GroupMasks, ...]:
    by_group: dict[GroupKey, list[tuple[ThreadKey, Known]]] = {}
    for key, one in state.known.items():
        by_group.setdefault(one.group, []).append((key, one))
    return tuple(
        entry_of(key, origin, by_group.get(key, ())) for key, origin in sorted(state.origins.items()) if origin.touched
    )


def _reason(state: SpreadState, settings: SpreadSettings, sweep: ThreadSweep) -> str:
    share = settings.active_percent / 100
    counts: Counter[int] = Counter()
    for key, one in state.known.items():
        load = state.loads.get(key)
        if one.cpu is not None and (load is None or load.is_busy(share)):
            counts[one.cpu] += 1
    cpus = NOWHERE.union(*(origin.cpuset for origin in state.origins.values()))
    if not counts:
        said = "no busy BE thread" if len(cpus) != 1 else "one CPU: nothing to spread"
    else:
        fewest, most = min(counts[cpu] for cpu in cpus), max(counts.values())
        each = f"{most}" if fewest == most else f"{fewest} to {most}"
        said = f"{counts.total()} busy BE threads pinned, {each} on each of {len(cpus)} CPUs"
    left = f"; {sweep.left_out} beyond max_threads are left alone" if sweep.left_out else ""
    wild = sum(storm.raging for storm in state.storms.values())
    storm = f"; {wild} cgroups make threads too fast to be placed and are left wide" if wild else ""
    ballast = f"; ballast on CPUs {format_cpus(state.ballast)}" if state.ballast else ""
    return said + left + storm + ballast
