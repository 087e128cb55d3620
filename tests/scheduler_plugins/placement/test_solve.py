"""The solver against placements that can be found by trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.placement.problem import Group, Problem, Spread
from scheduler_plugins.placement.solve import Limits, even, pack, skew

NODES = 3
ZONES = np.array([0, 1, 1])


@st.composite
def problems(draw):
    def group(name):
        eligible = np.array(draw(st.lists(st.booleans(), min_size=NODES, max_size=NODES)))
        skewed = draw(st.sampled_from([None, None, 1, 2]))
        return Group(
            name=name,
            requests={"cpu": draw(st.integers(1, 4))},
            eligible=eligible,
            now=np.zeros(NODES, dtype=np.int64),
            unplaced=draw(st.integers(1, 3)),
            apart=draw(st.booleans()),
            spreads=(Spread("zone", ZONES, ("north", "south"), skewed),),
        )

    capacity = np.array([[draw(st.integers(2, 12)), draw(st.integers(1, 6))] for _ in range(NODES)])
    fixed = np.array([[draw(st.integers(0, 2)), draw(st.integers(0, 1))] for _ in range(NODES)])
    return Problem(("a", "b", "c"), ("cpu", "pods"), capacity, fixed, [group("g"), group("h")])


def _ways(count):
    return [np.array(way) for way in itertools.product(range(count + 1), repeat=NODES) if sum(way) == count]


def _zones(group, counts):
    known = sorted({int(ZONES[n]) for n in range(NODES) if group.eligible[n]})
    return [sum(int(counts[n]) for n in range(NODES) if ZONES[n] == zone and group.eligible[n]) for zone in known]


def _allowed(problem, placement):
    for group, counts in zip(problem.groups, placement, strict=True):
        if (counts[~group.eligible] > 0).any() or (group.apart and counts.max() > 1):
            return False
        zones, limit = _zones(group, counts), group.spreads[0].max_skew
        if limit is not None and zones and max(zones) - min(zones) > limit:
            return False
    added = problem.used(placement) - problem.fixed
    return bool((added <= np.maximum(problem.capacity - problem.fixed, 0)).all())


def _all(problem):
    every = itertools.product(*(_ways(group.count) for group in problem.groups))
    return [placement for placement in every if _allowed(problem, placement)]


@settings(max_examples=60)
@given(problems())
def test_no_placement_is_better_and_one_is_as_good(problem):
    placements = _all(problem)
    found = even(problem, "cpu"), pack(problem), skew(problem, problem.groups[0], problem.groups[0].spreads[0])
    assert {best.feasible for best in found} == {bool(placements)}
    if not placements:
        return
    share = [(problem.used(p)[:, 0] / problem.capacity[:, 0]).max() for p in placements]
    nodes = [np.count_nonzero(problem.used(p)[:, 1]) for p in placements]
    zones = [_zones(problem.groups[0], p[0]) for p in placements]
    skews = [max(z) - min(z) for z in zones if z]
    assert found[0].value == pytest.approx(min(share), abs=1e-6)
    assert found[1].value == pytest.approx(min(nodes))
    assert found[2].value == pytest.approx(min(skews))
    assert all(best.exact and _allowed(problem, best.counts) for best in found)


def test_too_many_variables_give_a_bound_that_no_placement_beats():
    group = Group("g", {"cpu": 3}, np.ones(2, dtype=bool), np.zeros(2, dtype=np.int64), unplaced=3)
    problem = Problem(
        ("a", "b"), ("cpu", "pods"), np.array([[10, 9], [10, 9]]), np.zeros((2, 2), dtype=np.int64), [group]
    )
    exact, bound = even(problem, "cpu"), even(problem, "cpu", Limits(variables=1))
    assert (exact.exact, exact.value) == (True, pytest.approx(0.6))
    assert (bound.exact, bound.counts, bound.value) == (False, None, pytest.approx(0.45))


def test_rules_that_the_solver_does_not_know_make_it_a_bound():
    group = Group("g", {"cpu": 1}, np.ones(1, dtype=bool), np.zeros(1, dtype=np.int64), unplaced=1, unjudged=("x",))
    problem = Problem(("a",), ("cpu", "pods"), np.array([[4, 4]]), np.zeros((1, 2), dtype=np.int64), [group])
    assert not even(problem, "cpu").exact
