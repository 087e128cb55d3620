"""Tasks of the whole node: how many there are, and how many there may be. Source: proc(5).

Every thread takes an id below `pid_max`, and the kernel makes no more than `threads-max` of them: the lower one counts.
"""

from __future__ import annotations

import os
import re
from typing import Final

from agent.host.parse import number
from slacktide.errors import KernelError, Refused
from slacktide.kernel.files import read_text

_TASKS: Final = re.compile(r"(?:[0-9.]+ ){3}[0-9]+/([0-9]{1,20}) ")
_BOUNDS: Final = ("sys/kernel/pid_max", "sys/kernel/threads-max")


def read_tasks(proc_root: str) -> int | None:
    """Threads that live now, from /proc/loadavg; None where it does not say."""
    try:
        found = _TASKS.match(read_text(os.path.join(proc_root, "loadavg")))
    except KernelError:
        return None
    return int(found[1]) if found else None


def read_tasks_max(proc_root: str) -> int | None:
    """Threads that there may be at most; None where the kernel does not say."""
    return min((bound for name in _BOUNDS if (bound := _bound(os.path.join(proc_root, name)))), default=None)


def _bound(path: str) -> int | None:
    try:
        found = number(read_text(path).encode(), path)
    except (KernelError, Refused):
        return None
    return found if found > 0 else None
