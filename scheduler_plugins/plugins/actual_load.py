"""ActualLoad: places pods by what nodes really use, beside what their pods ask for.

Score: `loadWeight` times the free share by measured load, the rest times the free share by requests, the weighted
mean over `resources`; both after the placement. Best-effort pods are rated by what is sold instead of what is asked.
Filter: keeps pods off hot spots, nodes whose LS and SYSTEM use with this pod is above a threshold now, or at the
expected peak (the percentile that the predictor was asked for). Best-effort pods do not add to that: they give way.
A node whose load is not known scores 0, and is refused to the tiers that `refuseUnknown` names.

Registered three times: ActualLoad does both, ActualLoadScore and ActualLoadFilter one each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from scheduler_plugins.framework.events import NODE, POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import (
    MAX_SCORE,
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ScorePlugin,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.score_reasons import MOST_REASONS, ScoreReasons
from scheduler_plugins.framework.snapshot import Bools, Column, Floats, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import assigned, node_of, pod_of
from scheduler_plugins.plugins.load_estimate import STOCKS, EstimatePercent, Stock
from scheduler_plugins.plugins.node_forecast import forecast_of, whole_seconds
from scheduler_plugins.plugins.node_load import Moment, NodeLoad, amount_of, why_unknown
from scheduler_plugins.plugins.rows import index_of
from slacktide.errors import SettingsError
from slacktide.forecast import trust
from slacktide.tier import Tier

_Percent = Annotated[float, Meta(gt=0, le=100)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Most use in percent of allocatable; None is no threshold."""

    cpu: _Percent | None = None
    memory: _Percent | None = None


class LoadResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A resource that Score looks at."""

    name: Stock
    weight: Annotated[int, Meta(ge=1, le=100)] = 1


class ActualLoadArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What load weighs against requests, and what a hot spot is.

    load_weight       share of the score that measured load has; requests have the rest
    thresholds        most LS and SYSTEM use now, in percent of allocatable
    peak_thresholds   most at the expected peak
    estimate_percent  what a pod that is too new to show uses of its request or limit
    new_pod_seconds   a pod bound this long before the measure or later is too new to show
    refuse_unknown    pods that are kept off nodes whose load is not known: none, be or all
    """

    load_weight: Annotated[float, Meta(ge=0, le=1)] = 0.5
    resources: Annotated[tuple[LoadResource, ...], Meta(min_length=1)] = (
        LoadResource(name="cpu"),
        LoadResource(name="memory"),
    )
    thresholds: Thresholds = Thresholds(cpu=65.0, memory=95.0)
    peak_thresholds: Thresholds = Thresholds()
    estimate_percent: EstimatePercent = EstimatePercent()
    new_pod_seconds: Annotated[float, Meta(ge=0, le=3600)] = 60.0
    refuse_unknown: Literal["none", "be", "all"] = "be"


class _Limit(msgspec.Struct, frozen=True):
    moment: Moment
    stock: Stock
    percent: float

    @property
    def most(self) -> float:
        """Share of allocatable from which the whole percentage, halves up, is above the threshold."""
        return (math.floor(self.percent) + 0.5) / 100.0

    @property
    def what(self) -> str:
        when = "" if self.moment == "now" else " at the expected peak"
        return f"node(s) too busy{when}: {self.stock}"


_UNKNOWN_KIND: Final = 0
_ROUNDING: Final = 1e-9


