"""What holds a cgroup beside its CPU and memory knobs, for reading: whether it is frozen, and the CPUs it may use.

v2 says in cgroup.events whether the freeze is complete; v1 prints FREEZING while it is not. The effective CPUs are
what the kernel goes by: v2 accepts a wider list and narrows it. Source: reference/kernel.md 2.1, 2.2.
"""

from __future__ import annotations

import re
from typing import Final

from agent.host.fds import GroupFiles
from agent.host.parse import flat
from agent.threads import format_cpus, parse_cpus
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Version

CPUSET_FILE: Final = {Version.V1: "cpuset.effective_cpus", Version.V2: "cpuset.cpus.effective"}
_CONFIGURED: Final = "cpuset.cpus"
_V1_STATES: Final = {b"THAWED": False, b"FREEZING": False, b"FROZEN": True}
_LIST: Final = re.compile(rb"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,8191}")
"""No CPU number has more digits, so that a hostile text costs nothing."""


def read_frozen(files: GroupFiles, version: Version) -> bool | None:
    """Whether every task is frozen; None where the kernel does not say. Raises Gone."""
    try:
        if version is Version.V1:
            return _V1_STATES.get(files.cold("freezer.state").strip())
        frozen = flat(files.cold("cgroup.events")).get("frozen")
    except Gone:
        raise
    except KernelError:
        return None
    return None if frozen is None else frozen == 1


def read_cpuset(files: GroupFiles, version: Version) -> str | None:
    """The CPUs that the group may use, in the kernel's form; None where there is no cpuset here. Raises Gone."""
    for name in (CPUSET_FILE[version], _CONFIGURED):
        try:
            found = cpu_list(files.cold(name))
        except Gone:
            raise
        except KernelError:
            continue
        if found:
            return found
    return None


def cpu_list(data: bytes) -> str | None:
    """A CPU list in canonical form; None for an empty one and for anything that is no CPU list."""
    text = data.strip()
    if not _LIST.fullmatch(text):
        return None
    try:
        return format_cpus(parse_cpus(text.decode("ascii"))) or None
    except ValueError:
        return None
