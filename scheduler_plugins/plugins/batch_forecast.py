"""BatchForecast: places best-effort pods by the room that the forecast of each node leaves.

Filter: the forecast must be there, readable, fresh or ageing by this process's clock, not closed, and leave room for
the pod beside what is sold (batch requests of all pods on the node, assumed ones included). Missing or unreadable means
no room, never some. Score: the share of the node that is still free at the forecast peak after the placement. Pods of
other tiers are not judged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import (
    MAX_SCORE,
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.snapshot import Bools, Column, Floats, Indices, Ints, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.amounts import in_words
from scheduler_plugins.plugins.hints import assigned, node_of, pod_of
from slacktide import forecast as wire
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node
from slacktide.tier import Tier

_AT: Final = "BatchForecast/at"
_TTL: Final = "BatchForecast/ttl"
_OPEN: Final = "BatchForecast/open"


@functools.lru_cache(maxsize=64)
def _decode(text: str) -> wire.Forecast | str:
    """The forecast, or what is wrong with the text. One node's columns are read one after the other."""
    try:
        return wire.decode(text)
    except wire.ForecastError as error:
        return str(error)


def _forecast_of(node: Node | None) -> wire.Forecast | str:
    text = node.metadata.annotations.get(FORECAST_ANNOTATION) if node is not None else None
    return "missing" if text is None else _decode(text)


def _reader(read: Callable[[wire.Forecast], float | int | bool | None]) -> Callable[[NodeInfo], float | int | bool]:
    """Column reader: 0 where there is no forecast or it does not say, so that there is no room."""

    def column(node: NodeInfo) -> float | int | bool:
        forecast = _forecast_of(node.node)
        value = None if isinstance(forecast, str) else read(forecast)
        return 0 if value is None else max(-LARGEST, min(LARGEST, value))

    return column


@dataclass(frozen=True, slots=True)
class _Resource:
    """One batch resource: its name, the stock resource behind it, and how to read the terms of a forecast."""

    name: str
    stock: str
    of: Callable[[wire.Amount], int | None]

    @property
    def reclaimable(self) -> str:
        return f"BatchForecast/reclaimable/{self.stock}"

    @property
    def capacity(self) -> str:
        return f"BatchForecast/capacity/{self.stock}"

    def need(self, pod: PodInfo) -> int:
        return pod.batch_cpu_millis if self.stock == "cpu" else pod.batch_memory_bytes


