"""Pods of the nodes of a snapshot, counted by what selects them and by what they ask of others.

A change costs what the pods that came and went cost, not what there is: each is shown to the matchers and terms that
can concern it, found by the labels that they name. A new matcher looks only at pods with the rarest of its labels.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo

Ints = NDArray[np.int64]
Indices = NDArray[np.intp]
Pair = tuple[str, str]
"""A label: key and value."""

_MOST_MATCHERS: Final = 256
_MOST_KEYS: Final = 32


class PodMatcher(Hashable, Protocol):
    """Selects pods; equal matchers select the same ones, so that what is counted for one serves the other."""

    @property
    def pairs(self) -> Sequence[Pair]:
        """Labels that every selected pod has; empty when that cannot be said."""
        ...

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod counts."""
        ...


def _no_pairs(_: Any) -> Sequence[Pair]:
    return ()


@dataclass(frozen=True, slots=True)
class Terms:
    """What pods ask of others, such as their anti-affinity terms: `read` gives the terms of one pod.

    Equal terms of many pods are counted together. `pairs` are labels that every pod has which a term is about; none
    when that cannot be said. `name` is `PluginName/what`.
    """

    name: str
    read: Callable[[PodInfo], Iterable[Any]]
    pairs: Callable[[Any], Sequence[Pair]] = _no_pairs


class PodCounts:
    """Belongs to one snapshot; `nodes` and `index` (row by name) are the snapshot's."""

    def __init__(self) -> None:
        self._matching: dict[PodMatcher, Ints] = {}
        self._asking: dict[Pair | None, dict[PodMatcher, None]] = {}
        self._terms: dict[str, _TermCounts] = {}
        self._labelled = _PodsByLabel()

    def matching(self, matcher: PodMatcher, nodes: Sequence[NodeInfo], index: Mapping[str, int], capacity: int) -> Ints:
        """How many pods of each row `matcher` selects, in a column of `capacity` rows."""
        column = self._matching.pop(matcher, None)
        if column is None:
            while len(self._matching) >= _MOST_MATCHERS:
                self._forget(next(iter(self._matching)))
            self._asking.setdefault(_first(matcher.pairs), {})[matcher] = None
            column = np.zeros(capacity, dtype=np.int64)
            for pod, name in self._labelled.with_rarest(matcher.pairs, nodes):
                if matcher.matches(pod):
                    column[index[name]] += 1
        self._matching[matcher] = column
        return column

    def about(
        self, terms: Terms, pod: PodInfo, nodes: Sequence[NodeInfo], index: Mapping[str, int]
    ) -> Iterator[tuple[Any, Indices, Ints]]:
        """(term, rows of the nodes with pods that have it, how many each has) of each term that may be about `pod`."""
        counted = self._terms.get(terms.name)
        if counted is None:
            counted = self._terms[terms.name] = _TermCounts(terms)
            for node in nodes:
                for placed in node.pods.values():
                    counted.change(placed, node.name, 1)
        for term, by_node in counted.about(pod):
            rows = np.fromiter((index[name] for name in by_node), dtype=np.intp, count=len(by_node))
            yield term, rows, np.fromiter(by_node.values(), dtype=np.int64, count=len(by_node))

    def recount(self, row: int, name: str, before: Mapping[str, PodInfo], after: Mapping[str, PodInfo]) -> None:
        """The pods of a node are others now."""
        if before is after or not (self._matching or self._terms):
            return
        if len(before) <= len(after) and all(map(operator.is_, before.values(), after.values())):
            # Most often pods have only come: they stand behind the others.
            gone, come = [], list(itertools.islice(after.values(), len(before), None))
        else:
            gone = [pod for uid, pod in before.items() if after.get(uid) is not pod]
            come = [pod for uid, pod in after.items() if before.get(uid) is not pod]
        for pods, change in ((gone, -1), (come, 1)):
            for pod in pods:
                self._labelled.change(pod, name, change)
                for matcher in self._concerned(pod):
                    if matcher.matches(pod):
                        self._matching[matcher][row] += change
                for counted in self._terms.values():
                    counted.change(pod, name, change)

    def columns(self) -> Iterator[Ints]:
        """All columns by row."""
        yield from self._matching.values()

    def widen(self, wider: Callable[[Ints], Ints]) -> None:
        """Replace each column by a longer one."""
        self._matching = {matcher: wider(column) for matcher, column in self._matching.items()}

    def _concerned(self, pod: PodInfo) -> Iterator[PodMatcher]:
        yield from self._asking.get(None, ())
        for pair in pod.pod.metadata.labels.items():
            yield from self._asking.get(pair, ())

    def _forget(self, matcher: PodMatcher) -> None:
        del self._matching[matcher]
        pair = _first(matcher.pairs)
        del self._asking[pair][matcher]
        if not self._asking[pair]:
            del self._asking[pair]


