"""backoffQ: pods whose attempt failed lately, refused ones and those that met an error in a heap each.

A refused pod waits so that it does not crowd out others; a pod that met an error waits so that whatever is broken gets
a rest. Only the first may be taken early when nothing else is ready.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scheduler_plugins.framework.heap import NamedHeap
from scheduler_plugins.framework.queued import QueuedPod, backoff_duration


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """Seconds. `ordering_window`: pods whose backoff ends within one window leave it in activeQ order."""

    initial_backoff: float = 1.0
    maximum_backoff: float = 10.0
    ordering_window: float = 1.0
    unschedulable_timeout: float = 300.0


class BackoffQueue:
    """Not thread safe: the queue's lock guards it. `sort_key` is the order of ready pods."""

    def __init__(self, times: QueueTimes, sort_key: Callable[[QueuedPod], tuple[Any, ...]]) -> None:
        self._times = times
        self._sort_key = sort_key
        self._refused: NamedHeap[QueuedPod] = NamedHeap(self._key)
        self._errors: NamedHeap[QueuedPod] = NamedHeap(self._key)

    def __len__(self) -> int:
        return len(self._refused) + len(self._errors)

    def __contains__(self, key: object) -> bool:
        return key in self._refused or key in self._errors

    def __iter__(self) -> Iterator[QueuedPod]:
        yield from self._refused
        yield from self._errors

    @property
    def refused(self) -> int:
        """How many of them were refused, and may be taken early."""
        return len(self._refused)

    def get(self, key: str) -> QueuedPod | None:
        """The pod called `key`."""
        return self._refused.get(key) or self._errors.get(key)

    def push(self, key: str, queued: QueuedPod) -> None:
        """Add a pod."""
        (self._errors if queued.consecutive_errors else self._refused).push(key, queued)

    def remove(self, key: str) -> QueuedPod | None:
        """Take the pod called `key` out; None if there is none."""
        return self._refused.remove(key) or self._errors.remove(key)

    def pop_early(self) -> QueuedPod | None:
        """The refused pod whose backoff ends first, over or not."""
        return self._refused.pop()

    def pop_due(self, now: float) -> Iterator[QueuedPod]:
        """Take out the pods whose backoff is over, in the order in which they become ready."""
        for heap in (self._refused, self._errors):
            while (head := heap.peek()) is not None and not self.backing_off(head, now):
                heap.pop()
                yield head

    def backing_off(self, queued: QueuedPod, now: float) -> bool:
        """Whether the pod must still wait; the last instant of its wait counts as waiting."""
        if self._times.maximum_backoff <= 0 or not (queued.consecutive_errors or queued.unschedulable_count):
            return False
        return self._expiry(queued) >= self._window(now)

    def _expiry(self, queued: QueuedPod) -> float:
        count = queued.consecutive_errors or queued.unschedulable_count
        duration = backoff_duration(count, self._times.initial_backoff, self._times.maximum_backoff)
        return self._window(queued.timestamp + duration)

    def _window(self, at: float) -> float:
        window = self._times.ordering_window
        return math.floor(at / window) * window if window > 0 else at

    def _key(self, queued: QueuedPod) -> tuple[Any, ...]:
        return (self._expiry(queued), *self._sort_key(queued))
