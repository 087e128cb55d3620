"""Raw readings of the host adapters: plain values, no I/O, so that pure code may use them.

Every reading that can be missing is None, never 0. Times are monotonic seconds taken when the file was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCounters:
    """Counters of one cgroup. `usage_ns` is cumulative CPU time, `throttled_ns` the time spent throttled.

    `bursts` counts periods that used saved quota, `burst_ns` what they used beyond theirs (None: no such kernel).
    """

    at: float
    usage_ns: int
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None
    bursts: int | None = None
    burst_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKnobs:
    """What the kernel holds for one cgroup now; None is "no such file", and for the quota "no limit".

    `quota_us` with `period_us` says how much CPU time a period allows; the kernel's -1 and `max` are both None.
    """

    weight: int | None = None
    idle: bool | None = None
    quota_us: int | None = None
    period_us: int | None = None
    burst_us: int | None = None

    @property
    def quota_millis(self) -> int | None:
        """The quota as millicores, None without a limit."""
        if self.quota_us is None or not self.period_us:
            return None
        return self.quota_us * 1000 // self.period_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvents:
    """How often something happened since the cgroup was made; None is not counted by this kernel."""

    high: int | None = None
    max: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Memory of one cgroup in bytes. `limit_bytes` and `high_bytes` None are no limit.

    `oom_kills`, `high_events` (throttled at memory.high) and `max_events` count since the cgroup was made, with all
    groups below it; `local` counts the group alone. `at` is when they were read (None: not stated).
    """

    working_set_bytes: int
    at: float | None = None
    usage_bytes: int | None = None
    limit_bytes: int | None = None
    high_bytes: int | None = None
    oom_kills: int | None = None
    high_events: int | None = None
    max_events: int | None = None
    local: MemoryEvents | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IoReading:
    """Cumulative bytes and operations of one cgroup, summed over devices."""

    at: float
    read_bytes: int
    write_bytes: int
    read_operations: int
    write_operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PidsReading:
    """Processes and threads of one cgroup; `limit` None is no limit."""

    current: int
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPsi:
    """Stall totals of one cgroup; a part that the kernel does not give is None."""

    at: float
    cpu: PsiTotals | None = None
    memory: PsiTotals | None = None
    io: PsiTotals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounters:
    """Node totals. CPU times are seconds since boot summed over all CPUs; `capacity_*` is what the machine has.

    `psi` is the node's own pressure, None where it has none. `tasks` are the threads that live, of `tasks_max` at most.
    """

    at: float
    capacity_cpu_millis: int
    busy_seconds: float
    steal_seconds: float
    capacity_memory_bytes: int
    memory_available_bytes: int | None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    psi: PodPsi | None = None
    tasks: int | None = None
    tasks_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PsiTotals:
    """Cumulative stall times of one pressure file in microseconds; `full` is None where the kernel prints none."""

    some_us: int
    full_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDelay:
    """Cumulative time on a CPU and time waiting for one, by thread id, in nanoseconds.

    `threads` is how many threads there are; fewer may have been read (`times`), the rest is sampled in turn.
    """

    at: float
    times: Mapping[int, tuple[int, int]]
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReading:
    """What is known of one pod's or container's cgroup. CPU is of this turn, the rest of the last turn that read it.

    A None part was not readable; the group still exists. `cpuset` is what the cpuset allows it, in
    the kernel's form. `frozen` is what the freezer says.
    """

    cpu: CpuCounters | None = None
    memory: MemoryReading | None = None
    knobs: CpuKnobs | None = None
    io: IoReading | None = None
    pids: PidsReading | None = None
    psi: PodPsi | None = None
    cpuset: str | None = None
    frozen: bool | None = None
