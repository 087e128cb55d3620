"""Volumes of a pod, read once: its claims, and disks that it names itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scheduler_plugins.framework.events import Hint
from scheduler_plugins.framework.interfaces import ObjectStore
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.plugins.hints import pod_of
from scheduler_plugins.plugins.volume_kinds import CLAIMS, PersistentVolumeClaim

_CLAIMS: Final = "volumes/claims"
_BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"

STOCK_WAY: Final = "let the stock scheduler place the pod, with our extender"
"""What to do with a pod that needs what is not judged here."""


class ClaimName(NamedTuple):
    """A claim that a pod uses. An ephemeral one is made for the pod, and is its own."""

    namespace: str
    name: str
    ephemeral: bool = False


def source_of(volume: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """What a volume of `kind` is made of; None for one of another kind, or where no object stands there.

    A pod of the second sort is refused by UnsupportedPods, and must not end the cycles of others once it has a node.
    """
    source = volume.get(kind)
    return source if isinstance(source, dict) else None


def claims_of(pod: PodInfo) -> Sequence[ClaimName]:
    """Claims of the pod's volumes, each once."""
    known: Sequence[ClaimName] | None = pod.memo.get(_CLAIMS)
    if known is None:
        known = pod.memo[_CLAIMS] = tuple(dict.fromkeys(_read_claims(pod)))
    return known


def _read_claims(pod: PodInfo) -> Iterable[ClaimName]:
    meta = pod.pod.metadata
    for volume in pod.pod.spec.volumes:
        claim = source_of(volume, "persistentVolumeClaim")
        if claim is not None:
            yield ClaimName(meta.namespace, str(claim.get("claimName", "")))
        elif source_of(volume, "ephemeral") is not None:
            yield ClaimName(meta.namespace, f"{meta.name}-{volume.get('name', '')}", ephemeral=True)


def find_claim(objects: ObjectStore, name: ClaimName, pod: PodInfo) -> PersistentVolumeClaim | str:
    """The claim, or why the pod cannot use it yet: absent, being deleted, lost, or of another pod."""
    claim = objects.get(CLAIMS, name.namespace, name.name)
    if claim is None:
        if name.ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name.name}"'
        return f'persistentvolumeclaim "{name.name}" not found'
    if claim.status.phase == "Lost":
        return f'persistentvolumeclaim "{name.name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name.name}" is being deleted'
    if name.ephemeral and all(owner.uid != pod.uid for owner in claim.metadata.owner_references):
        return f"PVC {name.namespace}/{name.name} was not created for pod {pod.key} (pod is not owner)"
    return claim


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether the claim and its volume belong together for good; a claim that only names a volume is not there yet."""
    return bool(claim.spec.volume_name) and _BIND_COMPLETED in claim.metadata.annotations


class UsesClaims(msgspec.Struct, frozen=True, cache_hash=True):
    """Pods that use one of some claims (namespace, name); a matcher for `Snapshot.pods_matching`."""

    claims: frozenset[tuple[str, str]]

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod uses one of them."""
        return any(claim[:2] in self.claims for claim in claims_of(pod))

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """Such pods need have no label in common."""
        return ()


INLINE: Final[Mapping[str, tuple[str, str]]] = {
    "gcePersistentDisk": ("pd.csi.storage.gke.io", "pdName"),
    "awsElasticBlockStore": ("ebs.csi.aws.com", "volumeID"),
    "azureDisk": ("disk.csi.azure.com", "diskURI"),
    "cinder": ("cinder.csi.openstack.org", "volumeID"),
    "vsphereVolume": ("csi.vsphere.vmware.com", "volumePath"),
    "portworxVolume": ("pxd.portworx.com", "volumeID"),
}
"""In-tree kind of volume -> the CSI driver that took it over, and the field that names the volume."""


class HasVolumes(msgspec.Struct, frozen=True):
    """Pods with at least so many volumes that are attached to their node; a matcher likewise."""

    least: int

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod has as many."""
        volumes = pod.pod.spec.volumes
        if len(volumes) < self.least:
            return False
        inline = sum(1 for volume in volumes if any(source_of(volume, kind) is not None for kind in INLINE))
        return len(claims_of(pod)) + inline >= self.least

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """See `UsesClaims`."""
        return ()


def claim_of_pod(pod: PodInfo, _old: Any, new: Any) -> Hint:
    """Queue when the event is about a claim that the pod uses."""
    if not isinstance(new, PersistentVolumeClaim):
        raise TypeError(f"a claim event carries a {type(new).__name__}, not a PersistentVolumeClaim")
    changed = (new.metadata.namespace, new.metadata.name)
    return Hint.QUEUE if any(claim[:2] == changed for claim in claims_of(pod)) else Hint.SKIP


def shares_claim(pod: PodInfo, old: Any, _new: Any) -> Hint:
    """Queue when a pod left that used a claim of this one."""
    used = {claim[:2] for claim in claims_of(pod_of(old))}
    return Hint.QUEUE if any(claim[:2] in used for claim in claims_of(pod)) else Hint.SKIP


class Disk(NamedTuple):
    """A disk that a pod names itself. Two pods of a node conflict over it unless both only read it.

    `places` are hosts of which one in common makes it the same disk; empty where there are none.
    """

    kind: str
    name: tuple[str, ...]
    places: frozenset[str]
    read_only: bool

    def conflicts(self, other: Disk) -> bool:
        """Whether two pods with these cannot share a node. A disk of AWS conflicts even if both only read it."""
        same = self[:2] == other[:2] and (self.places == other.places or bool(self.places & other.places))
        return same and not (self.read_only and other.read_only and self.kind != "awsElasticBlockStore")


_DISKS: Final = "volumes/disks"
_DISK_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "gcePersistentDisk": ("pdName",),
    "awsElasticBlockStore": ("volumeID",),
    "iscsi": ("iqn",),
    "rbd": ("pool", "image"),
}
"""Kind -> fields that name the disk. Source: kubernetes volumerestrictions (isVolumeConflict)."""


def disks_of(pod: PodInfo) -> Sequence[Disk]:
    """Disks that the pod names itself and that cannot be shared at will."""
    known: Sequence[Disk] | None = pod.memo.get(_DISKS)
    if known is None:
        known = pod.memo[_DISKS] = tuple(
            _disk(kind, source, fields)
            for volume in pod.pod.spec.volumes
            for kind, fields in _DISK_NAMES.items()
            if (source := source_of(volume, kind)) is not None
        )
    return known


def _disk(kind: str, source: Mapping[str, Any], fields: Sequence[str]) -> Disk:
    defaults = {"pool": "rbd"}
    name = tuple(str(source.get(field, defaults.get(field, ""))) for field in fields)
    monitors = source.get("monitors") if kind == "rbd" else None
    places = frozenset(map(str, monitors)) if isinstance(monitors, list) else frozenset()
    return Disk(kind, name, places, bool(source.get("readOnly", False)))


class HasDisks(msgspec.Struct, frozen=True, cache_hash=True):
    """Pods with a disk that conflicts with one of `disks`; a matcher for `Snapshot.pods_matching`."""

    disks: frozenset[Disk]

    def matches(self, pod: PodInfo) -> bool:
        """Whether the pod has such a disk."""
        return any(theirs.conflicts(ours) for theirs in disks_of(pod) for ours in self.disks)

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """See `UsesClaims`."""
        return ()
