"""The audit file: one JSON object a line for everything that was done, or would have been, to make a pod give way.

Kept in the state directory, bounded: beyond half of its bound the file becomes `.1` and replaces the one before. It
is written without fsync, read by `read` (also while it is written), and never in the way: a disk that refuses costs
lines, which are counted. A line that was torn by a crash is skipped, and the next one begins on a line of its own.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from agent.eviction import Way
from slacktide.explaining import Decision
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.audit")

FILE_NAME: Final = "evictions.jsonl"
_READ_BYTES: Final = 64 << 20


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision and what became of it. `at` is monotonic seconds of that boot, `wall` seconds since the epoch.

    `outcome` is one of `agent.eviction.Outcome`, or `killed`, `frozen`, `thawed`, `overdue`, `over-budget`.
    `numbers` are those that decided. `seconds` is how long the call took.
    """

    at: float
    wall: float
    boot_id: str
    namespace: str
    name: str
    uid: str
    way: Way
    outcome: str
    reason: str
    group: str = ""
    detail: str = ""
    numbers: dict[str, str] = {}
    drill: str = ""
    retry_after_seconds: float | None = None
    seconds: float | None = None


class Audit:
    """Appends lines; one thread at a time. `lost` counts lines that the disk refused."""

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._limit = max(1, limit_bytes // 2)
        self._refused = False
        self.lost = 0

    def append(self, line: AuditLine) -> bool:
        """Write one line; whether the disk took it."""
        data = msgspec.json.encode(line) + b"\n"
        try:
            self._write(data)
        except OSError as error:
            self.lost += 1
            # Told when it begins: a line for each would fill what is left of the disk.
            if not self._refused:
                _LOG.warning("audit lines are lost", path=self._path, reason=error.strerror or str(error))
            self._refused = True
            return False
        self._refused = False
        return True

    def _write(self, data: bytes) -> None:
        """Append, on a new line also after a torn one. Raises OSError."""
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._limit:
                os.close(descriptor)
                descriptor = -1
                os.replace(self._path, f"{self._path}.1")
                descriptor, size = self._open(), 0
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data
            written = os.write(descriptor, data)
            if written != len(data):
                raise OSError(None, f"short write: {written} of {len(data)} bytes taken")
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, 0o600)


def read(directory: str, newest: int | None = None) -> tuple[tuple[AuditLine, ...], int]:
    """The lines, oldest first, at most the `newest` ones, and how many could not be read as such.

    No file is no lines. Raises OSError where there is one that cannot be read.
    """
    lines: list[AuditLine] = []
    skipped = 0
    path = os.path.join(directory, FILE_NAME)
    for name in (f"{path}.1", path):
        for raw in _raw_lines(name):
            try:
                lines.append(msgspec.json.decode(raw, type=AuditLine))
            except msgspec.MsgspecError:
                skipped += 1
    return tuple(lines if newest is None else lines[-newest:] if newest > 0 else ()), skipped


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """The newest lines, oldest first; `since` is the time of the oldest line that is kept at all (None: there is none).

    `skipped` counts lines that cannot be read among those that were looked at.
    """

    lines: tuple[AuditLine, ...] = ()
    since: float | None = None
    skipped: int = 0


def read_tail(directory: str, newest: int, pod: str = "") -> Tail:
    """The `newest` lines, or those about the pod NAMESPACE/NAME, by decoding no more than are needed.

    No file is no lines. Raises OSError where there is one that cannot be read.
    """
    path = os.path.join(directory, FILE_NAME)
    raw = [*_raw_lines(f"{path}.1"), *_raw_lines(path)]
    since = next((line.wall for one in raw if (line := _line(one)) is not None), None)
    found: list[AuditLine] = []
    skipped = 0
    # A line about a pod has its name somewhere; most that have not need not be decoded.
    mark = pod.rpartition("/")[2].encode()
    for one in reversed(raw):
        if len(found) >= newest:
            break
        if mark not in one:
            continue
        line = _line(one)
        if line is None:
            skipped += 1
        elif not pod or f"{line.namespace}/{line.name}" == pod:
            found.append(line)
    return Tail(lines=tuple(reversed(found)), since=since, skipped=skipped)


def decisions(tail: Tail) -> tuple[Decision, ...]:
    """What is told of audit lines, newest first."""
    return tuple(_decision(line) for line in reversed(tail.lines))


def _decision(line: AuditLine) -> Decision:
    return Decision(
        at=line.wall,
        namespace=line.namespace,
        name=line.name,
        uid=line.uid,
        way=line.way.value,
        outcome=line.outcome,
        reason=line.reason,
        detail=line.detail,
        numbers=line.numbers,
        drill=line.drill,
    )


def _line(raw: bytes) -> AuditLine | None:
    try:
        return msgspec.json.decode(raw, type=AuditLine)
    except msgspec.MsgspecError:
        return None


def _raw_lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            data = file.read(_READ_BYTES)
    except FileNotFoundError:
        return []
    return [line for line in data.split(b"\n") if line.strip()]
