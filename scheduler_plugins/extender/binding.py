"""The bind verb: the placement is counted at once, so that the next question sees it, and then told to the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from scheduler_plugins.extenders import wire
from scheduler_plugins.framework.cache import Cache, CacheError
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Status
from slacktide.cluster import PODS, Kind
from slacktide.cluster.errors import ClusterError
from slacktide.objects import Pod
from slacktide.observe import get_logger
from slacktide.tier import Tier

_log: Final = get_logger("extender.binding")


class KnownPods(Protocol):
    """Pods as the informer has them."""

    def get(self, namespace: str, name: str) -> Pod | None:
        """One pod, None where it is not known."""
        ...


class PodClient(Protocol):
    """The call of the API client for a pod that the informer does not have yet."""

    def get(self, kind: Kind[Pod], name: str, namespace: str | None = None) -> Pod:
        """One pod. Raises ClusterError."""
        ...


class PodBinding:
    """Binds pods of any tier; those of `tiers` are counted, and go through Reserve, PreBind and PostBind.

    `bind` tells the API and answers once it knows what became of the pod.
    """

    def __init__(
        self,
        framework: Framework,
        cache: Cache,
        reader: PodReader,
        tiers: frozenset[Tier],
        pods: KnownPods,
        client: PodClient,
        bind: Callable[[PodInfo, str], Status],
    ) -> None:
        self._framework = framework
        self._cache = cache
        self._reader = reader
        self._tiers = tiers
        self._pods = pods
        self._client = client
        self._bind = bind

    def bind(self, order: wire.ExtenderBindingArgs) -> str:
        """Empty once the pod is bound, else why it is not. Whatever was counted is undone on every failure."""
        key = f"{order.pod_namespace}/{order.pod_name}"
        known = self._pods.get(order.pod_namespace, order.pod_name)
        try:
            pod = known or self._client.get(PODS, order.pod_name, order.pod_namespace)
        except ClusterError as error:
            return f"pod {key} cannot be read: {error}"
        if pod.metadata.uid != order.pod_uid:
            return f"pod {key} has another uid ({pod.metadata.uid}): it was replaced"
        info = self._reader.read(pod)
        if info.tier not in self._tiers:
            return self._bind(info, order.node).message
        counted = known is not None and self._assume(info, order)
        status = self._placed(info, order.node)
        if not status.ok and counted:
            self._cache.forget(info.uid)
        return status.message

    def _assume(self, info: PodInfo, order: wire.ExtenderBindingArgs) -> bool:
        """Count the pod; only one that the informer has, because the informer must end what it never saw begin."""
        try:
            self._cache.assume(info, order.node)
        except CacheError:
            # Counted already: an earlier order of which the scheduler did not hear the end.
            return False
        if self._pods.get(order.pod_namespace, order.pod_name) is None:
            self._cache.forget(info.uid)
            return False
        return True

    def _placed(self, info: PodInfo, node: str) -> Status:
        state = CycleState()
        status = self._framework.run_reserve(state, info, node)
        if status.ok:
            status = self._framework.run_pre_bind(state, info, node)
        if status.ok:
            status = self._framework.run_bind(state, info, node)
        problems = self._framework.run_post_bind(state, info, node) if status.ok else ()
        if not status.ok:
            problems = self._framework.run_unreserve(state, info, node)
        for problem in problems:
            _log.error("plugin failed after a placement", plugin=problem.plugin, reason=problem.message, pod=info.key)
        return status
