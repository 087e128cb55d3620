"""Rates of what is read by turns, and the parts of the snapshot that come of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.counters import (
    CpuCounters,
    IoReading,
    MemoryReading,
    NodeCounters,
    PidsReading,
    PodPsi,
    PodReading,
    PsiTotals,
)
from agent.rates import gap, io_rate, memory_high_rate, per_second, stalls
from agent.snapshot import ContainerIdentity, ContainerSnapshot, Found, PodIdentity, Sweep, build
from slacktide.status import Usage
from slacktide.tier import Tier

CAPACITY = Usage(cpu_millis=2000, memory_bytes=1000)
IDENTITY = PodIdentity(
    namespace="d",
    name="p",
    uid="u",
    tier=Tier.LS,
    containers=(ContainerIdentity(name="main", id="c1"), ContainerIdentity(name="waits")),
)
CONTAINERS = (ContainerSnapshot(group="k/u/c1", id="c1"), ContainerSnapshot(group="k/u/c9", id="c9"))


def memory(at, high=0):
    return MemoryReading(working_set_bytes=5, at=at, high_events=high)


def io(at, read=0, write=0):
    return IoReading(at=at, read_bytes=read, write_bytes=write, read_operations=0, write_operations=0)


def psi(at, some, full=0):
    totals = PsiTotals(some_us=some, full_us=full)
    return PodPsi(at=at, cpu=PsiTotals(some_us=some, full_us=None), memory=totals, io=totals)


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [(1.0, 1.0), (3.0, 3.0), (0.0, None), (-5.0, None), (3.1, None), (7200.0, None)],
    ids=["a period", "three", "no time", "clock set back", "stalled", "suspended"],
)
def test_gaps_that_make_no_rate(elapsed, expected):
    # kernel.md 5, clock jump: k8s#54130, netdata#1313, ceph#33699 (monotonic stepped back).
    assert gap(100.0, 100.0 + elapsed, 1.0) == expected


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.floats(0.001, 100))
def test_a_rate_is_never_negative(before, after, seconds):
    found = per_second(before, after, seconds)
    assert (found is None) == (after < before)
    assert found is None or found >= 0


def test_a_counter_that_fell_is_a_new_baseline():
    # kernel.md 5, psutil#802: a reset or a wrap is no rate.
    assert memory_high_rate(memory(1.0, 10), memory(2.0, 3), 1.0) is None
    assert io_rate(io(1.0, 5, 5), io(2.0, 9, 4), 1.0) is None
    assert stalls(psi(1.0, 500), psi(2.0, 400), 1.0).cpu is None
    assert io_rate(io(1.0, 5, 5), io(2.0, 9, 8), 1.0) == 7.0


def test_shares_of_time_are_at_most_one():
    found = stalls(psi(1.0, 0), psi(2.0, 9_000_000, 500_000), 1.0)
    assert (found.cpu, found.memory, found.memory_full, found.io) == (1.0, 1.0, 0.5, 1.0)


def sweep(at, reading, *, node=None, earlier=None, slow_turns=1, containers=()):
    key = ("k/u", 1)
    return Sweep(
        at=at,
        node=node,
        groups=(Found(group="k/u", inode=1, uid="u", containers=containers),),
        readings={key: reading},
        earlier={key: earlier} if earlier else {},
        slow_turns=slow_turns,
    )


def built(before, after, **more):
    snapshot = build(before, after, {"u": IDENTITY}, period_seconds=1.0, capacity=CAPACITY, **more)
    return snapshot, snapshot.pods[0]


def test_all_parts_of_a_pod():
    reading = PodReading(
        cpu=CpuCounters(at=2.0, usage_ns=10**9),
        memory=memory(2.0, 7),
        io=io(2.0, 30, 12),
        pids=PidsReading(current=4),
        psi=psi(2.0, 250_000),
        cpuset="0-1",
        frozen=False,
    )
    old = PodReading(cpu=CpuCounters(at=1.0, usage_ns=0), memory=memory(1.0, 5), io=io(1.0), psi=psi(1.0, 0))
    _, pod = built(sweep(1.0, old), sweep(2.0, reading, containers=CONTAINERS))
    assert (pod.usage.cpu_millis, pod.usage.memory_bytes, pod.memory.high_events) == (1000, 5, 7)
    assert (pod.memory_high_rate, pod.io_rate, pod.pids) == (2.0, 42.0, 4)
    assert (pod.psi_cpu, pod.psi_memory, pod.psi_io) == (0.25, 0.25, 0.25)
    assert (pod.cpuset, pod.frozen) == ("0-1", False)
    assert [(one.group, one.name) for one in pod.containers] == [("k/u/c1", "main"), ("k/u/c9", "")]


def test_what_was_not_read_is_none_never_zero():
    # peers.md C #889: a missing statistic is unknown and the loop goes on.
    _, pod = built(sweep(1.0, PodReading()), sweep(2.0, PodReading()))
    assert (pod.usage.cpu_millis, pod.usage.memory_bytes, pod.memory, pod.memory_high_rate) == (None,) * 4
    assert (pod.io_rate, pod.pids, pod.psi_cpu, pod.psi_memory, pod.psi_io) == (None,) * 5
    assert (pod.cpi, pod.frozen, pod.cpuset) == (None,) * 3


def test_a_rate_of_the_slow_part_stays_until_its_next_reading():
    now, earlier = PodReading(memory=memory(10.0, 20)), PodReading(memory=memory(5.0, 10))
    for at in (10.0, 11.0, 14.0):
        _, pod = built(sweep(at - 1, now, earlier=earlier, slow_turns=5), sweep(at, now, earlier=earlier, slow_turns=5))
        assert pod.memory_high_rate == 2.0
    late = replace(now, memory=memory(30.0, 20))
    _, pod = built(sweep(29.0, now), sweep(30.0, late, earlier=earlier, slow_turns=5))
    assert pod.memory_high_rate is None, "more than three of its periods"


def node(at, psi_totals=None, swap=(None, None), steal=0.0):
    return NodeCounters(
        at=at,
        capacity_cpu_millis=2000,
        busy_seconds=at,
        steal_seconds=steal,
        capacity_memory_bytes=1000,
        memory_available_bytes=500,
        swap_total_bytes=swap[0],
        swap_free_bytes=swap[1],
        psi=psi_totals,
    )


def test_pressure_and_swap_of_the_node():
    snapshot, _ = built(
        sweep(1.0, PodReading(), node=node(1.0, psi(1.0, 0))),
        sweep(2.0, PodReading(), node=node(2.0, psi(2.0, 400_000, 100_000), (1000, 250))),
    )
    assert (snapshot.node_psi_memory, snapshot.node_psi_memory_full) == (0.4, 0.1)
    assert snapshot.swap_free_ratio == 0.25


@pytest.mark.parametrize("swap", [(None, None), (0, 0), (1000, None)])
def test_a_node_without_swap_has_none_to_run_out_of(swap):
    snapshot, _ = built(None, sweep(2.0, PodReading(), node=node(2.0, swap=swap)))
    assert (snapshot.swap_free_ratio, snapshot.node_psi_memory) == (None, None)


@pytest.mark.parametrize("elapsed", [-1.0, 0.0, 4.0])
def test_steal_and_busy_over_a_suspend_are_unknown(elapsed):
    snapshot, _ = built(
        sweep(10.0, PodReading(), node=node(10.0)),
        sweep(10.0 + elapsed, PodReading(), node=node(10.0 + elapsed, steal=1.0)),
    )
    assert (snapshot.steal_ratio, snapshot.node_busy_ratio) == (None, None)


def test_what_the_hypervisor_took_is_not_idle_and_nobodys_use():
    """On a machine that gets half of its CPU, LS waits at 50 % busy, and BE is what it waits for."""
    snapshot, _ = built(
        sweep(10.0, PodReading(), node=node(10.0)), sweep(11.0, PodReading(), node=node(11.0, steal=0.8))
    )
    assert snapshot.node.cpu_millis == 1000
    assert snapshot.steal_ratio == pytest.approx(0.4)
    assert snapshot.node_busy_ratio == pytest.approx(0.9)


def test_pods_by_tier_follow_the_pods():
    snapshot, pod = built(None, sweep(2.0, PodReading()))
    assert snapshot.pods_of(Tier.LS) == (pod,)
    assert replace(snapshot, pods=()).pods_of(Tier.LS) == ()
    assert snapshot.pods_of(Tier.LS) is snapshot.pods_of(Tier.LS)
