"""The agent's own cgroup where nobody else gives it one: CPU before BE's and behind LS's, and a bound on its memory.

In a DaemonSet the container is that cgroup and its limits stand in the manifest. Started by hand or by `slacktide up`
the agent is a process like any other: a leak would take the node's memory, and a storm of BE threads its CPU. The
group is a single name of our own below each controller's mount; whoever started the agent removes it afterwards,
since a process cannot remove the group that it is in.
"""

from __future__ import annotations

import os
import re
from typing import Final

from slacktide.errors import KernelError
from slacktide.kernel.files import translate, write_value
from slacktide.kernel.hierarchy import Hierarchy, Version

_NAME: Final = re.compile(r"slacktide-[A-Za-z0-9._-]{1,80}")
_CONTROLLERS: Final = ("cpu", "memory")
_WEIGHT: Final = {Version.V1: ("cpu.shares", 256), Version.V2: ("cpu.weight", 25)}
"""A quarter of the default: a fifth of one CPU when all are asked for, and the agent needs a few percent. With more it
pushes LS off the CPU at each of its looks: at 60 % LS load LS p99 was 1.21 times alone with eight times the default,
1.14 with the default and 1.10 with this.
"""

_MEMORY: Final = {Version.V1: "memory.limit_in_bytes", Version.V2: "memory.max"}


def checked_name(name: str) -> str:
    """`name` if it may be a cgroup of ours: one component that begins with `slacktide-`. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a cgroup of ours; expected slacktide-NAME, without a slash")
    return name


def join(hierarchy: Hierarchy, name: str, memory_bytes: int, pid: int) -> list[str]:
    """Make the group under cpu and memory, limit it and move `pid` into it. Returns what could not be had, in words."""
    problems: list[str] = []
    done: set[str] = set()
    for controller in _CONTROLLERS:
        directory = hierarchy.path(controller, checked_name(name))
        if directory is None:
            problems.append(f"no {controller} controller is mounted: the agent's own {controller} is not bounded")
            continue
        version = hierarchy.controllers[controller].version
        file, value = _WEIGHT[version] if controller == "cpu" else (_MEMORY[version], memory_bytes)
        try:
            _make(directory)
            write_value(os.path.join(directory, file), value)
            if directory not in done:
                write_value(os.path.join(directory, "cgroup.procs"), pid)
        except KernelError as error:
            problems.append(f"the agent's own {controller} is not bounded: {error}")
        done.add(directory)
    return problems


def _make(directory: str) -> None:
    try:
        os.mkdir(directory)
    except FileExistsError:
        return
    except OSError as error:
        raise translate(directory, error) from error
