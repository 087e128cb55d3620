"""Everything that is read of one pod's cgroup: use of CPU every turn, the slow rest by turns, what is rarely changed
more rarely still.

A part of a living group that cannot be read is None. On v1 each controller has a directory of its own; where kubelet
and runtime follow different drivers, a container lies outside its pod (a stray), and its use is added here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from agent.counters import CpuCounters, CpuKnobs, IoReading, MemoryReading, PidsReading, PodPsi, PodReading, PsiTotals
from agent.host import cpu, psi
from agent.host.cgroup import ContainerGroup, PodGroup, open_group
from agent.host.confines import read_cpuset, read_frozen
from agent.host.fds import FdBudget, GroupFiles
from agent.host.io import read_io
from agent.host.memory import read_memory
from agent.host.pids import read_pids
from agent.host.usage import UsageReader
from agent.snapshot import ContainerSnapshot, throttled_ratio
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Hierarchy, Version

T = TypeVar("T")

IO_CONTROLLER: Final = {Version.V1: "blkio", Version.V2: "io"}
_MAIN: Final = "cpu"


NOTHING: Final = 0
"""What of a pod is to be read anew this turn: a sum of the following."""

MEMORY: Final = 1
FLOWS: Final = 2
"""I/O, pressure, the pod's CPU knobs, throttling of its containers."""

STATES: Final = 4
"""Tasks, cpuset, freezer, and what its containers are held to."""

ALL: Final = MEMORY | FLOWS | STATES

NOTHING_READ: Final = PodReading()

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
        self._usage = UsageReader(self._version, clock)
        self._vendor_psi = self._version is Version.V1 and _has_vendor_psi(hierarchy)

    def cpu(self) -> CpuCounters | None:
        """Use and throttling; None when that cannot be read. Raises Gone when the group went away."""
        try:
            return self._usage.read(self._main, self._files("cpuacct") if self._version is Version.V1 else None)
        except KernelError:
            if self._main.lives():
                return None
            raise Gone(self._group, None, "went away while it was read") from None

    def throttling(self) -> CpuCounters | None:
        """Counters as `cpu` gives them, through no held descriptor. Raises KernelError."""
        return self._usage.read_cold(self._main, self._files("cpuacct") if self._version is Version.V1 else None)

    def memory(self) -> MemoryReading | None:
        """Memory; None where it cannot be read."""
        files = self._files("memory")
        if files is None:
            return None
        return _or_none(lambda: read_memory(files, self._version_of("memory"), self._clock))

    def knobs(self) -> CpuKnobs | None:
        """CPU knobs as the kernel holds them; None where they cannot be read. Raises Gone."""
        descriptor = open_group(self._main.path, self._inode)
        try:
            return cpu.read_knobs(descriptor, self._version)
        except Gone:
            raise
        except KernelError:
            return None
        finally:
            os.close(descriptor)

    def io(self) -> IoReading | None:
        """Block I/O; None where it is not counted."""
        name = IO_CONTROLLER[self._version]
        files = self._files(name)
        return _or_none(lambda: read_io(files, self._version_of(name), self._clock)) if files else None

    def psi(self) -> PodPsi | None:
        """Pressure; None where there is none."""
        if self._version is Version.V2:
            return _or_none(lambda: psi.read_group(self._main, self._clock))
        files = self._files("cpuacct") if self._vendor_psi else None
        return _or_none(lambda: psi.read_group(files, self._clock)) if files else None

    def pids(self) -> PidsReading | None:
        """Tasks; None where they are not counted."""
        files = self._files("pids")
        return _or_none(lambda: read_pids(files)) if files else None

    def cpuset(self) -> str | None:
        """CPUs that it may use; None where no cpuset says."""
        files = self._files("cpuset")
        return _or_none(lambda: read_cpuset(files, self._version_of("cpuset"))) if files else None

    def frozen(self) -> bool | None:
        """What the freezer says; None where there is none."""
        files = self._files("freezer")
        return _or_none(lambda: read_frozen(files, self._version_of("freezer"))) if files else None

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


@functools.cache
def _vendor_psi_at(mount: str) -> bool:
    return os.path.exists(f"{mount}/cpu.pressure")


def _has_vendor_psi(hierarchy: Hierarchy) -> bool:
    """Whether this kernel shows pressure in v1's cpuacct groups (its root has the file then, too)."""
    mount = hierarchy.controllers.get("cpuacct")
    return mount is not None and _vendor_psi_at(mount.path)


