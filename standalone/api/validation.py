"""What makes an object one that the API refuses, pure: a list of causes, empty when all is well.

`new` is about an object to be created, `change` about an update. Source: the validation of core/v1, policy/v1,
coordination.k8s.io/v1 and scheduling.k8s.io/v1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from slacktide.quantity import parse
from standalone.api import pod_validation
from standalone.api.errors import Cause, forbidden_field, invalid_value, required, unsupported
from standalone.api.kinds import EVENTS, LEASES, NAMESPACES, NODES, PDBS, PODS, PRIORITY_CLASSES, Kind
from standalone.api.names import label_causes, label_problems, qualified_problems, subdomain_problems
from standalone.api.pdb import scaled

ANNOTATIONS_LIMIT_BYTES: Final = 256 * 1024
HIGHEST_USER_PRIORITY: Final = 1_000_000_000
IMMUTABLE: Final = "field is immutable"


def new(kind: Kind, obj: dict[str, Any]) -> list[Cause]:
    """Causes against creating the object."""
    return metadata(kind, obj["metadata"]) + _content(kind, obj)


def change(kind: Kind, obj: dict[str, Any], old: dict[str, Any]) -> list[Cause]:
    """Causes against replacing `old` by `obj`."""
    causes = metadata(kind, obj["metadata"])
    before = old["metadata"]
    for field in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        value = obj["metadata"].get(field)
        if value != before.get(field):
            causes.append(invalid_value(f"metadata.{field}", value, IMMUTABLE))
    if before.get("deletionTimestamp"):
        added = set(obj["metadata"].get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added:
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}"
            causes.append(forbidden_field("metadata.finalizers", why))
    causes += _content(kind, obj)
    if kind is PODS:
        causes += pod_validation.change(obj["spec"], old["spec"])
    if kind is PRIORITY_CLASSES and obj.get("value") != old.get("value"):
        causes.append(forbidden_field("value", "may not be changed in an update."))
    return causes


def metadata(kind: Kind, meta: dict[str, Any]) -> list[Cause]:
    """Causes against names, labels, annotations and finalizers."""
    causes = []
    check = label_problems if kind is NAMESPACES else subdomain_problems
    name, prefix = meta.get("name", ""), meta.get("generateName", "")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        causes += [invalid_value("metadata.name", name, problem) for problem in check(name)]
    if prefix:
        # A prefix may end in what a whole name may not.
        causes += [invalid_value("metadata.generateName", prefix, p) for p in check(re.sub(r"[-.]$", "a", prefix))]
    causes += label_causes(meta.get("labels") or {}, "metadata.labels")
    annotations = meta.get("annotations") or {}
    for key in annotations:
        causes += [invalid_value("metadata.annotations", key, p) for p in qualified_problems(key.lower())]
    if (
        sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
        > ANNOTATIONS_LIMIT_BYTES
    ):
        message = f"Too long: may not be more than {ANNOTATIONS_LIMIT_BYTES} bytes"
        causes.append(Cause("FieldValueTooLong", message, "metadata.annotations"))
    for finalizer in meta.get("finalizers") or ():
        causes += [invalid_value("metadata.finalizers", finalizer, p) for p in qualified_problems(finalizer)]
    return causes


def _content(kind: Kind, obj: dict[str, Any]) -> list[Cause]:
    check = _CONTENT.get(kind.resource)
    return check(obj) if check is not None else []


def _node(node: dict[str, Any]) -> list[Cause]:
    causes = []
    for field in ("capacity", "allocatable"):
        for name, amount in (node.get("status", {}).get(field) or {}).items():
            path = f"status.{field}[{name}]"
            causes += pod_validation.amount(path, name, parse(amount))
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    for number, taint in enumerate(node.get("spec", {}).get("taints") or ()):
        path = f"spec.taints[{number}]"
        causes += [invalid_value(f"{path}.key", taint["key"], p) for p in qualified_problems(taint["key"])]
        if taint.get("effect") not in effects:
            causes.append(unsupported(f"{path}.effect", taint.get("effect", ""), effects))
    return causes


def _lease(lease: dict[str, Any]) -> list[Cause]:
    spec, causes = lease.get("spec") or {}, []
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        causes.append(
            invalid_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
        )
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        what = "must be greater than or equal to 0"
        causes.append(invalid_value("spec.leaseTransitions", spec["leaseTransitions"], what))
    return causes


def _event(event: dict[str, Any]) -> list[Cause]:
    involved = event.get("involvedObject") or {}
    namespace, about = event["metadata"].get("namespace", ""), involved.get("namespace", "")
    if about != namespace and not (not about and namespace == "default"):
        return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]
    return []


def _budget(obj: dict[str, Any]) -> list[Cause]:
    spec = obj.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        return [
            invalid_value("spec", "minAvailable, maxUnavailable", "minAvailable and maxUnavailable cannot be both set")
        ]
    causes = []
    for field in ("minAvailable", "maxUnavailable"):
        value = spec.get(field)
        try:
            if value is not None and scaled(value, 100) < 0:
                causes.append(invalid_value(f"spec.{field}", value, "must be greater than or equal to 0"))
            elif isinstance(value, str) and scaled(value, 100) > 100:
                causes.append(invalid_value(f"spec.{field}", value, "must not be greater than 100%"))
        except ValueError:
            what = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%', or '93%')"
            causes.append(invalid_value(f"spec.{field}", value, what))
    policies = ("AlwaysAllow", "IfHealthyBudget")
    if spec.get("unhealthyPodEvictionPolicy", policies[0]) not in policies:
        causes.append(unsupported("spec.unhealthyPodEvictionPolicy", spec["unhealthyPodEvictionPolicy"], policies))
    operators = ("In", "NotIn", "Exists", "DoesNotExist")
    for number, expression in enumerate((spec.get("selector") or {}).get("matchExpressions") or ()):
        if expression["operator"] not in operators:
            path = f"spec.selector.matchExpressions[{number}].operator"
            causes.append(invalid_value(path, expression["operator"], "not a valid selector operator"))
    return causes


def _priority_class(obj: dict[str, Any]) -> list[Cause]:
    name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
    causes = []
    if name.startswith("system-") and name not in SYSTEM_CLASSES:
        what = "priority class names with 'system-' prefix are reserved for system use only"
        causes.append(forbidden_field("metadata.name", what))
    if value > HIGHEST_USER_PRIORITY and name not in SYSTEM_CLASSES:
        what = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        causes.append(forbidden_field("value", what))
    policies = ("Never", "PreemptLowerPriority")
    if obj.get("preemptionPolicy", policies[0]) not in policies:
        causes.append(unsupported("preemptionPolicy", obj["preemptionPolicy"], policies))
    return causes


SYSTEM_CLASSES: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""Priority classes that always exist, with their values."""

_CONTENT: Final[Mapping[str, Callable[[dict[str, Any]], list[Cause]]]] = {
    PODS.resource: lambda pod: pod_validation.content(pod["spec"]),
    NODES.resource: _node,
    LEASES.resource: _lease,
    EVENTS.resource: _event,
    PDBS.resource: _budget,
    PRIORITY_CLASSES.resource: _priority_class,
}
