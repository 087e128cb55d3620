"""Topology spread constraints, compiled once a pod. Source: core/v1 TopologySpreadConstraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.plugins.label_selectors import LabelSelector, PodGroup, Selector, compile_selector
from slacktide.objects import View

_MEMO: Final = "PodTopologySpread/constraints"

Policy = Literal["Honor", "Ignore"]


class RawConstraint(View, frozen=True):
    """One constraint as the API has it."""

    max_skew: Annotated[int, Meta(ge=1)] = 1
    topology_key: str = ""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: Annotated[int, Meta(ge=1)] | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: Policy | None = None
    node_taints_policy: Policy | None = None


class Constraint(msgspec.Struct, frozen=True, cache_hash=True):
    """One constraint of one pod: at most `max_skew` apart, over the domains of `key`.

    `group` are the pods that count; `counts_itself` whether the pod will be one of them.
    """

    hard: bool
    max_skew: int
    key: str
    group: PodGroup
    counts_itself: bool
    min_domains: int
    honor_affinity: bool
    honor_taints: bool

    @property
    def counts_nobody(self) -> bool:
        """An empty selector counts nobody, as in the stock scheduler."""
        return self.group.selector.everybody

    def counts(self, pod: PodInfo) -> bool:
        """Whether a placed pod counts."""
        return not self.counts_nobody and self.group.matches(pod)

    def selects(self, pod: PodInfo) -> bool:
        """Whether a placed pod counts, or did until its deletion began."""
        return not self.counts_nobody and self.group.selects(pod)


def constraint_of(pod: PodInfo, raw: RawConstraint, selector: Selector | None = None) -> Constraint:
    """A constraint as it binds `pod`; `selector` stands in for the constraint's own."""
    metadata = pod.pod.metadata
    if selector is None:
        selector = compile_selector(raw.label_selector).also(_own(metadata.labels, raw.match_label_keys))
    return Constraint(
        hard=raw.when_unsatisfiable == "DoNotSchedule",
        max_skew=raw.max_skew,
        key=raw.topology_key,
        group=PodGroup(selector, frozenset({metadata.namespace}), staying_only=True),
        counts_itself=selector.selects(metadata.labels),
        min_domains=raw.min_domains or 1,
        honor_affinity=raw.node_affinity_policy != "Ignore",
        honor_taints=raw.node_taints_policy == "Honor",
    )


def _own(labels: Mapping[str, str], keys: tuple[str, ...]) -> Mapping[str, str]:
    return {key: labels[key] for key in keys if key in labels}


def constraints_of(pod: PodInfo) -> tuple[Constraint, ...]:
    """What the pod itself asks for. Raises msgspec.ValidationError for malformed constraints."""
    given = pod.pod.spec.topology_spread_constraints
    if not given:
        return ()
    known: tuple[Constraint, ...] | None = pod.memo.get(_MEMO)
    if known is None:
        raw = msgspec.convert(given, tuple[RawConstraint, ...])
        known = pod.memo[_MEMO] = tuple(constraint_of(pod, one) for one in raw)
    return known
