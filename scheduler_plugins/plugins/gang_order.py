"""Order of the queue in which pods of a gang stand together: higher priority first, then the older gang or pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from scheduler_plugins.framework.interfaces import Handle, QueueSortPlugin
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.plugins.gang_group import GangId, gang_of
from scheduler_plugins.plugins.gang_rules import Rules, rules_of
from scheduler_plugins.plugins.gang_state import members_of


class GangOrder:
    """A pod of no gang is as old as its entry in the queue, as with PrioritySort; a gang is as old as its PodGroup.

    A gang whose pods state its rules is as old as its oldest pod.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        # Creation is told by the API server's clock, entries in the queue by the monotonic one.
        self._epoch = handle.monotonic() - handle.wall_seconds()

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """Least first; equal times are told apart by the name of the gang, so that two gangs never mix."""
        gang = gang_of(queued.info)
        if gang is None:
            return (-queued.info.priority, queued.timestamp, "", queued.timestamp)
        created = self._created(gang)
        since = queued.timestamp if created is None else created + self._epoch
        return (-queued.info.priority, since, gang.key, queued.timestamp)

    def _created(self, gang: GangId) -> float | None:
        rules = rules_of(gang, members_of(self._handle, gang), self._handle.objects)
        return _seconds(rules.created) if isinstance(rules, Rules) else None


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


class GangSort(QueueSortPlugin):
    """The order as a plugin of its own, in the place of PrioritySort."""

    name = "GangSort"

    def __init__(self, handle: Handle) -> None:
        self._order = GangOrder(handle)

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """See `GangOrder`."""
        return self._order.sort_key(queued)
