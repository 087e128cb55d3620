"""Pods that wait at Permit: they hold their place, and nobody's thread, until every plugin that waits has allowed them.

The first decision counts, whoever makes it: the last plugin that allows, one that rejects, a timeout, a deletion or a
preemption. It is told once, to the callback that came with the pod.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.status import SUCCESS, Status, unschedulable

LONGEST_SECONDS: Final = 900.0
"""No plugin keeps a pod waiting for longer."""

DELETED: Final = "the pod was deleted while it waited at Permit"

Decided = Callable[[Status, float], None]
"""(Success or the refusal, seconds that the pod has waited); may be called on any thread, must be quick."""


class Waiter:
    """One pod; see `interfaces.WaitingPod`. Thread safe."""

    def __init__(self, room: WaitingRoom, pod: PodInfo, node_name: str, until: dict[str, float], told: Decided) -> None:
        self._room = room
        self._pod = pod
        self._node_name = node_name
        self._until = until
        self._told = told
        self._since = room.now()
        self._lock = room.lock
        self._decided = False

    @property
    def pod(self) -> PodInfo:
        """See `interfaces.WaitingPod`."""
        return self._pod

    @property
    def node_name(self) -> str:
        """See `interfaces.WaitingPod`."""
        return self._node_name

    def pending(self) -> frozenset[str]:
        """See `interfaces.WaitingPod`."""
        with self._lock:
            return frozenset(self._until)

    def allow(self, plugin: str) -> None:
        """See `interfaces.WaitingPod`."""
        with self._lock:
            allowed = self.take_allowance(plugin)
        if allowed:
            self.go_on()

    def take_allowance(self, plugin: str) -> bool:
        """Of `allow` the part that must hold the room's lock; True if the caller has to let the pod `go_on`."""
        self._until.pop(plugin, None)
        if self._until or self._decided:
            return False
        self._decided = True
        return True

    def go_on(self) -> None:
        """The pod is allowed by all; to be called without the lock."""
        self._leave(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """See `interfaces.WaitingPod`. A rejection in nobody's name (empty) lets the pod try again after a backoff."""
        self._decide(unschedulable(message).by(plugin))

    def next_timeout(self) -> tuple[float, str] | None:
        """(monotonic seconds, plugin) of the timeout that comes first; None once the pod is allowed by all."""
        with self._lock:
            return min(((at, plugin) for plugin, at in self._until.items()), default=None)

    def _decide(self, status: Status) -> None:
        with self._lock:
            if self._decided:
                return
            self._decided = True
        self._leave(status)

    def _leave(self, status: Status) -> None:
        self._room.leave(self._pod.uid)
        self._told(status, self._room.now() - self._since)

    @property
    def decided(self) -> bool:
        """Whether the pod waits no longer, even if it was not told yet."""
        return self._decided


class WaitingRoom:
    """All pods that wait at Permit in this process; see `interfaces.WaitingPods`. Thread safe.

    `now` gives monotonic seconds. Timeouts are kept by whoever calls `expire` often enough. One `lock` guards all
    decisions, so that several pods can be decided in one moment.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.lock = threading.Lock()
        self._waiters: dict[str, Waiter] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    def add(self, pod: PodInfo, node_name: str, timeouts: Mapping[str, float], told: Decided) -> Waiter:
        """`pod` begins to wait, for at most so many seconds for each plugin (no more than LONGEST_SECONDS)."""
        now = self.now()
        until = {plugin: now + min(seconds, LONGEST_SECONDS) for plugin, seconds in timeouts.items()}
        waiter = Waiter(self, pod, node_name, until, told)
        with self.lock:
            self._waiters[pod.uid] = waiter
        return waiter

    def leave(self, uid: str) -> None:
        """The pod is decided and waits no longer."""
        with self.lock:
            self._waiters.pop(uid, None)

    def get(self, uid: str) -> Waiter | None:
        """See `interfaces.WaitingPods`."""
        with self.lock:
            waiter = self._waiters.get(uid)
            return None if waiter is None or waiter.decided else waiter

    def all(self) -> Sequence[Waiter]:
        """See `interfaces.WaitingPods`."""
        with self.lock:
            return tuple(waiter for waiter in self._waiters.values() if not waiter.decided)

    def allow_together(self, uids: Collection[str], plugin: str) -> bool:
        """See `interfaces.WaitingPods`."""
        with self.lock:
            waiters = [self._waiters.get(uid) for uid in uids]
            there = [waiter for waiter in waiters if waiter is not None and not waiter.decided]
            if len(there) < len(waiters):
                return False
            allowed = [waiter for waiter in there if waiter.take_allowance(plugin)]
        for waiter in allowed:
            waiter.go_on()
        return True

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        """End the wait of one pod; False if it does not wait. See `Waiter.reject`."""
        waiter = self.get(uid)
        if waiter is None:
            return False
        waiter.reject(plugin, message)
        return True

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """See `interfaces.WaitingPods`."""
        with self.lock:
            heapq.heappush(self._later, (self.now() + seconds, next(self._serial), call))

    def _due(self, now: float) -> Iterator[Callable[[], None]]:
        while True:
            with self.lock:
                if not self._later or self._later[0][0] > now:
                    return
                _, _, call = heapq.heappop(self._later)
            yield call

    def expire(self) -> float | None:
        """Reject whoever waits too long, in the name of the plugin, and call what was put off until now.

        Seconds to the next timeout; None if none waits.
        """
        now = self.now()
        for call in self._due(now):
            call()
        left: float | None = None
        for waiter in self.all():
            timeout = waiter.next_timeout()
            if timeout is None:
                continue
            at, plugin = timeout
            if at <= now:
                waiter.reject(plugin, f"waited too long at Permit for plugin {plugin}")
            elif left is None or at - now < left:
                left = at - now
        return left
