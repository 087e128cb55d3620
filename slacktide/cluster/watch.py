"""Watch streams: from bytes, cut anywhere, to events. No I/O here.

A watch is one JSON object a line: {"type": "ADDED|MODIFIED|DELETED|BOOKMARK|ERROR", "object": {...}}.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Literal

import msgspec

from slacktide.cluster import errors
from slacktide.cluster.codec import codec
from slacktide.cluster.kinds import Kind, T

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_OBJECT_TYPES: Final[dict[str, EventType]] = {"ADDED": "ADDED", "MODIFIED": "MODIFIED", "DELETED": "DELETED"}
_LINE_LIMIT: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class WatchEvent(Generic[T]):
    """One event of a watch.

    A BOOKMARK carries an object with nothing but metadata: it only moves the resourceVersion on. So does an event
    whose object does not fit the view; then `readable` is false.
    """

    type: EventType
    object: T
    readable: bool = True


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


_LINES: Final = msgspec.json.Decoder(_Line)


class LineSplitter:
    """Collects chunks and gives whole lines; what has no line end yet waits for the next chunk."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that this chunk completes, without line ends; empty lines are left out."""
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            whole = b"".join((*self._parts, line))
            self._parts.clear()
            self._size = 0
            if whole.strip():
                yield whole
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > _LINE_LIMIT:
                raise errors.Unreadable(f"a watch line is longer than {_LINE_LIMIT} bytes; is this an API server?")


class WatchDecoder(Generic[T]):
    """Turns the chunks of one watch into events."""

    def __init__(self, kind: Kind[T]) -> None:
        self._codec = codec(kind)
        self._splitter = LineSplitter()

    def feed(self, chunk: bytes) -> Iterator[WatchEvent[T]]:
        """The events that this chunk completes.

        Raises the ApiError of an ERROR event (Gone for 410), Unreadable for a line that is no watch event; the
        events before it are yielded first. A line that never ends is dropped: the next watch sends it again.
        """
        for line in self._splitter.feed(chunk):
            yield self._event(line)

    def _event(self, line: bytes) -> WatchEvent[T]:
        try:
            parsed = _LINES.decode(line)
        except msgspec.MsgspecError as error:
            raise errors.Unreadable(f"a line of the watch is no event: {error}: {line[:200]!r}") from error
        known = _OBJECT_TYPES.get(parsed.type)
        if known is not None:
            try:
                return WatchEvent(known, self._codec.one(parsed.object))
            except errors.Unreadable:
                return WatchEvent(known, self._codec.metadata_only(parsed.object), readable=False)
        if parsed.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", self._codec.metadata_only(parsed.object))
        if parsed.type == "ERROR":
            raise _error_of(parsed.object)
        raise errors.Unreadable(f"a line of the watch has the unknown type {parsed.type!r}")


def _error_of(raw: msgspec.Raw) -> errors.ClusterError:
    try:
        status = msgspec.json.decode(raw, type=errors.Status)
    except msgspec.MsgspecError as error:
        return errors.Unreadable(f"the watch ended with an error that is no Status: {error}")
    return errors.from_status(status, status.code or 500)
