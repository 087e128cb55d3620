from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.counters import CpuCounters, MemoryReading, NodeCounters, PodReading, PsiTotals, RunDelay
from agent.pressure import (
    MAX_NATURAL_LOAD,
    erlang_c,
    natural_wait,
    pressure_of,
    psi_pressure,
    psi_share,
    sum_deltas,
)
from agent.snapshot import (
    ContainerIdentity,
    ContainerSnapshot,
    Found,
    Naming,
    PodIdentity,
    Sweep,
    build,
    cpu_rate_millis,
    throttled_ratio,
)
from slacktide.status import Usage
from slacktide.tier import Tier

CAPACITY = Usage(cpu_millis=2000, memory_bytes=1000)


def cpu(at, usage_ns, **more):
    return CpuCounters(at=at, usage_ns=usage_ns, **more)


def node(at, busy, available=600):
    return NodeCounters(
        at=at,
        capacity_cpu_millis=2000,
        busy_seconds=busy,
        steal_seconds=0.0,
        capacity_memory_bytes=1000,
        memory_available_bytes=available,
    )


def sweep(at, busy, pods, vanished=0):
    """`pods`: uid -> (usage_ns or None, memory or None); the inode is the length of the uid."""
    return Sweep(
        at=at,
        node=node(at, busy) if busy is not None else None,
        groups=tuple(Found(group=f"p/{uid}", inode=len(uid), uid=uid) for uid in pods),
        readings={
            (f"p/{uid}", len(uid)): PodReading(
                cpu=cpu(at, usage) if usage is not None else None,
                memory=MemoryReading(working_set_bytes=memory) if memory is not None else None,
            )
            for uid, (usage, memory) in pods.items()
        },
        vanished=vanished,
    )


def identity(uid, tier):
    return PodIdentity(namespace="d", name=uid, uid=uid, tier=tier)


PODS = {"ls": identity("ls", Tier.LS), "be-1": identity("be-1", Tier.BE)}


def made(before, after, pods=PODS):
    return build(before, after, pods, period_seconds=1.0, capacity=CAPACITY)


def test_the_split_adds_up():
    before = sweep(10.0, 100.0, {"ls": (0, 100), "be-1": (0, 50)})
    after = sweep(11.0, 101.5, {"ls": (600_000_000, 110), "be-1": (700_000_000, 60)})
    snapshot = made(before, after)
    assert snapshot.node == Usage(cpu_millis=1500, memory_bytes=400)
    assert snapshot.of(Tier.LS) == Usage(cpu_millis=600, memory_bytes=110)
    assert snapshot.of(Tier.BE) == Usage(cpu_millis=700, memory_bytes=60)
    assert snapshot.of(Tier.SYSTEM) == Usage(cpu_millis=200, memory_bytes=230)
    assert snapshot.node_busy_ratio == pytest.approx(0.75)


def test_without_an_earlier_sweep_no_rate_is_known():
    snapshot = made(None, sweep(10.0, 100.0, {"ls": (5, 1), "be-1": (5, 1)}))
    assert snapshot.node.cpu_millis is None
    assert [snapshot.of(tier).cpu_millis for tier in Tier] == [None, None, None]


def test_system_is_never_negative():
    before = sweep(10.0, 100.0, {"ls": (0, 300)})
    after = sweep(11.0, 100.5, {"ls": (900_000_000, 500)})
    assert made(before, after).of(Tier.SYSTEM) == Usage(cpu_millis=0, memory_bytes=0)


@pytest.mark.parametrize("hole", ["ls", "be-1"])
def test_a_hole_in_a_tier_makes_it_and_system_unknown(hole):
    good = {"ls": (0, 1), "be-1": (0, 1)}
    after = sweep(11.0, 101.0, {**good, hole: (None, None)})
    snapshot = made(sweep(10.0, 100.0, good), after)
    assert snapshot.of(PODS[hole].tier).cpu_millis is None
    assert snapshot.of(Tier.SYSTEM) == Usage()


def test_a_pod_seen_for_the_first_time_began_at_zero():
    before = sweep(10.0, 100.0, {"ls": (0, 1)})
    after = sweep(11.0, 101.0, {"ls": (0, 1), "be-1": (250_000_000, 1)})
    assert made(before, after).of(Tier.BE).cpu_millis == 250


def test_a_pod_that_was_listed_but_not_read_has_no_rate():
    before = sweep(10.0, 100.0, {"ls": (0, 1), "be-1": (None, 1)})
    after = sweep(11.0, 101.0, {"ls": (0, 1), "be-1": (250_000_000, 1)})
    assert made(before, after).of(Tier.BE).cpu_millis is None


def test_a_cgroup_of_nobody_is_system_and_counted():
    before = sweep(10.0, 100.0, {"ls": (0, 1), "stranger": (0, 1)})
    after = sweep(11.0, 101.0, {"ls": (0, 1), "stranger": (800_000_000, 1)}, vanished=2)
    snapshot = made(before, after)
    assert (snapshot.unmatched, snapshot.vanished) == (1, 2)
    assert snapshot.of(Tier.SYSTEM).cpu_millis == 1000


