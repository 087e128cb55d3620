"""Pods that sleep until an event helps them, found by name and by who can wake them.

An event touches only the pods that a plugin refused which registered for it, and asks once for all pods that are alike
to the plugin: ten thousand pods asleep cost an event that concerns none of them nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass

from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.wakers import Waker, Wakers

_Kinds = dict[Hashable, dict[str, QueuedPod]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pod stands, so that it is taken out of just these lists whatever changed about it meanwhile."""

    queued: QueuedPod
    gated: bool
    lists: tuple[tuple[_Kinds, Hashable], ...]


class Asleep:
    """Not thread safe: the queue's lock guards it. A gated pod is woken only by the plugin that gates it."""

    def __init__(self, wakers: Wakers) -> None:
        self._wakers = wakers
        self._places: dict[str, _Place] = {}
        self._by_waker: dict[Waker, _Kinds] = {}
        self._gated = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[QueuedPod]:
        return (place.queued for place in self._places.values())

    @property
    def gated(self) -> int:
        """How many of them a PreEnqueue plugin keeps out."""
        return self._gated

    def get(self, key: str) -> QueuedPod | None:
        """The pod called `key`."""
        place = self._places.get(key)
        return place.queued if place is not None else None

    def add(self, queued: QueuedPod) -> None:
        """Put a pod to sleep; its refusing plugins, its gate and its object must not change until it is removed."""
        key = queued.info.key
        lists = []
        for plugin in queued.wakers:
            for waker in self._wakers.of(queued.profile, plugin):
                kinds = self._by_waker.setdefault(waker, {})
                kind = waker.kind_of(queued.info)
                kinds.setdefault(kind, {})[key] = queued
                lists.append((kinds, kind))
        self._places[key] = _Place(queued, queued.gated, tuple(lists))
        self._gated += queued.gated

    def remove(self, key: str) -> QueuedPod | None:
        """Take the pod called `key` out; None if it does not sleep."""
        place = self._places.pop(key, None)
        if place is None:
            return None
        self._gated -= place.gated
        for kinds, kind in place.lists:
            alike = kinds[kind]
            del alike[key]
            if not alike:
                del kinds[kind]
        return place.queued

    def kinds(self, waker: Waker) -> Collection[Mapping[str, QueuedPod]]:
        """The pods that `waker` can wake, by name, those together for which its answer is the same."""
        return self._by_waker.get(waker, {}).values()
