"""A heap whose entries have names: any of them can be looked up, replaced or removed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class NamedHeap(Generic[T]):
    """Least `key(item)` first; equal keys in the order of insertion. Removed entries are dropped lazily."""

    def __init__(self, key: Callable[[T], tuple[Any, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[Any, ...], int, str]] = []
        self._items: dict[str, tuple[int, T]] = {}
        self._serial = itertools.count()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self._items.values())

    def get(self, name: str) -> T | None:
        """The item called `name`."""
        entry = self._items.get(name)
        return entry[1] if entry is not None else None

    def push(self, name: str, item: T) -> None:
        """Add `item`, or replace the one of that name and find its new place."""
        serial = next(self._serial)
        self._items[name] = (serial, item)
        heapq.heappush(self._heap, (self._key(item), serial, name))
        if len(self._heap) > 2 * len(self._items) + 64:
            self._heap = [entry for entry in self._heap if self._live(entry)]
            heapq.heapify(self._heap)

    def remove(self, name: str) -> T | None:
        """Take the item called `name` out; None if there is none."""
        entry = self._items.pop(name, None)
        return entry[1] if entry is not None else None

    def peek(self) -> T | None:
        """The first item, which stays."""
        while self._heap and not self._live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._items[self._heap[0][2]][1] if self._heap else None

    def pop(self) -> T | None:
        """Take the first item out."""
        item = self.peek()
        if item is not None:
            del self._items[heapq.heappop(self._heap)[2]]
        return item

    def _live(self, entry: tuple[tuple[Any, ...], int, str]) -> bool:
        known = self._items.get(entry[2])
        return known is not None and known[0] == entry[1]
