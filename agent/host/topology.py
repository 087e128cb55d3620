"""CPUs of the machine from sysfs: SMT siblings, NUMA nodes and last-level caches.

A part that is hidden (a container, a virtual machine, an old kernel) gives one core a CPU, one NUMA node, one cache;
content that makes no sense gives a flat machine; both with the reason in words. The last-level cache of a CPU is its
data cache of the highest level, whatever that is: cores without L3 beside cores with it share their L2. CPUs that are
off line are in no list, and ids have holes. What one CPU says of its siblings and of its cache is taken for all of
them, so that a machine of 256 CPUs costs some hundred small reads.
Source: Linux Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu,
Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from agent.topology import Cpu, Topology, flat
from slacktide.errors import Gone, KernelError, Refused
from slacktide.kernel.files import read_text
from slacktide.observe import get_logger

REFRESH_SECONDS: Final = 60.0

_LOG: Final = get_logger("agent.topology")
_CPUS: Final = "devices/system/cpu"
_NODES: Final = "devices/system/node"
_LIST: Final = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_NODE: Final = re.compile(r"node([0-9]{1,6})")
_INDEX: Final = re.compile(r"index[0-9]{1,3}")
_SIBLINGS: Final = ("core_cpus_list", "thread_siblings_list")
"""The second is the older name of the first."""

_MOST_CPUS: Final = 1 << 16


class _Cache(NamedTuple):
    """The last-level cache as one of its CPUs shows it. `id` is None where the kernel gives none."""

    level: int
    id: int | None
    cpus: frozenset[int]


class TopologyReader:
    """Reads the topology now and then; `read` costs one small file as long as no CPU came or went.

    `why_not` says what is hidden or cannot be believed; empty when everything was read.
    """

    def __init__(self, sys_root: str = "/sys", clock: Callable[[], float] = time.monotonic) -> None:
        self.why_not = ""
        self._root = sys_root
        self._clock = clock
        self._lock = threading.Lock()
        self._online: str | None = None
        self._read_at = float("-inf")
        self._known = flat(1)

    def read(self) -> Topology:
        """The online CPUs as they are now, from any thread. Raises nothing."""
        with self._lock:
            now, online = self._clock(), self._online_text()
            if online != self._online or now - self._read_at >= REFRESH_SECONDS:
                self._online, self._read_at = online, now
                self._known, why_not = read_topology(self._root)
                if why_not != self.why_not:
                    self._say(why_not)
                self.why_not = why_not
            return self._known

    def _online_text(self) -> str:
        try:
            return read_text(f"{self._root}/{_CPUS}/online")
        except KernelError:
            return ""

    def _say(self, why_not: str) -> None:
        if why_not:
            _LOG.warning("CPU topology is not known in full", reason=why_not, cpus=len(self._known.cpus))
        else:
            _LOG.info("CPU topology is known", cpus=len(self._known.cpus))


def read_topology(sys_root: str) -> tuple[Topology, str]:
    """Topology, and what is hidden or cannot be believed (empty: nothing). Raises nothing."""
    try:
        online = _cpus_in(read_text(f"{sys_root}/{_CPUS}/online"), f"{sys_root}/{_CPUS}/online")
        if not online:
            raise Refused(f"{sys_root}/{_CPUS}/online", None, "names no CPU")
    except KernelError as error:
        return flat(os.cpu_count() or 1), f"the list of online CPUs cannot be used, one core a CPU is assumed: {error}"
    try:
        cores, no_cores = _cores(sys_root, online)
        nodes, no_nodes = _nodes(sys_root, online)
        caches, no_caches = _caches(sys_root, online)
    except KernelError as error:
        return _flat_of(online), f"sysfs cannot be believed, one core a CPU and one cache are assumed: {error}"
    cpus = tuple(Cpu(cpu, cores[cpu], nodes[cpu], caches[cpu]) for cpu in sorted(online))
    return Topology(cpus), "; ".join(reason for reason in (no_cores, no_nodes, no_caches) if reason)


def _flat_of(online: Iterable[int]) -> Topology:
    return Topology(tuple(Cpu(cpu, cpu, 0, 0) for cpu in sorted(online)))


def _cores(root: str, online: frozenset[int]) -> tuple[Mapping[int, int], str]:
    """Lowest online sibling by CPU."""
    core: dict[int, int] = {}
    hidden: list[int] = []
    for cpu in sorted(online):
        if cpu in core:
            continue
        siblings = _siblings(root, cpu)
        if siblings is None:
            hidden.append(cpu)
            siblings = frozenset({cpu})
        _claim(core, siblings & online, cpu, f"{root}/{_CPUS}/cpu{cpu}/topology", shown_by=cpu)
    reason = f"SMT siblings of {len(hidden)} CPUs are hidden: each is taken for a core" if hidden else ""
    return core, reason


def _siblings(root: str, cpu: int) -> frozenset[int] | None:
    for name in _SIBLINGS:
        text = _text_of(f"{root}/{_CPUS}/cpu{cpu}/topology/{name}")
        if text is not None:
            return _cpus_in(text, f"{root}/{_CPUS}/cpu{cpu}/topology/{name}")
    return None


def _nodes(root: str, online: frozenset[int]) -> tuple[Mapping[int, int], str]:
    """NUMA node by CPU. Nodes of memory alone have no CPU."""
    node: dict[int, int] = {}
    for name in _listed(f"{root}/{_NODES}"):
        match = _NODE.fullmatch(name)
        path = f"{root}/{_NODES}/{name}/cpulist"
        text = _text_of(path) if match is not None else None
        if match is not None and text is not None:
            _claim(node, _cpus_in(text, path) & online, int(match[1]), path)
    missing = online - node.keys()
    if not missing:
        return node, ""
    lowest = min(node.values(), default=0)
    reason = f"the NUMA node of {len(missing)} CPUs is hidden: node {lowest} is assumed"
    return {**node, **dict.fromkeys(missing, lowest)}, reason


def _caches(root: str, online: frozenset[int]) -> tuple[Mapping[int, int], str]:
    """Last-level cache by CPU: the kernel's id, or (no ids, or ids that mean two caches) its lowest CPU."""
    owner: dict[int, int] = {}
    last: dict[int, _Cache] = {}
    for cpu in sorted(online):
        if cpu in owner:
            continue
        cache = _last_cache(f"{root}/{_CPUS}/cpu{cpu}/cache")
        if cache is not None:
            _claim(owner, cache.cpus & online, cpu, f"{root}/{_CPUS}/cpu{cpu}/cache", shown_by=cpu)
            last[cpu] = cache
    ids = {cpu: cache.id for cpu, cache in last.items() if cache.id is not None}
    levels, missing = {cache.level for cache in last.values()}, online - owner.keys()
    named = not missing and len(levels) == 1 and len(ids) == len(last) == len(set(ids.values()))
    if not missing:
        return ({cpu: ids[lowest] for cpu, lowest in owner.items()} if named else owner), ""
    reason = f"the caches of {len(missing)} CPUs are hidden: one cache is assumed for them"
    return {**owner, **dict.fromkeys(missing, min(missing) if last else 0)}, reason


