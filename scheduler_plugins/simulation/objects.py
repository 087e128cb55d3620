"""Objects beside pods and nodes in a simulation: those that the dump has, which stay as they are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from scheduler_plugins.dump import DumpError, Other
from scheduler_plugins.framework.event_names import event_resource
from scheduler_plugins.simulation.memory import MemoryApi
from slacktide.cluster.cache import Key, key_of
from slacktide.cluster.indexed import Index, Indexes
from slacktide.cluster.kinds import NODES, PODS, HasMetadata, Kind

T = TypeVar("T", bound=HasMetadata)
V = TypeVar("V")


class DumpedObjects:
    """See `interfaces.ObjectStore`. The kinds are named once the plugins are made, which hold the store already."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self._of: dict[str, dict[Key, Any]] = {}
        self._indexes: dict[str, Indexes[Any]] = {}

    def use(self, kinds: Iterable[Kind[Any]], others: Iterable[Other]) -> None:
        """Read what `others` has of `kinds`. Raises DumpError for an object that cannot be read."""
        by_name = {(kind.api_version, kind.kind): kind for kind in kinds}
        for kind in by_name.values():
            self._of[event_resource(kind)] = {}
            self._indexes[event_resource(kind)] = Indexes()
        for other in others:
            wanted = by_name.get((other.api_version, other.kind))
            if wanted is not None:
                item = _read(other, wanted)
                self._of[event_resource(wanted)][key_of(item)] = item

    def all(self, kind: Kind[T]) -> Iterable[T]:
        """See `interfaces.ObjectStore`."""
        return tuple(self._items(kind).values())

    def get(self, kind: Kind[T], namespace: str, name: str) -> T | None:
        """See `interfaces.ObjectStore`."""
        return self._items(kind).get((namespace, name))

    def indexed(self, kind: Kind[T], index: Index[T, V], value: Hashable) -> Sequence[V]:
        """See `interfaces.ObjectStore`."""
        items = self._items(kind)
        # What changes in a simulation is found anew, the rest once.
        changing = kind.kind in (PODS.kind, NODES.kind)
        indexes: Indexes[T] = Indexes() if changing else self._indexes[event_resource(kind)]
        return indexes.find(index, value, items)

    def _items(self, kind: Kind[T]) -> dict[Key, Any]:
        if kind == PODS:
            return dict(self._api.pods)
        if kind == NODES:
            return {("", name): node for name, node in self._api.nodes.items()}
        return self._of[event_resource(kind)]


def _read(other: Other, kind: Kind[T]) -> T:
    try:
        return msgspec.json.decode(other.text, type=kind.view)
    except msgspec.MsgspecError as error:
        raise DumpError(f"{other.where} ({other.kind}): {error}") from error
