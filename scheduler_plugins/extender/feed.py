"""From changes in the API to the cache: nodes, and every pod that has one. An extender has no queue to wake."""

from __future__ import annotations

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodReader
from slacktide.objects import Node, Pod, is_terminal


class CacheFeed:
    """Handlers of the pod and node informers."""

    def __init__(self, cache: Cache, reader: PodReader) -> None:
        self._cache = cache
        self._reader = reader

    def pod_added(self, pod: Pod) -> None:
        """A pod appeared."""
        if pod.spec.node_name and not is_terminal(pod):
            self._placed(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:  # noqa: ARG002  # an informer gives both
        """A pod changed: it may have been placed, or have ended."""
        if is_terminal(new):
            self.pod_deleted(new)
        elif new.spec.node_name:
            self._placed(new)

    def pod_deleted(self, pod: Pod) -> None:
        """A pod is gone, or has ended; it may have been assumed only."""
        if pod.metadata.uid in self._cache:
            self._cache.remove_pod(pod.metadata.uid)

    def node_added(self, node: Node) -> None:
        """A node appeared."""
        self._cache.set_node(node)

    def node_updated(self, old: Node, new: Node) -> None:  # noqa: ARG002  # an informer gives both
        """A node changed."""
        self._cache.set_node(new)

    def node_deleted(self, node: Node) -> None:
        """A node is gone."""
        self._cache.remove_node(node.metadata.name)

    def _placed(self, pod: Pod) -> None:
        info, uid = self._reader.read(pod), pod.metadata.uid
        if uid in self._cache and not self._cache.is_assumed(uid):
            self._cache.update_pod(info)
        else:
            self._cache.add_pod(info)
