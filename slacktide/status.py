"""Live status of a node agent: served as JSON on its observe address (`/status`), read by `slacktide top`.

None means not measured. All CPU figures are millicores, all memory figures bytes.
"""

from __future__ import annotations

import msgspec

from slacktide.tier import Tier


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory use of something over the last turn."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of the node as the agent saw it in its last turn."""

    namespace: str
    name: str
    uid: str
    tier: Tier
    usage: Usage
    throttled_ratio: float | None = None
    """Share of the last turn's periods in which the pod was throttled."""
    quota_millis: int | None = None
    """CPU quota that the agent set on the pod; None is no limit of ours."""
    idle: bool | None = None
    """Whether the pod's cgroup is in the idle class (cpu.idle)."""


class RungReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rung of the ladder stands. Level 0 is open, `top` is all that it can do."""

    name: str
    level: int
    top: int
    reason: str = ""
    for_seconds: float | None = None
    """How long it has stood there; None while it was never engaged."""
    opens_when: str = ""


class VictimReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that shall give way, or did, and what became of it."""

    namespace: str
    name: str
    uid: str
    way: str
    reason: str
    outcome: str = ""
    """Empty while nothing was tried yet."""
    drill: str = ""


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The drill that runs, or ran last."""

    id: str
    phase: str
    message: str
    caller: str
    reason: str = ""
    kind: str = ""
    """What trouble is made, as `slacktide drill` calls it; empty where an older agent does not say."""


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None is what the card does not tell."""

    index: int
    name: str
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: int | None = None


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent knows and does right now."""

    node: str
    version: str
    at: float
    """Seconds since the epoch of the last turn."""
    turn: int
    turn_seconds: float
    """How long the last turn took."""
    line: str
    """One sentence: what the agent sees and does."""
    capacity: Usage
    node_usage: Usage
    tiers: dict[Tier, Usage]
    pods: list[PodReport]
    ls_pressure: float | None = None
    """Run delay of LS threads per second of LS CPU time, or PSI share; None is unknown."""
    be_quota_millis: int | None = None
    reasons: dict[str, str] = {}
    """Policy name -> why it wants what it wants."""
    skipped: dict[str, str] = {}
    """What this node lacks -> why, such as psi -> 'cgroup v1 has none'."""
    counters: dict[str, int] = {}
    """Drift, vanished pods, spool drops and the like, since the agent started."""
    rungs: list[RungReport] = []
    """The ladder, mildest rung first."""
    closed: str = ""
    """Why nothing more may be sold here; empty when it may."""
    observe_only: bool = False
    """Whether nothing is written: what is said above is what would be done."""
    victims: list[VictimReport] = []
    drill: DrillReport | None = None
    gpus: list[GpuReport] | None = None
    """None where no GPU can be read."""