def _last_cache(directory: str) -> _Cache | None:
    """The data cache of the highest level among those of a CPU; None where none is shown."""
    levels: dict[int, str] = {}
    for name in _listed(directory):
        path = f"{directory}/{name}"
        if not _INDEX.fullmatch(name) or (number := _text_of(f"{path}/level")) is None:
            continue
        if (_text_of(f"{path}/type") or "").strip() != "Instruction":
            levels[_number_in(number, f"{path}/level")] = path
    for level in sorted(levels, reverse=True):
        path = levels[level]
        cpus = _text_of(f"{path}/shared_cpu_list")
        if cpus is not None:
            text = _text_of(f"{path}/id")
            identity = _number_in(text, f"{path}/id") if text is not None else None
            return _Cache(level, identity, _cpus_in(cpus, f"{path}/shared_cpu_list"))
    return None


def _claim(owner: dict[int, int], cpus: frozenset[int], value: int, path: str, *, shown_by: int | None = None) -> None:
    """Give each CPU its value. Raises Refused for a CPU that has another, or a group without the CPU that shows it."""
    if shown_by is not None and shown_by not in cpus:
        raise Refused(path, None, f"names a group without CPU {shown_by} itself")
    taken = sorted(cpu for cpu in cpus if cpu in owner)
    if taken:
        raise Refused(path, None, f"claims CPU {taken[0]}, which is in another group too")
    owner.update(dict.fromkeys(cpus, value))


def _listed(directory: str) -> list[str]:
    """Names in a directory, sorted; none where it is missing or cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text_of(path: str) -> str | None:
    """Content of a file; None where there is none. Raises other KernelErrors."""
    try:
        return read_text(path)
    except Gone:
        return None


def _cpus_in(text: str, path: str) -> frozenset[int]:
    """CPUs of a list such as `0-3,8`; none for an empty one. Raises Refused for anything else."""
    text = text.strip()
    if text and not _LIST.fullmatch(text):
        raise Refused(path, None, f"expected a list of CPUs, found {text[:40]!r}")
    cpus: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= _MOST_CPUS:
            raise Refused(path, None, f"expected a list of CPUs, found {part!r}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _number_in(text: str, path: str) -> int:
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise Refused(path, None, f"expected one number, found {text[:40]!r}")
    return int(text)
