"""The model under a directory, through libfuse. Only a thin layer: every answer is the model's."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections.abc import Callable
from typing import Any

import mfusepy  # type: ignore[import-untyped]  # it publishes no types

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.host import Caller
from tests.emulators.resctrl.model import FILE, Model, Node, Opened

_THREADS_SINCE = (3, 12)


class ResctrlFilesystem(mfusepy.Operations):  # type: ignore[misc]  # a base without types
    """File system operations; libfuse calls them from several threads."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, model: Model, ready: Callable[[], None]) -> None:
        self._model = model
        self._ready = ready
        self._numbers = itertools.count(1)
        self._open: dict[int, Opened] = {}
        self._listed: dict[int, str] = {}
        self._born = time.time_ns()

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        """The kernel talks to us: the mount is there."""
        self._ready()

    def _caller(self) -> Caller:
        uid, _, tid = mfusepy.fuse_get_context()
        return Caller(tid, uid)

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        """With a handle there is no path."""
        if path is not None:
            return self._status(self._model.find(path))
        assert fh is not None
        return self._status(self._open[fh].node if fh in self._open else self._model.find(self._listed[fh]))

    def _status(self, node: Node) -> dict[str, int]:
        mode, uid, gid = self._model.attributes(node)
        directory = node.kind != FILE
        return {
            "st_mode": (stat.S_IFDIR if directory else stat.S_IFREG) | mode,
            "st_nlink": 2 if directory else 1,
            "st_ino": node.inode,
            "st_uid": uid,
            "st_gid": gid,
            "st_size": 0,
            "st_atime": self._born,
            "st_mtime": self._born,
            "st_ctime": self._born,
        }

    def opendir(self, path: str) -> int:
        """A handle that remembers the path."""
        self._model.find(path)
        number = next(self._numbers)
        self._listed[number] = path
        return number

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        """Names with their inodes: without them libfuse says 0 and the C library hides the entry."""
        with self._model.lock:
            here = self._status(self._model.find(self._listed[fh]))
            entries = self._model.list(self._listed[fh])
            return [(".", here, 0), ("..", here, 0), *((name, self._status(node), 0) for name, node in entries.items())]

    def releasedir(self, path: str | None, fh: int) -> int:
        """Forget a handle."""
        self._listed.pop(fh, None)
        return 0

    def open(self, path: str, flags: int) -> int:
        """A handle on one file."""
        access = flags & os.O_ACCMODE
        opened = self._model.open(path, access != os.O_RDONLY, access != os.O_WRONLY)
        number = next(self._numbers)
        self._open[number] = opened
        return number

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        """No one makes files here."""
        self._model.create(path)
        return 0

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        """Part of the text that the first read made."""
        return self._open[fh].read(size, offset, self._caller())

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        """One command."""
        return self._open[fh].write(data, self._caller())

    def release(self, path: str | None, fh: int) -> int:
        """Forget a handle."""
        self._open.pop(fh, None)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        """A new group."""
        self._model.mkdir(path)
        return 0

    def rmdir(self, path: str) -> int:
        """A group goes, with all that is in it."""
        self._model.rmdir(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        """A MON group moves."""
        self._model.rename(old, new)
        return 0

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        """Shells truncate what they write to; the kernel lets them and does nothing."""
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        """Times are not kept."""
        return 0

    def chmod(self, path: str, mode: int) -> int:
        """Holds until the group goes."""
        self._model.change(path, mode=mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Holds until the group goes."""
        unchanged = {-1, 0xFFFFFFFF}
        self._model.change(path, uid=None if uid in unchanged else uid, gid=None if gid in unchanged else gid)
        return 0

    def unlink(self, path: str) -> int:
        """Files come and go with their group."""
        raise ResctrlError(errno.EPERM)

    def mknod(self, path: str, mode: int, dev: int) -> int:
        """As unlink."""
        raise ResctrlError(errno.EPERM)

    def symlink(self, target: str, source: str) -> int:
        """As unlink."""
        raise ResctrlError(errno.EPERM)

    def link(self, target: str, source: str) -> int:
        """As unlink."""
        raise ResctrlError(errno.EPERM)


def serve(
    model: Model, mountpoint: str, ready: Callable[[], None], everyone: bool = False, read_only: bool = False
) -> None:
    """Mount at `mountpoint` and serve until it is unmounted or SIGTERM, SIGINT or SIGHUP comes.

    `everyone`: other users than this process's may enter, and the modes of files hold for them. Nothing is cached:
    neither names nor attributes nor content. Raises RuntimeError where mounting fails.
    """
    version = (mfusepy.fuse_version_major, mfusepy.fuse_version_minor)
    threads = {"max_threads": 8, "max_idle_threads": 8} if version >= _THREADS_SINCE else {}
    started: list[bool] = []

    def up() -> None:
        started.append(True)
        ready()

    try:
        mfusepy.FUSE(
            ResctrlFilesystem(model, up),
            mountpoint,
            foreground=True,
            fsname="resctrl-emulator",
            subtype="resctrl",
            direct_io=True,
            use_ino=True,
            attr_timeout=0,
            entry_timeout=0,
            negative_timeout=0,
            allow_other=everyone,
            default_permissions=everyone,
            ro=read_only,
            **threads,
        )
    except RuntimeError:
        # Once it was up, a number only says which signal ended it.
        if not started:
            raise
