"""Node selectors: the typed form of required node affinity, and whether a node matches.

Source: core/v1 NodeSelector. Terms are alternatives; inside one, all expressions and fields must hold, and an empty
term matches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from slacktide.objects import Node, Pod, View


class Requirement(View, frozen=True):
    """One expression over a label, or over a field (only metadata.name exists)."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] = msgspec.field(default_factory=list)


class Term(View, frozen=True):
    """All of it must hold."""

    match_expressions: list[Requirement] = msgspec.field(default_factory=list)
    match_fields: list[Requirement] = msgspec.field(default_factory=list)


class Selector(View, frozen=True):
    """Any of the terms must hold; no terms match nothing."""

    node_selector_terms: list[Term] = msgspec.field(default_factory=list)


class _NodeAffinity(View, frozen=True):
    required_during_scheduling_ignored_during_execution: Selector | None = None


class _Affinity(View, frozen=True):
    node_affinity: _NodeAffinity | None = None


class Wanted(msgspec.Struct, frozen=True):
    """What a pod requires of its node: exact labels, and a selector."""

    labels: Mapping[str, str]
    selector: Selector | None

    @property
    def nothing(self) -> bool:
        """Whether every node will do."""
        return not self.labels and self.selector is None

    def matches(self, node: Node) -> bool:
        """Whether `node` has the labels and one term of the selector."""
        labels = node.metadata.labels
        if any(labels.get(key) != value for key, value in self.labels.items()):
            return False
        return self.selector is None or any(_term_matches(t, node) for t in self.selector.node_selector_terms)

    def node_names(self) -> frozenset[str] | None:
        """Names that the fields of the selector leave; None when some term does not restrict the name."""
        if self.selector is None:
            return None
        union: set[str] = set()
        for term in self.selector.node_selector_terms:
            names = _term_names(term)
            if names is None:
                return None
            union |= names
        return frozenset(union)


def wanted(pod: Pod) -> Wanted:
    """nodeSelector and required node affinity of `pod`. Raises msgspec.ValidationError for a malformed affinity."""
    affinity = _read(pod.spec.affinity)
    node_affinity = affinity.node_affinity if affinity is not None else None
    selector = node_affinity.required_during_scheduling_ignored_during_execution if node_affinity is not None else None
    return Wanted(pod.spec.node_selector, selector)


def _read(affinity: dict[str, Any] | None) -> _Affinity | None:
    return msgspec.convert(affinity, _Affinity) if affinity else None


def _term_names(term: Term) -> set[str] | None:
    names: set[str] | None = None
    for field in term.match_fields:
        if field.key == "metadata.name" and field.operator == "In":
            names = set(field.values) if names is None else names & set(field.values)
    return names


def _term_matches(term: Term, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(holds(r, node.metadata.labels) for r in term.match_expressions) and all(
        holds(r, fields) for r in term.match_fields
    )


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether one expression holds. NotIn holds for a label that is absent; Gt and Lt compare whole numbers."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            return _compares(operator, value, requirement.values)


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    if value is None or len(values) != 1:
        return False
    try:
        given, limit = int(value), int(values[0])
    except ValueError:
        return False
    return given > limit if operator == "Gt" else given < limit
