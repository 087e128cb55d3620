"""What this node lets the agent read and write, found by probing at start; a plain value for policies."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slacktide.tier import Tier

Value = int | str
"""Value of a knob: a number, or text in a canonical form (a CPU list, lines of io.max)."""


class Knob(enum.StrEnum):
    """A knob of a cgroup that policies may ask for. The comment gives the unit of its value."""

    IDLE = "cpu.idle"  # 0 or 1
    WEIGHT = "cpu.weight"  # the kernel's own unit: shares on v1, weight on v2
    QUOTA = "cpu.quota"  # millicores
    BURST = "cpu.burst"  # microseconds a period; for LS only, the one knob that gives instead of takes
    BVT = "cpu.bvt"  # group identity, -1 to 2 (vendor kernels only)
    CPUSET = "cpuset.cpus"  # a CPU list in the kernel's form, sorted and joined: "0-3,8"
    MEMORY_HIGH = "memory.high"  # bytes (v2 only)
    MEMORY_MAX = "memory.max"  # bytes
    IO_WEIGHT = "io.weight"  # 1 to 10000 as v2 has it; converted where the kernel wants another range
    IO_MAX = "io.max"  # lines "MAJ:MIN rbps=N wbps=N", sorted, joined by newlines
    PIDS_MAX = "pids.max"  # tasks (threads), with all groups below
    FREEZE = "freeze"  # 0 or 1

    @property
    def controller(self) -> str:
        """Controller whose mount holds the knob, by its name on v2 (io is blkio on v1)."""
        return _CONTROLLER.get(self, self.value.partition(".")[0])

    @property
    def hard(self) -> bool:
        """Whether it can stop a pod from getting on: the watchdog lifts these when the control loop is silent."""
        return self in _HARD

    @property
    def tiers(self) -> frozenset[Tier]:
        """Tiers whose pods may be given this knob."""
        return _TIERS.get(self, _ONLY_BE)


_CONTROLLER: Final = {Knob.FREEZE: "freezer"}
_HARD: Final = frozenset({Knob.QUOTA, Knob.CPUSET, Knob.MEMORY_HIGH, Knob.IO_MAX, Knob.PIDS_MAX, Knob.FREEZE})
_ONLY_BE: Final = frozenset({Tier.BE})
_TIERS: Final = {Knob.BURST: frozenset({Tier.LS}), Knob.BVT: frozenset({Tier.LS, Tier.BE})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Knobs that can be written, signals that can be read, and why the others cannot.

    `cpu_version` and `memory_version` are the cgroup versions of those controllers (None: not mounted). `kernel` is
    (major, minor). `skipped` maps what is missing (a knob, `psi`, `run-delay`, `affinity`, `memory`, `resctrl`,
    `perf`, `gpu`, `reclaim`, `core-scheduling`) to the reason in words.
    """

    mode: str
    cpu_version: int | None
    memory_version: int | None = None
    kernel: tuple[int, int] | None = None
    writable: frozenset[Knob] = frozenset()
    psi: bool = False
    run_delay: bool = False
    affinity: bool = False
    core_scheduling: bool = False
    """Whether threads can be given core scheduling cookies; by itself it changes nothing."""
    reclaim: bool = False
    """Whether memory.reclaim is there."""
    kill: bool = False
    """Whether cgroup.kill is there; without it the agent freezes and signals each process."""
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def observe_only(self) -> bool:
        """Whether nothing can be written: the agent then measures and reports, and says what it would do."""
        return not self.writable

    @property
    def lowest_weight(self) -> int:
        """The smallest weight of this kernel's cpu controller: shares 2 on v1, weight 1 on v2."""
        return 1 if self.cpu_version == 2 else 2
