"""Lists the threads of BE pods and reads what placing them needs; new ones are found between turns as well.

v1 keeps the list of an open `tasks` file as it was, so each look opens it anew, where anything was born since the look
before (see `births`). What never changes of a thread is read once; where its run time did not grow it is looked at
anew: it sleeps, or waits, or the id is another thread's. One that slept the last time is looked at each fourth time.

A fork storm costs no more than a bound: a look reads at most `max_new` threads that it does not know, first those that
were there at the look before, since most of a storm is gone by then. And looks between turns take at most FRESH_SHARE
of a CPU: one that took long is followed by a pause. They read LOOK_GROUPS cgroups, first those in which threads were
born lately, then the others in turn.
Source: proc(5), Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from agent.host.affinity import Affinity, stat_of
from agent.host.births import Births
from agent.host.cgroup import CgroupLister, PodGroup, tids_in
from agent.host.fds import FdBudget
from agent.host.lists import ThreadLists
from agent.host.masks import CpusetMasks
from agent.host.parse import is_count
from agent.host.schedstat import SchedStats
from agent.threads import GroupKey, Mask, ThreadKey, ThreadReading, ThreadSweep
from slacktide.errors import KernelError, Refused
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import Hierarchy

MAX_NEW: Final = 128
"""New threads that one look reads: about 10 ms of CPU."""

FRESH_SHARE: Final = 0.02
"""Of one CPU, for looks between turns."""

LOOK_GROUPS: Final = 8
"""Cgroups that a look between turns lists."""

SLEEPER_LOOKS: Final = 4

_LONGEST_PAUSE: Final = 1.0
"""Seconds. A look that took longer than a fiftieth of this did not work all the time: it waited for a CPU."""

_BEAT_SLACK: Final = 0.005
"""Seconds by which a look may come too early, or a beat that is a little early would be left out."""

_IDLE_COLUMNS: Final = (4, 5)
"""Columns of a CPU's line in /proc/stat, its name being 0: idle and iowait; 8 and on are steal and guest."""


class _Life(NamedTuple):
    key: ThreadKey
    process: int
    parent: int
    last_cpu: int


