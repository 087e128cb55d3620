"""In-memory twins of what the loop talks to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agent.act.executor import Outcome
from agent.capabilities import Capabilities, Knob
from agent.counters import CpuCounters, CpuKnobs, MemoryReading, NodeCounters, PodReading, RunDelay
from agent.host.cgroup import PodGroup
from agent.snapshot import Found, Sweep
from slacktide.errors import KernelError
from slacktide.objects import ObjectMeta, Pod, PodStatus

CAPABLE = Capabilities(
    mode="v1", cpu_version=1, writable=frozenset({Knob.IDLE, Knob.WEIGHT, Knob.QUOTA}), run_delay=True, affinity=True
)


class FakeClock:
    """Time that only moves when told."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeHost:
    """A node with two CPUs whose pods use CPU at set rates (cores)."""

    clock: FakeClock
    rates: dict[str, float] = field(default_factory=dict)
    other: float = 0.05
    memory_available: int | None = 800
    blind: bool = False
    delay_rate: float = 0.0
    last_groups: tuple[PodGroup, ...] = ()
    followed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.begin = self.clock.now
        self.used: Counter[str] = Counter()
        self.busy = 1000.0
        self.delayed = 0.0
        self.ran = 0.0
        self.moved = self.clock.now

    def move(self, seconds: float) -> None:
        self.clock.pass_(seconds)
        for uid, rate in self.rates.items():
            self.used[uid] += int(rate * seconds * 1e9)
        self.busy += (sum(self.rates.values()) + self.other) * seconds
        self.ran += sum(self.rates[uid] for uid in self.followed if uid in self.rates) * seconds
        self.delayed += self.delay_rate * seconds

    def sweep(self) -> Sweep:
        if self.blind:
            raise KernelError("/cg", 5, "Input/output error")
        now = self.clock.now
        groups = tuple(Found(group=f"kubepods/{uid}", inode=1, uid=uid) for uid in self.rates)
        self.last_groups = tuple(PodGroup(found.group, found.inode, found.uid) for found in groups)
        readings = {
            (found.group, 1): PodReading(
                cpu=CpuCounters(at=now, usage_ns=self.used[found.uid]),
                memory=MemoryReading(working_set_bytes=10),
                knobs=CpuKnobs(),
            )
            for found in groups
        }
        return Sweep(at=now, node=self.node(), groups=groups, readings=readings)

    def node(self) -> NodeCounters:
        return NodeCounters(
            at=self.clock.now,
            capacity_cpu_millis=2000,
            busy_seconds=self.busy,
            steal_seconds=0.0,
            capacity_memory_bytes=1000,
            memory_available_bytes=self.memory_available,
        )

    def cpu_psi(self, group):
        return None

    def run_delay(self) -> RunDelay:
        times = {7: (int(self.ran * 1e9), int(self.delayed * 1e9))}
        return RunDelay(at=self.clock.now, times=times, threads=1)

    def follow(self, groups) -> None:
        self.followed = tuple(group.uid for group in groups)

    def node_beat(self):
        return self.clock.now, self.busy, self.memory_available


class FakeExecutor:
    """Remembers plans."""

    def __init__(self) -> None:
        self.plans = []
        self.groups = []
        self.fail: Exception | None = None
        self.masks = []

    def apply(self, plan, groups, identities, *, whole=True):
        if self.fail is not None:
            raise self.fail
        self.plans.append(plan)
        self.groups.append(set(groups))
        return Outcome()

    def place(self, plan, groups, identities):
        self.masks.append(plan)
        return Outcome()


class FakePods:
    """A pod source: what an informer would hold."""

    def __init__(self, *pods: Pod, synced: bool = True) -> None:
        self.pods = list(pods)
        self.synced = synced

    def items(self) -> tuple[Pod, ...]:
        return tuple(self.pods)


def pod(uid: str, tier: str, phase: str = "Running", **spec) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="d", uid=uid, labels={"slacktide.io/tier": tier}),
        status=PodStatus(phase=phase),
        **spec,
    )
