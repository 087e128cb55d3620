"""Ordinary best-effort workloads as batch workloads. Pure: a manifest in, a manifest out.

The same as the chart's admission policy does to pods of namespaces that opted in (docs/admission.md); a test holds the
two against each other on a real API server. Fields that are not known here stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slacktide import quantity
from slacktide.errors import ManifestError, QuantityError
from slacktide.names import BATCH_CPU, BATCH_MEMORY, KOORDINATOR_QOS_LABEL, PRIORITY_CLASS, SCHEDULER_NAME, TIER_LABEL
from slacktide.objects import ObjectMeta, Pod
from slacktide.resources import validate_request
from slacktide.tier import Tier, tier_of

Manifest = dict[str, Any]

TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "ReplicationController": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Kinds that hold a pod, and where."""

MAX_AMOUNT: Final = 1 << 53
"""More millicores or bytes than this no container has; up to here the policy's arithmetic is exact."""

_STOCK_SCHEDULER: Final = "default-scheduler"
_NATIVE: Final = {"cpu": quantity.cpu_millis, "memory": quantity.memory_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What batch pods get.

    scheduler           their schedulerName; empty leaves it alone. A pod that names another than the stock one keeps it
    priority_classes    the first is given to pods that have none of them
    names               batch resource for `cpu` and `memory`
    unlabelled          also convert what no label assigns to a tier, and label it
    """

    scheduler: str = SCHEDULER_NAME
    priority_classes: Sequence[str] = (PRIORITY_CLASS,)
    cpu: str = BATCH_CPU
    memory: str = BATCH_MEMORY
    unlabelled: bool = False


@dataclass(frozen=True, slots=True)
class Converted:
    """A manifest after conversion; `remarks` says for each workload in it what was done, or why nothing."""

    manifest: Manifest
    changed: bool
    remarks: Sequence[str]


def convert(manifest: Manifest, rules: Rules) -> Converted:
    """Convert a manifest of any kind, lists included. Raises ManifestError for what cannot become a batch workload."""
    kind = manifest.get("kind")
    items = manifest.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        done = [convert(_mapping(item, f"{kind}: items"), rules) for item in items]
        remarks = [remark for one in done for remark in one.remarks]
        return Converted(
            {**manifest, "items": [one.manifest for one in done]}, any(one.changed for one in done), remarks
        )
    if not isinstance(kind, str) or kind not in TEMPLATES:
        return Converted(manifest, False, ())
    meta = _mapping(manifest.get("metadata"), f"{kind}: metadata")
    title = f"{kind}/{meta.get('name') or meta.get('generateName') or '?'}"
    result = _within(manifest, TEMPLATES[kind], title, rules)
    if result is None:
        return Converted(manifest, False, (f"{title}: left alone, no label makes it best-effort ({TIER_LABEL}: be)",))
    changed = result != manifest
    return Converted(result, changed, (f"{title}: {'converted' if changed else 'is a batch workload already'}",))


def _within(holder: Manifest, path: Sequence[str], title: str, rules: Rules) -> Manifest | None:
    """`holder` with the pod below `path` converted; None where that is not best-effort."""
    if not path:
        return _template(holder, title, rules)
    inner = _mapping(holder.get(path[0]), f"{title}: {path[0]}")
    converted = _within(inner, path[1:], title, rules)
    return None if converted is None else {**holder, path[0]: converted}


def _template(template: Manifest, title: str, rules: Rules) -> Manifest | None:
    meta = _mapping(template.get("metadata"), f"{title}: metadata")
    labels = _mapping(meta.get("labels"), f"{title}: labels")
    if rules.unlabelled and not labels.keys() & {TIER_LABEL, KOORDINATOR_QOS_LABEL}:
        labels = {**labels, TIER_LABEL: "be"}
        template = {**template, "metadata": {**meta, "labels": labels}}
    texts = {key: value for key, value in labels.items() if isinstance(value, str)}
    if tier_of(Pod(metadata=ObjectMeta(labels=texts))) is not Tier.BE:
        return None
    return {**template, "spec": _spec(_mapping(template.get("spec"), f"{title}: spec"), title, rules)}


def _spec(spec: Manifest, title: str, rules: Rules) -> Manifest:
    whole = _mapping(spec.get("resources"), f"{title}: resources")
    for side in ("requests", "limits"):
        if _NATIVE.keys() & _mapping(whole.get(side), f"{title}: resources.{side}").keys():
            raise ManifestError(
                f"{title}: resources of the whole pod (spec.resources.{side}) cannot be batch resources: "
                "ask for them in the containers"
            )
    result = dict(spec)
    for key in ("containers", "initContainers"):
        if spec.get(key) is not None:
            result[key] = [_container(item, f"{title}: {key}[{at}]", rules) for at, item in enumerate(_list(spec, key))]
    if rules.scheduler and result.get("schedulerName") in (None, "", _STOCK_SCHEDULER):
        result["schedulerName"] = rules.scheduler
    if result.get("priorityClassName") not in rules.priority_classes:
        result["priorityClassName"] = rules.priority_classes[0]
        # The API server reads them off the class; what was there belongs to the old one.
        result.pop("priority", None)
        result.pop("preemptionPolicy", None)
    return result


def _container(item: Any, title: str, rules: Rules) -> Manifest:
    container = _mapping(item, title)
    place = f"{title} ({container.get('name') or '?'})"
    resources = _mapping(container.get("resources"), f"{place}: resources")
    requests, limits = (_mapping(resources.get(side), f"{place}: {side}") for side in ("requests", "limits"))
    batch = {"cpu": rules.cpu, "memory": rules.memory}
    _check(requests, limits, frozenset(batch.values()), place)
    for native, name in batch.items():
        given = [_amount(native, side[native], place) for side in (requests, limits) if native in side]
        if not given:
            continue
        # What somebody asked for in batch resources already stays as it is.
        text = None if name in requests or name in limits else str(max(given))
        requests, limits = (_renamed(side, native, name, text) for side in (requests, limits))
    if requests == (resources.get("requests") or {}) and limits == (resources.get("limits") or {}):
        return container
    return {**container, "resources": {**resources, "requests": requests, "limits": limits}}


def _renamed(side: Manifest, native: str, name: str, text: str | None) -> Manifest:
    """`side` without `native` and, unless `text` is None, with `name`, at the same place if there is one."""
    if text is None:
        return {key: value for key, value in side.items() if key != native}
    if native not in side:
        return {**side, name: text}
    return {name if key == native else key: text if key == native else value for key, value in side.items()}


def _check(requests: Manifest, limits: Manifest, batch: frozenset[str], place: str) -> None:
    """Refuse what the API server would: batch amounts against the rules, and huge pages without native resources."""
    sides = {"requests": requests, "limits": limits}
    try:
        amounts = {
            side: {name: validate_request(name, given[name], side, batch) for name in given.keys() & batch}
            for side, given in sides.items()
        }
    except QuantityError as error:
        raise ManifestError(f"{place}: {error}") from None
    for name in sorted(amounts["requests"].keys() | amounts["limits"].keys()):
        request, limit = (amounts[side].get(name) for side in sides)
        if request is None or limit is None or request.nanos != limit.nanos:
            raise ManifestError(f"{place}: request and limit of {name} must both be there and be equal")
    if any(name.startswith("hugepages-") for given in sides.values() for name in given):
        raise ManifestError(f"{place}: huge pages need native cpu or memory beside them, so this cannot be batch")


def _amount(name: str, source: Any, place: str) -> int:
    """Millicores or bytes, rounded up. The API reads null as 0."""
    try:
        amount = 0 if source is None else _NATIVE[name](source)
    except QuantityError as error:
        raise ManifestError(f"{place}: {name}: {error}") from None
    if amount < 0:
        raise ManifestError(f"{place}: {name}: {source!r} is negative: a request or limit is 0 or more")
    if amount > MAX_AMOUNT:
        raise ManifestError(f"{place}: {name}: {source!r} is more than any machine has")
    return amount


def _mapping(value: Any, place: str) -> Manifest:
    """`value` as a mapping; null is an empty one, as the API reads it. Raises ManifestError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ManifestError(f"{place} must be a mapping, not {type(value).__name__}")
    return value


def _list(holder: Manifest, key: str) -> list[Any]:
    value = holder[key]
    if not isinstance(value, list):
        raise ManifestError(f"{key} must be a list, not {type(value).__name__}")
    return value