class ThreadReader:
    """Reads threads below the cgroups of `lister`. `clock` is monotonic seconds. `ballast` tells the CPU seconds that
    ballast burnt on each CPU, which is no use by others. `budget` bounds the descriptors that are held. One thread uses
    it.
    """

    def __init__(
        self,
        lister: CgroupLister,
        hierarchy: Hierarchy,
        proc_root: str,
        clock: Callable[[], float],
        ballast: Callable[[], Mapping[int, float]] = dict,
        budget: FdBudget | None = None,
    ) -> None:
        self._lister = lister
        self._root = proc_root
        self._clock = clock
        self._affinity = Affinity(proc_root)
        self._tick = os.sysconf("SC_CLK_TCK")
        self._lives: dict[int, _Life] = {}
        self._ran: dict[int, int] = {}
        self._watched: list[tuple[str, GroupKey]] = []
        self._cpusets: dict[GroupKey, Mask] = {}
        self._ballast = ballast
        self._unread: set[int] = set()
        self._made: Counter[GroupKey] = Counter()
        self._fresh_not_before = clock()
        budget = budget or FdBudget()
        self._stats = SchedStats(proc_root, budget)
        self._allowed = CpusetMasks(hierarchy, budget, clock)
        self._lists = ThreadLists(lister, proc_root)
        self._births = Births(proc_root)
        self._sweeps = 0
        self._asleep: set[int] = set()
        self._hot: deque[tuple[str, GroupKey]] = deque(maxlen=LOOK_GROUPS // 2)
        self._next_look = 0

    def sweep(self, pods: Sequence[PodGroup], max_threads: int, max_new: int = MAX_NEW) -> ThreadSweep:
        """All threads of these pods, at most `max_threads`; only they are watched for new threads from now on.

        At most `max_new` of them that no look has had before; the others follow with the next looks.
        """
        at, busy = self._clock(), self._busy()
        self._sweeps += 1
        listed = self._lists.of(pods, self._lives.__contains__)
        self._allowed.keep({key.group for key, _, _ in listed})
        self._cpusets = {key: self._allowed.of(key.group) or frozenset(busy) for key, _, tids in listed if tids}
        several = {pod.group for pod in pods if pod.containers}
        self._watched = [(directory, key) for key, directory, tids in listed if tids or key.group not in several]
        wanted = [(tid, key) for key, _, tids in listed for tid in tids]
        present = {tid for tid, _ in wanted}
        self._forget(present)
        old = [(tid, key) for tid, key in wanted if tid in self._lives][:max_threads]
        room = max_threads - len(old)
        new = self._choose([(tid, key) for tid, key in wanted if tid not in self._lives], min(room, max_new))
        kept = [*old, *new]
        found = [reading for tid, key in kept if (reading := self._read(tid, key)) is not None]
        made, self._made = self._made, Counter()
        return ThreadSweep(
            at=at,
            threads=tuple(found),
            cpusets=dict(self._cpusets),
            busy_seconds=busy,
            left_out=max(0, len(wanted) - max_threads),
            vanished=len(kept) - len(found),
            made=made,
        )

    def fresh(self, max_threads: int, max_new: int = MAX_NEW) -> ThreadSweep | None:
        """Threads of the watched cgroups that no look has had before, at most `max_new`; None when there are none."""
        begin = self._clock()
        if begin < self._fresh_not_before or not (self._births.looked() or self._unread):
            return None
        found = self._fresh(min(max_new, max_threads - len(self._lives)))
        end = self._clock()
        self._fresh_not_before = end + min(_LONGEST_PAUSE, (end - begin) * (1.0 / FRESH_SHARE - 1.0)) - _BEAT_SLACK
        return found

    def _fresh(self, room: int) -> ThreadSweep | None:
        places = self._places_to_look()
        new = [(tid, key) for path, key in places for tid in self._tids(path) if tid not in self._lives]
        if new:
            born = {key for _, key in new}
            self._hot.extend(place for place in places if place[1] in born and place not in self._hot)
        new = self._choose(new, room)
        if not new:
            return None
        at = self._clock()
        for _, key in new:
            if key not in self._cpusets:
                self._cpusets[key] = self._allowed.of(key.group) or frozenset(self._busy())
        found = [reading for tid, key in new if (reading := self._read(tid, key)) is not None]
        return ThreadSweep(
            at=at,
            threads=tuple(found),
            cpusets=dict(self._cpusets),
            vanished=len(new) - len(found),
            fresh=True,
        )

    def _places_to_look(self) -> list[tuple[str, GroupKey]]:
        """Where threads were born lately, and the next of the others."""
        if len(self._watched) <= LOOK_GROUPS:
            return self._watched
        watched = set(self._watched)
        hot = [place for place in self._hot if place in watched]
        start = self._next_look % len(self._watched)
        self._next_look = start + LOOK_GROUPS - len(hot)
        others = (self._watched[start:] + self._watched[:start])[: LOOK_GROUPS - len(hot)]
        return [*hot, *(place for place in others if place not in hot)]

    def include(self, pods: Sequence[PodGroup]) -> None:
        """Look for fresh threads in these pods, too, until the next sweep watches them or leaves them out."""
        watched = {key for _, key in self._watched}
        new = [(path, key) for pod in pods for key, path in self._lists.places(pod) if key not in watched]
        self._watched += new
        self._hot.extend(new)

    def _choose(self, new: list[tuple[int, GroupKey]], room: int) -> list[tuple[int, GroupKey]]:
        """Count new threads, and take `room` of them: where there are more, first those of the look before."""
        self._made.update(key for tid, key in new if tid not in self._unread)
        if len(new) > max(0, room):
            new = sorted(new, key=lambda one: one[0] not in self._unread)
        self._unread = {tid for tid, _ in new[max(0, room) :]}
        return new[: max(0, room)]

    def _tids(self, directory: str) -> list[int]:
        assert self._lister.version is not None
        return tids_in(directory, self._lister.version)

    def _forget(self, present: set[int]) -> None:
        for tid in self._lives.keys() - present:
            del self._lives[tid]
            self._ran.pop(tid, None)
        self._asleep &= present
        self._stats.keep(present)

    def _read(self, tid: int, group: GroupKey) -> ThreadReading | None:
        """One thread; None when it ended."""
        try:
            times = self._stats.read(tid)
            if times is None:
                self._ended(tid)
                return None
            run_ns, delay_ns = times
            mask = self._affinity.read(tid)
            life, waiting = self._live(tid, run_ns)
        except (KernelError, ValueError, IndexError):
            self._ended(tid)
            return None
        self._ran[tid] = run_ns
        return ThreadReading(
            key=life.key,
            group=group,
            process=life.process,
            parent=life.parent,
            mask=mask,
            run_ns=run_ns,
            delay_ns=delay_ns,
            waiting=waiting,
            last_cpu=life.last_cpu,
        )

    def _ended(self, tid: int) -> None:
        """A thread that is no more: its id may come again as another's."""
        self._lives.pop(tid, None)
        self._ran.pop(tid, None)

    def _live(self, tid: int, run_ns: int) -> tuple[_Life, bool]:
        """What never changes of a thread, and whether it waits; looked at anew where it did not simply run on."""
        life, ran = self._lives.get(tid), self._ran.get(tid, 0)
        if life is not None and run_ns > ran:
            self._asleep.discard(tid)
            return life, False
        if life is not None and run_ns == ran and self._sleeps_on(tid):
            return life, False
        stat = stat_of(self._root, tid)
        (self._asleep.discard if stat.runnable else self._asleep.add)(tid)
        if life is None or life.key.start != stat.start:
            life = self._lives[tid] = _Life(ThreadKey(tid, stat.start), self._process(tid), stat.parent, stat.cpu)
            return life, False
        return life, stat.runnable and run_ns == ran

    def _sleeps_on(self, tid: int) -> bool:
        """Whether a thread that has not run since the last look and slept then may be taken to sleep still."""
        return tid in self._asleep and self._stats.bound(tid) and (tid + self._sweeps) % SLEEPER_LOOKS != 0

    def _process(self, tid: int) -> int:
        path = f"{self._root}/{tid}/status"
        for line in read_text(path).splitlines():
            if line.startswith("Tgid:"):
                return int(line[5:])
        raise Refused(path, None, "names no process")

    def _busy(self) -> dict[int, float]:
        """Seconds since boot that each CPU was busy, less what ballast burnt; empty when that cannot be read."""
        busy: dict[int, float] = {}
        try:
            lines = read_text(os.path.join(self._root, "stat")).splitlines()
        except KernelError:
            return busy
        ballast = self._ballast()
        for line in lines[1:]:
            name, *fields = line.split()[:8] or [""]
            number = name.removeprefix("cpu")
            if number == name or not is_count(number) or len(fields) < 7 or not all(map(is_count, fields)):
                break
            values = [int(field) for column, field in enumerate(fields, 1) if column not in _IDLE_COLUMNS]
            busy[int(number)] = sum(values) / self._tick - ballast.get(int(number), 0.0)
        return busy
