"""The slow collectors of one agent, each a source with a thread of its own; the control loop takes the newest value."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from agent.collect import CollectSettings
from agent.gpu import Gpu
from agent.host.disks import read_disks
from agent.host.nvml import NvmlReader
from agent.host.perf import PerfReader, PerfTarget
from agent.host.rivals import foreign_agents
from agent.host.source import Source
from agent.host.topology import TopologyReader
from agent.snapshot import PodSnapshot
from agent.topology import Topology
from slacktide.kernel.hierarchy import Hierarchy
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.collect")
_MACHINE_SECONDS: Final = 10.0
_MACHINE_TIMEOUT_SECONDS: Final = 5.0
_DISKS_SECONDS: Final = 60.0
_RIVALS_SECONDS: Final = 30.0
_GPU_TIMEOUT_SECONDS: Final = 10.0
_PERF_MARGIN_SECONDS: Final = 10.0
_BACKOFF_MAX_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 1.0


class Collectors:
    """`start` and `stop` once each; the rest from the control thread, without waiting."""

    def __init__(
        self, settings: Callable[[], CollectSettings], hierarchy: Hierarchy, proc_root: str, sys_root: str
    ) -> None:
        first = settings()
        machine = TopologyReader(sys_root)
        # Policies place threads from the first turn on, so this one is read before there is a thread for it.
        self._first = machine.read()
        self._topology = Source("topology", machine.read, _MACHINE_SECONDS, timeout_seconds=_MACHINE_TIMEOUT_SECONDS)
        self._disks = Source(
            "disks",
            lambda: read_disks(sys_root),
            _DISKS_SECONDS,
            timeout_seconds=_MACHINE_TIMEOUT_SECONDS,
            longest_seconds=_BACKOFF_MAX_SECONDS,
            absent=lambda: f"{sys_root}/block cannot be listed",
        )
        self._rivals = Source(
            "rivals", lambda: foreign_agents(proc_root), _RIVALS_SECONDS, timeout_seconds=_MACHINE_TIMEOUT_SECONDS
        )
        self._perf: PerfReader | None = None
        self._counters: Source[Mapping[str, float]] | None = None
        if first.perf:
            self._perf, self._counters = self._make_perf(settings, hierarchy)
        self._gpus = self._make_gpus(first, proc_root) if first.gpu else None

    def _make_perf(
        self, settings: Callable[[], CollectSettings], hierarchy: Hierarchy
    ) -> tuple[PerfReader, Source[Mapping[str, float]]]:
        stopping = threading.Event()
        mount = hierarchy.controllers.get("perf_event")
        reader = PerfReader(mount, lambda: self.topology().ids, settings, wait=stopping.wait)
        source = Source(
            "perf",
            reader.read,
            settings().perf_seconds,
            timeout_seconds=settings().perf_window_seconds + _PERF_MARGIN_SECONDS,
            longest_seconds=_BACKOFF_MAX_SECONDS,
            stopping=stopping,
        )
        return reader, source

    def _make_gpus(self, settings: CollectSettings, proc_root: str) -> Source[tuple[Gpu, ...]]:
        reader = NvmlReader(proc_root)
        return Source(
            "gpu",
            reader.read,
            settings.gpu_seconds,
            timeout_seconds=_GPU_TIMEOUT_SECONDS,
            longest_seconds=_BACKOFF_MAX_SECONDS,
            absent=lambda: reader.why_not,
        )

    def _sources(self) -> list[Source[Any]]:
        every = (self._topology, self._disks, self._rivals, self._counters, self._gpus)
        return [source for source in every if source is not None]

    def start(self) -> None:
        """Start all threads."""
        for source in self._sources():
            source.start()

    def stop(self) -> None:
        """End them; one that hangs in a driver is left behind."""
        for source in self._sources():
            if not source.stop(_STOP_SECONDS):
                _LOG.warning("a source does not end; it is left behind", source=source.name)

    def topology(self) -> Topology:
        """CPUs as last read."""
        return self._topology.latest() or self._first

    def disks(self) -> tuple[str, ...] | None:
        """Whole disks as MAJ:MIN."""
        return self._disks.latest()

    def rivals(self) -> Mapping[str, str] | None:
        """Agents of other systems outside pods: system -> how it was seen; None while that is not known."""
        return self._rivals.latest()

    def gpus(self) -> tuple[Gpu, ...] | None:
        """GPUs; None where there are none to read, or they do not answer."""
        return self._gpus.latest() if self._gpus is not None else None

    def cpi(self) -> Mapping[str, float]:
        """Cycles per instruction by UID, as far as they are known now."""
        return (self._counters.latest() if self._counters is not None else None) or {}

    def count(self, pods: Sequence[PodSnapshot]) -> None:
        """The pods whose cycles and instructions are to be counted from now on."""
        if self._perf is not None:
            self._perf.want([PerfTarget(pod.identity.uid, pod.group) for pod in pods])

    def why_not(self) -> Mapping[str, str]:
        """What cannot be read now, and why."""
        return {source.name: source.why_not for source in self._sources() if source.why_not}

    def counters(self) -> Mapping[str, int]:
        """Totals over all sources since start."""
        names = ("reads", "failures", "hangs")
        return {f"source_{name}": sum(source.counters[name] for source in self._sources()) for name in names}
