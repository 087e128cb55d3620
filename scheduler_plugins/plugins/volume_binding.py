"""VolumeBinding: bound claims, whose volumes can be reached from some nodes only.

A claim that is not bound is waited for where its class binds at once. One that waits for its first consumer would have
to be bound by the scheduler; that is not done here, and the pod is refused with a reason that says what to do.
Source: kubernetes pkg/scheduler/framework/plugins/volumebinding, 1.35.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

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
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Bools, Indices, Snapshot
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SKIP, Code, Reason, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.plugins.fit_scoring import ShapePoint
from scheduler_plugins.plugins.hints import node_of
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.node_selector import NodeAffinityTerms, Wanted, matching_rows
from scheduler_plugins.plugins.volume_kinds import (
    CLAIMS,
    STORAGE_CLASSES,
    VOLUMES,
    PersistentVolume,
    PersistentVolumeClaim,
)
from scheduler_plugins.plugins.volumes import STOCK_WAY, claim_of_pod, claims_of, find_claim, is_bound
from slacktide.cluster.kinds import Kind
from slacktide.errors import SettingsError

_OUT_OF_REACH: Final = (Reason("node(s) didn't match PersistentVolume's node affinity"),)
_NO_VOLUME: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_NOT_BOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
_FIRST_CONSUMER: Final = "WaitForFirstConsumer"


class VolumeBindingArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """As the stock scheduler has them; nothing is bound here, so that they change nothing."""

    bind_timeout_seconds: Annotated[int, Meta(description="How long to wait for a volume to be bound.")] = 600
    shape: Annotated[tuple[ShapePoint, ...], Meta(description="Scores by utilisation of storage.")] = ()


@dataclass(frozen=True, slots=True)
class _Reach:
    """From which nodes the pod's volumes can be reached; all must hold."""

    wanted: tuple[Wanted, ...]


_REACH: Final = StateKey[_Reach]("VolumeBinding/reach")


class VolumeBinding(PreFilterPlugin, FilterPlugin, EnqueueExtensions, Reusable):
    """Judges the node affinity of bound volumes."""

    name = "VolumeBinding"

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        """Raises SettingsError for a time below 0."""
        if args.bind_timeout_seconds < 0:
            given = args.bind_timeout_seconds
            raise SettingsError(
                [f"arguments of plugin {self.name}: bindTimeoutSeconds is {given}; it must be 0 or more"]
            )
        self._objects = handle.objects
        self._judged = Judgements()

    def kinds(self) -> Sequence[Kind[Any]]:
        """Claims, volumes and classes."""
        return (CLAIMS, VOLUMES, STORAGE_CLASSES)

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods without claims; a claim that is not bound refuses the pod."""
        names = claims_of(pod)
        if not names:
            return PreFilterResult(SKIP)
        wanted = []
        for name in names:
            claim = find_claim(self._objects, name, pod)
            problem = claim if isinstance(claim, str) else self._unbound(claim)
            if problem or isinstance(claim, str):
                return PreFilterResult(unresolvable(problem))
            volume = self._objects.get(VOLUMES, "", claim.spec.volume_name)
            if volume is None:
                return PreFilterResult(unresolvable(_NO_VOLUME))
            wanted.append(_reach(volume))
        state.write(_REACH, _Reach(tuple(one for one in wanted if one is not None)))
        return PreFilterResult()

    def _unbound(self, claim: PersistentVolumeClaim) -> str:
        """Why the claim is of no use yet; empty when it is bound."""
        if is_bound(claim):
            return ""
        storage = self._objects.get(STORAGE_CLASSES, "", claim.spec.storage_class_name or "")
        if storage is not None and storage.volume_binding_mode == _FIRST_CONSUMER and not claim.spec.volume_name:
            return (
                f"persistentvolumeclaim {claim.metadata.name!r} is bound when its pod is placed, which this scheduler "
                f"cannot do: {STOCK_WAY}"
            )
        return _NOT_BOUND

    def filter_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Indices) -> Verdicts:  # noqa: ARG002  # part of the extension point
        """Refuses nodes from which one of the volumes cannot be reached."""
        reached: Bools = np.ones(len(rows), dtype=np.bool_)
        for wanted in state.read(_REACH).wanted:
            reached &= matching_rows(wanted, snapshot, rows, self._judged)
        same_words = np.zeros(len(rows), dtype=np.int8)
        return Verdicts.where(~reached, Code.UNRESOLVABLE, lambda _: _OUT_OF_REACH, kinds=same_words)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """Pods without claims are alike."""
        return () if not claims_of(pod) else None

    def events_to_register(self) -> Sequence[Registration]:
        """A claim of the pod, any volume or class came or changed; a node came or was labelled."""
        changed = Action.ADD | Action.UPDATE
        return (
            Registration(ClusterEvent(PERSISTENT_VOLUME_CLAIM, changed), claim_of_pod),
            Registration(ClusterEvent(PERSISTENT_VOLUME, changed), self._of_pod),
            Registration(ClusterEvent(STORAGE_CLASS, changed)),
            Registration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL), self._labelled),
        )

    def _of_pod(self, pod: PodInfo, _old: Any, new: Any) -> Hint:
        claims = [self._objects.get(CLAIMS, name.namespace, name.name) for name in claims_of(pod)]
        used = any(claim is not None and claim.spec.volume_name == new.metadata.name for claim in claims)
        return Hint.QUEUE if used else Hint.SKIP

    @staticmethod
    def _labelled(_pod: PodInfo, old: Any, new: Any) -> Hint:
        before = None if old is None else node_of(old).metadata.labels
        return Hint.SKIP if before == node_of(new).metadata.labels else Hint.QUEUE


def _reach(volume: PersistentVolume) -> Wanted | None:
    """What the volume wants of a node; None for nothing."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return Wanted.of(NodeAffinityTerms(required_during_scheduling_ignored_during_execution=affinity.required))


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(VolumeBinding.name, VolumeBinding, VolumeBindingArgs)