def test_a_recreated_path_is_a_new_baseline():
    before = sweep(10.0, 100.0, {"ls": (900_000_000, 1)})
    again = Sweep(
        at=11.0,
        node=node(11.0, 101.0),
        groups=(Found(group="p/ls", inode=99, uid="ls"),),
        readings={("p/ls", 99): PodReading(cpu=cpu(11.0, 100_000_000))},
    )
    assert made(before, again).of(Tier.LS).cpu_millis == 100


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (cpu(1.0, 0), cpu(2.0, 500_000_000), 500),
        (cpu(1.0, 0), cpu(1.5, 500_000_000), 1000),
        (cpu(1.0, 900), cpu(2.0, 100), None),
        (cpu(1.0, 0), cpu(1.0, 100), None),
        (cpu(2.0, 0), cpu(1.0, 100), None),
        (cpu(1.0, 0), cpu(4.5, 100), None),
        (None, cpu(1.0, 100), None),
    ],
)
def test_rates(before, after, expected):
    assert cpu_rate_millis(before, after, 1.0) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [((0, 0), (10, 4), 0.4), ((10, 4), (10, 4), 0.0), ((10, 4), (5, 1), None), ((None, None), (5, 1), None)],
)
def test_throttled_ratio(before, after, expected):
    old = cpu(1.0, 0, periods=before[0], throttled_periods=before[1])
    new = cpu(2.0, 0, periods=after[0], throttled_periods=after[1])
    assert throttled_ratio(old, new) == expected


@given(ls=st.integers(0, 4000), be=st.integers(0, 4000), busy=st.integers(0, 4000), seconds=st.floats(0.1, 2.9))
def test_the_parts_never_exceed_the_node_or_go_below_zero(ls, be, busy, seconds):
    before = sweep(10.0, 100.0, {"ls": (0, 1), "be-1": (0, 1)})
    after = sweep(
        10.0 + seconds,
        100.0 + busy / 1000 * seconds,
        {"ls": (int(ls * 1e6 * seconds), 1), "be-1": (int(be * 1e6 * seconds), 1)},
    )
    snapshot = made(before, after)
    system = snapshot.of(Tier.SYSTEM).cpu_millis
    assert system is not None
    assert snapshot.node.cpu_millis is not None
    assert 0 <= system <= snapshot.node.cpu_millis


def delay(times, threads=None):
    return RunDelay(at=0.0, times=times, threads=len(times) if threads is None else threads)


def test_run_delay_sums_threads_that_both_readings_hold_and_scales_to_all():
    waited = sum_deltas(delay({1: (0, 0), 2: (10, 10), 3: (5, 5)}), delay({1: (100, 50), 2: (5, 20), 4: (9, 9)}, 3))
    assert waited is not None
    assert (waited.run_ns, waited.delay_ns) == (300, 150)


def test_run_delay_of_nobody_is_unknown():
    assert sum_deltas(delay({}), delay({1: (1, 1)})) is None
    assert pressure_of(None, 1.0, 2) is None


def test_an_ls_that_hardly_ran_does_not_make_a_ratio_of_noise():
    waited = sum_deltas(delay({1: (0, 0)}), delay({1: (1000, 900_000)}))
    pressure = pressure_of(waited, 1.0, 2)
    assert pressure is not None
    assert pressure.value == pytest.approx(0.0009 / 0.05)


@pytest.mark.parametrize(("load", "cpus", "wait"), [(0.6, 2, 0.5625), (0.5, 1, 1.0), (0.0, 4, 0.0)])
def test_natural_wait_of_a_queue(load, cpus, wait):
    assert natural_wait(load, cpus) == pytest.approx(wait)


@given(load=st.floats(0, 0.99), cpus=st.integers(1, 64))
def test_erlang_is_a_probability_and_natural_wait_is_bounded(load, cpus):
    assert 0 <= erlang_c(load, cpus) <= 1
    assert 0 <= natural_wait(load, cpus) <= natural_wait(MAX_NATURAL_LOAD, cpus)


def test_psi_shares():
    assert psi_share(PsiTotals(some_us=0, full_us=None), PsiTotals(some_us=25_000, full_us=None), 0.05) == 0.5
    assert psi_share(PsiTotals(some_us=9, full_us=None), PsiTotals(some_us=0, full_us=None), 0.05) is None
    assert psi_pressure([], 0.5, 2, 1.0) is None
    pressure = psi_pressure([0.1, 0.7], 0.6, 2, 1.0)
    assert pressure is not None
    assert pressure.value == 0.7
    assert pressure.natural == pytest.approx(erlang_c(0.6, 2))


def test_names_that_were_made_before_follow_the_listing_and_the_api():
    naming = Naming()
    found = Found(group="p/a", inode=1, uid="a", containers=(ContainerSnapshot(group="p/a/c", id="c"),))
    unnamed = identity("a", Tier.BE)
    assert [one.name for one in naming.of(found, unnamed)] == [""]
    known = replace(unnamed, containers=(ContainerIdentity(name="main", id="c"),))
    first = naming.of(found, known)
    assert [one.name for one in first] == ["main"]
    assert naming.of(found, known) is first
    grown = replace(found, containers=(*found.containers, ContainerSnapshot(group="p/a/d", id="d")))
    assert [one.name for one in naming.of(grown, known)] == ["main", ""]
    recreated = replace(found, inode=2, containers=())
    assert naming.of(recreated, known) == ()
    naming.keep(0)
    assert naming.of(found, known) is not first
