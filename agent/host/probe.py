"""Finds out at start what this node lets the agent do, by trying it on a cgroup of its own.

A throw-away cgroup is made below the agent's root (or the mount) under each controller, each knob is written there with
the value that it holds, and the cgroup removed. Where none may be made (read-only or masked mount, policy), the knobs
of a living pod are rewritten with what they hold. What does not work is named with its reason; with nothing writable
the agent only observes. An agent that shall only observe writes nothing: it looks at a cgroup that is there, whether it
could, so that it can say what it would do.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from agent.capabilities import Capabilities, Knob
from agent.host import affinity, core_scheduling, psi
from agent.host.cgroup import CgroupLister, find_group
from agent.host.knobs import ADAPTERS, Change, Held, mount_of
from slacktide.errors import KernelError
from slacktide.kernel.files import read_text, translate, write_value
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version

PROBE_PREFIX: Final = "slacktide-probe-"

Write = Callable[[str, str | int, int | None], None]

_SAFE_HIGH: Final = (5, 9)
"""Below this kernel memory.high can pin a process for good (KEP-2570)."""


def probe(
    hierarchy: Hierarchy, lister: CgroupLister, proc_root: str, *, write: Write = write_value, try_writes: bool = True
) -> Capabilities:
    """Try everything once. Never raises for what a node lacks: it is in `skipped`, in words."""
    skipped: dict[str, str] = {}
    kernel = _kernel(proc_root)
    if lister.version is None:
        skipped["cpu"] = "no cpu controller is mounted: nothing can be limited"
        trial = _Trial(reasons={knob: f"no {knob.controller} controller is mounted" for knob in Knob})
    elif try_writes:
        trial = _try_all(hierarchy, proc_root, write, lambda mount: _ground(mount, lister, skipped))
    else:
        trial = _try_all(hierarchy, proc_root, _look, lambda mount: _some_group(mount, lister))
    if kernel is not None and kernel < _SAFE_HIGH and trial.reasons.get(Knob.MEMORY_HIGH, "") is None:
        trial.reasons[Knob.MEMORY_HIGH] = (
            f"kernel {kernel[0]}.{kernel[1]} can pin a process at memory.high (5.9 cannot)"
        )
    skipped |= {knob.value: reason for knob, reason in trial.reasons.items() if reason is not None}
    memory = hierarchy.controllers.get("memory")
    if memory is None:
        skipped["memory"] = "no memory controller is mounted: pod memory is not measured"
    if not trial.reclaim and lister.version is not None:
        skipped["reclaim"] = "this kernel has no memory.reclaim (v2, 5.19)"
    signals = {
        "psi": _probe_psi(hierarchy, lister, proc_root),
        "run-delay": _probe_run_delay(proc_root),
        "affinity": affinity.why_not(),
    }
    skipped |= {name: reason for name, reason in signals.items() if reason is not None}
    return Capabilities(
        mode=hierarchy.mode,
        cpu_version=int(lister.version) if lister.version is not None else None,
        memory_version=int(memory.version) if memory is not None else None,
        kernel=kernel,
        writable=frozenset(knob for knob, reason in trial.reasons.items() if reason is None),
        psi=signals["psi"] is None,
        run_delay=signals["run-delay"] is None,
        affinity=signals["affinity"] is None,
        core_scheduling=core_scheduling.available(),
        reclaim=trial.reclaim,
        kill=trial.kill,
        skipped=skipped,
    )


class _Trial:
    """What was found: by knob None or why it cannot be written; whether two files are there."""

    def __init__(self, reasons: dict[Knob, str | None] | None = None) -> None:
        self.reasons: dict[Knob, str | None] = reasons or {}
        self.reclaim = False
        self.kill = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """A cgroup to try on, or why there is none."""

    descriptor: int | None
    why_not: str = ""


def _try_all(
    hierarchy: Hierarchy, proc_root: str, write: Write, ground_of: Callable[[Mount], AbstractContextManager[_Ground]]
) -> _Trial:
    trial = _Trial()
    device = _block_device(proc_root)
    by_mount: dict[Mount, list[Knob]] = {}
    for knob in ADAPTERS:
        mount = mount_of(hierarchy, knob)
        if mount is None:
            trial.reasons[knob] = f"no {knob.controller} controller is mounted"
        else:
            by_mount.setdefault(mount, []).append(knob)
    for mount, knobs in by_mount.items():
        with ground_of(mount) as ground:
            for knob in knobs:
                trial.reasons[knob] = _try(knob, ground, mount.version, write, device)
            trial.reclaim |= _has(ground, "memory.reclaim")
            trial.kill |= Knob.FREEZE in knobs and _has(ground, "cgroup.kill")
    return trial


@contextmanager
def _ground(mount: Mount, lister: CgroupLister, skipped: dict[str, str]) -> Iterator[_Ground]:
    """A cgroup of our own below this mount, else a living pod's."""
    base = os.path.join(mount.path, lister.root) if lister.root else mount.path
    if not os.path.isdir(base):
        base = mount.path
    directory = os.path.join(base, f"{PROBE_PREFIX}{os.getpid()}")
    try:
        os.mkdir(directory)
    except OSError as error:
        with _living_pod(mount, lister, str(translate(directory, error))) as ground:
            yield ground
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield _Ground(descriptor=descriptor)
        finally:
            os.close(descriptor)
    finally:
        try:
            os.rmdir(directory)
        except OSError as error:
            skipped["probe"] = f"the cgroup made for probing stays behind: {translate(directory, error)}"


