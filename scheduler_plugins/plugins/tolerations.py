"""Whether a pod tolerates a taint. Source: core/v1 Toleration, with the numeric operators of 1.35."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from slacktide.objects import Taint, Toleration

HARD_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects that forbid a node; PreferNoSchedule only makes it worse."""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect tolerates every effect, an empty key with Exists every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    operator = toleration.operator or "Equal"
    if operator == "Exists":
        return True
    if not toleration.key:
        return False
    if operator == "Equal":
        return toleration.value == taint.value
    return _compares(operator, toleration.value, taint.value)


def _compares(operator: str, asked: str, given: str) -> bool:
    try:
        limit, value = int(asked), int(given)
    except ValueError:
        return False
    return (operator == "Gt" and value > limit) or (operator == "Lt" and value < limit)


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that forbids the node and that nothing in `tolerations` covers."""
    for taint in taints:
        if taint.effect in HARD_EFFECTS and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
