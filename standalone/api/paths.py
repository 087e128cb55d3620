"""Paths of the API, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standalone.api.kinds import BY_PATH, NAMESPACES, Kind

SUBRESOURCES: Final = {
    "pods": frozenset({"status", "binding", "eviction", "log"}),
    "nodes": frozenset({"status"}),
    "namespaces": frozenset({"status"}),
    "poddisruptionbudgets": frozenset({"status"}),
}


@dataclass(frozen=True)
class Target:
    """What a path names. `namespace` is "" for cluster-wide objects and None for all namespaces of a kind; `name` is
    "" for the collection. `bindings` marks the collection of Bindings, which takes only POST."""

    kind: Kind
    namespace: str | None
    name: str = ""
    subresource: str = ""
    bindings: bool = False


def parse(path: str) -> Target | None:
    """The resource that a path names, or None when none is served there."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if not all(rest) or not rest:
        return None
    return _resource(group, version, rest)


def _resource(group: str, version: str, rest: list[str]) -> Target | None:
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in SUBRESOURCES["namespaces"]):
        namespace, rest = rest[1], rest[2:]
    if (group, rest[0]) == ("", "bindings") and namespace is not None and len(rest) == 1:
        return Target(BY_PATH["", "v1", "pods"], namespace, bindings=True)
    kind = BY_PATH.get((group, version, rest[0]))
    if kind is None or len(rest) > 3:
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    if subresource and subresource not in SUBRESOURCES.get(kind.resource, frozenset()):
        return None
    if not kind.namespaced:
        return Target(kind, "", name, subresource) if namespace is None or kind is NAMESPACES else None
    return None if name and namespace is None else Target(kind, namespace, name, subresource)
