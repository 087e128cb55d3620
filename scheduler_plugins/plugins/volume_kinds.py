"""Objects about volumes that plugins ask for: claims, volumes, classes, and what nodes say of their CSI drivers."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scheduler_plugins.plugins.node_selector import Selector
from slacktide.cluster.kinds import Kind
from slacktide.objects import ObjectMeta, View


class PersistentVolumeClaimSpec(View, frozen=True):
    """spec of a claim. `volume_name` is set once it is bound, or before by whoever made it."""

    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    storage_class_name: str | None = None


class PersistentVolumeClaimStatus(View, frozen=True):
    """status of a claim; `phase` is Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(View, frozen=True):
    """A claim for a volume (core/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class CsiVolume(View, frozen=True):
    """A volume of a CSI driver; the handle names it there."""

    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(View, frozen=True):
    """Nodes from which a volume can be reached."""

    required: Selector | None = None


class PersistentVolumeSpec(View, frozen=True):
    """spec of a volume: where it can be reached, and what it is; other kinds are raw."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiVolume | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None


class PersistentVolume(View, frozen=True):
    """A volume (core/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)


class StorageClass(View, frozen=True):
    """A storage class (storage.k8s.io/v1); `volume_binding_mode` is Immediate or WaitForFirstConsumer."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"


class VolumeNodeResources(View, frozen=True):
    """How many volumes of a driver a node can have; None is no limit."""

    count: int | None = None


class CsiNodeDriver(View, frozen=True):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: VolumeNodeResources | None = None


class CsiNodeSpec(View, frozen=True):
    """spec of what a node says of its CSI drivers; the API server sends null for none."""

    drivers: tuple[CsiNodeDriver, ...] | None = None


class CsiNode(View, frozen=True):
    """CSI drivers of the node of the same name (storage.k8s.io/v1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CsiNodeSpec = CsiNodeSpec()


CLAIMS: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, PersistentVolumeClaim)
VOLUMES: Final = Kind("v1", "PersistentVolume", "persistentvolumes", False, PersistentVolume)
STORAGE_CLASSES: Final = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", False, StorageClass)
CSI_NODES: Final = Kind("storage.k8s.io/v1", "CSINode", "csinodes", False, CsiNode)
