"""Which events are worth a write: repeats are counted, floods are summed up and limited. Pure; time is passed in.

The rules are those of client-go's event correlator (facts: aggregation of 10 similar events within 10 minutes,
burst 25 and one token each 5 minutes for one source and object, 4096 remembered keys).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from slacktide.objects import EventSource, ObjectReference

V = TypeVar("V")

MESSAGE_BYTES: Final = 1024
_COMBINED: Final = "(combined from similar events): "


@dataclass(frozen=True)
class Limits:
    """When events are combined or dropped; times in seconds."""

    similar: int = 10
    similar_seconds: float = 600.0
    burst: int = 25
    refill_seconds: float = 300.0
    remembered: int = 4096


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object. `type` is Normal or Warning; `at` is RFC 3339 text."""

    involved: ObjectReference
    source: EventSource
    type: str
    reason: str
    message: str
    at: str


@dataclass(frozen=True)
class Write:
    """What to send: a new event where `name` is None, else a higher count for the event of that name."""

    key: Hashable
    occurrence: Occurrence
    count: int
    first_at: str
    name: str | None


@dataclass
class _Seen:
    count: int
    first_at: str
    name: str | None = None


@dataclass
class _Similar:
    at: float
    messages: set[str] = field(default_factory=set)


@dataclass
class _Bucket:
    tokens: float
    at: float


class _Recent(OrderedDict[Hashable, V], Generic[V]):
    """A dict that forgets what was used longest ago."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def fetch(self, key: Hashable) -> V | None:
        """The value, which counts as used now."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def keep(self, key: Hashable, value: V) -> V:
        """Remember a value."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)
        return value


class Correlator:
    """Remembers what was said lately; used by one thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._seen: _Recent[_Seen] = _Recent(self._limits.remembered)
        self._similar: _Recent[_Similar] = _Recent(self._limits.remembered)
        self._buckets: _Recent[_Bucket] = _Recent(self._limits.remembered)

    def plan(self, occurrence: Occurrence, now: float) -> Write | None:
        """The write for an occurrence at monotonic time `now`; None where the limit says to keep quiet.

        What is kept quiet is still counted, and shows in the count of the next write.
        """
        key, occurrence = self._combined(occurrence, now)
        seen = self._seen.fetch(key)
        if seen is None:
            seen = self._seen.keep(key, _Seen(0, occurrence.at))
        seen.count += 1
        if not self._take_token(occurrence, now):
            return None
        return Write(key, occurrence, seen.count, seen.first_at, seen.name)

    def written(self, key: Hashable, name: str | None) -> None:
        """Note under which name the event is stored; None where the server has forgotten it."""
        seen = self._seen.get(key)
        if seen is not None:
            seen.name = name

    def _combined(self, occurrence: Occurrence, now: float) -> tuple[Hashable, Occurrence]:
        """The key to count under, and the occurrence with the message that stands for all similar ones."""
        alike = (_subject(occurrence), occurrence.type, occurrence.reason)
        similar = self._similar.fetch(alike)
        if similar is None or now - similar.at > self._limits.similar_seconds:
            similar = self._similar.keep(alike, _Similar(now))
        similar.at = now
        similar.messages.add(occurrence.message)
        if len(similar.messages) < self._limits.similar:
            return (alike, occurrence.message), occurrence
        similar.messages.pop()
        return alike, msgspec.structs.replace(occurrence, message=_COMBINED + occurrence.message)

    def _take_token(self, occurrence: Occurrence, now: float) -> bool:
        subject = _subject(occurrence)
        bucket = self._buckets.fetch(subject)
        if bucket is None:
            bucket = self._buckets.keep(subject, _Bucket(float(self._limits.burst), now))
        gained = (now - bucket.at) / self._limits.refill_seconds
        bucket.tokens = min(float(self._limits.burst), bucket.tokens + gained)
        bucket.at = now
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True


def _subject(occurrence: Occurrence) -> Hashable:
    involved, source = occurrence.involved, occurrence.source
    return (source.component, source.host, involved.kind, involved.namespace, involved.name, involved.uid)


def cut_message(message: str, limit: int = MESSAGE_BYTES) -> str:
    """The message within `limit` bytes of UTF-8, which is what the API takes; a cut is shown by three dots."""
    encoded = message.encode()
    if len(encoded) <= limit:
        return message
    return encoded[: limit - 3].decode(errors="ignore") + "..."
