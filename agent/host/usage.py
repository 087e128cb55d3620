"""CPU use and throttling of one cgroup, v1 and v2: counters only; the knobs are in `cpu`.

v1 counts usage (controller cpuacct) and throttled time in nanoseconds, v2 in microseconds. v2 has usage also where
the cpu controller is off, the counts of periods only where it is on. Source: reference/kernel.md 2.2.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.counters import CpuCounters
from agent.host.fds import GroupFiles
from agent.host.parse import flat, number
from slacktide.kernel.hierarchy import Version


def read_cpu(
    files: GroupFiles, acct: GroupFiles | None, version: Version, clock: Callable[[], float]
) -> CpuCounters | None:
    """Usage, throttling and bursts. `acct` is the group under the cpuacct controller (v1 only).

    None when usage cannot be read though the group exists. Raises KernelError; Gone when the group does not exist.
    """
    if version is Version.V1 and acct is None:
        return None
    at = clock()
    if version is Version.V2:
        stat = flat(files.hot("cpu.stat"))
        usage = stat.get("usage_usec")
        return None if usage is None else _counters(at, usage * 1000, stat, "throttled_usec", "burst_usec", 1000)
    assert acct is not None
    usage = number(acct.hot("cpuacct.usage"), "cpuacct.usage")
    return _counters(at, usage, flat(files.hot("cpu.stat")), "throttled_time", "burst_time", 1)


def _counters(at: float, usage_ns: int, stat: dict[str, int], throttled: str, burst: str, unit_ns: int) -> CpuCounters:
    throttled_time, burst_time = stat.get(throttled), stat.get(burst)
    return CpuCounters(
        at=at,
        usage_ns=usage_ns,
        periods=stat.get("nr_periods"),
        throttled_periods=stat.get("nr_throttled"),
        throttled_ns=None if throttled_time is None else throttled_time * unit_ns,
        bursts=stat.get("nr_bursts"),
        burst_ns=None if burst_time is None else burst_time * unit_ns,
    )
