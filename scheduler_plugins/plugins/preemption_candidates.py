"""Candidates of a preemption: the pods of a node that would go, and which node is the best to take.

Pods are kept in this order while others can go instead: those of another tier than best-effort, then those that a
disruption budget protects, then by priority, then the one that has run longer. A pod that is going anyway is kept
last, and costs nothing.
Source: kubernetes pkg/scheduler/framework/preemption (pickOneNodeForPreemption), util.MoreImportantPod.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_plugins.framework.extending import Victims
from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.objects import epoch_seconds, is_terminating
from slacktide.tier import Tier

_STARTED: Final = "DefaultPreemption/started"
_SHIFT: Final = 1 << 31
"""Added to each priority of a sum, so that pods of a negative priority do not make more pods cheaper."""

Rank = tuple[bool, int, int, int, int, float]
"""How bad a candidate is; the least is the best."""


def started(pod: PodInfo) -> float:
    """Seconds since the epoch at which the pod started; infinite for one that has not, or does not say."""
    known: float | None = pod.memo.get(_STARTED)
    if known is None:
        at = epoch_seconds(pod.pod.status.start_time)
        known = pod.memo[_STARTED] = math.inf if at is None else at
    return known


def by_importance(pods: Iterable[PodInfo]) -> list[PodInfo]:
    """Those that are to stay first, without a look at budgets."""
    return sorted(pods, key=lambda pod: (is_terminating(pod.pod), pod.tier is Tier.BE, -pod.priority, started(pod)))


def protected_first(pods: Sequence[PodInfo], violating: Collection[str]) -> Sequence[PodInfo]:
    """`pods`, which are in the order of `by_importance`, with those first in their tier that a budget protects."""
    if not violating:
        return pods
    return sorted(pods, key=lambda pod: (is_terminating(pod.pod), pod.tier is Tier.BE, pod.uid not in violating))


def victims_of(pods: Iterable[PodInfo], violating: Collection[str]) -> Victims:
    """`pods` as victims, the most important first."""
    chosen = tuple(by_importance(pods))
    return Victims(chosen, sum(pod.uid in violating and not is_terminating(pod.pod) for pod in chosen))


def rank(victims: Victims) -> Rank:
    """How bad it is to remove `victims`.

    In order: whether others than best-effort pods go; violated budgets; highest priority; sum of priorities; number;
    earliest start among those of the highest priority, of which the latest is best.
    """
    staying = [pod for pod in victims.pods if not is_terminating(pod.pod)]
    if not staying:
        return (False, victims.pdb_violations, -_SHIFT - 1, 0, 0, -math.inf)
    highest = max(pod.priority for pod in staying)
    return (
        any(pod.tier is not Tier.BE for pod in staying),
        victims.pdb_violations,
        highest,
        sum(pod.priority + _SHIFT for pod in staying),
        len(staying),
        -min(started(pod) for pod in staying if pod.priority == highest),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that the pod would fit once `victims` are gone."""

    node: str
    victims: Victims


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The one that costs least; of equal ones the first."""
    return min(candidates, key=lambda one: rank(one.victims))
