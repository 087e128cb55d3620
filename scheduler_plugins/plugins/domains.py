"""Topology domains: nodes that share the value of a label, and numbers kept for each domain.

Domains are told apart by the numbers that the snapshot gives to label values, which a snapshot of one node shares.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.snapshot import Bools, Indices, Ints, Snapshot

NO_DOMAIN: Final = 0
"""Number of the domain of a node that lacks the label."""


class Domains:
    """The domains of one topology key, in the numbers of a snapshot."""

    __slots__ = ("_numbers", "key", "values")

    def __init__(self, snapshot: Snapshot, key: str) -> None:
        self.key = key
        self.values = snapshot.label(key)[1]
        self._numbers: dict[str | None, int] = {}

    def number(self, node: NodeInfo) -> int:
        """Domain of a node; NO_DOMAIN when it lacks the label or no node of the snapshot ever had that value."""
        value = node.labels.get(self.key)
        if value is None:
            return NO_DOMAIN
        if len(self._numbers) != len(self.values):
            self._numbers = {known: number for number, known in enumerate(self.values)}
        return self._numbers.get(value, NO_DOMAIN)

    def of(self, snapshot: Snapshot, rows: Indices) -> NDArray[np.int32]:
        """Domain of each of some nodes."""
        ids: NDArray[np.int32] = snapshot.label(self.key)[0].take(rows)
        return ids

    def name(self, number: int) -> str:
        """A domain in words."""
        return f"{self.key}={self.values[number]}"


class DomainNumbers:
    """A whole number for each domain of a key; 0 for what was never written, and for nodes without the label."""

    __slots__ = ("_numbers", "domains")

    def __init__(self, domains: Domains, numbers: Ints) -> None:
        self.domains = domains
        self._numbers = numbers

    @classmethod
    def summed(cls, snapshot: Snapshot, domains: Domains, per_node: Ints, nodes: Bools | None = None) -> DomainNumbers:
        """Sums of a number of each node by domain, over `nodes` (all without them)."""
        ids, values = snapshot.label(domains.key)
        rows = np.flatnonzero(per_node if nodes is None else per_node * nodes)
        sums = np.bincount(ids.take(rows), weights=per_node.take(rows), minlength=len(values)).astype(np.int64)
        sums[NO_DOMAIN] = 0
        return cls(domains, sums)

    def clone(self) -> DomainNumbers:
        """A copy for a what-if question."""
        return DomainNumbers(self.domains, self._numbers.copy())

    def all(self) -> Ints:
        """The number of every domain that is known by now, by its number."""
        missing = len(self.domains.values) - len(self._numbers)
        if missing > 0:
            self._numbers = np.concatenate([self._numbers, np.zeros(missing, dtype=np.int64)])
        return self._numbers

    def at(self, ids: NDArray[np.int32]) -> Ints:
        """The number of each of some domains."""
        numbers: Ints = self.all().take(ids)
        return numbers

    def add(self, node: NodeInfo, change: int) -> None:
        """Change the number of the domain that `node` is in, if it is in one."""
        number = self.domains.number(node)
        if number != NO_DOMAIN:
            self.all()[number] += change

    def any(self) -> bool:
        """Whether some domain has another number than 0."""
        return bool(self._numbers.any())


def present(ids: NDArray[Any], size: int) -> Bools:
    """Which domains occur among `ids`; nodes without the label are in none."""
    found = np.zeros(size, dtype=np.bool_)
    found[ids] = True
    found[NO_DOMAIN] = False
    return found
