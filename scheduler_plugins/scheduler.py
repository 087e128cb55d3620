"""Host 1: a scheduler of its own, for pods that name it in spec.schedulerName.

The scheduling cycle is serial, one pod at a time; bindings run beside it. A pod counts on its node from the moment it
is chosen (assumed), so the next pod cannot get the same room. One that waits at Permit does so between the two, and
keeps no thread meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_plugins.binding import BoundElsewhere, PodGone
from scheduler_plugins.cycle import Choose, NoNodesError, Placement, place
from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import FitError
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code, PluginFailure, Status, failed
from scheduler_plugins.framework.waiting import DELETED, WaitingRoom
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.report import SCHEDULER_ERROR, UNSCHEDULABLE, Reporter
from slacktide.objects import Pod, is_terminating
from slacktide.observe import get_logger

_log = get_logger("scheduler")


class PodLookup(Protocol):
    """The newest known version of a pod, as an informer has it."""

    def get(self, namespace: str, name: str) -> Pod | None:
        """None for a pod that is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Outside:
    """What the scheduler needs of the world.

    `submit` runs a binding beside the loop; `choose` breaks ties; `waiting` is what the plugins' handle has, too.
    """

    pods: PodLookup
    reporter: Reporter
    submit: Callable[[Callable[[], None]], object]
    monotonic: Callable[[], float]
    choose: Choose
    waiting: WaitingRoom = field(default_factory=lambda: WaitingRoom(time.monotonic))


@dataclass(slots=True)
class _Attempt:
    """One attempt under way."""

    queued: QueuedPod
    state: CycleState
    started: float
    node: str = ""

    @property
    def info(self) -> PodInfo:
        return self.queued.info


class Scheduler:
    """Takes pods from the queue and places them."""

    def __init__(
        self,
        framework: Framework,
        queue: SchedulingQueue,
        cache: Cache,
        reader: PodReader,
        metrics: SchedulerMetrics,
        outside: Outside,
    ) -> None:
        self._framework = framework
        self._queue = queue
        self._cache = cache
        self._reader = reader
        self._metrics = metrics
        self._outside = outside
        self._snapshot = framework.new_snapshot()

    def attempt(self, timeout: float | None = None) -> bool:
        """One scheduling cycle; False if no pod was ready within `timeout` seconds."""
        queued = self._queue.pop(timeout)
        if queued is None:
            return False
        attempt = _Attempt(queued, CycleState(), self._outside.monotonic())
        try:
            self._cycle(attempt)
        except Exception as error:  # noqa: BLE001  # the one handler around a cycle: the loop must go on
            self._rescue(attempt, error)
        return True

    def _cycle(self, attempt: _Attempt) -> None:
        info = attempt.info
        if is_terminating(info.pod) or info.uid in self._cache:
            self._queue.done(info.uid)
            return
        self._cache.refresh(self._snapshot)
        try:
            placement = self._find(attempt)
        except FitError as error:
            self._refused(attempt, error)
        except NoNodesError as error:
            self._fail(attempt, "unschedulable", UNSCHEDULABLE, str(error))
        except PluginFailure as error:
            self._fail(attempt, "error", SCHEDULER_ERROR, str(error))
        else:
            self._take(attempt, placement)

    def _find(self, attempt: _Attempt) -> Placement:
        started = self._outside.monotonic()
        try:
            return place(self._framework, attempt.state, attempt.info, self._snapshot, self._outside.choose)
        finally:
            self._metrics.found(self._outside.monotonic() - started)

    def _refused(self, attempt: _Attempt, error: FitError) -> None:
        attempt.queued.unschedulable_plugins |= error.diagnosis.unschedulable_plugins
        attempt.queued.pending_plugins |= error.diagnosis.pending_plugins
        self._fail(attempt, "unschedulable", UNSCHEDULABLE, str(error))

    def _take(self, attempt: _Attempt, placement: Placement) -> None:
        info, node = attempt.info, placement.node
        self._cache.assume(info, node)
        attempt.node = node
        _log.debug("chosen", pod=info.key, node=node, evaluated=placement.evaluated, feasible=placement.feasible)
        status = self._framework.run_reserve(attempt.state, info, node)
        waits: Mapping[str, float] = {}
        if status.ok:
            status, waits = self._framework.run_permit(attempt.state, info, node)
        if waits:
            self._wait(attempt, waits)
        elif status.ok:
            self._outside.submit(lambda: self._bind(attempt))
        else:
            self._undo_and_requeue(attempt, status)

    def _wait(self, attempt: _Attempt, waits: Mapping[str, float]) -> None:
        """The pod keeps its place until Permit is decided; the attempt goes on beside the loop."""
        info = attempt.info

        def decided(status: Status, seconds: float) -> None:
            _log.debug("permit decided", pod=info.key, node=attempt.node, status=status.label, seconds=seconds)
            self._outside.submit(lambda: self._permitted(attempt, status))

        _log.debug("waits at permit", pod=info.key, node=attempt.node, plugins=sorted(waits))
        waiter = self._outside.waiting.add(info, attempt.node, waits, decided)
        if info.uid not in self._cache:
            # Deleted since it was assumed: nobody found it waiting then.
            waiter.reject("", DELETED)

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
            status = self._framework.run_pre_bind(attempt.state, info, node)
            if status.ok:
                status = self._framework.run_bind(attempt.state, info, node)
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
        self._metrics.attempted("scheduled", now - attempt.started)
        ready = attempt.queued.initial_attempt
        self._metrics.scheduled(attempt.queued.attempts, None if ready is None else now - ready)
        _log.info("scheduled", pod=info.key, node=attempt.node, attempts=attempt.queued.attempts)
        self._outside.reporter.scheduled(info.pod, attempt.node)
        for problem in self._framework.run_post_bind(attempt.state, info, attempt.node):
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
        for problem in self._framework.run_unreserve(attempt.state, attempt.info, attempt.node):
            _log.error("unreserve failed", plugin=problem.plugin, error=problem.message)
        return self._cache.forget(attempt.info.uid)

    def _wake_for(self, forgotten: PodInfo | None) -> None:
        if forgotten is not None:
            self._queue.move_all(events.ASSIGNED_POD_DELETE, forgotten, None, exclude=forgotten.uid)

    def _fail(self, attempt: _Attempt, result: str, reason: str, message: str) -> None:
        """The failure handler: tell people, then queue the newest version of the pod, unless it needs no more."""
        self._metrics.attempted(result, self._outside.monotonic() - attempt.started)
        info = attempt.info
        current = self._outside.pods.get(info.pod.metadata.namespace, info.pod.metadata.name)
        if current is None or current.metadata.uid != info.uid or current.spec.node_name or is_terminating(current):
            self._queue.done(info.uid)
            return
        report = _log.info if result == "unschedulable" else _log.warning
        report("not scheduled", pod=info.key, attempts=attempt.queued.attempts, reason=message)
        self._outside.reporter.failed(current, reason, message)
        attempt.queued.info = self._reader.read(current)
        self._queue.requeue(attempt.queued)