def _first(pairs: Sequence[Pair]) -> Pair | None:
    return pairs[0] if pairs else None


class _PodsByLabel:
    """Pods by the labels that matchers have asked for, each with the name of its node."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, dict[str, tuple[PodInfo, str]]]] = {}

    def with_rarest(self, pairs: Sequence[Pair], nodes: Sequence[NodeInfo]) -> Iterable[tuple[PodInfo, str]]:
        """Pods with the one of these labels that fewest have; all pods when there is none to go by."""
        known = [pair for pair in pairs if self._keep(pair[0], nodes)]
        if not known:
            return ((pod, node.name) for node in nodes for pod in node.pods.values())
        return min((self._keys[key].get(value, {}) for key, value in known), key=len).values()

    def change(self, pod: PodInfo, name: str, change: int) -> None:
        """The pod came to a node (1) or left it (-1)."""
        labels = pod.pod.metadata.labels
        for key, by_value in self._keys.items():
            value = labels.get(key)
            if value is not None:
                self._note(by_value, value, pod, name, change)

    @staticmethod
    def _note(
        by_value: dict[str, dict[str, tuple[PodInfo, str]]], value: str, pod: PodInfo, name: str, change: int
    ) -> None:
        if change > 0:
            by_value.setdefault(value, {})[pod.uid] = (pod, name)
            return
        # A pod that moved may have been noted on its new node already, and then it is not gone.
        pods = by_value.get(value, {})
        if pods.get(pod.uid) == (pod, name):
            del pods[pod.uid]
            if not pods:
                del by_value[value]

    def _keep(self, key: str, nodes: Sequence[NodeInfo]) -> bool:
        """Have pods by their value of a label; False when that is kept for as many labels as may be."""
        if key not in self._keys:
            if len(self._keys) >= _MOST_KEYS:
                return False
            by_value = self._keys[key] = {}
            for node in nodes:
                for pod in node.pods.values():
                    value = pod.pod.metadata.labels.get(key)
                    if value is not None:
                        self._note(by_value, value, pod, node.name, 1)
        return True


class _TermCounts:
    """Distinct terms, with how many pods of which nodes have each; found by a label of those they are about."""

    def __init__(self, terms: Terms) -> None:
        self._read = terms.read
        self._pairs = terms.pairs
        self._counts: dict[Any, dict[str, int]] = {}
        self._home: dict[Any, Pair | None] = {}
        self._at: dict[Pair | None, dict[Any, None]] = {}

    def change(self, pod: PodInfo, name: str, change: int) -> None:
        """A pod came to a node (1) or left it (-1)."""
        for term in self._read(pod):
            by_node = self._counts.get(term)
            if by_node is None:
                by_node = self._counts[term] = {}
                self._settle(term)
            left = by_node.get(name, 0) + change
            if left:
                by_node[name] = left
                continue
            by_node.pop(name, None)
            if not by_node:
                self._forget(term)

    def about(self, pod: PodInfo) -> Iterator[tuple[Any, Mapping[str, int]]]:
        """Terms that may be about `pod`: without a label to go by, or with one that the pod has."""
        for pair in (None, *pod.pod.metadata.labels.items()):
            for term in self._at.get(pair, ()):
                yield term, self._counts[term]

    def _settle(self, term: Any) -> None:
        """Of the labels of a term the one with the fewest terms, so that a label that all have finds few."""
        pairs = self._pairs(term)
        home = min(pairs, key=lambda pair: len(self._at.get(pair, ()))) if pairs else None
        self._home[term] = home
        self._at.setdefault(home, {})[term] = None

    def _forget(self, term: Any) -> None:
        del self._counts[term]
        home = self._home.pop(term)
        del self._at[home][term]
        if not self._at[home]:
            del self._at[home]
