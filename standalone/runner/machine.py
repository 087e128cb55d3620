"""Facts of this machine for its node object, read below an injected root. What cannot be read is None or empty."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from slacktide import __version__
from slacktide.errors import KernelError
from slacktide.kernel.files import read_int, read_text
from slacktide.kernel.hierarchy import Hierarchy, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What does not change while the runner lives. CPU in millicores, memory in bytes."""

    cpu_millis: int
    memory_bytes: int
    kernel: str
    os_image: str
    architecture: str
    machine_id: str
    boot_id: str
    version: str = f"slacktide-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What decides the pressure conditions; None is unknown. `disk_free_bytes` is the least of state and logs."""

    memory_available_bytes: int | None
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    tasks: int | None
    tasks_max: int | None


def meminfo(root: str = "/") -> dict[str, int]:
    """/proc/meminfo in bytes. Raises KernelError."""
    values = {}
    for line in read_text(os.path.join(root, "proc/meminfo")).splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            values[key] = int(number[0]) * 1024
    return values


def read_machine(hierarchy: Hierarchy, root: str = "/") -> Machine:
    """Facts of this machine. Raises KernelError when not even the memory size can be read."""
    return Machine(
        cpu_millis=len(os.sched_getaffinity(0)) * 1000,
        memory_bytes=min([meminfo(root)["MemTotal"], *_memory_limit(hierarchy)]),
        kernel=platform.release(),
        os_image=_os_image(root),
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        machine_id=_text(os.path.join(root, "etc/machine-id")),
        boot_id=_text(os.path.join(root, "proc/sys/kernel/random/boot_id")),
    )


def read_pressure(directories: list[str], root: str = "/") -> Pressure:
    """What memory, disk and process table have left now."""
    try:
        available = meminfo(root).get("MemAvailable") or None
    except KernelError:
        available = None
    free: list[tuple[int, int]] = []
    for directory in directories:
        try:
            stat = os.statvfs(directory)
        except OSError:
            continue
        free.append((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
    least = min(free, default=(None, None))
    return Pressure(
        memory_available_bytes=available,
        disk_free_bytes=least[0],
        disk_total_bytes=least[1],
        tasks=_tasks(root),
        tasks_max=_number(os.path.join(root, "proc/sys/kernel/pid_max")),
    )


def _memory_limit(hierarchy: Hierarchy) -> list[int]:
    """Limit of the cgroup that this machine's mounts begin at (a container's own, where we are in one)."""
    mount = hierarchy.controllers.get("memory")
    if mount is None:
        return []
    name = "memory.max" if mount.version is Version.V2 else "memory.limit_in_bytes"
    limit = _number(os.path.join(mount.path, name))
    return [limit] if limit else []


def _number(path: str) -> int | None:
    try:
        return read_int(path)
    except KernelError:
        return None


def _text(path: str) -> str:
    try:
        return read_text(path).strip()
    except KernelError:
        return ""


def _tasks(root: str) -> int | None:
    fields = _text(os.path.join(root, "proc/loadavg")).split()
    total = fields[3].partition("/")[2] if len(fields) > 3 else ""
    return int(total) if total.isdigit() else None


def _os_image(root: str) -> str:
    for line in _text(os.path.join(root, "etc/os-release")).splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return "Linux"
