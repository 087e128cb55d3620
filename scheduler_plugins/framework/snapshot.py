"""Snapshot: all nodes as columns of numbers, so that a plugin judges every node in one numpy operation.

The cost of an update is in the nodes that changed, not in all of them. A snapshot belongs to one thread, the
scheduling loop; `Cache.refresh` brings it up to date under the cache's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]

_FIRST_CAPACITY: Final = 16
_SPARE_VALUES: Final = 1024
_MOST_MATCHERS: Final = 256


@dataclass(frozen=True, slots=True)
class Column:
    """A number of each node that a plugin wants kept: `read` is called once for each changed node.

    `dtype` is a numpy type name such as float64, int64 or bool. Names are `PluginName/what`.
    """

    name: str
    dtype: str
    read: Callable[[NodeInfo], Any]


@dataclass(frozen=True, slots=True)
class Interned:
    """A value of each node that few nodes differ in (such as taints): stored as a small number.

    A plugin then judges each distinct value once. `read` returns something hashable.
    """

    name: str
    read: Callable[[NodeInfo], Hashable]


class PodMatcher(Hashable, Protocol):
    """Selects pods; equal matchers select the same ones, so that what is counted for one serves the other."""

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod counts."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What pods ask of others, such as their anti-affinity terms: `read` gives the terms of one pod.

    Equal terms of many pods are counted together. `name` is `PluginName/what`.
    """

    name: str
    read: Callable[[PodInfo], Iterable[Hashable]]


class _Interning:
    """Distinct values of one interned column."""

    def __init__(self, read: Callable[[NodeInfo], Hashable]) -> None:
        self.read = read
        self.values: list[Any] = []
        self.ids: dict[Hashable, int] = {}

    def id_of(self, node: NodeInfo) -> int:
        value = self.read(node)
        known = self.ids.get(value)
        if known is None:
            known = self.ids[value] = len(self.values)
            self.values.append(value)
        return known


_FIXED: Final = (
    Column("pod_count", "int64", lambda node: len(node.pods)),
    Column("pods_allocatable", "int64", lambda node: node.allocatable.get("pods", 0)),
    Column("nonzero_cpu_millis", "int64", lambda node: node.nonzero_cpu_millis),
    Column("nonzero_memory_bytes", "int64", lambda node: node.nonzero_memory_bytes),
)


