"""Objects beside pods and nodes that plugins ask for: one informer for each kind, and an event for each change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from scheduler_plugins.framework.event_names import event_resource
from scheduler_plugins.framework.events import Action, ClusterEvent
from slacktide.cluster import Client, ClusterMetrics, Informer, Kind
from slacktide.cluster.indexed import Index
from slacktide.cluster.kinds import HasMetadata

V = TypeVar("V")
T = TypeVar("T", bound=HasMetadata)

Happened = Callable[[ClusterEvent, Any, Any], None]
"""(event, old object or None, new object or None)."""


class InformerStore:
    """See `interfaces.ObjectStore`. The kinds are named once the plugins are made, which hold the store already.

    A kind that the server does not serve, such as one whose definition nobody installed, has no objects.
    """

    def __init__(self, client: Client, happened: Happened, metrics: ClusterMetrics) -> None:
        self._client = client
        self._happened = happened
        self._metrics = metrics
        self._own: dict[str, Informer[Any]] = {}
        self._informers: dict[str, Informer[Any]] = {}

    def use(self, kinds: Iterable[Kind[Any]], known: Mapping[Kind[Any], Informer[Any]]) -> None:
        """Follow `kinds`; those in `known` are followed by informers that the host has anyway."""
        self._informers |= {event_resource(kind): informer for kind, informer in known.items()}
        for kind in kinds:
            name = event_resource(kind)
            if name not in self._informers:
                self._own[name] = self._informers[name] = self._informer(kind, name)

    def all(self, kind: Kind[T]) -> Iterable[T]:
        """See `interfaces.ObjectStore`."""
        return self._informers[event_resource(kind)].items()

    def get(self, kind: Kind[T], namespace: str, name: str) -> T | None:
        """See `interfaces.ObjectStore`."""
        found: T | None = self._informers[event_resource(kind)].get(namespace, name)
        return found

    def indexed(self, kind: Kind[T], index: Index[T, V], value: Hashable) -> Sequence[V]:
        """See `interfaces.ObjectStore`."""
        return self._informers[event_resource(kind)].indexed(index, value)

    def start(self) -> None:
        """Begin to list and watch."""
        for informer in self._own.values():
            informer.start()

    def stop(self) -> None:
        """End the informers that are not the host's."""
        for informer in self._own.values():
            informer.stop()

    def not_synced(self) -> list[str]:
        """Names of the kinds that have not been listed yet."""
        return [name for name, informer in self._own.items() if not informer.synced]

    def _informer(self, kind: Kind[Any], resource: str) -> Informer[Any]:
        added, deleted = ClusterEvent(resource, Action.ADD), ClusterEvent(resource, Action.DELETE)
        changed = ClusterEvent(resource, Action.UPDATE_OTHER)
        return Informer(
            self._client,
            kind,
            on_add=lambda new: self._happened(added, None, new),
            on_update=lambda old, new: self._happened(changed, old, new),
            on_delete=lambda old: self._happened(deleted, old, None),
            name=resource.lower(),
            metrics=self._metrics,
            absent_is_empty=True,
        )
