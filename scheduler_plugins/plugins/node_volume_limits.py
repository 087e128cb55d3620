"""NodeVolumeLimits: how many volumes of each CSI driver a node can have attached, as its CSINode says.

A volume that two pods of a node use counts once. What cannot be told apart yet (a claim that is not bound) counts as a
volume of its own. In-tree volumes count for the driver that took them over.
Source: kubernetes pkg/scheduler/framework/plugins/nodevolumelimits (csi.go), 1.35; csi-translation-lib plugin names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from scheduler_plugins.framework.events import (
    ASSIGNED_POD,
    CSI_NODE,
    PERSISTENT_VOLUME_CLAIM,
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
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Indices, Ints, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.derived import Derived
from scheduler_plugins.plugins.hints import assigned, pod_of
from scheduler_plugins.plugins.volume_kinds import (
    CLAIMS,
    CSI_NODES,
    STORAGE_CLASSES,
    VOLUMES,
    CsiNode,
    PersistentVolume,
)
from scheduler_plugins.plugins.volumes import INLINE, ClaimName, HasVolumes, claim_of_pod, claims_of, source_of
from slacktide.cluster.kinds import Kind

_FULL: Final = "node(s) exceed max volume count"
_MOST_VOLUMES: Final = 4
"""Nodes with pods that have more are counted one by one."""

_IN_TREE: Final[Mapping[str, str]] = {
    "gce_persistent_disk": "gcePersistentDisk",
    "aws_elastic_block_store": "awsElasticBlockStore",
    "azure_disk": "azureDisk",
    "cinder": "cinder",
    "vsphere_volume": "vsphereVolume",
    "portworx_volume": "portworxVolume",
}
"""Field of a volume's view -> kind of volume."""

_IN_TREE_PROVISIONERS: Final[Mapping[str, str]] = {
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}

Volume = tuple[str, str]
"""Driver, and the name of the volume there."""

Limits = Mapping[str, Mapping[str, int]]
"""Node -> driver -> how many volumes."""


def _limits(nodes: Sequence[CsiNode]) -> Limits:
    found = {}
    for node in nodes:
        drivers = ((one.name, one.allocatable) for one in node.spec.drivers or ())
        counts = {name: given.count for name, given in drivers if given is not None and given.count is not None}
        if counts:
            found[node.metadata.name] = counts
    return found


_WANTED: Final = StateKey[frozenset[Volume]]("NodeVolumeLimits/wanted")


