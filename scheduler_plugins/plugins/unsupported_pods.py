"""UnsupportedPods: refuses what this scheduler cannot judge, rather than to bind it wrongly.

A pod that claims devices, or has a kind of volume that nobody here knows, waits with a reason that names it. Requests
that cannot be read are refused for the same reason. Volumes that are known are judged by the plugins for volumes, or,
such as a file share, put no demand on where the pod runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

from scheduler_plugins.framework.events import UNSCHEDULABLE_POD, Action, ClusterEvent, Hint, Registration
from scheduler_plugins.framework.interfaces import EnqueueExtensions, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, unresolvable
from scheduler_plugins.plugins.hints import pod_of
from scheduler_plugins.plugins.volumes import INLINE, STOCK_WAY

_KNOWN_VOLUMES: Final = frozenset(
    {"name", "emptyDir", "configMap", "secret", "hostPath", "projected", "downwardAPI", "gitRepo", "image"}
    | {"nfs", "cephfs", "glusterfs", "azureFile", "fc", "flexVolume", "csi"}
    | {"persistentVolumeClaim", "ephemeral", "iscsi", "rbd", *INLINE}
)
"""Volume sources, and the field that names the volume: without demands, over the network, judged elsewhere."""


def unsupported(pod: PodInfo) -> tuple[str, ...]:
    """What of `pod` this scheduler cannot judge, in words; empty for a pod that it can."""
    spec = pod.pod.spec
    found = []
    if pod.problem:
        found.append(f"cannot read {pod.problem}")
    kinds = sorted({kind for volume in spec.volumes for kind in volume if kind not in _KNOWN_VOLUMES})
    odd = sorted({kind for volume in spec.volumes for kind, source in volume.items() if not _readable(kind, source)})
    if odd:
        found.append(f"cannot read its volumes of kind {', '.join(odd)}: no object stands there")
    if kinds:
        found.append(f"volumes of kind {', '.join(kinds)} are not judged by this scheduler: {STOCK_WAY}")
    if spec.resource_claims:
        found.append(f"resource claims are not judged by this scheduler: {STOCK_WAY}")
    return tuple(found)


def _readable(kind: str, source: Any) -> bool:
    """Whether a field of a volume has the form that the API gives it: the name, or what a volume is made of."""
    return source is None or isinstance(source, str if kind == "name" else dict)


class UnsupportedPods(PreFilterPlugin, EnqueueExtensions, Reusable):
    """Refuses the pod as a whole."""

    name = "UnsupportedPods"

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> PreFilterResult:  # noqa: ARG002  # part of the extension point
        """Skip for pods that can be judged."""
        found = unsupported(pod)
        return PreFilterResult(unresolvable(*found) if found else SKIP)

    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """All that can be judged are alike."""
        return None if unsupported(pod) else ()

    def events_to_register(self) -> Sequence[Registration]:
        """Only a change of the pod itself helps."""
        return (Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE), self._own),)

    @staticmethod
    def _own(pod: PodInfo, _old: Any, new: Any) -> Hint:
        changed = pod_of(new)
        return Hint.QUEUE if changed.uid == pod.uid and not unsupported(changed) else Hint.SKIP


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(UnsupportedPods.name, lambda _args, _handle: UnsupportedPods(), NoArgs)
