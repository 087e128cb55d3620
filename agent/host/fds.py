"""Descriptors of monitoring: hot files are held open within a budget, so that control always has descriptors left.

Reading through a held descriptor costs a third of opening anew, and what is read stays the same cgroup whatever is
made in its place. The budget is the process limit less a reserve for control, API, streams and disk. When the process
runs out of descriptors all the same, monitoring gives up everything it holds and reads file by file for a while:
it becomes dearer, control goes on. Source: reference/kernel.md section 5, "fd exhaustion".
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from typing import Final

from agent.host.cgroup import open_group
from slacktide.errors import Gone, KernelError, Unsupported
from slacktide.kernel.files import translate

RESERVE: Final = 256
"""Descriptors that are not monitoring's: control, journal, API, streams, sockets, perf."""

MOST: Final = 16_384
WANTED_LIMIT: Final = 65_536
LEAN_SECONDS: Final = 60.0
ABSENT_SECONDS: Final = 60.0
"""A file that a group lacks is looked for again after this long (cgroup.pressure may bring it back)."""

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_FIRST_SIZE: Final = 4096
_LARGEST: Final = 1 << 24


def raise_limit(wanted: int = WANTED_LIMIT) -> int:
    """Raise the soft limit of descriptors towards `wanted`, as far as the hard limit allows; the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


class FdBudget:
    """How many descriptors monitoring may hold. Not thread-safe: the control thread owns it.

    `held` counts those that are held now, `sheds` how often all were given up. `limit` is that of the process
    (default: as it is now).
    """

    def __init__(
        self, limit: int | None = None, reserve: int = RESERVE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
        self.most = max(0, min(MOST, (MOST if soft == resource.RLIM_INFINITY else soft) - reserve))
        self.held = 0
        self.sheds = 0
        self._clock = clock
        self._lean_until = float("-inf")
        self._holders: dict[int, Holder] = {}

    def take(self, holder: Holder) -> bool:
        """Whether one more may be held; `holder` is asked to close all of its own when they have to be given up."""
        if self.held >= self.most or self._clock() < self._lean_until:
            return False
        self.held += 1
        self._holders[id(holder)] = holder
        return True

    def give_back(self, holder: Holder, count: int) -> None:
        """`count` descriptors of `holder` were closed."""
        self.held -= count
        if not holder.holds:
            self._holders.pop(id(holder), None)

    def shed(self) -> int:
        """Give up everything that is held, and hold nothing for a while. Returns how many were closed."""
        before = self.held
        self._lean_until = self._clock() + LEAN_SECONDS
        self.sheds += 1
        for holder in list(self._holders.values()):
            holder.release()
        return before - self.held

    def check(self) -> bool:
        """Before a turn: whether a descriptor can be had; if not, everything that is held is given up."""
        try:
            os.close(os.open("/", os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            self.shed()
            return False
        return True


class Holder:
    """Something that holds descriptors within a budget."""

    @property
    def holds(self) -> bool:
        """Whether it holds any now."""
        raise NotImplementedError

    def release(self) -> None:
        """Close all, and say so to the budget; they are opened again when they are needed and may be held."""
        raise NotImplementedError


class GroupFiles(Holder):
    """Files of one cgroup directory, for reading.

    `inode` proves that the directory is still the one that was listed; None trusts the path (on v1 only the listed
    controller's inode is known). Methods raise Gone when the group went away, Unsupported for a file that it lacks
    (remembered for a minute), and other KernelErrors.
    """

    __slots__ = ("_absent", "_budget", "_clock", "_held", "_inode", "_path")

    def __init__(
        self, path: str, inode: int | None, budget: FdBudget, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._inode = inode
        self._budget = budget
        self._clock = clock
        self._held: dict[str, int] = {}
        self._absent: dict[str, float] = {}

    @property
    def path(self) -> str:
        """The directory."""
        return self._path

    @property
    def holds(self) -> bool:
        """Whether any descriptor is held now."""
        return bool(self._held)

    def hot(self, name: str) -> bytes:
        """Content of a file that is read every turn or beat: its descriptor is kept if the budget allows."""
        descriptor = self._held.get(name)
        if descriptor is None:
            if self._known_absent(name):
                raise Unsupported(f"{self._path}/{name}", errno.ENOENT, "this cgroup has no such file")
            descriptor = self._open(name)
            if not self._budget.take(self):
                return self._read_and_close(name, descriptor)
            self._held[name] = descriptor
        try:
            return _read_all(descriptor)
        except OSError as error:
            self._drop(name)
            raise translate(f"{self._path}/{name}", error) from error

    def cold(self, name: str) -> bytes:
        """Content of a file that is read now and then: opened for it."""
        if self._absent and self._known_absent(name):
            raise Unsupported(f"{self._path}/{name}", errno.ENOENT, "this cgroup has no such file")
        return self._read_and_close(name, self._open(name))

    def release(self) -> None:
        """Close all descriptors; the files can still be read."""
        for name in list(self._held):
            self._drop(name)

    def _drop(self, name: str) -> None:
        os.close(self._held.pop(name))
        self._budget.give_back(self, 1)

    def _known_absent(self, name: str) -> bool:
        since = self._absent.get(name)
        if since is None:
            return False
        if self._clock() - since < ABSENT_SECONDS:
            return True
        del self._absent[name]
        return False

    def _read_and_close(self, name: str, descriptor: int) -> bytes:
        try:
            return _read_all(descriptor)
        except OSError as error:
            raise translate(f"{self._path}/{name}", error) from error
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        """Open a file of the very group that was listed."""
        path = f"{self._path}/{name}"
        try:
            return self._try_open(path, name)
        except KernelError as error:
            if error.errno in OUT_OF_DESCRIPTORS and self._budget.shed():
                return self._try_open(path, name)
            raise

    def _try_open(self, path: str, name: str) -> int:
        if self._inode is None:
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise self._missing(path, name, error, os.path.isdir(self._path)) from error
        directory = open_group(self._path, self._inode)
        try:
            return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise self._missing(path, name, error, self.lives()) from error
        finally:
            os.close(directory)

    def lives(self) -> bool:
        """Whether the very directory that was listed is still there."""
        try:
            return self._inode in {None, os.stat(self._path).st_ino}
        except OSError:
            return False

    def _missing(self, path: str, name: str, error: OSError, lives: bool) -> KernelError:
        problem = translate(path, error)
        if isinstance(problem, Gone) and lives:
            self._absent[name] = self._clock()
            return Unsupported(path, error.errno, "this cgroup has no such file")
        return problem


def _read_all(descriptor: int) -> bytes:
    """Whole content from the start. The kernel makes these texts in one piece, if the buffer is long enough."""
    size = _FIRST_SIZE
    data = os.pread(descriptor, size, 0)
    while len(data) == size and size < _LARGEST:
        size *= 4
        data = os.pread(descriptor, size, 0)
    return data
