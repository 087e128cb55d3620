"""How plugins name a kind of objects beside pods and nodes when they register for its events."""

from __future__ import annotations

from typing import Any, Final

from slacktide.cluster.kinds import Kind

_BUILT_IN_GROUPS: Final = frozenset({"", "apps", "policy"})
_BUILT_IN_DOMAIN: Final = ".k8s.io"


def event_resource(kind: Kind[Any]) -> str:
    """How plugins name a kind when they register for its events.

    `PersistentVolumeClaim`, `storage.k8s.io/StorageClass`; `plural.version.group` for kinds that are not of Kubernetes.
    """
    group, _, version = kind.api_version.rpartition("/")
    if group in _BUILT_IN_GROUPS:
        return kind.kind
    if group.endswith(_BUILT_IN_DOMAIN) and group.count(".") == _BUILT_IN_DOMAIN.count("."):
        return f"{group}/{kind.kind}"
    return f"{kind.plural}.{version}.{group}"
