"""Small files of one container's directory: written whole or not at all, also when the disk is full."""

from __future__ import annotations

import json
import os

RESERVED_BYTES = 4096


def write_json(path: str, value: object) -> None:
    """Write `value` so that a reader sees the old file or the new one. Raises OSError."""
    temporary = f"{path}.tmp{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, json.dumps(value).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_text(path: str) -> str | None:
    """Content of a small file, None when it is not there or went away while it was read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


class Reserved:
    """A file whose space is taken before it is needed: the exit of a container is recorded on a full disk too.

    The space is written at the start and overwritten in place; where that failed (the disk was full from the
    start) `write` falls back to a new file and raises OSError when there is no room for that either.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._reserve = f"{path}.reserve"
        try:
            with open(self._reserve, "wb") as file:
                file.write(b" " * RESERVED_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self._reserve = ""

    def write(self, value: object) -> None:
        """Put `value` at the path, atomically. Raises OSError."""
        data = json.dumps(value).encode()
        if not self._reserve or len(data) > RESERVED_BYTES:
            write_json(self.path, value)
            return
        descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_all(descriptor, data.ljust(RESERVED_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(self._reserve, self.path)
