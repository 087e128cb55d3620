"""Whether the nodes together have what a gang needs. Cheap, and never wrong when it says no: a yes promises nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_plugins.framework.snapshot import Ints, Snapshot
from scheduler_plugins.plugins.gang_group import Requests

Words = Callable[[str, int], str]
"""(resource, amount) in words."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What is missing, in words; more of any of `resources` may help."""

    detail: str
    resources: frozenset[str]


def too_much(requests: Iterable[Requests], count: int, snapshot: Snapshot, words: Words, *, free: bool) -> Lack | None:
    """Why the nodes cannot take `count` of the pods that ask for `requests`, by what they have (`free`: have left).

    Two bounds: the sum of the smallest requests against the sum over nodes, and how often the smallest request of each
    resource fits on each node. A resource that no node has is not judged: somebody else may answer for it.
    """
    kinds = [(dict(asked), pods) for asked, pods in Counter(requests).items()]
    if not kinds or count <= 0:
        return None
    names = sorted({name for asked, _ in kinds for name in asked if snapshot.allocatable(name).any()})
    slots = np.maximum(_room(snapshot, "pods", free=free), 0)
    for name in names:
        amounts = sorted((asked.get(name, 0), pods) for asked, pods in kinds)
        room = np.maximum(_room(snapshot, name, free=free), 0)
        need, has = _least(amounts, count), float(room.sum(dtype=np.float64))
        if need > has:
            detail = f"{count} pods ask for {words(name, need)} {name}, all nodes have {words(name, int(has))}"
            return Lack(detail, frozenset({name}))
        if amounts[0][0] > 0:
            slots = np.minimum(slots, room // amounts[0][0])
    fit = int(np.minimum(slots, count).sum())
    if fit >= count:
        return None
    return Lack(f"at most {fit} of {count} pods fit on the nodes", frozenset({*names, "pods"}))


def _least(amounts: Sequence[tuple[int, int]], count: int) -> int:
    """Sum of the `count` smallest of (amount, how often)."""
    total = 0
    for amount, pods in amounts:
        total += amount * min(pods, count)
        count -= min(pods, count)
    return total


def not_free(needs: Mapping[str, int], own: Collection[Requests], snapshot: Snapshot, words: Words) -> Lack | None:
    """Why `needs` are not free in the whole cluster; what the gang's own placed pods request (`own`) counts as free."""
    for name, need in needs.items():
        room = np.maximum(_room(snapshot, name, free=True), 0).sum(dtype=np.float64)
        has = int(room) + sum(dict(one).get(name, 0) for one in own)
        if name == "pods":
            has += len(own)
        if need > has:
            detail = f"minResources has {words(name, need)} {name}, all nodes have {words(name, has)} left"
            return Lack(detail, frozenset({name}))
    return None


def _room(snapshot: Snapshot, name: str, *, free: bool) -> Ints:
    room = snapshot.allocatable(name)
    if not free:
        return room
    used = snapshot.column("pod_count") if name == "pods" else snapshot.requested(name)
    left: Ints = room - used
    return left
