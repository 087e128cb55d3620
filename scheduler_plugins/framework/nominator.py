"""Nominator: pods for which room was made on a node, and that count there until they arrive.

A nomination has two sources. A failed cycle whose PostFilter made room states it at once (`set`). The watch states it
in status.nominatedNodeName, always a little later: an update in which the field is empty before and after says nothing
about a nomination that was made in between, and keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.objects import Pod, is_terminal

Lookup = Callable[[str, str], Pod | None]
"""The newest known pod by (namespace, name), as an informer has it; None where there is none."""


class Nominator:
    """Thread safe; implements `interfaces.Nominations`. Without `lookup` every pod is taken to be still waiting."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        self._lookup = lookup
        self._lock = threading.Lock()
        self._node_of: dict[str, str] = {}
        self._on: dict[str, dict[str, PodInfo]] = {}

    def on(self, node_name: str) -> Sequence[PodInfo]:
        """Pods nominated to the node, in the order of their nomination."""
        with self._lock:
            return tuple(self._on.get(node_name, {}).values())

    def node_of(self, uid: str) -> str:
        """Where a pod is nominated; empty when it is not."""
        with self._lock:
            return self._node_of.get(uid, "")

    def nodes(self) -> frozenset[str]:
        """Nodes to which any pod is nominated."""
        with self._lock:
            return frozenset(self._on)

    def set(self, pod: PodInfo, node_name: str) -> bool:
        """Nominate `pod` to a node, or to none (empty text), whatever its status says; whether it is nominated now.

        A pod that is gone, has a node or has ended meanwhile is not nominated: it would block the room for good.
        """
        waits = bool(node_name) and self._waits(pod)
        with self._lock:
            self._drop(pod.uid)
            if waits:
                self._add(pod, node_name)
        return waits

    def seen(self, pod: PodInfo) -> bool:
        """A waiting pod appeared: nominated as its status says; whether it is nominated now."""
        return self.set(pod, pod.pod.status.nominated_node_name)

    def changed(self, old: PodInfo, new: PodInfo) -> None:
        """A waiting pod changed: its status decides, unless it is empty before and after (see above)."""
        stated = new.pod.status.nominated_node_name
        if stated or old.pod.status.nominated_node_name:
            self.set(new, stated)
            return
        with self._lock:
            node_name = self._node_of.get(new.uid, "")
            if node_name:
                self._on[node_name][new.uid] = new

    def drop(self, uid: str) -> str:
        """The pod is nominated no more, because it is gone, bound or assumed; where it had been, else ""."""
        with self._lock:
            return self._drop(uid)

    def _waits(self, pod: PodInfo) -> bool:
        if self._lookup is None:
            return True
        current = self._lookup(pod.pod.metadata.namespace, pod.pod.metadata.name)
        if current is None or current.metadata.uid != pod.uid:
            return False
        return not current.spec.node_name and not is_terminal(current)

    def _add(self, pod: PodInfo, node_name: str) -> None:
        self._node_of[pod.uid] = node_name
        self._on.setdefault(node_name, {})[pod.uid] = pod

    def _drop(self, uid: str) -> str:
        node_name = self._node_of.pop(uid, "")
        if node_name:
            pods = self._on[node_name]
            del pods[uid]
            if not pods:
                del self._on[node_name]
        return node_name
