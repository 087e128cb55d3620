"""Linux inotify through libc: one descriptor that says which watched directories changed. Source: inotify(7)."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from typing import Final

IN_MOVED_FROM: Final = 0x40
IN_MOVED_TO: Final = 0x80
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_DELETE_SELF: Final = 0x400
IN_Q_OVERFLOW: Final = 0x4000
IN_IGNORED: Final = 0x8000
IN_ONLYDIR: Final = 0x0100_0000
IN_DONT_FOLLOW: Final = 0x0200_0000
IN_ISDIR: Final = 0x4000_0000

_ENTRIES: Final = (
    IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR | IN_DONT_FOLLOW
)  # fmt: skip
_HEAD: Final = struct.Struct("iIII")
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Event:
    """One event: watch descriptor (-1 for a queue that overflowed), mask, and the name in that directory."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance. Raises OSError: EMFILE where the user has no instance or the process no descriptor left."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Descriptor that is readable when there are events."""
        return self._fd

    def add(self, directory: str) -> int:
        """Watch what is made, removed and renamed in `directory`; the same directory gives the same number.

        Raises OSError: ENOSPC where the user has no watch left, ENOENT where the directory is gone.
        """
        return self._call("inotify_add_watch", self._fd, os.fsencode(directory), _ENTRIES)

    def remove(self, watch: int) -> None:
        """End a watch; one that has ended already is none of our concern."""
        try:
            self._call("inotify_rm_watch", self._fd, watch)
        except OSError:
            return

    def read(self) -> list[Event]:
        """What happened since, at most one buffer of it; empty when nothing did."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return []
        events, offset = [], 0
        while offset < len(data):
            watch, mask, _cookie, length = _HEAD.unpack_from(data, offset)
            offset += _HEAD.size
            name = data[offset : offset + length].rstrip(b"\0")
            events.append(Event(watch, mask, os.fsdecode(name)))
            offset += length
        return events

    def close(self) -> None:
        """End all watches."""
        os.close(self._fd)

    def _call(self, name: str, *arguments: object) -> int:
        result = int(getattr(self._libc, name)(*arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
