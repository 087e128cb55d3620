"""Container logs in CRI format, rotated by size; a full disk loses lines, never the payload's time.

A line is `RFC3339Nano stdout|stderr F|P text`; P marks a part of a line longer than 16 KiB.
Source: kubernetes design "CRI: log management".
"""

from __future__ import annotations

import os
import time

PART_BYTES = 16 * 1024


def stamp(nanoseconds: int) -> str:
    """RFC 3339 with nanoseconds, UTC."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


class Lines:
    """Cuts the bytes of one stream into CRI entries; keeps an unfinished line until more comes or the end."""

    def __init__(self, stream: str) -> None:
        self._stream = stream.encode()
        self._rest = b""

    def feed(self, data: bytes, now: str) -> list[bytes]:
        """Entries that `data` completes."""
        *full, rest = (self._rest + data).split(b"\n")
        entries = []
        for line in full:
            entries += self._parts(line, now)
        while len(rest) >= PART_BYTES:
            entries.append(self._entry(rest[:PART_BYTES], b"P", now))
            rest = rest[PART_BYTES:]
        self._rest = rest
        return entries

    def end(self, now: str) -> list[bytes]:
        """The unfinished last line, if any."""
        rest, self._rest = self._rest, b""
        return self._parts(rest, now) if rest else []

    def _parts(self, line: bytes, now: str) -> list[bytes]:
        entries = []
        while len(line) > PART_BYTES:
            entries.append(self._entry(line[:PART_BYTES], b"P", now))
            line = line[PART_BYTES:]
        return [*entries, self._entry(line, b"F", now)]

    def _entry(self, text: bytes, tag: bytes, now: str) -> bytes:
        return b"%s %s %s %s\n" % (now.encode(), self._stream, tag, text)


class LogFile:
    """One log with its rotated predecessors: PATH, PATH.1 (newest) ... PATH.KEEP-1.

    Never raises: what cannot be written is counted in `lost`, and said in the log itself once there is room. After a
    failure the disk is left alone for `retry_seconds`.
    """

    def __init__(self, path: str, max_bytes: int, keep: int, retry_seconds: float = 1.0) -> None:
        self.path = path
        self.lost = 0
        self.reason = ""
        self._max_bytes = max_bytes
        self._keep = keep
        self._retry_seconds = retry_seconds
        self._unsaid = 0
        self._descriptor: int | None = None
        self._size = 0
        self._retry_at = 0.0
        self._open()

    def write(self, entries: list[bytes]) -> None:
        """Append entries, rotating between them where the file would grow over its limit."""
        if self._unsaid and self._ready():
            said = f"{self._unsaid} log lines lost: {self.reason}".encode()
            count = self._unsaid
            self._put([b"%s stderr F slacktide: %s\n" % (stamp(time.time_ns()).encode(), said)], counts=False)
            if not self.reason:
                self._unsaid -= count
        batch: list[bytes] = []
        size = self._size
        for entry in entries:
            if size and size + len(entry) > self._max_bytes:
                self._put(batch)
                self._rotate()
                batch, size = [], 0
            batch.append(entry)
            size += len(entry)
        self._put(batch)

    def close(self) -> None:
        """Close the file; nothing is buffered here."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _ready(self) -> bool:
        return time.monotonic() >= self._retry_at

    def _put(self, entries: list[bytes], counts: bool = True) -> None:
        if not entries:
            return
        if not self._ready() or (self._descriptor is None and not self._open()):
            self._lose(entries, counts)
            return
        descriptor = self._descriptor
        assert descriptor is not None
        data = memoryview(b"".join(entries))
        done = 0
        try:
            while done < len(data):
                done += os.write(descriptor, data[done:])
        except OSError as error:
            self._failed(error)
            self._cut(descriptor)
            self._lose(entries, counts)
            return
        self._size += len(data)
        self.reason = ""

    def _cut(self, descriptor: int) -> None:
        """Take back half an entry, so that the log stays a sequence of whole lines."""
        try:
            os.ftruncate(descriptor, self._size)
        except OSError as error:
            self._failed(error)

    def _lose(self, entries: list[bytes], counts: bool) -> None:
        if counts:
            self.lost += len(entries)
            self._unsaid += len(entries)

    def _failed(self, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        self._retry_at = time.monotonic() + self._retry_seconds

    def _open(self) -> bool:
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o750, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o640)
            self._size = os.fstat(self._descriptor).st_size
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _rotate(self) -> None:
        self.close()
        try:
            if self._keep <= 1:
                os.unlink(self.path)
            for number in range(self._keep - 1, 0, -1):
                source = self.path if number == 1 else f"{self.path}.{number - 1}"
                if os.path.exists(source):
                    os.replace(source, f"{self.path}.{number}")
        except OSError as error:
            self._failed(error)
        self._open()
