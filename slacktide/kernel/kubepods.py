"""How the kubelet names cgroups of pods and containers, both drivers; building and reading the names.

Source: kubernetes pkg/kubelet/cm (cgroup_manager, qos_container_manager), reference/kernel.md section 2.3.
The agent finds cgroups by listing and reads the names; only the node runner builds them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

QOS_CLASSES: Final = ("Guaranteed", "Burstable", "BestEffort")

_UID: Final = r"[0-9a-fA-F]{8}[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{4}[-_][0-9a-fA-F]{12}|[0-9a-fA-F]{32}"
_POD: Final = re.compile(rf"(?:.*-)?pod(?P<uid>{_UID})(?:\.slice)?")
_CONTAINER: Final = re.compile(
    r"(?:.*:)?(?:(?:cri-containerd|containerd|crio|docker|libpod)[-:])?(?P<id>[0-9a-f]{64}|[0-9a-f]{32})(?:\.scope)?"
)
_STRAY: Final = re.compile(rf"(?:.*-)?pod(?P<uid>{_UID})(?:\.slice)?:[^:]*:(?P<id>[0-9a-f]{{64}}|[0-9a-f]{{32}})")


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Cgroup of one pod: its path below the controller root and the UID that its name carries."""

    path: str
    uid: str


def pod_uid(directory_name: str) -> str | None:
    """UID in the name of a pod's cgroup directory (dashes restored); None when it is no pod directory."""
    match = _POD.fullmatch(directory_name)
    return match["uid"].replace("_", "-").lower() if match else None


def container_id(directory_name: str) -> str | None:
    """Container id in the name of a leaf directory; None when it is none (conmon, init.scope, ...)."""
    if "conmon" in directory_name:
        return None
    match = _CONTAINER.fullmatch(directory_name)
    return match["id"] if match else None


@dataclass(frozen=True, slots=True)
class Stray:
    """A container whose directory carries the name of its pod as well, because it lies outside of it."""

    uid: str
    container: str


def stray(directory_name: str) -> Stray | None:
    """Pod and container in the name of a directory `kubepods-...-podUID.slice:PREFIX:ID`; None for any other name.

    A runtime with the cgroupfs driver makes these under a kubelet with the systemd driver (koordinator#661).
    """
    if ":" not in directory_name:
        return None
    match = _STRAY.fullmatch(directory_name)
    return Stray(match["uid"].replace("_", "-").lower(), match["id"]) if match else None


def qos_parent(qos_class: str) -> str:
    """Path below the root for a QoS class, cgroupfs driver. Raises ValueError for an unknown class."""
    if qos_class not in QOS_CLASSES:
        raise ValueError(f"unknown QoS class {qos_class!r}; known: {', '.join(QOS_CLASSES)}")
    return "kubepods" if qos_class == "Guaranteed" else f"kubepods/{qos_class.lower()}"


def pod_path(qos_class: str, uid: str) -> str:
    """Path of a pod's cgroup below the root, cgroupfs driver. Raises ValueError for a bad UID or class."""
    if not re.fullmatch(_UID, uid):
        raise ValueError(f"pod UID {uid!r} is no UUID")
    return f"{qos_parent(qos_class)}/pod{uid}"
