"""Scheduling queue: pods that are ready, that back off, and that wait for something to change.

activeQ      ready, in the order of the QueueSort plugin
backoffQ     failed lately; refused pods and failed attempts in a heap each
unschedulable    refused, asleep until an event that one of its refusing plugins is helped by; gated pods too

Every Pop is ended by exactly one Done (`requeue` does it as well). An event that happens while a pod is being
attempted is judged when the attempt fails. Times come from an injected monotonic clock.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import ClusterEvent, Hint, Registration
from scheduler_plugins.framework.heap import NamedHeap
from scheduler_plugins.framework.inflight import InFlight, RecordedEvent
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queued import QueuedPod, backoff_duration
from scheduler_plugins.framework.status import Status


class QueueRules(Protocol):
    """What the queue asks of the framework."""

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """Order of ready pods."""
        ...

    def run_pre_enqueue(self, pod: PodInfo, first: str = "") -> Status:
        """Success, or the status of the plugin that gates the pod; plugin `first` is asked first."""
        ...

    @property
    def registrations(self) -> Mapping[str, Sequence[Registration]]:
        """Events by plugin name."""
        ...


class QueueObserver(Protocol):
    """Told what happens in the queue."""

    def incoming(self, queue: str, event: str) -> None:
        """A pod entered `queue` (active, backoff or unschedulable) because of `event`."""
        ...

    def hint_failed(self, plugin: str, event: str, error: Exception) -> None:
        """A queueing hint raised; the event was taken to help."""
        ...


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """Seconds. `ordering_window`: pods whose backoff ends within one window leave it in activeQ order."""

    initial_backoff: float = 1.0
    maximum_backoff: float = 10.0
    ordering_window: float = 1.0
    unschedulable_timeout: float = 300.0


class _Wake(enum.Enum):
    SLEEP = 0
    AFTER_BACKOFF = 1
    AT_ONCE = 2


ACTIVE: Final = "active"
BACKOFF: Final = "backoff"
UNSCHEDULABLE: Final = "unschedulable"
GATED: Final = "gated"


class QueueError(RuntimeError):
    """A caller broke the protocol of the queue."""


class SchedulingQueue:
    """Thread safe. Pods are known by namespace/name in the queue, and by uid while in flight."""

    def __init__(
        self,
        rules: QueueRules,
        observer: QueueObserver,
        clock: Callable[[], float],
        times: QueueTimes = QueueTimes(),
        *,
        pop_from_backoff: bool = True,
    ) -> None:
        self._rules = rules
        self._observer = observer
        self._clock = clock
        self._times = times
        self._pop_from_backoff = pop_from_backoff
        self._changed = threading.Condition()
        self._active: NamedHeap[QueuedPod] = NamedHeap(rules.sort_key)
        self._backoff: NamedHeap[QueuedPod] = NamedHeap(self._backoff_key)
        self._error_backoff: NamedHeap[QueuedPod] = NamedHeap(self._backoff_key)
        self._asleep: dict[str, QueuedPod] = {}
        self._in_flight = InFlight()
        self._closed = False

    # Entering and leaving.

    def add(self, info: PodInfo) -> None:
        """A pod without a node appeared."""
        with self._changed:
            if info.uid in self._in_flight:
                self._in_flight.replace(info)
                return
            known = self._take(info.key)
            if known is not None and known.info.uid == info.uid:
                known.info = info
                self._to_active(known, events.POD_ADD.label)
            else:
                self._to_active(QueuedPod(info, self._clock()), events.POD_ADD.label)

    def update(self, old: PodInfo, new: PodInfo) -> None:
        """A pod that waits was changed. A change that nobody can care about (status only) moves nothing."""
        happened = events.pod_events(old.pod, new.pod)
        with self._changed:
            if new.uid in self._in_flight:
                self._in_flight.replace(new)
                self._record(RecordedEvent(event, old, new) for event in happened)
                return
            heap = self._heap_of(new.key)
            if heap is not None:
                queued = heap.remove(new.key)
                if queued is not None:
                    queued.info = new
                    heap.push(new.key, queued)
                return
            sleeping = self._asleep.get(new.key)
            if sleeping is None:
                self._to_active(QueuedPod(new, self._clock()), events.POD_ADD.label)
                return
            sleeping.info = new
            for event in happened:
                if self._wake(sleeping, event, old, new):
                    return

    def delete(self, info: PodInfo) -> None:
        """A pod is gone or has a node; one in flight is left to its attempt and does not come back."""
        with self._changed:
            self._in_flight.remove(info.uid)
            known = self._find(info.key)
            if known is not None and known.info.uid == info.uid:
                self._take(info.key)

    def pop(self, timeout: float | None = None) -> QueuedPod | None:
        """The next pod to attempt, waiting up to `timeout` seconds; None if there is none, or the queue is closed.

        The caller must end the attempt with `done` or `requeue`.
        """
        with self._changed:
            if not self._ready():
                self._changed.wait_for(lambda: self._closed or self._ready(), timeout)
            while not self._closed:
                queued = self._next()
                if queued is None:
                    return None
                if queued.info.uid in self._in_flight:
                    continue
                queued.attempts += 1
                queued.unschedulable_plugins.clear()
                queued.pending_plugins.clear()
                self._in_flight.begin(queued.info.uid)
                return queued
            return None

    def done(self, uid: str) -> None:
        """The attempt of the pod is over."""
        with self._changed:
            self._in_flight.done(uid)

    def requeue(self, queued: QueuedPod) -> None:
        """The attempt failed: its plugin sets say who refused the pod. A pod deleted meanwhile does not come back.

        Raises QueueError if the pod is in the queue already. Always ends the attempt.
        """
        with self._changed:
            uid, key = queued.info.uid, queued.info.key
            try:
                if self._in_flight.gone(uid):
                    return
                queued.info = self._in_flight.latest(queued.info)
                if self._heap_of(key) is not None or key in self._asleep:
                    raise QueueError(f"pod {key} is in the scheduling queue already")
                if queued.rejectors:
                    queued.unschedulable_count += 1
                    queued.consecutive_errors = 0
                else:
                    queued.consecutive_errors += 1
                queued.timestamp = self._clock()
                self._place(queued, self._after_attempt(queued), events.ATTEMPT_FAILURE)
            finally:
                self._in_flight.done(uid)

    def close(self) -> None:
        """Wake every waiting `pop` with None, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # Waking.

    def move_all(self, event: ClusterEvent, old: Any = None, new: Any = None, *, exclude: str = "") -> None:
        """Something changed in the cluster: wake the pods that it may help, but the one with uid `exclude`."""
        with self._changed:
            if not self._interesting(event):
                return
            self._in_flight.record([RecordedEvent(event, old, new)])
            for queued in list(self._asleep.values()):
                if queued.info.uid != exclude:
                    self._wake(queued, event, old, new)

    def activate(self, infos: Iterable[PodInfo]) -> None:
        """Attempt these pods as soon as possible; a gate still holds."""
        with self._changed:
            for info in infos:
                if info.key in self._active:
                    continue
                if info.uid in self._in_flight:
                    self._in_flight.force(info.uid)
                    continue
                queued = self._take(info.key)
                if queued is not None:
                    self._to_active(queued, events.FORCE_ACTIVATE.label)

    def flush_backoff(self) -> None:
        """Move pods whose backoff ended to activeQ; to be called each second."""
        with self._changed:
            now = self._clock()
            for heap in (self._backoff, self._error_backoff):
                while (head := heap.peek()) is not None and not self._backing_off(head, now):
                    heap.pop()
                    self._push_active(head, events.BACKOFF_COMPLETE)

    def flush_unschedulable(self) -> None:
        """Retry pods that have slept longer than the timeout, gated ones too; to be called each 30 s."""
        with self._changed:
            now = self._clock()
            late = [q for q in self._asleep.values() if now - q.timestamp > self._times.unschedulable_timeout]
            for queued in late:
                self._wake(queued, events.UNSCHEDULABLE_TIMEOUT, None, None)

    # Looking in.

    def counts(self) -> dict[str, int]:
        """Pods waiting in active, backoff, unschedulable and gated."""
        with self._changed:
            gated = sum(1 for queued in self._asleep.values() if queued.gated)
            return {
                ACTIVE: len(self._active),
                BACKOFF: len(self._backoff) + len(self._error_backoff),
                UNSCHEDULABLE: len(self._asleep) - gated,
                GATED: gated,
            }

    def unschedulable_by_plugin(self) -> dict[str, int]:
        """How many waiting pods each plugin has refused."""
        with self._changed:
            counts: dict[str, int] = {}
            for queued in (*self._asleep.values(), *self._backoff, *self._error_backoff):
                for plugin in queued.rejectors:
                    counts[plugin] = counts.get(plugin, 0) + 1
            return counts

    def in_flight_counts(self) -> dict[str, int]:
        """Events kept for pods in flight, by label."""
        with self._changed:
            return self._in_flight.event_counts()

    def in_flight_entries(self) -> list[str]:
        """Uids in flight and labels of kept events, in the order in which they happened."""
        with self._changed:
            return self._in_flight.entries()

    def where(self, info: PodInfo) -> str:
        """active, backoff, unschedulable, gated, in flight, or "" for a pod that is nowhere."""
        with self._changed:
            if info.key in self._active:
                return ACTIVE
            if info.key in self._backoff or info.key in self._error_backoff:
                return BACKOFF
            sleeping = self._asleep.get(info.key)
            if sleeping is not None:
                return GATED if sleeping.gated else UNSCHEDULABLE
            return "in flight" if info.uid in self._in_flight else ""

    # Below, the lock is held.

    def _ready(self) -> bool:
        return bool(len(self._active)) or (self._pop_from_backoff and bool(len(self._backoff)))

    def _next(self) -> QueuedPod | None:
        queued = self._active.pop()
        if queued is None and self._pop_from_backoff:
            queued = self._backoff.pop()
            if queued is not None:
                self._begin(queued)
                self._observer.incoming(ACTIVE, events.POP_FROM_BACKOFF)
        return queued

    def _find(self, key: str) -> QueuedPod | None:
        heap = self._heap_of(key)
        return heap.get(key) if heap is not None else self._asleep.get(key)

    def _take(self, key: str) -> QueuedPod | None:
        heap = self._heap_of(key)
        return heap.remove(key) if heap is not None else self._asleep.pop(key, None)

    def _heap_of(self, key: str) -> NamedHeap[QueuedPod] | None:
        return next((heap for heap in (self._active, self._backoff, self._error_backoff) if key in heap), None)

    def _begin(self, queued: QueuedPod) -> None:
        if queued.initial_attempt is None:
            queued.initial_attempt = self._clock()

    def _push_active(self, queued: QueuedPod, label: str) -> None:
        self._begin(queued)
        self._active.push(queued.info.key, queued)
        self._observer.incoming(ACTIVE, label)
        self._changed.notify()

    def _to_active(self, queued: QueuedPod, label: str) -> None:
        if not self._gate(queued, label):
            self._push_active(queued, label)

    def _to_backoff(self, queued: QueuedPod, label: str) -> None:
        if self._gate(queued, label):
            return
        heap = self._backoff if not queued.consecutive_errors else self._error_backoff
        heap.push(queued.info.key, queued)
        self._observer.incoming(BACKOFF, label)
        self._changed.notify()

    def _gate(self, queued: QueuedPod, label: str) -> bool:
        """Ask the PreEnqueue plugins; a gated pod goes to sleep and the answer is True."""
        was_gated = queued.gated
        status = self._rules.run_pre_enqueue(queued.info, queued.gating_plugin)
        if status.ok:
            queued.gating_plugin, queued.gating_events = "", ()
            return False
        queued.gating_plugin = status.plugin
        queued.gating_events = tuple(r.event for r in self._rules.registrations.get(status.plugin, ()))
        queued.unschedulable_plugins.add(status.plugin)
        self._asleep[queued.info.key] = queued
        if not was_gated:
            self._observer.incoming(UNSCHEDULABLE, label)
        return True

    def _place(self, queued: QueuedPod, wake: _Wake, label: str) -> None:
        if wake is _Wake.SLEEP:
            self._asleep[queued.info.key] = queued
            self._observer.incoming(UNSCHEDULABLE, label)
        elif wake is _Wake.AFTER_BACKOFF and self._backing_off(queued, self._clock()):
            self._to_backoff(queued, label)
        else:
            self._to_active(queued, label)

    def _wake(self, queued: QueuedPod, event: ClusterEvent, old: Any, new: Any) -> bool:
        """Move a sleeping pod if the event may help it; True if it moved."""
        if queued.gated and not event.wildcard and not any(known.covers(event) for known in queued.gating_events):
            return False
        wake = self._judge(queued, event, old, new)
        if wake is _Wake.SLEEP:
            return False
        del self._asleep[queued.info.key]
        self._place(queued, wake, event.label)
        return queued.info.key not in self._asleep

    def _after_attempt(self, queued: QueuedPod) -> _Wake:
        uid = queued.info.uid
        if not queued.rejectors or uid not in self._in_flight:
            return _Wake.AFTER_BACKOFF
        if self._in_flight.forced(uid):
            return _Wake.AT_ONCE
        best = _Wake.SLEEP
        for recorded in self._in_flight.events_since(uid):
            wake = self._judge(queued, recorded.event, recorded.old, recorded.new)
            if wake is _Wake.AT_ONCE:
                return wake
            if wake is _Wake.AFTER_BACKOFF:
                best = wake
        return best

    def _judge(self, queued: QueuedPod, event: ClusterEvent, old: Any, new: Any) -> _Wake:
        if event.wildcard or not queued.rejectors:
            return _Wake.AFTER_BACKOFF
        best = _Wake.SLEEP
        for plugin in sorted(queued.rejectors):
            if not self._helps(plugin, queued.info, event, old, new):
                continue
            if plugin in queued.pending_plugins:
                return _Wake.AT_ONCE
            best = _Wake.AFTER_BACKOFF
        return best

    def _helps(self, plugin: str, info: PodInfo, event: ClusterEvent, old: Any, new: Any) -> bool:
        for registration in self._rules.registrations.get(plugin, ()):
            if not registration.event.covers(event):
                continue
            if registration.hint is None:
                return True
            try:
                if registration.hint(info, old, new) is Hint.QUEUE:
                    return True
            except Exception as error:  # noqa: BLE001  # a plugin's hint that fails must not put the pod to sleep
                self._observer.hint_failed(plugin, event.label, error)
                return True
        return False

    def _interesting(self, event: ClusterEvent) -> bool:
        if event.wildcard:
            return True
        return any(
            registration.event.covers(event)
            for registrations in self._rules.registrations.values()
            for registration in registrations
        )

    def _record(self, recorded: Iterable[RecordedEvent]) -> None:
        self._in_flight.record([one for one in recorded if self._interesting(one.event)])

    def _expiry(self, queued: QueuedPod) -> float:
        count = queued.consecutive_errors or queued.unschedulable_count
        duration = backoff_duration(count, self._times.initial_backoff, self._times.maximum_backoff)
        return self._window(queued.timestamp + duration)

    def _window(self, at: float) -> float:
        window = self._times.ordering_window
        return math.floor(at / window) * window if window > 0 else at

    def _backing_off(self, queued: QueuedPod, now: float) -> bool:
        if self._times.maximum_backoff <= 0 or not (queued.consecutive_errors or queued.unschedulable_count):
            return False
        return self._expiry(queued) >= self._window(now)

    def _backoff_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        return (self._expiry(queued), *self._rules.sort_key(queued))
