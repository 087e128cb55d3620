"""PrioritySort: higher priority first, then whoever entered the queue earlier."""

from __future__ import annotations

from typing import Any

from scheduler_plugins.framework.interfaces import QueueSortPlugin
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.registry import NoArgs, Registry


class PrioritySort(QueueSortPlugin):
    """Orders by spec.priority, then by the time of entry."""

    name = "PrioritySort"

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        """Least first."""
        return (-queued.info.priority, queued.timestamp)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(PrioritySort.name, lambda _args, _handle: PrioritySort(), NoArgs)
