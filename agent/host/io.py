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

_LONGEST: Final = 30
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


def parse_v2(text: bytes, at: float) -> IoReading | None:
    """io.stat; empty while nothing was done. None for a text without any line about a device.

    A device that is named twice counts twice, as the kernel names each once.
    """
    read = write = reads = writes = 0
    judged = not text.strip()
    for line in text.split(b"\n"):
        device, *words = line.split() or [b""]
        if not _is_device(device):
            continue
        judged = True
        found = pairs(words)
        read += found.get("rbytes", 0)
        write += found.get("wbytes", 0)
        reads += found.get("rios", 0)
        writes += found.get("wios", 0)
    if not judged:
        return None
    return IoReading(at=at, read_bytes=read, write_bytes=write, read_operations=reads, write_operations=writes)


def parse_v1(sizes: bytes, operations: bytes, at: float) -> IoReading | None:
    """The two files of v1, which end with a total also while nothing was done; None where one of them has none."""
    byte_counts, counts = _directions(sizes), _directions(operations)
    if byte_counts is None or counts is None:
        return None
    return IoReading(
        at=at,
        read_bytes=byte_counts[0],
        write_bytes=byte_counts[1],
        read_operations=counts[0],
        write_operations=counts[1],
    )


def _directions(text: bytes) -> tuple[int, int] | None:
    read = write = 0
    judged = False
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) not in {2, 3} or not words[-1].isdigit() or len(words[-1]) > _LONGEST:
            continue
        if len(words) == 2:
            judged = judged or words[0] == b"Total"
        elif _is_device(words[0]):
            read += int(words[2]) if words[1] == b"Read" else 0
            write += int(words[2]) if words[1] == b"Write" else 0
    return (read, write) if judged else None


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
