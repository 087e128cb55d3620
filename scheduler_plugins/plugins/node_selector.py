"""Node selectors: the typed form of nodeSelector and node affinity, and which nodes match.

Terms of a selector are alternatives; inside one, all expressions and fields must hold. An empty required term matches
nothing, an empty preferred one everything. An expression that the API would not admit (In without values, Gt with a
word) makes its term match nothing.
Source: core/v1 NodeSelector; component-helpers scheduling/corev1/nodeaffinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal

import msgspec
import numpy as np

from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Bools, Indices, Ints, Snapshot
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.whole_numbers import whole_number
from slacktide.objects import Node, View

_MEMO: Final = "NodeAffinity/wanted"
_NAME: Final = "metadata.name"

FEW: Final = 16
"""Up to so many nodes it is cheaper to look at each than at columns."""


class Requirement(View, frozen=True):
    """One expression over a label, or over a field (only metadata.name exists). Hashable."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Why the API would not admit it; empty when it would."""
        match self.operator:
            case "In" | "NotIn":
                return "" if self.values else f"{self.operator} needs values"
            case "Exists" | "DoesNotExist":
                return f"{self.operator} takes no values" if self.values else ""
            case operator:
                whole = len(self.values) == 1 and whole_number(self.values[0]) is not None
                return "" if whole else f"{operator} takes one whole number"


class Term(View, frozen=True):
    """All of it must hold."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not self.match_expressions and not self.match_fields

    @property
    def can_match(self) -> bool:
        """Whether any node can have it, as a required term."""
        return not self.empty and not self.problems()

    def problems(self) -> list[str]:
        """What about it the API would not admit."""
        given = (*self.match_expressions, *self.match_fields)
        found = [f"{requirement.key}: {requirement.problem}" for requirement in given if requirement.problem]
        found += [f"field {field.key} does not exist" for field in self.match_fields if field.key != _NAME]
        strange = (field for field in self.match_fields if field.operator not in ("In", "NotIn"))
        return found + [f"field {field.key}: {field.operator} is not for fields" for field in strange]

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether a node with these labels and this name has all of it; an empty term matches."""
        fields = {_NAME: name}
        return all(holds(r, labels) for r in self.match_expressions) and all(
            holds(r, fields) for r in self.match_fields
        )


class Selector(View, frozen=True):
    """Any of the terms must hold; no terms match nothing."""

    node_selector_terms: tuple[Term, ...] = ()


class Preferred(View, frozen=True):
    """Nodes of the term are worth `weight` more, 1 to 100."""

    weight: int = 0
    preference: Term = Term()


class NodeAffinityTerms(View, frozen=True):
    """nodeAffinity of a pod, or what a profile adds to every pod's."""

    required_during_scheduling_ignored_during_execution: Selector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[Preferred, ...] = ()

    def problems(self) -> list[str]:
        """What about it the API would not admit."""
        required = self.required_during_scheduling_ignored_during_execution
        terms = required.node_selector_terms if required is not None else ()
        preferred = self.preferred_during_scheduling_ignored_during_execution
        found = ["a required term is empty and matches no node" for term in terms if term.empty]
        found += [problem for term in terms for problem in term.problems()]
        found += [problem for one in preferred for problem in one.preference.problems()]
        return found + [f"weight {one.weight} is not 1 to 100" for one in preferred if not 1 <= one.weight <= 100]


class _Affinity(View, frozen=True):
    node_affinity: NodeAffinityTerms | None = None


class Wanted(msgspec.Struct, frozen=True):
    """What a pod wants of its node. Required: `labels` (from nodeSelector) and one of `terms`; None asks nothing.

    Terms that no node can have are left out.
    """

    labels: tuple[Requirement, ...] = ()
    terms: tuple[Term, ...] | None = None
    preferred: tuple[Preferred, ...] = ()

    @classmethod
    def of(cls, affinity: NodeAffinityTerms | None, labels: Mapping[str, str] | None = None) -> Wanted:
        """From a nodeAffinity and a nodeSelector."""
        affinity = affinity or NodeAffinityTerms()
        required = affinity.required_during_scheduling_ignored_during_execution
        preferred = affinity.preferred_during_scheduling_ignored_during_execution
        return cls(
            tuple(Requirement(key=key, operator="In", values=(value,)) for key, value in (labels or {}).items()),
            None if required is None else tuple(t for t in required.node_selector_terms if t.can_match),
            tuple(one for one in preferred if one.weight and not one.preference.problems()),
        )

    @property
    def nothing(self) -> bool:
        """Whether every node will do."""
        return not self.labels and self.terms is None

    def matches(self, node: Node) -> bool:
        """Whether `node` has the labels and one of the terms."""
        labels, name = node.metadata.labels, node.metadata.name
        return all(holds(r, labels) for r in self.labels) and (
            self.terms is None or any(term.matches(labels, name) for term in self.terms)
        )

    def worth(self, node: Node) -> int:
        """Sum of the weights of the preferred terms that `node` has."""
        labels, name = node.metadata.labels, node.metadata.name
        return sum(one.weight for one in self.preferred if one.preference.matches(labels, name))

    def node_names(self) -> frozenset[str] | None:
        """Names that the fields of the terms leave; None when some term does not restrict the name."""
        if not self.terms:
            return None
        union: set[str] = set()
        for term in self.terms:
            names = _term_names(term)
            if names is None:
                return None
            union |= names
        return frozenset(union)


