"""Label selectors, compiled: equal ones are equal and hash alike, so that what is counted for one serves all.

A selector of thousands of pods of one template is kept once. Source: meta/v1 LabelSelector (In, NotIn, Exists,
DoesNotExist; a missing selector is about nobody, an empty one about everybody).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

import msgspec

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.objects import View, is_terminating

V = TypeVar("V")

_MOST_SHARED: Final = 1 << 16


@lru_cache(maxsize=_MOST_SHARED)
def _first_like(value: Any) -> Any:
    return value


def shared(value: V) -> V:
    """The first value that equals this one: equal values of many pods then cost memory once."""
    same: V = _first_like(value)
    return same


class Expression(View, frozen=True):
    """One expression over a label, as the API has it."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class LabelSelector(View, frozen=True):
    """A label selector, as the API has it."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Expression, ...] = ()

    def compiled(self) -> Selector:
        """The same selector, ready to be asked."""
        return _compiled(
            tuple(sorted(self.match_labels.items())),
            tuple((one.key, one.operator, one.values) for one in self.match_expressions),
        )


class _Rule(msgspec.Struct, frozen=True, order=True):
    """One expression; `values` are sorted."""

    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """NotIn holds for a label that is absent."""
        value = labels.get(self.key)
        operator = self.operator
        if operator == "In":
            return value is not None and value in self.values
        if operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) == (operator == "Exists")


class Selector(msgspec.Struct, frozen=True, cache_hash=True):
    """A compiled selector: labels that must be exactly so (sorted), and further rules (sorted)."""

    pairs: tuple[tuple[str, str], ...] = ()
    rules: tuple[_Rule, ...] = ()
    nobody: bool = False

    @property
    def everybody(self) -> bool:
        """Whether it selects whatever labels there are."""
        return not (self.pairs or self.rules or self.nobody)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels are selected."""
        for key, value in self.pairs:
            if labels.get(key) != value:
                return False
        for rule in self.rules:
            if not rule.holds(labels):
                return False
        return not self.nobody

    def also(self, pairs: Mapping[str, str]) -> Selector:
        """What this one selects, of pods that have these labels too."""
        if not pairs or self.nobody:
            return self
        return shared(Selector(tuple(sorted({*self.pairs, *pairs.items()})), self.rules))

    def both(self, other: Selector) -> Selector:
        """What this one and `other` select alike."""
        pairs = tuple(sorted({*self.pairs, *other.pairs}))
        rules = tuple(sorted({*self.rules, *other.rules}))
        return shared(Selector(pairs, rules, self.nobody or other.nobody))


NOBODY: Final = Selector(nobody=True)
EVERYBODY: Final = Selector()


@lru_cache(maxsize=_MOST_SHARED)
def _compiled(pairs: tuple[tuple[str, str], ...], rules: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Selector:
    exact, others = set(pairs), set()
    for key, operator, values in rules:
        if operator == "In" and len(values) == 1:
            exact.add((key, values[0]))
        else:
            others.add(_Rule(key, operator, tuple(sorted(set(values)))))
    return shared(Selector(tuple(sorted(exact)), tuple(sorted(others))))


def compile_selector(selector: LabelSelector | None) -> Selector:
    """A missing selector selects nobody."""
    return NOBODY if selector is None else selector.compiled()


def selector_from(match_labels: Mapping[str, str], match_expressions: Sequence[Mapping[str, Any]] = ()) -> Selector:
    """A selector from its two raw parts, such as `slacktide.cluster.kinds.LabelSelector` has them.

    Raises msgspec.ValidationError for expressions that are none.
    """
    expressions = msgspec.convert(list(match_expressions), tuple[Expression, ...])
    return LabelSelector(match_labels=dict(match_labels), match_expressions=expressions).compiled()


class PodGroup(msgspec.Struct, frozen=True, cache_hash=True):
    """Pods that `selector` selects in `namespaces` (None: in all); a matcher for `Snapshot.pods_matching`.

    `staying_only` leaves out pods whose deletion has begun.
    """

    selector: Selector
    namespaces: frozenset[str] | None
    staying_only: bool = False

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod belongs to the group."""
        return self.selects(pod) and not (self.staying_only and is_terminating(pod.pod))

    def selects(self, pod: PodInfo) -> bool:
        """Whether the pod belongs to the group by labels and namespace."""
        metadata = pod.pod.metadata
        if self.namespaces is not None and metadata.namespace not in self.namespaces:
            return False
        return self.selector.selects(metadata.labels)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Labels that every pod of the group has."""
        return self.selector.pairs


class InAll(msgspec.Struct, frozen=True, cache_hash=True):
    """Pods that belong to every one of some groups."""

    groups: tuple[PodGroup, ...]

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod belongs to all groups; no pod belongs to none at all."""
        return bool(self.groups) and all(group.matches(pod) for group in self.groups)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Labels that every such pod has."""
        return tuple(pair for group in self.groups for pair in group.pairs)
