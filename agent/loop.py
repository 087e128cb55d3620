"""The control loop: two rhythms on one thread of its own, fixed-rate by the monotonic clock, and arrivals in between.

*Beat* (20 Hz): read what decides urgency; an urgent policy may cut BE at once. *Turn* (1 Hz): sweep, snapshot,
policies, executor, sample, status. *Arrival*: a pod or container came; the prompt policies judge it at once, and it
gets what they and the limits in force want of it. Beats and turns that are due go first, and arrivals rest a moment
between two steps. Nothing here waits for the network: pods come from a cache, samples go into a queue. A late beat or
turn is counted and the missed ones are skipped, never made up for.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from agent.act.executor import Executor
from agent.arrival import Newcomer, Newcomers, Watch, changed_pods, joined
from agent.beat import Beat, Reading
from agent.counters import NodeCounters
from agent.decisions import Decisions
from agent.effects import Effects
from agent.eviction import Victim
from agent.hands import Hands
from agent.host.cgroup import PodGroup
from agent.host.wake import Waker
from agent.pods import PodBook
from agent.policy.base import Context, Glimpse, Plan, Policy
from agent.pressure import Pressure
from agent.sentence import sentence
from agent.settings import AgentSettings
from agent.snapshot import Naming, NodeSnapshot, PodIdentity, Sweep, build
from agent.threads import ThreadSweep
from agent.window import Sample, Window
from slacktide.errors import KernelError
from slacktide.observe import get_logger, traces
from slacktide.status import Usage
from slacktide.tier import Tier

_LOG: Final = get_logger("agent.loop")
_LATE_PERIODS: Final = 1.0
_COUNTERS: Final = (
    *("turns", "beats", "cuts", "late_beats", "late_turns", "errors"),
    *("spread_new", "spread_moves", "spread_foreign"),
    *("arrivals", "arrivals_unknown"),
)
_AT_ONCE: Final = 8
"""Pods that one arrival step takes: about 15 ms of CPU."""
_REST_SECONDS: Final = 0.01


class Host(Protocol):
    """What the turn reads from."""

    last_groups: tuple[PodGroup, ...]

    def sweep(self) -> Sweep:
        """Read everything once. Raises a KernelError when the cgroup root cannot be listed."""


class Threads(Protocol):
    """Where threads of BE pods are read from."""

    def sweep(self, pods: Sequence[PodGroup], max_threads: int, max_new: int) -> ThreadSweep:
        """All threads of these pods."""

    def fresh(self, max_threads: int, max_new: int) -> ThreadSweep | None:
        """Those that came since; None when there are none."""

    def include(self, pods: Sequence[PodGroup]) -> None:
        """Look for fresh ones in these pods, too, until the next sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Result of a turn, for status and metrics. `held` says why nothing was decided, empty when it was."""

    number: int
    wall: float
    seconds: float
    snapshot: NodeSnapshot
    plan: Plan
    held: str
    line: str


class Loop:
    """Owns executor, policies, beat and window.

    `on_turn`, `on_sample` and `on_arrival` (seconds from when something new was seen until its limits were written)
    are called on the control thread and must not block. `last_sign` is when a turn last went well. `counters`: turns,
    beats, cuts, late_beats, late_turns, errors, arrivals, arrivals_unknown (the API did not have the pod yet), and
    what policies count. `threads` is where BE threads are read from; None where no policy places any. Without
    `watch` newcomers wait for the turn.
    """

    def __init__(
        self,
        settings: Callable[[], AgentSettings],
        host: Host,
        beat: Beat,
        pods: PodBook,
        policies: tuple[Policy, ...],
        context: Context,
        executor: Executor,
        *,
        on_turn: Callable[[Turn], None],
        on_sample: Callable[[Sample], None],
        on_arrival: Callable[[float], None] = lambda _seconds: None,
        threads: Threads | None = None,
        watch: Watch | None = None,
        effects: Effects | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._host = host
        self._beat = beat
        self._pods = pods
        self._context = context
        self._on_turn = on_turn
        self._on_sample = on_sample
        self._on_arrival = on_arrival
        self._threads = threads
        self._watch = watch
        self._effects = effects or Effects()
        self._newcomers = Newcomers()
        self._naming = Naming()
        self._late: dict[str, PodGroup] = {}
        self._rest_until = clock()
        self._retry = False
        self._look = True
        self._clock = clock
        self._wall = wall
        self._window = Window(settings().report.window_seconds)
        self._sweep: Sweep | None = None
        self._snapshot: NodeSnapshot | None = None
        self._reading: Reading | None = None
        self._identities: Mapping[str, PodIdentity] = {}
        self._sent: tuple[Victim, ...] = ()
        self._closed = ""
        self._gist: object = None
        self._held = "no turn yet"
        self._stop = threading.Event()
        self._waker: Waker | None = None
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self.last_sign = clock()
        self.counters: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        self._decisions = Decisions(policies, context, self.counters)
        self._hands = Hands(executor, self._decisions, lambda: self._observes, self.counters)

    def start(self) -> None:
        """Start the control thread."""
        self._waker = Waker()
        self._thread.start()

    def wake(self) -> None:
        """Look at once for newcomers that the API did not have yet; for any thread, an informer's."""
        self._retry = True
        if self._waker is not None:
            self._waker.wake()

    def stop(self, deadline_seconds: float) -> bool:
        """End the thread; whether it ended in time."""
        self._stop.set()
        self.wake()
        self._thread.join(deadline_seconds)
        if self._thread.is_alive():
            return False
        if self._waker is not None:
            self._waker.close()
        return True

    def _run(self) -> None:
        """Beats at a fixed rate, and a turn in place of every so many of them."""
        settings = self._settings()
        next_beat = next_turn = self._clock()
        while not self._stop.is_set():
            now = self._clock()
            if self._effects.silenced and self._guarded(self._keep_silent):
                # Whatever was due meanwhile was not late.
                next_beat = next_turn = self._clock()
                continue
            if now >= next_turn:
                next_turn = self._advance(next_turn, settings.turn_seconds, now, "late_turns")
                if self._guarded(self.turn):
                    self.last_sign = self._clock()
            elif now >= next_beat:
                next_beat = self._advance(next_beat, self._beat_period(settings), now, "late_beats")
                self._guarded(self.beat)
            if self._look and self._clock() >= self._rest_until:
                self._guarded(self.arrive)
                self._look = self._newcomers.waiting or (self._watch is not None and self._watch.pending)
            self._sleep(min(next_beat, next_turn))

    def _keep_silent(self) -> None:
        """One step of a drill that rehearses our loss: no sign of life, no look at the node."""
        assert self._waker is not None
        self._effects.keep_silent(self._clock())
        # Newcomers are not watched for: nobody takes them, so they would wake us for ever.
        self._waker.wait(self._settings().beat_seconds, None)

    def _beat_period(self, settings: AgentSettings) -> float:
        """Short while a surge of LS could be short of CPU at once: BE runs beside it, and the CPUs are busy."""
        reading, snapshot = self._reading, self._snapshot
        if reading is None or snapshot is None or reading.node_busy_ratio is None:
            return settings.beat_seconds
        busy = 100 * reading.node_busy_ratio >= settings.shortage.busy_percent
        shared = busy and snapshot.pods_of(Tier.BE) and snapshot.pods_of(Tier.LS)
        return min(settings.beat_seconds, settings.busy_beat_seconds) if shared else settings.beat_seconds

    def _sleep(self, until: float) -> None:
        """Until then, or until something comes that may be looked at; between two arrival steps there is a rest.

        Where nothing woke us nothing came, unless nobody listened.
        """
        assert self._waker is not None
        now = self._clock()
        rests = self._rest_until > now
        watched = None if rests or self._watch is None else self._watch.fileno()
        woken = self._waker.wait((min(until, self._rest_until) if rests else until) - now, watched)
        self._look = self._look or woken or rests

    def _advance(self, due: float, period: float, now: float, late: str) -> float:
        """The next due time after `now` on the same grid; what was missed is counted once."""
        if now - due > _LATE_PERIODS * period:
            self.counters[late] += 1
            return now + period
        return due + period

    def _guarded(self, part: Callable[[], None]) -> bool:
        """The one broad handler: an error in one turn must not end the protection of LS. Whether all went well."""
        try:
            part()
        except Exception:  # noqa: BLE001 - see above; logged with its trace and counted
            self.counters["errors"] += 1
            _LOG.exception("a turn or beat failed; the next one goes on")
            return False
        return True

    def beat(self) -> None:
        """Read urgency; let urgent policies cut, with the last turn's snapshot and this pressure; place new threads."""
        self.counters["beats"] += 1
        self._reading = self._beat.take(whole=False)
        if self._snapshot is None or self._held:
            return
        fresh = self._threads.fresh(*self._thread_bounds) if self._threads else None
        settings = self._settings()
        glimpse = self._glimpse(self._snapshot, self._reading, settings, new_threads=fresh is not None)
        alarmed = self._decisions.alarmed(glimpse, settings)
        if not alarmed and not self._effects.drilling:
            return
        before = self._decisions.limit()
        urgent = self._with_reading(self._snapshot, urgent=True, at=self._reading.at, threads=fresh)
        self._decisions.decide(urgent, settings, alarmed.__contains__)
        if fresh is not None:
            self._place(self._decisions.plan())
        after = self._decisions.limit()
        if after is not None and (before is None or after < before):
            plan = self._decisions.plan()
            self.counters["cuts"] += 1
            self._apply(plan)
            _LOG.info("cut", be_limit_millis=plan.be_limit_millis, reason=plan.be_limit_reason)
        victims = self._decisions.victims()
        if victims != self._sent:
            self._sent = victims
            self._effects.evict(victims, self._snapshot, self._identities)
        if self._effects.drilling:
            self._effects.decided(self._decisions.plan(), urgent, after)

    @traces.traced("agent.turn")
    def turn(self) -> None:
        """One full look at the node, and what follows from it."""
        begin = self._clock()
        self._look = True
        self.counters["turns"] += 1
        self._reading = self._beat.take()
        try:
            with traces.span("agent.sweep"):
                sweep = self._host.sweep()
        except KernelError as error:
            self._finish(begin, self._blind(begin), Plan(), f"cgroups cannot be listed: {error}")
            return
        sweep = replace(sweep, node=self._effects.without_ballast(sweep.node))
        identities = self._pods.refresh(group.uid for group in sweep.groups)
        primed, self._sweep, before = self._sweep is not None, sweep, self._sweep
        snapshot = self._with_threads(self._with_reading(self._picture(before, sweep, identities)))
        snapshot = replace(self._effects.surround(snapshot), wall=self._wall(), ladder=self._decisions.ladder())
        self._snapshot, self._identities = snapshot, identities
        self._late.clear()
        if self._watch is not None:
            self._watch.follow()
            self._newcomers.keep({group.group for group in self._host.last_groups})
        self._follow(snapshot)
        held = "" if self._pods.synced else "the API has not answered yet: limits stay as they are"
        self._held = held = held or ("" if primed else "first look: rates need a second one")
        plan = Plan()
        if not held:
            snapshot = self._decisions.decide(snapshot, self._settings())
            plan = self._apply(self._decisions.plan())
            self._place(plan)
            self._sent = plan.victims
            self._effects.carry_out(plan, snapshot, self._agreed(), identities)
            self._effects.decided(plan, snapshot, plan.be_limit_millis)
        self._finish(begin, snapshot, plan, held)
        if self._pods.synced:
            # A turn that decided nothing does not open the node.
            self._closed = self._closed if held else plan.closed
            self._collect(snapshot, plan)

    def arrive(self) -> None:
        """Judge pods and containers that came, and limit those alone; bounded work, also when very many came."""
        if self._watch is None:
            return
        begin = self._clock()
        for arrival in self._watch.take(_AT_ONCE):
            # A pod without a container is still being set up: who makes it idle now keeps kubelet or systemd from
            # writing its weight (EINVAL), and would give back the kernel's default as its original.
            if arrival.pod.containers:
                self._newcomers.add(arrival)
        if self._retry:
            self._retry = False
            self._newcomers.retry()
        if self._snapshot is None or self._held:
            self._newcomers.clear()
            return
        due = self._newcomers.due(self._clock(), _AT_ONCE)
        if not due:
            return
        known = self._pods.find({newcomer.pod.uid for newcomer in due})
        for newcomer in due:
            if newcomer.pod.uid not in known and self._newcomers.missed(newcomer, begin):
                self.counters["arrivals_unknown"] += 1
        ready = [newcomer for newcomer in due if newcomer.pod.uid in known]
        try:
            limited = self._admit([newcomer.pod for newcomer in ready], known) if ready else set()
        finally:
            for newcomer in ready:
                self._newcomers.looked(newcomer)
            now = self._clock()
            self._rest_until = now + min(now - begin, _REST_SECONDS)
        self._told(ready, limited)

    def _told(self, ready: Sequence[Newcomer], limited: Collection[str]) -> None:
        """Count those looked at for the first time, and say how soon they were limited."""
        for newcomer in ready:
            if newcomer.looks == 1:
                self.counters["arrivals"] += 1
                if newcomer.pod.group in limited:
                    self._on_arrival(self._clock() - newcomer.at)

    def _admit(self, pods: Sequence[PodGroup], known: Mapping[str, PodIdentity]) -> set[str]:
        """Let prompt policies judge the node with these pods; carry out what changed, and all that these are to have.

        Returns the cgroups of pods for which anything is wanted.
        """
        assert self._snapshot is not None
        before, groups = self._decisions.plan(), {pod.group for pod in pods}
        snapshot = joined(self._snapshot, pods, known)
        self._late.update({pod.group: pod for pod in pods})
        if snapshot is not None:
            self._snapshot = snapshot
            fresh = self._fresh_in(pods)
            prompt = self._with_reading(snapshot, urgent=True, at=self._clock(), threads=fresh)
            self._decisions.decide(prompt, self._settings(), _answers_arrivals)
            if fresh is not None:
                self._place(self._decisions.plan())
        plan, everything = self._decisions.plan(), {pod.group for pod in self._snapshot.pods}
        groups |= changed_pods(before, plan, everything)
        self._apply(plan, only=groups)
        return changed_pods(Plan(), plan, everything)

    def _fresh_in(self, pods: Sequence[PodGroup]) -> ThreadSweep | None:
        """Threads that nobody saw yet, with those of BE pods that came."""
        if self._threads is None:
            return None
        assert self._snapshot is not None
        be = {pod.group for pod in self._snapshot.pods_of(Tier.BE)}
        self._threads.include([pod for pod in pods if pod.group in be])
        return self._threads.fresh(*self._thread_bounds)

    def _picture(self, before: Sweep | None, sweep: Sweep, identities: Mapping[str, PodIdentity]) -> NodeSnapshot:
        return build(
            before,
            sweep,
            identities,
            period_seconds=self._settings().turn_seconds,
            capacity=_capacity(sweep.node),
            naming=self._naming,
        )

    def _blind(self, at: float) -> NodeSnapshot:
        capacity = self._snapshot.capacity if self._snapshot else Usage()
        return NodeSnapshot(at=at, window_seconds=None, capacity=capacity)

    def _glimpse(
        self, snapshot: NodeSnapshot, reading: Reading, settings: AgentSettings, *, new_threads: bool
    ) -> Glimpse:
        """What this beat shows."""
        pressure, busy, memory = self._newest(snapshot, reading)
        return Glimpse(
            shortage=self._decisions.judge(pressure, busy, snapshot, settings),
            memory_available_bytes=memory,
            memory_capacity_bytes=snapshot.capacity.memory_bytes,
            new_threads=new_threads,
        )

    def _with_reading(self, snapshot: NodeSnapshot, **more: Any) -> NodeSnapshot:
        """The snapshot with the newest beat and `more`."""
        if self._reading is None:
            return replace(snapshot, **more)
        pressure, busy, memory = self._newest(snapshot, self._reading)
        return replace(snapshot, pressure=pressure, node_busy_ratio=busy, memory_available_bytes=memory, **more)

    def _newest(self, snapshot: NodeSnapshot, reading: Reading) -> tuple[Pressure | None, float | None, int | None]:
        """(LS pressure, busy share, available memory); share or memory that a beat could not read is the turn's."""
        busy, memory = reading.node_busy_ratio, reading.memory_available_bytes
        return (
            self._effects.pressure(reading.pressure),
            snapshot.node_busy_ratio if busy is None else busy,
            snapshot.memory_available_bytes if memory is None else memory,
        )

    def _with_threads(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """The snapshot with the threads of its BE pods."""
        if self._threads is None or not self._pods.synced:
            return snapshot
        threads = self._threads.sweep(self._groups_of(snapshot, Tier.BE), *self._thread_bounds)
        return replace(snapshot, threads=replace(threads, refused=self._hands.take_refused()))

    @property
    def _thread_bounds(self) -> tuple[int, int]:
        """How many threads are followed, and how many new ones one look takes."""
        spread = self._settings().spread
        return spread.max_threads, spread.new_threads

    def _groups_of(self, snapshot: NodeSnapshot, tier: Tier) -> list[PodGroup]:
        tiers = {pod.group: pod.tier for pod in snapshot.pods}
        return [group for group in self._host.last_groups if tiers.get(group.group) is tier]

    def _follow(self, snapshot: NodeSnapshot) -> None:
        ls = self._groups_of(snapshot, Tier.LS)
        use, capacity = snapshot.of(Tier.LS).cpu_millis, snapshot.capacity.cpu_millis
        load = use / capacity if use is not None and capacity else None
        self._beat.follow(ls, load, capacity // 1000 if capacity else None)

    @property
    def _observes(self) -> bool:
        return self._settings().observe_only or self._context.capabilities.observe_only

    def _apply(self, plan: Plan, only: Collection[str] | None = None) -> Plan:
        assert self._snapshot is not None
        return self._hands.apply(plan, self._snapshot, self._agreed(), only)

    def _place(self, plan: Plan) -> None:
        assert self._snapshot is not None
        self._hands.place(plan, self._snapshot, self._agreed())

    def _agreed(self) -> dict[str, PodGroup]:
        """Cgroups of the pods that API and kernel agree on, by path."""
        assert self._snapshot is not None
        by_group = {group.group: group for group in self._host.last_groups} | self._late
        return {pod.group: by_group[pod.group] for pod in self._snapshot.pods if pod.group in by_group}

    def _collect(self, snapshot: NodeSnapshot, plan: Plan) -> None:
        seen = self._effects.for_sample(snapshot)
        sample = self._window.add(seen, self._identities.values(), self._wall(), plan.be_limit_millis, self._closed)
        if sample is not None:
            self._on_sample(sample)

    def _finish(self, begin: float, snapshot: NodeSnapshot, plan: Plan, held: str) -> None:
        turn = Turn(
            number=self.counters["turns"],
            wall=self._wall(),
            seconds=self._clock() - begin,
            snapshot=snapshot,
            plan=plan,
            held=held,
            line=sentence(snapshot, plan, held, observe_only=self._observes),
        )
        levels = tuple((rung.name, rung.level) for rung in plan.rungs.values())
        gist = (
            held,
            plan.be_limit_millis,
            levels,
            bool(plan.closed),
            tuple((pod.identity.uid, pod.tier) for pod in snapshot.pods),
        )
        log = _LOG.debug if gist == self._gist else _LOG.info
        log("turn", line=turn.line, seconds=round(turn.seconds, 4))
        traces.note(line=turn.line, pods=len(snapshot.pods))
        self._gist = gist
        self._on_turn(turn)


def _answers_arrivals(policy: Policy) -> bool:
    """Whether a policy is asked about newcomers: those that every beat asks, and those that say so."""
    return policy.urgent or getattr(policy, "prompt", False)


def _capacity(node: NodeCounters | None) -> Usage:
    """What the node has; unknown when the node totals could not be read."""
    if node is None:
        return Usage()
    return Usage(cpu_millis=node.capacity_cpu_millis, memory_bytes=node.capacity_memory_bytes)
