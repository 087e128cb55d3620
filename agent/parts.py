"""The parts of an agent that work beside the control loop, made from the settings, started and stopped together.

What needs a process of its own (ballast, the load of drills) is started when this is made: before there are threads
or gRPC channels, since nothing may fork after those.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from agent.act.audit import Audit
from agent.act.ballast import Ballast, BallastView
from agent.act.coresched import CoreScheduler
from agent.act.drill_clerk import Streams
from agent.act.drill_load import DrillLoad
from agent.act.eviction_log import EvictionLog
from agent.act.evictor import Evictor, bounds_of
from agent.act.gpu_publisher import GpuPublisher
from agent.act.guard import Guard
from agent.act.ledger import Ledger
from agent.act.pod_killer import pod_killer
from agent.act.reclaim import Reclaimer
from agent.act.resctrl import RdtWriter, remove_all
from agent.capabilities import Capabilities
from agent.collectors import Collectors
from agent.drilling import Drilling
from agent.effects import Effects, Parts
from agent.host.cgroup import CgroupLister, PodGroup, threads_of
from agent.host.reclaim import ReclaimFile
from agent.host.resctrl.mount import RdtPlaces
from agent.policy.cache_bandwidth import CacheBandwidth
from agent.settings import AgentSettings
from slacktide.cluster import Client, EventRecorder
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Hierarchy
from slacktide.observe import Daemon, get_logger
from slacktide.tier import Tier

_LOG: Final = get_logger("agent")
_STOP_SECONDS: Final = 2.0


class Helpers:
    """Processes that must be there before the first thread: ballast and load, each only where it was asked for."""

    def __init__(
        self, settings: AgentSettings, hierarchy: Hierarchy, lister: CgroupLister, cpus: tuple[int, ...]
    ) -> None:
        wanted = settings.spread.ballast and not settings.observe_only
        self.ballast = Ballast(hierarchy, lister, settings.proc_root) if wanted else None
        if self.ballast is not None and not self.ballast.start(cpus):
            _LOG.warning("no ballast", reason=self.ballast.why_not)
        self.load = DrillLoad() if settings.drill.load else None

    def close(self) -> None:
        """End them."""
        if self.ballast is not None:
            self.ballast.stop()
        if self.load is not None:
            self.load.close()


class AgentParts:
    """Everything beside the loop. `counters` has those of all parts, by name."""

    def __init__(
        self,
        daemon: Daemon[AgentSettings],
        node: str,
        boot_id: str,
        hierarchy: Hierarchy,
        lister: CgroupLister,
        capabilities: Capabilities,
        client: Client,
        helpers: Helpers,
        guard: Guard | None,
        streams: Streams,
    ) -> None:
        self._daemon = daemon
        self._capabilities = capabilities
        self._helpers = helpers
        settings = daemon.settings
        self._recorder = EventRecorder(client, "slacktide-agent", node)
        self._audit = Audit(settings.state_dir, settings.evictor.audit_bytes)
        ledger = Ledger(settings.state_dir, boot_id, time.monotonic, time.time)
        if ledger.problem:
            _LOG.warning("spent eviction budgets are not known", problem=ledger.problem)
        self._log = EvictionLog(self._recorder, self._audit, ledger, boot_id, clock=time.monotonic, wall=time.time)
        self._evictor = Evictor(
            client,
            pod_killer(hierarchy),
            self._log,
            lambda: daemon.settings.evictor,
            lambda: bounds_of(daemon.settings.evict, daemon.settings.kill),
            dry_run=lambda: self._observes,
            jitter=random.random,
        )
        self._reclaimer: Reclaimer | None = None
        if capabilities.reclaim and not self._observes:
            self._reclaimer = Reclaimer(ReclaimFile(hierarchy).reclaim)
        self._rdt = self._make_rdt(lister)
        self.collectors = Collectors(lambda: daemon.settings.collect, hierarchy, settings.proc_root, settings.sys_root)
        collect = settings.collect
        self._gpu_notes: GpuPublisher | None = None
        if collect.gpu and collect.gpu_publish and not self._observes:
            self._gpu_notes = GpuPublisher(client, node, self.collectors.gpus, collect.gpu_publish_seconds)
        self._cookies = CoreScheduler(settings.state_dir)
        self._lister = lister
        self.drilling = Drilling(daemon, node, client, self._recorder, helpers.load, guard, streams)
        self.effects = Effects(
            Parts(
                rdt=self._rdt,
                evictor=self._evictor,
                reclaimer=self._reclaimer,
                ballast=helpers.ballast,
                drills=self.drilling.board,
                load=helpers.load,
                cookies=self._cookies,
                tids=self._tids,
                collectors=self.collectors,
                outside=self.drilling.clerk.outside,
                lifted=self.drilling.lifted,
            )
        )

    def _make_rdt(self, lister: CgroupLister) -> RdtWriter | None:
        """The writer of resctrl; without its policy only what an earlier agent left is removed."""
        settings = self._daemon.settings
        places = RdtPlaces(mounts=f"{settings.proc_root}/self/mounts")
        if CacheBandwidth.name in settings.policies:
            period = settings.cache_bandwidth.read_seconds
            return RdtWriter(places, lister, period_seconds=period, observe=self._observes)
        if not self._observes:
            for problem in remove_all(places):
                _LOG.warning("groups of resctrl stay behind", problem=problem)
        return None

    @property
    def _observes(self) -> bool:
        return self._daemon.settings.observe_only or self._capabilities.observe_only

    def start(self) -> None:
        """Start all threads. Raises SettingsError where drills cannot be served."""
        self.collectors.start()
        self._evictor.start()
        if self._gpu_notes is not None:
            self._gpu_notes.start()
        if self._reclaimer is not None:
            self._reclaimer.start()
        if self._rdt is not None:
            self._rdt.start()
        self.drilling.start()

    def stop(self, *, restore: bool) -> None:
        """End them within their deadlines; with `restore` groups of resctrl are removed."""
        self.drilling.refuse()
        self._evictor.stop()
        if self._gpu_notes is not None and not self._gpu_notes.stop(_STOP_SECONDS):
            _LOG.warning("a write of the GPU annotation does not return; it is left behind")
        self.collectors.stop()
        if self._reclaimer is not None and not self._reclaimer.stop(_STOP_SECONDS):
            _LOG.warning("a write to memory.reclaim does not return; it is left behind")
        if self._rdt is not None and not self._rdt.stop(restore=restore):
            _LOG.warning("resctrl does not answer: its groups are left as they are")
        if restore:
            self._take_cookies()
        self._cookies.close()
        self._helpers.close()
        self.drilling.stop()
        self._recorder.stop(_STOP_SECONDS)

    def _tids(self, groups: Sequence[PodGroup]) -> list[int]:
        """Ids of all threads in these pods and their containers."""
        lister = self._lister
        if lister.version is None:
            return []
        found: list[int] = []
        for group in groups:
            inner = tuple(lister.absolute(container.group) for container in group.containers)
            found.extend(threads_of(lister.absolute(group.group), lister.version, inner))
        return found

    def _take_cookies(self) -> None:
        """Take the cookies of ours from every thread of a pod."""
        try:
            problems = self._cookies.want(False, lambda: {Tier.BE: self._tids(self._lister.pods())})
        except KernelError as error:
            problems = [f"cgroups cannot be listed: {error}"]
        for problem in problems:
            _LOG.warning("core scheduling", problem=problem)

    def burnt(self) -> Mapping[int, float]:
        """CPU seconds that ballast used since start, by CPU."""
        return self._helpers.ballast.used() if self._helpers.ballast is not None else {}

    def burnt_seconds(self) -> float:
        """The same for all CPUs."""
        return math.fsum(self.burnt().values())

    def ballast(self) -> BallastView | None:
        """What runs and what it costs; None where it was not asked for."""
        return self._helpers.ballast.view() if self._helpers.ballast is not None else None

    def why_not(self) -> Mapping[str, str]:
        """What beside the cgroups cannot be read or had now, and why."""
        ballast = self.ballast()
        missing = {"ballast": ballast.why_not} if ballast is not None and ballast.why_not else {}
        return {**self.collectors.why_not(), **missing}

    @property
    def audit_lost(self) -> int:
        """Audit lines that the disk refused."""
        return self._audit.lost

    def counters(self) -> Mapping[str, int]:
        """Totals since start."""
        lost = {"audit_lost": self.audit_lost}
        resctrl = self._rdt.counters if self._rdt is not None else {}
        gpus = self._gpu_notes.counters if self._gpu_notes is not None else {}
        own = {**self._log.counters, **self.drilling.counters(), **self.collectors.counters(), **self._cookies.counters}
        return {**own, **resctrl, **gpus, **lost}
