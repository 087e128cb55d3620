"""Judge: whether an event may help pods that were refused, by the hints of the plugins that refused them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from scheduler_plugins.framework.asleep import Asleep
from scheduler_plugins.framework.events import ClusterEvent, Hint
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.wakers import Waker, Wakers

HINT_ERROR: Final = "Error"
"""Outcome of a hint that raised, as it stands in metrics beside the names of `Hint`."""


class Wake(enum.IntEnum):
    """What an event means for a pod; the greater one counts."""

    SLEEP = 0
    AFTER_BACKOFF = 1
    AT_ONCE = 2


class HintObserver(Protocol):
    """Told how plugins answered."""

    def hinted(self, plugin: str, event: str, outcome: str, seconds: float) -> None:
        """A hint was asked; `outcome` is Queue, QueueSkip or Error."""
        ...

    def hint_failed(self, plugin: str, event: str, error: Exception) -> None:
        """A queueing hint raised; the event was taken to help."""
        ...


class Judge:
    """Asks the hints. Not thread safe: the queue's lock guards it."""

    def __init__(self, wakers: Wakers, observer: HintObserver, clock: Callable[[], float]) -> None:
        self._wakers = wakers
        self._observer = observer
        self._clock = clock

    def matters(self, event: ClusterEvent) -> bool:
        """Whether anybody wants to know of the event."""
        return event.wildcard or bool(self._wakers.covering(event))

    def one(self, queued: QueuedPod, event: ClusterEvent, old: Any, new: Any) -> Wake:
        """What the event means for one pod. Where nobody refused it, any event will do."""
        asked = queued.wakers
        if event.wildcard or not asked:
            return Wake.AFTER_BACKOFF
        best = Wake.SLEEP
        for waker in self._wakers.covering(event):
            if waker.plugin not in asked or waker.profile != queued.profile:
                continue
            wake = _promised(waker, queued)
            if wake > best and self._helps(waker, queued.info, event, old, new):
                best = wake
        return best

    def sleepers(
        self, asleep: Asleep, event: ClusterEvent, old: Any, new: Any, counts: Callable[[QueuedPod], bool]
    ) -> list[tuple[QueuedPod, Wake]]:
        """Which of the pods asleep for which `counts` holds the event helps, and how."""
        if event.wildcard:
            return [(queued, Wake.AFTER_BACKOFF) for queued in asleep if counts(queued)]
        best: dict[str, tuple[QueuedPod, Wake]] = {}

        def better(waker: Waker, alike: Mapping[str, QueuedPod]) -> Iterator[tuple[str, QueuedPod, Wake]]:
            for key, queued in alike.items():
                wake, known = _promised(waker, queued), best.get(key)
                if (known is None or wake > known[1]) and counts(queued):
                    yield key, queued, wake

        for waker in self._wakers.covering(event):
            for alike in asleep.kinds(waker):
                # One stands for all that are alike; the others are looked at only when the event helps it.
                first = next(better(waker, alike), None)
                if first is not None and self._helps(waker, first[1].info, event, old, new):
                    best.update((key, (queued, wake)) for key, queued, wake in list(better(waker, alike)))
        return list(best.values())

    def _helps(self, waker: Waker, info: PodInfo, event: ClusterEvent, old: Any, new: Any) -> bool:
        hint = waker.registration.hint
        if hint is None:
            return True
        started = self._clock()
        try:
            answer = hint(info, old, new)
        except Exception as error:  # noqa: BLE001  # a plugin's hint that fails must not put the pod to sleep
            self._observer.hinted(waker.plugin, event.label, HINT_ERROR, self._clock() - started)
            self._observer.hint_failed(waker.plugin, event.label, error)
            return True
        self._observer.hinted(waker.plugin, event.label, answer.value, self._clock() - started)
        return answer is Hint.QUEUE


def _promised(waker: Waker, queued: QueuedPod) -> Wake:
    """What a helpful answer would mean: a plugin that itself waits for something lets the pod skip its backoff."""
    return Wake.AT_ONCE if waker.plugin in queued.pending_plugins else Wake.AFTER_BACKOFF
