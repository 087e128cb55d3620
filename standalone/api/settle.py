"""State that follows from other state, brought up to date inside the transaction that changed the other.

Status of disruption budgets follows their pods; the contents of a namespace that is being deleted go, and then the
namespace itself. In a cluster controllers do this a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from standalone.api import pdb, selectors, writes
from standalone.api.kinds import KINDS, NAMESPACES, PDBS, PODS
from standalone.api.records import ADDED, DELETED, Change, Key, Record
from standalone.api.store import Transaction


def settle(transaction: Transaction, world: writes.World) -> None:
    """Complete a decision."""
    _namespaces(transaction, world, list(transaction.changes))
    touched = {PODS.resource, PDBS.resource}
    for namespace in sorted({change.key.namespace for change in transaction.changes if change.key.resource in touched}):
        for record in transaction.items(PDBS.resource, namespace):
            refresh_budget(transaction, world, record)


def refresh_budget(transaction: Transaction, world: writes.World, record: Record) -> dict[str, Any]:
    """Compute a budget's status from the pods as they are, store it when it differs, and return it."""
    obj = record.object()
    old, generation = obj.get("status") or {}, obj["metadata"].get("generation", 0)
    pods = [pod.object() for pod in matching_pods(transaction, obj, record.key.namespace)]
    found = pdb.budget(obj.get("spec") or {}, old.get("disruptedPods") or {}, pods, world.now())
    obj["status"] = pdb.status(old, found, generation, world.now_text())
    transaction.put(record.key, obj)
    return obj["status"]  # type: ignore[no-any-return]  # just built by pdb.status


def matching_pods(transaction: Transaction, budget: dict[str, Any], namespace: str) -> Iterable[Record]:
    """Pods that the budget's selector matches."""
    matches = selectors.of_label_selector((budget.get("spec") or {}).get("selector"))
    return [pod for pod in transaction.items(PODS.resource, namespace) if matches(pod.attributes.labels)]


def _namespaces(transaction: Transaction, world: writes.World, changes: list[Change]) -> None:
    names = {change.key.namespace for change in changes if change.type == DELETED and change.key.namespace}
    names |= {
        change.key.name for change in changes if change.key.resource == NAMESPACES.resource and change.type != ADDED
    }
    for name in sorted(names):
        record = transaction.get(Key(NAMESPACES.resource, "", name))
        if record is not None and record.object()["metadata"].get("deletionTimestamp"):
            _empty(transaction, world, record)


def _empty(transaction: Transaction, world: writes.World, namespace: Record) -> None:
    remaining = 0
    for kind in KINDS:
        if not kind.namespaced:
            continue
        for record in transaction.items(kind.resource, namespace.key.name):
            _, gone = writes.delete(transaction, world, kind, record, writes.DeleteOptions())
            remaining += not gone
    if not remaining and not namespace.object()["metadata"].get("finalizers"):
        transaction.delete(namespace.key)


def delete_namespace(transaction: Transaction, world: writes.World, record: Record) -> Record:
    """Begin the deletion of a namespace: phase Terminating; `settle` does the rest."""
    obj = record.object()
    obj["metadata"].setdefault("deletionTimestamp", world.now_text())
    obj.setdefault("status", {})["phase"] = "Terminating"
    return transaction.put(record.key, obj)
