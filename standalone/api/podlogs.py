"""Logs of containers from the CRI-format files that the node runner writes, across rotations, also while they grow.

`<log dir>/<namespace>_<pod>_<uid>/<container>/<restart count>.log`; rotation renames `0.log` to `0.log.1`, `0.log.1` to
`0.log.2` and so on. A line is `RFC3339Nano stdout|stderr F|P text`; P marks a part that goes on in the next line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, Final

from standalone.api.times import parse_time

STREAMS: Final = {"All": (b"stdout", b"stderr"), "Stdout": (b"stdout",), "Stderr": (b"stderr",)}
_CHUNK: Final = 1 << 18


@dataclass(frozen=True)
class Wanted:
    """What of a log is asked for; None is no limit."""

    streams: tuple[bytes, ...] = STREAMS["All"]
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: datetime | None = None


@dataclass(frozen=True)
class Entry:
    """One record of a log file; `text` ends with a newline unless it is a part."""

    at: bytes
    stream: bytes
    text: bytes
    whole: bool


def parse_line(line: bytes) -> Entry | None:
    """The record in a line without its newline; None for one that is torn or in another format."""
    parts = line.split(b" ", 3)
    if len(parts) < 3 or parts[1] not in STREAMS["All"]:
        return None
    whole = not parts[2].startswith(b"P")
    text = parts[3] if len(parts) == 4 else b""
    return Entry(parts[0], parts[1], text + b"\n" if whole else text, whole)


class Joined:
    """Text of records as it goes to the client: streams picked, times in front where asked, parts joined."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._inside: dict[bytes, bool] = {}

    def text(self, entry: Entry) -> bytes:
        """What to show of the next record."""
        if entry.stream not in self._wanted.streams or self._too_old(entry):
            return b""
        inside = self._inside.get(entry.stream, False)
        self._inside[entry.stream] = not entry.whole
        return entry.text if inside or not self._wanted.timestamps else entry.at + b" " + entry.text

    def _too_old(self, entry: Entry) -> bool:
        if self._wanted.since is None:
            return False
        at = parse_time(_microseconds(entry.at.decode("ascii", "replace")))
        return at is not None and at < self._wanted.since


def _microseconds(text: str) -> str:
    """The time with at most six digits of fraction: Python reads no nanoseconds."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text)


def pod_directory(log_dir: str, namespace: str, name: str, uid: str) -> str:
    """Folder of a pod's logs."""
    return os.path.join(log_dir, f"{namespace}_{name}_{uid}")


def rotated(path: str) -> list[str]:
    """Files of one log that are there, oldest first, the one being written last."""
    found = []
    number = 1
    while os.path.exists(f"{path}.{number}"):
        found.append(f"{path}.{number}")
        number += 1
    return [*reversed(found), *([path] if os.path.exists(path) else [])]


class LogReader:
    """Reads a log from its oldest file on and keeps its place while files are renamed: a file is known by its inode."""

    def __init__(self, path: str) -> None:
        """`path` is the file being written; it may not be there yet."""
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def close(self) -> None:
        """Let go of the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def poll(self, limit: int = _CHUNK) -> list[Entry] | None:
        """Whole records that have come since the last call, from at most `limit` bytes; None when nothing is new."""
        while True:
            following = self._following()
            # Looked for before the read: a file that has a follower has got all that it will ever get.
            data = self._file.read(limit) if self._file is not None else b""
            if data:
                *lines, self._rest = (self._rest + data).split(b"\n")
                return [entry for entry in map(parse_line, lines) if entry is not None]
            if following is None:
                return None
            self._go_on(following)

    def _following(self) -> tuple[str, tuple[int, int]] | None:
        """Path and identity of the file after the one being read (the oldest when none is), or None."""
        mine = None if self._file is None else _identity(os.fstat(self._file.fileno()))
        found: tuple[str, tuple[int, int]] | None = None
        for path in reversed(rotated(self._path)):
            try:
                identity = _identity(os.stat(path))
            except FileNotFoundError:
                continue
            if identity == mine:
                break
            found = path, identity
        return found

    def _go_on(self, following: tuple[str, tuple[int, int]]) -> None:
        """Change to the next file, unless it was renamed in between: then the next look finds it."""
        path, identity = following
        try:
            file = open(path, "rb")  # noqa: SIM115 - it stays open between calls
        except FileNotFoundError:
            return
        if _identity(os.fstat(file.fileno())) != identity:
            file.close()
            return
        self.close()
        self._file, self._rest = file, b""


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def tail(entries: Iterable[Entry], wanted: Wanted) -> Iterator[Entry]:
    """The last `tail_lines` lines of the streams asked for, of a log as it is now."""
    if wanted.tail_lines is None:
        yield from entries
        return
    kept: list[list[Entry]] = []
    line: list[Entry] = []
    for entry in entries:
        if entry.stream not in wanted.streams:
            continue
        line.append(entry)
        if entry.whole:
            kept.append(line)
            line = []
            del kept[: -wanted.tail_lines or len(kept)]
    if line and wanted.tail_lines:
        kept.append(line)
    for found in kept[-wanted.tail_lines :] if wanted.tail_lines else ():
        yield from found


def since(now: datetime, seconds: int | None, time_text: str) -> datetime | None:
    """The moment that sinceSeconds or sinceTime names; None when neither is given."""
    if seconds is not None:
        return now - timedelta(seconds=seconds)
    return parse_time(_microseconds(time_text)) if time_text else None
