"""Objects as rows, in the columns that kubectl prints. Source: kubernetes pkg/printers/internalversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from standalone.api.kinds import EVENTS, LEASES, NAMESPACES, NODES, PDBS, PODS, PRIORITY_CLASSES, Kind
from standalone.api.podstatus import pod_cells
from standalone.api.records import Record
from standalone.api.times import age

Json = Mapping[str, Any]

_NONE: Final = "<none>"
_ROLE: Final = "node-role.kubernetes.io/"


def metadata_only(record: Record, version: str, *, typed: bool) -> dict[str, Any]:
    """The object's metadata as PartialObjectMetadata."""
    head = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}"} if typed else {}
    return {**head, "metadata": record.object()["metadata"]}


def table(kind: Kind, records: Sequence[Record], now: datetime, include: str, version: str) -> dict[str, Any]:
    """A Table of meta.k8s.io; `include` is None, Metadata or Object: what each row carries of its object."""
    columns, cells = _PRINTERS[kind.resource]
    rows = []
    for record in records:
        obj = record.object()
        row: dict[str, Any] = {"cells": cells(obj, now)}
        if include == "Object":
            row["object"] = {"kind": kind.kind, "apiVersion": kind.api_version, **obj}
        elif include != "None":
            row["object"] = metadata_only(record, version, typed=True)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": {},
        "columnDefinitions": [_column(*column) for column in columns],
        "rows": rows,
    }


def _column(name: str, priority: int = 0, type_: str = "string") -> dict[str, Any]:
    """One column; priority 1 is shown with `-o wide` only."""
    form = "name" if name == "Name" and priority == 0 else ""
    return {"name": name, "type": type_, "format": form, "description": name, "priority": priority}


def _node(node: Json, now: datetime) -> list[Any]:
    status, meta = node.get("status") or {}, node["metadata"]
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    shown = ["Unknown"] if not ready else ["Ready" if ready[0] == "True" else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        shown.append("SchedulingDisabled")
    labels = meta.get("labels") or {}
    roles = sorted(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE) and key != _ROLE)
    info = status.get("nodeInfo") or {}
    addresses = {a.get("type"): a.get("address") for a in reversed(status.get("addresses") or ())}
    return [
        meta["name"],
        ",".join(shown),
        ",".join(roles) or _NONE,
        age(meta.get("creationTimestamp"), now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or _NONE,
        addresses.get("ExternalIP") or _NONE,
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(event: Json, now: datetime) -> list[Any]:
    about = event.get("involvedObject") or {}
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or ""
    first = event.get("firstTimestamp") or event.get("eventTime")
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    thing = about.get("kind", "").lower()
    return [
        age(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{thing}/{about['name']}" if about.get("name") else thing,
        about.get("fieldPath", ""),
        ", ".join(filter(None, (component, host))),
        str(event.get("message", "")).strip(),
        age(first, now),
        series.get("count") or event.get("count") or 1,
        event["metadata"]["name"],
    ]


def _lease(lease: Json, now: datetime) -> list[Any]:
    meta = lease["metadata"]
    holder = (lease.get("spec") or {}).get("holderIdentity", "")
    return [meta["name"], holder, age(meta.get("creationTimestamp"), now)]


def _namespace(namespace: Json, now: datetime) -> list[Any]:
    meta = namespace["metadata"]
    return [meta["name"], (namespace.get("status") or {}).get("phase", ""), age(meta.get("creationTimestamp"), now)]


def _budget(budget: Json, now: datetime) -> list[Any]:
    meta, spec = budget["metadata"], budget.get("spec") or {}
    return [
        meta["name"],
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        (budget.get("status") or {}).get("disruptionsAllowed", 0),
        age(meta.get("creationTimestamp"), now),
    ]


def _priority_class(found: Json, now: datetime) -> list[Any]:
    meta = found["metadata"]
    return [
        meta["name"],
        found.get("value", 0),
        bool(found.get("globalDefault", False)),
        age(meta.get("creationTimestamp"), now),
        found.get("preemptionPolicy", ""),
    ]


_NAME: Final = ("Name",)
_AGE: Final = ("Age",)
_Printer = tuple[tuple[tuple[Any, ...], ...], Callable[[Json, datetime], list[Any]]]

_PRINTERS: Final[Mapping[str, _Printer]] = {
    PODS.resource: (
        (
            _NAME,
            ("Ready",),
            ("Status",),
            ("Restarts",),
            _AGE,
            ("IP", 1),
            ("Node", 1),
            ("Nominated Node", 1),
            ("Readiness Gates", 1),
        ),
        pod_cells,
    ),
    NODES.resource: (
        (
            _NAME,
            ("Status",),
            ("Roles",),
            _AGE,
            ("Version",),
            ("Internal-IP", 1),
            ("External-IP", 1),
            ("OS-Image", 1),
            ("Kernel-Version", 1),
            ("Container-Runtime", 1),
        ),
        _node,
    ),
    EVENTS.resource: (
        (
            ("Last Seen",),
            ("Type",),
            ("Reason",),
            ("Object",),
            ("Subobject", 1),
            ("Source", 1),
            ("Message",),
            ("First Seen", 1),
            ("Count", 1, "integer"),
            ("Name", 1),
        ),
        _event,
    ),
    LEASES.resource: ((_NAME, ("Holder",), _AGE), _lease),
    NAMESPACES.resource: ((_NAME, ("Status",), _AGE), _namespace),
    PDBS.resource: (
        (_NAME, ("Min Available",), ("Max Unavailable",), ("Allowed Disruptions", 0, "integer"), _AGE),
        _budget,
    ),
    PRIORITY_CLASSES.resource: (
        (_NAME, ("Value", 0, "integer"), ("Global-Default", 0, "boolean"), _AGE, ("PreemptionPolicy",)),
        _priority_class,
    ),
}
