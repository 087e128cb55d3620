"""What this machine has and lacks for Slacktide: each check says what was found and what follows from it.

Every check reads below injected roots, changes nothing but a cgroup directory of its own that it removes again,
and never raises: what cannot be found out is said as such.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from slacktide.errors import KernelError, StateError
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version
from slacktide.quantity import format_bytes
from standalone import state

Verdict = Literal["ok", "skipped", "problem"]

PACKAGES: Final = {
    "grpc": "the stream of samples",
    "prometheus_client": "metrics",
    "psutil": "node totals",
    "aiohttp": "the embedded API server",
    "duckdb": "the predictor's history",
    "numpy": "scheduler and predictor",
    "pandas": "the predictor",
}
"""Importable name -> what needs it on a standalone machine."""

_CONTROLLERS: Final = {
    "cpu": "best-effort work is neither weighted nor throttled: it competes as an equal",
    "cpuacct": "CPU use of pods is not measured, so nothing is reported and best-effort stays at its floor",
    "cpuset": "best-effort work cannot be spread over CPUs",
    "memory": "memory of pods is neither measured nor limited",
    "pids": "the number of processes of a pod is not limited",
    "freezer": "a pod that forks faster than it is killed may take long to end",
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `doctor`. `skipped`: works without, does less. `problem`: `slacktide up` will not work."""

    name: str
    verdict: Verdict
    found: str
    consequence: str = ""


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` prints for programs; `problems` counts the checks with that verdict."""

    checks: list[Check]
    problems: int


def all_checks(root: str, hierarchy: Hierarchy, *, proc: str = "/proc", sys_root: str = "/sys") -> list[Check]:
    """Every check, in the order in which a person reads them."""
    checks = [python(), kernel(), user(), processors(proc, sys_root), memory(proc)]
    checks += [mode(hierarchy), *controllers(hierarchy)]
    with own_groups(hierarchy) as groups:
        checks += [writable(mount, groups.get(mount.path, "not tried")) for mount in hierarchy.mounts()]
        checks += knobs(hierarchy, groups)
    checks += [pressure(proc), run_delay(proc), resctrl(proc, sys_root), counters(proc, sys_root)]
    return [*checks, *packages(PACKAGES, _installed), *directory(root)]


def python() -> Check:
    """The interpreter."""
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check(name="python", verdict="ok", found=f"{version} ({sys.executable})")
    return Check(name="python", verdict="problem", found=version, consequence="Python 3.11, 3.12 or 3.13 is needed")


def kernel() -> Check:
    """The kernel: anything but Linux cannot work."""
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux":
        return Check(name="kernel", verdict="ok", found=found)
    return Check(name="kernel", verdict="problem", found=found, consequence="Slacktide needs Linux")


def user(euid: int | None = None) -> Check:
    """Who runs this."""
    who = os.geteuid() if euid is None else euid
    if who == 0:
        return Check(name="user", verdict="ok", found="root")
    text = "without root, cgroups cannot be written unless they were given to you: pods run unmanaged"
    return Check(name="user", verdict="skipped", found=f"uid {who}", consequence=text)


def processors(proc: str, sys_root: str) -> Check:
    """CPUs, SMT and NUMA, as far as the kernel tells."""
    count = sum(1 for line in _text(os.path.join(proc, "stat")).splitlines() if re.match(r"cpu\d", line))
    smt = _text(os.path.join(sys_root, "devices/system/cpu/smt/active")).strip()
    nodes = _list(os.path.join(sys_root, "devices/system/node"), r"node\d+")
    threads = {"1": "SMT on", "0": "SMT off"}.get(smt, "SMT not known")
    numa = f"{len(nodes)} NUMA node{'s' if len(nodes) != 1 else ''}" if nodes else "NUMA not known"
    found = f"{count or 'unknown number of'} CPUs, {threads}, {numa}"
    if count == 1:
        text = "on one CPU, best-effort work only runs in the gaps of everything else"
        return Check(name="cpus", verdict="skipped", found=found, consequence=text)
    return Check(name="cpus", verdict="ok", found=found)


def memory(proc: str) -> Check:
    """Memory of the node."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _text(os.path.join(proc, "meminfo")), re.MULTILINE))
    if "MemTotal" not in values or "MemAvailable" not in values:
        text = "without it, no memory is sold to best-effort pods"
        return Check(name="memory", verdict="skipped", found="not known", consequence=text)
    total, free = (format_bytes(int(values[key]) << 10) for key in ("MemTotal", "MemAvailable"))
    return Check(name="memory", verdict="ok", found=f"{total}, {free} available")


def mode(hierarchy: Hierarchy) -> Check:
    """v1, v2 or hybrid."""
    if hierarchy.mode == "none":
        text = "pods run as plain processes: nothing is measured, weighted or limited"
        return Check(name="cgroups", verdict="skipped", found="none are mounted", consequence=text)
    return Check(name="cgroups", verdict="ok", found=hierarchy.mode)


def controllers(hierarchy: Hierarchy) -> list[Check]:
    """Where each controller lives."""
    checks = []
    for name, consequence in _CONTROLLERS.items():
        mount = hierarchy.controllers.get(name)
        if mount is None:
            checks.append(Check(name=f"cgroup {name}", verdict="skipped", found="not mounted", consequence=consequence))
        else:
            checks.append(Check(name=f"cgroup {name}", verdict="ok", found=f"v{mount.version:d} at {mount.path}"))
    return checks


@contextlib.contextmanager
def own_groups(hierarchy: Hierarchy) -> Iterator[dict[str, str]]:
    """An own cgroup in every mount for a moment: mount point -> its path, or why there is none (no leading slash)."""
    name = f"slacktide-doctor-{os.getpid()}"
    made: dict[str, str] = {}
    try:
        for mount in hierarchy.mounts():
            path = os.path.join(mount.path, name)
            try:
                os.mkdir(path)
                made[mount.path] = path
            except OSError as error:
                made[mount.path] = error.strerror or str(error)
        yield made
    finally:
        for path in made.values():
            if path.startswith("/"):
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def writable(mount: Mount, group: str) -> Check:
    """Whether cgroups can be made in this mount."""
    if group.startswith("/"):
        return Check(name=f"write {mount.path}", verdict="ok", found="a cgroup of our own can be made and removed")
    text = "its controllers cannot be used; run as root, or in a container that may write cgroups"
    return Check(name=f"write {mount.path}", verdict="skipped", found=group, consequence=text)


def knobs(hierarchy: Hierarchy, groups: dict[str, str]) -> list[Check]:
    """Files of the cpu controller that the agent's ladder stands on."""
    mount = hierarchy.controllers.get("cpu")
    group = groups.get(mount.path, "") if mount else ""
    wanted = (
        ("cpu.idle", ("cpu.idle",), "best-effort work gets the smallest weight instead of the idle class"),
        ("cpu burst", ("cpu.max.burst", "cpu.cfs_burst_us"), "limited pods cannot save up unused quota"),
        ("cgroup psi", ("cpu.pressure",), "pressure on LS is taken from run delay instead"),
    )
    checks = []
    for name, files, consequence in wanted:
        if mount is None or not group.startswith("/"):
            found = "cannot be tried without a cgroup of our own"
            checks.append(Check(name=name, verdict="skipped", found=found, consequence=consequence))
        elif present := [file for file in files if os.path.exists(os.path.join(group, file))]:
            checks.append(Check(name=name, verdict="ok", found=present[0]))
        elif mount.version is Version.V2 and not _delegated(mount.path):
            text = "not known before `up`: cpu is not in the root's cgroup.subtree_control yet"
            checks.append(Check(name=name, verdict="skipped", found=text, consequence=consequence))
        else:
            found = f"this kernel has none (cgroup v{mount.version:d})"
            checks.append(Check(name=name, verdict="skipped", found=found, consequence=consequence))
    return checks


def pressure(proc: str) -> Check:
    """PSI of the node."""
    path = os.path.join(proc, "pressure/cpu")
    try:
        read_text(path)
    except KernelError as error:
        text = "pressure of the node is taken from run delay instead"
        return Check(name="node psi", verdict="skipped", found=error.detail, consequence=text)
    return Check(name="node psi", verdict="ok", found=path)


def run_delay(proc: str) -> Check:
    """schedstat: how long threads wait for a CPU."""
    fields = _text(os.path.join(proc, "self/schedstat")).split()
    if len(fields) == 3 and any(field != "0" for field in fields):
        return Check(name="run delay", verdict="ok", found="schedstat")
    text = "without PSI and run delay, pressure on LS is not seen; best-effort work is limited by usage alone"
    return Check(name="run delay", verdict="skipped", found="this kernel counts none", consequence=text)


def resctrl(proc: str, sys_root: str) -> Check:
    """Cache and memory bandwidth control."""
    text = "cache and memory bandwidth are not partitioned"
    if "\tresctrl" not in _text(os.path.join(proc, "filesystems")):
        return Check(name="resctrl", verdict="skipped", found="not in this kernel", consequence=text)
    flags = set(re.findall(r"\b(?:cat_l3|cat_l2|mba|rdt_a|cqm_mbm_total)\b", _text(os.path.join(proc, "cpuinfo"))))
    if not flags & {"cat_l3", "cat_l2", "mba", "rdt_a"}:
        return Check(name="resctrl", verdict="skipped", found="this CPU has no RDT", consequence=text)
    where = os.path.join(sys_root, "fs/resctrl")
    if not os.path.exists(os.path.join(where, "schemata")):
        return Check(name="resctrl", verdict="skipped", found=f"not mounted at {where}", consequence=text)
    return Check(name="resctrl", verdict="ok", found=f"{where}: {', '.join(sorted(flags))}")


def counters(proc: str, sys_root: str) -> Check:
    """Hardware performance counters."""
    text = "cycles per instruction and cache misses are not measured"
    level = _text(os.path.join(proc, "sys/kernel/perf_event_paranoid")).strip()
    if not level:
        return Check(name="perf", verdict="skipped", found="not in this kernel", consequence=text)
    devices = _list(os.path.join(sys_root, "bus/event_source/devices"), r"cpu.*|armv.*")
    if not devices:
        return Check(name="perf", verdict="skipped", found="this machine shows no hardware counters", consequence=text)
    return Check(name="perf", verdict="ok", found=f"{', '.join(devices)}, perf_event_paranoid {level}")


def packages(wanted: dict[str, str], installed: Callable[[str], bool]) -> Iterable[Check]:
    """Python packages that the daemons import."""
    missing = {name: use for name, use in wanted.items() if not installed(name)}
    if not missing:
        return [Check(name="packages", verdict="ok", found="all that a standalone machine needs")]
    advice = "pip install 'slacktide[all]'"
    return [
        Check(name=f"package {name}", verdict="problem", found="not installed", consequence=f"{use} needs it: {advice}")
        for name, use in missing.items()
    ]


def directory(root: str) -> list[Check]:
    """State directory: path length, format, space. Nothing is made."""
    checks = [_state_check("socket path", lambda: state.check_socket_paths(root), f"short enough below {root}")]
    existing = root
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    checks.append(_state_check("state", lambda: state.find(root), _state_text(root)))
    if os.access(existing, os.W_OK):
        facts = os.statvfs(existing)
        free = f"{format_bytes(facts.f_bavail * facts.f_frsize)} free for {root}"
        checks.append(_state_check("space", lambda: state.check_space(existing), free))
    else:
        text = "choose a directory of your own with --state"
        checks.append(Check(name="space", verdict="problem", found=f"{existing} cannot be written", consequence=text))
    return checks


def _state_text(root: str) -> str:
    holder = state.holder(root) if os.path.isdir(root) else None
    if holder is not None:
        return f"{root}: running, supervisor {holder.pid}"
    return f"{root}: {'there, not running' if os.path.isdir(root) else 'not made yet'}"


def _state_check(name: str, check: Callable[[], object], found: str) -> Check:
    try:
        check()
    except StateError as error:
        return Check(name=name, verdict="problem", found=str(error), consequence="`slacktide up` refuses to start")
    return Check(name=name, verdict="ok", found=found)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _delegated(mount: str) -> bool:
    return "cpu" in _text(os.path.join(mount, "cgroup.subtree_control")).split()


def _text(path: str) -> str:
    """Content of a kernel file; "" for one that is missing or cannot be read."""
    try:
        return read_text(path)
    except KernelError:
        return ""


def _list(path: str, pattern: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path) if re.fullmatch(pattern, name))
    except OSError:
        return []
