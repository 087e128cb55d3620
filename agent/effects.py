"""What a plan leads to beside knobs and masks, and what the next snapshot knows of it.

Each part works on a thread (or process) of its own and is left a wish, of which the newest counts; none is waited for.
What is not there on this node is None and simply has no say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from agent.capabilities import Knob
from agent.counters import NodeCounters
from agent.drill import Drill, Kind, Outside, Seen, raised
from agent.drill_board import DrillBoard, for_real
from agent.eviction import EvictorView, Victim
from agent.gpu import Gpu
from agent.host.cgroup import PodGroup
from agent.policy.base import Plan, Reclaim
from agent.pressure import Pressure
from agent.reclaim import ReclaimView
from agent.resctrl import RdtReading, Schemata
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from agent.threads import Mask
from agent.topology import Topology
from slacktide.observe import get_logger
from slacktide.status import Usage
from slacktide.tier import Tier

_LOG: Final = get_logger("agent.effects")
_NO_CPUS: Final[Mask] = frozenset()


class Rdt(Protocol):
    """Cache and bandwidth of the class of BE."""

    def want(self, schemata: Schemata | None, pods: Sequence[PodGroup] | None) -> None:
        """What is wanted from now on."""

    def view(self) -> RdtReading | None:
        """The last reading."""


class Evictor(Protocol):
    """Makes pods give way."""

    def want(self, victims: tuple[Victim, ...], pods: Mapping[str, PodIdentity], view: EvictorView | None) -> None:
        """Those that shall go, in this order, as decided with `view` at hand; `pods` are all of the node by UID."""

    def view(self) -> EvictorView:
        """What was done."""


class Reclaimer(Protocol):
    """Asks the kernel to take memory back."""

    def want(self, reclaims: Sequence[Reclaim], pods: Sequence[PodGroup]) -> None:
        """The newest asks; `pods` are the BE pods that are here."""

    def view(self) -> ReclaimView:
        """What was done so far."""


class Ballast(Protocol):
    """Idle-class threads pinned to CPUs."""

    def want(self, cpus: Mask) -> None:
        """CPUs that shall carry one."""

    def used(self) -> Mapping[int, float]:
        """CPU seconds burnt since start, by CPU."""


class Cookies(Protocol):
    """Core scheduling: one cookie a tier."""

    def want(self, on: bool, threads: Callable[[], Mapping[Tier, Iterable[int]]]) -> list[str]:
        """Give each tier its cookie, or take ours away; sentences about what went wrong."""


class Load(Protocol):
    """Burns CPU for drills."""

    def start(self, millis: int, seconds: float) -> None:
        """Burn so much for at most so long."""

    def stop(self) -> None:
        """Burn nothing."""

    def used_seconds(self) -> float:
        """CPU seconds burnt since start."""


class Readings(Protocol):
    """What is read on threads of its own."""

    def topology(self) -> Topology:
        """CPUs as last read."""

    def disks(self) -> tuple[str, ...] | None:
        """Whole disks as MAJ:MIN."""

    def rivals(self) -> Mapping[str, str] | None:
        """Agents of other systems outside pods: system -> how it was seen; None while that is not known."""

    def gpus(self) -> tuple[Gpu, ...] | None:
        """GPUs, None where none can be read."""

    def cpi(self) -> Mapping[str, float]:
        """Cycles per instruction by UID."""

    def count(self, pods: Sequence[PodSnapshot]) -> None:
        """Pods whose cycles and instructions are to be counted from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What this node has. `collectors` give their newest readings."""

    rdt: Rdt | None = None
    evictor: Evictor | None = None
    reclaimer: Reclaimer | None = None
    ballast: Ballast | None = None
    drills: DrillBoard | None = None
    load: Load | None = None
    cookies: Cookies | None = None
    tids: Callable[[Sequence[PodGroup]], Iterable[int]] = lambda _groups: ()
    """Ids of all threads in these pods."""
    collectors: Readings | None = None
    outside: Callable[[], Outside | None] = lambda: None
    """The last look beyond the node, while a drill needs one."""
    lifted: Callable[[], int] = lambda: 0
    """How often the watchdog lifted hard limits."""


_RAISES: Final = frozenset({Kind.PRESSURE, Kind.AGENT_LOSS})
"""Kinds of drills that raise the signal of LS pressure."""


class Effects:
    """Used by the control thread alone."""

    def __init__(self, parts: Parts | None = None) -> None:
        self._parts = parts or Parts()
        self._measured: Pressure | None = None
        self._seen: Seen | None = None
        self._loaded: str | None = None
        self._burnt: tuple[float, float] | None = None

    def surround(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """The snapshot with all that is known beside the cgroups."""
        parts = self._parts
        drill = self._drill()
        return replace(
            self._collected(snapshot),
            evictor=parts.evictor.view() if parts.evictor else None,
            reclaimer=parts.reclaimer.view() if parts.reclaimer else None,
            rdt=parts.rdt.view() if parts.rdt else None,
            drill=drill.for_policies if drill else None,
        )

    def _collected(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        readings = self._parts.collectors
        if readings is None:
            return snapshot
        readings.count(snapshot.pods_of(Tier.LS))
        cpi = readings.cpi()
        pods = tuple(
            replace(pod, cpi=cpi[pod.identity.uid]) if pod.identity.uid in cpi else pod for pod in snapshot.pods
        )
        return replace(
            snapshot,
            pods=pods,
            topology=readings.topology(),
            disks=readings.disks(),
            gpus=readings.gpus(),
            rivals=readings.rivals(),
        )

    def pressure(self, measured: Pressure | None) -> Pressure | None:
        """LS pressure as policies shall see it: a drill's signal in place of what is measured."""
        self._measured = measured
        drill = self._drill()
        if drill is None or not drill.pressing or drill.order.kind not in _RAISES:
            return measured
        return raised(measured.window_seconds if measured is not None else 1.0)

    def without_ballast(self, node: NodeCounters | None) -> NodeCounters | None:
        """Node totals without what ballast burns: it is nobody's need, and gives way to everybody."""
        if node is None or self._parts.ballast is None:
            return node
        return replace(node, busy_seconds=node.busy_seconds - math.fsum(self._parts.ballast.used().values()))

    def for_sample(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """The snapshot as the predictor shall see it: LS pressure as it is measured, without what a drill burns.

        A turn in which the load began or ended has no such figure, and its SYSTEM use is not known.
        """
        if snapshot.pressure is not None and snapshot.pressure.kind == "drill":
            snapshot = replace(snapshot, pressure=self._measured)
        if self._parts.load is None or (self._loaded is None and self._burnt is None):
            return snapshot
        before, now = self._burnt, (snapshot.at, self._parts.load.used_seconds())
        self._burnt = now if self._loaded is not None else None
        system = snapshot.of(Tier.SYSTEM)
        use = None
        if before is not None and system.cpu_millis is not None and now[0] > before[0]:
            use = max(0, system.cpu_millis - round((now[1] - before[1]) / (now[0] - before[0]) * 1000))
        tiers = {**snapshot.tiers, Tier.SYSTEM: Usage(cpu_millis=use, memory_bytes=system.memory_bytes)}
        return replace(snapshot, tiers=tiers)

    @property
    def drilling(self) -> bool:
        """Whether a drill runs."""
        return self._drill() is not None

    def carry_out(
        self,
        plan: Plan,
        snapshot: NodeSnapshot,
        groups: Mapping[str, PodGroup],
        identities: Mapping[str, PodIdentity],
    ) -> None:
        """Leave each part what the plan wants of it.

        `groups` are the pods that API and kernel agree on, by path; `identities` all that the API has, by UID.
        """
        parts = self._parts
        be = [groups[pod.group] for pod in snapshot.pods_of(Tier.BE) if pod.group in groups]
        if parts.rdt is not None:
            parts.rdt.want(plan.schemata, be)
        if parts.reclaimer is not None:
            parts.reclaimer.want(plan.reclaims, be)
        if parts.ballast is not None:
            parts.ballast.want(plan.ballast or _NO_CPUS)
        if parts.cookies is not None:
            self._share_cores(parts.cookies, plan, snapshot, groups)
        self.evict(plan.victims, snapshot, identities)

    def _share_cores(
        self, cookies: Cookies, plan: Plan, snapshot: NodeSnapshot, groups: Mapping[str, PodGroup]
    ) -> None:
        def threads() -> Mapping[Tier, Iterable[int]]:
            listed = {
                tier: [groups[pod.group] for pod in snapshot.pods_of(tier) if pod.group in groups]
                for tier in (Tier.LS, Tier.BE)
            }
            return {tier: self._parts.tids(pods) for tier, pods in listed.items()}

        for problem in cookies.want(plan.cookies, threads):
            _LOG.warning("core scheduling", problem=problem)

    def evict(self, victims: tuple[Victim, ...], snapshot: NodeSnapshot, identities: Mapping[str, PodIdentity]) -> None:
        """Leave the evictor these victims, decided on this snapshot; those of a dry run stay here.

        It knows pods by their UID as the API writes it, since it names them to the API.
        """
        if self._parts.evictor is not None:
            known = {identity.uid: identity for identity in identities.values()}
            self._parts.evictor.want(for_real(victims, self._drill()), known, snapshot.evictor)

    def decided(self, plan: Plan, snapshot: NodeSnapshot, be_limit_millis: int | None) -> None:
        """After each decision and what came of it: a drill sees how the node answers, and its load follows it.

        `be_limit_millis` is the limit on BE that is in force now.
        """
        board = self._parts.drills
        if board is None or board.active() is None:
            self._unload()
            return
        view = self._parts.evictor.view() if self._parts.evictor else EvictorView()
        self._seen = Seen(
            at=snapshot.at,
            rungs=plan.rungs,
            be_limit_millis=be_limit_millis,
            victims=plan.victims,
            attempts=view.attempts,
            memory_held=any(knob is Knob.MEMORY_HIGH for _, knob in plan.settings),
            class_held=plan.schemata is not None,
            be_here=bool(snapshot.pods_of(Tier.BE)),
            present=frozenset(pod.identity.uid for pod in snapshot.pods),
            pressure=self._measured.value if self._measured is not None else None,
            lifted=self._parts.lifted(),
            outside=self._parts.outside(),
        )
        board.observe(self._seen)
        drill = board.active()
        if drill is not None and drill.pressing and drill.order.kind is Kind.LOAD:
            self._burn(drill, snapshot)
        else:
            self._unload()

    @property
    def silenced(self) -> bool:
        """Whether a drill wants the control loop to be silent."""
        drill = self._drill()
        return drill is not None and drill.silences

    def keep_silent(self, now: float) -> None:
        """In place of beats and turns while a drill silences them: it still has to end, and sees the watchdog act."""
        board, seen = self._parts.drills, self._seen
        if board is None or seen is None:
            return
        lifted = self._parts.lifted()
        limit = None if lifted > seen.lifted else seen.be_limit_millis
        # Nobody reads anything meanwhile: what was seen last stands, save for what the watchdog does.
        board.observe(replace(seen, at=now, lifted=lifted, be_limit_millis=limit, pressure=None))

    def _drill(self) -> Drill | None:
        return self._parts.drills.active() if self._parts.drills else None

    def _burn(self, drill: Drill, snapshot: NodeSnapshot) -> None:
        """Start the load of a drill once: the asked share of the CPU that LS and SYSTEM leave idle."""
        if self._parts.load is None or self._loaded == drill.order.id:
            return
        capacity = snapshot.capacity.cpu_millis
        needed = [snapshot.of(tier).cpu_millis for tier in (Tier.LS, Tier.SYSTEM)]
        if capacity is None or None in needed:
            return
        idle = max(0, capacity - sum(use for use in needed if use is not None))
        self._parts.load.start(idle * drill.order.intensity_percent // 100, drill.order.duration_seconds)
        self._loaded = drill.order.id

    def _unload(self) -> None:
        if self._loaded is not None and self._parts.load is not None:
            self._parts.load.stop()
        self._loaded = None