class NodeVolumeLimits(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """Counts exactly only where the node could be full."""

    name = "NodeVolumeLimits"

    def __init__(self, handle: Handle) -> None:
        self._objects = handle.objects
        self._limits = Derived(CSI_NODES, _limits)

    def kinds(self) -> Sequence[Kind[Any]]:
        """Claims, volumes, classes, and CSI drivers of nodes."""
        return (CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods without volumes that are attached."""
        wanted = frozenset(self._volumes(pod))
        if not wanted:
            return PreFilterResult(SKIP)
        state.write(_WANTED, wanted)
        return PreFilterResult()

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes that would have more volumes of a driver than they can."""
        wanted = state.read(_WANTED)
        limits = self._limits.of(self._objects)
        full: Bools = np.zeros(len(rows), dtype=np.bool_)
        if limits:
            most = _at_most(snapshot)[rows]
            for position in self._close(wanted, limits, snapshot, rows, most):
                node = snapshot.nodes[rows[position]]
                full[position] = bool(self._over(wanted, node, limits[node.name]))

        def explain(i: int) -> tuple[Reason, ...]:
            node = snapshot.nodes[rows[i]]
            return (Reason(_FULL, self._over(wanted, node, limits[node.name])),)

        return Verdicts.where(full, Code.UNSCHEDULABLE, explain, kinds=np.zeros(len(rows), dtype=np.int8))

    @staticmethod
    def _close(
        wanted: frozenset[Volume], limits: Limits, snapshot: Snapshot, rows: Indices, most: Ints
    ) -> Iterator[int]:
        """Positions of the nodes that could be full, if every claim there were a volume of the same driver."""
        counts = {driver: 0 for driver, _ in wanted}
        for driver, _ in wanted:
            counts[driver] += 1
        for position, row in enumerate(rows.tolist()):
            has = limits.get(snapshot.names[row])
            if has is not None and any(
                driver in has and most[position] + count > has[driver] for driver, count in counts.items()
            ):
                yield position

    def _over(self, wanted: frozenset[Volume], node: NodeInfo, limits: Mapping[str, int]) -> str:
        """Which driver would have too many volumes, in words; empty for none."""
        there = {volume for pod in node.pods.values() for volume in self._volumes(pod)}
        for driver, limit in limits.items():
            new = sum(1 for volume in wanted - there if volume[0] == driver)
            has = sum(1 for volume in there if volume[0] == driver)
            if new and has + new > limit:
                return f"{has} of {limit} volumes of {driver} are taken, {new} more wanted"
        return ""

    def _volumes(self, pod: PodInfo) -> Iterator[Volume]:
        """Volumes of a pod that are attached by a driver; a claim that nobody knows is none."""
        for name in claims_of(pod):
            volume = self._of_claim(name)
            if volume is not None:
                yield volume
        for inline in pod.pod.spec.volumes:
            for kind in INLINE.keys() & inline.keys():
                source = source_of(inline, kind)
                if source is not None:
                    driver, field = INLINE[kind]
                    yield driver, str(source.get(field, ""))

    def _of_claim(self, name: ClaimName) -> Volume | None:
        claim = self._objects.get(CLAIMS, name.namespace, name.name)
        if claim is None:
            return None
        volume = self._objects.get(VOLUMES, "", claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            return _of_volume(volume)
        storage = self._objects.get(STORAGE_CLASSES, "", claim.spec.storage_class_name or "")
        if storage is None:
            return None
        driver = _IN_TREE_PROVISIONERS.get(storage.provisioner, storage.provisioner)
        return driver, f"claim {name.namespace}/{name.name}"

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods without volumes that are attached are alike."""
        return () if not HasVolumes(1).matches(pod) else None

    def events_to_register(self) -> Sequence[Registration]:
        """A node got a driver or a higher limit; a pod with volumes left; a claim of the pod came or changed."""
        changed = Action.ADD | Action.UPDATE
        return (
            Registration(ClusterEvent(CSI_NODE, changed), self._grew),
            Registration(ClusterEvent(ASSIGNED_POD, Action.DELETE), self._left),
            Registration(ClusterEvent(PERSISTENT_VOLUME_CLAIM, changed), claim_of_pod),
        )

    @staticmethod
    def _grew(_pod: PodInfo, old: Any, new: Any) -> Hint:
        before, now = ({} if one is None else _limits([one]).get(one.metadata.name, {}) for one in (old, new))
        if old is None:
            return Hint.QUEUE
        more = any(driver not in now or now[driver] > limit for driver, limit in before.items())
        return Hint.QUEUE if more else Hint.SKIP

    def _left(self, _pod: PodInfo, old: Any, _new: Any) -> Hint:
        gone = pod_of(old)
        return Hint.QUEUE if assigned(gone) and any(self._volumes(gone)) else Hint.SKIP


def _of_volume(volume: PersistentVolume) -> Volume | None:
    if volume.spec.csi is not None:
        return volume.spec.csi.driver, volume.spec.csi.volume_handle
    for attribute, kind in _IN_TREE.items():
        source = getattr(volume.spec, attribute)
        if source is not None:
            driver, field = INLINE[kind]
            return driver, str(source.get(field, ""))
    return None


def _at_most(snapshot: Snapshot) -> Ints:
    """How many volumes each node has at most, if no two of its pods share one; very many where that is not known."""
    total: Ints = np.zeros(len(snapshot), dtype=np.int64)
    for least in range(1, _MOST_VOLUMES + 1):
        total += snapshot.pods_matching(HasVolumes(least))
    total[snapshot.pods_matching(HasVolumes(_MOST_VOLUMES + 1)) > 0] = np.iinfo(np.int32).max
    return total


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(NodeVolumeLimits.name, lambda _args, handle: NodeVolumeLimits(handle), NoArgs)
