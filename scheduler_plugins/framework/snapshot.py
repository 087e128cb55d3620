"""Snapshot: all nodes as columns of numbers, so that a plugin judges every node in one numpy operation.

The cost of an update is in the nodes that changed, not in all of them. A snapshot belongs to one thread, the
scheduling loop; `Cache.refresh` brings it up to date under the cache's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.node_info import NodeInfo

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]

_FIRST_CAPACITY: Final = 16
_SPARE_VALUES: Final = 1024


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
        self.nodes[row] = node
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
        if row != last:
            moved = self.names[last]
            self.names[row], self.nodes[row] = moved, self.nodes[last]
            self.index[moved] = row
            for column in self._columns():
                column[row] = column[last]
        self.names.pop()
        self.nodes.pop()

    def tidy(self) -> None:
        """Forget interned values that no node has any more, once they are many."""
        for name, interning in self._interned.items():
            if len(interning.values) <= 2 * len(self.names) + _SPARE_VALUES:
                continue
            interning.values.clear()
            interning.ids.clear()
            for row, node in enumerate(self.nodes):
                self._ids[name][row] = interning.id_of(node)

    def _columns(self) -> Iterable[NDArray[Any]]:
        yield from self._numbers.values()
        yield from self._ids.values()
        yield from self._allocatable.values()
        yield from self._requested.values()

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
