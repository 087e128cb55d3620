"""Room that a preemption could make on each node, as far as resources go: columns, kept from attempt to attempt.

On thousands of nodes it rules out those where nothing that may go would make room, and foretells which pods would have
to go on the others, so that few nodes need to be tried in earnest. The trial decides; what is foretold only says where
to try, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.snapshot import Bools, Indices, Ints, Snapshot
from scheduler_plugins.framework.yielding import Claim, MayBeRemoved
from scheduler_plugins.plugins.preemption_candidates import by_importance
from slacktide.objects import is_terminating
from slacktide.tier import Tier

_MOST_CLAIMS: Final = 16
_MOST_RESOURCES: Final = 16
"""Resources whose sums are kept; anybody who may create pods may name new ones."""
_OTHER_TIER: Final = 1 << 33
"""Added to the priority of a pod that is not best-effort: more than any priority."""


class _Kept:
    """What one claim could remove, by row; a row counts while the snapshot has the same node in it."""

    def __init__(self, claim: Claim) -> None:
        self._may_go = MayBeRemoved(claim)
        self._nodes: list[NodeInfo | None] = []
        self.removable: list[Sequence[PodInfo]] = []
        self._sums: dict[str, Ints] = {}
        self.cheapest: Ints = np.zeros(0, dtype=np.int64)

    def keep_up(self, snapshot: Snapshot, rows: Indices, more: Callable[[], bool]) -> Indices:
        """Read what changed while there may be `more`; those of `rows` that are known."""
        missing = len(snapshot) - len(self._nodes)
        if missing > 0:
            self._nodes += [None] * missing
            self.removable += [()] * missing
            self._sums = {name: np.pad(column, (0, missing)) for name, column in self._sums.items()}
            self.cheapest = np.pad(self.cheapest, (0, missing))
        nodes, kept = snapshot.nodes, self._nodes
        known = []
        for row in rows.tolist():
            if kept[row] is not nodes[row]:
                if not more():
                    continue
                self._read(row, nodes[row])
            known.append(row)
        return np.array(known, dtype=np.intp)

    def _read(self, row: int, node: NodeInfo) -> None:
        removable = tuple(by_importance(pod for pod in node.pods.values() if self._may_go.matches(pod)))
        self._nodes[row], self.removable[row] = node, removable
        self.cheapest[row] = _cost(removable[-1]) if removable else 0
        for name, column in self._sums.items():
            column[row] = _sum(removable, name)

    def sums(self, name: str, rows: Indices) -> Ints:
        """What may go of `name` on each of `rows`. Kept from the first question on, if it is among the last asked."""
        column = self._sums.pop(name, None)
        if column is None:
            while len(self._sums) >= _MOST_RESOURCES:
                del self._sums[next(iter(self._sums))]
            column = np.array([_sum(pods, name) for pods in self.removable], dtype=np.int64)
        self._sums[name] = column
        return column[rows]


def _sum(pods: Sequence[PodInfo], name: str) -> int:
    """What `pods` request of one resource, as far as a column can hold it."""
    return min(sum(pod.requests.get(name, 0) for pod in pods), LARGEST - 1)


class Room:
    """Belongs to one plugin and one snapshot."""

    def __init__(self) -> None:
        self._kept: dict[Claim, _Kept] = {}

    def removable(self, claim: Claim, snapshot: Snapshot, rows: Indices, more: Callable[[], bool]) -> Removable:
        """What `claim` could remove from the nodes `rows`; good until the snapshot changes.

        Nodes that changed are read while there may be `more`: a hundred thousand pods take seconds the first time.
        """
        kept = self._kept.pop(claim, None) or _Kept(claim)
        while len(self._kept) >= _MOST_CLAIMS:
            del self._kept[next(iter(self._kept))]
        self._kept[claim] = kept
        return Removable(kept, snapshot, kept.keep_up(snapshot, rows, more))


def _cost(pod: PodInfo) -> int:
    """What it costs at least that this pod goes: orders pods as the first parts of a candidate's rank do."""
    if is_terminating(pod.pod):
        return -_OTHER_TIER
    return pod.priority if pod.tier is Tier.BE else pod.priority + _OTHER_TIER


class Removable:
    """Pods that may be removed, by row of the snapshot. `rows` are those that were read."""

    def __init__(self, kept: _Kept, snapshot: Snapshot, rows: Indices) -> None:
        self.rows = rows
        self._kept = kept
        self._snapshot = snapshot

    def on(self, row: int) -> Sequence[PodInfo]:
        """Those of one node, the most important first."""
        return self._kept.removable[row]

    def enough(self, wanted: Mapping[str, int], rows: Indices) -> Bools:
        """Whether each of `rows` had what is `wanted` if all were gone that may be."""
        result: Bools = np.ones(len(rows), dtype=np.bool_)
        for name, amount in wanted.items():
            free = self._snapshot.allocatable(name)[rows] - self._snapshot.requested(name)[rows]
            result &= free + self._kept.sums(name, rows) >= amount
        return result

    def cheapest_first(self, wanted: Mapping[str, int], rows: Indices) -> Indices:
        """`rows` by the least important pod that may go, then by how much of what is `wanted` is missing."""
        missing = np.zeros(len(rows))
        for name, amount in wanted.items():
            free = self._snapshot.allocatable(name)[rows] - self._snapshot.requested(name)[rows]
            missing += np.maximum(amount - free, 0) * (1.0 / amount)
        return rows[np.lexsort((missing, self._kept.cheapest[rows]))]


def foretold(node: NodeInfo, pods: Sequence[PodInfo], wanted: Mapping[str, int]) -> tuple[PodInfo, ...]:
    """Which of `pods` have to go so that `node` has what is `wanted`, where the first are kept as long as they can be.

    Nothing but room for a pod and for the requests counts. It is the same as to take all away and to put one after the
    other back.
    """
    spare = node.allocatable.get("pods", 0) - len(node.pods) + len(pods) - 1
    left = {name: node.allocatable.get(name, 0) - node.requested.get(name, 0) - v for name, v in wanted.items()}
    for pod in pods:
        for name, amount in pod.requests.items():
            if name in left:
                left[name] += amount
    going = []
    for pod in pods:
        taken = [(name, pod.requests[name]) for name in left if name in pod.requests]
        if spare < 1 or any(amount > left[name] for name, amount in taken):
            going.append(pod)
            continue
        spare -= 1
        for name, amount in taken:
            left[name] -= amount
    return tuple(going)
