"""InterPodAffinity: keeps pods away from those that were placed with a required anti-affinity against them.

Judges the rules of pods that are already placed. A pod that itself asks for required pod affinity or anti-affinity is
refused by UnsupportedPods. A namespace selector is taken to match, because namespaces are not watched: too strict
leaves a pod waiting, too lax breaks the promise made to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, NodeFilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.snapshot import Column, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Status, unschedulable
from scheduler_plugins.plugins.hints import pod_of
from scheduler_plugins.plugins.node_selector import Requirement, holds
from slacktide.objects import View

Domain = tuple[str, str]
"""Topology key and value."""

_CLOSED: Final = StateKey[frozenset[Domain]]("InterPodAffinity/closed")
_COLUMN: Final = "InterPodAffinity/placed"
_REFUSAL: Final = unschedulable("node(s) didn't satisfy existing pods anti-affinity rules")


class LabelSelector(View, frozen=True):
    """Labels that must all hold; an empty one selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: list[Requirement] = msgspec.field(default_factory=list)

    def selects(self, labels: dict[str, str]) -> bool:
        """Whether these labels are selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            holds(requirement, labels) for requirement in self.match_expressions
        )


class AffinityTerm(View, frozen=True):
    """One required term: pods selected in these namespaces, and the key that says what near means."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] = msgspec.field(default_factory=list)
    namespace_selector: dict[str, Any] | None = None

    def matches(self, owner: PodInfo, other: PodInfo) -> bool:
        """Whether the term of `owner` is about `other`; a missing selector is about nobody."""
        if self.label_selector is None or not self.label_selector.selects(other.pod.metadata.labels):
            return False
        if self.namespace_selector is not None:
            return True
        return other.pod.metadata.namespace in (self.namespaces or [owner.pod.metadata.namespace])


class _AntiAffinity(View, frozen=True):
    required_during_scheduling_ignored_during_execution: list[AffinityTerm] = msgspec.field(default_factory=list)


class _Affinity(View, frozen=True):
    pod_anti_affinity: _AntiAffinity | None = None


def _claims(pod: PodInfo) -> bool:
    """Whether the pod may have a required anti-affinity; the terms are read only when they are needed."""
    return bool(pod.pod.spec.affinity and pod.pod.spec.affinity.get("podAntiAffinity"))


def anti_affinity(pod: PodInfo) -> list[AffinityTerm]:
    """Required anti-affinity terms of a pod. Raises msgspec.ValidationError for malformed ones."""
    if not _claims(pod):
        return []
    affinity = msgspec.convert(pod.pod.spec.affinity, _Affinity).pod_anti_affinity
    return [] if affinity is None else affinity.required_during_scheduling_ignored_during_execution


class InterPodAffinity(PreFilterPlugin, NodeFilterPlugin, EnqueueExtensions):
    """Closes the topology domains in which a placed pod does not want the new one."""

    name = "InterPodAffinity"

    def columns(self) -> Sequence[Column]:
        """How many pods of each node have such a rule."""
        return (Column(_COLUMN, "int64", lambda node: sum(1 for pod in node.pods.values() if _claims(pod))),)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip when no placed pod minds this one."""
        closed = frozenset(
            domain for row in np.flatnonzero(snapshot.column(_COLUMN)) for domain in _minding(snapshot.nodes[row], pod)
        )
        if not closed:
            return PreFilterResult(SKIP)
        state.write(_CLOSED, closed)
        return PreFilterResult()

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Refuses nodes of a closed domain."""
        labels = node.labels
        return _REFUSAL if any(labels.get(key) == value for key, value in state.read(_CLOSED)) else SUCCESS

    def events_to_register(self) -> Sequence[Registration]:
        """The pod that minds goes, labels change, or a node comes or changes its domain."""
        return (
            Registration(ClusterEvent(POD, Action.DELETE), self._gone),
            Registration(ClusterEvent(POD, Action.UPDATE_POD_LABEL)),
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
        )

    @staticmethod
    def _gone(pod: PodInfo, old: Any, _new: Any) -> Hint:
        owner = pod_of(old)
        return Hint.QUEUE if any(term.matches(owner, pod) for term in anti_affinity(owner)) else Hint.SKIP


def _minding(node: NodeInfo, pod: PodInfo) -> set[Domain]:
    """Domains of `node` that its pods close for `pod`."""
    labels = node.labels
    return {
        (term.topology_key, labels[term.topology_key])
        for owner in node.pods.values()
        for term in anti_affinity(owner)
        if term.topology_key in labels and term.matches(owner, pod)
    }


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(InterPodAffinity.name, lambda _args, _handle: InterPodAffinity(), NoArgs)
