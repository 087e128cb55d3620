"""Score of BatchForecast: how well a best-effort pod would fare on each node.

```
score = 100 * (headroom*w1 + even*w2 + trust * (steady*w3 + calm*w4 + cold*w5)) / (w1+w2+w3+w4+w5)
```

headroom  share of the node that is left of the room after the placement, the scarcer of CPU and memory
even      share of the room that is left halfway through the placement, likewise: so nodes of all sizes are filled alike
steady    1 less how far LS and SYSTEM are expected to rise above now, as a share of the node, the worse resource
calm      1 less how full the CPU gets: LS and SYSTEM now, all batch sold and this pod, as a share of the node
cold      1 less binds of best-effort pods in the last minutes, each fading with time: they do not show in samples yet
trust     of the forecast: 1 while fresh, falling to 0; headroom and even have it in the room already

What the forecast does not know counts as worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from scheduler_plugins.framework.interfaces import MAX_SCORE, Handle
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.snapshot import Column, Floats, Indices, Snapshot
from scheduler_plugins.plugins.batch_room import BatchResource, scaled
from scheduler_plugins.plugins.bound_at import bound_at
from scheduler_plugins.plugins.node_forecast import reader, share_of, trust, trust_in, whole_seconds
from scheduler_plugins.plugins.rows import index_of
from slacktide.errors import SettingsError
from slacktide.forecast import Forecast
from slacktide.tier import Tier

_RISE: Final = "BatchForecast/rise"
_BUSY: Final = "BatchForecast/busy"

_HALF: Final = 0.5
"""Of the pod that is to be placed: so the rooms of nodes of all sizes stay most even, in the least squares sense."""

_COLD_FADES: Final = 16.0
"""A bind this many fading times before the last one of its node adds nothing that could be seen."""

_Weight = Annotated[int, Meta(ge=0, le=100)]


class BatchForecastArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Weights of the five parts of the score, and what counts as many binds of late.

    refuse_beyond_horizon  refuse nodes whose forecast looks less far ahead than the pod says that it lives
    recent_seconds         a bind counts half after 0.7 of this, a tenth after 2.3 of it
    recent_binds           so many binds of this moment make a node hot
    """

    headroom_weight: _Weight = 1
    even_weight: _Weight = 5
    steady_weight: _Weight = 2
    calm_weight: _Weight = 1
    cold_weight: _Weight = 1
    refuse_beyond_horizon: bool = True
    recent_seconds: Annotated[float, Meta(ge=1, le=3600)] = 120.0
    recent_binds: Annotated[float, Meta(ge=1, le=1000)] = 5.0


