"""Threads of BE pods as plain values, so that pure code may use them.

A thread is its id together with its start time: ids are used again. A mask is a set of CPU numbers. Where a mask
can be None, None is "whatever the cpuset allows": the workload made no choice of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

Mask = frozenset[int]

MAX_CPU: Final = 65_535
"""Kernels number CPUs to 8191 at most; a list of more is junk, and would cost memory without end."""

_CPUS: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class ThreadKey(NamedTuple):
    """Identity of a thread: id, and start time in clock ticks since boot (field 22 of /proc/TID/stat)."""

    tid: int
    start: int


class GroupKey(NamedTuple):
    """Identity of a cgroup: path relative to the cpu controller's mount, and inode."""

    group: str
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadReading:
    """One thread. `process` is its process, `parent` the process that this one was forked from (or was given to).

    `run_ns` and `delay_ns` are cumulative: time on a CPU, and time waiting for one that ended. `waiting`: it has not
    run since the last look and is runnable, so it waits and that does not show in `delay_ns` yet. `last_cpu` is where
    it ran last when it was first seen.
    """

    key: ThreadKey
    group: GroupKey
    process: int
    parent: int
    mask: Mask
    run_ns: int
    delay_ns: int
    waiting: bool = False
    last_cpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSweep:
    """All threads of the BE pods, or (`fresh`) only those that no earlier sweep had. `at` is monotonic seconds.

    `cpusets` has what the cpuset of each listed cgroup allows, `busy_seconds` the time each CPU was busy since boot
    (empty when fresh or unreadable), without what ballast burnt there. `left_out` counts threads beyond the bound,
    `vanished` those that ended while they were read. `made` counts by cgroup the threads that were new since the sweep
    before, also those that ended before they were read. `refused` are those for which the kernel refused what was
    asked since the sweep before.
    """

    at: float
    threads: tuple[ThreadReading, ...] = ()
    cpusets: Mapping[GroupKey, Mask] = field(default_factory=dict)
    busy_seconds: Mapping[int, float] = field(default_factory=dict)
    left_out: int = 0
    vanished: int = 0
    made: Mapping[GroupKey, int] = field(default_factory=dict)
    fresh: bool = False
    refused: frozenset[ThreadKey] = frozenset()


class OwnMask(msgspec.Struct, frozen=True, kw_only=True):
    """The mask that one thread had before us, where it is not that of its cgroup."""

    tid: int
    start: int
    original: tuple[int, ...] | None


class GroupMasks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the threads of one cgroup had before us: one mask for all, and those that differ. The journal's entry."""

    group: str
    inode: int
    original: tuple[int, ...] | None = None
    own: tuple[OwnMask, ...] = ()

    @property
    def key(self) -> GroupKey:
        """Identity of the cgroup."""
        return GroupKey(self.group, self.inode)

    def original_of(self, key: ThreadKey) -> Mask | None:
        """What this thread had before us."""
        for one in self.own:
            if (one.tid, one.start) == key:
                return as_mask(one.original)
        return as_mask(self.original)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskWish:
    """`cpu` is the one CPU that the thread shall have; None gives it back what it had (`original`)."""

    key: ThreadKey
    group: GroupKey
    cpu: int | None
    original: Mask | None
    held: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPlan:
    """What to journal before anything is changed, and the masks that shall be in force.

    `whole`: all pinned threads are in `wishes`; otherwise only new ones.
    """

    whole: bool = True
    groups: tuple[GroupMasks, ...] = ()
    wishes: tuple[MaskWish, ...] = ()


def as_mask(cpus: tuple[int, ...] | None) -> Mask | None:
    """A mask of the journal."""
    return None if cpus is None else frozenset(cpus)


def as_cpus(mask: Mask | None) -> tuple[int, ...] | None:
    """A mask for the journal."""
    return None if mask is None else tuple(sorted(mask))


def parse_cpus(text: str) -> Mask:
    """A list in the kernel's form (`0-3,8`). Raises ValueError for anything else, and for CPUs that no kernel has."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        found = _CPUS.fullmatch(part)
        if found is None:
            raise ValueError(f"{part[:40]!r} is no CPU and no range of CPUs")
        first, last = int(found[1]), int(found[2] or found[1])
        if last > MAX_CPU:
            raise ValueError(f"CPU {last} is beyond {MAX_CPU}")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(mask: Mask) -> str:
    """A mask in the kernel's list form, sorted and joined (`0-3,8`); empty for no CPU."""
    parts: list[str] = []
    cpus = sorted(mask)
    first = last = cpus[0] if cpus else 0
    for cpu in [*cpus[1:], -1] if cpus else []:
        if cpu == last + 1:
            last = cpu
            continue
        parts.append(f"{first}" if first == last else f"{first}-{last}")
        first = last = cpu
    return ",".join(parts)
