"""How many tasks a cgroup and all below it may have; the same file on v1 and v2. Source: cgroup-v2.rst, PID.

A limit below what is there ends nothing: fork and clone fail (EAGAIN) until there are fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.capabilities import Knob, Value
from agent.host import cpu
from agent.host.knobs.base import Adapter, Change, Held, Original, whole_number
from agent.host.parse import limit
from slacktide.kernel.hierarchy import Version

_FILE: Final = "pids.max"
_RANGE: Final = (1, 1 << 22)
"""The kernel takes no more than there can be ids (PID_MAX_LIMIT on 64 bits)."""


class PidsMax(Adapter):
    """Tasks; the kernel's `max` is no limit. Parents and children may be set in any order."""

    knob = Knob.PIDS_MAX

    def read(self, fd: int, version: Version) -> Held:
        """The limit."""
        del version
        text = cpu.optional_text(fd, _FILE)
        if text is None:
            return Held(absent=f"this cgroup has no {_FILE}")
        return Held(value=limit(text.encode(), _FILE))

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held, version
        return _FILE

    def problem(self, wanted: Value) -> str | None:
        """At least one task must be able to live."""
        return whole_number(wanted, *_RANGE)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """As wanted, or what was there before if that is less."""
        del held
        return int(wanted) if self.stricter(int(wanted), original.value) else original.value

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        yield _FILE, "max" if change.target is None else change.target
