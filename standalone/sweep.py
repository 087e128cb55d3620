"""Remove what an instance left in the cgroup trees: its own directories, bottom up, never anything above them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from slacktide.errors import KernelError
from slacktide.kernel.files import read_text, write_value
from slacktide.kernel.hierarchy import Hierarchy

_POLL_SECONDS: Final = 0.02


def directories(hierarchy: Hierarchy, group: str) -> list[str]:
    """Directory of `group` below every mount that has one, the v2 mount of a hybrid machine included."""
    names = [os.path.join(mount.path, group) for mount in hierarchy.mounts()]
    if hierarchy.unified is not None:
        names.append(os.path.join(hierarchy.unified, group))
    return [name for name in dict.fromkeys(names) if os.path.isdir(name)]


def sweep(
    hierarchy: Hierarchy,
    group: str,
    *,
    kill: bool,
    timeout: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Remove `group` (this instance's own root, a single name) everywhere; returns directories that stayed.

    With `kill`, processes in it get SIGKILL: whatever is in there was started by the runner as part of a pod.
    Without it, only empty directories go. Raises ValueError for a group that is not an instance's own.
    """
    if not group.startswith("slacktide-") or "/" in group:
        raise ValueError(f"{group!r} is no cgroup root of an instance")
    deadline = clock() + timeout
    while left := [top for top in directories(hierarchy, group) if not _remove(top)]:
        if not kill or clock() >= deadline:
            return left
        for top in left:
            _kill(top)
        sleep(_POLL_SECONDS)
    return []


def _remove(top: str) -> bool:
    """Remove a tree of cgroup directories as far as it is empty. True when all of it is gone."""
    for directory, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.ENOTEMPTY, errno.ENOENT, errno.ENODEV}:
                raise
    return not os.path.isdir(top)


def _kill(top: str) -> None:
    for directory, _, _ in os.walk(top):
        # A frozen v1 group does not die before it is thawed.
        with contextlib.suppress(KernelError):
            write_value(os.path.join(directory, "freezer.state"), "THAWED")
        try:
            pids = read_text(os.path.join(directory, "cgroup.procs")).split()
        except KernelError:
            continue
        # Processes of a foreign pid namespace are listed as 0, which to kill(2) is our own process group.
        for pid in pids:
            if pid == "0":
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
