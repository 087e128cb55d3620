"""What the scheduler and the extender may do with the Kubernetes API, and why. The chart grants this and no more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from slacktide.cluster import NODES, PODS, Kind
from slacktide.cluster.permissions import Permission, lease_permissions, permissions

SCHEDULER_PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("list watch", "nodes", "know room and forecast of each node"),
    *permissions("get list watch", "pods", "know which pods wait, and what each node has"),
    *permissions("create", "pods/binding", "place pods"),
    *permissions("patch", "pods/status", "say why a pod is not placed, and nominate nodes"),
    *permissions("delete", "pods", "preempt pods of lower priority"),
    *permissions("create patch", "events", "tell where pods were placed, or why not"),
)
EXTENDER_PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("list watch", "nodes", "know room and forecast of each node"),
    *permissions("list watch", "pods", "know what each node has"),
)
BINDING_PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("get", "pods", "read the pod that is to be bound"),
    *permissions("create", "pods/binding", "place pods"),
)
"""Only where the extender is told to bind."""


def of_lease(name: str, namespace: str) -> tuple[Permission, ...]:
    """What leader election on that lease needs."""
    return lease_permissions(name, namespace, "elect the replica that schedules")


def of_kinds(kinds: Iterable[Kind[Any]]) -> tuple[Permission, ...]:
    """What is needed to follow the kinds that plugins ask for."""
    found: list[Permission] = []
    for kind in dict.fromkeys(kinds):
        if kind not in (PODS, NODES):
            group = kind.api_version.rpartition("/")[0]
            found += permissions("list watch", kind.plural, "plugins look at them", group=group)
    return tuple(found)
