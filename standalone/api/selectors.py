"""Label and field selectors: parsing, and matching against what an object shows of itself.

Source: apimachinery pkg/labels, pkg/fields (grammar), core/v1 conversion (field labels of each kind).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from standalone.api.errors import bad_request
from standalone.api.kinds import EVENTS, NAMESPACES, NODES, PODS, Kind

_TOKEN: Final = re.compile(r"\s*(?:(?P<op>==|=|!=|!|,|\(|\)|>|<)|(?P<word>[^\s,()=!<>]+))")


@dataclass(frozen=True)
class Requirement:
    """One term: `operator` is in, notin, exists, absent, gt or lt; `values` is empty for exists and absent."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy the term; `notin` holds for an absent key, gt and lt need an integer label."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        bound = int(next(iter(self.values)))
        try:
            number = int(value or "")
        except ValueError:
            return False
        return number > bound if self.operator == "gt" else number < bound


@dataclass(frozen=True)
class Attributes:
    """What selectors look at: labels, and the selectable fields of the kind by their dotted label."""

    labels: Mapping[str, str]
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Selector:
    """Label terms and field terms (key, value, wanted equal); all must hold. An empty one matches everything."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[tuple[str, str, bool], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is selected away."""
        return not self.labels and not self.fields

    def matches(self, of: Attributes) -> bool:
        """Whether an object with these attributes is selected."""
        return all(term.matches(of.labels) for term in self.labels) and all(
            (of.fields.get(key, "") == value) is equal for key, value, equal in self.fields
        )


EVERYTHING: Final = Selector()


def parse(kind: Kind, labels: str, fields: str) -> Selector:
    """Selector of the two query parameters; ApiError 400 for bad syntax or a field that the kind does not offer."""
    try:
        terms = parse_labels(labels)
    except ValueError as problem:
        raise bad_request(f'unable to parse requirement: {problem} in label selector "{labels}"') from None
    return Selector(terms, _parse_fields(kind, fields, labels))


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Terms of a label selector such as `a=b,c!=d,e in (f,g),!h,i`; ValueError says what is wrong."""
    tokens = _tokens(text)
    terms: list[Requirement] = []
    while tokens:
        terms.append(_term(tokens))
        if tokens:
            separator = tokens.pop(0)
            if separator != ",":
                raise ValueError(f"found '{separator}', expected: ',' or end of text")
            if not tokens:
                raise ValueError("found '', expected: a term after ','")
    return tuple(terms)


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"unexpected character at {position}")
        found.append(match.group("op") or match.group("word"))
        position = match.end()
    return found


def _term(tokens: list[str]) -> Requirement:
    first = tokens.pop(0)
    if first == "!":
        return Requirement(_word(tokens), "absent")
    key = _word([first])
    if not tokens or tokens[0] == ",":
        return Requirement(key, "exists")
    operator = tokens.pop(0)
    match operator:
        case "=" | "==" | "!=":
            value = tokens.pop(0) if tokens and tokens[0] != "," else ""
            return Requirement(key, "notin" if operator == "!=" else "in", frozenset({_word([value]) if value else ""}))
        case ">" | "<":
            bound = _word(tokens)
            int(bound)
            return Requirement(key, "gt" if operator == ">" else "lt", frozenset({bound}))
        case "in" | "notin":
            return Requirement(key, operator, _set(tokens))
    raise ValueError(f"found '{operator}', expected: in, notin, =, ==, !=, >, <")


def _set(tokens: list[str]) -> frozenset[str]:
    if not tokens or tokens.pop(0) != "(":
        raise ValueError("expected: '(' after in or notin")
    values: set[str] = set()
    expect_value = True
    while tokens:
        found = tokens.pop(0)
        if found == ")":
            return frozenset(values | ({""} if expect_value else set()))
        if found == ",":
            if expect_value:
                values.add("")
            expect_value = True
        else:
            values.add(_word([found]))
            expect_value = False
    raise ValueError("expected: ')' that closes the set")


def _word(tokens: list[str]) -> str:
    if (
        not tokens
        or _TOKEN.fullmatch(tokens[0]) is None
        or tokens[0] in {"=", "==", "!=", "!", ",", "(", ")", ">", "<"}
    ):
        raise ValueError(f"found '{tokens[0] if tokens else ''}', expected: identifier")
    return tokens.pop(0)


def _parse_fields(kind: Kind, text: str, labels: str) -> tuple[tuple[str, str, bool], ...]:
    offered = FIELDS.get(kind.resource, frozenset()) | {"metadata.name", "metadata.namespace"}
    terms = []
    for part in filter(None, _split_unescaped(text)):
        match = re.fullmatch(r"((?:[^=!\\]|\\.)+?)(!=|==|=)((?:[^=\\]|\\.)*)", part.strip(), re.DOTALL)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        key, operator, value = match.groups()
        if key not in offered:
            where = f"{kind.group}/{kind.version}, Resource={kind.resource}"
            raise bad_request(
                f'Unable to find "{where}" that match label selector "{labels}", field selector "{text}": '
                f"field label not supported: {key}"
            )
        terms.append((key, re.sub(r"\\(.)", r"\1", value), operator != "!="))
    return tuple(terms)


def _split_unescaped(text: str) -> list[str]:
    return [part.group() for part in re.finditer(r"(?:[^,\\]|\\.)+", text, re.DOTALL)]


def of_label_selector(selector: Mapping[str, Any] | None) -> Callable[[Mapping[str, str]], bool]:
    """Matcher of a LabelSelector object (matchLabels, matchExpressions): none selects nothing, empty everything."""
    if selector is None:
        return lambda _labels: False
    terms = [Requirement(key, "in", frozenset({value})) for key, value in (selector.get("matchLabels") or {}).items()]
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    for expression in selector.get("matchExpressions") or ():
        operator = operators.get(expression.get("operator", ""))
        if operator is None:
            return lambda _labels: False
        terms.append(Requirement(expression["key"], operator, frozenset(expression.get("values") or ())))
    return lambda labels: all(term.matches(labels) for term in terms)


FIELDS: Final[Mapping[str, frozenset[str]]] = {
    PODS.resource: frozenset(
        {
            "spec.nodeName",
            "spec.schedulerName",
            "spec.restartPolicy",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    NODES.resource: frozenset({"spec.unschedulable"}),
    NAMESPACES.resource: frozenset({"status.phase", "name"}),
    EVENTS.resource: frozenset(
        {
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        }
    ),
}
"""Selectable fields of each kind beside metadata.name and metadata.namespace."""


def attributes(resource: str, obj: Mapping[str, Any]) -> Attributes:
    """Attributes of a decoded object; an absent field reads as "", an absent boolean as "false"."""
    metadata = obj.get("metadata") or {}
    fields = {"metadata.name": metadata.get("name", ""), "metadata.namespace": metadata.get("namespace", "")}
    for label in FIELDS.get(resource, ()):
        fields[label] = _field(obj, label)
    return Attributes(metadata.get("labels") or {}, fields)


def _field(obj: Mapping[str, Any], label: str) -> str:
    if label == "name":
        return str((obj.get("metadata") or {}).get("name", ""))
    if label == "source":
        return str((obj.get("source") or {}).get("component", "") or obj.get("reportingComponent", ""))
    value: Any = obj
    for part in label.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if label in {"spec.unschedulable", "spec.hostNetwork"}:
        return "true" if value else "false"
    return "" if value is None else str(value)
