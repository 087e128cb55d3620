"""Load of each node: what was measured of LS and SYSTEM, and estimates of pods that are too new to show in it.

The measure stands in the terms of the forecast: `now`, the newest sample, and `peak`, the percentile of the coming
use that the predictor was asked for. Best-effort pods are not in it: they use what the others leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from scheduler_plugins.framework.snapshot import Column, Floats, Indices, Snapshot
from scheduler_plugins.plugins.bound_at import bound_at
from scheduler_plugins.plugins.load_estimate import EstimatePercent, Stock, estimate
from scheduler_plugins.plugins.node_forecast import AGE_COLUMNS, latest_of, reader, trust
from slacktide.forecast import Amount, Forecast
from slacktide.tier import Tier

Moment = Literal["now", "peak"]

_FADING: Final = "NodeLoad/fading"


def amount_of(forecast: Forecast, moment: Moment, stock: Stock) -> int | None:
    """What LS and SYSTEM use, in millicores or bytes; None where it is not known or cannot be (negative)."""
    amount: Amount = forecast.terms.now if moment == "now" else forecast.terms.peak
    value = amount.cpu_millis if stock == "cpu" else amount.memory_bytes
    return None if value is None or value < 0 else min(value, LARGEST)


def _fading(forecast: Forecast) -> float:
    """A node whose agent is silent has an old measure in a new forecast."""
    fading = forecast.terms.fading
    return 1.0 if fading is None else max(0.0, min(1.0, fading))


_FADING_COLUMN: Final = Column(_FADING, "float64", reader(_fading), of_object=True)


class NodeLoad:
    """The load at the moments and of the resources `what`.

    `new_pod_seconds`: a pod bound this long before the measure or later counts by its estimate.
    """

    def __init__(
        self, what: Iterable[tuple[Moment, Stock]], percent: EstimatePercent, new_pod_seconds: float, handle: Handle
    ) -> None:
        self._what = tuple(what)
        self._percent = {"cpu": percent.cpu, "memory": percent.memory}
        self._new_pod_seconds = new_pod_seconds
        self._now = handle.wall_seconds

    def columns(self) -> Sequence[Column]:
        """What the methods below need of the snapshot."""
        used = (Column(self._column(*one), "float64", self._reader(*one)) for one in self._what)
        return (*AGE_COLUMNS, _FADING_COLUMN, *used)

    def _column(self, moment: Moment, stock: Stock) -> str:
        return f"NodeLoad/{moment}/{stock}/{self._percent[stock]}/{self._new_pod_seconds}"

    def _reader(self, moment: Moment, stock: Stock) -> Callable[[NodeInfo], float]:
        def used(info: NodeInfo) -> float:
            forecast = latest_of(info)
            measured = None if isinstance(forecast, str) else amount_of(forecast, moment, stock)
            if measured is None or isinstance(forecast, str):
                return math.nan
            since = forecast.at - self._new_pod_seconds
            young = [
                self.estimate(pod, stock)
                for pod in info.pods.values()
                if pod.tier is not Tier.BE and bound_at(pod, self._now) > since
            ]
            return float(measured + sum(young))

        return used

    def estimate(self, pod: PodInfo, stock: Stock) -> int:
        """What `pod` is going to use, in millicores or bytes."""
        return estimate(pod, stock, self._percent[stock])

    def trust(self, snapshot: Snapshot, rows: Indices | slice, now: float) -> Floats:
        """How far the measure may be believed: 1 while fresh, falling to 0 where it expired or was never there."""
        trusted: Floats = trust(snapshot, rows, now) * snapshot.column(_FADING)[rows]
        return trusted

    def used(self, snapshot: Snapshot, rows: Indices | slice, moment: Moment, stock: Stock) -> Floats:
        """LS and SYSTEM use with the estimates of new pods, NaN where it is not known."""
        used: Floats = snapshot.column(self._column(moment, stock))[rows]
        return used


def why_unknown(info: NodeInfo, now: float) -> str:
    """In words, why the load of a node is not known; for nodes of which that is so."""
    forecast = latest_of(info)
    if isinstance(forecast, str):
        return f"forecast: {forecast}"
    age = now - forecast.at
    if age < 0:
        return f"measured {-age:.0f} s ahead of this clock"
    if forecast.terms.fading is not None and forecast.terms.fading <= 0:
        return forecast.terms.note or "the node is silent"
    if age > forecast.ttl_seconds:
        return f"measured {age:.0f} s ago, good for {forecast.ttl_seconds:.0f} s"
    return "its use is not measured"
