"""Syntax of names, label keys and label values. Source: apimachinery pkg/util/validation."""

from __future__ import annotations

import re
from typing import Final

from standalone.api.errors import Cause, invalid_value

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

_LABEL_MESSAGE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    f"'{_LABEL}')"
)
_SUBDOMAIN_MESSAGE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_QUALIFIED_MESSAGE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_QUALIFIED}')"
)
_VALUE_MESSAGE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_QUALIFIED})?')"
)


def label_problems(value: str) -> list[str]:
    """What keeps `value` from being an RFC 1123 label (at most 63 characters)."""
    problems = [] if len(value) <= 63 else ["must be no more than 63 characters"]
    return problems if re.fullmatch(_LABEL, value) else [*problems, _LABEL_MESSAGE]


def subdomain_problems(value: str) -> list[str]:
    """What keeps `value` from being an RFC 1123 subdomain (at most 253 characters)."""
    problems = [] if len(value) <= 253 else ["must be no more than 253 characters"]
    return problems if re.fullmatch(_SUBDOMAIN, value) else [*problems, _SUBDOMAIN_MESSAGE]


def qualified_problems(value: str) -> list[str]:
    """What keeps `value` from being a qualified name such as a label key (`prefix/name`, the prefix optional)."""
    prefix, slash, name = value.rpartition("/")
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {problem}" for problem in subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 characters")
    if not re.fullmatch(_QUALIFIED, name):
        problems.append(_QUALIFIED_MESSAGE)
    return problems


def label_causes(labels: dict[str, str], path: str) -> list[Cause]:
    """One cause for each label whose key or value is no label's."""
    causes = [invalid_value(path, key, problem) for key in labels for problem in qualified_problems(key)]
    for value in labels.values():
        if len(value) > 63:
            causes.append(invalid_value(path, value, "must be no more than 63 characters"))
        elif value and not re.fullmatch(_QUALIFIED, value):
            causes.append(invalid_value(path, value, _VALUE_MESSAGE))
    return causes