def wanted(pod: PodInfo) -> Wanted:
    """nodeSelector and node affinity of `pod`, read once. Raises msgspec.ValidationError for a malformed affinity."""
    known: Wanted | None = pod.memo.get(_MEMO)
    if known is None:
        spec = pod.pod.spec
        affinity = msgspec.convert(spec.affinity, _Affinity).node_affinity if spec.affinity else None
        known = pod.memo[_MEMO] = Wanted.of(affinity, spec.node_selector)
    return known


def matching_rows(wanted: Wanted, snapshot: Snapshot, rows: Indices, judged: Judgements) -> Bools:
    """`Wanted.matches` of the nodes `rows`; a few are asked one by one."""
    if len(rows) > FEW:
        return matching(wanted, snapshot, judged).take(rows)
    nodes = (snapshot.nodes[row].node for row in rows)
    return np.fromiter((node is not None and wanted.matches(node) for node in nodes), np.bool_, len(rows))


def matching(wanted: Wanted, snapshot: Snapshot, judged: Judgements) -> Bools:
    """`Wanted.matches` of all nodes at once, one flag a row."""
    result = _all_hold(wanted.labels, snapshot, judged)
    if wanted.terms is None:
        return result
    any_term = np.zeros(len(snapshot), dtype=np.bool_)
    for term in wanted.terms:
        any_term |= _having(term, snapshot, judged)
    return result & any_term


def worth(wanted: Wanted, snapshot: Snapshot, judged: Judgements) -> Ints:
    """`Wanted.worth` of all nodes at once, one sum a row."""
    result = np.zeros(len(snapshot), dtype=np.int64)
    for one in wanted.preferred:
        result += one.weight * _having(one.preference, snapshot, judged)
    return result


def _having(term: Term, snapshot: Snapshot, judged: Judgements) -> Bools:
    result = _all_hold(term.match_expressions, snapshot, judged)
    for field in term.match_fields:
        result &= _named(field, snapshot)
    return result


def _all_hold(requirements: Sequence[Requirement], snapshot: Snapshot, judged: Judgements) -> Bools:
    result: Bools | None = None
    for requirement in requirements:
        here = _holding(requirement, snapshot, judged)
        result = here if result is None else result & here
    return np.ones(len(snapshot), dtype=np.bool_) if result is None else result


def _holding(requirement: Requirement, snapshot: Snapshot, judged: Judgements) -> Bools:
    ids, values = snapshot.label(requirement.key)
    column, negated = f"label/{requirement.key}", requirement.operator == "NotIn"
    if not negated and requirement.operator != "In":
        answers = judged.of(column, values, requirement, partial(_value_holds, requirement))
        holding: Bools = answers.take(ids)
        return holding
    # Names of nodes are labels too: a value is looked up, rather than all values compared with it.
    numbers = judged.find(column, values, requirement.values)
    if len(numbers) == 1:
        same: Bools = ids == numbers[0]
        return ~same if negated else same
    flags = np.full(len(values), negated, dtype=np.bool_)
    flags[numbers] = not negated
    return flags.take(ids)


def _named(field: Requirement, snapshot: Snapshot) -> Bools:
    result = np.full(len(snapshot), field.operator == "NotIn", dtype=np.bool_)
    rows = [snapshot.index[name] for name in field.values if name in snapshot.index]
    result[rows] = field.operator == "In"
    return result


def _term_names(term: Term) -> set[str] | None:
    names: set[str] | None = None
    for field in term.match_fields:
        if field.key == _NAME and field.operator == "In":
            names = set(field.values) if names is None else names & set(field.values)
    return names


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether one expression holds. NotIn holds for a label that is absent; Gt and Lt compare whole numbers."""
    return _value_holds(requirement, labels.get(requirement.key))


def _value_holds(requirement: Requirement, value: str | None) -> bool:
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


def _compares(operator: str, value: str | None, values: Sequence[str]) -> bool:
    if value is None or len(values) != 1:
        return False
    given, limit = whole_number(value), whole_number(values[0])
    if given is None or limit is None:
        return False
    return given > limit if operator == "Gt" else given < limit
