"""Terms of pod affinity and anti-affinity, compiled once a pod and kept once for all pods of a template.

Source: core/v1 PodAffinityTerm. Without namespaces and namespace selector a term is about its owner's namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from scheduler_plugins.framework.interfaces import ObjectStore
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.plugins.derived import Derived
from scheduler_plugins.plugins.label_selectors import (
    EVERYBODY,
    NOBODY,
    Expression,
    LabelSelector,
    PodGroup,
    Selector,
    compile_selector,
    shared,
)
from slacktide.cluster.kinds import NAMESPACES, Namespace
from slacktide.objects import View

_MEMO: Final = "InterPodAffinity/terms"
_LABEL_KEYS: Final = b"atchLabelKeys"
"""Stands in the text of terms that depend on labels of their owner (matchLabelKeys, mismatchLabelKeys)."""


class RawTerm(View, frozen=True):
    """A term as the API has it."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class _RawWeighted(View, frozen=True):
    weight: int
    pod_affinity_term: RawTerm


class RawSide(View, frozen=True):
    """podAffinity or podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: tuple[RawTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[_RawWeighted, ...] = ()


class RawAffinity(View, frozen=True):
    """What an affinity says of other pods."""

    pod_affinity: RawSide | None = None
    pod_anti_affinity: RawSide | None = None


class AffinityTerm(msgspec.Struct, frozen=True, cache_hash=True):
    """Pods that `selector` selects, in namespaces by name or by their labels, near by `topology_key`."""

    topology_key: str
    selector: Selector
    namespaces: frozenset[str]
    namespace_selector: Selector = NOBODY

    def about(self, pod: PodInfo, namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term is about `pod`, whose namespace has these labels."""
        metadata = pod.pod.metadata
        if not self.selector.selects(metadata.labels):
            return False
        return metadata.namespace in self.namespaces or self.namespace_selector.selects(namespace_labels)


class Wish(msgspec.Struct, frozen=True, cache_hash=True):
    """A preferred term, `weight` negative for anti-affinity; 0 stands for a required affinity term."""

    term: AffinityTerm
    weight: int


class PodTerms(msgspec.Struct, frozen=True, cache_hash=True):
    """All terms of one pod; `preferred` are wishes with a weight."""

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[Wish, ...] = ()

    @property
    def wishes(self) -> tuple[Wish, ...]:
        """What of it speaks for or against a node for another pod: all but the required anti-affinity."""
        return (*self.preferred, *(Wish(term, 0) for term in self.affinity)) if self.affinity else self.preferred


NO_TERMS: Final = PodTerms()


def terms_of(pod: PodInfo) -> PodTerms:
    """Terms of a pod. Raises msgspec.ValidationError for malformed ones."""
    affinity = pod.pod.spec.affinity
    if not affinity or not (affinity.get("podAffinity") or affinity.get("podAntiAffinity")):
        return NO_TERMS
    known: PodTerms | None = pod.memo.get(_MEMO)
    if known is None:
        text, metadata = msgspec.json.encode(affinity), pod.pod.metadata
        own = _LABEL_KEYS in text
        known = _compiled(text, metadata.namespace, metadata.labels) if own else _alike(text, metadata.namespace)
        pod.memo[_MEMO] = known
    return known


def placed_terms_of(pod: PodInfo) -> PodTerms:
    """Terms of a pod that is placed already; malformed ones bind nobody, and must not stop the pods that wait."""
    try:
        return terms_of(pod)
    except msgspec.ValidationError:
        return NO_TERMS


def _compiled(text: bytes, namespace: str, labels: Mapping[str, str]) -> PodTerms:
    raw = msgspec.json.decode(text, type=RawAffinity)
    near, apart = raw.pod_affinity or RawSide(), raw.pod_anti_affinity or RawSide()
    return PodTerms(
        tuple(_term(namespace, labels, term) for term in near.required_during_scheduling_ignored_during_execution),
        tuple(_term(namespace, labels, term) for term in apart.required_during_scheduling_ignored_during_execution),
        (
            *_wishes(namespace, labels, near.preferred_during_scheduling_ignored_during_execution, 1),
            *_wishes(namespace, labels, apart.preferred_during_scheduling_ignored_during_execution, -1),
        ),
    )


@lru_cache(maxsize=1 << 15)
def _alike(text: bytes, namespace: str) -> PodTerms:
    """Terms that do not depend on labels of their owner: pods of one template have one text, and are many."""
    return _compiled(text, namespace, {})


def _wishes(namespace: str, labels: Mapping[str, str], weighted: Iterable[_RawWeighted], sign: int) -> Iterable[Wish]:
    return (Wish(_term(namespace, labels, one.pod_affinity_term), sign * one.weight) for one in weighted if one.weight)


def _term(namespace: str, labels: Mapping[str, str], raw: RawTerm) -> AffinityTerm:
    own = () if raw.namespaces or raw.namespace_selector is not None else (namespace,)
    selector = compile_selector(raw.label_selector)
    if raw.match_label_keys or raw.mismatch_label_keys:
        selector = selector.both(_by_own_labels(labels, raw).compiled())
    names = frozenset((*raw.namespaces, *own))
    return shared(AffinityTerm(raw.topology_key, selector, names, compile_selector(raw.namespace_selector)))


def _by_own_labels(labels: Mapping[str, str], raw: RawTerm) -> LabelSelector:
    """What matchLabelKeys and mismatchLabelKeys add; the API server adds the same, other sources of pods do not."""
    values = [(key, (labels[key],)) for key in raw.match_label_keys if key in labels]
    others = [(key, (labels[key],)) for key in raw.mismatch_label_keys if key in labels]
    alike = (Expression(key=key, operator="In", values=value) for key, value in values)
    other = (Expression(key=key, operator="NotIn", values=value) for key, value in others)
    return LabelSelector(match_expressions=(*alike, *other))


class Namespaces:
    """Namespaces by their labels. One that is not known has no labels, as for the stock scheduler."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._selected: Derived[Namespace, dict[Selector, frozenset[str]]] = Derived(NAMESPACES, lambda _: {})

    def labels(self, name: str) -> Mapping[str, str]:
        """Labels of one namespace."""
        found = self._objects.get(NAMESPACES, "", name)
        return {} if found is None else found.metadata.labels

    def group(self, term: AffinityTerm) -> PodGroup:
        """Pods that a term is about, with the namespaces that its namespace selector selects now."""
        if term.namespace_selector == EVERYBODY:
            return PodGroup(term.selector, None)
        if term.namespace_selector.nobody:
            return PodGroup(term.selector, term.namespaces)
        return PodGroup(term.selector, term.namespaces | self._names(term.namespace_selector))

    def _names(self, selector: Selector) -> frozenset[str]:
        kept = self._selected.of(self._objects)
        names = kept.get(selector)
        if names is None:
            given = self._objects.all(NAMESPACES)
            names = kept[selector] = frozenset(
                one.metadata.name for one in given if selector.selects(one.metadata.labels)
            )
        return names
