"""What the shim and the runner read of processes: start times, which tell a process from a later one with the
same number, and family trees. Source: proc(5)."""

from __future__ import annotations

import os

CONTAINER_VARIABLE = "SLACKTIDE_CONTAINER"
"""Set in the environment of each payload to the container's id, so that strays can be found without cgroups."""


def stat_fields(pid: int, proc: str = "/proc") -> list[str] | None:
    """Fields of /proc/PID/stat after the command, which may hold spaces and brackets; None when it is gone.

    Index 0 is field 3 of proc(5) (state), 1 the parent, 19 the start time in clock ticks since boot.
    """
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone."""
    fields = stat_fields(pid, proc)
    return int(fields[19]) if fields and len(fields) > 19 else None


def all_pids(proc: str = "/proc") -> list[int]:
    """Process numbers that exist now."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def descendants(ancestor: int, proc: str = "/proc") -> list[int]:
    """Living processes below `ancestor`, itself not included; zombies are left out."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for pid in all_pids(proc):
        fields = stat_fields(pid, proc)
        if fields and len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(pid)
            if fields[0] in {"Z", "X"}:
                zombies.add(pid)
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [pid for pid in found if pid not in zombies]


def marked(container_id: str, proc: str = "/proc") -> list[int]:
    """Living processes whose environment carries the mark of this container."""
    mark = f"{CONTAINER_VARIABLE}={container_id}".encode()
    found = []
    for pid in all_pids(proc):
        try:
            with open(f"{proc}/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


def boot_id(proc: str = "/proc") -> str:
    """Identity of this boot; monotonic times of another boot mean nothing in this one."""
    with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
