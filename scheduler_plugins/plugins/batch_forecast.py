"""BatchForecast: places best-effort pods by the room that the forecast of each node leaves.

Filter: the forecast must be there, readable, fresh or ageing by this process's clock, not closed, look as far ahead as
the pod says that it lives, and leave room for the pod beside what is sold (batch requests of all pods on the node,
assumed ones included). Missing or unreadable means no room, never some. Score: see `batch_score`. Pods of other tiers
are not judged.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Column, Floats, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.amounts import in_words
from scheduler_plugins.plugins.batch_room import batch_resources, scaled
from scheduler_plugins.plugins.batch_score import BatchForecastArgs, BatchScore
from scheduler_plugins.plugins.expected_life import expected_life
from scheduler_plugins.plugins.hints import assigned, node_of, pod_of
from scheduler_plugins.plugins.node_forecast import (
    AGE_COLUMNS,
    MISSING,
    forecast_of,
    latest_of,
    reader,
    trust,
    trust_in,
    whole_seconds,
)
from scheduler_plugins.plugins.rows import index_of
from slacktide import forecast as wire
from slacktide.names import EXPECTED_LIFE_ANNOTATION, FORECAST_ANNOTATION
from slacktide.tier import Tier

_OPEN: Final = "BatchForecast/open"
_READABLE: Final = "BatchForecast/readable"
_HORIZON: Final = "BatchForecast/horizon"

_NO_FORECAST: Final = 1
_UNREADABLE: Final = 2
_EXPIRED: Final = 3
_FUTURE: Final = 4
_CLOSED: Final = 5
_TOO_SHORT: Final = 6
_LACKING: Final = 8
_NEVER: Final = 16
"""Kinds of refusal. To the last two the resources that lack are added, 1 and 2."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """What Filter found of the nodes that it was asked about, one value a node."""

    now: float
    life: float | None
    kinds: NDArray[np.int8]
    rooms: tuple[NDArray[np.int64], ...]


class BatchForecast(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, EnqueueExtensions, Reusable):
    """Judges best-effort pods only."""

    name = "BatchForecast"

    def __init__(self, args: BatchForecastArgs, handle: Handle) -> None:
        self._now = whole_seconds(handle.wall_seconds)
        self._resources = batch_resources(handle)
        self._life_counts = args.refuse_beyond_horizon
        self._score = BatchScore(args, handle, self._resources)
        self._words = functools.partial(
            in_words, millis=frozenset({handle.cpu_resource}), in_bytes=frozenset({handle.memory_resource})
        )

    def columns(self) -> Sequence[Column]:
        """Age, openness, horizon, reclaimable amounts and capacity, and what Score needs."""
        return (
            *AGE_COLUMNS,
            Column(_READABLE, "int8", _readable, of_object=True),
            Column(_OPEN, "bool", reader(_is_open), of_object=True),
            Column(_HORIZON, "float64", reader(_horizon), of_object=True),
            *(column for resource in self._resources for column in resource.columns()),
            *self._score.columns(),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for every tier but best effort; a pod whose stated life cannot be read is refused as a whole."""
        if pod.tier is not Tier.BE:
            return PreFilterResult(SKIP)
        life = expected_life(pod) if self._life_counts else None
        if isinstance(life, str):
            return PreFilterResult(unresolvable(Reason("pod's expected life cannot be read", life)))
        return PreFilterResult()

    def _life(self, pod: PodInfo) -> float | None:
        life = expected_life(pod) if self._life_counts else None
        return None if isinstance(life, str) else life

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes without a usable forecast or without room."""
        now, life = self._now(), self._life(pod)
        if len(rows) == 1 and self._surely_fits(pod, snapshot, int(rows[0]), now, life):
            return Verdicts.passed(1)
        at = index_of(snapshot, rows)
        trusted = trust(snapshot, at, now)
        share = _usable_share(snapshot, at, trusted)
        unusable: Bools = share <= 0 if share is not None else np.zeros(len(rows), dtype=np.bool_)
        if life is not None:
            unusable |= snapshot.column(_HORIZON)[at] < life
        rooms = tuple(scaled(resource.left(snapshot, at), share) for resource in self._resources)
        lacking = np.zeros(len(rows), dtype=np.int8)
        for bit, (resource, room) in enumerate(zip(self._resources, rooms, strict=True)):
            need = resource.need(pod)
            if need:
                lacking |= (need > room).astype(np.int8) << bit
        refused = unusable | (lacking > 0)
        if not refused.any():
            return Verdicts.where(refused, Code.UNSCHEDULABLE, lambda _: ())
        hopeless, never = self._hopeless(pod, snapshot, at, share)
        kinds = self._kinds(snapshot, at, trusted, now, never, lacking)
        judged = _Judged(now, life, kinds, rooms)
        codes = np.where(hopeless | unusable, np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE))
        return Verdicts.where(
            refused,
            codes,
            lambda i: self._explain(pod, snapshot.nodes[rows[i]], judged, i),
            kinds=kinds,
            miss=self._miss(pod, judged),
        )

    def _surely_fits(self, pod: PodInfo, snapshot: Snapshot, row: int, now: float, life: float | None) -> bool:
        """Whether a fresh forecast of an open node leaves room; where not, more has to be looked at."""
        if trust_in(snapshot, row, now) < 1.0 or not snapshot.column(_OPEN).item(row):
            return False
        if life is not None and snapshot.column(_HORIZON).item(row) < life:
            return False
        return all(0 < resource.need(pod) <= resource.left_on(snapshot, row) for resource in self._resources)

    def _hopeless(
        self, pod: PodInfo, snapshot: Snapshot, rows: Indices | slice, share: Floats | None
    ) -> tuple[Bools, NDArray[np.int8]]:
        """(nodes that would not have room if nothing were sold there, resources that the whole node lacks)."""
        never = np.zeros(len(snapshot.column(_OPEN)[rows]), dtype=np.int8)
        hopeless = never > 0
        for bit, resource in enumerate(self._resources):
            need = resource.need(pod)
            if need:
                hopeless |= need > scaled(resource.reclaimable(snapshot, rows), share)
                never |= (need > resource.capacity_of(snapshot, rows)).astype(np.int8) << bit
        return hopeless, never

    @staticmethod
    def _kinds(
        snapshot: Snapshot,
        rows: Indices | slice,
        trusted: Floats,
        now: float,
        never: NDArray[np.int8],
        lacking: NDArray[np.int8],
    ) -> NDArray[np.int8]:
        """The first thing that is wrong with each node, in the order in which people should hear of it."""
        kinds = np.where(lacking > 0, np.int8(_LACKING) + lacking, np.int8(_TOO_SHORT)).astype(np.int8)
        np.copyto(kinds, _CLOSED, where=~snapshot.column(_OPEN)[rows])
        expired = trusted <= 0
        if expired.any():
            readable = snapshot.column(_READABLE)[rows]
            np.copyto(kinds, _EXPIRED, where=expired)
            np.copyto(kinds, _FUTURE, where=expired & (snapshot.column(AGE_COLUMNS[0].name)[rows] > now))
            np.copyto(kinds, readable, where=readable > 0)
        np.copyto(kinds, _NEVER + never, where=never > 0)
        return kinds

    def _miss(self, pod: PodInfo, judged: _Judged) -> NDArray[np.float64]:
        """What lacks, as a share of what is asked, where that is why; elsewhere there is no such measure."""
        lacks = np.zeros(len(judged.kinds))
        for resource, room in zip(self._resources, judged.rooms, strict=True):
            need = resource.need(pod)
            if need:
                lacks += np.clip((need - room) / need, 0.0, 1.0)
        return np.where((judged.kinds & _LACKING) > 0, lacks, np.inf)

    def _explain(self, pod: PodInfo, node: NodeInfo, judged: _Judged, i: int) -> tuple[Reason, ...]:
        kind = int(judged.kinds[i])
        if kind & _NEVER:
            return self._never(pod, node)
        forecast = latest_of(node)
        if isinstance(forecast, str):
            if forecast == MISSING:
                return (Reason("node(s) without a forecast", f"no annotation {FORECAST_ANNOTATION}"),)
            return (Reason("node(s) with a forecast that cannot be read", forecast),)
        if kind in (_EXPIRED, _FUTURE):
            return (_expired(forecast, judged.now),)
        if kind == _CLOSED:
            return (Reason("node(s) closed for batch work", forecast.closed),)
        if kind == _TOO_SHORT:
            return (_too_short(forecast, judged.life or 0.0),)
        return self._lacking(pod, judged, i)

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

    def _lacking(self, pod: PodInfo, judged: _Judged, i: int) -> tuple[Reason, ...]:
        reasons = []
        for resource, rooms in zip(self._resources, judged.rooms, strict=True):
            need, room = resource.need(pod), max(0, int(rooms[i]))
            if need > room:
                detail = f"needs {self._words(resource.name, need)}, room {self._words(resource.name, room)}"
                reasons.append(Reason(f"no forecast room for {resource.name}", detail, float(need - room)))
        return tuple(reasons)

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Status:  # noqa: ARG002  # part of the extension point
        """Skip for every tier but best effort."""
        return SUCCESS if pod.tier is Tier.BE else SKIP

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100, see `batch_score`."""
        return self._score.of(pod, snapshot, rows)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Batch requests and expected life of a best-effort pod; all others are alike."""
        if pod.tier is not Tier.BE:
            return ()
        life = expected_life(pod) if self._life_counts else None
        return None if isinstance(life, str) else (life, *(resource.need(pod) for resource in self._resources))

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:  # noqa: ARG002  # part of the protocol
        """The second by which forecasts age."""
        return self._now() if pod.tier is Tier.BE else ()

    def events_to_register(self) -> Sequence[Registration]:
        """A forecast that leaves more, more capacity, a new node, or a best-effort pod that left or shrank."""
        return (
            Registration(
                ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_ANNOTATION | Action.UPDATE_NODE_ALLOCATABLE),
                self._node_offers,
                lambda pod: tuple(resource.need(pod) for resource in self._resources),
            ),
            Registration(ClusterEvent(POD, Action.DELETE), self._pod_left, lambda _: None),
            Registration(ClusterEvent(POD, Action.UPDATE_POD_SCALE_DOWN), self._pod_shrank),
        )

    def _node_offers(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        """Skip only what surely does not help: too little for the pod, or no more than a fresh forecast offered.

        A node that had no usable forecast and has one now is always tried: where it does not fit, the pod's reason
        changes from "without a forecast" to the room that there is.
        """
        node = node_of(new)
        now = self._now()
        forecast = forecast_of(node)
        if isinstance(forecast, str) or forecast.closed or wire.trust(forecast, now) <= 0:
            return Hint.SKIP
        before = forecast_of(node_of(old)) if old is not None else MISSING
        if isinstance(before, str) or before.closed or wire.trust(before, now) <= 0:
            return Hint.QUEUE
        if any(r.need(pod) > (r.of(forecast.reclaimable) or 0) for r in self._resources):
            return Hint.SKIP
        if wire.freshness(before, now) is not wire.Freshness.FRESH:
            return Hint.QUEUE
        if node_of(old).status.capacity != node.status.capacity:
            return Hint.QUEUE
        grew = any((r.of(forecast.reclaimable) or 0) > (r.of(before.reclaimable) or 0) for r in self._resources)
        grew = grew or (forecast.horizon_seconds or 0) > (before.horizon_seconds or 0)
        return Hint.QUEUE if grew else Hint.SKIP

    def _pod_left(self, _pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        sold = any(resource.need(gone) for resource in self._resources)
        return Hint.QUEUE if assigned(gone) and sold else Hint.SKIP

    @staticmethod
    def _pod_shrank(pod: PodInfo, _old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        return Hint.QUEUE if assigned(changed) or changed.uid == pod.uid else Hint.SKIP


def _is_open(forecast: wire.Forecast) -> bool:
    return not forecast.closed


def _horizon(forecast: wire.Forecast) -> float | None:
    return forecast.horizon_seconds


def _usable_share(snapshot: Snapshot, rows: Indices | slice, trusted: Floats) -> Floats | None:
    """Share of the room that may be sold, 0 where the node is closed; None where that is all of it on every node."""
    is_open = snapshot.column(_OPEN)[rows]
    if is_open.all():
        return None if (trusted == 1.0).all() else trusted
    share: Floats = np.where(is_open, trusted, 0.0)
    return share


def _readable(info: NodeInfo) -> int:
    """0, or the kind of refusal that the annotation as such leads to."""
    forecast = latest_of(info)
    if isinstance(forecast, str):
        return _NO_FORECAST if forecast == MISSING else _UNREADABLE
    return 0


def _expired(forecast: wire.Forecast, now: float) -> Reason:
    age = now - forecast.at
    if age < 0:
        return Reason("forecast is from the future", f"{-age:.0f} s ahead of this clock", -age)
    late = age - wire.AGEING_TTLS * forecast.ttl_seconds
    return Reason("forecast expired", f"{late:.0f} s ago", late)


def _too_short(forecast: wire.Forecast, life: float) -> Reason:
    text = "forecast does not look as far ahead as the pod lives"
    if forecast.horizon_seconds is None:
        return Reason(text, f"{EXPECTED_LIFE_ANNOTATION} {life:.0f}, the forecast does not say how far it looks")
    detail = f"{EXPECTED_LIFE_ANNOTATION} {life:.0f}, it looks {forecast.horizon_seconds:.0f} s ahead"
    return Reason(text, detail, life - forecast.horizon_seconds)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(BatchForecast.name, BatchForecast, BatchForecastArgs)