class BatchForecast(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions):
    """Judges best-effort pods only."""

    name = "BatchForecast"

    def __init__(self, handle: Handle) -> None:
        self._now = handle.wall_seconds
        self._resources = (
            _Resource(handle.cpu_resource, "cpu", lambda amount: amount.cpu_millis),
            _Resource(handle.memory_resource, "memory", lambda amount: amount.memory_bytes),
        )
        self._words = functools.partial(
            in_words, millis=frozenset({handle.cpu_resource}), in_bytes=frozenset({handle.memory_resource})
        )

    def columns(self) -> Sequence[Column]:
        """Age, openness, reclaimable amounts and node capacity."""
        columns = [
            Column(_AT, "float64", _reader(lambda forecast: forecast.at)),
            Column(_TTL, "float64", _reader(lambda forecast: forecast.ttl_seconds)),
            Column(_OPEN, "bool", _reader(lambda forecast: not forecast.closed)),
        ]
        for resource in self._resources:
            of, stock = resource.of, resource.stock
            columns.append(Column(resource.reclaimable, "int64", _reader(_reclaimable(of))))
            columns.append(Column(resource.capacity, "int64", _capacity(stock)))
        return columns

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for every tier but best effort."""
        return PreFilterResult() if pod.tier is Tier.BE else PreFilterResult(SKIP)

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes without a usable forecast or without room."""
        now = self._now()
        share = _trust(snapshot, rows, now)
        hopeless: Bools = share <= 0
        short = np.zeros(len(rows), dtype=np.bool_)
        for resource in self._resources:
            need = resource.need(pod)
            if not need:
                continue
            reclaimable = snapshot.column(resource.reclaimable)[rows]
            short |= need > _room(reclaimable, snapshot.requested(resource.name)[rows], share)
            hopeless |= need > _room(reclaimable, np.zeros(len(rows), dtype=np.int64), share)
            hopeless |= need > snapshot.column(resource.capacity)[rows]
        codes = np.where(hopeless, np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE))
        return Verdicts.where(short | hopeless, codes, lambda i: self._explain(pod, snapshot.nodes[rows[i]], now))

    def _explain(self, pod: PodInfo, node: NodeInfo, now: float) -> tuple[Reason, ...]:
        never = self._never(pod, node)
        if never:
            return never
        forecast = _forecast_of(node.node)
        if isinstance(forecast, str):
            if forecast == "missing":
                return (Reason("node(s) without a forecast", f"no annotation {FORECAST_ANNOTATION}"),)
            return (Reason("node(s) with a forecast that cannot be read", forecast),)
        if wire.freshness(forecast, now) is wire.Freshness.EXPIRED or wire.trust(forecast, now) <= 0:
            return (_expired(forecast, now),)
        if forecast.closed:
            return (Reason("node(s) closed for batch work", forecast.closed),)
        return self._lacking(pod, node, forecast, now)

    def _never(self, pod: PodInfo, node: NodeInfo) -> tuple[Reason, ...]:
        reasons = []
        for resource in self._resources:
            need, capacity = resource.need(pod), node.capacity.get(resource.stock, 0)
            if need > capacity:
                detail = f"asks for {self._words(resource.name, need)}, the whole node has " + self._words(
                    resource.name, capacity
                )
                reasons.append(
                    Reason(f"node(s) that can never have so much {resource.name}", detail, float(need - capacity))
                )
        return tuple(reasons)

    def _lacking(self, pod: PodInfo, node: NodeInfo, forecast: wire.Forecast, now: float) -> tuple[Reason, ...]:
        reasons = []
        for resource in self._resources:
            sold = wire.Amount(cpu_millis=node.requested.get(resource.name, 0), memory_bytes=0)
            offered = wire.Amount(cpu_millis=resource.of(forecast.reclaimable), memory_bytes=0)
            single = wire.Forecast(
                at=forecast.at,
                ttl_seconds=forecast.ttl_seconds,
                peak=forecast.peak,
                reclaimable=offered,
                terms=forecast.terms,
            )
            room, need = wire.room(single, sold, now).cpu_millis or 0, resource.need(pod)
            if need > room:
                detail = f"needs {self._words(resource.name, need)}, room {self._words(resource.name, room)}"
                reasons.append(Reason(f"no forecast room for {resource.name}", detail, float(need - room)))
        return tuple(reasons)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip for every tier but best effort."""
        return SUCCESS if pod.tier is Tier.BE else SKIP

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100: what is left of the room after the placement, against the node's capacity; the scarcer resource."""
        share = _trust(snapshot, rows, self._now())
        worst = np.ones(len(rows), dtype=np.float64)
        for resource in self._resources:
            sold = snapshot.requested(resource.name)[rows]
            left = _room(snapshot.column(resource.reclaimable)[rows], sold, share) - resource.need(pod)
            capacity = np.maximum(snapshot.column(resource.capacity)[rows], 1)
            worst = np.minimum(worst, left / capacity)
        return np.clip(worst, 0.0, 1.0) * MAX_SCORE

    def events_to_register(self) -> Sequence[Registration]:
        """A forecast that leaves more, more capacity, a new node, or a best-effort pod that left or shrank."""
        return (
            Registration(
                ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_ANNOTATION | Action.UPDATE_NODE_ALLOCATABLE),
                self._node_offers,
            ),
            Registration(ClusterEvent(POD, Action.DELETE), self._pod_left),
            Registration(ClusterEvent(POD, Action.UPDATE_POD_SCALE_DOWN), self._pod_shrank),
        )

    def _node_offers(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        """Skip only what surely does not help: too little for the pod, or no more than a fresh forecast offered.

        A node that had no usable forecast and has one now is always tried: where it does not fit, the pod's reason
        changes from "without a forecast" to the room that there is.
        """
        node = node_of(new)
        now = self._now()
        forecast = _forecast_of(node)
        if isinstance(forecast, str) or forecast.closed or wire.trust(forecast, now) <= 0:
            return Hint.SKIP
        before = _forecast_of(node_of(old)) if old is not None else "missing"
        if isinstance(before, str) or before.closed or wire.trust(before, now) <= 0:
            return Hint.QUEUE
        if any(r.need(pod) > (r.of(forecast.reclaimable) or 0) for r in self._resources):
            return Hint.SKIP
        if wire.freshness(before, now) is not wire.Freshness.FRESH:
            return Hint.QUEUE
        if node_of(old).status.capacity != node.status.capacity:
            return Hint.QUEUE
        grew = any((r.of(forecast.reclaimable) or 0) > (r.of(before.reclaimable) or 0) for r in self._resources)
        return Hint.QUEUE if grew else Hint.SKIP

    def _pod_left(self, _pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        sold = any(resource.need(gone) for resource in self._resources)
        return Hint.QUEUE if assigned(gone) and sold else Hint.SKIP

    @staticmethod
    def _pod_shrank(pod: PodInfo, _old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        return Hint.QUEUE if assigned(changed) or changed.uid == pod.uid else Hint.SKIP


def _reclaimable(of: Callable[[wire.Amount], int | None]) -> Callable[[wire.Forecast], int | None]:
    return lambda forecast: of(forecast.reclaimable)


def _capacity(stock: str) -> Callable[[NodeInfo], int]:
    return lambda node: node.capacity.get(stock, 0)


def _trust(snapshot: Snapshot, rows: Indices, now: float) -> Floats:
    """`slacktide.forecast.trust` of all rows at once, 0 where closed or without a forecast."""
    ttl = snapshot.column(_TTL)[rows]
    known = ttl > 0
    age = now - snapshot.column(_AT)[rows]
    over = age / np.where(known, ttl, 1.0) - 1.0
    share = np.where(over <= 0, 1.0, np.maximum(0.0, 1.0 - over / (wire.AGEING_TTLS - 1.0)))
    usable = known & snapshot.column(_OPEN)[rows] & (age >= -wire.MAX_CLOCK_SKEW_SECONDS)
    trusted: Floats = np.where(usable, share, 0.0)
    return trusted


def _room(reclaimable: Ints, sold: Ints, share: Floats) -> Ints:
    """`slacktide.forecast.room` of all rows at once."""
    room: Ints = np.maximum(0, ((reclaimable - sold) * share).astype(np.int64))
    return room


def _expired(forecast: wire.Forecast, now: float) -> Reason:
    age = now - forecast.at
    if age < 0:
        return Reason("forecast is from the future", f"{-age:.0f} s ahead of this clock", -age)
    late = age - wire.AGEING_TTLS * forecast.ttl_seconds
    return Reason("forecast expired", f"{late:.0f} s ago", late)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(BatchForecast.name, lambda _args, handle: BatchForecast(handle), NoArgs)
