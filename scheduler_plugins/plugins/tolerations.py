"""Whether a pod tolerates the taints of a node. Source: core/v1 Toleration, with the numeric operators of 1.35."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Bools, Interned, Ints, Snapshot
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.whole_numbers import whole_number
from slacktide.objects import Taint, Toleration

HARD_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects that forbid a node; PreferNoSchedule only makes it worse."""

SOFT_EFFECT: Final = "PreferNoSchedule"

_MEMO: Final = "TaintToleration/tolerations"


@dataclass(frozen=True, slots=True)
class Taints:
    """Taints of a node: those that forbid it, and those that only make it worse."""

    hard: tuple[Taint, ...] = ()
    soft: tuple[Taint, ...] = ()


_NO_TAINTS: Final = Taints()


def _read(node: NodeInfo) -> Taints:
    given = node.node.spec.taints if node.node is not None else ()
    if not given:
        return _NO_TAINTS
    return Taints(
        tuple(taint for taint in given if taint.effect in HARD_EFFECTS),
        tuple(taint for taint in given if taint.effect == SOFT_EFFECT),
    )


TAINTS: Final = Interned("TaintToleration/taints", _read, of_object=True)
"""Taints of each node; a plugin that asks about them names this column in its `interned`."""


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
    limit, value = whole_number(asked), whole_number(given)
    if limit is None or value is None:
        return False
    return (operator == "Gt" and value > limit) or (operator == "Lt" and value < limit)


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that forbids the node and that nothing in `tolerations` covers."""
    for taint in taints:
        if taint.effect in HARD_EFFECTS and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def tolerations_of(pod: PodInfo) -> tuple[Toleration, ...]:
    """Tolerations of `pod`, to ask with."""
    known: tuple[Toleration, ...] | None = pod.memo.get(_MEMO)
    if known is None:
        known = pod.memo[_MEMO] = tuple(pod.pod.spec.tolerations)
    return known


def forbidden(pod: PodInfo, snapshot: Snapshot, judged: Judgements) -> tuple[Bools, NDArray[np.int32]]:
    """Whether each distinct set of taints forbids a node to `pod`, and the number of each node's set.

    The snapshot must have the column TAINTS. `flags.take(numbers)` is one flag a node.
    """
    numbers, values = snapshot.interned(TAINTS.name)
    given = tolerations_of(pod)
    flags = judged.of(TAINTS.name, values, ("hard", given), lambda taints: untolerated(taints.hard, given) is not None)
    return flags, numbers


def disliked(pod: PodInfo, snapshot: Snapshot, judged: Judgements) -> tuple[Ints, NDArray[np.int32]]:
    """How many taints of each distinct set `pod` would rather not have, and the number of each node's set."""
    numbers, values = snapshot.interned(TAINTS.name)
    given = tuple(one for one in tolerations_of(pod) if one.effect in ("", SOFT_EFFECT))
    counts = judged.of(TAINTS.name, values, ("soft", given), lambda taints: _intolerable(taints, given), "int64")
    return counts, numbers


def _intolerable(taints: Taints, given: Sequence[Toleration]) -> int:
    return sum(1 for taint in taints.soft if not any(tolerates(toleration, taint) for toleration in given))
