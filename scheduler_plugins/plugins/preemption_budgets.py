"""Disruption budgets, as a preemption looks at them: which pods of a node go beyond what a budget allows.

Budgets are respected where others can go instead; they do not stop a preemption. A budget without selector, or with an
empty one, is about nobody, and so is every budget about a pod without labels.
Source: kubernetes pkg/scheduler/framework/plugins/defaultpreemption (filterPodsWithPDBViolation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from scheduler_plugins.framework.interfaces import ObjectStore
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.plugins.derived import Derived
from scheduler_plugins.plugins.label_selectors import NOBODY, Selector, selector_from
from slacktide.cluster.kinds import PDBS, PodDisruptionBudget

_NONE: Final[frozenset[str]] = frozenset()


class _Budget(msgspec.Struct, frozen=True):
    """How many pods may still go, and the names of those that are known to be going: they are counted already."""

    name: tuple[str, str]
    selector: Selector
    allowed: int
    going: Collection[str]


def _by_namespace(budgets: Sequence[PodDisruptionBudget]) -> Mapping[str, Sequence[_Budget]]:
    found: dict[str, list[_Budget]] = {}
    for one in budgets:
        selector = _selector(one)
        if not selector.nobody and not selector.everybody:
            meta, status = one.metadata, one.status
            budget = _Budget((meta.namespace, meta.name), selector, status.disruptions_allowed, status.disrupted_pods)
            found.setdefault(meta.namespace, []).append(budget)
    return found


def _selector(budget: PodDisruptionBudget) -> Selector:
    given = budget.spec.selector
    if given is None:
        return NOBODY
    try:
        return selector_from(given.match_labels, given.match_expressions)
    except msgspec.ValidationError:
        # The API would not admit it; what cannot be read protects nobody, as in the stock scheduler.
        return NOBODY


class Budgets:
    """All budgets of the cluster, by namespace."""

    def __init__(self) -> None:
        self._budgets = Derived(PDBS, _by_namespace)

    def now(self, objects: ObjectStore) -> BudgetBook:
        """As they stand."""
        return BudgetBook(self._budgets.of(objects))


class BudgetBook:
    """What the budgets allow at one moment."""

    def __init__(self, by_namespace: Mapping[str, Sequence[_Budget]]) -> None:
        self._by_namespace = by_namespace

    def violating(self, pods: Iterable[PodInfo]) -> Collection[str]:
        """Uids of those of `pods`, which go one after the other, that a budget does not allow to go."""
        if not self._by_namespace:
            return _NONE
        found: set[str] = set()
        used: dict[tuple[str, str], int] = {}
        for pod in pods:
            meta = pod.pod.metadata
            for budget in self._by_namespace.get(meta.namespace, ()) if meta.labels else ():
                if meta.name in budget.going or not budget.selector.selects(meta.labels):
                    continue
                used[budget.name] = used.get(budget.name, 0) + 1
                if used[budget.name] > budget.allowed:
                    found.add(pod.uid)
        return found
