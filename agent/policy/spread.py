"""Policy *spread*: every busy BE thread is pinned to one CPU, the same number on each, so that the kernel has no
reason to migrate them. What hurts LS beside the idle class is the migration of BE threads more than their presence.

Measured on two CPUs at 60 % LS load: four BE threads in the idle class, LS p99 1.19 times alone; pinned two a CPU,
0.96 times, and BE gets more (0.93 of what LS leaves instead of 0.89), as it keeps its caches.

Each turn looks at all threads of BE pods; a beat that finds new ones places those at once. A thread that wants less
than `active_percent` of a CPU gets its mask back after `release_turns`, and what it makes then starts wide. What was
pinned moves only when two CPUs are `imbalance` threads apart, or when it starves for `starve_turns` (behind LS, say),
and at most `moves_per_turn` threads. See `placement` for the rules, `origin` for what the workload allowed.

Only masks inside the workload's own are asked for; a thread with one CPU of its own is counted there and left alone.
CPUs are all alike here: NUMA nodes and hyper-threads are not looked at, as the agent does not read topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from agent.policy.base import Context, Desired
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
from agent.threads import GroupKey, GroupMasks, MaskPlan, MaskWish, ThreadKey, ThreadReading, ThreadSweep
from slacktide.settings import Settings


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
    adopted: Mapping[GroupKey, GroupMasks] = field(default_factory=dict)
    lost: bool = False
    reason: str = "BE threads were not looked at yet"


class Spread:
    """See the module."""

    name = "spread"
    urgent = True

    def start(self, context: Context) -> SpreadState:
        """Begin with what an earlier agent pinned."""
        return SpreadState(adopted={entry.key: entry for entry in context.adopted_masks}, lost=context.journal_lost)

    def decide(
        self, snapshot: NodeSnapshot, state: SpreadState, settings: SpreadSettings, context: Context
    ) -> tuple[Desired, SpreadState]:
        """Masks for the threads of `snapshot.threads`; a beat without new threads only repeats the reason."""
        sweep = snapshot.threads
        if not context.capabilities.affinity:
            return Desired(reason=context.capabilities.skipped.get("affinity", "no affinity on this node")), state
        if sweep is None:
            return Desired(reason=state.reason), state
        learned, counted = _learn(state, sweep)
        if not sweep.fresh:
            learned = _measure(learned, state, sweep, settings, snapshot.window_seconds)
        placed, moved = _place(learned, settings, sweep)
        counted.update(moved)
        placed = replace(placed, reason=_reason(placed, settings, sweep))
        plan = MaskPlan(whole=not sweep.fresh, groups=_journal(placed), wishes=_wishes(learned, placed, sweep))
        return Desired(reason=placed.reason, masks=plan, counted=counted), placed


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
        key: replace(origin, journaled=None) if key in seen and not sweep.fresh else origin
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
            origins[key] = replace(old, cpuset=cpuset)
            if cpuset != old.cpuset:
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
        loads=judged(loads, settings.active_percent / 100, settings.starve_ratio),
        others=others_of(before.others, before.busy_seconds, sweep.busy_seconds, seconds, be),
        busy_seconds=sweep.busy_seconds,
        at=sweep.at,
    )


def _place(state: SpreadState, settings: SpreadSettings, sweep: ThreadSweep) -> tuple[SpreadState, Counter[str]]:
    """A CPU for each thread that wants one, and none for those that went quiet."""
    share = settings.active_percent / 100
    candidates: list[Candidate] = []
    fixed: Counter[int] = Counter()
    for key, one in state.known.items():
        load = state.loads.get(key)
        busy = load is None or load.is_busy(share)
        mask = allowed(one.original, state.origins[one.group].cpuset)
        if len(mask) < 2 or not one.manageable:
            fixed.update(one.held if busy and len(one.held) == 1 else ())
        elif busy or (one.cpu is not None and load is not None and load.quiet < settings.release_turns):
            candidates.append(_candidate(key, one, load, mask, settings, busy=busy))
    moves = 0 if sweep.fresh else settings.moves_per_turn
    cpus = place(candidates, fixed, state.others, imbalance=settings.imbalance, moves=moves)
    known = {
        key: one if cpus.get(key) == one.cpu else replace(one, cpu=cpus.get(key)) for key, one in state.known.items()
    }
    moved = [
        key
        for key, one in known.items()
        if None not in (one.cpu, state.known[key].cpu) and one.cpu != state.known[key].cpu
    ]
    loads = dict(state.loads)
    for key in moved:
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
    )


def _touched(origins: Mapping[GroupKey, Origin], pinned: list[Known]) -> dict[GroupKey, Origin]:
    """Remember which CPUs were given to threads of which cgroup."""
    touched = dict(origins)
    for one in pinned:
        origin = touched[one.group]
        if one.cpu is not None and (one.cpu not in origin.cpus or not origin.touched):
            touched[one.group] = replace(origin, touched=True, cpus=origin.cpus | {one.cpu})
    return touched


def _wishes(before: SpreadState, after: SpreadState, sweep: ThreadSweep) -> tuple[MaskWish, ...]:
    """What shall be in force for the threads of the sweep, wherever we have or had a say."""
    wishes = []
    for reading in sweep.threads:
        one = after.known[reading.key]
        if one.cpu is not None or before.known[reading.key].cpu is not None:
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
    return said + left
