"""Cycles per instruction of LS pods, from hardware counters of their cgroups.

A collection opens one group of counters a CPU for each pod, waits for its window, reads and closes them: between two
collections nothing is open and nothing is paid. Descriptors are bounded; pods that do not fit take turns. A pod of
which too little was counted has no figure. Where nothing can be counted (no hardware counters, as in many virtual
machines; no right; no perf_event controller beside the pods) every collection raises the reason.
Source: perf_event_open(2), Linux Documentation/admin-guide/perf-security.rst; koordinator#1470, #1482, #1489, #1828.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from agent.collect import CollectSettings
from agent.cpi import GroupCount, cpi_of, since
from agent.host.cgroup import find_group
from agent.host.fds import MOST, OUT_OF_DESCRIPTORS, RESERVE
from agent.host.perf_event import PerfEvents
from slacktide.errors import Gone, KernelError, NotPermitted, Refused, Unsupported
from slacktide.kernel.hierarchy import Mount

_NAME: Final = "perf counters"
_PER_CPU: Final = 2
_NOT_PERMITTED: Final = (
    "not permitted: needs CAP_PERFMON (CAP_SYS_ADMIN before 5.8) and kernel.perf_event_paranoid of at most 2",
    "not permitted: a seccomp profile that goes by CAP_PERFMON is needed (chart: agent.seccompProfile)",
)
"""What the kernel refuses (EACCES), and what is refused before it gets there (EPERM)."""

_NO_EVENT: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENXIO})


class Counting(Protocol):
    """The system call: `agent.host.perf_event.PerfEvents` in real life."""

    def open_group(self, cgroup_fd: int, cpu: int) -> tuple[int, int]:
        """Descriptors of the two counters of a cgroup on one CPU. Raises KernelError."""

    def open_own(self) -> tuple[int, int]:
        """The same for the calling thread. Raises KernelError."""

    def read_group(self, leader: int) -> GroupCount:
        """Counts so far. Raises KernelError."""


class PerfTarget(NamedTuple):
    """A pod to be counted: UID and cgroup, relative to a controller's mount."""

    uid: str
    group: str


class _Open(NamedTuple):
    """Counters of one CPU, and what they had counted when all of the pod were open."""

    leader: int
    other: int
    before: GroupCount | None = None


