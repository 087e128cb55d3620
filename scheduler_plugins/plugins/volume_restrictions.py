"""VolumeRestrictions: disks that pods of one node cannot share, and claims that only one pod may use.

Source: kubernetes pkg/scheduler/framework/plugins/volumerestrictions, 1.35.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scheduler_plugins.framework.events import (
    ASSIGNED_POD,
    NODE,
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
    PreFilterExtensions,
    PreFilterPlugin,
    PreFilterResult,
)
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Reason, Status, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.hints import new_node, pod_of
from scheduler_plugins.plugins.volume_kinds import CLAIMS, PersistentVolumeClaim
from scheduler_plugins.plugins.volumes import (
    HasDisks,
    UsesClaims,
    claim_of_pod,
    claims_of,
    disks_of,
    find_claim,
    shares_claim,
)
from slacktide.cluster.kinds import Kind

_ONE_POD: Final = "ReadWriteOncePod"
_DISK_TAKEN: Final = (Reason("node(s) had no available disk"),)
_IN_USE: Final = "PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
_CLAIM_TAKEN: Final = (Reason(f"node(s) unavailable due to {_IN_USE}"),)


@dataclass(slots=True)
class _Book:
    """What binds one pod: disks, and claims that it must have alone, with the number of other pods that use them."""

    disks: HasDisks
    alone: UsesClaims
    users: int

    def clone(self) -> _Book:
        """A copy for a what-if question."""
        return _Book(self.disks, self.alone, self.users)


_BOOK: Final = StateKey[_Book]("VolumeRestrictions/book")


class VolumeRestrictions(PreFilterPlugin, PreFilterExtensions, FilterPlugin, EnqueueExtensions, Reusable):
    """A claim for one pod that another uses refuses every node; removing that pod may help."""

    name = "VolumeRestrictions"

    def __init__(self, handle: Handle) -> None:
        self._objects = handle.objects

    def kinds(self) -> Sequence[Kind[PersistentVolumeClaim]]:
        """Claims."""
        return (CLAIMS,)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:
        """Skip for pods with neither; a claim that cannot be used refuses the pod."""
        alone = []
        for name in claims_of(pod):
            claim = find_claim(self._objects, name, pod)
            if isinstance(claim, str):
                return PreFilterResult(unresolvable(claim))
            if _ONE_POD in claim.spec.access_modes:
                alone.append(name[:2])
        disks = disks_of(pod)
        if not alone and not disks:
            return PreFilterResult(SKIP)
        users = UsesClaims(frozenset(alone))
        count = int(snapshot.pods_matching(users).sum()) if alone else 0
        state.write(_BOOK, _Book(HasDisks(frozenset(disks)), users, count))
        return PreFilterResult()

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Counts `added` where it uses a claim that the pod must have alone."""
        state.read(_BOOK).users += state.read(_BOOK).alone.matches(added)
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: NodeInfo) -> Status:  # noqa: ARG002  # part of the extension point
        """Counts `removed` no more."""
        state.read(_BOOK).users -= state.read(_BOOK).alone.matches(removed)
        return SUCCESS

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes with a conflicting disk, and all while a claim for one pod is used."""
        book = state.read(_BOOK)
        taken: Bools = np.zeros(len(rows), dtype=np.bool_)
        if book.disks.disks:
            taken = snapshot.pods_matching(book.disks)[rows] > 0
        refused = taken if book.users <= 0 else np.ones(len(rows), dtype=np.bool_)
        return Verdicts.where(
            refused, Code.UNSCHEDULABLE, lambda i: _DISK_TAKEN if taken[i] else _CLAIM_TAKEN, kinds=taken.view(np.int8)
        )

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods that need no volume of this kind are alike."""
        return () if not claims_of(pod) and not disks_of(pod) else None

    def events_to_register(self) -> Sequence[Registration]:
        """A pod with such a disk or claim left; a new node; a claim of the pod came or changed."""
        return (
            Registration(ClusterEvent(ASSIGNED_POD, Action.DELETE), self._freed),
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_TAINT), new_node),
            Registration(ClusterEvent(PERSISTENT_VOLUME_CLAIM, Action.ADD | Action.UPDATE), claim_of_pod),
        )

    @staticmethod
    def _freed(pod: PodInfo, old: Any, new: Any) -> Hint:
        if HasDisks(frozenset(disks_of(pod))).matches(pod_of(old)):
            return Hint.QUEUE
        return shares_claim(pod, old, new)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(VolumeRestrictions.name, lambda _args, handle: VolumeRestrictions(handle), NoArgs)
