"""Block I/O of one cgroup, v1 and v2: bytes and operations since the group was made, summed over devices.

v2: io.stat, one line a device, `MAJ:MIN key=value...` in any order, keys missing where nothing was done.
v1: blkio.throttle.io_service_bytes and io_serviced, `MAJ:MIN Read|Write|... N`; the `_recursive` files hold the
containers of a pod, the plain ones only its own tasks. Source: reference/kernel.md 2.2; cgroup-v1/blkio-controller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.counters import IoReading
from agent.host.fds import GroupFiles
from agent.host.parse import pairs
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Version

_V1_BYTES: Final = ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes")
_V1_OPERATIONS: Final = ("blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced")


def read_io(files: GroupFiles, version: Version, clock: Callable[[], float]) -> IoReading | None:
    """What the group read and wrote; None where the kernel does not count it. Raises Gone."""
    at = clock()
    if version is Version.V2:
        text = _first(files, ("io.stat",))
        return None if text is None else parse_v2(text, at)
    sizes, operations = _first(files, _V1_BYTES), _first(files, _V1_OPERATIONS)
    return None if sizes is None or operations is None else parse_v1(sizes, operations, at)


def parse_v2(text: bytes, at: float) -> IoReading:
    """io.stat. A device that is named twice counts twice, as the kernel names each once."""
    read = write = reads = writes = 0
    for line in text.split(b"\n"):
        device, *words = line.split() or [b""]
        if not _is_device(device):
            continue
        found = pairs(words)
        read += found.get("rbytes", 0)
        write += found.get("wbytes", 0)
        reads += found.get("rios", 0)
        writes += found.get("wios", 0)
    return IoReading(at=at, read_bytes=read, write_bytes=write, read_operations=reads, write_operations=writes)


def parse_v1(sizes: bytes, operations: bytes, at: float) -> IoReading:
    """The two files of v1; lines of another form and the totals at the end are skipped."""
    read, write = _directions(sizes)
    reads, writes = _directions(operations)
    return IoReading(at=at, read_bytes=read, write_bytes=write, read_operations=reads, write_operations=writes)


def _directions(text: bytes) -> tuple[int, int]:
    read = write = 0
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) != 3 or not _is_device(words[0]) or not words[2].isdigit() or len(words[2]) > 30:
            continue
        if words[1] == b"Read":
            read += int(words[2])
        elif words[1] == b"Write":
            write += int(words[2])
    return read, write


def _is_device(word: bytes) -> bool:
    major, _, minor = word.partition(b":")
    return major.isdigit() and minor.isdigit()


def _first(files: GroupFiles, names: tuple[str, ...]) -> bytes | None:
    """The first of these files that the group has; None when it has none."""
    for name in names:
        try:
            return files.cold(name)
        except Gone:
            raise
        except KernelError:
            continue
    return None
