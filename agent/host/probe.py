"""Finds out at start what this node lets the agent do, by trying it on a cgroup of its own.

A throw-away cgroup is made below the agent's root (or the mount), each knob is written there and the cgroup removed.
Where none may be made (read-only or masked mount, policy), the knobs of a living pod are rewritten with the value
they hold. What does not work is named with its reason; with nothing writable the agent only observes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from agent.capabilities import Capabilities, Knob
from agent.host import affinity, cpu, psi
from agent.host.cgroup import CgroupLister
from slacktide.errors import KernelError
from slacktide.kernel.files import read_text, translate, write_value
from slacktide.kernel.hierarchy import Hierarchy, Version

PROBE_PREFIX: Final = "slacktide-probe-"

Write = Callable[[str, str | int, int | None], None]


def probe(
    hierarchy: Hierarchy, lister: CgroupLister, proc_root: str, *, write: Write = write_value, try_writes: bool = True
) -> Capabilities:
    """Try everything once. Never raises for what a node lacks: it is in `skipped`, in words."""
    skipped: dict[str, str] = {}
    writable: set[Knob] = set()
    version = lister.version
    if version is None:
        skipped["cpu"] = "no cpu controller is mounted: nothing can be limited"
    else:
        results = _probe_knobs(hierarchy, lister, version, write, skipped) if try_writes else {}
        for knob in (Knob.IDLE, Knob.WEIGHT, Knob.QUOTA):
            reason = results.get(knob, "observe only was asked for")
            if reason is None:
                writable.add(knob)
            else:
                skipped[knob.value] = reason
    if "memory" not in hierarchy.controllers:
        skipped["memory"] = "no memory controller is mounted: pod memory is not measured"
    psi_reason = _probe_psi(hierarchy, lister, proc_root)
    if psi_reason is not None:
        skipped["psi"] = psi_reason
    delay_reason = _probe_run_delay(proc_root)
    if delay_reason is not None:
        skipped["run-delay"] = delay_reason
    affinity_reason = affinity.why_not() if try_writes else "observe only was asked for"
    if affinity_reason is not None:
        skipped["affinity"] = affinity_reason
    return Capabilities(
        mode=hierarchy.mode,
        cpu_version=int(version) if version is not None else None,
        writable=frozenset(writable),
        psi=psi_reason is None,
        run_delay=delay_reason is None,
        affinity=affinity_reason is None,
        skipped=skipped,
    )


def _probe_knobs(
    hierarchy: Hierarchy, lister: CgroupLister, version: Version, write: Write, skipped: dict[str, str]
) -> dict[Knob, str | None]:
    mount = hierarchy.controllers["cpu"].path
    base = os.path.join(mount, lister.root) if lister.root else mount
    if not os.path.isdir(base):
        base = mount
    directory = os.path.join(base, f"{PROBE_PREFIX}{os.getpid()}")
    try:
        os.mkdir(directory)
    except OSError as error:
        return _probe_pods(lister, version, write, str(translate(directory, error)))
    try:
        return _try_on(directory, version, write)
    finally:
        try:
            os.rmdir(directory)
        except OSError as error:
            skipped["probe"] = f"the cgroup made for probing stays behind: {translate(directory, error)}"


def _probe_pods(lister: CgroupLister, version: Version, write: Write, why: str) -> dict[Knob, str | None]:
    """Rewrite what a living pod holds; `why` says why no cgroup of our own could be made."""
    try:
        pods = lister.pods()
    except KernelError as error:
        return dict.fromkeys(Knob, f"no cgroup could be made ({why}) and none listed ({error})")
    if not pods:
        return dict.fromkeys(Knob, f"no cgroup could be made to try it ({why}) and no pod is here yet")
    return _try_on(lister.absolute(pods[0].group), version, write)


def _try_on(directory: str, version: Version, write: Write) -> dict[Knob, str | None]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return dict.fromkeys(Knob, str(translate(directory, error)))
    try:
        held = cpu.read_knobs(descriptor, version)
        period = held.period_us or cpu.DEFAULT_PERIOD_US
        quota_name, quota_text = cpu.quota_write(version, held.quota_us, period)
        return {
            Knob.IDLE: _try(write, cpu.IDLE_FILE, None if held.idle is None else int(held.idle), descriptor),
            Knob.WEIGHT: _try(write, cpu.WEIGHT_FILE[version], held.weight, descriptor, bool(held.idle)),
            Knob.QUOTA: _try(write, quota_name, quota_text if held.period_us else None, descriptor),
        }
    except KernelError as error:
        return dict.fromkeys(Knob, str(error))
    finally:
        os.close(descriptor)


def _try(write: Write, name: str, value: str | int | None, descriptor: int, idle: bool = False) -> str | None:
    """None when writing back `value` works, else the reason. An idle group refuses its weight: that proves it."""
    if value is None:
        return f"this kernel has no {name}"
    if idle:
        return None
    try:
        write(name, value, descriptor)
    except KernelError as error:
        return f"{name} cannot be written: {error.detail}"
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
