from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.policy.placement import Candidate, place
from agent.threads import ThreadKey
from agent.topology import Cpu, Topology


def many(moves=1000, **more):
    return {"imbalance": 2, "moves": moves, **more}


def one(tid, allowed=(0, 1), **more):
    return Candidate(key=ThreadKey(tid, 1), allowed=frozenset(allowed), **more)


def tids(cpus):
    return {key.tid: cpu for key, cpu in cpus.items()}


def counts(candidates, cpus, fixed=None):
    found = dict(fixed or {})
    for candidate in candidates:
        if candidate.busy:
            cpu = cpus[candidate.key]
            found[cpu] = found.get(cpu, 0) + 1
    return found


@pytest.mark.parametrize(
    ("candidates", "fixed", "others", "want"),
    [
        pytest.param([one(1), one(2), one(3), one(4)], {}, {}, {1: 0, 2: 1, 3: 0, 4: 1}, id="even"),
        pytest.param([one(1)], {}, {0: 0.5, 1: 0.2}, {1: 1}, id="the CPU that others use less"),
        pytest.param([one(1), one(2)], {0: 2}, {}, {1: 1, 2: 1}, id="beside threads that cannot move"),
        pytest.param([one(1), one(2, (0,))], {}, {}, {1: 1, 2: 0}, id="the narrowest first"),
        pytest.param([one(1, cpu=1), one(2, cpu=1), one(3)], {}, {}, {1: 1, 2: 1, 3: 0}, id="new beside old"),
        pytest.param([one(1, cpu=1), one(2, cpu=1)], {}, {}, {1: 1, 2: 0}, id="two apart: one moves"),
        pytest.param([one(1, cpu=1), one(2, cpu=1), one(3, cpu=0)], {}, {}, {1: 1, 2: 1, 3: 0}, id="one apart: none"),
        pytest.param([one(1, cpu=0, busy=False), one(2, cpu=0)], {}, {}, {1: 0, 2: 0}, id="sleepers do not count"),
        pytest.param([one(1, cpu=2), one(2, cpu=1)], {}, {}, {1: 0, 2: 1}, id="a CPU that is not allowed any more"),
        pytest.param([one(1), one(2)], {}, {0: 1.0, 1: 0.1}, {1: 1, 2: 1}, id="a CPU that others fill is avoided"),
    ],
)
def test_where_threads_go(candidates, fixed, others, want):
    assert tids(place(candidates, fixed, others, **many())) == want


def test_the_thread_that_ran_least_moves():
    threads = [one(1, cpu=0, ran=0.4), one(2, cpu=0, ran=0.1), one(3, cpu=0, ran=0.2)]
    assert tids(place(threads, {}, {}, **many())) == {1: 0, 2: 1, 3: 0}


def test_a_starving_thread_leaves_only_for_much_more():
    here = [one(1, cpu=0, ran=0.02, starving=True), one(2, cpu=1, ran=0.4), one(3, cpu=1, ran=0.4)]
    assert tids(place(here, {}, {0: 0.97, 1: 0.1}, **many()))[1] == 1
    assert tids(place(here, {}, {0: 0.6, 1: 0.6}, **many()))[1] == 0
    assert tids(place(here, {}, {0: 0.99, 1: 0.9}, **many()))[1] == 0, "not worth it"
    still = [thread if thread.key.tid > 1 else one(1, cpu=1, ran=0.3) for thread in here]
    assert tids(place(still, {}, {0: 0.97, 1: 0.1}, **many()))[1] == 1, "levelling does not take it back"


def test_moves_are_bounded_and_placing_new_ones_is_not():
    threads = [one(tid, range(4), cpu=0) for tid in range(12)]
    after = tids(place(threads, {}, {}, **many(moves=2)))
    assert sum(cpu != 0 for cpu in after.values()) == 2
    fresh = [one(tid, range(4)) for tid in range(100, 112)]
    after = place(threads + fresh, {}, {}, **many(moves=0))
    assert {cpu for key, cpu in after.items() if key.tid >= 100} == {1, 2, 3}


