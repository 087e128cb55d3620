"""Victims on their way out: asked to go beside the scheduling loop, and not replaced by others while they go.

What is kept is only which victims a pod waits for. A victim that could not be asked to go is dropped from it and the
pod tries again at once: no event would wake it (kubernetes#134217, #134249).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.status import Status, failed
from slacktide.observe import get_logger

_log = get_logger("scheduler.preemption")


@dataclass(slots=True)
class _Departure:
    """What one pod waits for: these pods (uids) are to leave the node."""

    node: str
    victims: set[str]


class Departures:
    """Thread safe."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._of: dict[str, _Departure] = {}

    def begin(self, pod: PodInfo, node_name: str, victims: Sequence[PodInfo]) -> None:
        """Ask `victims` to go, for `pod`; returns at once where the host has threads for it."""
        with self._lock:
            for uid in [uid for uid in self._of if not self._handle.nominations.node_of(uid)]:
                del self._of[uid]
            self._of[pod.uid] = _Departure(node_name, {victim.uid for victim in victims})
        for victim in victims:
            self._handle.submit(self._task(pod, node_name, victim))

    def under_way(self, pod: PodInfo, node_name: str, snapshot: Snapshot) -> bool:
        """Whether a pod that was asked to go for `pod` is still on the node to which `pod` is nominated."""
        row = snapshot.index.get(node_name)
        here = snapshot.nodes[row].pods if row is not None else {}
        with self._lock:
            departure = self._of.get(pod.uid)
            if departure is None:
                return False
            if departure.node == node_name and any(uid in here for uid in departure.victims):
                return True
            del self._of[pod.uid]
            return False

    def forget(self, pod: PodInfo) -> None:
        """`pod` waits no longer for anybody."""
        with self._lock:
            self._of.pop(pod.uid, None)

    def _task(self, pod: PodInfo, node_name: str, victim: PodInfo) -> Callable[[], None]:
        def ask() -> None:
            status = self._ask(pod, node_name, victim)
            if status.ok:
                return
            _log.warning("victim not removed", pod=victim.key, by=pod.key, node=node_name, error=status.message)
            with self._lock:
                departure = self._of.get(pod.uid)
                if departure is not None:
                    departure.victims.discard(victim.uid)
            self._handle.activate([pod])

        return ask

    def _ask(self, pod: PodInfo, node_name: str, victim: PodInfo) -> Status:
        try:
            return self._handle.evictor.preempt(victim, pod, node_name)
        except Exception as error:  # noqa: BLE001  # whatever happened, the pod must not wait for this victim
            return failed(f"preempting {victim.key} failed: {error!r}", error)
