"""End all pods of a standalone node through the API, as deleting them by hand would: grace first, then force."""

from __future__ import annotations

from slacktide.cluster import PODS, Client
from slacktide.cluster.errors import ClusterError, Conflict, NotFound
from slacktide.objects import Pod, is_terminating, pod_key

DEFAULT_GRACE_SECONDS = 30
"""What a pod without terminationGracePeriodSeconds gets, as in Kubernetes."""


class PodDrain:
    """Deletes pods and tells which are still there. Every call may raise ClusterError; all may be repeated."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def remaining(self) -> list[Pod]:
        """Pods that have not gone yet; those that were created meanwhile are deleted as well."""
        pods = list(self._client.list(PODS).items)
        for pod in pods:
            if not is_terminating(pod):
                self._delete(pod, None)
        return pods

    def force(self) -> None:
        """End what still runs at once."""
        for pod in self._client.list(PODS).items:
            self._delete(pod, 0)

    def _delete(self, pod: Pod, grace: int | None) -> None:
        meta = pod.metadata
        try:
            self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_period_seconds=grace)
        except (NotFound, Conflict):
            return  # gone, or replaced by one of the same name, which the next call sees


def longest_grace(pods: list[Pod]) -> int:
    """Seconds that the slowest of these pods may take to end by itself."""
    graces = [pod.spec.termination_grace_period_seconds for pod in pods]
    return max((DEFAULT_GRACE_SECONDS if grace is None else grace for grace in graces), default=0)


def names(pods: list[Pod]) -> str:
    """Pods in words, for a message."""
    shown = ", ".join(pod_key(pod) for pod in pods[:5])
    return shown + (f" and {len(pods) - 5} more" if len(pods) > 5 else "")


__all__ = ["ClusterError", "PodDrain", "longest_grace", "names"]
