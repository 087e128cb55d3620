"""What this node lets the agent read and write, found by probing at start; a plain value for policies."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Knob(enum.StrEnum):
    """A knob that policies may ask for. Values: idle 0 or 1, weight in the kernel's own unit, quota in millicores."""

    IDLE = "cpu.idle"
    WEIGHT = "cpu.weight"
    QUOTA = "cpu.quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Knobs that can be written, signals that can be read, and why the others cannot.

    `cpu_version` is the cgroup version of the cpu controller (None: not mounted). `skipped` maps what is missing
    (a knob, `psi`, `run-delay`, `affinity`, `memory`) to the reason in words.
    """

    mode: str
    cpu_version: int | None
    writable: frozenset[Knob] = frozenset()
    psi: bool = False
    run_delay: bool = False
    affinity: bool = False
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def observe_only(self) -> bool:
        """Whether nothing can be written: the agent then measures and reports, and says what it would do."""
        return not self.writable

    @property
    def lowest_weight(self) -> int:
        """The smallest weight of this kernel's cpu controller: shares 2 on v1, weight 1 on v2."""
        return 1 if self.cpu_version == 2 else 2
