"""Which CPUs BE may run on, when it gets only some: pure choice over topology.

A core is never split between LS and BE when whole cores can be had: the number of CPUs is rounded down to whole
cores, and up to one core at least, unless the machine has only one. Cores are dealt pro rata over NUMA nodes, one by
one to the node that is the furthest below its share, so a node with too few leaves the rest to the others
(koordinator returned an empty set there). Within a node BE keeps what it has, then grows inside the caches that it
uses already: few changes, few caches. Single CPUs of cores that are not free as a whole come last.

The answer is never empty while `free` is not: an empty cpuset cannot be set (ENOSPC), and stops pods from starting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.threads import Mask
from agent.topology import Cpu, Topology

NONE: Mask = frozenset()


@dataclass(frozen=True, slots=True)
class _Core:
    cpus: Mask
    id: int
    numa: int
    llc: int


def choose(topology: Topology, free: Mask, count: int, held: Mask = NONE) -> Mask:
    """About `count` CPUs out of `free`, as near as may be to those in `held`; see the module.

    Never more than `count` unless that is less than a core; empty only when none of `free` is online.
    """
    free &= topology.ids
    cores = [_core(cpus) for cpus in topology.cores()]
    whole = [core for core in cores if core.cpus <= free]
    wanted = max(1, count)
    sizes = {node: sum(cpu.numa == node for cpu in topology.cpus) for node in {cpu.numa for cpu in topology.cpus}}
    chosen = _dealt(whole, sizes, wanted, held)
    if not chosen and whole and len(cores) > 1:
        return _ordered(whole, held)[0].cpus
    if len(chosen) == sum(len(core.cpus) for core in whole) or not chosen:
        parts = [core for core in cores if (len(cores) == 1 or core not in whole) and core.cpus & free]
        chosen |= _singles(parts, free, wanted - len(chosen), held)
    return chosen


def _core(cpus: tuple[Cpu, ...]) -> _Core:
    first = cpus[0]
    return _Core(frozenset(cpu.id for cpu in cpus), first.core, first.numa, first.llc)


def _dealt(cores: Collection[_Core], sizes: Mapping[int, int], count: int, held: Mask) -> Mask:
    """Whole cores with at most `count` CPUs, spread over NUMA nodes by their `sizes` in CPUs."""
    queues = {node: _ordered((core for core in cores if core.numa == node), held) for node in sizes}
    taken = dict.fromkeys(queues, 0)
    chosen: Mask = NONE
    while True:
        fitting = [node for node, queue in queues.items() if queue and len(queue[0].cpus) + len(chosen) <= count]
        if not fitting:
            return chosen
        node = min(fitting, key=lambda node: ((taken[node] + len(queues[node][0].cpus)) / sizes[node], -node))
        core = queues[node].pop(0)
        taken[node] += len(core.cpus)
        chosen |= core.cpus


def _ordered(cores: Iterable[_Core], held: Mask) -> list[_Core]:
    """BE's own cores first, then those in caches where it has the most, then from the highest down.

    From above, since the lowest CPUs take most of the machine's interrupts and housekeeping.
    """
    cores = list(cores)
    in_cache = _held_by_cache(cores, held)
    return sorted(cores, key=lambda core: (-len(core.cpus & held), -in_cache[core.llc], -core.llc, -core.id))


def _held_by_cache(cores: Iterable[_Core], held: Mask) -> Mapping[int, int]:
    counts: dict[int, int] = {}
    for core in cores:
        counts[core.llc] = counts.get(core.llc, 0) + len(core.cpus & held)
    return counts


def _singles(cores: Iterable[_Core], free: Mask, count: int, held: Mask) -> Mask:
    """Up to `count` CPUs, core by core."""
    cpus = [
        cpu
        for core in _ordered(cores, held)
        for cpu in sorted(core.cpus & free, key=lambda cpu: (cpu not in held, -cpu))
    ]
    return frozenset(cpus[: max(0, count)])
