"""What a new cluster has from the start, and what time takes away: first objects, and events that are too old."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from standalone.api import admission, validation, writes
from standalone.api.kinds import EVENTS, NAMESPACES, PRIORITY_CLASSES
from standalone.api.records import Key
from standalone.api.store import Transaction
from standalone.api.times import parse_time

EVENT_LIFE_SECONDS: Final = 3600.0
"""Events go this long after they were last said, as in kube-apiserver."""


def first_objects(transaction: Transaction, world: writes.World) -> None:
    """Create the namespaces and priority classes that are missing."""
    for name in admission.FIRST_NAMESPACES:
        if transaction.get(Key(NAMESPACES.resource, "", name)) is None:
            writes.create(transaction, world, NAMESPACES, "", {"metadata": {"name": name}})
    for name, value in validation.SYSTEM_CLASSES.items():
        if transaction.get(Key(PRIORITY_CLASSES.resource, "", name)) is None:
            writes.create(transaction, world, PRIORITY_CLASSES, "", {"metadata": {"name": name}, "value": value})


def expire_events(transaction: Transaction, now: datetime) -> int:
    """Delete events that nobody repeated for `EVENT_LIFE_SECONDS`; how many."""
    limit = now - timedelta(seconds=EVENT_LIFE_SECONDS)
    old = [record.key for record in transaction.items(EVENTS.resource) if last_said(record.object()) < limit]
    for key in old:
        transaction.delete(key)
    return len(old)


def last_said(event: dict[str, Any]) -> datetime:
    """When an event was last said; its creation when it does not say, 1970 when nothing can be read."""
    series = event.get("series") or {}
    stated = [series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")]
    times = [parse_time(text) for text in [*stated, event["metadata"].get("creationTimestamp")]]
    return max((found for found in times if found is not None), default=datetime.fromisoformat("1970-01-01T00:00:00Z"))
