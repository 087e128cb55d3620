"""What people see of an attempt: the pod's condition and its events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from slacktide.cluster import PODS, Kind
from slacktide.cluster.errors import ClusterError, Conflict, NotFound
from slacktide.objects import Pod, PodCondition, pod_key
from slacktide.observe import get_logger

_log = get_logger("scheduler.report")

UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"
NOT_READY: Final = "NotReadyForScheduling"
"""Kept out of the queue, or holding a place and waiting for others. Source: KEP-5501."""
EVENT_LIMIT: Final = 1024
"""Bytes of a note. Source: kubernetes pkg/apis/core/validation, NoteLengthLimit."""

_CUT: Final = " ..."


class StatusClient(Protocol):
    """The call of the API client that reporting needs."""

    def patch(
        self,
        kind: Kind[Pod],
        name: str,
        namespace: str | None,
        body: dict[str, Any],
        subresource: str | None = None,
        patch_type: Literal["merge", "strategic", "json"] = "merge",
    ) -> Pod:
        """Change named fields of a pod."""
        ...


class Recorder(Protocol):
    """Where events go."""

    def record(self, involved: Pod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue an event."""
        ...


def scheduled_condition(pod: Pod) -> PodCondition | None:
    """The condition PodScheduled of `pod`."""
    return next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)


def failure_patch(pod: Pod, reason: str, message: str, nominate: str | None, now: float) -> dict[str, Any] | None:
    """Patch that sets PodScheduled=False and the nomination; None if the pod says so already. See `Reporter.failed`.

    lastTransitionTime moves only when the status does. `now` is seconds since the epoch.
    """
    status: dict[str, Any] = {}
    condition = _condition(pod, reason, message, now)
    if condition is not None:
        status["conditions"] = [condition]
    if nominate is not None and nominate != pod.status.nominated_node_name:
        status["nominatedNodeName"] = nominate or None
    return {"status": status} if status else None


def _condition(pod: Pod, reason: str, message: str, now: float) -> dict[str, Any] | None:
    current = scheduled_condition(pod)
    if current is not None and (current.status, current.reason, current.message) == ("False", reason, message):
        return None
    since = current.last_transition_time if current is not None and current.status == "False" else None
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def event_text(message: str) -> str:
    """`message` cut after a whole word to what an event may carry, which the API counts in bytes."""
    data = message.encode()
    if len(data) <= EVENT_LIMIT:
        return message
    room = EVENT_LIMIT - len(_CUT)
    blank = data.rfind(b" ", 0, room + 1)
    # A word that is most of the note is cut rather than left out.
    head = data[:blank].rstrip(b" ,;:") if blank > room // 2 else data[:room]
    return head.decode(errors="ignore") + _CUT


class Reporter:
    """Writes conditions and events; a failure to do so is logged and never ends an attempt."""

    def __init__(self, client: StatusClient, recorder: Recorder, wall_seconds: Callable[[], float]) -> None:
        self._client = client
        self._recorder = recorder
        self._wall = wall_seconds

    def scheduled(self, pod: Pod, node: str) -> None:
        """The pod was bound."""
        self._recorder.record(pod, "Normal", "Scheduled", f"Successfully assigned {pod_key(pod)} to {node}")

    def failed(self, pod: Pod, reason: str, message: str, nominate: str | None = None) -> None:
        """The attempt failed; `reason` is Unschedulable or SchedulerError.

        `nominate` names the node on which room was made for the pod; empty takes that back, None changes nothing.
        """
        self._recorder.record(pod, "Warning", "FailedScheduling", event_text(message))
        self._patch(pod, failure_patch(pod, reason, message, nominate, self._wall()))

    def not_ready(self, pod: Pod, message: str) -> None:
        """The pod is not tried, or not bound, yet: condition only, and only if nothing has happened to the pod since.

        An attempt may end while this is under way, and a pod that is bound must not be told that it is not.
        """
        body = failure_patch(pod, NOT_READY, message, None, self._wall())
        if body is not None:
            self._patch(pod, {"metadata": {"resourceVersion": pod.metadata.resource_version}, **body})

    def _patch(self, pod: Pod, body: dict[str, Any] | None) -> None:
        if body is None:
            return
        try:
            self._client.patch(PODS, pod.metadata.name, pod.metadata.namespace, body, "status", "strategic")
        except (Conflict, NotFound):
            return
        except ClusterError as error:
            _log.warning("pod condition not written", pod=pod_key(pod), error=str(error))
