"""Files that we keep: replaced as a whole, and locked by the one process that may."""

from __future__ import annotations

import contextlib
import fcntl
import os


def write_atomically(path: str, data: bytes, *, durable: bool = True) -> None:
    """Replace a file, mode 0600, so that a reader (and a power cut, when `durable`) sees old or new content.

    Durable also means that the new content is there once this returns. Raises OSError; the old file is then kept.
    """
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if durable:
        sync_directory(os.path.dirname(path) or ".")


def sync_directory(path: str) -> None:
    """Make durable which files a directory has. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: str, *, create: bool = True) -> int | None:
    """Descriptor that holds the lock at `path` as long as it is open, None when somebody else has it.

    The kernel lets go when the last process that has the descriptor ends. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        raise
    return descriptor
