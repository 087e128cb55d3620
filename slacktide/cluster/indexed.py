"""Objects of a cache found by what they have in common, such as the pods of one group, at the cost of those found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from slacktide.cluster.cache import Key
from slacktide.cluster.kinds import HasMetadata

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Index(Generic[T, V]):
    """`read` gives what an object is found under and what is kept of it, or None; it must not raise.

    Told apart by identity: make it once, as a constant.
    """

    read: Callable[[T], tuple[Hashable, V] | None]


class Indexes(Generic[T]):
    """All indexes of one cache, each kept from the first question on. Not thread safe: the cache's lock guards it."""

    def __init__(self) -> None:
        self._found: dict[Index[T, Any], dict[Hashable, dict[Key, Any]]] = {}

    def find(self, index: Index[T, V], value: Hashable, cache: Mapping[Key, T]) -> tuple[V, ...]:
        """What is kept of the objects under `value`, in no order."""
        if index not in self._found:
            self._found[index] = {}
            for key, item in cache.items():
                self._add(index, key, item)
        return tuple(self._found[index].get(value, {}).values())

    def change(self, key: Key, old: T | None, new: T | None) -> None:
        """The object called `key` came, changed or went."""
        for index in self._found:
            if old is not None:
                self._drop(index, key, old)
            if new is not None:
                self._add(index, key, new)

    def replace(self, cache: Mapping[Key, T]) -> None:
        """The whole cache is another."""
        for index in self._found:
            self._found[index] = {}
            for key, item in cache.items():
                self._add(index, key, item)

    def _add(self, index: Index[T, Any], key: Key, item: T) -> None:
        read = index.read(item)
        if read is not None:
            self._found[index].setdefault(read[0], {})[key] = read[1]

    def _drop(self, index: Index[T, Any], key: Key, item: T) -> None:
        read = index.read(item)
        if read is None:
            return
        under = self._found[index].get(read[0], {})
        under.pop(key, None)
        if not under:
            self._found[index].pop(read[0], None)
