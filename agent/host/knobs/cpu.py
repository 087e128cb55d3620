"""Knobs of the cpu controller: idle class, weight, quota, burst, group identity.

Source: reference/kernel.md 2.1, 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.capabilities import Knob, Value
from agent.host import cpu
from agent.host.knobs.base import Adapter, Change, Held, Original, Phase, whole_number
from slacktide.kernel.hierarchy import Version

_WEIGHTS: Final = {Version.V1: (2, 262_144), Version.V2: (1, 10_000)}
_BVT_FILE: Final = "cpu.bvt_warp_ns"
_QUOTA_MILLIS: Final = (10, 100_000_000)
_BURST_US: Final = (0, 10_000_000_000)


class Idle(Adapter):
    """0 or 1. Leaving the idle class resets the weight, so what the group had is written again."""

    knob = Knob.IDLE
    foreign_is_original = False

    def read(self, fd: int, version: Version) -> Held:
        """The switch, and the weight beside it."""
        idle = cpu.optional_int(fd, cpu.IDLE_FILE)
        if idle is None:
            return Held(absent=f"this kernel has no {cpu.IDLE_FILE}")
        return Held(value=int(idle != 0), weight=cpu.optional_int(fd, cpu.WEIGHT_FILE[version]), idle=idle != 0)

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held, version
        return cpu.IDLE_FILE

    def problem(self, wanted: Value) -> str | None:
        """0 or 1."""
        return whole_number(wanted, 0, 1)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """As wanted, and 1 where it was so before."""
        del held
        return max(int(wanted), int(original.value or 0))

    def stricter(self, one: Value | None, than: Value | None) -> bool:
        """1 is stricter than 0."""
        return int(one or 0) > int(than or 0)

    def original(self, held: Held) -> Original:
        """With the weight that idle hides."""
        return Original(value=held.value, weight=None if held.idle else held.weight)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """Protects, so it goes first."""
        del held, target
        return Phase.RELEASE if release else Phase.SAFE

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """The switch; then the weight, when the group leaves the class."""
        yield cpu.IDLE_FILE, int(change.target or 0)
        if not change.target and change.original.weight is not None:
            yield cpu.WEIGHT_FILE[change.version], change.original.weight


class Weight(Adapter):
    """Shares on v1, weight on v2; the kernel clamps shares silently. An idle group refuses a weight (EINVAL)."""

    knob = Knob.WEIGHT

    def read(self, fd: int, version: Version) -> Held:
        """The weight, and whether the group is idle and so has none."""
        weight = cpu.optional_int(fd, cpu.WEIGHT_FILE[version])
        if weight is None:
            return Held(absent=f"this kernel has no {cpu.WEIGHT_FILE[version]}")
        return Held(value=weight, weight=weight, idle=bool(cpu.optional_int(fd, cpu.IDLE_FILE)), name=version.name)

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held
        return cpu.WEIGHT_FILE[version]

    def problem(self, wanted: Value) -> str | None:
        """Range of shares, the wider of both."""
        return whole_number(wanted, 1, _WEIGHTS[Version.V1][1])

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """Clamped as the kernel does. A weight limits nothing by itself, so it may be above the original."""
        del original
        low, high = _WEIGHTS[Version[held.name]]
        return min(max(int(wanted), low), high)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """Before quotas."""
        del held, target
        return Phase.RELEASE if release else Phase.SAFE

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        if change.target is not None:
            yield cpu.WEIGHT_FILE[change.version], change.target


class Quota(Adapter):
    """Requests are millicores, held values microseconds a period. On v1 no child may have more than its parent."""

    knob = Knob.QUOTA
    binds_children = frozenset({Version.V1})

    def read(self, fd: int, version: Version) -> Held:
        """Quota, period and burst."""
        quota, period = cpu.read_quota(fd, version)
        if period is None:
            return Held(absent="this kernel has no CPU quotas")
        return Held(value=quota, period_us=period, burst_us=cpu.optional_int(fd, cpu.burst_file(version)))

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held
        return cpu.V1_QUOTA_FILE if version is Version.V1 else cpu.V2_QUOTA_FILE

    def problem(self, wanted: Value) -> str | None:
        """Below 10 millicores the kernel refuses, at its usual period."""
        return whole_number(wanted, *_QUOTA_MILLIS)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """In microseconds a period."""
        target = quota_us(int(wanted), held.period_us)
        return target if self.stricter(target, original.value) else original.value

    def original(self, held: Held) -> Original:
        """With the burst, which must go below a lower quota."""
        return Original(value=held.value, burst_us=held.burst_us or None)

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """Burst may never exceed the quota: to 0 before the quota falls under it, given back on release."""
        burst = change.held.burst_us or 0
        target = None if change.target is None else int(change.target)
        if burst and self.stricter(target, burst):
            yield cpu.burst_file(change.version), 0
        yield cpu.quota_write(change.version, target, change.held.period_us or cpu.DEFAULT_PERIOD_US)
        if change.release and change.original.burst_us:
            yield cpu.burst_file(change.version), change.original.burst_us


class Burst(Adapter):
    """Microseconds a period that LS may save up. Gives only: never below what was there, never above the quota."""

    knob = Knob.BURST

    def read(self, fd: int, version: Version) -> Held:
        """Burst, and the quota that bounds it."""
        burst = cpu.optional_int(fd, cpu.burst_file(version))
        if burst is None:
            return Held(absent=f"this kernel has no {cpu.burst_file(version)}")
        return Held(value=burst, quota_us=cpu.read_quota(fd, version)[0])

    def problem(self, wanted: Value) -> str | None:
        """Not negative."""
        return whole_number(wanted, *_BURST_US)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """Mainline refuses more than the quota (koordinator 2326); without a quota nothing is throttled anyway."""
        if held.quota_us is None:
            return held.value
        return min(max(int(wanted), int(original.value or 0)), held.quota_us)

    def giving_back(self, held: Held, original: Original) -> Value | None:
        """The original, or the quota where that fell below it."""
        value = int(original.value or 0)
        return value if held.quota_us is None else min(value, held.quota_us)

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        yield cpu.burst_file(change.version), int(change.target or 0)


class Bvt(Adapter):
    """Group identity of vendor kernels, -1 to 2."""

    knob = Knob.BVT
    foreign_is_original = False

    def read(self, fd: int, version: Version) -> Held:
        """The identity."""
        del version
        value = cpu.optional_int(fd, _BVT_FILE)
        return Held(absent=f"this kernel has no {_BVT_FILE}") if value is None else Held(value=value)

    def problem(self, wanted: Value) -> str | None:
        """Range of the vendor kernels."""
        return whole_number(wanted, -1, 2)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """As wanted."""
        del held, original
        return int(wanted)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """Levels are switched on from the top and off from the bottom (koordinator 1848)."""
        del held, target
        return Phase.TIGHTEN if release else Phase.SAFE

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        yield _BVT_FILE, int(change.target or 0)


def quota_us(millis: int, period_us: int | None) -> int:
    """Millicores as microseconds a period, not below what the kernel takes."""
    return max(cpu.MIN_QUOTA_US, millis * (period_us or cpu.DEFAULT_PERIOD_US) // 1000)
