"""Run delay of threads: how long each waited on a run queue. Stands in for PSI where a cgroup has none.

/proc/TID/schedstat holds `time-on-cpu time-waiting timeslices`, the first two in nanoseconds. Descriptors are kept
open between beats (three times cheaper than opening) and their number is bounded; with more threads than that, the
window of threads moves on at each refresh. Source: Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from agent.counters import RunDelay


class RunDelayReader:
    """Reads the schedstat of a bounded set of threads below `proc_root`. Not thread-safe: one loop owns it."""

    def __init__(self, proc_root: str, clock: Callable[[], float], max_threads: int) -> None:
        self._root = proc_root
        self._clock = clock
        self._max = max_threads
        self._open: dict[int, int] = {}
        self._threads = 0
        self._offset = 0

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
        for tid in wanted:
            if tid not in self._open:
                self._try_open(tid)

    def _try_open(self, tid: int) -> None:
        try:
            self._open[tid] = os.open(os.path.join(self._root, str(tid), "schedstat"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # The thread ended, or descriptors ran out: fewer threads are sampled, control goes on.
            return

    def read(self) -> RunDelay:
        """Cumulative times of the threads that still live; those that ended are dropped."""
        at = self._clock()
        times: dict[int, tuple[int, int]] = {}
        for tid, descriptor in list(self._open.items()):
            try:
                fields = os.pread(descriptor, 128, 0).split()
                times[tid] = (int(fields[0]), int(fields[1]))
            except (OSError, ValueError, IndexError):
                os.close(self._open.pop(tid))
                self._threads = max(0, self._threads - 1)
        return RunDelay(at=at, times=times, threads=self._threads)

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
