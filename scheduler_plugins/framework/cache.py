"""Cache: nodes and the pods on them as the scheduler believes them to be, assumed placements included.

A pod is assumed by the scheduling loop, then confirmed by the API server's watch or forgotten after a failed bind. An
assumed pod never expires: expiry would sell its room a second time. Pods may be known before their node, and a node
that went away is kept without its object until its pods are gone. Any number of snapshots may be refreshed from it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Snapshot
from slacktide.errors import SlacktideError
from slacktide.objects import Node


class CacheError(SlacktideError):
    """A change that does not fit what the cache knows: a bug of the caller, or a watch that skipped something."""


@dataclass(slots=True)
class _Placed:
    info: PodInfo
    node: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How much the cache holds."""

    nodes: int
    pods: int
    assumed_pods: int


@dataclass(frozen=True, slots=True)
class CacheContents:
    """What the cache held at one moment.

    `nodes` are those with an object; `pods` has the node of each pod by uid, `assumed` the uids of those not confirmed;
    `wrong_sums` names nodes whose sums are not those of their pods, which is always a bug.
    """

    nodes: frozenset[str]
    pods: Mapping[str, str]
    keys: Mapping[str, str]
    assumed: frozenset[str]
    wrong_sums: tuple[str, ...]


class Cache:
    """Thread safe. Pods are known by uid."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeInfo] = {}
        self._pods: dict[str, _Placed] = {}
        # Changed nodes in the order of their last change; the newest is last. A snapshot reads from the end.
        self._touched: dict[str, int] = {}
        # Nodes that are gone altogether, until every snapshot has been told.
        self._gone: dict[str, int] = {}
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._generation = 0

    def assume(self, info: PodInfo, node_name: str) -> None:
        """Count `info` as placed before the API server knows. Raises CacheError if the pod is known already."""
        with self._lock:
            if info.uid in self._pods:
                raise CacheError(f"pod {info.key} is already in the cache and cannot be assumed on {node_name}")
            self._place(info.on(node_name), node_name, assumed=True)

    def forget(self, uid: str) -> PodInfo | None:
        """Undo an assumption and return it; one that is confirmed or forgotten already is left as it is (None)."""
        with self._lock:
            placed = self._pods.get(uid)
            if placed is None or not placed.assumed:
                return None
            return self._take(uid).info

    def add_pod(self, info: PodInfo) -> str:
        """A pod with a node, seen in the API. Confirms an assumption.

        Returns the node on which the pod had been assumed, if that was another one, else "". Raises CacheError for
        a pod that was added before.
        """
        with self._lock:
            placed = self._pods.get(info.uid)
            if placed is not None and not placed.assumed:
                raise CacheError(f"pod {info.key} was added to the cache before, on node {placed.node}")
            moved_from = ""
            if placed is not None:
                moved_from = placed.node if placed.node != info.pod.spec.node_name else ""
                self._take(info.uid)
            self._place(info, info.pod.spec.node_name, assumed=False)
            return moved_from

    def update_pod(self, info: PodInfo) -> None:
        """A newer version of an added pod. Raises CacheError for a pod that is unknown or only assumed."""
        with self._lock:
            placed = self._pods.get(info.uid)
            if placed is None or placed.assumed:
                state = "is not in the cache" if placed is None else "is only assumed"
                raise CacheError(f"pod {info.key} {state} and cannot be updated")
            self._take(info.uid)
            self._place(info, info.pod.spec.node_name, assumed=False)

    def remove_pod(self, uid: str) -> PodInfo:
        """The pod is gone, assumed or not. Raises CacheError for an unknown one."""
        with self._lock:
            if uid not in self._pods:
                raise CacheError(f"pod with uid {uid} is not in the cache")
            return self._take(uid).info

    def get(self, uid: str) -> PodInfo:
        """What is known of a placed pod. Raises CacheError for an unknown one."""
        with self._lock:
            placed = self._pods.get(uid)
            if placed is None:
                raise CacheError(f"pod with uid {uid} is not in the cache")
            return placed.info

    def __contains__(self, uid: object) -> bool:
        with self._lock:
            return uid in self._pods

    def is_assumed(self, uid: str) -> bool:
        """Whether the pod is counted but not confirmed."""
        with self._lock:
            placed = self._pods.get(uid)
            return placed is not None and placed.assumed

    def set_node(self, node: Node) -> None:
        """A node appeared or changed."""
        with self._lock:
            info = self._node(node.metadata.name)
            info.set_node(node)
            self._touch(info)

    def remove_node(self, name: str) -> None:
        """A node went away. Raises CacheError if it was never added."""
        with self._lock:
            info = self._nodes.get(name)
            if info is None or info.node is None:
                raise CacheError(f"node {name} is not in the cache")
            info.set_node(None)
            self._touch(info)
            self._drop_if_empty(info)

    def size(self) -> CacheSize:
        """Counts for metrics; nodes without an object are not counted."""
        with self._lock:
            return CacheSize(
                nodes=sum(1 for info in self._nodes.values() if info.node is not None),
                pods=len(self._pods),
                assumed_pods=sum(1 for placed in self._pods.values() if placed.assumed),
            )

    def contents(self) -> CacheContents:
        """All of it at this moment, sums checked; for comparison with the API."""
        with self._lock:
            return CacheContents(
                nodes=frozenset(name for name, info in self._nodes.items() if info.node is not None),
                pods={uid: placed.node for uid, placed in self._pods.items()},
                keys={uid: placed.info.key for uid, placed in self._pods.items()},
                assumed=frozenset(uid for uid, placed in self._pods.items() if placed.assumed),
                wrong_sums=tuple(name for name, info in self._nodes.items() if not info.consistent()),
            )

    def changed_since(self, generation: int) -> list[str]:
        """Names of nodes changed after `generation`, the most recent first."""
        with self._lock:
            return self._changed(generation)

    def refresh(self, snapshot: Snapshot) -> int:
        """Bring `snapshot` up to date; returns how many nodes had changed."""
        with self._lock:
            self._snapshots.add(snapshot)
            names = self._changed(snapshot.generation)
            for name in names:
                info = self._nodes.get(name)
                if info is None or info.node is None:
                    snapshot.remove(name)
                else:
                    snapshot.put(info.clone())
            snapshot.generation = self._generation
            if self._gone:
                self._forget_gone()
        snapshot.tidy()
        return len(names)

    def _forget_gone(self) -> None:
        told = min(snapshot.generation for snapshot in self._snapshots)
        for name, generation in list(self._gone.items()):
            if generation <= told:
                del self._gone[name]
                if self._touched.get(name) == generation:
                    del self._touched[name]

    def _changed(self, generation: int) -> list[str]:
        names = []
        for name in reversed(self._touched):
            if self._touched[name] <= generation:
                break
            names.append(name)
        return names

    def _node(self, name: str) -> NodeInfo:
        info = self._nodes.get(name)
        if info is None:
            info = self._nodes[name] = NodeInfo(name)
        return info

    def _touch(self, info: NodeInfo) -> None:
        self._generation += 1
        info.generation = self._generation
        self._touched.pop(info.name, None)
        self._touched[info.name] = self._generation

    def _place(self, info: PodInfo, node_name: str, *, assumed: bool) -> None:
        self._pods[info.uid] = _Placed(info, node_name, assumed)
        node = self._node(node_name)
        node.add_pod(info)
        self._touch(node)

    def _take(self, uid: str) -> _Placed:
        placed = self._pods.pop(uid)
        node = self._nodes[placed.node]
        node.remove_pod(uid)
        self._touch(node)
        self._drop_if_empty(node)
        return placed

    def _drop_if_empty(self, info: NodeInfo) -> None:
        if info.node is None and not info.pods:
            del self._nodes[info.name]
            self._gone[info.name] = info.generation
