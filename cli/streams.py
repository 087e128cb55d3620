"""Where the output of a pod goes: bytes as they are for people, JSON lines for programs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import BinaryIO


class RawBytes:
    """Writes to a binary stream and shows each piece at once."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target

    def write(self, data: bytes) -> None:
        """Write some bytes. Raises BrokenPipeError when the reader has gone."""
        self._target.write(data)
        self._target.flush()

    def close(self) -> None:
        """Nothing is kept back."""


class JsonLines:
    """Cuts output into lines and hands each on as {..., "text": line}; a last line without end waits for `close`."""

    def __init__(self, emit: Callable[[dict[str, str]], None], **fields: str) -> None:
        self._emit = emit
        self._fields = fields
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Take some bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hand_on(line)

    def close(self) -> None:
        """Hand on what has no line end."""
        if self._rest:
            self._hand_on(self._rest)
            self._rest = b""

    def _hand_on(self, line: bytes) -> None:
        self._emit({**self._fields, "text": line.decode("utf-8", "replace")})


def serialised(emit: Callable[[dict[str, str]], None]) -> Callable[[dict[str, str]], None]:
    """`emit` for two threads that write lines to one stream."""
    lock = threading.Lock()

    def locked(value: dict[str, str]) -> None:
        with lock:
            emit(value)

    return locked
