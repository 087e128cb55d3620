"""What the admission plugins of a cluster do to the objects we serve: namespace lifecycle and pod priority."""

from __future__ import annotations

from typing import Any, Final

from standalone.api import errors
from standalone.api.kinds import NAMESPACES, PODS, PRIORITY_CLASSES, Kind
from standalone.api.records import Key
from standalone.api.store import Transaction

FIRST_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that a new cluster has."""

IMMORTAL_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public"})


def namespace_is_open(transaction: Transaction, kind: Kind, namespace: str, name: str) -> None:
    """ApiError 404 when the namespace of a new object is not there, 403 when it is being deleted."""
    if not kind.namespaced:
        return
    record = transaction.get(Key(NAMESPACES.resource, "", namespace))
    if record is None:
        raise errors.not_found(NAMESPACES.target(namespace))
    if record.object()["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = errors.Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
        raise errors.forbidden(kind.target(name), why, (cause,))


def may_delete(kind: Kind, name: str) -> None:
    """ApiError 403 for a namespace that always stays."""
    if kind is NAMESPACES and name in IMMORTAL_NAMESPACES:
        raise errors.forbidden(kind.target(name), "this namespace may not be deleted")


def priority(transaction: Transaction, pod: dict[str, Any]) -> None:
    """Resolve spec.priorityClassName to spec.priority and preemptionPolicy; ApiError 403 when it does not exist."""
    spec, target = pod["spec"], PODS.target(pod["metadata"].get("name", ""))
    name = spec.get("priorityClassName", "")
    if name:
        record = transaction.get(Key(PRIORITY_CLASSES.resource, "", name))
        if record is None:
            raise errors.forbidden(target, f"no PriorityClass with name {name} was found")
        found: dict[str, Any] = record.object()
    else:
        found = _default_class(transaction)
        if found:
            spec["priorityClassName"] = found["metadata"]["name"]
    value = found.get("value", 0)
    if spec.get("priority", value) != value:
        why = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name"
        )
        raise errors.forbidden(target, why)
    policy = found.get("preemptionPolicy", "PreemptLowerPriority")
    if spec.get("preemptionPolicy", policy) != policy:
        why = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name"
        )
        raise errors.forbidden(target, why)
    spec["priority"] = value
    spec["preemptionPolicy"] = policy


def _default_class(transaction: Transaction) -> dict[str, Any]:
    """The class marked globalDefault with the lowest value, or {}."""
    marked = [record.object() for record in transaction.items(PRIORITY_CLASSES.resource)]
    marked = [found for found in marked if found.get("globalDefault")]
    return min(marked, key=lambda found: int(found.get("value", 0)), default={})


def unchanged_priority(pod: dict[str, Any], before: dict[str, Any]) -> None:
    """Keep what admission computed when an update leaves it out."""
    for field in ("priority", "preemptionPolicy"):
        if field in before["spec"]:
            pod["spec"].setdefault(field, before["spec"][field])