@contextmanager
def _living_pod(mount: Mount, lister: CgroupLister, why: str) -> Iterator[_Ground]:
    """`why` says why no cgroup of our own could be made."""
    try:
        pods = lister.pods()
        if not pods:
            yield _Ground(descriptor=None, why_not=f"no cgroup could be made to try it ({why}) and no pod is here yet")
            return
        descriptor, _ = find_group(mount.path, pods[0].group)
    except KernelError as error:
        yield _Ground(descriptor=None, why_not=f"no cgroup could be made ({why}) and none listed ({error})")
        return
    try:
        yield _Ground(descriptor=descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _some_group(mount: Mount, lister: CgroupLister) -> Iterator[_Ground]:
    """Any cgroup but the topmost, which lacks most files: a pod's if there is one, else the first below the root."""
    try:
        descriptor = _open_some(mount, lister)
    except OSError as error:
        yield _Ground(descriptor=None, why_not=f"no cgroup is there to look at: {error.strerror}")
        return
    try:
        yield _Ground(descriptor=descriptor)
    finally:
        os.close(descriptor)


def _open_some(mount: Mount, lister: CgroupLister) -> int:
    """Descriptor of a cgroup under this mount. Raises OSError where there is none."""
    with suppress(KernelError):
        for pod in lister.pods()[:1]:
            return find_group(mount.path, pod.group)[0]
    base = os.path.join(mount.path, lister.root)
    place = base if lister.root and os.path.isdir(base) else _first_below(mount.path)
    return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _first_below(directory: str) -> str:
    """The first cgroup in this one. Raises OSError."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                return entry.path
    raise FileNotFoundError(errno.ENOENT, "it has no cgroups", directory)


def _look(name: str, _value: str | int, descriptor: int | None) -> None:
    """Stands for a write: raises the KernelError of one that is not allowed, and writes nothing."""
    if not os.access(name, os.W_OK, dir_fd=descriptor):
        raise translate(name, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _try(knob: Knob, ground: _Ground, version: Version, write: Write, device: str | None) -> str | None:
    """None when writing back what it holds works, else the reason."""
    if ground.descriptor is None:
        return ground.why_not
    adapter = ADAPTERS[knob]
    try:
        held = adapter.read(ground.descriptor, version)
        if held.absent:
            return held.absent
        if knob is Knob.WEIGHT and held.idle:
            # An idle group refuses its weight: that proves it.
            return None
        change = _without_effect(knob, held, version, device)
        if isinstance(change, str):
            return change
        for name, value in adapter.writes(change):
            write(name, value, ground.descriptor)
    except KernelError as error:
        return f"{error.path} cannot be written: {error.detail}"
    return None


def _without_effect(knob: Knob, held: Held, version: Version, device: str | None) -> Change | str:
    """A change that changes nothing, or why there is none."""
    target = held.value
    if knob is Knob.CPUSET and target is None and version is Version.V1:
        if not held.within:
            return "the cpuset above has no CPUs"
        target = held.within
    if knob is Knob.IO_MAX and target is None:
        if device is None:
            return "there is no block device"
        held = replace(held, value=f"{device} rbps=1 wbps=1")
    return Change(held=held, target=target, original=ADAPTERS[knob].original(held), version=version)


def _has(ground: _Ground, name: str) -> bool:
    if ground.descriptor is None:
        return False
    try:
        os.stat(name, dir_fd=ground.descriptor)
    except OSError:
        return False
    return True


def _kernel(proc_root: str) -> tuple[int, int] | None:
    try:
        found = re.match(r"([0-9]+)\.([0-9]+)", read_text(os.path.join(proc_root, "sys/kernel/osrelease")))
    except KernelError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def _block_device(proc_root: str) -> str | None:
    """The first block device that is neither RAM nor a loop, as MAJ:MIN."""
    try:
        lines = read_text(os.path.join(proc_root, "partitions")).splitlines()
    except KernelError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) == 4 and fields[0].isdigit() and not re.match(r"(ram|loop|zram)[0-9]", fields[3]):
            return f"{fields[0]}:{fields[1]}"
    return None


def _probe_psi(hierarchy: Hierarchy, lister: CgroupLister, proc_root: str) -> str | None:
    if lister.version is not Version.V2:
        return "cgroup v1 has no PSI per cgroup"
    reason = psi.why_missing(psi.node_path(proc_root, "cpu"))
    if reason is not None:
        return reason
    mount = hierarchy.controllers["cpu"].path
    try:
        pods = lister.pods()
    except KernelError:
        pods = ()
    directory = lister.absolute(pods[0].group) if pods else mount
    return psi.why_missing(os.path.join(directory, "cpu.pressure"))


def _probe_run_delay(proc_root: str) -> str | None:
    try:
        fields = read_text(os.path.join(proc_root, "self/schedstat")).split()
    except KernelError as error:
        return f"no scheduler statistics: {error.detail}"
    return None if len(fields) >= 2 and fields[1].isdigit() else "scheduler statistics in an unknown format"
