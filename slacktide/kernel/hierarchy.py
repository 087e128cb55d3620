"""Where each cgroup controller of this machine lives: v1, v2 or hybrid.

Detection reads the mount table below an injected `proc` root and never assumes /sys/fs/cgroup: a hybrid machine
has a v2 mount without controllers beside v1 controllers, so the answer is per controller.
Source: Linux Documentation/admin-guide/cgroup-v2.rst, proc(5) mountinfo.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from slacktide.errors import KernelError
from slacktide.kernel.files import read_text

_OCTAL: Final = re.compile(r"\\([0-7]{3})")

CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory", "io", "blkio", "pids", "freezer", "perf_event")


class Version(enum.IntEnum):
    """cgroup interface of a controller."""

    V1 = 1
    V2 = 2


@dataclass(frozen=True, slots=True)
class Mount:
    """Mount point of one controller, and which interface it speaks."""

    path: str
    version: Version


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Controllers of this machine. `unified` is the v2 mount point, with or without controllers."""

    controllers: Mapping[str, Mount]
    unified: str | None

    @property
    def mode(self) -> str:
        """`v1`, `v2`, `hybrid` or `none`."""
        versions = {mount.version for mount in self.controllers.values()}
        if versions == {Version.V2}:
            return "v2"
        if versions == {Version.V1}:
            return "hybrid" if self.unified else "v1"
        return "hybrid" if versions else "none"

    def path(self, controller: str, group: str) -> str | None:
        """Directory of cgroup `group` (relative, no leading slash) under `controller`; None if not mounted."""
        mount = self.controllers.get(controller)
        return os.path.join(mount.path, checked_group(group)) if mount else None

    def mounts(self) -> tuple[Mount, ...]:
        """Distinct mounts of all controllers, in a stable order."""
        return tuple(sorted(set(self.controllers.values()), key=lambda mount: mount.path))


def checked_group(group: str) -> str:
    """`group` if it is a relative path that stays below its root; ValueError otherwise.

    An empty path once made an agent write limits to the root cgroup of a node (koordinator#1467).
    """
    parts = group.split("/")
    if not group or any(part in {"", ".", ".."} for part in parts) or not group.isprintable():
        raise ValueError(f"cgroup path {group!r} is empty, absolute, unprintable or leaves its root")
    return group


def discover(proc_root: str = "/proc") -> Hierarchy:
    """Read the mount table of this process and the controllers that v2 offers."""
    controllers: dict[str, Mount] = {}
    unified: str | None = None
    for mount_point, kind, options in _mounted(proc_root):
        if kind == "cgroup":
            for name in CONTROLLERS:
                if name in options:
                    controllers.setdefault(name, Mount(mount_point, Version.V1))
        elif kind == "cgroup2" and unified is None:
            unified = mount_point
    if unified is not None:
        for name in _offered(unified):
            if name in CONTROLLERS:
                controllers.setdefault(name, Mount(unified, Version.V2))
        if controllers.get("cpu", Mount("", Version.V1)).version is Version.V2:
            controllers.setdefault("cpuacct", Mount(unified, Version.V2))
            controllers.setdefault("freezer", Mount(unified, Version.V2))
            # On v2 always on, and in no list.
            controllers.setdefault("perf_event", Mount(unified, Version.V2))
    return Hierarchy(controllers, unified)


def _mounted(proc_root: str) -> Iterator[tuple[str, str, list[str]]]:
    """Mount point, file system and its options, of each line of the mount table."""
    for line in read_text(os.path.join(proc_root, "self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) >= 5 and len(rest) >= 3:
            yield unescape(fields[4]), rest[0], rest[2].split(",")


def _offered(unified: str) -> list[str]:
    """Controllers of a v2 mount; none where something else was mounted over it."""
    try:
        return read_text(os.path.join(unified, "cgroup.controllers")).split()
    except KernelError:
        return []


def unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo, such as `\\040` for a space."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)
