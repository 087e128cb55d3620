"""A few bytes of memory that agent and watchdog share: when the loop last went well, and how often limits were lifted.

Times are CLOCK_MONOTONIC, which all processes of a machine share. Each field has one writer and is eight bytes at an
aligned address, so a reader sees an old or a new value and nothing in between.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

_SIGN: Final = struct.Struct("=d")
_FIRED: Final = struct.Struct("=Q")
_FIRED_AT: Final = _SIGN.size
_SIZE: Final = mmap.PAGESIZE


class Heartbeat:
    """The memory behind a descriptor of a file of one page; `create` makes one. `close` closes both."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)

    @classmethod
    def create(cls, sign: float) -> Heartbeat:
        """New memory; the process that gets the descriptor sees the same."""
        descriptor = os.memfd_create("slacktide-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        made = cls(descriptor)
        made.sign = sign
        return made

    @property
    def sign(self) -> float:
        """Monotonic time of the loop's last sign of life."""
        return float(_SIGN.unpack_from(self._memory, 0)[0])

    @sign.setter
    def sign(self, value: float) -> None:
        _SIGN.pack_into(self._memory, 0, value)

    @property
    def fired(self) -> int:
        """How often the watchdog lifted limits."""
        return int(_FIRED.unpack_from(self._memory, _FIRED_AT)[0])

    def count(self) -> None:
        """The watchdog lifted limits once more."""
        _FIRED.pack_into(self._memory, _FIRED_AT, self.fired + 1)

    def close(self) -> None:
        """Let go of it."""
        self._memory.close()
        os.close(self.descriptor)
