"""Objects beside pods and nodes that plugins ask for: what controls pods, and what sends them traffic."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler_plugins.plugins.label_selectors import LabelSelector
from slacktide.cluster.kinds import Kind
from slacktide.objects import ObjectMeta, Quantity, View


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


class SigsPodGroupSpec(View, frozen=True):
    """spec of a pod group of scheduler-plugins."""

    min_member: int = 0
    min_resources: dict[str, Quantity] = msgspec.field(default_factory=dict)
    schedule_timeout_seconds: int | None = None


class SigsPodGroup(View, frozen=True):
    """A pod group of scheduler-plugins (scheduling.x-k8s.io)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SigsPodGroupSpec = msgspec.field(default_factory=SigsPodGroupSpec)


class GangPolicy(View, frozen=True):
    """How many pods of a group are placed together at least."""

    min_count: int = 0


class PodGroupPolicy(View, frozen=True):
    """How pods of a group are placed; without `gang` each for itself."""

    gang: GangPolicy | None = None


class PodGroupSpec(View, frozen=True):
    """spec of a pod group of Kubernetes."""

    scheduling_policy: PodGroupPolicy = msgspec.field(default_factory=PodGroupPolicy)


class PodGroup(View, frozen=True):
    """A pod group (scheduling.k8s.io)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


SERVICES: Final = Kind("v1", "Service", "services", True, Service)
REPLICATION_CONTROLLERS: Final = Kind(
    "v1", "ReplicationController", "replicationcontrollers", True, ReplicationController
)
REPLICA_SETS: Final = Kind("apps/v1", "ReplicaSet", "replicasets", True, ReplicaSet)
STATEFUL_SETS: Final = Kind("apps/v1", "StatefulSet", "statefulsets", True, StatefulSet)
SIGS_POD_GROUPS: Final = Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", True, SigsPodGroup)
POD_GROUPS: Final = Kind("scheduling.k8s.io/v1beta1", "PodGroup", "podgroups", True, PodGroup)
"""Served from Kubernetes 1.37 on."""
