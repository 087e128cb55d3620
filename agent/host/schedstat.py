"""Run delay of threads: how long each waited on a run queue. Stands in for PSI where a cgroup has none.

`RunDelayReader` follows LS threads for the beat, `SchedStats` reads any thread for placement.

/proc/TID/schedstat holds `time-on-cpu time-waiting timeslices`, the first two in nanoseconds. Descriptors are kept
open between beats (three times cheaper than opening) and their number is bounded; with more threads than that, the
window of threads moves on at each refresh. Of many threads most sleep: those that neither ran nor waited since the
refresh before are read each IDLE_BEATS, some in each beat, and until then hold what they held; what they waited
meanwhile shows then. Source: Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Set
from typing import Final

from agent.counters import RunDelay
from agent.host.fds import FdBudget, Holder

IDLE_BEATS: Final = 4
FEW_THREADS: Final = 32
"""Up to so many threads are all read in every beat."""


class RunDelayReader:
    """Reads the schedstat of a bounded set of threads below `proc_root`. Not thread-safe: one loop owns it."""

    def __init__(self, proc_root: str, clock: Callable[[], float], max_threads: int) -> None:
        self._root = proc_root
        self._clock = clock
        self._max = max_threads
        self._open: dict[int, int] = {}
        self._threads = 0
        self._offset = 0
        self._times: dict[int, tuple[int, int]] = {}
        self._at_refresh: dict[int, tuple[int, int]] = {}
        self._active: set[int] = set()
        self._beats = 0

    def refresh(self, tids: Iterable[int]) -> None:
        """Follow these threads from now on; at most `max_threads` of them, a moving window if there are more."""
        wanted = sorted(set(tids))
        self._threads = len(wanted)
        if len(wanted) > self._max:
            start = self._offset % len(wanted)
            wanted = (wanted[start:] + wanted[:start])[: self._max]
            self._offset += self._max // 2
        keep = set(wanted)
        for tid in [tid for tid in self._open if tid not in keep]:
            os.close(self._open.pop(tid))
            self._times.pop(tid, None)
        for tid in wanted:
            if tid not in self._open:
                self._try_open(tid)
        before, self._at_refresh = self._at_refresh, dict(self._times)
        self._active = {tid for tid in self._open if tid not in before or before[tid] != self._times.get(tid)}

    def _try_open(self, tid: int) -> None:
        try:
            self._open[tid] = os.open(os.path.join(self._root, str(tid), "schedstat"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # The thread ended, or descriptors ran out: fewer threads are sampled, control goes on.
            return

    def read(self) -> RunDelay:
        """Cumulative times of the threads that still live; those that ended are dropped."""
        at = self._clock()
        read: list[int] = []
        texts: list[bytes] = []
        for tid in self._due():
            try:
                texts.append(os.pread(self._open[tid], 128, 0))
                read.append(tid)
            except OSError:
                self._lose(tid)
        # Judged all at once where all look as they should: this is done for many threads in every beat.
        fields = b"".join(texts).split()
        if len(fields) == 3 * len(read) and all(map(bytes.isdigit, fields)):
            numbers = list(map(int, fields))
            new = dict(zip(read, zip(numbers[::3], numbers[1::3], strict=True), strict=True))
        else:
            new = self._one_by_one(read, texts)
        # What did not change stays the same object, which is what `sum_deltas` looks at first.
        known = self._times
        changed = {tid: times for tid, times in new.items() if known.get(tid) != times}
        self._active.update(changed)
        known.update(changed)
        return RunDelay(at=at, times=dict(self._times), threads=self._threads)

    def _due(self) -> list[int]:
        """Threads to read in this beat."""
        tids = list(self._open)
        if len(tids) <= FEW_THREADS:
            return tids
        self._beats += 1
        turn, active = self._beats % IDLE_BEATS, self._active
        return [tid for number, tid in enumerate(tids) if tid in active or number % IDLE_BEATS == turn]

    def _one_by_one(self, tids: list[int], texts: list[bytes]) -> dict[int, tuple[int, int]]:
        times: dict[int, tuple[int, int]] = {}
        for tid, text in zip(tids, texts, strict=True):
            found = _times(text)
            if found is None:
                self._lose(tid)
            else:
                times[tid] = found
        return times

    def _lose(self, tid: int) -> None:
        os.close(self._open.pop(tid))
        self._times.pop(tid, None)
        self._threads = max(0, self._threads - 1)

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._times.clear()


class SchedStats(Holder):
    """Times of threads, each through a descriptor that is held while the budget allows it.

    A held descriptor is bound to the thread, not to its id: it never tells of another thread with the same id.
    """

    def __init__(self, proc_root: str, budget: FdBudget) -> None:
        self._root = proc_root
        self._budget = budget
        self._held: dict[int, int] = {}

    @property
    def holds(self) -> bool:
        """Whether any descriptor is held now."""
        return bool(self._held)

    def read(self, tid: int) -> tuple[int, int] | None:
        """(time on a CPU, time waiting) in nanoseconds; None when there is no such thread (any more)."""
        descriptor = self._held.get(tid)
        try:
            if descriptor is None:
                return self._first(tid)
            return _times(os.pread(descriptor, 128, 0))
        except OSError:
            self._drop(tid)
        try:
            return self._first(tid)
        except OSError:
            return None

    def bound(self, tid: int) -> bool:
        """Whether what is read under this id is certain to be one and the same thread as long as it can be read."""
        return tid in self._held

    def keep(self, tids: Set[int]) -> None:
        """Forget all other threads."""
        for tid in self._held.keys() - tids:
            self._drop(tid)

    def release(self) -> None:
        """Close all descriptors; the threads can still be read."""
        for tid in list(self._held):
            self._drop(tid)

    def _first(self, tid: int) -> tuple[int, int] | None:
        descriptor = os.open(f"{self._root}/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            times = _times(os.pread(descriptor, 128, 0))
        except OSError:
            os.close(descriptor)
            raise
        if self._budget.take(self):
            self._held[tid] = descriptor
        else:
            os.close(descriptor)
        return times

    def _drop(self, tid: int) -> None:
        descriptor = self._held.pop(tid, None)
        if descriptor is not None:
            os.close(descriptor)
            self._budget.give_back(self, 1)


def _times(data: bytes) -> tuple[int, int] | None:
    """The first two numbers of a schedstat; None for anything else."""
    fields = data.split(None, 2)
    if len(fields) < 2 or not fields[0].isdigit() or not fields[1].isdigit():
        return None
    return int(fields[0]), int(fields[1])
