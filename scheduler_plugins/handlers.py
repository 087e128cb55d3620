"""From changes in the API to cache and queue: every pod with a node is counted, our own pods without one are queued."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.framework.waiting import DELETED, WaitingRoom
from slacktide.objects import Node, Pod, is_terminal, is_terminating
from slacktide.tier import Tier


class _Kind(enum.Enum):
    PLACED = 1
    WAITING = 2
    NEITHER = 3


class ClusterHandlers:
    """Handlers of the pod and node informers. The cache is changed before the queue is woken.

    `scheduler_names` are those of the profiles; `waiting` has the pods that wait at Permit.
    """

    def __init__(
        self,
        cache: Cache,
        queue: SchedulingQueue,
        reader: PodReader,
        scheduler_names: Iterable[str],
        waiting: WaitingRoom,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._reader = reader
        self._ours = frozenset(scheduler_names)
        self._waiting = waiting

    def _kind(self, pod: Pod) -> _Kind:
        if is_terminal(pod):
            return _Kind.NEITHER
        if pod.spec.node_name:
            return _Kind.PLACED
        return _Kind.WAITING if pod.spec.scheduler_name in self._ours else _Kind.NEITHER

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
            self._waiting_changed(old, new)
        elif is_terminating(new):
            self._reject(new)
        else:
            self._queue.update_in_flight(self._reader.read(old), self._reader.read(new))

    def pod_deleted(self, pod: Pod) -> None:
        """A pod is gone, or has ended."""
        info = self._reader.read(pod)
        claimed = self._queue.nominator.node_of(info.uid)
        self._queue.delete(info)
        self._reject(pod)
        if info.uid in self._cache:
            gone = self._cache.remove_pod(info.uid)
            self._queue.move_all(events.ASSIGNED_POD_DELETE, gone, None)
        elif claimed:
            self._given_up(info, claimed)

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

    def _reject(self, pod: Pod) -> None:
        """A pod that waits at Permit and is being deleted must not keep its place until its timeout."""
        self._waiting.reject(pod.metadata.uid, "", DELETED)

    def _waiting_changed(self, old: Pod, new: Pod) -> None:
        before = self._reader.read(old)
        claimed = self._queue.nominator.node_of(before.uid)
        self._queue.update(before, self._reader.read(new))
        if claimed and self._queue.nominator.node_of(before.uid) != claimed:
            self._given_up(before, claimed)

    def _given_up(self, info: PodInfo, claimed: str) -> None:
        """Room that was made for `info` is free for others; those of a higher priority never minded its claim.

        Best-effort pods mind that of another tier whatever their priority.
        """
        priority = info.priority if info.tier is Tier.BE else None
        self._queue.move_all(events.ASSIGNED_POD_DELETE, info.on(claimed), None, priority=priority)

    def _placed(self, pod: Pod) -> None:
        info = self._reader.read(pod)
        # A pod that another scheduler placed may still be in our queue; it leaves it without waking anybody.
        self._queue.delete(info)
        # Placed while it waited at Permit: by somebody else, since we bind only what waits no longer.
        self._waiting.reject(info.uid, "", "the pod was placed by another scheduler while it waited at Permit")
        assumed_on = self._cache.add_pod(info)
        if assumed_on:
            self._queue.move_all(events.ASSIGNED_POD_DELETE, info.on(assumed_on), None)
        self._queue.move_all(events.ASSIGNED_POD_ADD, None, info)

    def _placed_changed(self, old: Pod, new: Pod) -> None:
        before, after = self._cache.get(new.metadata.uid), self._reader.read(new)
        if self._cache.is_assumed(new.metadata.uid):
            self._cache.add_pod(after)
        else:
            self._cache.update_pod(after)
        for event in events.pod_events(old, new):
            self._queue.move_all(event, before, after)