class PerfReader:
    """`want` from any thread without waiting; `read` from one thread alone, as the read of a `Source`.

    `mount` is where cgroups of the perf_event controller are, None where it is not mounted beside the others. `cpus`
    gives the CPUs that are online, `wait` waits so many seconds (or less, when all shall end). `limit` is how many
    descriptors this process may have (default: as it is now). `counters` are totals since start: `counted` pods,
    `too_little` of whom too little ran, `vanished` ones, `refused` ones that could not be counted.
    """

    def __init__(
        self,
        mount: Mount | None,
        cpus: Callable[[], Collection[int]],
        settings: Callable[[], CollectSettings],
        *,
        wait: Callable[[float], object] = time.sleep,
        events: Counting | None = None,
        limit: int | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter(counted=0, too_little=0, vanished=0, refused=0)
        self._mount = mount
        self._cpus = cpus
        self._settings = settings
        self._wait = wait
        self._events = events or PerfEvents()
        self._limit = limit
        self._lock = threading.Lock()
        self._targets: tuple[PerfTarget, ...] = ()
        self._last_uid = ""
        self._known: dict[str, float] = {}

    def want(self, targets: Sequence[PerfTarget]) -> None:
        """The pods to be counted from the next collection on."""
        with self._lock:
            self._targets = tuple(targets)

    def read(self) -> Mapping[str, float]:
        """Cycles per instruction by UID: of each pod its newest figure. Takes the window's length.

        Raises KernelError with the reason when nothing can be counted.
        """
        if self._mount is None:
            raise Unsupported(_NAME, None, "the perf_event controller is not mounted beside the others: mount it (v1)")
        self._try_own()
        with self._lock:
            targets = sorted(self._targets)
        settings, cpus = self._settings(), sorted(self._cpus())
        batch = self._batch(targets, self._room(settings, len(cpus)))
        held: dict[str, list[_Open]] = {}
        try:
            problem = self._open_all(self._mount, batch, cpus, held)
            if batch and not held and problem is not None:
                raise problem
            self._wait(settings.perf_window_seconds if held else 0.0)
            figures = {uid: self._count(counters) for uid, counters in held.items()}
        finally:
            _close(one for counters in held.values() for one in counters)
        wanted, tried = {target.uid for target in targets}, {target.uid for target in batch}
        kept = {uid: cpi for uid, cpi in self._known.items() if uid in wanted - tried}
        self._known = {**kept, **{uid: cpi for uid, cpi in figures.items() if cpi is not None}}
        return dict(self._known)

    def _try_own(self) -> None:
        """Whether this machine can count at all, on this thread, so that later failures are a pod's own."""
        try:
            leader, other = self._events.open_own()
        except KernelError as error:
            raise _explained(error) from error
        os.close(other)
        os.close(leader)

    def _room(self, settings: CollectSettings, cpus: int) -> int:
        """How many pods fit into one collection, at least one. What monitoring and control need is left to them."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if self._limit is None else self._limit
        spare = settings.perf_descriptors if soft == resource.RLIM_INFINITY else soft - RESERVE - MOST
        most = min(settings.perf_descriptors, max(RESERVE // 2, spare))
        room = min(settings.perf_pods, most // (_PER_CPU * max(1, cpus)))
        if room == 0:
            needed = f"one pod needs {_PER_CPU * cpus} descriptors on {cpus} CPUs, and there are {most}"
            raise Unsupported(_NAME, None, f"{needed}: raise collect.perf_descriptors, or the limit of open files")
        return room

    def _batch(self, targets: Sequence[PerfTarget], room: int) -> list[PerfTarget]:
        """Those whose turn it is: the ones behind the last of the collection before, in the order of their UIDs."""
        later = [target for target in targets if target.uid > self._last_uid]
        batch = [*later, *(target for target in targets if target.uid <= self._last_uid)][:room]
        self._last_uid = batch[-1].uid if batch and len(batch) < len(targets) else ""
        return batch

    def _open_all(
        self, mount: Mount, batch: Sequence[PerfTarget], cpus: Sequence[int], held: dict[str, list[_Open]]
    ) -> KernelError | None:
        """Open what can be opened into `held`; the last problem, if there was one."""
        problem: KernelError | None = None
        for target in batch:
            try:
                held[target.uid] = self._open_pod(mount, target.group, cpus)
            except Gone as error:
                self.counters["vanished"] += 1
                problem = Gone(_NAME, error.errno, f"no pod to be counted has a cgroup under {mount.path}")
            except KernelError as error:
                self.counters["refused"] += 1
                problem = _explained(error)
                if error.errno in OUT_OF_DESCRIPTORS:
                    break
            except ValueError as error:
                self.counters["refused"] += 1
                problem = Unsupported(_NAME, None, str(error))
        return problem

    def _open_pod(self, mount: Mount, group: str, cpus: Sequence[int]) -> list[_Open]:
        """Counters of a pod on each CPU. Raises KernelError, and ValueError for a path that is none; none is open then.

        A CPU that went off line meanwhile is left out.
        """
        directory, _ = find_group(mount.path, group)
        counters: list[_Open] = []
        try:
            for cpu in cpus:
                try:
                    counters.append(_Open(*self._events.open_group(directory, cpu)))
                except KernelError as error:
                    if error.errno != errno.ENODEV:
                        raise _judged(error, f"{mount.path}/{group}") from error
            return [one._replace(before=self._events.read_group(one.leader)) for one in counters]
        except BaseException:
            _close(counters)
            raise
        finally:
            os.close(directory)

    def _count(self, counters: Sequence[_Open]) -> float | None:
        """Figure of a pod from its counters; None, and counted, where too little ran or a counter cannot be read."""
        try:
            deltas = [
                since(one.before, self._events.read_group(one.leader)) for one in counters if one.before is not None
            ]
        except KernelError:
            self.counters["refused"] += 1
            return None
        cpi = cpi_of([delta for delta in deltas if delta is not None])
        self.counters["counted" if cpi is not None else "too_little"] += 1
        return cpi


def _close(counters: Iterable[_Open]) -> None:
    for one in counters:
        os.close(one.other)
        os.close(one.leader)


def _judged(error: KernelError, path: str) -> KernelError:
    """ENOENT means a cgroup that went away or, where it is still there, a CPU of another kind."""
    if error.errno == errno.ENOENT and os.path.isdir(path):
        return Unsupported(error.path, None, "this CPU cannot count what others count")
    return error


def _explained(error: KernelError) -> KernelError:
    """The same error, saying what it means here and what to do."""
    if error.errno in _NO_EVENT:
        return Unsupported(
            _NAME, error.errno, "this machine has no hardware counters (a virtual machine without them?)"
        )
    if isinstance(error, NotPermitted):
        return NotPermitted(_NAME, error.errno, _NOT_PERMITTED[error.errno == errno.EPERM])
    if error.errno == errno.EINVAL:
        return Refused(error.path, error.errno, "refused: this kernel counts no cgroups (CONFIG_CGROUP_PERF)")
    if error.errno in OUT_OF_DESCRIPTORS:
        return KernelError(_NAME, error.errno, "no descriptors left: lower collect.perf_descriptors or raise the limit")
    return error
