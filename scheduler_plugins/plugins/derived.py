"""What is computed from all objects of a kind, and computed anew only when one of them changed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scheduler_plugins.framework.interfaces import ObjectStore
from slacktide.cluster.kinds import HasMetadata, Kind

T = TypeVar("T", bound=HasMetadata)
D = TypeVar("D")


class Derived(Generic[T, D]):
    """Any thread may ask; objects are immutable, so one that changed is another object."""

    def __init__(self, kind: Kind[T], compute: Callable[[Sequence[T]], D]) -> None:
        self._kind = kind
        self._compute = compute
        self._kept: tuple[Sequence[T], D] | None = None

    def of(self, objects: ObjectStore) -> D:
        """The newest."""
        now, kept = list(objects.all(self._kind)), self._kept
        if kept is None or len(kept[0]) != len(now) or not all(map(operator.is_, kept[0], now)):
            kept = self._kept = now, self._compute(now)
        return kept[1]
