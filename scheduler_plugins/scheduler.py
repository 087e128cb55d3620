"""Host 1: a scheduler of its own, for pods that name one of its profiles in spec.schedulerName.

The scheduling cycle is serial, one pod at a time; bindings run beside it. A pod counts on its node from the moment it
is chosen (assumed), so the next pod cannot get the same room. One that waits at Permit does so between the two, and
keeps no thread meanwhile.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from scheduler_plugins.binding import BoundElsewhere, PodGone
from scheduler_plugins.cycle import Choose, NoFitError, NoNodesError, Placement, place
from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.kept import Kept
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import PODS_TO_ACTIVATE, CycleState
from scheduler_plugins.framework.status import Code, PluginFailure, Status, failed
from scheduler_plugins.framework.waiting import DELETED, WaitingRoom
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.records import Cycle, Records, Scores, counted, refused
from scheduler_plugins.report import NOT_READY, SCHEDULER_ERROR, UNSCHEDULABLE, Reporter, scheduled_condition
from slacktide.cluster.errors import Conflict
from slacktide.objects import Pod, is_terminating
from slacktide.observe import get_logger, traces

_log = get_logger("scheduler")

KEPT_OUT_SECONDS: Final = 10.0
"""How long a pod is kept out before people hear why: most gangs are complete sooner, and each word is a call."""
_MOST_TOLD: Final = 100
_SAMPLED_CYCLES: Final = 10
"""In one cycle of so many the time of each plugin goes to the metrics, as in the stock scheduler."""


class PodLookup(Protocol):
    """The newest known version of a pod, as an informer has it."""

    def get(self, namespace: str, name: str) -> Pod | None:
        """None for a pod that is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Outside:
    """What the scheduler needs of the world.

    `submit` runs a binding beside the loop; `choose` breaks ties; `waiting` is what the plugins' handle has, too.
    `records` keeps the last cycles for people. `reuse`: pods that are alike share what was found out about the nodes.
    """

    pods: PodLookup
    reporter: Reporter
    submit: Callable[[Callable[[], None]], object]
    monotonic: Callable[[], float]
    choose: Choose
    waiting: WaitingRoom = field(default_factory=lambda: WaitingRoom(time.monotonic))
    records: Records = field(default_factory=lambda: Records(time.time))
    reuse: bool = True


@dataclass(slots=True)
class _Attempt:
    """One attempt under way."""

    queued: QueuedPod
    framework: Framework
    state: CycleState
    started: float
    node: str = ""
    trace: traces.Carried = ()
    """The cycle's span, for the binding beside it."""

    @property
    def info(self) -> PodInfo:
        return self.queued.info


