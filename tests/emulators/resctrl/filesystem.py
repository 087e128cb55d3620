"""The model under a directory, through libfuse. Only a thin layer: every answer is the model's."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections.abc import Callable

import mfusepy

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.host import Caller
from tests.emulators.resctrl.model import FILE, Model, Node, Opened

_THREADS_SINCE = (3, 12)


class ResctrlFilesystem(mfusepy.Operations):
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

    def init_with_config(self, conn_info, config_3) -> None:
        """The kernel talks to us: the mount is there."""
        self._ready()

    def _caller(self) -> Caller:
        uid, _, tid = mfusepy.fuse_get_context()
        return Caller(tid, uid)

    def getattr(self, path, fh=None):
        if path is not None:
            node = self._model.find(path)
        elif fh in self._open:
            node = self._open[fh].node
        else:
            node = self._model.find(self._listed[fh])
        return self._status(node)

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

    def opendir(self, path):
        number = next(self._numbers)
        self._listed[number] = path
        return number

    def readdir(self, path, fh):
        here = self._status(self._model.find(self._listed[fh]))
        entries = [(".", here, 0), ("..", here, 0)]
        entries += [(name, self._status(node), 0) for name, node in self._model.list(self._listed[fh]).items()]
        return entries

    def releasedir(self, path, fh):
        self._listed.pop(fh, None)
        return 0

    def open(self, path, flags):
        access = flags & os.O_ACCMODE
        opened = self._model.open(path, access != os.O_RDONLY, access != os.O_WRONLY)
        number = next(self._numbers)
        self._open[number] = opened
        return number

    def create(self, path, mode, fi=None):
        self._model.create(path)

    def read(self, path, size, offset, fh):
        return self._open[fh].read(size, offset, self._caller())

    def write(self, path, data, offset, fh):
        return self._open[fh].write(data, self._caller())

    def release(self, path, fh):
        self._open.pop(fh, None)
        return 0

    def mkdir(self, path, mode):
        self._model.mkdir(path)
        return 0

    def rmdir(self, path):
        self._model.rmdir(path)
        return 0

    def rename(self, old, new):
        self._model.rename(old, new)
        return 0

    def truncate(self, path, length, fh=None):
        return 0

    def utimens(self, path, times=None):
        return 0

    def chmod(self, path, mode):
        self._model.change(path, mode=mode)
        return 0

    def chown(self, path, uid, gid):
        unchanged = {-1, 0xFFFFFFFF}
        self._model.change(path, uid=None if uid in unchanged else uid, gid=None if gid in unchanged else gid)
        return 0

    def unlink(self, path):
        raise ResctrlError(errno.EPERM)

    def mknod(self, path, mode, dev):
        raise ResctrlError(errno.EPERM)

    def symlink(self, target, source):
        raise ResctrlError(errno.EPERM)

    def link(self, target, source):
        raise ResctrlError(errno.EPERM)


def serve(model: Model, mountpoint: str, ready: Callable[[], None]) -> None:
    """Mount at `mountpoint` and serve until it is unmounted or SIGTERM, SIGINT or SIGHUP comes.

    Nothing is cached: neither names nor attributes nor content. Raises RuntimeError where mounting fails.
    """
    threads = {"max_threads": 8} if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= _THREADS_SINCE else {}
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
            **threads,
        )
    except RuntimeError:
        # Once it was up, a number only says which signal ended it.
        if not started:
            raise
