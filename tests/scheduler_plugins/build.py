"""Makers of small objects for the scheduler's tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.status import SUCCESS
from slacktide import names
from slacktide.forecast import Amount, Forecast, Terms, encode
from slacktide.objects import Node, Pod
from slacktide.settings import ResourceNames

READER = PodReader(ResourceNames())
GI = 1 << 30
_serial = itertools.count(1)


class Clock:
    """A clock that moves when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


class Silent:
    """Observer of framework and queue that keeps what it is told."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        self.hint_errors: list[str] = []
        self.handled_events: list[str] = []
        self.took: list[tuple[str, str, str]] = []
        self.over: list[tuple[str, str]] = []
        self.hints: list[tuple[str, str, str]] = []

    def extension_point(self, profile: str, point: str, status: str, seconds: float) -> None:
        pass

    def evaluated(self, profile: str, plugins: Sequence[str], point: str) -> None:
        self.asked += [(plugin, point) for plugin in plugins]

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        self.took.append((plugin, point, status))

    def over_budget(self, plugin: str, point: str, seconds: float) -> None:
        self.over.append((plugin, point))

    def incoming(self, queue: str, event: str) -> None:
        self.moves.append((queue, event))

    def handled(self, event: str, seconds: float) -> None:
        self.handled_events.append(event)

    def hinted(self, plugin: str, event: str, outcome: str, seconds: float) -> None:
        self.hints.append((plugin, event, outcome))

    def hint_failed(self, plugin: str, event: str, error: Exception) -> None:
        self.hint_errors.append(plugin)


def pod(name: str = "p", requests: dict[str, Any] | None = None, **spec: Any) -> Pod:
    """A pod from API-style fields of its spec; `metadata` and `status` may be given too."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **spec.pop("metadata", {})}
    status = spec.pop("status", {"phase": "Pending"})
    containers = spec.pop("containers", [{"name": "main", "resources": {"requests": requests or {}}}])
    body = {
        "metadata": {"resourceVersion": str(next(_serial)), **metadata},
        "spec": {"schedulerName": names.SCHEDULER_NAME, "containers": containers, **spec},
        "status": status,
    }
    return msgspec.convert(body, Pod)


def be(name: str = "p", cpu: int = 1000, memory: int = 0, **spec: Any) -> Pod:
    """A best-effort pod that asks for batch resources."""
    requests = {names.BATCH_CPU: str(cpu)} | ({names.BATCH_MEMORY: str(memory)} if memory else {})
    return pod(name, requests, **spec)


def info(*args: Any, **kwargs: Any) -> PodInfo:
    return READER.read(pod(*args, **kwargs))


def be_info(*args: Any, **kwargs: Any) -> PodInfo:
    return READER.read(be(*args, **kwargs))


def node(name: str = "n", allocatable: dict[str, Any] | None = None, **fields: Any) -> Node:
    """A node; `labels`, `annotations`, `capacity`, `conditions` and spec fields may be given."""
    offered = {"cpu": "8", "memory": "32Gi", "pods": "110"} if allocatable is None else allocatable
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(next(_serial)),
            "labels": fields.pop("labels", {}),
            "annotations": fields.pop("annotations", {}),
        },
        "status": {
            "allocatable": offered,
            "capacity": fields.pop("capacity", offered),
            "conditions": fields.pop("conditions", []),
        },
        "spec": fields,
    }
    return msgspec.convert(body, Node)


def forecast(
    cpu: int | None = 4000, memory: int | None = 8 * GI, *, at: float, ttl: float = 60, closed: str = ""
) -> str:
    """Text of the forecast annotation."""
    nothing = Amount()
    terms = Terms(capacity=nothing, reserve=nothing, peak=nothing, now=nothing, sold=nothing)
    return encode(
        Forecast(
            at=at,
            ttl_seconds=ttl,
            peak=nothing,
            reclaimable=Amount(cpu_millis=cpu, memory_bytes=memory),
            terms=terms,
            closed=closed,
        )
    )


def offering(name: str = "n", text: str | None = None, **fields: Any) -> Node:
    """A node of 8 CPUs that offers all of them as batch resources, with this forecast annotation."""
    offered = {
        "cpu": "8",
        "memory": "32Gi",
        "pods": "110",
        names.BATCH_CPU: "8000",
        names.BATCH_MEMORY: str(32 * GI),
    }
    annotations = {} if text is None else {names.FORECAST_ANNOTATION: text}
    return node(name, offered, annotations=annotations, **fields)


def handle(wall: Clock | None = None) -> Handle:
    return Handle(
        wall_seconds=wall or Clock(),
        bind=lambda pod, node: SUCCESS,
        cpu_resource=names.BATCH_CPU,
        memory_resource=names.BATCH_MEMORY,
    )


def framework(*plugins: Any, weights: dict[str, int] | None = None, observer: Any = None, **more: Any) -> Framework:
    """A profile of these plugins, with order and binding added where they are missing."""
    from scheduler_plugins.plugins.default_binder import DefaultBinder
    from scheduler_plugins.plugins.priority_sort import PrioritySort

    present = {plugin.name for plugin in plugins}
    extra = [p for p in (PrioritySort(), DefaultBinder(handle())) if p.name not in present]
    return Framework("test", [*plugins, *extra], weights or {}, observer or Silent(), **more)


def snapshot_of(profile: Framework, nodes: list[Node], placed: dict[str, list[Pod]] | None = None) -> Snapshot:
    """Snapshot of these nodes with pods on them (node name -> pods)."""
    cache = Cache()
    for one in nodes:
        cache.set_node(one)
    for name, pods in (placed or {}).items():
        for one in pods:
            cache.add_pod(READER.read(one).on(name))
    snapshot = profile.new_snapshot()
    cache.refresh(snapshot)
    return snapshot
