"""Kill everything in a container's cgroup, on v1 and v2, frozen or not. Shared by the shim and the runner.

v2 has cgroup.kill, which takes frozen processes too. On v1 a frozen process does not die before it is thawed
(tried on Linux 6.18), so one pass is: freeze (nobody can fork away), SIGKILL all, thaw.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from standalone.runner.shim.files import read_text

_FREEZE_WAIT_SECONDS = 0.05


class Target:
    """The directories of one container's cgroup.

    dirs: one per mount, all holding the same processes. kill_file: v2's cgroup.kill or "". freezer: the v1 freezer
    directory or "".
    """

    def __init__(self, dirs: list[str], kill_file: str = "", freezer: str = "") -> None:
        self.dirs = dirs
        self.kill_file = kill_file
        self.freezer = freezer


def write(path: str, value: str) -> bool:
    """Write one value to a kernel file; False when the kernel or the rights say no, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def members(dirs: list[str]) -> set[int]:
    """Processes in these cgroups and in any cgroup that the payload made below them.

    0 stands for a process of a foreign pid namespace; writing or killing 0 would hit ourselves, so it is left out.
    """
    found: set[int] = set()
    for top in dirs:
        for directory, _, _ in os.walk(top):
            text = read_text(f"{directory}/cgroup.procs")
            found.update(int(line) for line in (text or "").split() if line.isdigit() and line != "0")
    return found


def kill_pass(target: Target) -> int:
    """Kill once all that is there now and return how many processes were seen; 0 means that it was empty.

    A throttled or frozen process dies only when it runs again, so quota and freezer are lifted.
    """
    seen = members(target.dirs)
    if not seen:
        return 0
    _lift(target)
    if target.kill_file and write(target.kill_file, "1"):
        return len(seen)
    if target.freezer:
        _freeze(target.freezer)
        seen |= members(target.dirs)
    for pid in seen:
        kill(pid)
    if target.freezer:
        thaw(target.freezer)
    return len(seen)


def kill_all(target: Target, seconds: float, between: Callable[[], None] | None = None) -> int:
    """Repeat `kill_pass` until nothing is left or `seconds` are over; returns how many processes were left.

    `between` runs after each pass (the shim reaps its children there).
    """
    end = time.monotonic() + seconds
    pause = 0.002
    while left := kill_pass(target):
        if between is not None:
            between()
        if time.monotonic() >= end:
            return left
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return 0


def kill(pid: int) -> None:
    """SIGKILL, quiet when the process is already gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def thaw(freezer: str) -> None:
    """Thaw a v1 freezer, and the pod's above it where that is what holds it."""
    write(f"{freezer}/freezer.state", "THAWED")
    if (read_text(f"{freezer}/freezer.parent_freezing") or "0").strip() != "0":
        write(f"{os.path.dirname(freezer)}/freezer.state", "THAWED")


def _freeze(freezer: str) -> None:
    write(f"{freezer}/freezer.state", "FROZEN")
    end = time.monotonic() + _FREEZE_WAIT_SECONDS
    while (read_text(f"{freezer}/freezer.state") or "FROZEN").strip() != "FROZEN" and time.monotonic() < end:
        time.sleep(0.001)


def _lift(target: Target) -> None:
    for directory in target.dirs:
        for knob, value in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max"), ("memory.high", "max")):
            if os.path.exists(f"{directory}/{knob}"):
                write(f"{directory}/{knob}", value)


def oom_kills(oom_file: str) -> int | None:
    """How often the kernel's OOM killer struck in this cgroup; None when that cannot be known.

    Reads `oom_kill N` of memory.oom_control (v1) or memory.events (v2).
    """
    for line in (read_text(oom_file) or "").splitlines() if oom_file else ():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
