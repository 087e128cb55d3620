"""What a pod is going to use, as long as nothing was measured of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from scheduler_plugins.framework.pod_info import LARGEST, PodInfo
from slacktide.errors import QuantityError
from slacktide.names import MID_CPU, MID_MEMORY
from slacktide.resources import limits_of
from slacktide.tier import Tier

Stock = Literal["cpu", "memory"]
STOCKS: Final[tuple[Stock, Stock]] = ("cpu", "memory")

_UNSET: Final = {"cpu": 250, "memory": 200 << 20}
"""Millicores and bytes of a pod that states nothing."""

_MID: Final = {"cpu": MID_CPU, "memory": MID_MEMORY}


class EstimatePercent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Share of what a pod asks for (or may use at most) that it is taken to use."""

    cpu: Annotated[float, Meta(ge=0, le=100)] = 85.0
    memory: Annotated[float, Meta(ge=0, le=100)] = 70.0


def estimate(pod: PodInfo, stock: Stock, percent: float) -> int:
    """Millicores or bytes: `percent` of the larger of request and limit, never above the limit.

    A best-effort pod is judged by its batch request, one of the mid tier by its mid request.
    """
    key = f"LoadEstimate/{stock}"
    if key not in pod.memo:
        pod.memo[key] = _stated(pod, stock)
    stated: int | None = pod.memo[key]
    return _UNSET[stock] if stated is None else math.floor(stated * percent / 100)


def _stated(pod: PodInfo, stock: Stock) -> int | None:
    if pod.tier is Tier.BE:
        batch = pod.batch_cpu_millis if stock == "cpu" else pod.batch_memory_bytes
        return batch or None
    name = stock if stock in pod.requests else _MID[stock]
    stated = max(pod.requests.get(name, 0), _limits(pod).get(stock, 0))
    return min(stated, LARGEST) or None


def _limits(pod: PodInfo) -> Mapping[str, int]:
    try:
        return limits_of(pod.pod)
    except QuantityError:
        return {}
