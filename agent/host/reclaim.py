"""Asks the kernel to take memory back from one cgroup (memory.reclaim, v2, kernel 5.19).

The write returns when the bytes were found or the kernel gave up (EAGAIN), so it can take long: never on the control
thread. Source: cgroup-v2.rst, memory.reclaim; reference/kernel.md 2.2.
"""

from __future__ import annotations

import os
from typing import Final

from agent.host.cgroup import open_group
from slacktide.errors import Unsupported
from slacktide.kernel.files import write_value
from slacktide.kernel.hierarchy import Hierarchy, Version, checked_group

_FILE: Final = "memory.reclaim"


class ReclaimFile:
    """Writes memory.reclaim below the memory controller's mount."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._mount = hierarchy.controllers.get("memory")
        self._listed = hierarchy.controllers.get("cpu")

    def reclaim(self, group: str, inode: int, size_bytes: int) -> None:
        """Take `size_bytes` back from `group`, which must still be the cgroup with `inode`.

        Raises Gone when it is not, Refused with EAGAIN when the kernel found less, other KernelErrors as they come;
        ValueError for a group that leaves the mount.
        """
        mount = self._mount
        if mount is None or mount.version is not Version.V2:
            raise Unsupported(_FILE, None, "there is no memory controller of version 2 here")
        if self._listed != mount:
            raise Unsupported(_FILE, None, "pods are listed under another mount: their inodes say nothing here")
        descriptor = open_group(os.path.join(mount.path, checked_group(group)), inode)
        try:
            write_value(_FILE, size_bytes, descriptor)
        finally:
            os.close(descriptor)