SMT = Topology(tuple(Cpu(cpu, cpu % 4, cpu % 4 // 2, cpu % 4) for cpu in range(8)))
"""Four cores of two threads (0 and 4, 1 and 5, ...), a cache each, two cores a NUMA node."""


@pytest.mark.parametrize(
    ("candidates", "want"),
    [
        pytest.param([one(tid, range(8)) for tid in range(4)], {0: 0, 1: 1, 2: 2, 3: 3}, id="a core each"),
        pytest.param([one(1, (0, 4, 1)), one(2, (0, 4))], {2: 0, 1: 1}, id="the sibling is no free core"),
        pytest.param([one(1, range(8), near=3), one(2, range(8), near=3)], {1: 3, 2: 2}, id="cache, then NUMA node"),
        pytest.param([one(1, range(8), near=99)], {1: 0}, id="a CPU that is not known"),
        pytest.param([one(1, range(8), cpu=2), one(2, range(8), cpu=6)], {1: 2, 2: 3}, id="off a shared core, near"),
        pytest.param([one(1, (2, 6), cpu=2), one(2, (2, 6), cpu=6)], {1: 2, 2: 6}, id="the workload allows one core"),
        pytest.param(
            [one(1, range(8), cpu=4), one(2, range(8), cpu=4), *(one(10 + cpu, (cpu,)) for cpu in (0, 1, 3, 5))],
            {2: 2},
            id="far only when nothing near fits",
        ),
    ],
)
def test_cores_are_filled_evenly_and_near(candidates, want):
    found = tids(place(candidates, {}, {}, **many(topology=SMT)))
    assert {tid: found[tid] for tid in want} == want


def test_unequal_cores_are_levelled_after_threads_ended():
    threads = [one(1, range(8), cpu=0), one(2, range(8), cpu=4), one(3, range(8), cpu=1), one(4, range(8), cpu=2)]
    assert sorted(cpu % 4 for cpu in tids(place(threads, {}, {}, **many(topology=SMT))).values()) == [0, 1, 2, 3]
    assert tids(place(threads, {}, {}, **many())) == {1: 0, 2: 4, 3: 1, 4: 2}, "without a topology nothing is wrong"


masks = st.frozensets(st.integers(0, 3), min_size=1)
candidate = st.builds(
    lambda tid, allowed, cpu, busy, ran: one(tid, allowed, cpu=cpu, busy=busy, ran=ran),
    st.integers(1, 10_000),
    masks,
    st.none() | st.integers(0, 3),
    st.booleans(),
    st.floats(0, 1),
)
crowd = st.lists(candidate, max_size=20, unique_by=lambda thread: thread.key)


@settings(deadline=None)
@given(
    crowd, st.dictionaries(st.integers(0, 3), st.integers(0, 4)), st.dictionaries(st.integers(0, 3), st.floats(0, 1))
)
def test_every_thread_ends_inside_its_mask(threads, fixed, others):
    cpus = place(threads, fixed, others, **many())
    assert cpus.keys() == {thread.key for thread in threads}
    assert all(cpus[thread.key] in thread.allowed for thread in threads)


@settings(deadline=None)
@given(crowd)
def test_with_full_masks_counts_differ_by_one_at_most(threads):
    free = [one(thread.key.tid, range(4), cpu=thread.cpu, busy=thread.busy) for thread in threads]
    found = counts(free, place(free, {}, {}, **many()))
    each = [found.get(cpu, 0) for cpu in range(4)]
    assert max(each) - min(each) <= 1


@settings(deadline=None)
@given(crowd, st.dictionaries(st.integers(0, 3), st.floats(0, 1)))
def test_no_single_move_would_even_it_out_further_and_a_second_look_moves_nothing(threads, others):
    cpus = place(threads, {}, {}, **many())
    found = counts(threads, cpus)
    for thread in threads:
        if thread.busy:
            assert all(found[cpus[thread.key]] - found.get(cpu, 0) < 2 for cpu in thread.allowed)
    placed = place(threads, {}, others, **many())
    again = [
        Candidate(key=thread.key, allowed=thread.allowed, cpu=placed[thread.key], busy=thread.busy, ran=thread.ran)
        for thread in threads
    ]
    assert place(again, {}, others, **many()) == placed


wide = st.lists(
    st.builds(
        lambda tid, allowed, cpu, near: one(tid, allowed, cpu=cpu, near=near),
        st.integers(1, 10_000),
        st.frozensets(st.integers(0, 7), min_size=1),
        st.none() | st.integers(0, 7),
        st.none() | st.integers(0, 7),
    ),
    max_size=24,
    unique_by=lambda thread: thread.key,
)


@settings(deadline=None)
@given(wide, st.dictionaries(st.integers(0, 7), st.floats(0, 1)))
def test_with_a_topology_it_comes_to_rest_too_and_counts_stay_even(threads, others):
    placed = place(threads, {}, others, **many(topology=SMT))
    assert all(placed[thread.key] in thread.allowed for thread in threads)
    again = [replace(thread, cpu=placed[thread.key]) for thread in threads]
    assert place(again, {}, others, **many(topology=SMT)) == placed
    free = [one(thread.key.tid, range(8), cpu=thread.cpu) for thread in threads]
    cpus = place(free, {}, {}, **many(topology=SMT))
    each = [list(cpus.values()).count(cpu) for cpu in range(8)]
    cores = [each[core] + each[core + 4] for core in range(4)]
    assert max(each) - min(each) <= 1
    assert max(cores) - min(cores) <= 1


@settings(deadline=None)
@given(crowd, st.integers(0, 3))
def test_no_more_than_the_allowed_moves(threads, moves):
    placed = [
        one(thread.key.tid, range(4), cpu=thread.cpu or 0, busy=thread.busy, starving=thread.ran < 0.1)
        for thread in threads
    ]
    cpus = place(placed, {}, {0: 0.9, 1: 0.1}, imbalance=2, moves=moves)
    assert sum(cpus[thread.key] != thread.cpu for thread in placed) <= moves
