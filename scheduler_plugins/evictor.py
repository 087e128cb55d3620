"""Removing the victims of a preemption through the API, so that everybody can see why they went.

A victim that only waits at Permit has nothing to delete: its wait ends, and it tries again after its backoff. Any other
gets the condition DisruptionTarget, then it is deleted; both spare a newer pod of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.status import SUCCESS, Status, failed
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.report import Recorder, StatusClient
from slacktide.cluster import PODS, Kind
from slacktide.cluster.errors import ClusterError, Conflict, NotFound
from slacktide.observe import get_logger

_log = get_logger("scheduler.evictor")

PREEMPTED: Final = "PreemptionByScheduler"
"""Reason of the condition, as other components look for it."""


class EvictClient(StatusClient, Protocol):
    """The calls of the API client that preemption needs."""

    def delete(self, kind: Kind[Any], name: str, namespace: str | None = None, uid: str | None = None) -> None:
        """Begin the deletion of one very pod."""
        ...


class PreemptionObserver(Protocol):
    """Told of preemptions."""

    def preemption_attempted(self) -> None:
        """Room was looked for by removing pods."""
        ...

    def preempted(self, victims: int) -> None:
        """That many pods were chosen to go."""
        ...


class ApiEvictor:
    """See `interfaces.Evictor`. Safe to use from any thread. `wall_seconds` is seconds since the epoch."""

    def __init__(
        self,
        client: EvictClient,
        waiting: WaitingRoom,
        nominator: Nominator,
        recorder: Recorder,
        observer: PreemptionObserver,
        wall_seconds: Callable[[], float],
    ) -> None:
        self._client = client
        self._waiting = waiting
        self._nominator = nominator
        self._recorder = recorder
        self._observer = observer
        self._wall = wall_seconds

    def preempt(self, victim: PodInfo, by: PodInfo, node_name: str) -> Status:
        """See `interfaces.Evictor`."""
        if self._waiting.reject(victim.uid, "", f"preempted at Permit by {by.key} on node {node_name}"):
            _log.info("waiting pod preempted", pod=victim.key, by=by.key, node=node_name)
            return SUCCESS
        name, namespace = victim.pod.metadata.name, victim.pod.metadata.namespace
        try:
            self._client.patch(PODS, name, namespace, self._condition(victim, by), "status", "strategic")
            self._client.delete(PODS, name, namespace, victim.uid)
        except (NotFound, Conflict):
            # Gone, or replaced by another pod of its name: either way it no longer takes the room.
            return SUCCESS
        except ClusterError as error:
            return failed(f"preempting {victim.key} on {node_name}: {error}", error)
        _log.info("preempted", pod=victim.key, by=by.key, node=node_name)
        self._recorder.record(victim.pod, "Normal", "Preempted", f"Preempted by pod {by.uid} on node {node_name}")
        return SUCCESS

    def withdraw(self, pod: PodInfo) -> Status:
        """See `interfaces.Evictor`."""
        self._nominator.drop(pod.uid)
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": None}}
        name, namespace = pod.pod.metadata.name, pod.pod.metadata.namespace
        try:
            self._client.patch(PODS, name, namespace, body, "status", "strategic")
        except (NotFound, Conflict):
            return SUCCESS
        except ClusterError as error:
            return failed(f"taking back the nomination of {pod.key}: {error}", error)
        return SUCCESS

    def attempted(self) -> None:
        """See `interfaces.Evictor`."""
        self._observer.preemption_attempted()

    def chosen(self, victims: Sequence[PodInfo]) -> None:
        """See `interfaces.Evictor`."""
        self._observer.preempted(len(victims))

    def _condition(self, victim: PodInfo, by: PodInfo) -> dict[str, Any]:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": PREEMPTED,
            "message": f"{by.pod.spec.scheduler_name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