class ActualLoadFilter(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """The filter alone."""

    name = "ActualLoadFilter"

    def __init__(self, args: ActualLoadArgs, handle: Handle) -> None:
        self._now = whole_seconds(handle.wall_seconds)
        self._refuse_unknown = args.refuse_unknown
        given: tuple[tuple[Moment, Thresholds], ...] = (("now", args.thresholds), ("peak", args.peak_thresholds))
        self._limits = tuple(
            _Limit(moment, stock, percent)
            for moment, thresholds in given
            for stock, percent in zip(STOCKS, (thresholds.cpu, thresholds.memory), strict=True)
            if percent is not None
        )
        what = [(limit.moment, limit.stock) for limit in self._limits]
        self._measure = NodeLoad(what, args.estimate_percent, args.new_pod_seconds, handle)

    def columns(self) -> Sequence[Column]:
        """Measures and estimates."""
        return self._measure.columns()

    def _refuses_unknown(self, pod: PodInfo) -> bool:
        return self._refuse_unknown == "all" or (self._refuse_unknown == "be" and pod.tier is Tier.BE)

    def _adds(self, pod: PodInfo, stock: Stock) -> int:
        return 0 if pod.tier is Tier.BE else self._measure.estimate(pod, stock)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods of a DaemonSet, which belong on every node, and where nothing is a threshold."""
        return PreFilterResult() if self._judges(pod) else PreFilterResult(SKIP)

    def _judges(self, pod: PodInfo) -> bool:
        daemon = any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references)
        return not daemon and bool(self._limits or self._refuses_unknown(pod))

    def reuse_key(self, pod: PodInfo) -> Hashable:
        """Whether it is judged, whether nodes of unknown load are refused to it, and what it adds."""
        if not self._judges(pod):
            return ()
        return (self._refuses_unknown(pod), *(self._adds(pod, limit.stock) for limit in self._limits))

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable:  # noqa: ARG002  # part of the protocol
        """The second by which measures age."""
        return self._now() if self._judges(pod) else ()

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses hot spots, and nodes whose load is not known where that is wanted."""
        now, at = self._now(), index_of(snapshot, rows)
        fresh = self._measure.trust(snapshot, at, now) > 0
        used = [self._used(pod, snapshot, at, limit) for limit in self._limits]
        most: list[Floats] = [snapshot.allocatable(limit.stock)[at] * np.float64(limit.most) for limit in self._limits]
        kinds = np.zeros(len(rows), dtype=np.int8)
        for bit, (now_used, bound) in enumerate(zip(used, most, strict=True)):
            kinds |= (now_used >= bound).astype(np.int8) << bit
        kinds *= fresh
        refused = kinds > _UNKNOWN_KIND
        unknown = ~fresh
        if self._refuses_unknown(pod):
            for now_used in used:
                unknown |= np.isnan(now_used)
            refused |= unknown
        if not refused.any():
            return Verdicts.where(refused, Code.UNSCHEDULABLE, lambda _: ())
        return Verdicts.where(
            refused,
            np.where(unknown, np.int8(Code.UNRESOLVABLE), np.int8(Code.UNSCHEDULABLE)),
            lambda i: self._explain(snapshot.nodes[rows[i]], now, int(kinds[i]), [float(one[i]) for one in used]),
            kinds=kinds,
            miss=_miss(kinds, used, most),
        )

    def _used(self, pod: PodInfo, snapshot: Snapshot, rows: Indices | slice, limit: _Limit) -> Floats:
        """Use with this pod."""
        used = self._measure.used(snapshot, rows, limit.moment, limit.stock)
        adds = self._adds(pod, limit.stock)
        return used + adds if adds else used

    def _explain(self, node: NodeInfo, now: float, kind: int, used: Sequence[float]) -> tuple[Reason, ...]:
        if kind == _UNKNOWN_KIND:
            return (Reason("node(s) whose load is not known", why_unknown(node, now)),)
        hot = [(limit, use) for bit, (limit, use) in enumerate(zip(self._limits, used, strict=True)) if kind >> bit & 1]
        reasons = []
        for limit, use in hot:
            percent = np.floor(100.0 * use / max(node.allocatable.get(limit.stock, 0), 1) + 0.5)
            detail = f"{percent:.0f} % of allocatable, at most {limit.percent:g} %"
            reasons.append(Reason(limit.what, detail, float(percent) - limit.percent))
        return tuple(reasons)

    def events_to_register(self) -> Sequence[Registration]:
        """A node with a lower load, a new one, or a pod that left before it showed in the load."""
        return (
            Registration(
                ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_ANNOTATION | Action.UPDATE_NODE_ALLOCATABLE),
                self._cooler,
            ),
            Registration(ClusterEvent(POD, Action.DELETE), self._pod_left),
        )

    def _cooler(self, pod: PodInfo, _old: Any, new: Any) -> Hint:
        """Queue where the measure alone, without new pods, would let the pod pass."""
        node = node_of(new)
        forecast = forecast_of(node)
        if isinstance(forecast, str) or trust(forecast, self._now()) <= 0:
            return Hint.SKIP if self._refuses_unknown(pod) else Hint.QUEUE
        allocatable = NodeInfo.of(node).allocatable
        for limit in self._limits:
            used = amount_of(forecast, limit.moment, limit.stock)
            if used is None:
                continue
            if used + self._adds(pod, limit.stock) >= limit.most * allocatable.get(limit.stock, 0):
                return Hint.SKIP
        return Hint.QUEUE

    @staticmethod
    def _pod_left(_pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        return Hint.QUEUE if assigned(gone) and gone.tier is not Tier.BE else Hint.SKIP


class ActualLoadScore(ScorePlugin, ScoreReasons, Reusable):
    """The score alone."""

    name = "ActualLoadScore"

    def __init__(self, args: ActualLoadArgs, handle: Handle) -> None:
        names = [resource.name for resource in args.resources]
        if len(set(names)) < len(names):
            raise SettingsError([f"arguments of plugin {self.name}: resources names one twice: {', '.join(names)}"])
        self._now = whole_seconds(handle.wall_seconds)
        what: list[tuple[Moment, Stock]] = [("now", name) for name in names]
        self._load = NodeLoad(what, args.estimate_percent, args.new_pod_seconds, handle)
        self._by_load = args.load_weight
        self._resources = args.resources
        self._total = sum(resource.weight for resource in args.resources)
        self._batch = {"cpu": handle.cpu_resource, "memory": handle.memory_resource}

    def columns(self) -> Sequence[Column]:
        """Measures and estimates."""
        return self._load.columns()

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100 after the placement; 0 where the load is not known."""
        total, at = np.zeros(len(rows)), index_of(snapshot, rows)
        for resource in self._resources:
            one = np.zeros(len(rows))
            if self._by_load > 0:
                one += self._by_load * self._free_by_load(pod, snapshot, at, resource.name)
            if self._by_load < 1:
                one += (1.0 - self._by_load) * self._free_by_requests(pod, snapshot, at, resource.name)
            total += resource.weight * one
        if self._by_load > 0:
            total *= self._load.trust(snapshot, at, self._now())
            total[self._unknown(snapshot, at)] = 0.0
        # Shares such as 0.7 and 0.3 must not make 89.999 of 90.
        scores: NDArray[Any] = np.floor(total / self._total + _ROUNDING)
        return scores

    def _unknown(self, snapshot: Snapshot, rows: Indices | slice) -> Bools:
        unknown: Bools = self._load.trust(snapshot, rows, self._now()) <= 0
        for resource in self._resources:
            unknown |= np.isnan(self._load.used(snapshot, rows, "now", resource.name))
        return unknown

    def reuse_key(self, pod: PodInfo) -> Hashable:
        """What it asks for, and what it is going to use."""
        be = pod.tier is Tier.BE
        asks = (pod.batch_cpu_millis, pod.batch_memory_bytes)
        asks = asks if be else (pod.nonzero_cpu_millis, pod.nonzero_memory_bytes)
        return (be, *asks, *(self._load.estimate(pod, resource.name) for resource in self._resources))

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable:  # noqa: ARG002  # part of the protocol
        """The second by which measures age, where they count."""
        return self._now() if self._by_load > 0 else ()

    def _free_by_load(self, pod: PodInfo, snapshot: Snapshot, rows: Indices | slice, stock: Stock) -> Floats:
        used = self._load.used(snapshot, rows, "now", stock) + self._load.estimate(pod, stock)
        if pod.tier is Tier.BE:
            used = used + snapshot.requested(self._batch[stock])[rows]
        return _free(snapshot.allocatable(stock)[rows], used)

    def _free_by_requests(self, pod: PodInfo, snapshot: Snapshot, rows: Indices | slice, stock: Stock) -> Floats:
        """As the stock score LeastAllocated: a container that asks for nothing counts 100m and 200 MiB."""
        if pod.tier is Tier.BE:
            name = self._batch[stock]
            asked = pod.batch_cpu_millis if stock == "cpu" else pod.batch_memory_bytes
            return _free(snapshot.allocatable(name)[rows], snapshot.requested(name)[rows] + asked)
        column = "nonzero_cpu_millis" if stock == "cpu" else "nonzero_memory_bytes"
        asked = pod.nonzero_cpu_millis if stock == "cpu" else pod.nonzero_memory_bytes
        return _free(snapshot.allocatable(stock)[rows], snapshot.column(column)[rows] + asked)

    def score_reasons(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Mapping[str, str]:  # noqa: ARG002  # part of the extension point
        """Nodes whose load is not known."""
        if self._by_load <= 0:
            return {}
        now = self._now()
        unknown = (
            snapshot.nodes[row] for row in rows[self._unknown(snapshot, index_of(snapshot, rows))][:MOST_REASONS]
        )
        return {node.name: f"load is not known: {why_unknown(node, now)}" for node in unknown}


class ActualLoad(ActualLoadFilter, ActualLoadScore):
    """Both."""

    name = "ActualLoad"

    def __init__(self, args: ActualLoadArgs, handle: Handle) -> None:
        ActualLoadFilter.__init__(self, args, handle)
        ActualLoadScore.__init__(self, args, handle)

    def columns(self) -> Sequence[Column]:
        """Those of both."""
        return (*ActualLoadFilter.columns(self), *ActualLoadScore.columns(self))

    def reuse_key(self, pod: PodInfo) -> Hashable:
        """Those of both."""
        return (ActualLoadFilter.reuse_key(self, pod), ActualLoadScore.reuse_key(self, pod))

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable:
        """Those of both."""
        return (ActualLoadFilter.reuse_now(self, pod, snapshot), ActualLoadScore.reuse_now(self, pod, snapshot))


def _miss(kinds: NDArray[np.int8], used: Sequence[Floats], most: Sequence[Floats]) -> Floats:
    """How far above the thresholds each hot spot is, as shares of them summed; no measure for what is not known."""
    over = np.zeros(len(kinds))
    for use, bound in zip(used, most, strict=True):
        over += np.fmax(use / np.maximum(bound, 1.0) - 1.0, 0.0)
    return np.where(kinds > _UNKNOWN_KIND, over, np.inf)


def _free(allocatable: NDArray[np.int64], used: NDArray[Any]) -> Floats:
    """Free percent in whole numbers, 0 where more is used than there is; NaN stays."""
    free: Floats = np.floor(np.maximum(allocatable - used, 0) * MAX_SCORE / np.maximum(allocatable, 1))
    return free


def register(registry: Registry) -> None:
    """Make the plugins known by their names."""
    registry.register(ActualLoad.name, ActualLoad, ActualLoadArgs)
    registry.register(ActualLoadScore.name, ActualLoadScore, ActualLoadArgs)
    registry.register(ActualLoadFilter.name, ActualLoadFilter, ActualLoadArgs)