class BatchScore:
    """Raises SettingsError for weights that are all 0."""

    def __init__(self, args: BatchForecastArgs, handle: Handle, resources: Sequence[BatchResource]) -> None:
        self._args = args
        self._wall = handle.wall_seconds
        self._now = whole_seconds(handle.wall_seconds)
        self._resources = resources
        self._total = args.headroom_weight + args.even_weight + args.steady_weight + args.calm_weight + args.cold_weight
        if not self._total:
            weights = "headroomWeight, evenWeight, steadyWeight, calmWeight and coldWeight"
            raise SettingsError([f"arguments of plugin BatchForecast: {weights} are all 0"])

    @property
    def _heat_column(self) -> str:
        return f"BatchForecast/heat/{self._args.recent_seconds}"

    def columns(self) -> Sequence[Column]:
        """Expected rise, busy share of the CPU, and binds of late."""
        return (
            Column(_RISE, "float64", reader(_rise, math.nan), of_object=True),
            Column(_BUSY, "float64", reader(_busy, math.nan), of_object=True),
            Column(self._heat_column, "float64", self._heat),
        )

    def of(self, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Floats:
        """0..100 for each of `rows`."""
        args, now = self._args, self._now()
        if len(rows) == 1:
            return np.array([self._of_one(pod, snapshot, int(rows[0]), now)])
        at = index_of(snapshot, rows)
        share = trust(snapshot, at, now)
        rest = np.zeros(len(rows))
        if args.steady_weight:
            rest += _good(snapshot.column(_RISE)[at]) * args.steady_weight
        if args.calm_weight:
            rest += _good(self._full(pod, snapshot, at)) * args.calm_weight
        if args.cold_weight:
            rest += _good(self._binds(snapshot, at, now) / args.recent_binds) * args.cold_weight
        headroom, even = self._left(pod, snapshot, at, share)
        score = headroom * args.headroom_weight + even * args.even_weight + share * rest
        of_hundred: Floats = np.minimum(score * (MAX_SCORE / self._total), MAX_SCORE)
        return of_hundred

    def _of_one(self, pod: PodInfo, snapshot: Snapshot, row: int, now: float) -> float:
        """The same for one node, operation by operation, so that the last digit is the same."""
        args, rest = self._args, 0.0
        share = trust_in(snapshot, row, now)
        cpu, worst, even = self._resources[0], 1.0, 1.0
        if args.steady_weight:
            rest += _good_of(snapshot.column(_RISE).item(row)) * args.steady_weight
        if args.calm_weight:
            sold = min(snapshot.nodes[row].requested.get(cpu.name, 0), LARGEST) + cpu.need(pod)
            full = snapshot.column(_BUSY).item(row) + sold / max(cpu.capacity_on(snapshot, row), 1)
            rest += _good_of(full) * args.calm_weight
        if args.cold_weight:
            logarithm = snapshot.column(self._heat_column).item(row) - now / args.recent_seconds
            binds = float(np.exp(logarithm)) if logarithm > -_COLD_FADES else 0.0
            rest += _good_of(binds / args.recent_binds) * args.cold_weight
        for resource in self._resources:
            need, left = resource.need(pod), resource.left_on(snapshot, row)
            room = resource.reclaimable_on(snapshot, row)
            if share < 1.0:
                left, room = int(max(0.0, left * share)), int(max(0.0, room * share))
            worst = min(worst, (left - need) / max(resource.capacity_on(snapshot, row), 1))
            even = min(even, (left - _HALF * need) / max(room, 1))
        score = max(worst, 0.0) * args.headroom_weight + max(even, 0.0) * args.even_weight + share * rest
        return min(score * (MAX_SCORE / self._total), float(MAX_SCORE))

    def _left(self, pod: PodInfo, snapshot: Snapshot, rows: Indices | slice, share: Floats) -> tuple[Floats, Floats]:
        """What is left: after the placement as a share of the node, halfway as one of the room; the scarcer each."""
        trusted = None if (share == 1.0).all() else share
        headroom, even = np.ones(len(share)), np.ones(len(share))
        for resource in self._resources:
            left, need = scaled(resource.left(snapshot, rows), trusted), resource.need(pod)
            room = scaled(resource.reclaimable(snapshot, rows), trusted)
            headroom = np.minimum(headroom, (left - need) / np.maximum(resource.capacity_of(snapshot, rows), 1))
            even = np.minimum(even, (left - _HALF * need) / np.maximum(room, 1))
        return np.maximum(headroom, 0.0), np.maximum(even, 0.0)

    def _full(self, pod: PodInfo, snapshot: Snapshot, rows: Indices | slice) -> Floats:
        cpu = self._resources[0]
        sold = snapshot.requested(cpu.name)[rows] + cpu.need(pod)
        full: Floats = snapshot.column(_BUSY)[rows] + sold / np.maximum(cpu.capacity_of(snapshot, rows), 1)
        return full

    def _binds(self, snapshot: Snapshot, rows: Indices | slice, now: float) -> Floats:
        """Binds of late, each as far as it has not faded."""
        logarithm = snapshot.column(self._heat_column)[rows] - now / self._args.recent_seconds
        warm = logarithm > -_COLD_FADES
        binds = np.zeros(len(warm))
        if warm.any():
            binds[warm] = np.exp(logarithm[warm])
        return binds

    def _heat(self, info: NodeInfo) -> float:
        """Logarithm of the sum of exp(bound / recent_seconds): less now/recent_seconds it is the binds as of now.

        So a node need not be read again as time goes by.
        """
        times = [bound_at(pod, self._wall) for pod in info.pods.values() if pod.tier is Tier.BE]
        if not times:
            return -math.inf
        last, fade = max(times), self._args.recent_seconds
        since = last - _COLD_FADES * fade
        return last / fade + math.log(sum([math.exp((at - last) / fade) for at in times if at > since]))


def _good(bad: Floats) -> Floats:
    """1 less `bad`, within 0..1; what is not known is worst."""
    good: Floats = np.fmin(np.fmax(1.0 - bad, 0.0), 1.0)
    return good


def _good_of(bad: float) -> float:
    """`_good` of one number."""
    return 0.0 if math.isnan(bad) else min(max(1.0 - bad, 0.0), 1.0)


def _rise(forecast: Forecast) -> float | None:
    terms = forecast.terms
    cpu = _risen(terms.peak.cpu_millis, terms.now.cpu_millis, terms.capacity.cpu_millis)
    memory = _risen(terms.peak.memory_bytes, terms.now.memory_bytes, terms.capacity.memory_bytes)
    return None if cpu is None or memory is None else max(cpu, memory)


def _risen(peak: int | None, now: int | None, capacity: int | None) -> float | None:
    return None if peak is None or now is None else share_of(peak - now, capacity)


def _busy(forecast: Forecast) -> float | None:
    return share_of(forecast.terms.now.cpu_millis, forecast.terms.capacity.cpu_millis)
