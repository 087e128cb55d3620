"""Puts masks in force on threads, and gives back what they had: the executor's part for CPU affinity.

The journal is written before the first change. A thread is checked by its start time right before each write. A thread
that ended is counted and no matter; one that the kernel refuses is counted and told.

Giving back looks at the cgroups as they are then, as threads were made meanwhile that inherited a mask of ours. A
thread with several CPUs was not pinned by us, or someone widened its mask since: it is left as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

from agent.act.journal import Journal
from agent.act.knobs import Place, opened
from agent.host.affinity import Affinity, every_cpu
from agent.host.cgroup import CgroupLister, PodGroup, tids_in
from agent.threads import GroupKey, GroupMasks, Mask, MaskPlan, MaskWish, ThreadKey
from slacktide.errors import Gone, KernelError

_PASSES: Final = 5
"""A thread may be made between a listing and the release of its maker; it is found by the next."""


class MaskWriter:
    """`counters` gets spread_refused, spread_vanished, mismatch, journal_errors. One thread uses it."""

    def __init__(self, lister: CgroupLister, journal: Journal, affinity: Affinity, counters: Counter[str]) -> None:
        self._lister = lister
        self._journal = journal
        self._affinity = affinity
        self._counters = counters
        self._applied: dict[ThreadKey, int] = {}
        self._refused: set[ThreadKey] = set()

    def take_refused(self) -> frozenset[ThreadKey]:
        """Threads for which the kernel refused a write since this was last asked."""
        refused, self._refused = frozenset(self._refused), set()
        return refused

    def apply(self, plan: MaskPlan, problems: list[str]) -> int:
        """Journal, then write what differs. Returns the number of writes; `problems` gets sentences."""
        try:
            self._journal.record_masks(plan.groups)
        except OSError as error:
            self._journal_failed(error, problems)
        if plan.whole:
            self._applied = {}
        return sum(self._do(wish, problems) for wish in plan.wishes)

    def _do(self, wish: MaskWish, problems: list[str]) -> bool:
        if wish.cpu is None:
            self._applied.pop(wish.key, None)
            return self._write(wish.key, wish.original, problems)
        self._applied[wish.key] = wish.cpu
        target = frozenset((wish.cpu,))
        return wish.held != target and self._write(wish.key, target, problems)

    def release_beside(self, be: Mapping[str, PodGroup], groups: Mapping[str, PodGroup], problems: list[str]) -> int:
        """Give masks back in pods that are here and not BE any more; forget cgroups that are gone."""
        writes = 0
        outside = {one.group: group for group, pod in groups.items() for one in pod.containers}
        for entry in self._journal.masks():
            pod = outside.get(entry.group) or _pod_above(entry.group, groups)
            if pod in be:
                continue
            if pod is not None:
                writes += self._release(entry, problems)
            if pod is not None or not self._exists(entry.key):
                self._forget([entry.key], problems)
        return writes

    def restore(self, problems: list[str]) -> int:
        """Give all threads back what they had, also those that only inherited a mask of ours."""
        entries = self._journal.masks()
        writes = sum(self._release(entry, problems) for entry in entries)
        self._forget([entry.key for entry in entries], problems)
        return writes

    def _release(self, entry: GroupMasks, problems: list[str]) -> int:
        assert self._lister.version is not None
        directory = self._lister.absolute(entry.group)
        writes = 0
        failed: list[str] = []
        for _ in range(_PASSES):
            if not self._exists(entry.key):
                return writes
            failed = []
            done = sum(self._give_back(tid, entry, failed) for tid in tids_in(directory, self._lister.version))
            writes += done
            if not done:
                break
        problems.extend(failed)
        return writes

    def _give_back(self, tid: int, entry: GroupMasks, problems: list[str]) -> bool:
        try:
            mask, key = self._affinity.read(tid), self._affinity.key_of(tid)
        except KernelError:
            # It ended, so there is nothing to give back.
            return False
        original = entry.original_of(key)
        applied = self._applied.pop(key, None)
        if len(mask) != 1 or mask == original or (applied is not None and applied not in mask):
            return False
        return self._write(key, original, problems)

    def _write(self, key: ThreadKey, mask: Mask | None, problems: list[str]) -> bool:
        """Whether it was written. None asks for all CPUs: the kernel makes it what the cpuset allows."""
        try:
            held = self._affinity.write(key, every_cpu() if mask is None else mask)
        except Gone:
            self._counters["spread_vanished"] += 1
            return False
        except KernelError as error:
            self._counters["spread_refused"] += 1
            self._refused.add(key)
            problems.append(f"{error}; asked for CPUs {'all' if mask is None else sorted(mask)}")
            return False
        if mask is not None and not held <= mask:
            self._counters["mismatch"] += 1
            problems.append(f"thread {key.tid}: CPUs {sorted(mask)} were set, the kernel holds {sorted(held)}")
        return True

    def _exists(self, key: GroupKey) -> bool:
        try:
            with opened(Place(group=key.group, directory=self._lister.absolute(key.group), inode=key.inode)):
                return True
        except Gone:
            return False
        except KernelError:
            return True

    def _forget(self, keys: Iterable[GroupKey], problems: list[str]) -> None:
        try:
            self._journal.forget_masks(keys)
        except OSError as error:
            self._journal_failed(error, problems)

    def _journal_failed(self, error: OSError, problems: list[str]) -> None:
        self._counters["journal_errors"] += 1
        problems.append(f"the journal could not be written: {error}; a killed agent could not undo masks")


def _pod_above(group: str, pods: Container[str]) -> str | None:
    """The pod's group that this one is or lies in."""
    while group and group not in pods:
        group = group.rpartition("/")[0]
    return group or None