class Scheduler:
    """Takes pods from the queue and places them.

    `profiles` are frameworks by the schedulerName that pods name, or one that takes every pod of the queue. Each has
    a snapshot of its own, because what a plugin keeps of the nodes may depend on its arguments.
    """

    def __init__(
        self,
        profiles: Framework | Mapping[str, Framework],
        queue: SchedulingQueue,
        cache: Cache,
        reader: PodReader,
        metrics: SchedulerMetrics,
        outside: Outside,
    ) -> None:
        self._only = profiles if isinstance(profiles, Framework) else None
        self._profiles = {} if isinstance(profiles, Framework) else dict(profiles)
        self._queue = queue
        self._cache = cache
        self._reader = reader
        self._metrics = metrics
        self._outside = outside
        self._snapshots: dict[str, Snapshot] = {}
        self._kept: dict[str, Kept] = {}
        self._cycles = 0

    def _framework_of(self, info: PodInfo) -> Framework:
        return self._only or self._profiles[info.pod.spec.scheduler_name]

    def _fresh_snapshot(self, framework: Framework) -> Snapshot:
        snapshot = self._snapshots.get(framework.profile)
        if snapshot is None:
            snapshot = self._snapshots[framework.profile] = framework.new_snapshot()
            self._kept[framework.profile] = Kept(functools.partial(self._metrics.judged, framework.profile))
        self._cache.refresh(snapshot)
        return snapshot

    def attempt(self, timeout: float | None = None) -> bool:
        """One scheduling cycle; False if no pod was ready within `timeout` seconds."""
        queued = self._queue.pop(timeout)
        if queued is None:
            return False
        state = CycleState()
        state.sampled = self._cycles % _SAMPLED_CYCLES == 0
        self._cycles += 1
        attempt = _Attempt(queued, self._framework_of(queued.info), state, self._outside.monotonic())
        try:
            self._cycle(attempt)
        except Exception as error:  # noqa: BLE001  # the one handler around a cycle: the loop must go on
            self._rescue(attempt, error)
        return True

    def tell_kept_out(self) -> None:
        """Say why pods have been kept out of the queue for a while; to be called each few seconds."""
        for info, message in self._queue.kept_out(KEPT_OUT_SECONDS, _MOST_TOLD):
            current = self._outside.pods.get(info.pod.metadata.namespace, info.pod.metadata.name)
            if current is not None and current.metadata.uid == info.uid:
                self._outside.submit(functools.partial(self._outside.reporter.not_ready, current, message))

    @traces.traced("scheduler.cycle")
    def _cycle(self, attempt: _Attempt) -> None:
        info = attempt.info
        attempt.trace = traces.carried()
        traces.note(pod=info.key, attempt=attempt.queued.attempts)
        if is_terminating(info.pod) or info.uid in self._cache:
            self._queue.done(info.uid)
            return
        snapshot = self._fresh_snapshot(attempt.framework)
        try:
            placement = self._find(attempt, snapshot)
        except NoFitError as error:
            self._refused(attempt, error)
        except NoNodesError as error:
            self._recorded(attempt, "unschedulable", str(error))
            self._fail(attempt, "unschedulable", UNSCHEDULABLE, str(error))
        except PluginFailure as error:
            self._recorded(attempt, "error", str(error))
            self._fail(attempt, "error", SCHEDULER_ERROR, str(error))
        else:
            self._take(attempt, placement)
        if PODS_TO_ACTIVATE in attempt.state:
            self._queue.activate(attempt.state.read(PODS_TO_ACTIVATE).values())

    def _find(self, attempt: _Attempt, snapshot: Snapshot) -> Placement:
        started = self._outside.monotonic()
        framework = attempt.framework
        kept = self._kept[framework.profile] if self._outside.reuse else None
        try:
            return place(framework, attempt.state, attempt.info, snapshot, self._outside.choose, kept)
        finally:
            self._metrics.found(self._outside.monotonic() - started)

    def _refused(self, attempt: _Attempt, error: NoFitError) -> None:
        message = str(error)
        attempt.queued.unschedulable_plugins |= error.diagnosis.unschedulable_plugins
        attempt.queued.pending_plugins |= error.diagnosis.pending_plugins
        self._recorded(attempt, "unschedulable", message, refusals=refused(error.diagnosis))
        self._fail(attempt, "unschedulable", UNSCHEDULABLE, message, error.nominate)

    def _take(self, attempt: _Attempt, placement: Placement) -> None:
        info, node = attempt.info, placement.node
        self._cache.assume(info, node)
        attempt.node = node
        traces.note(node=node, feasible=placement.feasible)
        self._queue.nominator.drop(info.uid)
        self._chosen(attempt, placement)
        status = attempt.framework.run_reserve(attempt.state, info, node)
        waits: Mapping[str, float] = {}
        if status.ok:
            status, waits = attempt.framework.run_permit(attempt.state, info, node)
        if waits:
            self._wait(attempt, waits)
        elif status.ok:
            self._outside.submit(lambda: self._bind(attempt))
        else:
            self._undo_and_requeue(attempt, status)

    def _chosen(self, attempt: _Attempt, placement: Placement) -> None:
        _log.debug(
            "chosen",
            pod=attempt.info.key,
            node=placement.node,
            evaluated=placement.evaluated,
            feasible=placement.feasible,
        )
        self._recorded(attempt, "chosen", placement=placement, refusals=counted(placement.refused))

    def _recorded(
        self,
        attempt: _Attempt,
        result: str,
        message: str = "",
        *,
        placement: Placement | None = None,
        refusals: Sequence[Mapping[str, object]] = (),
    ) -> None:
        records, info = self._outside.records, attempt.info
        records.add(
            Cycle(
                profile=attempt.framework.profile,
                pod=info.key,
                uid=info.uid,
                attempt=attempt.queued.attempts,
                at=records.wall(),
                seconds=self._outside.monotonic() - attempt.started,
                result=result,
                node=placement.node if placement else "",
                message=message,
                evaluated=placement.evaluated if placement else 0,
                feasible=placement.feasible if placement else 0,
                scores=_best_scores(placement),
                refusals=refusals,
            )
        )

    def _wait(self, attempt: _Attempt, waits: Mapping[str, float]) -> None:
        """The pod keeps its place until Permit is decided; the attempt goes on beside the loop."""
        info = attempt.info

        def decided(status: Status, seconds: float) -> None:
            _log.debug("permit decided", pod=info.key, node=attempt.node, status=status.label, seconds=seconds)
            self._metrics.permit_waited(status.label, seconds)
            self._outside.submit(lambda: self._permitted(attempt, status))

        _log.debug("waits at permit", pod=info.key, node=attempt.node, plugins=sorted(waits))
        waiter = self._outside.waiting.add(info, attempt.node, waits, decided)
        self._correct(attempt, waits)
        if info.uid not in self._cache:
            # Deleted since it was assumed: nobody found it waiting then.
            waiter.reject("", DELETED)

    def _correct(self, attempt: _Attempt, waits: Mapping[str, float]) -> None:
        """Where the condition says that the pod is kept out, it is so no longer."""
        pod = attempt.info.pod
        current = self._outside.pods.get(pod.metadata.namespace, pod.metadata.name)
        condition = None if current is None else scheduled_condition(current)
        if current is not None and condition is not None and condition.reason == NOT_READY:
            message = f"holds a place on {attempt.node}, waits for {', '.join(sorted(waits))}"
            self._outside.submit(functools.partial(self._outside.reporter.not_ready, current, message))

    def _permitted(self, attempt: _Attempt, status: Status) -> None:
        if status.ok:
            self._bind(attempt)
            return
        try:
            self._undo_and_requeue(attempt, status)
        except Exception as error:  # noqa: BLE001  # as in a binding: its pod must not be lost
            self._rescue(attempt, error)

    def _bind(self, attempt: _Attempt) -> None:
        """The binding cycle; runs beside the loop."""
        info, node = attempt.info, attempt.node
        try:
            with traces.span("scheduler.bind", attempt.trace, pod=info.key, node=node):
                status = attempt.framework.run_pre_bind(attempt.state, info, node)
                if status.ok:
                    status = attempt.framework.run_bind(attempt.state, info, node)
            if not status.ok:
                self._not_bound(attempt, status)
                return
            self._bound(attempt)
        except Exception as error:  # noqa: BLE001  # the one handler around a binding: its pod must not be lost
            self._rescue(attempt, error)

    def _rescue(self, attempt: _Attempt, error: Exception) -> None:
        """A mistake of ours: the pod goes back to the queue, and if even that fails its attempt is at least ended."""
        _log.error("attempt failed", pod=attempt.info.key, node=attempt.node, exc_info=error)
        try:
            self._undo_and_requeue(attempt, failed(f"the scheduler failed: {error!r}", error))
        except Exception:  # noqa: BLE001  # the attempt must end whatever is broken
            _log.exception("pod not requeued", pod=attempt.info.key)
            self._queue.done(attempt.info.uid)

    def _bound(self, attempt: _Attempt) -> None:
        info, now = attempt.info, self._outside.monotonic()
        self._queue.done(info.uid)
        self._metrics.bound("bound")
        self._metrics.attempted(attempt.framework.profile, "scheduled", now - attempt.started)
        ready = attempt.queued.initial_attempt
        since = None if ready is None else now - ready
        self._metrics.scheduled(attempt.queued.attempts, since, flushed=attempt.queued.flushed)
        _log.debug("scheduled", pod=info.key, node=attempt.node, attempts=attempt.queued.attempts)
        self._outside.reporter.scheduled(info.pod, attempt.node)
        for problem in attempt.framework.run_post_bind(attempt.state, info, attempt.node):
            _log.error("post-bind plugin failed", plugin=problem.plugin, error=problem.message)

    def _not_bound(self, attempt: _Attempt, status: Status) -> None:
        if isinstance(status.error, BoundElsewhere | PodGone):
            self._metrics.bound("elsewhere" if isinstance(status.error, BoundElsewhere) else "gone")
            _log.info("not bound", pod=attempt.info.key, reason=str(status.error))
            self._undo(attempt)
            self._queue.done(attempt.info.uid)
            return
        self._metrics.bound("failed")
        self._undo_and_requeue(attempt, status)
        if isinstance(status.error, Conflict) and attempt.queued.consecutive_errors <= 1:
            # Somebody changed the pod while it was being bound and it has no node yet: that costs it no backoff, once.
            self._queue.activate([attempt.info])

    def _undo_and_requeue(self, attempt: _Attempt, status: Status) -> None:
        forgotten = self._release(attempt)
        if status.rejected:
            pending = status.code is Code.PENDING
            target = attempt.queued.pending_plugins if pending else attempt.queued.unschedulable_plugins
            # A refusal in nobody's name, such as a preemption at Permit, waits for no event but for its backoff.
            target.update({status.plugin} - {""})
            self._fail(attempt, "unschedulable", UNSCHEDULABLE, status.message)
        else:
            self._fail(attempt, "error", SCHEDULER_ERROR, status.message)
        # After the pod is back in the queue, so that the release of its own room does not wake it.
        self._wake_for(forgotten)

    def _undo(self, attempt: _Attempt) -> None:
        self._wake_for(self._release(attempt))

    def _release(self, attempt: _Attempt) -> PodInfo | None:
        if not attempt.node:
            return None
        for problem in attempt.framework.run_unreserve(attempt.state, attempt.info, attempt.node):
            _log.error("unreserve failed", plugin=problem.plugin, error=problem.message)
        return self._cache.forget(attempt.info.uid)

    def _wake_for(self, forgotten: PodInfo | None) -> None:
        if forgotten is not None:
            self._queue.move_all(events.ASSIGNED_POD_DELETE, forgotten, None, exclude=forgotten.uid)

    def _fail(self, attempt: _Attempt, result: str, reason: str, message: str, nominate: str | None = None) -> None:
        """The failure handler: tell people, then queue the newest version of the pod, unless it needs no more.

        `nominate` is where room was made for it, empty text takes that back, None changes nothing.
        """
        seconds = self._outside.monotonic() - attempt.started
        self._metrics.attempted(attempt.framework.profile, result, seconds)
        info = attempt.info
        current = self._outside.pods.get(info.pod.metadata.namespace, info.pod.metadata.name)
        if current is None or current.metadata.uid != info.uid or current.spec.node_name or is_terminating(current):
            self._queue.done(info.uid)
            return
        report = _log.info if result == "unschedulable" else _log.warning
        report("not scheduled", pod=info.key, attempts=attempt.queued.attempts, reason=message)
        if current is not info.pod:
            attempt.queued.info = self._reader.read(current)
        if nominate is None:
            self._outside.reporter.failed(current, reason, message)
        else:
            # In force before the next cycle, which is long before the watch tells of it.
            self._queue.nominator.set(attempt.queued.info, nominate)
            self._outside.reporter.failed(current, reason, message, nominate)
        self._queue.requeue(attempt.queued)


def _best_scores(placement: Placement | None) -> Scores | None:
    if placement is None or placement.scores is None:
        return None
    return Scores.of(placement.scores, placement.diagnosis.names, placement.node)
