"""What makes a pod's spec one that the API refuses, pure.

Source: core/v1 validation. One rule is ours: `kubernetes.io/batch-cpu` and `kubernetes.io/batch-memory` count whole
units, so fractions are refused here, where the sender still reads it, and not first by the scheduler.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.quantity import Quantity, parse
from standalone.api.errors import Cause, duplicate, forbidden_field, invalid_value, required, unsupported
from standalone.api.names import label_causes, label_problems, qualified_problems, subdomain_problems

Json = dict[str, Any]

RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
TOLERATION_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
STANDARD_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
WHOLE_RESOURCES: Final = frozenset({BATCH_CPU, BATCH_MEMORY})

_CHANGEABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def content(spec: Json) -> list[Cause]:
    """Causes against a defaulted spec."""
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required("spec.containers"))
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            causes += _container(container, f"spec.{field}[{number}]", seen)
    causes += _policies(spec)
    causes += _tolerations(spec.get("tolerations") or [])
    causes += label_causes(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    node = spec.get("nodeName", "")
    causes += [invalid_value("spec.nodeName", node, problem) for problem in (subdomain_problems(node) if node else ())]
    causes += _requirements(spec.get("resources") or {}, "spec.resources")
    for name, text in (spec.get("overhead") or {}).items():
        causes += amount(f"spec.overhead[{name}]", name, parse(text))
    causes += _gates(spec)
    return causes


def _policies(spec: Json) -> list[Cause]:
    causes = []
    for field, allowed in (("restartPolicy", RESTART_POLICIES), ("dnsPolicy", DNS_POLICIES)):
        if spec.get(field) not in allowed:
            causes.append(unsupported(f"spec.{field}", spec.get(field, ""), allowed))
    grace = spec.get("terminationGracePeriodSeconds", 30)
    if grace < 0:
        causes.append(invalid_value("spec.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not (isinstance(deadline, int) and 1 <= deadline < 2**31):
        causes.append(
            invalid_value("spec.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
        )
    return causes


def _gates(spec: Json) -> list[Cause]:
    causes, seen = [], set()
    for number, gate in enumerate(spec.get("schedulingGates") or ()):
        path = f"spec.schedulingGates[{number}]"
        causes += [invalid_value(path, gate["name"], problem) for problem in qualified_problems(gate["name"])]
        if gate["name"] in seen:
            causes.append(duplicate(path, gate["name"]))
        seen.add(gate["name"])
    if seen and spec.get("nodeName"):
        causes.append(forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return causes


def _container(container: Json, path: str, seen: set[str]) -> list[Cause]:
    name = container.get("name", "")
    causes = [] if name else [required(f"{path}.name")]
    if name:
        causes += [invalid_value(f"{path}.name", name, problem) for problem in label_problems(name)]
        if name in seen:
            causes.append(duplicate(f"{path}.name", name))
        seen.add(name)
    image = container.get("image", "")
    if not image:
        causes.append(required(f"{path}.image"))
    elif image != image.strip():
        causes.append(invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if container.get("imagePullPolicy") not in PULL_POLICIES:
        causes.append(unsupported(f"{path}.imagePullPolicy", container.get("imagePullPolicy", ""), PULL_POLICIES))
    restart = container.get("restartPolicy")
    if restart is not None and restart != "Always":
        causes.append(unsupported(f"{path}.restartPolicy", restart, ("Always",)))
    causes += _ports(container.get("ports") or [], path)
    for number, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            causes.append(required(f"{path}.env[{number}].name"))
        elif "=" in variable["name"]:
            what = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            causes.append(invalid_value(f"{path}.env[{number}].name", variable["name"], what))
    return causes + _requirements(container.get("resources") or {}, f"{path}.resources")


def _ports(ports: list[Json], path: str) -> list[Cause]:
    causes = []
    for number, port in enumerate(ports):
        where = f"{path}.ports[{number}]"
        if not 1 <= port.get("containerPort", 0) <= 65535:
            what = "must be between 1 and 65535, inclusive"
            causes.append(invalid_value(f"{where}.containerPort", port.get("containerPort", 0), what))
        if not 0 <= port.get("hostPort", 0) <= 65535:
            causes.append(
                invalid_value(f"{where}.hostPort", port["hostPort"], "must be between 1 and 65535, inclusive")
            )
        if port.get("protocol") not in PROTOCOLS:
            causes.append(unsupported(f"{where}.protocol", port.get("protocol", ""), PROTOCOLS))
    return causes


def _tolerations(tolerations: list[Json]) -> list[Cause]:
    causes = []
    for number, toleration in enumerate(tolerations):
        path = f"spec.tolerations[{number}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "Equal") or "Equal"
        if key:
            causes += [invalid_value(f"{path}.key", key, problem) for problem in qualified_problems(key)]
        elif operator != "Exists":
            what = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            causes.append(invalid_value(f"{path}.operator", operator, what))
        if operator not in {"Equal", "Exists"}:
            causes.append(unsupported(f"{path}.operator", operator, ("Equal", "Exists")))
        if operator == "Exists" and toleration.get("value"):
            what = "value must be empty when `operator` is 'Exists'"
            causes.append(invalid_value(f"{path}.operator", toleration["value"], what))
        effect = toleration.get("effect", "")
        if effect and effect not in TOLERATION_EFFECTS:
            causes.append(unsupported(f"{path}.effect", effect, TOLERATION_EFFECTS))
    return causes


def _requirements(resources: Json, path: str) -> list[Cause]:
    causes = []
    limits = {name: parse(text) for name, text in (resources.get("limits") or {}).items()}
    requests = {name: parse(text) for name, text in (resources.get("requests") or {}).items()}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, quantity in amounts.items():
            where = f"{path}.{field}[{name}]"
            causes += _resource_name(name, f"{path}.{field}") + amount(where, name, quantity)
    for name, request in requests.items():
        limit = limits.get(name)
        if limit is not None and request.nanos > limit.nanos:
            what = f"must be less than or equal to {name} limit of {limit}"
            causes.append(invalid_value(f"{path}.requests", str(request), what))
        elif _is_extended(name) and (limit is None or limit.nanos != request.nanos):
            cause = (
                required(f"{path}.limits", "Limit must be set for non overcommitable resources")
                if limit is None
                else invalid_value(f"{path}.requests", str(request), f"must be equal to {name} limit of {limit}")
            )
            causes.append(cause)
    return causes


def _is_extended(name: str) -> bool:
    """Extended resources cannot be overcommitted; names below kubernetes.io/ are native and can."""
    return "/" in name and "kubernetes.io/" not in name


def _resource_name(name: str, path: str) -> list[Cause]:
    problems = qualified_problems(name)
    if problems:
        return [invalid_value(path, name, problem) for problem in problems]
    if "/" not in name and name not in STANDARD_RESOURCES and not name.startswith("hugepages-"):
        return [invalid_value(path, name, "must be a standard resource for containers")]
    return []


def amount(path: str, name: str, quantity: Quantity) -> list[Cause]:
    """Causes against one quantity of the resource `name`: negative, or a fraction where whole units are counted."""
    if quantity.nanos < 0:
        return [invalid_value(path, str(quantity), "must be greater than or equal to 0")]
    if (name in WHOLE_RESOURCES or _is_extended(name)) and not quantity.is_whole:
        return [invalid_value(path, str(quantity), "must be an integer")]
    return []


def change(spec: Json, old: Json) -> list[Cause]:
    """Causes against an update of a pod's spec: nearly all of it is fixed at creation."""
    tolerations, before = spec.get("tolerations") or [], old.get("tolerations") or []
    if any(toleration not in tolerations for toleration in before):
        what = "existing toleration can not be modified except its tolerationSeconds"
        return [forbidden_field("spec.tolerations", what)]
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    added = [name for name in gates if {"name": name} not in (old.get("schedulingGates") or [])]
    if added:
        what = f"only deletion is allowed, but found new scheduling gate '{added[0]}'"
        return [forbidden_field("spec.schedulingGates", what)]
    if _fixed(spec, old) != _fixed(old, old):
        return [forbidden_field("spec", _CHANGEABLE)]
    return []


def _fixed(spec: Json, old: Json) -> Json:
    """`spec` without what an update may change."""
    kept = copy.deepcopy(spec)
    for field in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        kept.pop(field, None)
    if old.get("terminationGracePeriodSeconds", 30) < 0 and kept.get("terminationGracePeriodSeconds") == 1:
        kept["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    if old.get("schedulingGates"):
        # A gated pod may still be given node constraints; that they only tighten is left to who opens the gate.
        kept.pop("nodeSelector", None)
        kept.pop("affinity", None)
    for field in ("initContainers", "containers"):
        for container in kept.get(field) or ():
            container.pop("image", None)
            container.pop("imagePullPolicy", None)
    return kept
