"""Kills all processes of one cgroup, and of those below it.

v2 has cgroup.kill (5.14), for the whole subtree. v1: FROZEN, SIGKILL to each process by pidfd,
THAWED, until none is left; a frozen task of v1 dies only when it is thawed. A pidfd is opened before the process is
looked for in the cgroup once more, so a pid that was used again is never hit. Source: reference/kernel.md 2.1.

It acts on the very group with the place's inode, and raises Gone when it is another or none.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from agent.act.knobs import Place, find_place, opened
from agent.capabilities import Knob
from agent.host.knobs import mount_of
from agent.host.knobs.freezer import FREEZE_FILE, STATE_FILE
from agent.host.parse import is_count
from slacktide.errors import Gone, KernelError, Refused
from slacktide.kernel.files import parse_flat, read_text, write_value
from slacktide.kernel.hierarchy import Hierarchy

_KILL_FILE: Final = "cgroup.kill"
_PROCS: Final = "cgroup.procs"
_LOOK_SECONDS: Final = 0.005
_AT_A_TIME: Final = 64
"""Descriptors that are opened together."""
_FREEZE_SECONDS: Final = 0.5
"""How long a kill waits for tasks to stop; one that is stuck in the kernel is signalled all the same."""


def place_to_kill(hierarchy: Hierarchy, group: str) -> Place:
    """Where the group of a pod or container is killed.

    Raises ValueError for a path that leaves the mount, Gone when there is no such group or no freezer.
    """
    mount = mount_of(hierarchy, Knob.FREEZE)
    if mount is None:
        raise Gone(group, None, "no freezer controller is mounted")
    return find_place(mount, group)


def kill_all(
    place: Place,
    deadline_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Kill every process of the group, also those that are made meanwhile; returns how many were seen.

    Leaves the group thawed. Blocks up to `deadline_seconds`. Raises a KernelError: Gone when the group is another or
    none, Refused when processes are left at the end.
    """
    until = clock() + deadline_seconds
    with opened(place) as descriptor:
        seen = set(_processes(descriptor))
        if _has(descriptor, _KILL_FILE):
            write_value(_KILL_FILE, 1, descriptor)
        try:
            while left := set(_processes(descriptor)):
                seen |= left
                if clock() >= until:
                    raise Refused(place.directory, None, f"{len(left)} processes live on after SIGKILL")
                if not _has(descriptor, _KILL_FILE):
                    _one_pass(descriptor, until, clock, pause)
                pause(_LOOK_SECONDS)
        finally:
            _thaw_quietly(descriptor)
    return len(seen)


def _one_pass(descriptor: int, until: float, clock: Callable[[], float], pause: Callable[[float], None]) -> None:
    """Stop, signal, thaw: nobody can fork away from a signal while stopped."""
    _freeze(descriptor, on=True)
    stop_by = min(until, clock() + _FREEZE_SECONDS)
    while not _is_frozen(descriptor) and clock() < stop_by:
        pause(_LOOK_SECONDS)
    pids = list(_processes(descriptor))
    for start in range(0, len(pids), _AT_A_TIME):
        _signal(descriptor, pids[start : start + _AT_A_TIME])
    _freeze(descriptor, on=False)


def _signal(descriptor: int, pids: list[int]) -> None:
    """SIGKILL to those that are in the group after their pidfd was opened."""
    opened_now: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(OSError):
                opened_now[pid] = os.pidfd_open(pid)
        for pid in opened_now.keys() & set(_processes(descriptor)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(opened_now[pid], signal.SIGKILL)
    finally:
        for process in opened_now.values():
            os.close(process)


def _freeze(descriptor: int, *, on: bool) -> None:
    if _has(descriptor, FREEZE_FILE):
        write_value(FREEZE_FILE, int(on), descriptor)
    else:
        write_value(STATE_FILE, "FROZEN" if on else "THAWED", descriptor)


def _is_frozen(descriptor: int) -> bool:
    if _has(descriptor, FREEZE_FILE):
        return parse_flat(read_text("cgroup.events", descriptor)).get("frozen") == 1
    return read_text(STATE_FILE, descriptor).strip() == "FROZEN"


def _thaw_quietly(descriptor: int) -> None:
    """A group that went away meanwhile needs no thawing."""
    try:
        _freeze(descriptor, on=False)
    except KernelError:
        return


def _processes(descriptor: int) -> Iterator[int]:
    """Pids in the group and in all below; what went away has none."""
    try:
        text = read_text(_PROCS, descriptor)
        names = os.listdir(descriptor)
    except (KernelError, OSError):
        return
    yield from (int(word) for word in text.split() if is_count(word) and word != "0")
    for name in names:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:
            # A file, or a group that is gone.
            continue
        try:
            yield from _processes(below)
        finally:
            os.close(below)


def _has(descriptor: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=descriptor)
    except OSError:
        return False
    return True
