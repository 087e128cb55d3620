"""What the pods bound to each node ask for. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.objects import Pod, is_terminal
from slacktide.resources import batch_request, requests_of
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of

_NOTHING: Final = Amount(cpu_millis=0, memory_bytes=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """Sums over the pods of one node: `sold` over BE pods, `requested` (plain requests) over LS pods.

    A sum with a pod that could not be read is not known.
    """

    sold: Amount = _NOTHING
    requested: Amount = _NOTHING


def bound_by_node(pods: Iterable[Pod], names: ResourceNames) -> tuple[dict[str, Bound], int]:
    """Sums per node name, and how many pods could not be read.

    A pod that is being deleted still holds what it asked for; one that has ended holds nothing. A node without pods
    has no entry and sold nothing.
    """
    sums: dict[str, Bound] = {}
    unreadable = 0
    for pod in pods:
        node = pod.spec.node_name
        if not node or is_terminal(pod):
            continue
        before = sums.get(node, Bound())
        try:
            sums[node] = _with(before, pod, names)
        except QuantityError:
            unreadable += 1
            sums[node] = Bound(Amount(), Amount())
    return sums, unreadable


def _with(before: Bound, pod: Pod, names: ResourceNames) -> Bound:
    tier = tier_of(pod, frozenset({names.cpu, names.memory}))
    if tier is Tier.BE:
        return Bound(_add(before.sold, batch_request(pod, names)), before.requested)
    if tier is Tier.LS:
        asked = requests_of(pod)
        plain = Amount(cpu_millis=asked.get("cpu", 0), memory_bytes=asked.get("memory", 0))
        return Bound(before.sold, _add(before.requested, plain))
    return before


def _add(one: Amount, other: Amount) -> Amount:
    return Amount(
        cpu_millis=_sum(one.cpu_millis, other.cpu_millis), memory_bytes=_sum(one.memory_bytes, other.memory_bytes)
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
