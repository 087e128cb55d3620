from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.policy.cpuset_choice import choose
from agent.threads import format_cpus
from agent.topology import Cpu, Topology, flat
from tests.agent.nodes import machine

TWO_SOCKETS = machine(nodes=2, cores=4, threads=2)
"""CPUs 0-3 and 8-11 on node 0, 4-7 and 12-15 on node 1."""


def picked(topology, count, free=None, held=frozenset()):
    return format_cpus(choose(topology, topology.ids if free is None else frozenset(free), count, held))


@pytest.mark.parametrize(
    ("count", "cpus"),
    [(1, "7,15"), (2, "7,15"), (3, "7,15"), (4, "3,7,11,15"), (6, "3,6-7,11,14-15"), (16, "0-15"), (99, "0-15")],
)
def test_whole_cores_dealt_over_the_nodes(count, cpus):
    assert picked(TWO_SOCKETS, count) == cpus


def test_koordinator_372_cores_are_spread_over_the_nodes_evenly():
    chosen = choose(TWO_SOCKETS, TWO_SOCKETS.ids, 8)
    by_node = [len(chosen & {cpu.id for cpu in TWO_SOCKETS.cpus if cpu.numa == node}) for node in (0, 1)]
    assert by_node == [4, 4]


def test_koordinator_row_14_what_a_small_pool_lacks_comes_from_the_other():
    free = {0, 8, *range(4, 8), *range(12, 16)}
    assert picked(TWO_SOCKETS, 8, free) == "0,5-8,13-15"
    assert picked(TWO_SOCKETS, 10, free) == "0,4-8,12-15"


def test_katalyst_cccc115a_nodes_of_unequal_size_get_unequal_parts():
    uneven = Topology(tuple(Cpu(cpu, cpu, 0 if cpu < 12 else 1, 0) for cpu in range(16)))
    chosen = choose(uneven, uneven.ids, 8)
    assert len([cpu for cpu in chosen if cpu < 12]) == 6


def test_a_machine_with_a_single_core_is_split_since_there_is_no_other():
    assert picked(machine(cores=1, threads=2), 1) == "1"


def test_cores_that_are_not_free_as_a_whole_come_last():
    topology = machine(cores=4, threads=2)
    assert picked(topology, 2, {0, 1, 2, 3, 7}) == "3,7"
    assert picked(topology, 4, {0, 1, 2, 3, 7}) == "1-3,7"
    assert picked(topology, 1, {0, 1}) == "1"


def test_be_keeps_what_it_has_and_grows_in_its_own_caches():
    topology = machine(cores=8, threads=1, llcs=2)
    assert picked(topology, 2, held=frozenset({1, 2})) == "1-2"
    assert picked(topology, 3, held=frozenset({1, 2})) == "1-3"
    assert picked(topology, 5, held=frozenset({1, 2})) == "0-3,7"
    assert picked(topology, 1, held=frozenset({1, 2, 7})) == "2"


def test_a_cpu_that_went_offline_is_not_chosen():
    assert picked(flat(2), 2, {0, 1, 2, 3}) == "0-1"
    assert choose(flat(2), frozenset({7}), 1) == frozenset()


def test_cpus_with_holes_in_their_numbers():
    sparse = Topology((Cpu(0, 0, 0, 0), Cpu(5, 5, 0, 0), Cpu(16, 16, 3, 9), Cpu(23, 23, 3, 9)))
    assert picked(sparse, 2) == "5,23"


machines = st.builds(
    machine,
    nodes=st.integers(1, 4),
    cores=st.sampled_from([1, 2, 4, 8]),
    threads=st.sampled_from([1, 2, 4]),
    llcs=st.sampled_from([1, 2]),
)


@given(topology=machines, data=st.data())
def test_never_empty_never_outside_never_more_never_a_split_core_beside_a_whole_one(topology, data):
    ids = sorted(topology.ids)
    free = frozenset(data.draw(st.sets(st.sampled_from(ids), min_size=1)))
    held = frozenset(data.draw(st.sets(st.sampled_from(ids))))
    count = data.draw(st.integers(0, len(ids) + 3))
    chosen = choose(topology, free, count, held)
    cores = [frozenset(cpu.id for cpu in core) for core in topology.cores()]
    whole = [core for core in cores if core <= free]
    size = len(cores[0])
    assert chosen
    assert chosen <= free
    assert len(chosen) <= max(count, size)
    if len(cores) > 1:
        split = [core for core in whole if chosen & core and not core <= chosen]
        assert split == []
        if any(chosen & core for core in cores if core not in whole):
            assert all(core <= chosen for core in whole)
    if count >= len(free):
        assert chosen == free


@given(topology=machines, data=st.data())
def test_the_same_count_changes_nothing_and_another_count_only_adds_or_takes(topology, data):
    first, second = (data.draw(st.integers(1, len(topology.ids))) for _ in range(2))
    held = choose(topology, topology.ids, first)
    assert choose(topology, topology.ids, first, held) == held
    after = choose(topology, topology.ids, second, held)
    assert after <= held or held <= after


@given(topology=machines, data=st.data())
def test_nodes_differ_by_one_core_at_most(topology, data):
    chosen = choose(topology, topology.ids, data.draw(st.integers(1, len(topology.ids))))
    nodes = sorted({cpu.numa for cpu in topology.cpus})
    counts = [len({cpu.core for cpu in topology.cpus if cpu.numa == node and cpu.id in chosen}) for node in nodes]
    assert max(counts) - min(counts) <= 1
