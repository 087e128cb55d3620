"""Values that the API fills in, pure: the object given is changed in place and returned.

Source: core/v1, policy/v1 and scheduling/v1 defaulting functions. What admission plugins and controllers of a cluster
add (service account volumes, not-ready taints and tolerations) is left out: nothing here would take it away again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slacktide.errors import QuantityError
from slacktide.quantity import parse
from standalone.api.kinds import EVENTS, NAMESPACES, NODES, PDBS, PODS, PRIORITY_CLASSES, Kind

Json = dict[str, Any]


def without_nulls(value: Any) -> Any:
    """`value` without the keys whose value is null: the API treats null as not set."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def apply(kind: Kind, obj: Json) -> Json:
    """Fill in what the kind defaults."""
    match kind:
        case _ if kind is PODS:
            _pod(obj)
        case _ if kind is NODES:
            obj.setdefault("spec", {})
            status = obj.setdefault("status", {})
            if "allocatable" not in status and "capacity" in status:
                status["allocatable"] = dict(status["capacity"])
        case _ if kind is NAMESPACES:
            obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            obj.setdefault("status", {}).setdefault("phase", "Active")
            name = obj["metadata"].get("name")
            if name:
                obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
        case _ if kind is PDBS:
            obj.setdefault("spec", {})
            obj.setdefault("status", {})
        case _ if kind is PRIORITY_CLASSES:
            obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        case _ if kind is EVENTS:
            obj.setdefault("source", {})
            obj.setdefault("reportingComponent", "")
            obj.setdefault("reportingInstance", "")
    return obj


def canonical_quantities(kind: Kind, obj: Json) -> Json:
    """Rewrite quantities in their canonical text (`0.5` as `500m`); QuantityError names the field of a bad one."""
    for path, amounts in quantity_maps(kind, obj):
        for name, amount in amounts.items():
            try:
                amounts[name] = str(parse(amount))
            except QuantityError as problem:
                raise QuantityError(f"{path}[{name}]: {problem}") from problem
    return obj


def quantity_maps(kind: Kind, obj: Json) -> Iterator[tuple[str, Json]]:
    """Each mapping of resource name to quantity, with its path."""
    if kind is PODS:
        yield from _pod_quantities(obj.get("spec") or {})
    if kind is NODES:
        for field in ("capacity", "allocatable"):
            if isinstance((obj.get("status") or {}).get(field), dict):
                yield f"status.{field}", obj["status"][field]


def _pod_quantities(spec: Json) -> Iterator[tuple[str, Json]]:
    places = [("spec.resources", spec.get("resources"))]
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            if isinstance(container, dict):
                places.append((f"spec.{field}[{number}].resources", container.get("resources")))
    for path, resources in places:
        for field in ("limits", "requests"):
            if isinstance(resources, dict) and isinstance(resources.get(field), dict):
                yield f"{path}.{field}", resources[field]
    if isinstance(spec.get("overhead"), dict):
        yield "spec.overhead", spec["overhead"]


def containers(spec: Json) -> Iterator[Json]:
    """All containers of a pod's spec that are objects, init containers first."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            if isinstance(container, dict):
                yield container


def _pod(pod: Json) -> None:
    spec = pod.setdefault("spec", {})
    for key, value in {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
    }.items():
        spec.setdefault(key, value)
    for container in containers(spec):
        _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)
    pod.setdefault("status", {})


def _container(container: Json) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    latest = tag == "latest" or (not tag and "@" not in image)
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    resources = container.setdefault("resources", {})
    if isinstance(resources.get("limits"), dict):
        requests = resources.setdefault("requests", {})
        for name, quantity in resources["limits"].items():
            requests.setdefault(name, quantity)
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(probe), dict):
            _probe(container[probe])
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if isinstance(reference, dict):
            reference.setdefault("apiVersion", "v1")


def _probe(probe: Json) -> None:
    for key, value in {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}.items():
        if not probe.get(key):
            probe[key] = value
    if isinstance(probe.get("httpGet"), dict):
        probe["httpGet"].setdefault("path", "/")
        probe["httpGet"].setdefault("scheme", "HTTP")
    if isinstance(probe.get("grpc"), dict):
        probe["grpc"].setdefault("service", "")


def _volume(volume: Json) -> None:
    sources = {key for key in volume if key != "name"}
    if not sources:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "projected", "downwardAPI"):
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
