"""Read and write single kernel files; errno becomes a domain error here and nowhere else.

A write is one `os.write` of one value on an unbuffered descriptor: buffered writers hide kernel errors until
close, and a second write would be a second command. Errno meanings as tried on Linux 6.18: ENOENT and ENODEV on
a path that was listed a moment ago both mean that the cgroup went away; EOPNOTSUPP on reading PSI means that it
is disabled; EACCES on the write itself, after the file let itself be opened, is about the value (a v1 cpuset
outside its parent) and not about our rights. What is about neither, such as a lack of descriptors or memory, is a
plain KernelError.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from slacktide.errors import Gone, KernelError, NotPermitted, Refused, Unsupported

_GONE: Final = {errno.ENOENT, errno.ENODEV, errno.ESRCH}
_UNSUPPORTED: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENXIO}
_PERMISSION: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_REFUSED: Final = {
    errno.EINVAL,
    errno.EBUSY,
    errno.ERANGE,
    errno.ENOSPC,
    errno.E2BIG,
    errno.EAGAIN,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EOVERFLOW,
    errno.ENOTDIR,
    errno.EISDIR,
}
_NUMBER: Final = re.compile(r"-?[0-9]{1,30}")
_READ_CHUNK: Final = 1 << 16


def translate(path: str, error: OSError) -> KernelError:
    """The domain error that `error` on `path` stands for."""
    code = error.errno
    detail = os.strerror(code) if code is not None else str(error)
    if code in _GONE:
        return Gone(path, code, detail)
    if code in _UNSUPPORTED:
        return Unsupported(path, code, detail)
    if code in _PERMISSION:
        return NotPermitted(path, code, detail)
    if code in _REFUSED:
        return Refused(path, code, detail)
    return KernelError(path, code, detail)


def read_text(path: str, dir_fd: int | None = None) -> str:
    """Whole content of a kernel file. Raises KernelError: Gone, Unsupported, NotPermitted or Refused where it fits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            chunks = []
            while chunk := os.read(descriptor, _READ_CHUNK):
                chunks.append(chunk)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise translate(path, error) from error
    return b"".join(chunks).decode("utf-8", "replace")


def write_value(path: str, value: str | int, dir_fd: int | None = None) -> None:
    """Write one value as one command. Raises KernelError: Gone, Unsupported, NotPermitted or Refused where it fits.

    The file is never created: a missing knob is Gone (or Unsupported by the caller's knowledge). An empty value is
    refused here, since the kernel takes zero bytes for success and does nothing; a newline clears.
    """
    data = str(value).encode()
    if not data:
        raise Refused(path, None, "an empty value would write nothing; a newline clears")
    try:
        # Kernel files ignore O_TRUNC; in a directory tree that stands in for them it makes the value replace the old.
        # O_NONBLOCK: a memory limit below what is used would be reclaimed here and now, for seconds (from 6.16 on).
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        raise translate(path, error) from error
    try:
        written = os.write(descriptor, data)
    except OSError as error:
        if error.errno == errno.EACCES:
            raise Refused(path, error.errno, os.strerror(error.errno)) from error
        raise translate(path, error) from error
    finally:
        os.close(descriptor)
    if written != len(data):
        raise Refused(path, None, f"short write: {written} of {len(data)} bytes taken")


def read_int(path: str, dir_fd: int | None = None) -> int:
    """A file that holds one decimal number. Raises Refused when it holds something else (such as `max`)."""
    text = read_text(path, dir_fd).strip()
    if not _NUMBER.fullmatch(text):
        raise Refused(path, None, f"expected one number, found {text[:40]!r}")
    return int(text)


def parse_flat(text: str) -> dict[str, int]:
    """`key value` lines into numbers; lines of any other form are skipped, since kernels add new ones."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 2 and _NUMBER.fullmatch(parts[1]):
            values[parts[0]] = int(parts[1])
    return values
