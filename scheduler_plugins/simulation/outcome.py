"""What came of a simulation, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.records import Cycle


class Fate(StrEnum):
    """How a pod stands at the end."""

    PLACED = "placed"
    FINISHED = "finished"
    """Was placed and has ended since, as its lifetime has it."""
    PREEMPTED = "preempted"
    """Was placed and had to give way."""
    WAITING = "waiting"
    """Has its place and waits at Permit for others."""
    PENDING = "pending"
    GATED = "gated"
    COMING = "coming"
    """Was to arrive after the end."""


class PodOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that took part. `waited_seconds` from its arrival to its binding, None for one that was not bound.

    `node` is empty for a pod that never had one, `reason` for one that needs none.
    """

    namespace: str
    name: str
    fate: Fate
    node: str
    attempts: int
    arrived_seconds: float
    waited_seconds: float | None
    reason: str


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a resource of a node and what it offers: `cpu` in millicores, everything else in units."""

    requested: int
    allocatable: int


class NodeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One node at the end, with all pods that are there."""

    name: str
    pods: int
    use: dict[str, Use]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the pods that took part; `pending_by_reason` counts a pod under the reason of most nodes.

    `seconds` were simulated. `others` are pods without a node that no simulated profile is for.
    """

    pods: int
    by_fate: dict[str, int]
    pending_by_reason: dict[str, int]
    attempts: int
    seconds: float
    others: int
    nodes: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. `cycles` are the last ones that were asked for, the newest first; `remarks` are sentences."""

    pods: list[PodOutcome]
    nodes: list[NodeOutcome]
    totals: Totals
    cycles: list[Cycle]
    remarks: list[str]


NOT_TRIED: Final = "was not tried yet"


def main_reason(cycle: Cycle | None) -> str:
    """Why most nodes refused, without numbers of single nodes; the whole message where there is no such count."""
    if cycle is None:
        return NOT_TRIED
    counts: dict[str, int] = {}
    for refusal in cycle.refusals:
        for reason in refusal.get("reasons", ()):
            counts[reason["reason"]] = counts.get(reason["reason"], 0) + reason["nodes"]
    if not counts:
        return cycle.message or "refused after a node was chosen"
    return max(counts, key=lambda text: (counts[text], text))


def totals(
    pods: Sequence[PodOutcome],
    reasons: Iterable[str],
    *,
    attempts: int,
    seconds: float,
    others: int,
    nodes: int,
) -> Totals:
    """Count; `reasons` has one text for each pod that is not placed."""
    return Totals(
        pods=len(pods),
        by_fate={str(fate): count for fate in Fate if (count := sum(pod.fate is fate for pod in pods))},
        pending_by_reason=_counted(reasons),
        attempts=attempts,
        seconds=seconds,
        others=others,
        nodes=nodes,
    )


def node_outcome(node: NodeInfo, shown: Sequence[str]) -> NodeOutcome:
    """`shown` are the resources of interest."""
    use = {
        name: Use(requested=node.requested.get(name, 0), allocatable=node.allocatable.get(name, 0))
        for name in shown
        if name in node.allocatable or name in node.requested
    }
    return NodeOutcome(name=node.name, pods=len(node.pods), use=use)


def _counted(texts: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
