"""Query parameters and DeleteOptions, read and checked."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from standalone.api import errors
from standalone.api.writes import DeleteOptions

MATCHES: Final = ("Exact", "NotOlderThan")
POLICIES: Final = ("Background", "Foreground", "Orphan")


@dataclass(frozen=True)
class Continue:
    """Where a list in pages goes on: the version it shows (-1: the newest) and the last key shown."""

    version: int
    namespace: str
    name: str

    def encoded(self) -> str:
        """As the opaque text that clients send back."""
        text = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": self.version, "start": [self.namespace, self.name]})
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def decode_continue(text: str) -> Continue:
    """The position that `encoded` wrote; ApiError 400 for any other text."""
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, name = found["start"]
        return Continue(int(found["rv"]), str(namespace), str(name))
    except (binascii.Error, msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise errors.bad_request("continue key is not valid: use the token of the previous page") from None


def integer(query: Mapping[str, str], name: str) -> int | None:
    """A whole number, or None when the parameter is absent or empty; ApiError 400 for other text."""
    text = query.get(name, "")
    if not text:
        return None
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
        raise errors.bad_request(f'{name}: Invalid value: "{text}": a whole number is needed')
    return int(text)


def boolean(query: Mapping[str, str], name: str) -> bool:
    """A flag; present without a value is true, as Go clients send it; ApiError 400 for other text."""
    text = query.get(name)
    if text is None or text in {"0", "f", "F", "false", "False", "FALSE"}:
        return False
    if text in {"", "1", "t", "T", "true", "True", "TRUE"}:
        return True
    raise errors.bad_request(f'{name}: Invalid value: "{text}": true or false is needed')


def version(query: Mapping[str, str]) -> int | None:
    """resourceVersion, None when it is not given."""
    found = query.get("resourceVersion", "")
    if found and not (found.isascii() and found.isdigit()):
        raise errors.bad_request(f'resourceVersion: Invalid value: "{found}": invalid resource version')
    return int(found) if found else None


def version_match(query: Mapping[str, str]) -> str:
    """resourceVersionMatch, "" when not given; ApiError 422 where it cannot be used."""
    match = query.get("resourceVersionMatch", "")
    if not match:
        return ""
    field, target = "resourceVersionMatch", errors.Target("meta.k8s.io", "ListOptions")
    if match not in MATCHES:
        raise errors.invalid(target, [errors.unsupported(field, match, MATCHES)])
    if query.get("continue"):
        raise errors.invalid(target, [errors.forbidden_field(field, f"{field} is forbidden when continue is provided")])
    if not query.get("resourceVersion") and not boolean(query, "sendInitialEvents"):
        why = f"{field} is forbidden unless resourceVersion is provided"
        raise errors.invalid(target, [errors.forbidden_field(field, why)])
    if match == "Exact" and query.get("resourceVersion") == "0":
        why = f'{field} "Exact" is forbidden for resourceVersion "0"'
        raise errors.invalid(target, [errors.forbidden_field(field, why)])
    return match


def dry_run(values: list[str]) -> bool:
    """Whether nothing is to be stored; ApiError 422 for anything but All."""
    wrong = [value for value in values if value != "All"]
    if wrong:
        target = errors.Target("meta.k8s.io", "CreateOptions")
        raise errors.invalid(target, [errors.unsupported("dryRun", wrong[0], ("All",))])
    return bool(values)


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _Options(msgspec.Struct, rename="camel"):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


def delete_options(body: Mapping[str, Any], query: Mapping[str, str], dry: list[str]) -> DeleteOptions:
    """Options of a DELETE from its body, or, when there is none, from the query; ApiError 400 or 422."""
    try:
        found = msgspec.convert(body, _Options)
    except msgspec.ValidationError as problem:
        raise errors.bad_request(f"DeleteOptions cannot be read: {problem}") from None
    if not body:
        found.grace_period_seconds = integer(query, "gracePeriodSeconds")
        found.propagation_policy = query.get("propagationPolicy")
    if found.propagation_policy is not None and found.propagation_policy not in POLICIES:
        cause = errors.unsupported("propagationPolicy", found.propagation_policy, POLICIES)
        raise errors.invalid(errors.Target("meta.k8s.io", "DeleteOptions"), [cause])
    conditions = found.preconditions or _Preconditions()
    return DeleteOptions(
        found.grace_period_seconds,
        conditions.uid,
        conditions.resource_version,
        dry_run([*dry, *(found.dry_run or [])]),
    )
