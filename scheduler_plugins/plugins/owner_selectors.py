"""Which pods belong together when they say nothing themselves: those of one service and one controller.

Source: kubernetes pkg/scheduler/framework/plugins/helper/spread.go (DefaultSelector).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduler_plugins.framework.interfaces import ObjectStore
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.plugins.derived import Derived
from scheduler_plugins.plugins.kinds import REPLICA_SETS, REPLICATION_CONTROLLERS, SERVICES, STATEFUL_SETS, Service
from scheduler_plugins.plugins.label_selectors import Selector, selector_from
from slacktide.cluster.kinds import Kind
from slacktide.objects import OwnerReference

KINDS: Final[tuple[Kind[Any], ...]] = (SERVICES, REPLICATION_CONTROLLERS, REPLICA_SETS, STATEFUL_SETS)
"""Objects that must be known."""


_Place = tuple[str, tuple[str, str] | None]
"""A namespace, and a label that a selector names; None for an empty one, which adds nothing to what it selects."""


def _by_label(services: Sequence[Service]) -> Mapping[_Place, Sequence[Mapping[str, str]]]:
    found: dict[_Place, list[Mapping[str, str]]] = {}
    for service in services:
        selector = service.spec.selector
        if selector is not None:
            place = (service.metadata.namespace, next(iter(selector.items()), None))
            found.setdefault(place, []).append(selector)
    return found


class OwnerSelectors:
    """Finds what selects a pod."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._services = Derived(SERVICES, _by_label)

    def of(self, pod: PodInfo) -> Selector | None:
        """What the pod's services and its controller select together; None for a pod that has neither."""
        metadata = pod.pod.metadata
        services, exact = self._services.of(self._objects), dict[str, str]()
        for pair in metadata.labels.items():
            for selector in services.get((metadata.namespace, pair), ()):
                if selector.items() <= metadata.labels.items():
                    exact.update(selector)
        owner = next((one for one in metadata.owner_references if one.controller), None)
        if not exact and owner is None:
            return None
        selected = selector_from(exact)
        if owner is not None:
            selected = _with_owner(selected, owner, metadata.namespace, self._objects)
        return None if selected.everybody else selected


def _with_owner(selected: Selector, owner: OwnerReference, namespace: str, objects: ObjectStore) -> Selector:
    match (owner.api_version, owner.kind):
        case ("v1", "ReplicationController"):
            found = objects.get(REPLICATION_CONTROLLERS, namespace, owner.name)
            return selected if found is None else selected.also(found.spec.selector or {})
        case ("apps/v1", "ReplicaSet"):
            replica_set = objects.get(REPLICA_SETS, namespace, owner.name)
            given = None if replica_set is None else replica_set.spec.selector
        case ("apps/v1", "StatefulSet"):
            stateful_set = objects.get(STATEFUL_SETS, namespace, owner.name)
            given = None if stateful_set is None else stateful_set.spec.selector
        case _:
            given = None
    return selected if given is None else selected.both(given.compiled())
