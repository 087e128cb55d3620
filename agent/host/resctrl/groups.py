"""Groups of resctrl: classes (directories of the root) and monitoring groups (below mon_groups), ours and others'.

Ours are those called `slacktide` or `slacktide-...`; all others belong to someone else (pqos, libvirt, a container
runtime): they are counted and read, never written, renamed or removed. No descriptor is kept between calls: an open one
would keep the administrator from unmounting.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from agent.host.resctrl import parse
from slacktide.errors import Gone, KernelError, NotPermitted, Refused
from slacktide.kernel.files import read_text, translate, write_value

PREFIX: Final = "slacktide"
BE_GROUP: Final = "slacktide-be"
MONITORS: Final = "mon_groups"
_NOT_CLASSES: Final = frozenset({"info", MONITORS, "mon_data"})

Write = Callable[[str, str | int, int | None], None]


class Busy(Exception):
    """Somebody else holds the lock of the mount for a sequence of reads and writes."""


def is_ours(name: str) -> bool:
    """Whether a group of this name was made by an agent of ours."""
    return name == PREFIX or name.startswith(f"{PREFIX}-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Names of all groups; `monitors` are those of the default class."""

    classes: frozenset[str] = frozenset()
    monitors: frozenset[str] = frozenset()

    @property
    def foreign(self) -> int:
        """How many belong to others."""
        return sum(not is_ours(name) for name in (*self.classes, *self.monitors))


@dataclass(frozen=True, slots=True)
class Attached:
    """What became of threads that were to be moved: how many were, which had ended, what was refused."""

    moved: int
    ended: frozenset[int]
    refused: tuple[KernelError, ...]


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Hold the lock by which all users of resctrl keep their sequences apart. Raises Busy, or KernelError.

    It is not waited for: a holder that hangs must not hang us.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise translate(root, error) from error
    try:
        _lock(root, descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(root: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Busy from error
    except OSError as error:
        raise translate(root, error) from error


class RdtTree:
    """The groups below one mount. Raises KernelError everywhere: Gone for a group or mount that went away."""

    def __init__(self, root: str, write: Write = write_value) -> None:
        self.root = root
        self._write = write

    def groups(self) -> Groups:
        """All groups there are now."""
        return Groups(
            classes=frozenset(self._children("")) - _NOT_CLASSES,
            monitors=frozenset(self._children(MONITORS)),
        )

    def guests(self, group: str) -> frozenset[str]:
        """Monitoring groups that stand in a class; the kernel removes them together with it."""
        return frozenset(self._children(f"{group}/{MONITORS}"))

    def status(self) -> str:
        """What the kernel says of the last failed command of anybody: a hint for people, empty when it says nothing."""
        try:
            text = read_text(os.path.join(self.root, "info", "last_cmd_status")).strip()
        except KernelError:
            return ""
        return "" if text == "ok" else " ".join(text.split())[:512]

    def has(self, group: str) -> bool:
        """Whether a group stands there, as a directory and no link."""
        path = self._path(group)
        return os.path.isdir(path) and not os.path.islink(path)

    def make(self, group: str) -> None:
        """Make a group of ours. Raises Refused (EEXIST, ENOSPC, EBUSY), NotPermitted, Gone."""
        self._own(group)
        path = self._path(group)
        try:
            os.mkdir(path)
        except OSError as error:
            raise translate(path, error) from error

    def remove(self, group: str) -> None:
        """Remove a group of ours; the kernel puts its tasks and CPUs into the group above. Gone is no error."""
        self._own(group)
        path = self._path(group)
        try:
            os.rmdir(path)
        except OSError as error:
            problem = translate(path, error)
            if not isinstance(problem, Gone):
                raise problem from error

    def schemata(self, group: str) -> dict[str, dict[int, int]]:
        """What a class holds."""
        path = os.path.join(self._path(group), "schemata")
        return parse.schemata(read_text(path), path)

    def write_schemata(self, group: str, block: str) -> None:
        """One block of whole lines to a class of ours."""
        self._own(group)
        with self._opened(group) as descriptor:
            self._write("schemata", block, descriptor)

    def tasks(self, group: str) -> frozenset[int]:
        """Threads in a group ("" is the default class); a class shows those of its monitoring groups as well."""
        path = os.path.join(self._path(group), "tasks")
        return parse.tasks(read_text(path), path)

    def attach(self, group: str, tids: Iterable[int]) -> Attached:
        """Move threads into a group of ours, or ("") back to the default class, one a write.

        Raises Gone when the group itself went away. 0 is never written: it would be the writer itself.
        """
        if group:
            self._own(group)
        moved = 0
        ended: set[int] = set()
        refused: list[KernelError] = []
        with self._opened(group) as descriptor:
            for tid in tids:
                try:
                    if self._attach(descriptor, tid):
                        moved += 1
                    else:
                        ended.add(tid)
                except (Refused, NotPermitted) as error:
                    refused.append(error)
        return Attached(moved, frozenset(ended), tuple(refused))

    def _attach(self, descriptor: int, tid: int) -> bool:
        """Whether the thread was there to be moved."""
        if tid <= 0:
            raise Refused("tasks", None, f"{tid} is no thread")
        try:
            self._write("tasks", tid, descriptor)
        except Gone:
            if not os.access("tasks", os.F_OK, dir_fd=descriptor):
                raise
            return False
        return True

    def cpus(self, group: str) -> int:
        """Mask of the CPUs that a group owns."""
        path = os.path.join(self._path(group), "cpus")
        return parse.mask(read_text(path), path)

    def drop_cpus(self, group: str) -> None:
        """Give CPUs that somebody put into a class of ours back to the default class."""
        self._own(group)
        with self._opened(group) as descriptor:
            self._write("cpus", "0\n", descriptor)

    def _own(self, group: str) -> None:
        parts = group.split("/")
        known = len(parts) == 1 or (len(parts) == 2 and parts[0] == MONITORS)
        if not known or not is_ours(parts[-1]) or any(char in group for char in "\n\0"):
            raise Refused(self._path(group), None, "no group of ours: it is not touched")

    def _path(self, group: str) -> str:
        return os.path.join(self.root, group) if group else self.root

    @contextmanager
    def _opened(self, group: str) -> Iterator[int]:
        path = self._path(group)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise translate(path, error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _children(self, group: str) -> list[str]:
        path = self._path(group)
        try:
            with os.scandir(path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            problem: KernelError = translate(path, error)
            if isinstance(problem, Gone) and group:
                return []
            raise problem from error
