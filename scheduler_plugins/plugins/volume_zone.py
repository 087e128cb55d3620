"""VolumeZone: volumes whose labels say in which zone or region they are.

A node without any zone or region label suits every volume. Names of before Kubernetes 1.17 count as the newer ones.
Source: kubernetes pkg/scheduler/framework/plugins/volumezone, 1.35.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scheduler_plugins.framework.events import (
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    Action,
    ClusterEvent,
    Hint,
    Registration,
)
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
)
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, Code, Reason, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import node_of
from scheduler_plugins.plugins.volume_kinds import CLAIMS, STORAGE_CLASSES, VOLUMES, PersistentVolume
from scheduler_plugins.plugins.volumes import claim_of_pod, claims_of, find_claim
from slacktide.cluster.kinds import Kind

_NEWER: Final[Mapping[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_KEYS: Final = (*_NEWER, *_NEWER.values())
_BETWEEN_ZONES: Final = "__"
_OTHER_ZONE: Final = (Reason("node(s) had no available volume zone"),)


@dataclass(frozen=True, slots=True)
class _Place:
    """A label of which a node must have one of the values."""

    key: str
    values: frozenset[str]


_PLACES: Final = StateKey[tuple[_Place, ...]]("VolumeZone/places")


class VolumeZone(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """Judges the zones of volumes by the distinct values of node labels."""

    name = "VolumeZone"

    def __init__(self, handle: Handle) -> None:
        self._objects = handle.objects

    def kinds(self) -> Sequence[Kind[Any]]:
        """Claims, volumes and classes."""
        return (CLAIMS, VOLUMES, STORAGE_CLASSES)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods whose volumes are in no zone. What is not bound is for VolumeBinding to say."""
        places: list[_Place] = []
        for name in claims_of(pod):
            claim = find_claim(self._objects, name, pod)
            if isinstance(claim, str):
                return PreFilterResult(unresolvable(claim))
            if not claim.spec.volume_name:
                if not claim.spec.storage_class_name:
                    return PreFilterResult(unresolvable("PersistentVolumeClaim had no pv name and storageClass name"))
                continue
            volume = self._objects.get(VOLUMES, "", claim.spec.volume_name)
            if volume is None:
                return PreFilterResult(unresolvable(f'persistentvolume "{claim.spec.volume_name}" not found'))
            places += _places(volume)
        if not places:
            return PreFilterResult(SKIP)
        state.write(_PLACES, tuple(places))
        return PreFilterResult()

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes that are in another zone, as far as they are in any."""
        zoned: Bools = np.zeros(len(snapshot), dtype=np.bool_)
        for key in _KEYS:
            zoned |= snapshot.label(key)[0] != 0
        here: Bools = np.ones(len(snapshot), dtype=np.bool_)
        for place in state.read(_PLACES):
            here &= _in_place(place, snapshot)
        same_words = np.zeros(len(rows), dtype=np.int8)
        return Verdicts.where((zoned & ~here)[rows], Code.UNRESOLVABLE, lambda _: _OTHER_ZONE, kinds=same_words)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods without claims are alike."""
        return () if not claims_of(pod) else None

    def events_to_register(self) -> Sequence[Registration]:
        """A claim of the pod, any volume or class came or changed; a node came or its zone changed."""
        changed = Action.ADD | Action.UPDATE
        return (
            Registration(ClusterEvent(PERSISTENT_VOLUME_CLAIM, changed), claim_of_pod),
            Registration(ClusterEvent(PERSISTENT_VOLUME, changed)),
            Registration(ClusterEvent(STORAGE_CLASS, Action.ADD)),
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL), self._moved),
        )

    @staticmethod
    def _moved(_pod: PodInfo, old: Any, new: Any) -> Hint:
        labels = node_of(new).metadata.labels
        before = None if old is None else node_of(old).metadata.labels
        same = before is not None and all(labels.get(key) == before.get(key) for key in _KEYS)
        return Hint.SKIP if same else Hint.QUEUE


def _places(volume: PersistentVolume) -> list[_Place]:
    """Zones and regions of a volume; a value may name several. One that names an empty zone says nothing."""
    found = []
    for key in _KEYS:
        given = volume.metadata.labels.get(key)
        values = frozenset(part.strip() for part in (given or "").split(_BETWEEN_ZONES))
        if "" not in values:
            found.append(_Place(key, values))
    return found


def _in_place(place: _Place, snapshot: Snapshot) -> Bools:
    numbers, values = snapshot.label(place.key)
    here = _allowed(place, values).take(numbers)
    newer = _NEWER.get(place.key)
    if newer is None:
        return here
    newer_numbers, newer_values = snapshot.label(newer)
    return np.where(numbers == 0, _allowed(place, newer_values).take(newer_numbers), here)


def _allowed(place: _Place, values: Sequence[str | None]) -> Bools:
    return np.fromiter((value in place.values for value in values), dtype=np.bool_, count=len(values))


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(VolumeZone.name, lambda _args, handle: VolumeZone(handle), NoArgs)
