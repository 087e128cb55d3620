"""CPU affinity of one thread, and the proof that an id still means the same thread.

The kernel intersects what is written with the cpuset; a mask outside of it is EINVAL. A change of the cpuset keeps a
thread inside the new one: on what is left of its mask, or (nothing left, or a kernel before 6.2) on all of it.
Source: sched_setaffinity(2), proc_pid_stat(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from agent.threads import Mask, ThreadKey
from slacktide.errors import Gone, Refused
from slacktide.kernel.files import read_text, translate

_START_FIELD: Final = 19
"""Field 22 of stat, counted from the state, which follows the command in brackets."""

_PARENT_FIELD: Final = 1
_CPU_FIELD: Final = 36


class Affinity:
    """Reads and writes masks. `proc_root` is where identities are read; ids must mean the same there."""

    def __init__(self, proc_root: str) -> None:
        self._root = proc_root

    def read(self, tid: int) -> Mask:
        """The mask in force. Raises KernelError: Gone for a thread that ended."""
        try:
            return frozenset(os.sched_getaffinity(tid))
        except OSError as error:
            raise translate(f"affinity of thread {tid}", error) from error

    def write(self, key: ThreadKey, cpus: Iterable[int]) -> Mask:
        """Set a mask on this very thread, and read it back. Raises KernelError: Gone, Refused, NotPermitted."""
        if stat_of(self._root, key.tid).start != key.start:
            raise Gone(f"thread {key.tid}", None, "ended, and its id is another thread's")
        try:
            os.sched_setaffinity(key.tid, cpus)
        except OSError as error:
            raise translate(f"affinity of thread {key.tid}", error) from error
        return self.read(key.tid)

    def key_of(self, tid: int) -> ThreadKey:
        """Identity of the thread that has this id now. Raises KernelError: Gone."""
        return ThreadKey(tid, stat_of(self._root, tid).start)


class ThreadStat(NamedTuple):
    """What /proc/TID/stat says. `start` in clock ticks since boot; `parent` is a process; `cpu` where it ran last."""

    start: int
    parent: int
    runnable: bool
    cpu: int


def stat_of(proc_root: str, tid: int) -> ThreadStat:
    """Identity and state of a thread. Raises KernelError: Gone; Refused for an unknown format."""
    path = f"{proc_root}/{tid}/stat"
    fields = read_text(path).rpartition(")")[2].split()
    try:
        start, parent, cpu = (int(fields[index]) for index in (_START_FIELD, _PARENT_FIELD, _CPU_FIELD))
    except (IndexError, ValueError) as error:
        raise Refused(path, None, "is no stat of a thread as the kernel prints it") from error
    return ThreadStat(start, parent, fields[0] == "R", cpu)


def every_cpu() -> range:
    """All CPUs that this machine can have: writing it asks for whatever the cpuset allows."""
    return range(os.sysconf("SC_NPROCESSORS_CONF"))


def why_not() -> str | None:
    """Reason in words why no affinity can be set here; None when it can. Tried on the calling thread."""
    try:
        mask = os.sched_getaffinity(0)
        os.sched_setaffinity(0, mask)
    except OSError as error:
        return f"CPU affinity cannot be set: {error.strerror}"
    return None