class Snapshot:
    """The nodes of one scheduling cycle. Row i of every column is the node `names[i]`; order has no meaning."""

    def __init__(self, columns: Sequence[Column] = (), interned: Sequence[Interned] = ()) -> None:
        self.names: list[str] = []
        self.nodes: list[NodeInfo] = []
        self.index: dict[str, int] = {}
        self.generation = 0
        self._readers = {column.name: column.read for column in (*_FIXED, *columns)}
        self._interned = {column.name: _Interning(column.read) for column in interned}
        self._numbers: dict[str, NDArray[Any]] = {
            column.name: np.zeros(_FIRST_CAPACITY, dtype=column.dtype) for column in (*_FIXED, *columns)
        }
        self._ids: dict[str, NDArray[np.int32]] = {name: np.zeros(_FIRST_CAPACITY, np.int32) for name in self._interned}
        self._allocatable: dict[str, Ints] = {}
        self._requested: dict[str, Ints] = {}
        self._labels: dict[str, NDArray[np.int32]] = {}
        self._label_values: dict[str, _Interning] = {}
        self._matching: dict[PodMatcher, Ints] = {}
        self._terms: dict[str, dict[Hashable, Ints]] = {}
        self._term_readers: dict[str, Callable[[PodInfo], Iterable[Hashable]]] = {}
        self._capacity = _FIRST_CAPACITY

    def __len__(self) -> int:
        return len(self.names)

    def all(self) -> Indices:
        """Rows of all nodes."""
        return np.arange(len(self.names), dtype=np.intp)

    def column(self, name: str) -> NDArray[Any]:
        """Numbers of a registered or fixed column, one a node. Raises KeyError for a name nobody registered."""
        return self._numbers[name][: len(self.names)]

    def interned(self, name: str) -> tuple[NDArray[np.int32], list[Any]]:
        """(number of the value of each node, values by number) of an interned column."""
        return self._ids[name][: len(self.names)], self._interned[name].values

    def allocatable(self, resource: str) -> Ints:
        """What each node offers of `resource`, 0 where it does not name it."""
        return self._resource(self._allocatable, resource)

    def requested(self, resource: str) -> Ints:
        """What the pods on each node, assumed ones included, request of `resource`."""
        return self._resource(self._requested, resource)

    def label(self, key: str) -> tuple[NDArray[np.int32], list[str | None]]:
        """(number of the value of each node, values by number) of a node label; number 0 is None: the label is absent.

        Kept from the first question on. A snapshot of one node shares the numbers with the one it was made from.
        """
        if key not in self._labels:
            interning = self._label_values.get(key)
            if interning is None:
                interning = self._label_values[key] = _Interning(lambda node: node.labels.get(key))
                interning.ids[None] = 0
                interning.values.append(None)
            column = self._labels[key] = np.zeros(self._capacity, dtype=np.int32)
            for row, node in enumerate(self.nodes):
                column[row] = interning.id_of(node)
        return self._labels[key][: len(self.names)], self._label_values[key].values

    def pods_matching(self, matcher: PodMatcher) -> Ints:
        """How many pods of each node, assumed ones included, `matcher` selects. Kept from the first question on."""
        column = self._matching.pop(matcher, None)
        if column is None:
            while len(self._matching) >= _MOST_MATCHERS:
                del self._matching[next(iter(self._matching))]
            column = np.zeros(self._capacity, dtype=np.int64)
            for row, node in enumerate(self.nodes):
                column[row] = sum(1 for pod in node.pods.values() if matcher.matches(pod))
        self._matching[matcher] = column
        return column[: len(self.names)]

    def terms(self, terms: Terms) -> Mapping[Hashable, Ints]:
        """For each distinct term that a pod here has: how many pods of each node have it. Kept likewise."""
        found = self._terms.get(terms.name)
        if found is None:
            found = self._terms[terms.name] = {}
            self._term_readers[terms.name] = terms.read
            for row, node in enumerate(self.nodes):
                for pod in node.pods.values():
                    self._count_terms(terms.name, row, pod, 1)
        size = len(self.names)
        return {term: column[:size] for term, column in found.items()}

    def single(self, node: NodeInfo) -> Snapshot:
        """A snapshot of `node` alone, with the same columns and numbers: for questions of the kind what if."""
        one = Snapshot()
        one._readers, one._interned = self._readers, self._interned
        one._numbers = {name: np.zeros(1, dtype=column.dtype) for name, column in self._numbers.items()}
        one._ids = {name: np.zeros(1, dtype=np.int32) for name in self._ids}
        one._label_values = self._label_values
        one._capacity = 1
        one.generation = self.generation
        one.put(node)
        return one

    def _count_terms(self, name: str, row: int, pod: PodInfo, change: int) -> None:
        counted = self._terms[name]
        for term in self._term_readers[name](pod):
            column = counted.get(term)
            if column is None:
                column = counted[term] = np.zeros(self._capacity, dtype=np.int64)
            column[row] += change

    def _resource(self, columns: dict[str, Ints], resource: str) -> Ints:
        column = columns.get(resource)
        size = len(self.names)
        return np.zeros(size, dtype=np.int64) if column is None else column[:size]

    def put(self, node: NodeInfo) -> None:
        """Add or replace a node; `node` must not change afterwards."""
        row = self.index.get(node.name)
        if row is None:
            row = len(self.names)
            if row == self._capacity:
                self._grow()
            self.names.append(node.name)
            self.nodes.append(node)
            self.index[node.name] = row
            before: Mapping[str, PodInfo] = {}
        else:
            before = self.nodes[row].pods
        self.nodes[row] = node
        self._recount(row, before, node.pods)
        for key, column in self._labels.items():
            column[row] = self._label_values[key].id_of(node)
        for name, read in self._readers.items():
            self._numbers[name][row] = read(node)
        for name, interning in self._interned.items():
            self._ids[name][row] = interning.id_of(node)
        self._write(self._allocatable, row, node.allocatable)
        self._write(self._requested, row, node.requested)

    def remove(self, name: str) -> None:
        """Drop a node, if it is here; the last row takes its place."""
        row = self.index.pop(name, None)
        if row is None:
            return
        last = len(self.names) - 1
        self._recount(row, self.nodes[row].pods, {})
        if row != last:
            moved = self.names[last]
            self.names[row], self.nodes[row] = moved, self.nodes[last]
            self.index[moved] = row
            for column in self._columns():
                column[row] = column[last]
        for column in (*self._matching.values(), *(c for counted in self._terms.values() for c in counted.values())):
            column[last] = 0
        self.names.pop()
        self.nodes.pop()

    def _recount(self, row: int, before: Mapping[str, PodInfo], after: Mapping[str, PodInfo]) -> None:
        """Counts of a row change by the pods that came, went or changed; the cost is in those."""
        if before is after or not (self._matching or self._terms):
            return
        gone = [pod for uid, pod in before.items() if after.get(uid) is not pod]
        come = [pod for uid, pod in after.items() if before.get(uid) is not pod]
        for pods, change in ((gone, -1), (come, 1)):
            for pod in pods:
                for matcher, column in self._matching.items():
                    if matcher.matches(pod):
                        column[row] += change
                for name in self._terms:
                    self._count_terms(name, row, pod, change)

    def tidy(self) -> None:
        """Forget interned values and terms that no node has any more, once they are many."""
        for name, interning in self._interned.items():
            if len(interning.values) <= 2 * len(self.names) + _SPARE_VALUES:
                continue
            interning.values.clear()
            interning.ids.clear()
            for row, node in enumerate(self.nodes):
                self._ids[name][row] = interning.id_of(node)
        for counted in self._terms.values():
            if len(counted) > _SPARE_VALUES:
                for term in [term for term, column in counted.items() if not column.any()]:
                    del counted[term]

    def _columns(self) -> Iterable[NDArray[Any]]:
        yield from self._numbers.values()
        yield from self._ids.values()
        yield from self._allocatable.values()
        yield from self._requested.values()
        yield from self._labels.values()
        yield from self._matching.values()
        for counted in self._terms.values():
            yield from counted.values()

    def _write(self, columns: dict[str, Ints], row: int, amounts: dict[str, int]) -> None:
        for resource in amounts.keys() - columns.keys():
            columns[resource] = np.zeros(self._capacity, dtype=np.int64)
        for resource, column in columns.items():
            column[row] = amounts.get(resource, 0)

    def _grow(self) -> None:
        self._capacity *= 2

        def wider(column: NDArray[Any]) -> NDArray[Any]:
            grown = np.zeros(self._capacity, dtype=column.dtype)
            grown[: len(column)] = column
            return grown

        self._numbers = {name: wider(column) for name, column in self._numbers.items()}
        self._ids = {name: wider(column) for name, column in self._ids.items()}
        self._allocatable = {name: wider(column) for name, column in self._allocatable.items()}
        self._requested = {name: wider(column) for name, column in self._requested.items()}
        self._labels = {key: wider(column) for key, column in self._labels.items()}
        self._matching = {matcher: wider(column) for matcher, column in self._matching.items()}
        self._terms = {
            name: {term: wider(column) for term, column in counted.items()} for name, counted in self._terms.items()
        }
