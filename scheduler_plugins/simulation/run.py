"""Simulation: nodes, pods and arrivals through the scheduler's own code, on a clock that jumps to what happens next.

Nothing here decides where a pod goes. What a process does on threads and timers is done in turn: an attempt, then the
bindings that it led to, then whatever has become due. Ties among equally good nodes are broken by the seed, so that the
same input gives the same result.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from prometheus_client import CollectorRegistry

from scheduler_plugins.binding import ApiBinder
from scheduler_plugins.config.profiles import build
from scheduler_plugins.config.types import ExtenderConfig, SchedulerConfig
from scheduler_plugins.dump import DumpError, Other
from scheduler_plugins.evictor import ApiEvictor
from scheduler_plugins.extenders.client import make_extenders
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.queue import BACKOFF, GATED, UNSCHEDULABLE, QueueTimes, SchedulingQueue
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.handlers import ClusterHandlers
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.report import Reporter, scheduled_condition
from scheduler_plugins.scheduler import Outside, Scheduler
from scheduler_plugins.simulation.arrivals import Arrival
from scheduler_plugins.simulation.clock import Clock, Timeline
from scheduler_plugins.simulation.ledger import Ledger
from scheduler_plugins.simulation.memory import MemoryApi
from scheduler_plugins.simulation.objects import DumpedObjects
from scheduler_plugins.simulation.outcome import (
    Fate,
    Outcome,
    PodOutcome,
    main_reason,
    node_outcome,
    totals,
)
from scheduler_plugins.simulation.start import Start, repeated
from slacktide.cluster.kinds import Kind
from slacktide.objects import Pod, is_terminating, pod_key
from slacktide.settings import ResourceNames

ATTEMPT_SECONDS: Final = 0.002
"""What a cycle takes on a cluster of thousands of nodes; without it, pods that wake one another would stop the time."""

_FLUSH_BACKOFF_SECONDS: Final = 1.0
_FLUSH_UNSCHEDULABLE_SECONDS: Final = 30.0
_REPEAT_SECONDS: Final = 43_200.0
_ATTEMPTS_A_POD: Final = 100
_FEW: Final = 5
_LEAST_PATIENCE_SECONDS: Final = 60.0
_OF_EXTENDERS: Final = {
    False: "extenders of the configuration were not asked: they know their own cluster, and not the pods placed here",
    True: "extenders were asked, but not to bind: they know their own cluster, and not the pods that were placed here",
}
_BACKOFFS: Final = 3
"""Without progress for so many of the longest backoffs nothing will change any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run. `seconds` None ends when nothing can change any more; `wall` is the time of the start, since the
    epoch. With `ageing` forecasts are left to expire. The last `kept_cycles` that rated nodes are told.
    Pods that keep waking one another are stopped after `least_attempts`, or 100 a pod. With `ask_extenders` those of
    the configuration are asked over the network, in their own time, but never to bind.
    """

    wall: float
    seed: int = 0
    seconds: float | None = None
    ageing: bool = False
    kept_cycles: int = 0
    ask_extenders: bool = False
    least_attempts: int = 10_000
    resources: ResourceNames = field(default_factory=ResourceNames)


@dataclass(slots=True)
class _Life:
    """What became of one pod that takes part."""

    pod: Pod
    arrives: float
    lifetime_seconds: float | None = None
    bound_at: float | None = None
    node: str = ""
    finished: bool = False


class _Recorder:
    """Keeps why pods were preempted, by uid; nobody else reads the events of a simulation."""

    def __init__(self) -> None:
        self.preempted: dict[str, tuple[Pod, str]] = {}

    def record(self, involved: Pod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:  # noqa: ARG002  # part of the protocol
        if reason == "Preempted":
            self.preempted[involved.metadata.uid] = (involved, message)


def kinds_of(config: SchedulerConfig, plugins: Registry) -> Sequence[Kind[Any]]:
    """Objects beside pods and nodes that a simulation of `config` can use. Raises SettingsError."""
    return _Process(config, plugins, Plan(0.0), lambda _: None).kinds


class _Process:
    """The scheduler as the host puts it together, with simulated clock and API."""

    def __init__(self, config: SchedulerConfig, plugins: Registry, plan: Plan, bound: Callable[[Pod], None]) -> None:
        self.clock = Clock(plan.wall)
        self.timeline = Timeline(self.clock)
        self.api = MemoryApi(self.clock, self.timeline, bound)
        self.objects = DumpedObjects(self.api)
        self.records = Ledger(self.clock.wall, plan.kept_cycles)
        self.recorder = _Recorder()
        self.tasks: deque[Callable[[], None]] = deque()
        self.reader = PodReader(plan.resources)
        self.waiting = WaitingRoom(self.clock.monotonic)
        nominator = Nominator(self.api.lookup)
        metrics = SchedulerMetrics(CollectorRegistry(), self.clock.monotonic)
        self.cache = Cache()
        self.extenders = make_extenders(_asked(config), self._pod_on) if plan.ask_extenders else ()
        handle = Handle(
            wall_seconds=self.clock.wall,
            bind=ApiBinder(self.api, lambda _: True).bind,
            cpu_resource=plan.resources.cpu,
            memory_resource=plan.resources.memory,
            monotonic=self.clock.monotonic,
            waiting=self.waiting,
            objects=self.objects,
            nominations=nominator,
            evictor=ApiEvictor(self.api, self.waiting, nominator, self.recorder, metrics, self.clock.wall),
            activate=lambda pods: self.queue.activate(pods),
            extenders=self.extenders,
            submit=self.tasks.append,
        )
        self.profiles = build(config, plugins, lambda _: handle, metrics)
        times = QueueTimes(config.initial_backoff_seconds, config.maximum_backoff_seconds)
        self.queue = SchedulingQueue(self.profiles, metrics, self.clock.monotonic, times, nominator=nominator)
        self.handlers = ClusterHandlers(self.cache, self.queue, self.reader, self.profiles, self.waiting)
        outside = Outside(
            pods=_Lookup(self.api),
            reporter=Reporter(self.api, self.recorder, self.clock.wall),
            submit=self.tasks.append,
            monotonic=self.clock.monotonic,
            choose=random.Random(plan.seed).randrange,
            waiting=self.waiting,
            records=self.records,
        )
        self.scheduler = Scheduler(self.profiles, self.queue, self.cache, self.reader, metrics, outside)

    def _pod_on(self, node_name: str, uid: str) -> PodInfo | None:
        info = self.cache.get(uid) if uid in self.cache else None
        return info if info is not None and info.pod.spec.node_name == node_name else None

    @property
    def kinds(self) -> Sequence[Kind[Any]]:
        return [kind for framework in self.profiles.values() for kind in framework.kinds]


def _asked(config: SchedulerConfig) -> Sequence[ExtenderConfig]:
    """The extenders without what would bind pods of a real cluster."""
    return [msgspec.structs.replace(one, bind_verb="") for one in config.extenders]


class _Lookup:
    def __init__(self, api: MemoryApi) -> None:
        self._api = api

    def get(self, namespace: str, name: str) -> Pod | None:
        return self._api.lookup(namespace, name)


class Simulation:
    """One run. Raises SettingsError for a configuration that cannot be used, DumpError for an object that cannot."""

    def __init__(
        self,
        config: SchedulerConfig,
        plugins: Registry,
        start: Start,
        plan: Plan,
        arrivals: Sequence[Arrival] = (),
        others: Sequence[Other] = (),
    ) -> None:
        self._plan = plan
        self._start = start
        self._extenders = len(config.extenders)
        self._process = _Process(config, plugins, plan, self._bound)
        self._process.objects.use(self._process.kinds, others)
        self._next_backoff = _FLUSH_BACKOFF_SECONDS
        self._next_unschedulable = _FLUSH_UNSCHEDULABLE_SECONDS
        self._lives = {pod.metadata.uid: _Life(pod, 0.0) for pod in start.waiting}
        self._check_names(arrivals)
        self._expect(arrivals)
        self._most_attempts = max(plan.least_attempts, _ATTEMPTS_A_POD * len(self._lives))
        self._unbroken = 0
        self._progress = 0.0
        self._patience = max(_LEAST_PATIENCE_SECONDS, _BACKOFFS * config.maximum_backoff_seconds)
        self._stopped = False
        self._fill()

    def run(self) -> Outcome:
        """Go on to the end of the time, or until nothing can change any more."""
        try:
            return self._run()
        finally:
            for extender in self._process.extenders:
                extender.close()

    def _run(self) -> Outcome:
        end = self._plan.seconds
        while (end is None or self._process.clock.now < end) and self._step():
            # A time that was given ends by itself, unless attempts follow one another without a pause.
            attempts = self._process.records.attempts if end is None else self._unbroken
            if attempts >= self._most_attempts:
                self._stopped = True
                break
        return self._outcome()

    def _expect(self, arrivals: Sequence[Arrival]) -> None:
        for one in arrivals:
            self._lives[one.pod.metadata.uid] = _Life(one.pod, one.at, one.lifetime_seconds)
            self._process.timeline.at(one.at, functools.partial(self._process.api.put, one.pod))

    def _check_names(self, arrivals: Sequence[Arrival]) -> None:
        known = {pod_key(pod) for pod in (*self._start.placed, *self._start.waiting)}
        twice = sorted(known.intersection(pod_key(one.pod) for one in arrivals))
        if twice:
            raise DumpError(f"pods of the dump arrive once more: {', '.join(twice[:_FEW])}; name them otherwise")

    def _fill(self) -> None:
        process, start = self._process, self._start
        for node in start.nodes:
            process.api.put_node(node)
        if not self._plan.ageing:
            self._repeat()
        for pod in (*start.placed, *start.waiting):
            process.api.put(pod)
        process.api.tell(process.handlers)

    def _repeat(self) -> None:
        """Forecasts that are fresh stay so, as if the predictor went on to say the same."""
        process = self._process
        for node in repeated(tuple(process.api.nodes.values()), process.clock.wall()):
            process.api.put_node(node)
        process.timeline.at(process.clock.now + _REPEAT_SECONDS, self._repeat, background=True)

    def _bound(self, pod: Pod) -> None:
        life = self._lives.get(pod.metadata.uid)
        if life is None:
            return
        now = self._progress = self._process.clock.now
        life.bound_at, life.node = now, pod.spec.node_name
        if life.lifetime_seconds is not None:
            self._process.timeline.at(now + life.lifetime_seconds, lambda: self._finish(life))

    def _finish(self, life: _Life) -> None:
        life.finished = self._process.api.remove(life.pod)

    # Time.

    def _step(self) -> bool:
        """One attempt, or a jump to what happens next; False when nothing does."""
        process = self._process
        self._due()
        if process.scheduler.attempt(0):
            process.clock.to(process.clock.now + ATTEMPT_SECONDS)
            self._work()
            self._unbroken += 1
            return True
        self._unbroken = 0
        moment = self._next()
        if moment is None:
            return False
        if self._plan.seconds is not None:
            moment = min(moment, self._plan.seconds)
        process.clock.to(moment)
        return True

    def _due(self) -> None:
        process, now = self._process, self._process.clock.now
        process.timeline.happen()
        process.waiting.expire()
        if now >= self._next_backoff:
            process.queue.flush_backoff()
            self._next_backoff = _after(now, _FLUSH_BACKOFF_SECONDS)
        if now >= self._next_unschedulable:
            process.queue.flush_unschedulable()
            self._next_unschedulable = _after(now, _FLUSH_UNSCHEDULABLE_SECONDS)
        self._work()

    def _work(self) -> None:
        """What was handed to the threads: bindings, and what plugins submitted."""
        tasks = self._process.tasks
        while tasks:
            tasks.popleft()()

    def _next(self) -> float | None:
        process, now = self._process, self._process.clock.now
        counts = process.queue.counts()
        left = process.waiting.expire()
        changes = process.timeline.lasts or left is not None
        if changes:
            self._progress = now
        goes_on = changes or self._plan.seconds is not None
        # Pods that meet an error back off and try again for ever; so do all while there is no node.
        if not goes_on and (not counts[BACKOFF] or now > self._progress + self._patience):
            return None
        moments = [process.timeline.next(), None if left is None else now + left]
        if counts[BACKOFF]:
            moments.append(self._next_backoff)
        if counts[UNSCHEDULABLE] or counts[GATED]:
            moments.append(self._next_unschedulable)
        return min((moment for moment in moments if moment is not None), default=self._plan.seconds)

    # What came of it.

    def _outcome(self) -> Outcome:
        process = self._process
        told = [self._told(uid, life) for uid, life in self._lives.items()]
        unplaced = (Fate.PENDING, Fate.GATED)
        reasons = [
            main_reason(process.records.by_pod.get(uid)) if pod.fate is Fate.PENDING else pod.reason
            for uid, pod in zip(self._lives, told, strict=True)
            if pod.fate in unplaced
        ]
        nodes = self._nodes()
        resources = self._shown(nodes)
        return Outcome(
            pods=told,
            nodes=[node_outcome(node, resources) for node in nodes],
            totals=totals(
                told,
                reasons,
                attempts=process.records.attempts,
                seconds=process.clock.now,
                others=self._start.others,
                nodes=len(nodes),
            ),
            cycles=list(process.records.rated()),
            remarks=self._remarks(),
        )

    def _told(self, uid: str, life: _Life) -> PodOutcome:
        fate, reason = self._fate(uid, life)
        metadata = life.pod.metadata
        cycle = self._process.records.by_pod.get(uid)
        return PodOutcome(
            namespace=metadata.namespace,
            name=metadata.name,
            fate=fate,
            node=life.node,
            attempts=0 if cycle is None else cycle.attempt,
            arrived_seconds=life.arrives,
            waited_seconds=None if life.bound_at is None else life.bound_at - life.arrives,
            reason=reason,
        )

    def _fate(self, uid: str, life: _Life) -> tuple[Fate, str]:
        process = self._process
        current = process.api.lookup(life.pod.metadata.namespace, life.pod.metadata.name)
        if life.finished:
            return Fate.FINISHED, ""
        if life.bound_at is not None:
            gone = current is None or current.metadata.uid != uid or is_terminating(current)
            return (Fate.PREEMPTED, process.recorder.preempted.get(uid, (None, ""))[1]) if gone else (Fate.PLACED, "")
        if current is None or current.metadata.uid != uid:
            return Fate.COMING, ""
        waiter = process.waiting.get(uid)
        if waiter is not None:
            return Fate.WAITING, f"waits at Permit for {', '.join(sorted(waiter.pending()))}, on {waiter.node_name}"
        info = process.reader.read(current)
        if process.queue.where(info) == GATED:
            return Fate.GATED, process.profiles[current.spec.scheduler_name].run_pre_enqueue(info).message
        condition = scheduled_condition(current)
        return Fate.PENDING, condition.message if condition is not None else ""

    def _nodes(self) -> list[NodeInfo]:
        process = self._process
        nodes = {name: NodeInfo.of(node) for name, node in process.api.nodes.items()}
        for pod in process.api.pods.values():
            if pod.spec.node_name in nodes:
                nodes[pod.spec.node_name].add_pod(process.reader.read(pod))
        return list(nodes.values())

    def _shown(self, nodes: Sequence[NodeInfo]) -> list[str]:
        """Resources to tell of: the four of everybody, as far as any node has them, and what the pods ask for."""
        asked = {name for life in self._lives.values() for name in self._process.reader.read(life.pod).requests}
        usual = ["cpu", "memory", self._plan.resources.cpu, self._plan.resources.memory]
        there = [name for name in usual if any(name in node.allocatable for node in nodes)]
        return [*there, *sorted(asked.difference(there))]

    def _remarks(self) -> list[str]:
        said = []
        if self._stopped:
            said.append(f"stopped after {self._process.records.attempts} attempts: pods keep waking one another")
        if self._extenders:
            said.append(_OF_EXTENDERS[self._plan.ask_extenders])
        victims = [pod_key(pod) for uid, (pod, _) in self._process.recorder.preempted.items() if uid not in self._lives]
        if victims:
            more = f" and {len(victims) - _FEW} more" if len(victims) > _FEW else ""
            said.append(f"had to give way, and were placed before: {', '.join(victims[:_FEW])}{more}")
        if self._start.others:
            said.append(f"{self._start.others} pods without a node name a scheduler that is not simulated")
        return said


def _after(now: float, period: float) -> float:
    """The next whole multiple of `period` after `now`."""
    return (now // period + 1) * period
