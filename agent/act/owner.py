"""The right to be the only agent of a node, and of a state directory.

Both are locks that the kernel lets go of when the process ends, however it ends. The state directory has a lock file
with the owner's pid in it. The node has no file of its own to lock that all agents would see, whatever they have
mounted and whichever network and state directory they have; but the cgroups that they would fight over are such: the
agent's cgroup root (under the cpu controller) is locked for it alone, those above it are locked shared. So two agents
of one root refuse each other, as do one of the whole node and one of a part of it, while those of two parts do not.
Who holds it, /proc/locks says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from typing import Final

from agent.act.watchdog import LOCK_NAME
from slacktide.disk import try_lock
from slacktide.errors import StateError
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import Hierarchy

_WAIT_SECONDS: Final = 2.0
"""The watchdog of a dead agent holds the lock for moments, while it lifts limits."""
_LOOK_SECONDS: Final = 0.05
_COMMAND_LENGTH: Final = 160


class Ownership:
    """Locks held until `close`, or until the process ends. Without `node` only that of the directory.

    Raises StateError, naming the owner, where another agent has the directory or the cgroup root.
    """

    def __init__(
        self,
        state_dir: str,
        hierarchy: Hierarchy,
        root: str,
        proc_root: str = "/proc",
        *,
        node: bool = True,
        make_root: bool = True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._held: list[int] = []
        self._made = ""
        try:
            self._held.append(_lock_directory(state_dir, proc_root, pause))
            mount = hierarchy.controllers.get("cpu")
            if node and mount is not None:
                self._lock_node(mount.path, root, proc_root, make_root=make_root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of everything."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()
        if self._made:
            with contextlib.suppress(OSError):
                # Others may have begun to use it.
                os.rmdir(self._made)

    def _lock_node(self, mount: str, root: str, proc_root: str, *, make_root: bool) -> None:
        parts = root.split("/") if root else []
        above = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts))]
        own = os.path.join(mount, *parts)
        if make_root and above and os.path.isdir(above[-1]) and not os.path.isdir(own):
            # Locked before anybody makes pods in it, so it must be there; whoever runs pods takes it as it is.
            with contextlib.suppress(OSError):
                os.mkdir(own)
                self._made = own
        for path in above:
            self._lock_cgroup(path, fcntl.LOCK_SH, proc_root)
        self._lock_cgroup(own, fcntl.LOCK_EX, proc_root)

    def _lock_cgroup(self, path: str, kind: int, proc_root: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            # What cannot even be looked at cannot be written to: the agent only observes then.
            return
        self._held.append(descriptor)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _named(_holder(descriptor, proc_root), proc_root)
            raise StateError(
                f"another agent ({owner}) looks after {path} on this node; stop it, or run with --observe-only"
            ) from None


def _lock_directory(state_dir: str, proc_root: str, pause: Callable[[float], None]) -> int:
    path = os.path.join(state_dir, LOCK_NAME)
    tries = round(_WAIT_SECONDS / _LOOK_SECONDS)
    for number in range(tries + 1):
        try:
            descriptor = try_lock(path)
        except OSError as error:
            raise StateError(f"state_dir {state_dir} cannot be written: {error.strerror}") from error
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # On a full disk the lock holds all the same; it only does not say whose it is.
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        if number < tries:
            pause(_LOOK_SECONDS)
    with open(path, encoding="ascii", errors="replace") as file:
        owner = file.read(32).strip()
    raise StateError(
        f"another agent ({_named(int(owner) if owner.isdigit() else None, proc_root)}) uses {state_dir}; "
        "stop it or choose another --state-dir"
    )


def _holder(descriptor: int, proc_root: str) -> int | None:
    """Pid of a holder of a lock on this file. Source: proc_locks(5)."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in read_text(os.path.join(proc_root, "locks")).splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == file and fields[4].isdigit():
            return int(fields[4])
    return None


def _named(pid: int | None, proc_root: str) -> str:
    """`pid N: its command line`, as far as that is known."""
    if not pid:
        return "pid unknown"
    try:
        with open(os.path.join(proc_root, str(pid), "cmdline"), "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return f"pid {pid}"
    command = "".join(letter if letter.isprintable() else "?" for letter in " ".join(words))
    return f"pid {pid}: {command[:_COMMAND_LENGTH]}"
