"""A placement as numbers: groups of like pods that may move, nodes with what they have beside those that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_plugins.framework.snapshot import Bools, Ints


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology over which a group is to be spread evenly: `domain` (nodes,) numbers, -1 where a node has none.

    `max_skew` is a hard limit on how far the fullest eligible domain may be above the emptiest; None is a wish.
    """

    key: str
    domain: Ints
    values: Sequence[str]
    max_skew: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that are alike: any of them may stand where another does.

    requests   resource -> amount of one pod (cpu in millicores, everything else in whole units)
    eligible   (nodes,) where one may be at all
    now        (nodes,) how many are there
    unplaced   how many are nowhere yet; the best placement has room for them too
    apart      whether no two of them may share a node
    unjudged   rules of theirs that are not part of the problem; what is found is a bound then
    """

    name: str
    requests: Mapping[str, int]
    eligible: Bools
    now: Ints
    unplaced: int = 0
    apart: bool = False
    spreads: tuple[Spread, ...] = ()
    unjudged: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """All pods of the group."""
        return int(self.now.sum()) + self.unplaced


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a solver needs.

    nodes      names
    resources  names of what is asked for, and `pods`
    capacity   (nodes, resources) what pods may request at most
    fixed      (nodes, resources) what the pods that stay request
    """

    nodes: Sequence[str]
    resources: Sequence[str]
    capacity: Ints
    fixed: Ints
    groups: Sequence[Group]

    def need(self, group: Group) -> Ints:
        """(resources,) requests of one pod of the group."""
        return np.array(
            [1 if name == "pods" else group.requests.get(name, 0) for name in self.resources], dtype=np.int64
        )

    def used(self, counts: Sequence[Ints]) -> Ints:
        """(nodes, resources) requests when `counts[g]` (nodes,) pods of each group are on the nodes."""
        total = self.fixed.copy()
        for group, here in zip(self.groups, counts, strict=True):
            total += here[:, None] * self.need(group)[None, :]
        return total

    def now(self) -> list[Ints]:
        """Where the pods are."""
        return [group.now for group in self.groups]
