"""JSON types of the fields that are read here, judged before anything else looks at an object.

What is not listed may be anything: it is stored as it came and never read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from slacktide.objects import Container, EnvVar, Event, Lease, Node, ObjectMeta, Pod, PodCondition, PodSpec, Probe, View
from standalone.api.errors import Cause, required
from standalone.api.kinds import EVENTS, LEASES, NAMESPACES, NODES, PDBS, PODS, PRIORITY_CLASSES, Kind


class _EnvSource(View, frozen=True):
    field_ref: dict[str, Any] = msgspec.field(default_factory=dict)


class _EnvVar(EnvVar, frozen=True):
    value_from: _EnvSource | None = None  # type: ignore[assignment]  # narrowed on purpose


class _Probe(Probe, frozen=True):
    grpc: dict[str, Any] = msgspec.field(default_factory=dict)


class _Container(Container, frozen=True):
    env: list[_EnvVar] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # narrowed on purpose
    image_pull_policy: str = ""
    liveness_probe: _Probe | None = None
    readiness_probe: _Probe | None = None
    startup_probe: _Probe | None = None


class _ReadinessGate(View, frozen=True):
    condition_type: str


class _PodSpec(PodSpec, frozen=True):
    containers: list[_Container] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # narrowed
    init_containers: list[_Container] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # narrowed
    ephemeral_containers: list[_Container] = msgspec.field(default_factory=list)
    readiness_gates: list[_ReadinessGate] = msgspec.field(default_factory=list)
    active_deadline_seconds: int | None = None
    dns_policy: str = ""


class _Pod(Pod, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Series(View, frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class _Event(Event, frozen=True):
    event_time: str | None = None
    series: _Series | None = None


class Shaped(View, frozen=True):
    """Base of the shapes that no view in `slacktide.objects` describes."""

    metadata: ObjectMeta = ObjectMeta()


class _Expression(View, frozen=True):
    key: str
    operator: str
    values: list[str] = msgspec.field(default_factory=list)


class _LabelSelector(View, frozen=True):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: list[_Expression] = msgspec.field(default_factory=list)


class _BudgetSpec(View, frozen=True):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: _LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _BudgetStatus(View, frozen=True):
    conditions: list[PodCondition] = msgspec.field(default_factory=list)
    disrupted_pods: dict[str, str] = msgspec.field(default_factory=dict)


class _Budget(Shaped, frozen=True):
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()


class _PriorityClass(Shaped, frozen=True):
    value: int = 0
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None


class _NamespaceSpec(View, frozen=True):
    finalizers: list[str] = msgspec.field(default_factory=list)


class _NamespaceStatus(View, frozen=True):
    phase: str = ""


class _Namespace(Shaped, frozen=True):
    spec: _NamespaceSpec = _NamespaceSpec()
    status: _NamespaceStatus = _NamespaceStatus()


_SHAPES: Final[Mapping[str, type[View]]] = {
    PODS.resource: _Pod,
    NODES.resource: Node,
    EVENTS.resource: _Event,
    LEASES.resource: Lease,
    NAMESPACES.resource: _Namespace,
    PDBS.resource: _Budget,
    PRIORITY_CLASSES.resource: _PriorityClass,
}
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.?(.*)`)?")


def check(kind: Kind, obj: Mapping[str, Any]) -> tuple[list[Cause], str | None]:
    """Causes for required fields that are missing, and one sentence for a value of the wrong JSON type (or None)."""
    try:
        msgspec.convert(obj, _SHAPES[kind.resource])
    except msgspec.ValidationError as problem:
        text = str(problem)
        missing = _MISSING.fullmatch(text)
        if missing is not None:
            path = f"{missing[2]}.{missing[1]}" if missing[2] else missing[1]
            return [required(path)], None
        return [], text.replace("`$.", "`")
    return [], None
