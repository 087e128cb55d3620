"""The tasks of the machine: the real ones of /proc, or made up ones for tests of the model alone."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass, replace
from typing import Protocol

_TICKS = os.sysconf("SC_CLK_TCK")
_GET_PARENT_NAMESPACE = 0xB702


@dataclass(frozen=True)
class Caller:
    """Who reads or writes."""

    tid: int
    uid: int = 0


@dataclass(frozen=True)
class Task:
    """One thread."""

    tid: int
    tgid: int
    parent: int
    """Process that it came from: for a thread its own, for a process the parent process."""
    start: int
    """Tells two threads that had the same id from each other."""
    cpu_seconds: float
    cpu: int
    """Where it ran last."""


class Host(Protocol):
    """What the model wants to know of tasks."""

    def threads(self) -> dict[int, int]:
        """Every thread with its process."""

    def task(self, tid: int) -> Task | None:
        """One thread, None when it is gone."""

    def busy(self) -> dict[int, float]:
        """Seconds each CPU was busy since boot."""

    def owner(self, tid: int) -> tuple[int, int] | None:
        """Real and saved user of a thread."""

    def outside(self, pid: int, caller: Caller) -> int | None:
        """The id here of what `caller` names `pid`, None where it sees none."""

    def inside(self, tid: int, caller: Caller) -> int | None:
        """How `caller` names the thread `tid`, None where it cannot see it."""


class ProcHost:
    """The threads that /proc shows. The thread that made a thread is not told there: its process stands for it."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root

    def threads(self) -> dict[int, int]:
        """Every thread with its process."""
        found: dict[int, int] = {}
        for name in os.listdir(self._root):
            if not name.isdecimal():
                continue
            try:
                tids = os.listdir(f"{self._root}/{name}/task")
            except OSError:
                continue
            found.update((int(tid), int(name)) for tid in tids)
        return found

    def task(self, tid: int) -> Task | None:
        """One thread, None when it is gone. The parent of a thread is the first thread of its process."""
        try:
            with open(f"{self._root}/{tid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            tgid = int(self._status(tid)["Tgid"])
        except (OSError, KeyError, ValueError):
            return None
        if fields[0] in {b"Z", b"X"} and tid != tgid:
            return None
        return Task(
            tid,
            tgid,
            tgid if tid != tgid else int(fields[1]),
            int(fields[19]),
            (int(fields[11]) + int(fields[12])) / _TICKS,
            int(fields[36]),
        )

    def busy(self) -> dict[int, float]:
        """Seconds each CPU was busy since boot: all but idle and waiting for I/O, guests counted once."""
        found = {}
        with open(f"{self._root}/stat", encoding="ascii") as file:
            for line in file:
                if re.match(r"cpu\d", line):
                    name, *ticks = line.split()
                    used = [int(text) for text in ticks[:8]]
                    found[int(name[3:])] = (sum(used) - used[3] - used[4]) / _TICKS
        return found

    def owner(self, tid: int) -> tuple[int, int] | None:
        """Real and saved user of a thread."""
        try:
            users = self._status(tid)["Uid"].split()
        except (OSError, KeyError):
            return None
        return int(users[0]), int(users[2])

    def outside(self, pid: int, caller: Caller) -> int | None:
        """The id here of what `caller` names `pid`, None where it sees none."""
        if self._same_namespace(caller):
            return pid if os.path.exists(f"{self._root}/{pid}") else None
        return next((tid for tid in self.threads() if self._name_for(tid, caller) == pid), None)

    def inside(self, tid: int, caller: Caller) -> int | None:
        """How `caller` names the thread `tid`, None where it cannot see it."""
        return tid if self._same_namespace(caller) else self._name_for(tid, caller)

    def _status(self, tid: int) -> dict[str, str]:
        with open(f"{self._root}/{tid}/status", encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)

    def _same_namespace(self, caller: Caller) -> bool:
        try:
            theirs = os.stat(f"{self._root}/{caller.tid}/ns/pid").st_ino
        except OSError:
            return True
        return theirs == os.stat(f"{self._root}/self/ns/pid").st_ino

    def _name_for(self, tid: int, caller: Caller) -> int | None:
        """The entry of NSpid at the caller's depth, where the thread's namespace is the caller's or below it."""
        try:
            theirs = os.stat(f"{self._root}/{caller.tid}/ns/pid").st_ino
            depth = len(self._status(caller.tid)["NSpid"].split()) - 1
            names = self._status(tid)["NSpid"].split()
            if len(names) <= depth:
                return None
            inode = _ancestor(f"{self._root}/{tid}/ns/pid", len(names) - 1 - depth)
        except (OSError, KeyError):
            return None
        return int(names[depth]) if inode == theirs else None


def _ancestor(path: str, levels: int) -> int:
    """Inode of the pid namespace `levels` above the one at `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(levels):
            above = fcntl.ioctl(descriptor, _GET_PARENT_NAMESPACE)
            os.close(descriptor)
            descriptor = above
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


class FakeHost:
    """Threads as the test says."""

    def __init__(self, *tids: int) -> None:
        self._tasks: dict[int, Task] = {}
        self.users: dict[int, tuple[int, int]] = {}
        self.cpus: dict[int, float] = {}
        """What busy() says."""
        for tid in tids:
            self.add(tid)

    def add(self, tid: int, tgid: int | None = None, parent: int = 1, start: int = 0) -> None:
        """A new thread of process `tgid`, or a new process made by `parent`."""
        self._tasks[tid] = Task(tid, tgid or tid, tgid or parent, start, 0.0, 0)

    def end(self, tid: int) -> None:
        """The thread is gone."""
        del self._tasks[tid]

    def run(self, tid: int, seconds: float, cpu: int = 0) -> None:
        """The thread used `seconds` of CPU on `cpu`."""
        task = self._tasks[tid]
        self._tasks[tid] = replace(task, cpu_seconds=task.cpu_seconds + seconds, cpu=cpu)
        self.cpus[cpu] = self.cpus.get(cpu, 0.0) + seconds

    def busy(self) -> dict[int, float]:
        """Seconds each CPU was busy."""
        return dict(self.cpus)

    def threads(self) -> dict[int, int]:
        """Every thread with its process."""
        return {task.tid: task.tgid for task in self._tasks.values()}

    def task(self, tid: int) -> Task | None:
        """One thread, None when it is gone."""
        return self._tasks.get(tid)

    def owner(self, tid: int) -> tuple[int, int] | None:
        """Real and saved user of a thread; root where the test did not say."""
        return self.users.get(tid, (0, 0)) if tid in self._tasks else None

    def outside(self, pid: int, caller: Caller) -> int | None:
        """The id here of what `caller` names `pid`: the same."""
        return pid if pid in self._tasks else None

    def inside(self, tid: int, caller: Caller) -> int | None:
        """How `caller` names the thread `tid`: the same."""
        return tid
