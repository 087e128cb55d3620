"""Pods that are being attempted, and the events that happened meanwhile.

An event between Pop and the verdict must not be lost: it is kept until every pod that was in flight when it happened
is done, and is then judged as if it had happened after the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_plugins.framework.events import ClusterEvent
from scheduler_plugins.framework.pod_info import PodInfo


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with the objects it was derived from."""

    event: ClusterEvent
    old: Any
    new: Any


class InFlight:
    """Not thread safe: the queue's lock guards it."""

    def __init__(self) -> None:
        # By uid, in the order of their Pop: how many events had ever been kept by then.
        self._pods: dict[str, int] = {}
        self._events: list[RecordedEvent] = []
        self._dropped = 0
        self._forced: set[str] = set()
        self._gone: set[str] = set()
        self._latest: dict[str, PodInfo] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def begin(self, uid: str) -> None:
        """A pod was popped."""
        self._pods[uid] = self._dropped + len(self._events)

    def uids(self) -> frozenset[str]:
        """All that are being attempted."""
        return frozenset(self._pods)

    def record(self, events: Iterable[RecordedEvent]) -> None:
        """Events happened; kept only while some pod is in flight."""
        if self._pods:
            self._events.extend(events)

    def force(self, uid: str) -> None:
        """Somebody asked for another attempt of a pod in flight, whatever its verdict will be."""
        if uid in self._pods:
            self._forced.add(uid)

    def forced(self, uid: str) -> bool:
        """Whether `force` was called since the pod was popped."""
        return uid in self._forced

    def replace(self, info: PodInfo) -> None:
        """The pod in flight was changed."""
        self._latest[info.uid] = info

    def restore(self, info: PodInfo) -> None:
        """The pod in flight is there, in this version, even if `remove` was called before."""
        self._gone.discard(info.uid)
        self._latest[info.uid] = info

    def latest(self, info: PodInfo) -> PodInfo:
        """The newest version that was seen since the pod was popped, else `info`."""
        return self._latest.get(info.uid, info)

    def remove(self, uid: str) -> None:
        """The pod in flight was deleted or got its node."""
        if uid in self._pods:
            self._gone.add(uid)

    def gone(self, uid: str) -> bool:
        """Whether `remove` was called since the pod was popped."""
        return uid in self._gone

    def events_since(self, uid: str) -> Sequence[RecordedEvent]:
        """Events since the pod was popped, oldest first."""
        return self._events[self._pods[uid] - self._dropped :]

    def done(self, uid: str) -> None:
        """The attempt is over; events that no pod in flight has waited through are dropped."""
        self._pods.pop(uid, None)
        self._forced.discard(uid)
        self._gone.discard(uid)
        self._latest.pop(uid, None)
        oldest = next(iter(self._pods.values()), self._dropped + len(self._events))
        if oldest > self._dropped:
            del self._events[: oldest - self._dropped]
            self._dropped = oldest

    def entries(self) -> list[str]:
        """Uids and event labels in the order in which they happened."""
        merged = [(begun, 0, uid) for uid, begun in self._pods.items()]
        merged += [(self._dropped + i, 1, kept.event.label) for i, kept in enumerate(self._events)]
        return [text for _, _, text in sorted(merged, key=lambda entry: entry[:2])]

    def event_counts(self) -> dict[str, int]:
        """How many of each event are kept; pods in flight count as PodPopped."""
        counts = Counter(kept.event.label for kept in self._events)
        counts["PodPopped"] = len(self._pods)
        return dict(counts)
