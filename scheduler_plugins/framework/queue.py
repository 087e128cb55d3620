"""Scheduling queue: pods that are ready, that back off, and that wait for something to change.

activeQ      ready, in the order of the QueueSort plugin
backoffQ     failed lately; refused pods and failed attempts in a heap each
unschedulable    refused, asleep until an event that one of its refusing plugins is helped by; gated pods too

Every Pop is ended by exactly one Done (`requeue` does it as well). An event that happens while a pod is being
attempted is judged when the attempt fails: what older schedulers reached with a counter of moves (a pod popped before a
move never went to sleep) holds here for each event, and only for pods that it may help. Times come from an injected
monotonic clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from scheduler_plugins.framework import events
from scheduler_plugins.framework.asleep import Asleep
from scheduler_plugins.framework.backoff import BackoffQueue, QueueTimes
from scheduler_plugins.framework.events import ClusterEvent, Registration
from scheduler_plugins.framework.heap import NamedHeap
from scheduler_plugins.framework.inflight import InFlight, RecordedEvent
from scheduler_plugins.framework.judge import HintObserver, Judge, Wake
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.status import Status
from scheduler_plugins.framework.wakers import Wakers

__all__ = ["QueueError", "QueueObserver", "QueueRules", "QueueTimes", "SchedulingQueue"]


class QueueRules(Protocol):
    """What the queue asks of the framework of a profile."""

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """Order of ready pods; the same in all profiles."""
        ...

    def run_pre_enqueue(self, pod: PodInfo, first: str = "") -> Status:
        """Success, or the status of the plugin that gates the pod; plugin `first` is asked first."""
        ...

    @property
    def registrations(self) -> Mapping[str, Sequence[Registration]]:
        """Events by plugin name; the queue reads them once."""
        ...


class QueueObserver(HintObserver, Protocol):
    """Told what happens in the queue."""

    def incoming(self, queue: str, event: str) -> None:
        """A pod entered `queue` (active, backoff or unschedulable) because of `event`."""
        ...

    def handled(self, event: str, seconds: float) -> None:
        """An event that somebody wants to know of was judged, and those that it helps were moved."""
        ...


ACTIVE: Final = "active"
BACKOFF: Final = "backoff"
UNSCHEDULABLE: Final = "unschedulable"
GATED: Final = "gated"

_TIMES: Final = QueueTimes()


class QueueError(RuntimeError):
    """A caller broke the protocol of the queue."""


class SchedulingQueue:
    """Thread safe. Pods are known by namespace/name in the queue, and by uid while in flight.

    `rules` are those of one profile that takes every pod, or by name of the profile (spec.schedulerName).
    """

    def __init__(
        self,
        rules: QueueRules | Mapping[str, QueueRules],
        observer: QueueObserver,
        clock: Callable[[], float],
        times: QueueTimes = _TIMES,
        *,
        pop_from_backoff: bool = True,
        nominator: Nominator | None = None,
    ) -> None:
        self._by_name = isinstance(rules, Mapping)
        self._profiles: Mapping[str, QueueRules] = rules if isinstance(rules, Mapping) else {"": rules}
        if not self._profiles:
            raise QueueError("a queue needs the rules of at least one profile")
        self._observer = observer
        self._clock = clock
        self._times = times
        self._pop_from_backoff = pop_from_backoff
        self.nominator = Nominator() if nominator is None else nominator
        self._changed = threading.Condition()
        wakers = Wakers({name: profile.registrations for name, profile in self._profiles.items()})
        self._judge = Judge(wakers, observer, clock)
        sort_key = next(iter(self._profiles.values())).sort_key
        self._active: NamedHeap[QueuedPod] = NamedHeap(sort_key)
        self._backoff = BackoffQueue(times, sort_key)
        self._asleep = Asleep(wakers)
        self._in_flight = InFlight()
        self._closed = False

    # Entering and leaving.

    def add(self, info: PodInfo) -> None:
        """A pod without a node appeared; others that wait for it may wake.

        Raises QueueError for a pod that no profile is for.
        """
        profile = self._profile_of(info)
        with self._changed:
            if info.uid in self._in_flight:
                self._in_flight.restore(info)
                return
            self.nominator.seen(info)
            queued = self._take(info.key)
            if queued is None or queued.info.uid != info.uid:
                queued = QueuedPod(info, self._clock(), profile)
            queued.info = info
            self._to_active(queued, events.POD_ADD.label)
            self._happened(events.POD_ADD, None, info, lambda other: other.info.uid != info.uid)

    def update(self, old: PodInfo, new: PodInfo) -> None:
        """A pod that waits was changed. A change that nobody can care about (status only) moves nothing."""
        happened = events.pod_events(old.pod, new.pod)
        with self._changed:
            if new.uid not in self._in_flight and self._find(new.key) is None:
                self.add(new)
                return
            self.nominator.changed(old, new)
            if new.uid in self._in_flight:
                self._changed_in_flight(old, new, happened)
                return
            queued = self._asleep.remove(new.key)
            if queued is not None:
                self._update_sleeping(queued, happened, old, new)
                return
            heap = self._active if new.key in self._active else self._backoff
            queued = heap.remove(new.key)
            if queued is not None:
                queued.info = new
                heap.push(new.key, queued)

    def update_in_flight(self, old: PodInfo, new: PodInfo) -> None:
        """A pod that is assumed was changed: judged should its attempt fail, of no interest else."""
        with self._changed:
            if new.uid in self._in_flight:
                self._changed_in_flight(old, new, events.pod_events(old.pod, new.pod))

    def delete(self, info: PodInfo) -> None:
        """A pod is gone or has a node; one in flight is left to its attempt and does not come back."""
        with self._changed:
            self.nominator.drop(info.uid)
            self._in_flight.remove(info.uid)
            known = self._find(info.key)
            if known is not None and known.info.uid == info.uid:
                self._take(info.key)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether there is a pod to attempt, or the queue is closed, within `timeout` seconds. Nothing is taken."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or self._ready(), timeout)

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
                if self._find(key) is not None:
                    raise QueueError(f"pod {key} is in the scheduling queue already")
                if queued.rejectors:
                    queued.unschedulable_count += 1
                    queued.consecutive_errors = 0
                else:
                    queued.consecutive_errors += 1
                queued.timestamp = self._clock()
                queued.flushed = False
                self._place(queued, self._after_attempt(queued), events.ATTEMPT_FAILURE)
            finally:
                self._in_flight.done(uid)

    def close(self) -> None:
        """Wake every waiting `pop` with None, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # Waking.

    def move_all(
        self, event: ClusterEvent, old: Any = None, new: Any = None, *, exclude: str = "", priority: int | None = None
    ) -> None:
        """Something changed in the cluster: wake the pods that it may help.

        Left asleep are the pod with uid `exclude`, and pods of a higher priority than `priority` where that is given:
        they never minded a pod that was only nominated.
        """
        with self._changed:
            self._happened(
                event,
                old,
                new,
                lambda queued: queued.info.uid != exclude and (priority is None or queued.info.priority <= priority),
            )

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
            for queued in self._backoff.pop_due(self._clock()):
                self._push_active(queued, events.BACKOFF_COMPLETE)

    def flush_unschedulable(self) -> None:
        """Retry pods that have slept longer than the timeout, gated ones too; to be called each 30 s."""
        with self._changed:
            now = self._clock()
            for queued in [q for q in self._asleep if now - q.timestamp > self._times.unschedulable_timeout]:
                self._rouse(queued, Wake.AFTER_BACKOFF, events.UNSCHEDULABLE_TIMEOUT.label)
                queued.flushed = queued.info.key not in self._asleep

    def kept_out(self, seconds: float, most: int) -> list[tuple[PodInfo, str]]:
        """Pods that a plugin has kept out for `seconds` since this was last said of them, and why, as of now.

        At most so many, the longest wait first. One that nothing keeps out any more enters. Pods with scheduling gates
        are left out: the API server says it in their condition.
        """
        with self._changed:
            now = self._clock()
            told = []
            for queued in self._long_gated(now - seconds)[:most]:
                queued.gate_asked = now
                status = self._profiles[queued.profile].run_pre_enqueue(queued.info, queued.gating_plugin)
                if status.ok:
                    self._rouse(queued, Wake.AT_ONCE, events.FORCE_ACTIVATE.label)
                elif status.message:
                    told.append((queued.info, status.message))
            return told

    # Looking in.

    def counts(self) -> dict[str, int]:
        """Pods waiting in active, backoff, unschedulable and gated."""
        with self._changed:
            return {
                ACTIVE: len(self._active),
                BACKOFF: len(self._backoff),
                UNSCHEDULABLE: len(self._asleep) - self._asleep.gated,
                GATED: self._asleep.gated,
            }

    def unschedulable_by_plugin(self) -> dict[tuple[str, str], int]:
        """By (plugin, name of the profile): how many waiting pods the plugin has refused."""
        with self._changed:
            waiting = [*self._asleep, *self._backoff, *self._active]
        counts: dict[tuple[str, str], int] = {}
        for queued in waiting:
            for plugin in queued.rejectors:
                key = (plugin, queued.info.pod.spec.scheduler_name)
                counts[key] = counts.get(key, 0) + 1
        return counts

    def in_flight_counts(self) -> dict[str, int]:
        """Events kept for pods in flight, by label."""
        with self._changed:
            return self._in_flight.event_counts()

    def in_flight_entries(self) -> list[str]:
        """Uids in flight and labels of kept events, in the order in which they happened."""
        with self._changed:
            return self._in_flight.entries()

    def uids(self) -> frozenset[str]:
        """Of every pod that waits or is being attempted."""
        with self._changed:
            waiting = (*self._asleep, *self._backoff, *self._active)
            return self._in_flight.uids().union(queued.info.uid for queued in waiting)

    def where(self, info: PodInfo) -> str:
        """active, backoff, unschedulable, gated, in flight, or "" for a pod that is nowhere."""
        with self._changed:
            if info.key in self._active:
                return ACTIVE
            if info.key in self._backoff:
                return BACKOFF
            sleeping = self._asleep.get(info.key)
            if sleeping is not None:
                return GATED if sleeping.gated else UNSCHEDULABLE
            return "in flight" if info.uid in self._in_flight else ""

    # Below, the lock is held.

    def _long_gated(self, since: float) -> list[QueuedPod]:
        if not self._asleep.gated:
            return []
        gated = (one for one in self._asleep if one.gated and not one.info.pod.spec.scheduling_gates)
        return sorted((one for one in gated if one.gate_asked <= since), key=lambda one: one.gate_asked)

    def _profile_of(self, info: PodInfo) -> str:
        name = info.pod.spec.scheduler_name if self._by_name else ""
        if name not in self._profiles:
            known = ", ".join(self._profiles)
            raise QueueError(f"pod {info.key} names scheduler {name!r}, which is none of the profiles here: {known}")
        return name

    def _changed_in_flight(self, old: PodInfo, new: PodInfo, happened: Iterable[ClusterEvent]) -> None:
        self._in_flight.replace(new)
        self._in_flight.record([RecordedEvent(event, old, new) for event in happened if self._judge.matters(event)])

    def _ready(self) -> bool:
        return bool(len(self._active)) or (self._pop_from_backoff and bool(self._backoff.refused))

    def _next(self) -> QueuedPod | None:
        queued = self._active.pop()
        if queued is None and self._pop_from_backoff:
            queued = self._backoff.pop_early()
            if queued is not None:
                self._begin(queued)
                self._observer.incoming(ACTIVE, events.POP_FROM_BACKOFF)
        return queued

    def _find(self, key: str) -> QueuedPod | None:
        return self._active.get(key) or self._backoff.get(key) or self._asleep.get(key)

    def _take(self, key: str) -> QueuedPod | None:
        return self._active.remove(key) or self._backoff.remove(key) or self._asleep.remove(key)

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
        self._backoff.push(queued.info.key, queued)
        self._observer.incoming(BACKOFF, label)
        self._changed.notify()

    def _gate(self, queued: QueuedPod, label: str) -> bool:
        """Ask the PreEnqueue plugins; a gated pod goes to sleep and the answer is True."""
        was_gated = queued.gated
        status = self._profiles[queued.profile].run_pre_enqueue(queued.info, queued.gating_plugin)
        if status.ok:
            queued.gating_plugin = ""
            return False
        queued.gating_plugin = status.plugin
        queued.unschedulable_plugins.add(status.plugin)
        self._asleep.add(queued)
        if not was_gated:
            queued.gate_asked = self._clock()
            self._observer.incoming(UNSCHEDULABLE, label)
        return True

    def _place(self, queued: QueuedPod, wake: Wake, label: str) -> None:
        if wake is Wake.SLEEP:
            self._asleep.add(queued)
            self._observer.incoming(UNSCHEDULABLE, label)
        elif wake is Wake.AFTER_BACKOFF and self._backoff.backing_off(queued, self._clock()):
            self._to_backoff(queued, label)
        else:
            self._to_active(queued, label)

    def _rouse(self, queued: QueuedPod, wake: Wake, label: str) -> None:
        self._asleep.remove(queued.info.key)
        self._place(queued, wake, label)

    def _happened(self, event: ClusterEvent, old: Any, new: Any, counts: Callable[[QueuedPod], bool]) -> None:
        if not self._judge.matters(event):
            return
        started = self._clock()
        self._in_flight.record((RecordedEvent(event, old, new),))
        for queued, wake in self._judge.sleepers(self._asleep, event, old, new, counts):
            self._rouse(queued, wake, event.label)
        self._observer.handled(event.label, self._clock() - started)

    def _update_sleeping(self, queued: QueuedPod, happened: Iterable[ClusterEvent], old: PodInfo, new: PodInfo) -> None:
        """Put a pod that was taken out of its sleep where its new version belongs."""
        queued.info = new
        for event in happened:
            wake = self._judge.one(queued, event, old, new)
            if wake is not Wake.SLEEP:
                self._place(queued, wake, event.label)
                return
        self._asleep.add(queued)

    def _after_attempt(self, queued: QueuedPod) -> Wake:
        uid = queued.info.uid
        if not queued.rejectors or uid not in self._in_flight:
            return Wake.AFTER_BACKOFF
        if self._in_flight.forced(uid):
            return Wake.AT_ONCE
        best = Wake.SLEEP
        for kept in self._in_flight.events_since(uid):
            best = max(best, self._judge.one(queued, kept.event, kept.old, kept.new))
            if best is Wake.AT_ONCE:
                break
        return best
