"""CPUs of the machine as plain values: cores, NUMA nodes and caches. Read by `agent.host.topology`.

Numbers are the kernel's CPU, node and cache ids, which may have holes. A machine (or a container) that hides a part
gives one core a CPU, one NUMA node, one cache: never an empty answer.
Source: Linux Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """One online CPU. `core` is unique in the machine (lowest CPU of its SMT siblings), `llc` is the cache's id."""

    id: int
    core: int
    numa: int
    llc: int


@dataclass(frozen=True, slots=True)
class Topology:
    """Online CPUs, sorted by id."""

    cpus: tuple[Cpu, ...]

    @property
    def ids(self) -> frozenset[int]:
        """Ids of all online CPUs."""
        return frozenset(cpu.id for cpu in self.cpus)

    @property
    def smt(self) -> bool:
        """Whether any core has more than one online CPU."""
        return len({cpu.core for cpu in self.cpus}) < len(self.cpus)

    def siblings(self, cpu_id: int) -> frozenset[int]:
        """CPUs of the same core, with `cpu_id` itself. Raises KeyError for a CPU that is not online."""
        core = next((cpu.core for cpu in self.cpus if cpu.id == cpu_id), None)
        if core is None:
            raise KeyError(cpu_id)
        return frozenset(cpu.id for cpu in self.cpus if cpu.core == core)

    def zones(self) -> dict[int, int]:
        """Number of online CPUs in each NUMA node that has any, by its id."""
        sizes: dict[int, int] = {}
        for cpu in self.cpus:
            sizes[cpu.numa] = sizes.get(cpu.numa, 0) + 1
        return dict(sorted(sizes.items()))

    def cores(self) -> tuple[tuple[Cpu, ...], ...]:
        """CPUs by core, cores sorted by their lowest CPU."""
        by_core: dict[int, list[Cpu]] = {}
        for cpu in self.cpus:
            by_core.setdefault(cpu.core, []).append(cpu)
        return tuple(tuple(by_core[core]) for core in sorted(by_core))


def flat(cpus: int) -> Topology:
    """A machine about which nothing but the number of CPUs is known."""
    return Topology(tuple(Cpu(number, number, 0, 0) for number in range(cpus)))