class ContainerReader:
    """Reads what policies want to know of one container. `files` are those of its cgroup.

    Throttling is only looked at where there is a quota, as of the last two looks; a container that went away keeps
    what was last known until it is not listed any more.
    """

    def __init__(self, files: GroupReader) -> None:
        self.files = files
        self._knobs: CpuKnobs | None = None
        self._cpuset: str | None = None
        self._now: CpuCounters | None = None
        self._before: CpuCounters | None = None

    def read(self, *, states: bool) -> None:
        """Look at it anew; `states` is what it is held to."""
        if states:
            self._knobs = _or_none(self.files.knobs)
            self._cpuset = self.files.cpuset()
        if self._knobs is not None and self._knobs.quota_us is not None:
            self._before, self._now = self._now, _or_none(self.files.throttling)

    def snapshot(self, container: ContainerGroup) -> ContainerSnapshot:
        """What is known of it, without its name."""
        return ContainerSnapshot(
            group=container.group,
            id=container.id,
            knobs=self._knobs,
            cpuset=self._cpuset,
            throttled_ratio=throttled_ratio(self._before, self._now) if self._now is not None else None,
        )

    def release(self) -> None:
        """Close what is held."""
        self.files.release()


class PodFiles:
    """Reads one pod. `slow` is what the last full look found, `earlier` the one before it."""

    def __init__(self, pod: PodGroup, make: Callable[[str, int], GroupReader]) -> None:
        self.pod = pod
        self.slow: PodReading | None = None
        self.earlier: PodReading | None = None
        self._make = make
        self._own = make(pod.group, pod.inode)
        self._containers: dict[ContainerGroup, ContainerReader] = {}
        self._strays: tuple[GroupReader, ...] = ()
        self.follow(pod)

    def follow(self, pod: PodGroup) -> None:
        """The pod as it is listed now."""
        self.pod = pod
        for gone in self._containers.keys() - set(pod.containers):
            self._containers.pop(gone).release()
        for new in pod.containers:
            if new not in self._containers:
                self._containers[new] = ContainerReader(self._make(new.group, new.inode))
        self._strays = tuple(
            reader.files
            for container, reader in self._containers.items()
            if not container.group.startswith(f"{pod.group}/")
        )

    def containers(self) -> tuple[ContainerSnapshot, ...]:
        """Its containers as last looked at, in the order of the listing."""
        return tuple(self._containers[one].snapshot(one) for one in self.pod.containers)

    def read(self, due: int) -> PodReading:
        """Use of CPU now, and the rest as it was last read; what is due is read anew.

        Raises Gone when the pod's group went away, and KernelError when it cannot be looked at.
        """
        used, slow = self._cpu(), self.slow
        if slow is None:
            due = ALL
        if due == NOTHING:
            assert slow is not None
            return PodReading(
                cpu=used,
                memory=slow.memory,
                knobs=slow.knobs,
                io=slow.io,
                pids=slow.pids,
                psi=slow.psi,
                cpuset=slow.cpuset,
                frozen=slow.frozen,
            )
        reading = self._anew(used, slow or NOTHING_READ, due)
        self.earlier, self.slow = self._before(due), reading
        return reading

    def _anew(self, used: CpuCounters | None, slow: PodReading, due: int) -> PodReading:
        own = self._own
        if due & (FLOWS | STATES):
            for container in self._containers.values():
                container.read(states=bool(due & STATES))
        return PodReading(
            cpu=used,
            memory=self._memory() if due & MEMORY else slow.memory,
            knobs=own.knobs() if due & FLOWS else slow.knobs,
            io=own.io() if due & FLOWS else slow.io,
            psi=own.psi() if due & FLOWS else slow.psi,
            pids=own.pids() if due & STATES else slow.pids,
            cpuset=own.cpuset() if due & STATES else slow.cpuset,
            frozen=own.frozen() if due & STATES else slow.frozen,
        )

    def _before(self, due: int) -> PodReading | None:
        """The reading before the present one, part by part."""
        slow, earlier = self.slow, self.earlier or NOTHING_READ
        if slow is None:
            return None
        return PodReading(
            memory=slow.memory if due & MEMORY else earlier.memory,
            io=slow.io if due & FLOWS else earlier.io,
            psi=slow.psi if due & FLOWS else earlier.psi,
        )

    def cpu_psi(self) -> PsiTotals | None:
        """CPU pressure for the beat."""
        return self._own.cpu_psi()

    def release(self) -> None:
        """Close what is held."""
        self._own.release()
        for container in self._containers.values():
            container.release()

    def _cpu(self) -> CpuCounters | None:
        own = self._own.cpu()
        if not self._strays or own is None:
            return own
        parts = [part for stray in self._strays if (part := _or_none(stray.cpu)) is not None]
        return replace(own, usage_ns=own.usage_ns + sum(part.usage_ns for part in parts))

    def _memory(self) -> MemoryReading | None:
        own = self._own.memory()
        if not self._strays or own is None:
            return own
        parts = [part for stray in self._strays if (part := stray.memory()) is not None]
        return replace(own, working_set_bytes=own.working_set_bytes + sum(part.working_set_bytes for part in parts))


def _or_none(read: Callable[[], T]) -> T | None:
    """What `read` gives; None where the kernel does not give it or the directory under this controller is gone."""
    try:
        return read()
    except KernelError:
        return None
