"""What mask did the workload choose for a thread, and what is ours? Pure.

A thread inherits the mask of the one that made it, so a single CPU on a new thread may be ours or the workload's.
It is taken for ours (`inherited`) when it is a CPU that we gave to its process or to the parent of that; the new
thread then has their original. What is wrong about this: a thread that pins itself, within a beat of its birth, to
the very CPU that we had given to its parent is taken for inherited.

A mask that changed after us was changed by the workload, which has the last word: it is the original from then on.
After `PATIENCE` changes of one thread, or refusals by the kernel, the thread is left alone. A change that follows from
a change of the cpuset is the kernel's and no choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.threads import GroupKey, GroupMasks, Mask, OwnMask, ThreadKey, ThreadReading, as_cpus

PATIENCE: Final = 3

NOWHERE: Final[Mask] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A thread. `cpu` is where we pinned it; `held` what the kernel held when we last looked; `near` where it ran when
    it was first seen.
    """

    group: GroupKey
    process: int
    parent: int
    original: Mask | None
    held: Mask
    cpu: int | None = None
    changes: int = 0
    refusals: int = 0
    near: int | None = None

    @property
    def manageable(self) -> bool:
        """Whether we still may touch it."""
        return self.changes < PATIENCE and self.refusals < PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A cgroup: `original` of its threads, `cpus` that we gave to any of them, ever.

    `touched` once something was pinned. `journaled` is what an earlier agent left: every single CPU there is ours.
    """

    original: Mask | None
    cpuset: Mask
    cpus: Mask = NOWHERE
    touched: bool = False
    journaled: GroupMasks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Processes: the CPUs that we gave to their threads, and their originals."""

    cpus: Mapping[int, Mask] = field(default_factory=dict)
    originals: Mapping[int, Mask | None] = field(default_factory=dict)


NO_FAMILY: Final = Family()


def allowed(original: Mask | None, cpuset: Mask) -> Mask:
    """Where a thread may run: its original inside the cpuset; all of it where they have nothing in common."""
    return cpuset if original is None else (original & cpuset or cpuset)


def choice(mask: Mask, cpuset: Mask) -> Mask | None:
    """A mask as a choice of the workload; None when it is all that the cpuset allows."""
    return None if mask == cpuset else mask


def seen_again(old: Known, mask: Mask, origin: Origin, *, cpuset_changed: bool, refused: bool) -> Known:
    """A known thread with the mask that it has now; `changes` grows where someone undid what was ours.

    `refused`: what we last asked for was not done.
    """
    if refused:
        still = old.cpu is None and len(mask) == 1
        return replace(old, cpu=next(iter(mask)) if still else None, held=mask, refusals=old.refusals + 1)
    expected = allowed(old.original, origin.cpuset) if old.cpu is None else frozenset((old.cpu,))
    if mask == old.held and (old.cpu is None or mask == expected):
        return old
    if mask == expected:
        return replace(old, held=mask)
    if cpuset_changed and mask == origin.cpuset:
        return replace(old, cpu=None, held=mask)
    changes = old.changes + (old.cpu is not None)
    return replace(old, cpu=None, held=mask, original=choice(mask, origin.cpuset), changes=changes)


def first_seen(reading: ThreadReading, origin: Origin, family: Family) -> Known:
    """A thread that was not there before."""
    known = Known(
        group=reading.group,
        process=reading.process,
        parent=reading.parent,
        original=choice(reading.mask, origin.cpuset),
        held=reading.mask,
        near=reading.last_cpu,
    )
    if origin.journaled is not None:
        original = origin.journaled.original_of(reading.key)
        ours = len(reading.mask) == 1 and reading.mask != original
        return replace(known, original=original, cpu=next(iter(reading.mask))) if ours else known
    if not origin.touched or len(reading.mask) != 1:
        return known
    return (
        replace(known, original=_inherited(reading, origin, family))
        if _is_inherited(reading, origin, family)
        else known
    )


def _is_inherited(reading: ThreadReading, origin: Origin, family: Family) -> bool:
    kin = [family.cpus[process] for process in (reading.process, reading.parent) if process in family.cpus]
    return reading.mask <= (NOWHERE.union(*kin) if kin else origin.cpus)


def _inherited(reading: ThreadReading, origin: Origin, family: Family) -> Mask | None:
    for process in (reading.process, reading.parent):
        if process in family.originals:
            return family.originals[process]
    return origin.original


def new_origin(readings: Iterable[ThreadReading], cpuset: Mask, journaled: GroupMasks | None, *, lost: bool) -> Origin:
    """A cgroup that was not there before: its original is that of its oldest thread.

    `lost`: the journal of an earlier agent was lost, so single CPUs may be its work and are taken for that.
    """
    if journaled is not None:
        original = journaled.original_of(ThreadKey(0, 0))
        return Origin(original=original, cpuset=cpuset, touched=True, journaled=journaled)
    oldest = min(readings, key=lambda reading: (reading.key.start, reading.key.tid))
    original = choice(oldest.mask, cpuset)
    if lost and original is not None and len(original) == 1:
        return Origin(original=None, cpuset=cpuset, touched=True, journaled=GroupMasks(group="", inode=0))
    return Origin(original=original, cpuset=cpuset)


def family_of(known: Mapping[ThreadKey, Known], before: Family) -> Family:
    """The processes of these threads; CPUs that a living process once had stay with it."""
    cpus: dict[int, Mask] = {}
    originals: dict[int, Mask | None] = {}
    for one in known.values():
        mine = cpus.get(one.process) or before.cpus.get(one.process, NOWHERE)
        cpus[one.process] = mine if one.cpu is None or one.cpu in mine else mine | {one.cpu}
        if one.process not in originals or one.cpu is not None:
            originals[one.process] = one.original
    return Family(cpus={process: mine for process, mine in cpus.items() if mine}, originals=originals)


def entry_of(key: GroupKey, origin: Origin, threads: Iterable[tuple[ThreadKey, Known]]) -> GroupMasks:
    """What the journal has to hold of a cgroup."""
    own = tuple(
        OwnMask(tid=thread.tid, start=thread.start, original=as_cpus(one.original))
        for thread, one in sorted(threads)
        if one.original != origin.original
    )
    return GroupMasks(group=key.group, inode=key.inode, original=as_cpus(origin.original), own=own)
