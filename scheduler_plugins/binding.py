"""Binding through the API, so that a pod is placed once whatever happens to the answer.

The request carries the pod's uid. Where the server says that the pod is bound already, or gives no answer at all, the
pod is read again: the placement counts as ours if it is where we wanted it, as another's if it is elsewhere, and as
failed only if the pod has no node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.status import SUCCESS, Status, failed
from slacktide.cluster import PODS, Kind
from slacktide.cluster.errors import (
    ApiError,
    ClusterError,
    Conflict,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from slacktide.objects import Pod

_FIRST_WAIT_SECONDS: Final = 0.5
_LONGEST_WAIT_SECONDS: Final = 5.0


class BindClient(Protocol):
    """The calls of the API client that binding needs."""

    def bind(self, pod: Pod, node_name: str) -> None:
        """Assign a pod to a node."""
        ...

    def get(self, kind: Kind[Pod], name: str, namespace: str | None = None) -> Pod:
        """One pod."""
        ...


class BoundElsewhere(Exception):
    """Another scheduler placed the pod first; its placement stands."""

    def __init__(self, pod: str, node: str) -> None:
        self.node = node
        super().__init__(f"pod {pod} was bound to {node} by another scheduler")


class PodGone(Exception):
    """The pod was deleted, or replaced by another of its name."""

    def __init__(self, pod: str) -> None:
        super().__init__(f"pod {pod} is gone")


class ApiBinder:
    """Binds pods. `wait(seconds)` sleeps and returns True when the process is to stop."""

    def __init__(self, client: BindClient, wait: Callable[[float], bool]) -> None:
        self._client = client
        self._wait = wait

    def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Success once the pod is on `node_name`; else an Error whose cause says BoundElsewhere or PodGone."""
        try:
            self._client.bind(pod.pod, node_name)
        except (Conflict, NotFound, ServerError, Unreachable) as error:
            return self._settle(pod, node_name, error)
        except ClusterError as error:
            return failed(f"binding to {node_name} was refused: {error}", error)
        return SUCCESS

    def _settle(self, pod: PodInfo, node_name: str, cause: ClusterError) -> Status:
        """Find out what became of the pod; while nobody answers, its room stays reserved."""
        delay = _FIRST_WAIT_SECONDS
        while True:
            try:
                current = self._client.get(PODS, pod.pod.metadata.name, pod.pod.metadata.namespace)
            except NotFound as error:
                return _gone(pod, error)
            except (ServerError, TooManyRequests, Unreachable):
                if self._wait(delay):
                    return failed(f"stopping; whether the pod reached {node_name} is not known", cause)
                delay = min(_LONGEST_WAIT_SECONDS, 2 * delay)
            except ApiError as error:
                return failed(f"binding to {node_name} failed ({cause}) and the pod cannot be read: {error}", error)
            else:
                return _verdict(pod, node_name, current, cause)


def _verdict(pod: PodInfo, node_name: str, current: Pod, cause: ClusterError) -> Status:
    if current.metadata.uid != pod.uid:
        return _gone(pod, cause)
    if current.spec.node_name == node_name:
        return SUCCESS
    if current.spec.node_name:
        elsewhere = BoundElsewhere(pod.key, current.spec.node_name)
        return failed(str(elsewhere), elsewhere)
    return failed(f"binding to {node_name} failed: {cause}", cause)


def _gone(pod: PodInfo, cause: ClusterError) -> Status:
    gone = PodGone(pod.key)
    return failed(f"{gone}: {cause}", gone)
