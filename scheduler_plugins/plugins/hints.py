"""Parts of queueing hints that several plugins share."""

from __future__ import annotations

from typing import Any

from scheduler_plugins.framework.events import Hint
from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.objects import Node


def node_of(value: Any) -> Node:
    """The object of a node event. Raises TypeError for anything else."""
    if not isinstance(value, Node):
        raise TypeError(f"a node event carries a {type(value).__name__}, not a Node")
    return value


def pod_of(value: Any) -> PodInfo:
    """The object of a pod event. Raises TypeError for anything else."""
    if not isinstance(value, PodInfo):
        raise TypeError(f"a pod event carries a {type(value).__name__}, not a PodInfo")
    return value


def assigned(pod: PodInfo) -> bool:
    """Whether the pod held a node."""
    return bool(pod.pod.spec.node_name)


def held_room(pod: PodInfo) -> bool:
    """Whether the pod held a node or room was kept for it on one."""
    return assigned(pod) or bool(pod.pod.status.nominated_node_name)


def own(pod: PodInfo, _old: Any, new: Any) -> Hint:
    """Queue when the event is about the waiting pod itself."""
    return Hint.QUEUE if pod_of(new).uid == pod.uid else Hint.SKIP


def new_node(_pod: PodInfo, old: Any, new: Any) -> Hint:
    """Queue for a node that was not there before."""
    node_of(new)
    return Hint.QUEUE if old is None else Hint.SKIP
