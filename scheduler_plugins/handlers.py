"""From changes in the API to cache and queue: every pod with a node is counted, our own pods without one are queued."""

from __future__ import annotations

import enum

from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodReader
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.framework.waiting import DELETED, WaitingRoom
from slacktide.objects import Node, Pod, is_terminal, is_terminating


class _Kind(enum.Enum):
    PLACED = 1
    WAITING = 2
    NEITHER = 3


class ClusterHandlers:
    """Handlers of the pod and node informers. The cache is changed before the queue is woken."""

    def __init__(
        self,
        cache: Cache,
        queue: SchedulingQueue,
        reader: PodReader,
        scheduler_name: str,
        waiting: WaitingRoom | None = None,
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._queue = queue
        self._reader = reader
        self._scheduler_name = scheduler_name

    def _kind(self, pod: Pod) -> _Kind:
        if is_terminal(pod):
            return _Kind.NEITHER
        if pod.spec.node_name:
            return _Kind.PLACED
        return _Kind.WAITING if pod.spec.scheduler_name == self._scheduler_name else _Kind.NEITHER

    def pod_added(self, pod: Pod) -> None:
        """A pod appeared."""
        kind = self._kind(pod)
        if kind is _Kind.PLACED:
            self._placed(pod)
        elif kind is _Kind.WAITING and pod.metadata.uid not in self._cache:
            self._queue.add(self._reader.read(pod))

    def pod_updated(self, old: Pod, new: Pod) -> None:
        """A pod changed; `old` and `new` are the same pod (uid)."""
        was, now = self._kind(old), self._kind(new)
        if now is _Kind.PLACED:
            if was is _Kind.PLACED and new.metadata.uid in self._cache:
                self._placed_changed(old, new)
            else:
                self._placed(new)
        elif now is _Kind.NEITHER:
            self.pod_deleted(old)
        elif was is not _Kind.WAITING:
            self.pod_added(new)
        elif new.metadata.uid not in self._cache:
            self._queue.update(self._reader.read(old), self._reader.read(new))
        elif is_terminating(new):
            self._reject(new)

    def pod_deleted(self, pod: Pod) -> None:
        """A pod is gone, or has ended."""
        self._queue.delete(self._reader.read(pod))
        self._reject(pod)
        if pod.metadata.uid in self._cache:
            gone = self._cache.remove_pod(pod.metadata.uid)
            self._queue.move_all(events.ASSIGNED_POD_DELETE, gone, None)

    def _reject(self, pod: Pod) -> None:
        """A pod that waits at Permit and is being deleted must not keep its place until its timeout."""
        if self._waiting is not None:
            self._waiting.reject(pod.metadata.uid, "", DELETED)

    def node_added(self, node: Node) -> None:
        """A node appeared."""
        self._cache.set_node(node)
        self._queue.move_all(events.NODE_ADD, None, node)

    def node_updated(self, old: Node, new: Node) -> None:
        """A node changed."""
        self._cache.set_node(new)
        for event in events.node_events(old, new):
            self._queue.move_all(event, old, new)

    def node_deleted(self, node: Node) -> None:
        """A node is gone."""
        self._cache.remove_node(node.metadata.name)
        self._queue.move_all(events.NODE_DELETE, node, None)

    def _placed(self, pod: Pod) -> None:
        info = self._reader.read(pod)
        # A pod that another scheduler placed may still be in our queue; it leaves it without waking anybody.
        self._queue.delete(info)
        assumed_on = self._cache.add_pod(info)
        if assumed_on:
            self._queue.move_all(events.ASSIGNED_POD_DELETE, info.on(assumed_on), None)
        self._queue.move_all(events.ASSIGNED_POD_ADD, None, info)

    def _placed_changed(self, old: Pod, new: Pod) -> None:
        before, after = self._reader.read(old), self._reader.read(new)
        if self._cache.is_assumed(new.metadata.uid):
            self._cache.add_pod(after)
        else:
            self._cache.update_pod(after)
        for event in events.pod_events(old, new):
            self._queue.move_all(event, before, after)
