"""Objects beside pods and nodes that plugins ask for: what controls pods, and what sends them traffic."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler_plugins.plugins.label_selectors import LabelSelector
from slacktide.cluster.kinds import Kind
from slacktide.objects import ObjectMeta, View


class MapSelectorSpec(View, frozen=True):
    """spec of what selects pods by exact labels; no selector selects none."""

    selector: dict[str, str] | None = None


class LabelSelectorSpec(View, frozen=True):
    """spec of what selects pods by a label selector."""

    selector: LabelSelector | None = None


class Service(View, frozen=True):
    """A service (core/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MapSelectorSpec = msgspec.field(default_factory=MapSelectorSpec)


class ReplicationController(View, frozen=True):
    """A replication controller (core/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MapSelectorSpec = msgspec.field(default_factory=MapSelectorSpec)


class ReplicaSet(View, frozen=True):
    """A replica set (apps/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelSelectorSpec = msgspec.field(default_factory=LabelSelectorSpec)


class StatefulSet(View, frozen=True):
    """A stateful set (apps/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelSelectorSpec = msgspec.field(default_factory=LabelSelectorSpec)


SERVICES: Final = Kind("v1", "Service", "services", True, Service)
REPLICATION_CONTROLLERS: Final = Kind(
    "v1", "ReplicationController", "replicationcontrollers", True, ReplicationController
)
REPLICA_SETS: Final = Kind("apps/v1", "ReplicaSet", "replicasets", True, ReplicaSet)
STATEFUL_SETS: Final = Kind("apps/v1", "StatefulSet", "statefulsets", True, StatefulSet)
