"""Fan-out of committed changes to watchers, each with its own bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from standalone.api.records import ADDED, DELETED, MODIFIED, Change, Record
from standalone.api.selectors import Selector

QUEUE_LIMIT: Final = 1000
"""Events that may wait for one watcher; one that falls further behind is cut off and has to watch again."""


@dataclass(frozen=True)
class Interest:
    """What a watcher wants: a kind (its plural), a namespace or None for all, and a selector."""

    resource: str
    namespace: str | None
    selector: Selector

    def event(self, change: Change) -> tuple[str, Record] | None:
        """The event that this change is to the watcher, or None.

        An object that begins to match is ADDED; one that ceases to is DELETED, shown as it was before.
        """
        key = change.key
        if key.resource != self.resource or (self.namespace is not None and key.namespace != self.namespace):
            return None
        if self.selector.empty:
            return change.type, change.new
        if change.type == DELETED:
            before = change.old if change.old is not None else change.new
            return (DELETED, change.new) if self.selector.matches(before.attributes) else None
        was = change.old is not None and self.selector.matches(change.old.attributes)
        if self.selector.matches(change.new.attributes):
            return (MODIFIED if was else ADDED), change.new
        return (DELETED, change.old_now) if was else None


class Watcher:
    """Events of one watch, in order. Used on the event loop only."""

    def __init__(self, interest: Interest, after: int) -> None:
        """`after`: changes up to this version are known to the watcher already."""
        self.interest = interest
        self.seen = after
        self.closed = False
        self.cut = False
        self._events: deque[tuple[str, Record]] = deque()
        self._backlog = 0
        self._wake = asyncio.Event()

    def replay(self, history: Iterable[Change]) -> None:
        """Queue what happened since the version that the watcher knows; the limit is for what comes later."""
        for change in history:
            self.seen = max(self.seen, change.version)
            event = self.interest.event(change)
            if event is not None:
                self._events.append(event)
        self._backlog = len(self._events)

    def offer(self, change: Change) -> bool:
        """Queue the change if it is wanted; False when the watcher is too far behind and was cut."""
        if change.version <= self.seen or self.closed:
            return not self.closed
        self.seen = change.version
        event = self.interest.event(change)
        if event is None:
            return True
        if len(self._events) - self._backlog >= QUEUE_LIMIT:
            self.cut = True
            self.close()
            return False
        self._events.append(event)
        self._wake.set()
        return True

    def close(self) -> None:
        """End the watch after what is queued."""
        self.closed = True
        self._wake.set()

    async def next(self, timeout_seconds: float) -> list[tuple[str, Record]]:
        """All events that wait; [] after the timeout or when the watch is closed."""
        if not self._events and not self.closed:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return []
        found = list(self._events)
        self._events.clear()
        self._backlog = 0
        self._wake.clear()
        return found


class WatchHub:
    """All watchers."""

    def __init__(self, on_cut: Callable[[], None] = lambda: None) -> None:
        """`on_cut` is called for each watcher that is cut because it is too slow."""
        self._on_cut = on_cut
        self._watchers: dict[str, set[Watcher]] = {}
        self._closed = False

    def __len__(self) -> int:
        # Also asked by the thread that serves metrics, hence the copy.
        return sum(map(len, tuple(self._watchers.values())))

    def publish(self, change: Change) -> None:
        """Offer a committed change to whom it concerns."""
        for watcher in tuple(self._watchers.get(change.key.resource, ())):
            if not watcher.offer(change):
                if watcher.cut:
                    self._on_cut()
                self.remove(watcher)

    def add(self, interest: Interest, after: int, history: Iterable[Change]) -> Watcher:
        """A watcher that first replays `history` (committed changes after `after`), however long it is."""
        watcher = Watcher(interest, after)
        watcher.replay(history)
        if self._closed:
            watcher.close()
        else:
            self._watchers.setdefault(interest.resource, set()).add(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher whose connection ended."""
        self._watchers.get(watcher.interest.resource, set()).discard(watcher)

    def close(self) -> None:
        """End all watches, and those to come."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.close()
        self._watchers.clear()
