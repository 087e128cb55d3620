"""One immutable picture of the node per turn, built from two sets of counters. Pure.

A rate needs one counter, one clock and two samples, see `agent.rates`. A cgroup that was not there in a complete
earlier listing was made since, so its counter began at 0 then. What is read only every few turns is carried by the
sweeps in between, with the reading before it, so that its rate stays until the next one.

The split: LS and BE are sums over pods; SYSTEM = node - LS - BE, never below 0, which holds what is in no pod and
what could not be matched to one. If a living pod of a tier could not be measured, the tier's sum is None and so is
SYSTEM: a hole would read as room. A pod that vanished is left out and counted; its last use falls to SYSTEM for
one turn, which is the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from agent.counters import CpuCounters, CpuKnobs, MemoryReading, NodeCounters, PodReading
from agent.eviction import DrillOrder, EvictorView
from agent.gpu import Gpu
from agent.policy.rung import RungStatus
from agent.pressure import Pressure, Shortage
from agent.rates import MAX_GAP_PERIODS as MAX_GAP_PERIODS
from agent.rates import NO_STALLS, Stalls, gap, io_rate, memory_high_rate, stalls
from agent.reclaim import ReclaimView
from agent.resctrl import RdtReading
from agent.threads import ThreadSweep
from agent.topology import Topology
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier

UNKNOWN = Usage()
NOTHING_KNOWN = Amount()
NOTHING_READ = PodReading()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerIdentity:
    """One container as the API has it. `id` is the runtime's (empty until its status is known).

    `batch_request` and `batch_limit` are its batch resources; a part that it does not state is None.
    """

    name: str
    id: str = ""
    batch_request: Amount = NOTHING_KNOWN
    batch_limit: Amount = NOTHING_KNOWN
    init: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """What the API says of a pod that matters here. `requested` is plain for LS, batch for BE.

    `created_at` is seconds since the epoch (None: not stated). `terminating` is a pod with a deletion timestamp or
    one that ended, `grace_seconds` how long it may take to end (None: not known). `evictable` is false where an
    annotation opts out. `batch_only`: it asks for batch resources and no native CPU or memory, so the kubelet limits
    nothing. `batch_limit` is the sum of its containers' limits, None in a part where any of them has none. `rival` is
    the other system whose node agent it is (`slacktide.rivals`), empty for nearly all.
    """

    namespace: str
    name: str
    uid: str
    tier: Tier
    requested: Amount = NOTHING_KNOWN
    cpu_request_millis: int = 0
    cpu_limit_millis: int | None = None
    memory_limit_bytes: int | None = None
    priority: int = 0
    created_at: float | None = None
    terminating: bool = False
    grace_seconds: float | None = None
    evictable: bool = True
    batch_only: bool = False
    batch_limit: Amount = NOTHING_KNOWN
    containers: tuple[ContainerIdentity, ...] = ()
    rival: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSnapshot:
    """One container cgroup of a pod. `name` is empty where no status of the API matches it (yet), or for a sandbox.

    `knobs`, `throttled_ratio` and `cpuset` are of its own cgroup, as those of the pod.
    """

    group: str
    id: str
    name: str = ""
    knobs: CpuKnobs | None = None
    throttled_ratio: float | None = None
    cpuset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSnapshot:
    """One pod of the node. `group` is its cgroup relative to the mount of the cpu controller.

    `memory` is the whole reading, `memory_high_rate` how often a second it was throttled at memory.high. `io_rate` is
    bytes read and written a second. `psi_*` are shares of the turn in which some task waited. `cpi` is cycles per
    instruction over the last collection. `frozen` is what the freezer says, `cpuset` what the cpuset allows.
    """

    identity: PodIdentity
    group: str
    usage: Usage = UNKNOWN
    throttled_ratio: float | None = None
    knobs: CpuKnobs | None = None
    containers: tuple[ContainerSnapshot, ...] = ()
    memory: MemoryReading | None = None
    memory_high_rate: float | None = None
    io_rate: float | None = None
    pids: int | None = None
    psi_cpu: float | None = None
    psi_memory: float | None = None
    psi_io: float | None = None
    cpi: float | None = None
    frozen: bool | None = None
    cpuset: str | None = None

    @property
    def tier(self) -> Tier:
        """Tier of the pod."""
        return self.identity.tier

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.identity.namespace}/{self.identity.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """The node over one turn, or (`urgent`) the last turn with the pressure of a beat in between.

    `at` is monotonic, `wall` seconds since the epoch. `unmatched` counts pod cgroups that no API pod claims,
    `vanished` pods that went away while they were read. `threads` are those of BE pods; None where nothing was looked
    at. `ladder` is where each rung stood after the last decision. `node_psi_memory` is the share of the turn in which
    some task of the node waited for memory. `drill` is the drill that presses LS now. `shortage` is what
    `agent.policy.shortage` makes of this picture, None where nobody judged it. `disks` are whole disks as MAJ:MIN.
    `tasks` are the threads of the whole node, of `tasks_max` at most. `rivals` are node agents of other systems that
    run outside pods: system -> how it was seen; None while that is not known.
    """

    at: float
    window_seconds: float | None
    capacity: Usage
    node: Usage = UNKNOWN
    tiers: Mapping[Tier, Usage] = field(default_factory=dict)
    pods: tuple[PodSnapshot, ...] = ()
    pressure: Pressure | None = None
    node_busy_ratio: float | None = None
    memory_available_bytes: int | None = None
    steal_ratio: float | None = None
    unmatched: int = 0
    vanished: int = 0
    urgent: bool = False
    threads: ThreadSweep | None = None
    wall: float | None = None
    topology: Topology | None = None
    ladder: Mapping[str, RungStatus] = field(default_factory=dict)
    evictor: EvictorView | None = None
    rdt: RdtReading | None = None
    gpus: tuple[Gpu, ...] | None = None
    node_psi_memory: float | None = None
    node_psi_memory_full: float | None = None
    swap_free_ratio: float | None = None
    drill: DrillOrder | None = None
    shortage: Shortage | None = None
    reclaimer: ReclaimView | None = None
    disks: tuple[str, ...] | None = None
    tasks: int | None = None
    tasks_max: int | None = None
    rivals: Mapping[str, str] | None = field(default_factory=dict)

    split: dict[Tier, tuple[tuple[PodSnapshot, ...], tuple[PodSnapshot, ...]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """What `pods_of` found, with the pods that it looked at: policies ask for it many times in one beat."""

    def of(self, tier: Tier) -> Usage:
        """Usage of a tier; unknown parts are None."""
        return self.tiers.get(tier, UNKNOWN)

    def pods_of(self, tier: Tier) -> tuple[PodSnapshot, ...]:
        """Pods of a tier, in the order of the snapshot."""
        known = self.split.get(tier)
        if known is not None and known[0] is self.pods:
            return known[1]
        pods = tuple(pod for pod in self.pods if pod.identity.tier is tier)
        self.split[tier] = (self.pods, pods)
        return pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One pod cgroup of a listing: identity (path and inode, so that a recreated path is another group).

    `containers` are the cgroups of its containers, not yet named.
    """

    group: str
    inode: int
    uid: str
    containers: tuple[ContainerSnapshot, ...] = ()


Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Everything one turn read: the listing, the counters of each group, the node. `vanished` went away meanwhile.

    What is slow to read comes only every `slow_turns`; `earlier` then has the reading before the present one.
    """

    at: float
    node: NodeCounters | None
    groups: tuple[Found, ...] = ()
    readings: Mapping[Key, PodReading] = field(default_factory=dict)
    earlier: Mapping[Key, PodReading] = field(default_factory=dict)
    slow_turns: int = 1
    vanished: int = 0


def cpu_rate_millis(before: CpuCounters | None, after: CpuCounters, period_seconds: float) -> int | None:
    """Millicores between two readings; None for a reset, no time, or a gap of more than three periods."""
    if before is None:
        return None
    elapsed, used = gap(before.at, after.at, period_seconds), after.usage_ns - before.usage_ns
    if used < 0 or elapsed is None:
        return None
    return round(used / elapsed / 1e6)


def throttled_ratio(before: CpuCounters | None, after: CpuCounters) -> float | None:
    """Share of the periods between two readings that were throttled; 0 when no period passed; None when unknown."""
    if before is None or None in (before.periods, after.periods, before.throttled_periods, after.throttled_periods):
        return None
    assert before.periods is not None
    assert after.periods is not None
    assert before.throttled_periods is not None
    assert after.throttled_periods is not None
    periods, throttled = after.periods - before.periods, after.throttled_periods - before.throttled_periods
    if periods < 0 or throttled < 0:
        return None
    return min(1.0, throttled / periods) if periods else 0.0


def build(
    before: Sweep | None,
    after: Sweep,
    pods: Mapping[str, PodIdentity],
    *,
    period_seconds: float,
    capacity: Usage,
    pressure: Pressure | None = None,
    naming: Naming | None = None,
) -> NodeSnapshot:
    """The snapshot between two sweeps. `pods` maps UID to what the API says; without `before` all rates are None.

    `naming` saves work where it has seen the same before.
    """
    naming = naming or Naming()
    seen: list[PodSnapshot] = []
    unmatched = 0
    listed = {(found.group, found.inode) for found in before.groups} if before else set()
    for found in after.groups:
        identity = pods.get(found.uid)
        reading = after.readings.get((found.group, found.inode))
        if identity is None:
            unmatched += 1
        elif reading is not None:
            containers = naming.of(found, identity)
            seen.append(_pod(before, after, found, reading, identity, containers, listed, period_seconds))
    naming.keep(len(after.groups))
    node, busy, steal = _node(before.node if before else None, after.node, period_seconds)
    ls, be = _total(pod for pod in seen if pod.tier is Tier.LS), _total(pod for pod in seen if pod.tier is Tier.BE)
    stalled = _node_stalls(before, after, period_seconds)
    return NodeSnapshot(
        at=after.at,
        window_seconds=after.at - before.at if before else None,
        capacity=capacity,
        node=node,
        tiers={Tier.LS: ls, Tier.BE: be, Tier.SYSTEM: _rest(node, ls, be)},
        pods=tuple(seen),
        pressure=pressure,
        node_busy_ratio=busy,
        memory_available_bytes=after.node.memory_available_bytes if after.node else None,
        steal_ratio=steal,
        unmatched=unmatched,
        vanished=after.vanished,
        node_psi_memory=stalled.memory,
        node_psi_memory_full=stalled.memory_full,
        swap_free_ratio=_swap_free(after.node),
        tasks=after.node.tasks if after.node else None,
        tasks_max=after.node.tasks_max if after.node else None,
    )


def _pod(
    before: Sweep | None,
    after: Sweep,
    found: Found,
    reading: PodReading,
    identity: PodIdentity,
    containers: tuple[ContainerSnapshot, ...],
    listed: Set[Key],
    period_seconds: float,
) -> PodSnapshot:
    key = (found.group, found.inode)
    old = _baseline(before, key, reading.cpu, listed)
    slow = after.earlier.get(key) or (before.readings.get(key) if before else None) or NOTHING_READ
    slow_seconds = period_seconds * after.slow_turns
    stalled = stalls(slow.psi, reading.psi, slow_seconds)
    return PodSnapshot(
        identity=identity,
        group=found.group,
        usage=Usage(
            cpu_millis=cpu_rate_millis(old, reading.cpu, period_seconds) if reading.cpu else None,
            memory_bytes=_working_set(reading.memory),
        ),
        throttled_ratio=throttled_ratio(old, reading.cpu) if reading.cpu else None,
        knobs=reading.knobs,
        containers=containers,
        memory=reading.memory,
        memory_high_rate=memory_high_rate(slow.memory, reading.memory, slow_seconds),
        io_rate=io_rate(slow.io, reading.io, slow_seconds),
        pids=reading.pids.current if reading.pids else None,
        psi_cpu=stalled.cpu,
        psi_memory=stalled.memory,
        psi_io=stalled.io,
        frozen=reading.frozen,
        cpuset=reading.cpuset,
    )


class Naming:
    """Containers with their names, as made last: neither the listing nor the API says something new every turn."""

    def __init__(self) -> None:
        self._made: dict[Key, tuple[Found, PodIdentity, tuple[ContainerSnapshot, ...]]] = {}

    def of(self, found: Found, identity: PodIdentity) -> tuple[ContainerSnapshot, ...]:
        """Those of one pod; see `named`."""
        key = (found.group, found.inode)
        made = self._made.get(key)
        if made is None or made[0] is not found or made[1] is not identity:
            made = self._made[key] = found, identity, named(found.containers, identity)
        return made[2]

    def keep(self, pods: int) -> None:
        """Forget all where much more is remembered than there are pods."""
        if len(self._made) > 2 * pods:
            self._made.clear()


def named(containers: tuple[ContainerSnapshot, ...], identity: PodIdentity) -> tuple[ContainerSnapshot, ...]:
    """Containers with the names that the API gives their ids; others (a sandbox, a newcomer) stay without one."""
    names = {container.id: container.name for container in identity.containers if container.id}
    if not names:
        return containers
    return tuple(
        ContainerSnapshot(
            group=one.group,
            id=one.id,
            name=names[one.id],
            knobs=one.knobs,
            throttled_ratio=one.throttled_ratio,
            cpuset=one.cpuset,
        )
        if one.id in names
        else one
        for one in containers
    )


def _node_stalls(before: Sweep | None, after: Sweep, period_seconds: float) -> Stalls:
    if before is None or before.node is None or after.node is None:
        return NO_STALLS
    return stalls(before.node.psi, after.node.psi, period_seconds)


def _swap_free(node: NodeCounters | None) -> float | None:
    """Share of swap that is free; None without swap, where nothing can run out."""
    if node is None or not node.swap_total_bytes or node.swap_free_bytes is None:
        return None
    return min(1.0, node.swap_free_bytes / node.swap_total_bytes)


def _baseline(before: Sweep | None, key: Key, now: CpuCounters | None, listed: Set[Key]) -> CpuCounters | None:
    """The earlier counters of a group; a group made since the earlier listing began at 0 then."""
    if before is None or now is None:
        return None
    reading = before.readings.get(key)
    if reading is not None:
        return reading.cpu
    if key in listed:
        return None
    return CpuCounters(at=before.at, usage_ns=0, periods=0, throttled_periods=0, throttled_ns=0)


def _working_set(memory: MemoryReading | None) -> int | None:
    return memory.working_set_bytes if memory else None


def _total(pods: Iterable[PodSnapshot]) -> Usage:
    cpu: int | None = 0
    memory: int | None = 0
    for pod in pods:
        cpu = None if cpu is None or pod.usage.cpu_millis is None else cpu + pod.usage.cpu_millis
        memory = None if memory is None or pod.usage.memory_bytes is None else memory + pod.usage.memory_bytes
    return Usage(cpu_millis=cpu, memory_bytes=memory)


def _rest(node: Usage, ls: Usage, be: Usage) -> Usage:
    return Usage(
        cpu_millis=_minus(node.cpu_millis, ls.cpu_millis, be.cpu_millis),
        memory_bytes=_minus(node.memory_bytes, ls.memory_bytes, be.memory_bytes),
    )


def _minus(whole: int | None, *parts: int | None) -> int | None:
    if whole is None:
        return None
    for part in parts:
        if part is None:
            return None
        whole -= part
    return max(0, whole)


def _node(
    before: NodeCounters | None, after: NodeCounters | None, period_seconds: float
) -> tuple[Usage, float | None, float | None]:
    """Usage of the node, the share of its CPUs that is busy or stolen, and what of it is stolen."""
    if after is None:
        return UNKNOWN, None, None
    memory = (
        after.capacity_memory_bytes - after.memory_available_bytes if after.memory_available_bytes is not None else None
    )
    busy = busy_millis(before, after, period_seconds)
    steal = _steal(before, after, period_seconds)
    ratio = min(1.0, busy / after.capacity_cpu_millis + (steal or 0.0)) if busy is not None else None
    return Usage(cpu_millis=busy, memory_bytes=memory), ratio, steal


def busy_millis(before: NodeCounters | None, after: NodeCounters, period_seconds: float) -> int | None:
    """Millicores that all CPUs were busy between two readings; None as for any rate."""
    if before is None:
        return None
    elapsed, busy = gap(before.at, after.at, period_seconds), after.busy_seconds - before.busy_seconds
    if busy < 0 or elapsed is None:
        return None
    return round(busy / elapsed * 1000)


def _steal(before: NodeCounters | None, after: NodeCounters, period_seconds: float) -> float | None:
    elapsed = gap(before.at, after.at, period_seconds) if before else None
    if before is None or elapsed is None or after.steal_seconds < before.steal_seconds:
        return None
    return min(1.0, (after.steal_seconds - before.steal_seconds) / elapsed / (after.capacity_cpu_millis / 1000))
