"""Limits of the memory controller, in bytes; the kernel cuts them down to whole pages.

v1 prints "no limit" as a huge number and takes -1, v2 has `max`. A v1 limit may not exceed the limit of memory and
swap together. A limit below what cannot be reclaimed is EBUSY on v1. Source: reference/kernel.md 2.1, 2.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from agent.capabilities import Knob, Value
from agent.host import cpu
from agent.host.knobs.base import Adapter, Change, Held, Original, whole_number
from agent.host.parse import is_count
from slacktide.errors import Refused
from slacktide.kernel.hierarchy import Version

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_V1_UNLIMITED: Final = 1 << 62
"""v1 prints 9223372036854771712 for no limit; nothing real is near it."""
_RANGE: Final = (1 << 20, 1 << 60)
_MEMSW: Final = "memory.memsw.limit_in_bytes"
_MAX: Final = {Version.V1: "memory.limit_in_bytes", Version.V2: "memory.max"}
_HIGH: Final = "memory.high"


class _Limit(Adapter):
    def problem(self, wanted: Value) -> str | None:
        """Below 1 MiB nothing can live."""
        return whole_number(wanted, *_RANGE)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """Whole pages."""
        del held
        target = int(wanted) // _PAGE * _PAGE
        return target if self.stricter(target, original.value) else original.value


class MemoryMax(_Limit):
    """The hard limit."""

    knob = Knob.MEMORY_MAX

    def read(self, fd: int, version: Version) -> Held:
        """The limit; on v1 also that of memory and swap."""
        value, absent = _limit(fd, _MAX[version])
        memsw = _limit(fd, _MEMSW)[0] if version is Version.V1 and not absent else None
        return Held(value=value, absent=absent, memsw_bytes=memsw)

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held
        return _MAX[version]

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """On v1 the limit of memory and swap makes way first."""
        if change.version is Version.V1:
            memsw = change.held.memsw_bytes
            if memsw is not None and self.stricter(memsw, change.target):
                yield _MEMSW, -1 if change.target is None else change.target
            yield _MAX[Version.V1], -1 if change.target is None else change.target
        else:
            yield _MAX[Version.V2], "max" if change.target is None else change.target


class MemoryHigh(_Limit):
    """Where the kernel begins to hold back and reclaim (v2)."""

    knob = Knob.MEMORY_HIGH

    def read(self, fd: int, version: Version) -> Held:
        """The limit."""
        if version is Version.V1:
            return Held(absent="cgroup v1 has no memory.high")
        value, absent = _limit(fd, _HIGH)
        return Held(value=value, absent=absent)

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held, version
        return _HIGH

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        yield _HIGH, "max" if change.target is None else change.target


def _limit(fd: int, name: str) -> tuple[int | None, str]:
    """(bytes or None for no limit, why there is no such file)."""
    text = cpu.optional_text(fd, name)
    if text is None:
        return None, f"this cgroup has no {name}"
    text = text.strip()
    if text == "max":
        return None, ""
    if not is_count(text):
        raise Refused(name, None, f"expected a number or max, found {text[:40]!r}")
    return (None if int(text) >= _V1_UNLIMITED else int(text)), ""
