"""Which bounds hold for a node: those of the first pool whose labels it has, over those of all nodes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from predictor.reclaim import Bounds
from predictor.settings import PoolSettings, PredictorSettings


@dataclasses.dataclass(frozen=True, slots=True)
class NodeBounds:
    """Bounds of both resources, and the name of the pool that they are of; empty for no pool."""

    cpu: Bounds
    memory: Bounds
    pool: str = ""


def bounds_of(labels: Mapping[str, str], settings: PredictorSettings) -> NodeBounds:
    """The bounds of a node with `labels`."""
    pool = next((one for one in settings.pools if one.match_labels.items() <= labels.items()), None)
    return NodeBounds(
        cpu=Bounds(
            reserve_percent=_chosen(pool, settings, "reserve_cpu_percent"),
            cap_percent=_chosen(pool, settings, "cap_cpu_percent"),
            floor_percent=_chosen(pool, settings, "floor_cpu_percent"),
        ),
        memory=Bounds(
            reserve_percent=_chosen(pool, settings, "reserve_memory_percent"),
            cap_percent=_chosen(pool, settings, "cap_memory_percent"),
            floor_percent=_chosen(pool, settings, "floor_memory_percent"),
        ),
        pool=pool.name if pool else "",
    )


class PoolBounds:
    """`bounds_of`, worked out once for nodes that look the same to every pool."""

    def __init__(self) -> None:
        self._settings: PredictorSettings | None = None
        self._known: dict[tuple[str | None, ...], NodeBounds] = {}
        self._labels: tuple[str, ...] = ()

    def of(self, labels: Mapping[str, str], settings: PredictorSettings) -> NodeBounds:
        """The bounds of a node with `labels`."""
        if settings is not self._settings:
            self._settings, self._known = settings, {}
            self._labels = tuple({name for pool in settings.pools for name in pool.match_labels})
        key = tuple(labels.get(name) for name in self._labels)
        if key not in self._known:
            self._known[key] = bounds_of(labels, settings)
        return self._known[key]


def _chosen(pool: PoolSettings | None, settings: PredictorSettings, field: str) -> float:
    own = getattr(pool, field) if pool is not None else None
    chosen: float = getattr(settings, field) if own is None else own
    return chosen
