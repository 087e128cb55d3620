"""Hardware counters through perf_event_open(2): opening and reading, no more.

Counters are opened running; what they count is the difference of two readings. Descriptors are closed on exec.
Source: perf_event_open(2), Linux include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final, NamedTuple

from agent.cpi import GroupCount
from slacktide.errors import Refused, Unsupported
from slacktide.kernel.files import translate

_NUMBERS: Final = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "loongarch64": 241, "ppc64le": 319, "s390x": 331}
"""Number of the system call by machine."""

_ATTR: Final = struct.Struct("=IIQQQQQIIQ")
"""struct perf_event_attr as its first version had it, which is all that counting needs and every kernel takes."""

_READ: Final = struct.Struct("=QQQQQ")
"""Number of events, time enabled, time running, value of the leader, value of the other."""

_FORMAT_ENABLED: Final = 1 << 0
_FORMAT_RUNNING: Final = 1 << 1
_FORMAT_GROUP: Final = 1 << 3
_FLAG_CGROUP: Final = 1 << 2
_FLAG_CLOEXEC: Final = 1 << 3
_NOBODY: Final = -1
_THIS_PROCESS: Final = 0


class Event(NamedTuple):
    """What can be counted: type and config of the kernel."""

    kind: int
    config: int


CYCLES: Final = Event(0, 0)
"""Core cycles, which stop and change with the clock; reference cycles (config 9) do not."""

INSTRUCTIONS: Final = Event(0, 1)


class PerfEvents:
    """The system call. `open_group` opens `leader` and `other` as one group, on one CPU of a cgroup."""

    def __init__(self, leader: Event = CYCLES, other: Event = INSTRUCTIONS) -> None:
        self._events = (leader, other)
        self._number = _NUMBERS.get(platform.machine())
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long

    def open_group(self, cgroup_fd: int, cpu: int) -> tuple[int, int]:
        """Descriptors of leader and other, counting from now; the caller closes them.

        `cgroup_fd` is the directory of a cgroup of the perf_event controller. Raises KernelError; nothing is open then.
        """
        return self._open_group(cgroup_fd, cpu, _FLAG_CGROUP, f"perf events on CPU {cpu}")

    def open_own(self) -> tuple[int, int]:
        """The same for the calling thread, wherever it runs: tells what this machine can count."""
        return self._open_group(_THIS_PROCESS, _NOBODY, 0, "perf events")

    def read_group(self, leader: int) -> GroupCount:
        """Counts of a group so far. Raises KernelError."""
        try:
            data = os.read(leader, _READ.size)
        except OSError as error:
            raise translate("perf events", error) from error
        if len(data) != _READ.size:
            raise Refused("perf events", None, f"a group of counters gave {len(data)} bytes, not {_READ.size}")
        events, enabled, running, cycles, instructions = _READ.unpack(data)
        if events != len(self._events):
            raise Refused("perf events", None, f"a group has {events} counters, not {len(self._events)}")
        return GroupCount(cycles, instructions, enabled, running)

    def _open_group(self, pid: int, cpu: int, flags: int, name: str) -> tuple[int, int]:
        leader = self._open(self._events[0], pid, cpu, _NOBODY, flags, name)
        try:
            return leader, self._open(self._events[1], pid, cpu, leader, flags, name)
        except BaseException:
            os.close(leader)
            raise

    def _open(self, event: Event, pid: int, cpu: int, group: int, flags: int, name: str) -> int:
        if self._number is None:
            raise Unsupported(name, None, f"the system call is not known for {platform.machine()}")
        read_format = _FORMAT_ENABLED | _FORMAT_RUNNING | _FORMAT_GROUP
        attr = _ATTR.pack(event.kind, _ATTR.size, event.config, 0, 0, read_format, 0, 0, 0, 0)
        arguments = (pid, cpu, group, flags | _FLAG_CLOEXEC)
        result = self._syscall(
            ctypes.c_long(self._number), ctypes.c_char_p(attr), *(ctypes.c_long(argument) for argument in arguments)
        )
        if result < 0:
            code = ctypes.get_errno()
            raise translate(name, OSError(code, os.strerror(code)))
        return int(result)
