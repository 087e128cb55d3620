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


class UsageReader:
    """Reads one group. A text that did not change (a v1 group without a quota) is not judged anew."""

    __slots__ = ("_clock", "_stat", "_text", "_version")

    def __init__(self, version: Version, clock: Callable[[], float]) -> None:
        self._version = version
        self._clock = clock
        self._text: bytes | None = None
        self._stat: dict[str, int] = {}

    def read(self, files: GroupFiles, acct: GroupFiles | None) -> CpuCounters | None:
        """Usage, throttling and bursts. `acct` is the group under the cpuacct controller (v1 only).

        None when usage cannot be read though the group exists. Raises KernelError; Gone when the group does not exist.
        """
        at = self._clock()
        usage = None if acct is None or self._version is Version.V2 else acct.hot("cpuacct.usage")
        return self._of(at, files.hot("cpu.stat"), usage)

    def read_cold(self, files: GroupFiles, acct: GroupFiles | None) -> CpuCounters | None:
        """The same for a group that is seldom read: its files are opened for it."""
        at = self._clock()
        usage = None if acct is None or self._version is Version.V2 else acct.cold("cpuacct.usage")
        return self._of(at, files.cold("cpu.stat"), usage)

    def _of(self, at: float, text: bytes, usage: bytes | None) -> CpuCounters | None:
        stat = self._judged(text)
        if self._version is Version.V2:
            micros = stat.get("usage_usec")
            return None if micros is None else _counters(at, micros * 1000, stat, "throttled_usec", "burst_usec", 1000)
        if usage is None:
            return None
        return _counters(at, number(usage, "cpuacct.usage"), stat, "throttled_time", "burst_time", 1)

    def _judged(self, text: bytes) -> dict[str, int]:
        if text != self._text:
            self._text, self._stat = text, flat(text)
        return self._stat


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
