"""Snapshot: all nodes as columns of numbers, so that a plugin judges every node in one numpy operation.

The cost of an update is in the nodes that changed, not in all of them. A snapshot belongs to one thread, the
scheduling loop; `Cache.refresh` brings it up to date under the cache's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_counts import Indices, Ints, PodCounts, PodMatcher, Terms
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo

__all__ = ["Bools", "Column", "Floats", "Indices", "Interned", "Ints", "PodMatcher", "Snapshot", "Terms"]

Amounts = Callable[[NodeInfo], Mapping[str, int]]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_FIRST_CAPACITY: Final = 16
_SPARE_VALUES: Final = 1024
_MOST_LABELS: Final = 64
"""Labels that are kept as columns from cycle to cycle; pods may name any, and each costs every change of a node."""
_MOST_RESOURCES: Final = 64
"""Likewise resources, of what nodes offer and of what pods request; anybody who may create pods may name new ones."""
_MOST_CHANGES: Final = 4096
"""So many changes are remembered; who asks for older ones is told that it was too long ago."""


@dataclass(frozen=True, slots=True)
class Column:
    """A number of each node that a plugin wants kept: `read` is called once for each changed node.

    `dtype` is a numpy type name such as float64, int64 or bool. Names are `PluginName/what`. Where `of_object` is true
    the number depends on the node object alone, not on the pods, and is read only when another object came.
    """

    name: str
    dtype: str
    read: Callable[[NodeInfo], Any]
    of_object: bool = False


@dataclass(frozen=True, slots=True)
class Interned:
    """A value of each node that few nodes differ in (such as taints): stored as a small number.

    A plugin then judges each distinct value once. `read` returns something hashable. `of_object` as for `Column`.
    """

    name: str
    read: Callable[[NodeInfo], Hashable]
    of_object: bool = False


class _Interning:
    """Distinct values of one interned column."""

    def __init__(self, read: Callable[[NodeInfo], Hashable], *, of_object: bool) -> None:
        self.read = read
        self.of_object = of_object
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
    Column("pods_allocatable", "int64", lambda node: node.allocatable.get("pods", 0), of_object=True),
    Column("nonzero_cpu_millis", "int64", lambda node: min(node.nonzero_cpu_millis, LARGEST)),
    Column("nonzero_memory_bytes", "int64", lambda node: min(node.nonzero_memory_bytes, LARGEST)),
)

_NOBODY: Final = NodeInfo("")
"""Stands for what was in a row that is new."""


class Snapshot:
    """The nodes of one scheduling cycle. Row i of every column is the node `names[i]`; order has no meaning."""

    def __init__(self, columns: Sequence[Column] = (), interned: Sequence[Interned] = ()) -> None:
        self.names: list[str] = []
        self.nodes: list[NodeInfo] = []
        self.index: dict[str, int] = {}
        self.layout = 0
        """Rises when a row is given to another node: rows that were looked up before mean nothing any more."""
        self.generation = 0
        self._changes: list[int] = []
        self._forgotten_changes = 0
        # Plugins that share a column each name it.
        known = {column.name: column for column in (*_FIXED, *columns)}
        self._readers = [(column.name, column.read, column.of_object) for column in known.values()]
        self._interned = {one.name: _Interning(one.read, of_object=one.of_object) for one in interned}
        self._numbers: dict[str, NDArray[Any]] = {
            column.name: np.zeros(_FIRST_CAPACITY, dtype=column.dtype) for column in (*_FIXED, *columns)
        }
        self._ids: dict[str, NDArray[np.int32]] = {name: np.zeros(_FIRST_CAPACITY, np.int32) for name in self._interned}
        self._allocatable: dict[str, Ints] = {}
        self._requested: dict[str, Ints] = {}
        self._labels: dict[str, NDArray[np.int32]] = {}
        self._label_values: dict[str, _Interning] = {}
        self._counts = PodCounts()
        self._capacity = _FIRST_CAPACITY

    def __len__(self) -> int:
        return len(self.names)

    @property
    def version(self) -> int:
        """Rises with each node that is put; for `changed_since`."""
        return self._forgotten_changes + len(self._changes)

    def changed_since(self, version: int) -> Indices | None:
        """Rows put since `version`, in order, as long as `layout` is the same; None when that is too long ago."""
        if version < self._forgotten_changes:
            return None
        return np.array(sorted(set(self._changes[version - self._forgotten_changes :])), dtype=np.intp)

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
        return self._resource(self._allocatable, resource, lambda node: node.allocatable)

    def requested(self, resource: str) -> Ints:
        """What the pods on each node, assumed ones included, request of `resource`."""
        return self._resource(self._requested, resource, lambda node: node.requested)

    def label(self, key: str) -> tuple[NDArray[np.int32], list[str | None]]:
        """(number of the value of each node, values by number) of a node label; number 0 is None: the label is absent.

        Kept from the first question on, if it is among those that were asked for last; the numbers hold till `tidy`. A
        snapshot of one node shares them with the one it was made from.
        """
        column = self._labels.pop(key, None)
        if column is None:
            column = self._read_label(key)
        self._labels[key] = column
        return column[: len(self.names)], self._label_values[key].values

    def _read_label(self, key: str) -> NDArray[np.int32]:
        interning = self._label_values.get(key)
        if interning is None:
            interning = self._label_values[key] = _Interning(lambda node: node.labels.get(key), of_object=True)
            interning.ids[None] = 0
            interning.values.append(None)
        column = np.zeros(self._capacity, dtype=np.int32)
        for row, node in enumerate(self.nodes):
            column[row] = interning.id_of(node)
        return column

    def pods_matching(self, matcher: PodMatcher) -> Ints:
        """How many pods of each node, assumed ones included, `matcher` selects. Kept from the first question on."""
        return self._counts.matching(matcher, self.nodes, self.index, self._capacity)[: len(self.names)]

    def terms_about(self, terms: Terms, pod: PodInfo) -> Iterator[tuple[Any, Indices, Ints]]:
        """(term, rows, counts) of each distinct term of pods here that may be about `pod`; the caller asks the term.

        `counts` says how many pods of the node in each of `rows` have the term. Kept likewise.
        """
        return self._counts.about(terms, pod, self.nodes, self.index)

    def single(self, node: NodeInfo) -> Snapshot:
        """A snapshot of `node` alone, with the same columns and numbers: for questions of the kind what if."""
        one = Snapshot()
        one._readers, one._interned = self._readers, self._interned
        one._label_values = self._label_values
        one._capacity = 1
        one.generation = self.generation
        row = self.index.get(node.name)
        if row is None:
            one._numbers = {name: np.zeros(1, dtype=column.dtype) for name, column in self._numbers.items()}
            one._ids = {name: np.zeros(1, dtype=np.int32) for name in self._ids}
        else:
            # What is known of the node here need not be read again, unless it was changed.
            one._numbers = {name: column[row : row + 1].copy() for name, column in self._numbers.items()}
            one._ids = {name: column[row : row + 1].copy() for name, column in self._ids.items()}
            one._allocatable = {name: column[row : row + 1].copy() for name, column in self._allocatable.items()}
            one._requested = {name: column[row : row + 1].copy() for name, column in self._requested.items()}
            one.names, one.nodes, one.index = [node.name], [self.nodes[row]], {node.name: 0}
        one.put(node)
        return one

    def _resource(self, columns: dict[str, Ints], resource: str, amounts: Amounts) -> Ints:
        """Kept from the first question on, like a label."""
        column = columns.pop(resource, None)
        if column is None:
            column = np.zeros(self._capacity, dtype=np.int64)
            for row, node in enumerate(self.nodes):
                if (amount := amounts(node).get(resource)) is not None:
                    column[row] = min(amount, LARGEST)
        columns[resource] = column
        return column[: len(self.names)]

    def put(self, node: NodeInfo) -> None:
        """Add or replace a node; `node` must not change afterwards."""
        row = self.index.get(node.name)
        if row is None:
            row, before = self._new_row(node), _NOBODY
        else:
            before = self.nodes[row]
            self.nodes[row] = node
        self._note_change(row)
        self._counts.recount(row, node.name, before.pods, node.pods)
        same = before.node is node.node and before is not _NOBODY
        for name, read, of_object in self._readers:
            if not (of_object and same):
                self._numbers[name][row] = read(node)
        for name, interning in self._interned.items():
            if not (interning.of_object and same):
                self._ids[name][row] = interning.id_of(node)
        if not same:
            for key, labels in self._labels.items():
                labels[row] = self._label_values[key].id_of(node)
            self._write(self._allocatable, row, node.allocatable)
        self._write(self._requested, row, node.requested)

    def _note_change(self, row: int) -> None:
        if len(self._changes) == _MOST_CHANGES:
            self._forgotten_changes += _MOST_CHANGES
            self._changes.clear()
        self._changes.append(row)

    def _new_row(self, node: NodeInfo) -> int:
        row = len(self.names)
        self.layout += 1
        if row == self._capacity:
            self._grow()
        self.names.append(node.name)
        self.nodes.append(node)
        self.index[node.name] = row
        for column in (*self._allocatable.values(), *self._requested.values()):
            column[row] = 0
        return row

    def remove(self, name: str) -> None:
        """Drop a node, if it is here; the last row takes its place."""
        row = self.index.pop(name, None)
        if row is None:
            return
        self.layout += 1
        last = len(self.names) - 1
        self._counts.recount(row, name, self.nodes[row].pods, {})
        if row != last:
            moved = self.names[last]
            self.names[row], self.nodes[row] = moved, self.nodes[last]
            self.index[moved] = row
            for column in self._columns():
                column[row] = column[last]
        for column in self._counts.columns():
            column[last] = 0
        self.names.pop()
        self.nodes.pop()

    def tidy(self) -> None:
        """Forget interned values that no node has any more, once they are many; labels and resources nobody asks for.

        Between cycles, never within one: numbers of labels may be others afterwards.
        """
        for key in list(self._labels)[:-_MOST_LABELS]:
            del self._labels[key], self._label_values[key]
        for columns in (self._allocatable, self._requested):
            for resource in list(columns)[:-_MOST_RESOURCES]:
                del columns[resource]
        for name, interning in self._interned.items():
            self._renumber(interning, self._ids[name])
        for key, labels in self._labels.items():
            self._renumber(self._label_values[key], labels)

    def _renumber(self, interning: _Interning, column: NDArray[np.int32]) -> None:
        if len(interning.values) <= 2 * len(self.names) + _SPARE_VALUES:
            return
        first = interning.values[:1] if interning.values[0] is None else []
        interning.values[:] = first
        interning.ids.clear()
        interning.ids.update((value, 0) for value in first)
        for row, node in enumerate(self.nodes):
            column[row] = interning.id_of(node)

    def _columns(self) -> Iterable[NDArray[Any]]:
        yield from self._numbers.values()
        yield from self._ids.values()
        yield from self._allocatable.values()
        yield from self._requested.values()
        yield from self._labels.values()
        yield from self._counts.columns()

    def _write(self, columns: dict[str, Ints], row: int, amounts: Mapping[str, int]) -> None:
        for resource, column in columns.items():
            column[row] = min(amounts.get(resource, 0), LARGEST)

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
        self._counts.widen(wider)
