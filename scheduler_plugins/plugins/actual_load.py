"""ActualLoad: places pods by what nodes really use, beside what their pods ask for.

Score: `loadWeight` times the free share by measured load, the rest times the free share by requests, the weighted
mean over `resources`; both after the placement. Best-effort pods are rated by what is sold instead of what is asked.
Filter: keeps pods off hot spots, nodes whose LS and SYSTEM use with this pod is above a threshold now, or at the
expected peak (the percentile that the predictor was asked for). Best-effort pods do not add to that: they give way.
A node whose load is not known scores 0, and is refused to the tiers that `refuseUnknown` names.

Registered three times: ActualLoad does both, ActualLoadScore and ActualLoadFilter one each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from scheduler_plugins.framework.score_reasons import MOST_REASONS, ScoreReasons
from scheduler_plugins.framework.snapshot import Column, Floats, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import assigned, node_of, pod_of
from scheduler_plugins.plugins.load_estimate import STOCKS, EstimatePercent, Stock
from scheduler_plugins.plugins.node_forecast import forecast_of
from scheduler_plugins.plugins.node_load import Moment, NodeLoad, amount_of, why_unknown
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
    def what(self) -> str:
        when = "" if self.moment == "now" else " at the expected peak"
        return f"node(s) too busy{when}: {self.stock}"


_UNKNOWN_KIND: Final = 0
_ROUNDING: Final = 1e-9


class ActualLoadFilter(PreFilterPlugin, FilterPlugin, EnqueueExtensions):
    """The filter alone."""

    name = "ActualLoadFilter"

    def __init__(self, args: ActualLoadArgs, handle: Handle) -> None:
        self._wall = handle.wall_seconds
        self._refuse_unknown = args.refuse_unknown
        self._load = NodeLoad(args.estimate_percent, args.new_pod_seconds, handle)
        given: tuple[tuple[Moment, Thresholds], ...] = (("now", args.thresholds), ("peak", args.peak_thresholds))
        self._limits = tuple(
            _Limit(moment, stock, percent)
            for moment, thresholds in given
            for stock, percent in zip(STOCKS, (thresholds.cpu, thresholds.memory), strict=True)
            if percent is not None
        )

    def columns(self) -> Sequence[Column]:
        """Measures and estimates."""
        return self._load.columns()

    def _refuses_unknown(self, pod: PodInfo) -> bool:
        return self._refuse_unknown == "all" or (self._refuse_unknown == "be" and pod.tier is Tier.BE)

    def _adds(self, pod: PodInfo, stock: Stock) -> int:
        return 0 if pod.tier is Tier.BE else self._load.estimate(pod, stock)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods of a DaemonSet, which belong on every node, and where nothing is a threshold."""
        daemon = any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references)
        idle = not self._limits and not self._refuses_unknown(pod)
        return PreFilterResult(SKIP) if daemon or idle else PreFilterResult()

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses hot spots, and nodes whose load is not known where that is wanted."""
        now = self._wall()
        fresh = self._load.trust(snapshot, rows, now) > 0
        kinds = np.zeros(len(rows), dtype=np.int8)
        percents = []
        miss = np.zeros(len(rows))
        for bit, limit in enumerate(self._limits):
            percent = self._percent(pod, snapshot, rows, limit)
            percents.append(percent)
            hot = fresh & (percent > limit.percent)
            kinds |= hot.astype(np.int8) << bit
            miss += np.where(hot, percent - limit.percent, 0.0)
        refused = kinds > 0
        codes = np.full(len(rows), Code.UNSCHEDULABLE, dtype=np.int8)
        if self._refuses_unknown(pod):
            unknown = ~self._load.known(snapshot, rows, now, [(limit.moment, limit.stock) for limit in self._limits])
            refused |= unknown
            codes[unknown] = Code.UNRESOLVABLE
        return Verdicts.where(
            refused,
            codes,
            lambda i: self._explain(snapshot.nodes[rows[i]], now, int(kinds[i]), [float(p[i]) for p in percents]),
            kinds=kinds,
            miss=np.where(kinds > _UNKNOWN_KIND, miss, np.inf),
        )

    def _percent(self, pod: PodInfo, snapshot: Snapshot, rows: Indices, limit: _Limit) -> Floats:
        """Use with this pod in whole percent of allocatable, halves up, as people read it."""
        used = self._load.used(snapshot, rows, limit.moment, limit.stock) + self._adds(pod, limit.stock)
        percent: Floats = np.floor(100.0 * used / np.maximum(snapshot.allocatable(limit.stock)[rows], 1) + 0.5)
        return percent

    def _explain(self, node: NodeInfo, now: float, kind: int, percents: Sequence[float]) -> tuple[Reason, ...]:
        if kind == _UNKNOWN_KIND:
            return (Reason("node(s) whose load is not known", why_unknown(node, now)),)
        return tuple(
            Reason(limit.what, f"{percent:.0f} % of allocatable, at most {limit.percent:g} %", percent - limit.percent)
            for bit, (limit, percent) in enumerate(zip(self._limits, percents, strict=True))
            if kind >> bit & 1
        )

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
        if isinstance(forecast, str) or trust(forecast, self._wall()) <= 0:
            return Hint.SKIP if self._refuses_unknown(pod) else Hint.QUEUE
        allocatable = NodeInfo.of(node).allocatable
        for limit in self._limits:
            used = amount_of(forecast, limit.moment, limit.stock)
            if used is None:
                continue
            most = limit.percent + 0.5
            if 100.0 * (used + self._adds(pod, limit.stock)) >= most * max(allocatable.get(limit.stock, 0), 1):
                return Hint.SKIP
        return Hint.QUEUE

    @staticmethod
    def _pod_left(_pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        return Hint.QUEUE if assigned(gone) and gone.tier is not Tier.BE else Hint.SKIP


class ActualLoadScore(ScorePlugin, ScoreReasons):
    """The score alone."""

    name = "ActualLoadScore"

    def __init__(self, args: ActualLoadArgs, handle: Handle) -> None:
        names = [resource.name for resource in args.resources]
        if len(set(names)) < len(names):
            raise SettingsError([f"arguments of plugin {self.name}: resources names one twice: {', '.join(names)}"])
        self._wall = handle.wall_seconds
        self._load = NodeLoad(args.estimate_percent, args.new_pod_seconds, handle)
        self._by_load = args.load_weight
        self._resources = args.resources
        self._total = sum(resource.weight for resource in args.resources)
        self._batch = {"cpu": handle.cpu_resource, "memory": handle.memory_resource}

    def columns(self) -> Sequence[Column]:
        """Measures and estimates."""
        return self._load.columns()

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> NDArray[Any]:  # noqa: ARG002  # part of the extension point
        """0..100 after the placement; 0 where the load is not known."""
        total = np.zeros(len(rows))
        for resource in self._resources:
            one = np.zeros(len(rows))
            if self._by_load > 0:
                one += self._by_load * self._free_by_load(pod, snapshot, rows, resource.name)
            if self._by_load < 1:
                one += (1.0 - self._by_load) * self._free_by_requests(pod, snapshot, rows, resource.name)
            total += resource.weight * one
        if self._by_load > 0:
            trusted = self._load.trust(snapshot, rows, self._wall())
            total = np.where(np.isnan(total), 0.0, total * trusted)
        # Shares such as 0.7 and 0.3 must not make 89.999 of 90.
        scores: NDArray[Any] = np.floor(total / self._total + _ROUNDING)
        return scores

    def _free_by_load(self, pod: PodInfo, snapshot: Snapshot, rows: Indices, stock: Stock) -> Floats:
        used = self._load.used(snapshot, rows, "now", stock) + self._load.estimate(pod, stock)
        if pod.tier is Tier.BE:
            used = used + snapshot.requested(self._batch[stock])[rows]
        return _free(snapshot.allocatable(stock)[rows], used)

    def _free_by_requests(self, pod: PodInfo, snapshot: Snapshot, rows: Indices, stock: Stock) -> Floats:
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
        now = self._wall()
        known = self._load.known(snapshot, rows, now, [("now", resource.name) for resource in self._resources])
        unknown = (snapshot.nodes[row] for row in rows[~known][:MOST_REASONS])
        return {node.name: f"load is not known: {why_unknown(node, now)}" for node in unknown}


class ActualLoad(ActualLoadFilter, ActualLoadScore):
    """Both."""

    name = "ActualLoad"

    def __init__(self, args: ActualLoadArgs, handle: Handle) -> None:
        ActualLoadFilter.__init__(self, args, handle)
        ActualLoadScore.__init__(self, args, handle)


def _free(allocatable: NDArray[np.int64], used: NDArray[Any]) -> Floats:
    """Free percent in whole numbers, 0 where more is used than there is; NaN stays."""
    free: Floats = np.floor(np.maximum(allocatable - used, 0) * MAX_SCORE / np.maximum(allocatable, 1))
    return free


def register(registry: Registry) -> None:
    """Make the plugins known by their names."""
    registry.register(ActualLoad.name, ActualLoad, ActualLoadArgs)
    registry.register(ActualLoadScore.name, ActualLoadScore, ActualLoadArgs)
    registry.register(ActualLoadFilter.name, ActualLoadFilter, ActualLoadArgs)
