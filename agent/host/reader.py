"""One sweep over the node: every pod cgroup's counters and the node totals, as plain values.

A group that vanishes while it is read is counted and left out. A part of a living group that cannot be read is
None. Nothing is caught beyond kernel errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from agent.counters import CpuCounters, CpuKnobs, MemoryReading, NodeCounters, PodReading, PsiTotals
from agent.host import cpu, psi
from agent.host.cgroup import CgroupLister, PodGroup, open_group, threads_of
from agent.host.memory import read_memory
from agent.host.proc import Proc
from agent.snapshot import Found, Key, Sweep
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Hierarchy, Version


class HostReader:
    """Reads pods through `lister` and the node through `proc`. `clock` is monotonic seconds."""

    def __init__(self, hierarchy: Hierarchy, lister: CgroupLister, proc: Proc, clock: Callable[[], float]) -> None:
        self._hierarchy = hierarchy
        self._lister = lister
        self._proc = proc
        self._clock = clock
        self._half_made: set[Key] = set()
        self.last_groups: tuple[PodGroup, ...] = ()

    def sweep(self) -> Sweep:
        """List all groups and read each. Raises a KernelError when the cgroup root itself cannot be listed."""
        at = self._clock()
        groups = self._lister.pods()
        found: list[Found] = []
        readings: dict[Key, PodReading] = {}
        vanished = 0
        half_made = self._half_made_now(groups)
        for group in groups:
            if (group.group, group.inode) in half_made:
                continue
            try:
                readings[(group.group, group.inode)] = self._read(group)
            except Gone:
                vanished += 1
                continue
            except KernelError:
                readings[(group.group, group.inode)] = PodReading()
            found.append(Found(group=group.group, inode=group.inode, uid=group.uid))
        self.last_groups = groups
        return Sweep(at=at, node=self._node(), groups=tuple(found), readings=readings, vanished=vanished)

    def _half_made_now(self, groups: Sequence[PodGroup]) -> set[Key]:
        """Groups that were made under cpu and not yet under cpuacct (v1): left out, but only the first time.

        They would be pods without a measurement, and for a moment nothing would be known about their tier.
        """
        if self._lister.version is Version.V2 or "cpuacct" not in self._hierarchy.controllers:
            return set()
        missing = {
            (group.group, group.inode)
            for group in groups
            if os.path.isdir(self._lister.absolute(group.group))
            and not os.path.isdir(self._hierarchy.path("cpuacct", group.group) or "")
        }
        fresh, self._half_made = missing - self._half_made, missing
        return fresh

    def threads(self, groups: Sequence[PodGroup]) -> list[int]:
        """Ids of all threads in these pods."""
        assert self._lister.version is not None
        found: list[int] = []
        for group in groups:
            inner = tuple(self._lister.absolute(container.group) for container in group.containers)
            found.extend(threads_of(self._lister.absolute(group.group), self._lister.version, inner))
        return found

    def cpu_psi(self, group: PodGroup) -> PsiTotals | None:
        """CPU pressure totals of a pod's group (v2); None where there are none."""
        return psi.read(os.path.join(self._lister.absolute(group.group), "cpu.pressure"))

    def _node(self) -> NodeCounters | None:
        try:
            return self._proc.counters()
        except (OSError, KernelError):
            return None

    def _read(self, group: PodGroup) -> PodReading:
        assert self._lister.version is not None
        descriptor = open_group(self._lister.absolute(group.group), group.inode)
        try:
            return PodReading(
                cpu=self._cpu(descriptor, group, self._lister.version),
                memory=self._memory(group),
                knobs=_knobs(descriptor, self._lister.version),
            )
        finally:
            os.close(descriptor)

    def _cpu(self, descriptor: int, group: PodGroup, version: Version) -> CpuCounters | None:
        """Counters; Gone only when the pod's group went away."""
        acct = None if version is Version.V2 else self._open("cpuacct", group.group)
        try:
            return cpu.read_counters(descriptor, acct, version, self._clock)
        except KernelError:
            if not cpu.alive(descriptor):
                raise Gone(group.group, None, "went away while it was read") from None
            return None
        finally:
            if acct is not None:
                os.close(acct)

    def _memory(self, group: PodGroup) -> MemoryReading | None:
        mount = self._hierarchy.controllers.get("memory")
        descriptor = self._open("memory", group.group)
        if mount is None or descriptor is None:
            return None
        try:
            return read_memory(descriptor, mount.version)
        except KernelError:
            return None
        finally:
            os.close(descriptor)

    def _open(self, controller: str, group: str) -> int | None:
        """Directory descriptor of a group under another controller; None if it is not there."""
        path = self._hierarchy.path(controller, group)
        if path is None:
            return None
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None


def _knobs(descriptor: int, version: Version) -> CpuKnobs | None:
    try:
        return cpu.read_knobs(descriptor, version)
    except Gone:
        raise
    except KernelError:
        return None
