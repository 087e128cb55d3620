"""Snapshots of a small node, for tests of policies: two CPUs, one LS and one BE pod, all calm."""

from __future__ import annotations

from dataclasses import replace

from agent.capabilities import Capabilities, Knob
from agent.counters import CpuKnobs
from agent.policy.base import Context
from agent.policy.shortage import ShortageSettings, shortage
from agent.pressure import Pressure
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from agent.topology import Cpu, Topology
from slacktide.status import Usage
from slacktide.tier import Tier

GIB = 1 << 30
ALL = Capabilities(
    mode="v2",
    cpu_version=2,
    memory_version=2,
    kernel=(6, 1),
    writable=frozenset(Knob),
    run_delay=True,
    reclaim=True,
    kill=True,
)
CONTEXT = Context(capabilities=ALL)
CALM = Pressure(kind="run-delay", value=0.5, natural=0.5, window_seconds=0.25)
NEAR = Pressure(kind="run-delay", value=1.3, natural=0.5, window_seconds=0.25)
SHORT = Pressure(kind="run-delay", value=3.0, natural=0.5, window_seconds=0.25)
DRILL = Pressure(kind="drill", value=10.0, window_seconds=0.25)


def pod(name, tier=Tier.BE, cpu=500, *, memory=None, identity=None, **more):
    who = PodIdentity(namespace="d", name=name, uid=name, tier=tier, **(identity or {}))
    known = {"knobs": CpuKnobs(), **more}
    return PodSnapshot(
        identity=who, group=f"kubepods/{name}", usage=Usage(cpu_millis=cpu, memory_bytes=memory), **known
    )


def node(ls=1200, system=50, be=600, pressure=CALM, pods=None, busy=0.95, at=100.0, capacity=2000, **more):
    """A snapshot, judged as the loop does it."""
    known = {"memory_available_bytes": 8 * GIB, **more}
    snapshot = NodeSnapshot(
        at=at,
        window_seconds=1.0,
        capacity=Usage(cpu_millis=capacity, memory_bytes=10 * GIB),
        tiers={
            Tier.LS: Usage(cpu_millis=ls),
            Tier.BE: Usage(cpu_millis=be),
            Tier.SYSTEM: Usage(cpu_millis=system),
        },
        pods=pods if pods is not None else (pod("ls", Tier.LS), pod("be")),
        pressure=pressure,
        node_busy_ratio=busy,
        **known,
    )
    return judged(snapshot)


def judged(snapshot, settings=None, baselines=None):
    return replace(snapshot, shortage=shortage(snapshot, settings or ShortageSettings(), baselines or {}))


def turns(snapshot, count, seconds=1.0, start=None):
    """The same picture again and again."""
    begin = snapshot.at if start is None else start
    return [replace(snapshot, at=begin + number * seconds) for number in range(count)]


def machine(nodes=1, cores=4, threads=2, llcs=1):
    """A topology: `cores` and `llcs` a NUMA node, siblings numbered as on most servers (0 and N, 1 and N + 1, ...)."""
    total = nodes * cores
    cpus = []
    for thread in range(threads):
        for core in range(total):
            numa = core // cores
            llc = numa * llcs + (core % cores) * llcs // cores
            cpus.append(Cpu(thread * total + core, core, numa, llc))
    return Topology(tuple(sorted(cpus)))
