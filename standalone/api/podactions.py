"""Binding and eviction of pods, as decisions on a transaction.

Source: kube-apiserver pkg/registry/core/pod/storage (storage.go, eviction.go).
"""

from __future__ import annotations

from typing import Any, Final

from standalone.api import errors, pdb, settle, writes
from standalone.api.kinds import PDBS, PODS
from standalone.api.records import Key, Record
from standalone.api.store import Transaction

Json = dict[str, Any]

BINDINGS: Final = errors.Target("", "pods/binding")


def get_pod(transaction: Transaction, namespace: str, name: str) -> Record:
    """The pod; ApiError 404."""
    record = transaction.get(Key(PODS.resource, namespace, name))
    if record is None:
        raise errors.not_found(PODS.target(name))
    return record


def bind(transaction: Transaction, world: writes.World, namespace: str, name: str, binding: Json) -> Record:
    """Assign a pod to the node that the Binding names, merging its annotations in the same write.

    Whether the node exists is not asked. ApiError 404; 409 when the pod is bound, being deleted, gated or another
    (uid); 422 for a binding without target.
    """
    target = binding.get("target") or {}
    _check_target(name, target)
    record = get_pod(transaction, namespace, name)
    pod = record.object()
    metadata, spec = pod["metadata"], pod["spec"]
    wanted = binding["metadata"]
    if wanted.get("uid") and wanted["uid"] != metadata["uid"]:
        why = (
            f"StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, "
            "AdditionalErrorMsg: Precondition failed: "
            f"UID in precondition: {wanted['uid']}, UID in object meta: {metadata['uid']}"
        )
        raise errors.conflict(PODS.target(name), why)
    if wanted.get("resourceVersion") and wanted["resourceVersion"] != metadata["resourceVersion"]:
        raise _refused(name, errors.OPTIMISTIC_LOCK)
    if metadata.get("deletionTimestamp"):
        raise _refused(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _refused(name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _refused(name, f"pod {name} has non-empty .spec.schedulingGates")
    spec["nodeName"] = target["name"]
    if wanted.get("annotations"):
        metadata["annotations"] = {**metadata.get("annotations", {}), **wanted["annotations"]}
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    set_condition(status, world, {"type": "PodScheduled", "status": "True"})
    return transaction.put(record.key, pod)


def _check_target(name: str, target: Json) -> None:
    causes = []
    if target.get("kind", "") not in {"", "Node"}:
        causes.append(errors.unsupported("target.kind", target["kind"], ("Node", "<empty>")))
    if not target.get("name"):
        causes.append(errors.required("target.name"))
    if causes:
        raise errors.invalid(errors.Target("", "Binding", name), causes)


def _refused(name: str, why: str) -> errors.ApiError:
    return errors.conflict(errors.Target("", "pods/binding", name), why)


def set_condition(status: Json, world: writes.World, condition: Json) -> None:
    """Put a condition by its type; lastTransitionTime stays while its status does."""
    conditions = status.setdefault("conditions", [])
    fresh = {**condition, "lastTransitionTime": world.now_text()}
    for number, old in enumerate(conditions):
        if old.get("type") == condition["type"]:
            if old.get("status") == condition["status"] and old.get("lastTransitionTime"):
                fresh["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[number] = fresh
            return
    conditions.append(fresh)


def evict(
    transaction: Transaction, world: writes.World, namespace: str, name: str, options: writes.DeleteOptions
) -> Record:
    """Delete a pod if its disruption budget allows; ApiError 404, 409, 429, 403 or (several budgets) 500."""
    record = get_pod(transaction, namespace, name)
    pod = record.object()
    if not pdb.skips_budget(pod):
        budgets = _budgets(transaction, record)
        if len(budgets) > 1:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise errors.ApiError(500, "InternalError", text)
        for budget in budgets:
            _charge(transaction, world, pod, budget)
    obj = record.object()
    writes_options = options
    if not pod["metadata"].get("deletionTimestamp"):
        disruption = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        writes.check_delete(PODS, pod["metadata"], options)
        set_condition(obj.setdefault("status", {}), world, disruption)
        record = transaction.put(record.key, obj)
        # The version was compared above; the condition just gave the pod a new one.
        writes_options = writes.DeleteOptions(options.grace_period_seconds, options.uid)
    writes.delete(transaction, world, PODS, record, writes_options)
    return record


def _budgets(transaction: Transaction, pod: Record) -> list[Record]:
    found = []
    for record in transaction.items(PDBS.resource, pod.key.namespace):
        matching = settle.matching_pods(transaction, record.object(), pod.key.namespace)
        if any(other.key == pod.key for other in matching):
            found.append(record)
    return found


def _charge(transaction: Transaction, world: writes.World, pod: Json, budget: Record) -> None:
    state = settle.refresh_budget(transaction, world, budget)
    current = transaction.get(budget.key)
    assert current is not None
    obj = current.object()
    if pdb.unready_is_free(pod, obj.get("spec") or {}, state):
        return
    name = pod["metadata"]["name"]
    refused = pdb.refusal(PODS.target(name), budget.key.name, obj["metadata"].get("generation", 0), state)
    if refused is not None:
        raise refused
    obj["status"] = {
        **state,
        "disruptionsAllowed": state["disruptionsAllowed"] - 1,
        "disruptedPods": {**(state.get("disruptedPods") or {}), name: world.now_text()},
    }
    transaction.put(budget.key, obj)
