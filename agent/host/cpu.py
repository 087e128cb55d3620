"""CPU controller of one cgroup, v1 and v2: the knobs weight, idle, quota and burst. Counters are in `usage`.

Files are opened relative to a descriptor of the group, so that what is read belongs to one and the same cgroup.
v1's -1 and v2's `max` are no numbers: both are None here. Weight is the kernel's own unit: shares (2 to 262144) on
v1, weight (1 to 10000) on v2; node runtimes convert differently, so it is never converted.
Source: reference/kernel.md 2.1, 2.2.
"""

from __future__ import annotations

import os
from typing import Final

from agent.counters import CpuKnobs
from agent.host.parse import is_count, number
from slacktide.errors import Gone, Refused
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import Version

DEFAULT_PERIOD_US: Final = 100_000
MIN_QUOTA_US: Final = 1_000
"""Below this the kernel answers EINVAL."""

WEIGHT_FILE: Final = {Version.V1: "cpu.shares", Version.V2: "cpu.weight"}
IDLE_FILE: Final = "cpu.idle"
V1_QUOTA_FILE: Final = "cpu.cfs_quota_us"
V2_QUOTA_FILE: Final = "cpu.max"


def read_knobs(fd: int, version: Version) -> CpuKnobs:
    """All knobs as the kernel holds them now; a file that this kernel lacks gives None.

    Raises Gone when the group itself is gone.
    """
    quota, period = read_quota(fd, version)
    idle = optional_int(fd, IDLE_FILE)
    burst = optional_int(fd, burst_file(version))
    return CpuKnobs(
        weight=optional_int(fd, WEIGHT_FILE[version]),
        idle=None if idle is None else idle != 0,
        quota_us=quota,
        period_us=period,
        burst_us=burst,
    )


def read_quota(fd: int, version: Version) -> tuple[int | None, int | None]:
    """(quota, period) in microseconds; no quota is None, a kernel without quotas has no period either."""
    return (_quota_v2 if version is Version.V2 else _quota_v1)(fd)


def _quota_v1(fd: int) -> tuple[int | None, int | None]:
    quota, period = optional_int(fd, V1_QUOTA_FILE), optional_int(fd, "cpu.cfs_period_us")
    return (None if quota is None or quota < 0 else quota), period


def _quota_v2(fd: int) -> tuple[int | None, int | None]:
    text = optional_text(fd, V2_QUOTA_FILE)
    if text is None:
        return None, None
    fields = text.split()
    if len(fields) != 2 or not is_count(fields[1]) or not (is_count(fields[0]) or fields[0] == "max"):
        raise Refused(V2_QUOTA_FILE, None, f"expected QUOTA PERIOD, found {text[:40]!r}")
    return (None if fields[0] == "max" else int(fields[0])), int(fields[1])


def quota_write(version: Version, quota_us: int | None, period_us: int) -> tuple[str, str]:
    """File and text that set a quota; None lifts it. On v1 the period is left as it is."""
    if version is Version.V2:
        return V2_QUOTA_FILE, f"{'max' if quota_us is None else quota_us} {period_us}"
    return V1_QUOTA_FILE, str(-1 if quota_us is None else quota_us)


def burst_file(version: Version) -> str:
    """Name of the burst knob."""
    return "cpu.max.burst" if version is Version.V2 else "cpu.cfs_burst_us"


def optional_text(fd: int, name: str) -> str | None:
    """Text of a file of the group; None when the group is there and the file is not."""
    try:
        return read_text(name, fd)
    except Gone:
        if alive(fd):
            return None
        raise


def optional_int(fd: int, name: str) -> int | None:
    """Number in a file of the group; None as for `optional_text`. Raises Refused when it holds something else."""
    text = optional_text(fd, name)
    return None if text is None else number(text.encode(), name)


def alive(fd: int) -> bool:
    """Whether the cgroup behind a held directory descriptor still exists (a removed one cannot be looked into)."""
    try:
        os.stat("cgroup.procs", dir_fd=fd)
    except OSError:
        return False
    return True
