"""Everything that is read of one pod's cgroup: use of CPU every turn, the slow rest every few turns.

A part of a living group that cannot be read is None. On v1 each controller has a directory of its own; where kubelet
and runtime follow different drivers, a container lies outside its pod (a stray), and its use is added here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from agent.counters import CpuCounters, CpuKnobs, MemoryReading, PodPsi, PodReading, PsiTotals
from agent.host import cpu, psi
from agent.host.cgroup import ContainerGroup, PodGroup, open_group
from agent.host.confines import read_cpuset, read_frozen
from agent.host.fds import FdBudget, GroupFiles
from agent.host.io import read_io
from agent.host.memory import read_memory
from agent.host.pids import read_pids
from agent.host.usage import read_cpu
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Hierarchy, Version

T = TypeVar("T")

IO_CONTROLLER: Final = {Version.V1: "blkio", Version.V2: "io"}
_MAIN: Final = "cpu"

Find = Callable[[str, str], str | None]
"""(controller, relative path) to the directory of a group there; None where it has none."""


class GroupReader:
    """Reads one cgroup, of a pod or of a stray container. `find` tells where it lies under other controllers."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        group: str,
        inode: int,
        find: Find,
        budget: FdBudget,
        clock: Callable[[], float],
    ) -> None:
        self._hierarchy = hierarchy
        self._group = group
        self._find = find
        self._budget = budget
        self._clock = clock
        main = hierarchy.controllers[_MAIN]
        self._version = main.version
        self._main = GroupFiles(os.path.join(main.path, group), inode, budget, clock)
        self._inode = inode
        self._by_mount = {main.path: self._main}

    def cpu(self) -> CpuCounters | None:
        """Use and throttling; None when that cannot be read. Raises Gone when the group went away."""
        try:
            return read_cpu(self._main, self._files("cpuacct"), self._version, self._clock)
        except KernelError:
            if self._main.lives():
                return None
            raise Gone(self._group, None, "went away while it was read") from None

    def memory(self) -> MemoryReading | None:
        """Memory; None where it cannot be read."""
        files = self._files("memory")
        if files is None:
            return None
        return _or_none(lambda: read_memory(files, self._version_of("memory"), self._clock))

    def rest(self, cpu_now: CpuCounters | None, memory: MemoryReading | None) -> PodReading:
        """The whole reading, given what was read already. Raises Gone when the group went away."""
        io_name = IO_CONTROLLER[self._version]
        io_files, pids, freezer, cpuset = (self._files(name) for name in (io_name, "pids", "freezer", "cpuset"))
        pressure = self._main if self._version is Version.V2 else self._files("cpuacct")
        return PodReading(
            cpu=cpu_now,
            memory=memory,
            knobs=self._knobs(),
            io=_or_none(lambda: read_io(io_files, self._version_of(io_name), self._clock)) if io_files else None,
            pids=_or_none(lambda: read_pids(pids)) if pids else None,
            psi=self._psi(pressure) if pressure else None,
            cpuset=_or_none(lambda: read_cpuset(cpuset, self._version_of("cpuset"))) if cpuset else None,
            frozen=_or_none(lambda: read_frozen(freezer, self._version_of("freezer"))) if freezer else None,
        )

    def cpu_psi(self) -> PsiTotals | None:
        """CPU pressure for the beat, through a held descriptor; None where there is none."""
        try:
            return psi.parse(self._main.hot("cpu.pressure"))
        except KernelError:
            return None

    def release(self) -> None:
        """Close what is held."""
        for files in self._by_mount.values():
            files.release()

    def _psi(self, files: GroupFiles) -> PodPsi | None:
        return _or_none(lambda: psi.read_group(files, self._clock))

    def _knobs(self) -> CpuKnobs | None:
        descriptor = open_group(self._main.path, self._inode)
        try:
            return cpu.read_knobs(descriptor, self._version)
        except Gone:
            raise
        except KernelError:
            return None
        finally:
            os.close(descriptor)

    def _version_of(self, controller: str) -> Version:
        return self._hierarchy.controllers[controller].version

    def _files(self, controller: str) -> GroupFiles | None:
        """Files of this group under a controller; None where that is not mounted or lacks the group."""
        mount = self._hierarchy.controllers.get(controller)
        if mount is None:
            return None
        files = self._by_mount.get(mount.path)
        if files is None:
            path = self._find(controller, self._group)
            if path is None:
                return None
            files = self._by_mount[mount.path] = GroupFiles(path, None, self._budget, self._clock)
        return files


class PodFiles:
    """Reads one pod. `slow` is what the last full look found, `earlier` the one before it."""

    def __init__(self, pod: PodGroup, make: Callable[[str, int], GroupReader]) -> None:
        self.pod = pod
        self.slow: PodReading | None = None
        self.earlier: PodReading | None = None
        self._make = make
        self._own = make(pod.group, pod.inode)
        self._strays: dict[ContainerGroup, GroupReader] = {}
        self.follow(pod)

    def follow(self, pod: PodGroup) -> None:
        """The pod as it is listed now."""
        self.pod = pod
        outside = [one for one in pod.containers if not one.group.startswith(f"{pod.group}/")]
        for gone in self._strays.keys() - set(outside):
            self._strays.pop(gone).release()
        for new in outside:
            if new not in self._strays:
                self._strays[new] = self._make(new.group, new.inode)

    def read(self, *, full: bool, memory: bool) -> PodReading:
        """Use of CPU now, and the rest as it was last read; `full` reads all anew, `memory` that part.

        Raises Gone when the pod's group went away, and KernelError when it cannot be looked at.
        """
        used = self._cpu()
        if full or self.slow is None:
            reading = self._own.rest(used, self._memory())
            self.earlier, self.slow = self.slow, reading
            return reading
        if memory:
            now = self._memory()
            if now is not None:
                self.earlier = replace(self.earlier or self.slow, memory=self.slow.memory)
                self.slow = replace(self.slow, memory=now)
        return replace(self.slow, cpu=used)

    def cpu_psi(self) -> PsiTotals | None:
        """CPU pressure for the beat."""
        return self._own.cpu_psi()

    def release(self) -> None:
        """Close what is held."""
        self._own.release()
        for stray in self._strays.values():
            stray.release()

    def _cpu(self) -> CpuCounters | None:
        own = self._own.cpu()
        if not self._strays or own is None:
            return own
        parts = [part for stray in self._strays.values() if (part := _or_none(stray.cpu)) is not None]
        return replace(own, usage_ns=own.usage_ns + sum(part.usage_ns for part in parts))

    def _memory(self) -> MemoryReading | None:
        own = self._own.memory()
        if not self._strays or own is None:
            return own
        parts = [part for stray in self._strays.values() if (part := stray.memory()) is not None]
        return replace(own, working_set_bytes=own.working_set_bytes + sum(part.working_set_bytes for part in parts))


def _or_none(read: Callable[[], T]) -> T | None:
    """What `read` gives; None where the kernel does not give it or the directory under this controller is gone."""
    try:
        return read()
    except KernelError:
        return None
