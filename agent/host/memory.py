"""Memory controller of one cgroup, v1 and v2: use, working set, limits, and what happened at them.

Working set = usage - inactive file pages (v1 total_inactive_file), which is what the kubelet judges by.
v1 prints "no limit" as a huge number, v2 as `max`; both are None here. Keys of memory.stat come in any order and
new ones appear mid-file. memory.events counts the group and all below it, memory.events.local the group alone; v1 has
one count of OOM kills, and memory.failcnt for how often the limit was hit. Source: reference/kernel.md 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.counters import MemoryEvents, MemoryReading
from agent.host.fds import GroupFiles
from agent.host.parse import count_of, flat, limit, number
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Version

_V1_UNLIMITED: Final = 1 << 62
"""v1 prints 9223372036854771712 for no limit; nothing real is near it."""


def read_memory(files: GroupFiles, version: Version, clock: Callable[[], float]) -> MemoryReading | None:
    """Memory of a group; None when the kernel does not give the parts of the working set.

    Parts beyond that are None where they cannot be read. Raises KernelError; Gone when the group went away.
    """
    at = clock()
    return _v2(files, at) if version is Version.V2 else _v1(files, at)


def _v2(files: GroupFiles, at: float) -> MemoryReading | None:
    usage = number(files.cold("memory.current"), "memory.current")
    inactive = count_of(files.cold("memory.stat"), b"inactive_file")
    if inactive is None:
        return None
    events = _events(files, "memory.events")
    return MemoryReading(
        at=at,
        working_set_bytes=max(0, usage - inactive),
        usage_bytes=usage,
        limit_bytes=limit(files.cold("memory.max"), "memory.max"),
        high_bytes=_high(files),
        oom_kills=events.oom_kills,
        high_events=events.high,
        max_events=events.max,
        local=_local(files),
    )


def _v1(files: GroupFiles, at: float) -> MemoryReading | None:
    usage = number(files.cold("memory.usage_in_bytes"), "memory.usage_in_bytes")
    inactive = count_of(files.cold("memory.stat"), b"total_inactive_file")
    if inactive is None:
        return None
    held = number(files.cold("memory.limit_in_bytes"), "memory.limit_in_bytes")
    return MemoryReading(
        at=at,
        working_set_bytes=max(0, usage - inactive),
        usage_bytes=usage,
        limit_bytes=None if not 0 <= held < _V1_UNLIMITED else held,
        oom_kills=_events(files, "memory.oom_control").oom_kills,
        max_events=_failures(files),
    )


def _high(files: GroupFiles) -> int | None:
    try:
        return limit(files.cold("memory.high"), "memory.high")
    except Gone:
        raise
    except KernelError:
        return None


def _events(files: GroupFiles, name: str) -> MemoryEvents:
    """Counts of one file of events; kernels and mounts that do not count something give None."""
    try:
        found = flat(files.cold(name))
    except Gone:
        raise
    except KernelError:
        return MemoryEvents()
    return MemoryEvents(high=found.get("high"), max=found.get("max"), oom_kills=found.get("oom_kill"))


def _local(files: GroupFiles) -> MemoryEvents | None:
    """Counts of the group itself; None where the kernel (before 5.2) has none."""
    events = _events(files, "memory.events.local")
    return None if events == MemoryEvents() else events


def _failures(files: GroupFiles) -> int | None:
    try:
        return number(files.cold("memory.failcnt"), "memory.failcnt")
    except Gone:
        raise
    except KernelError:
        return None
