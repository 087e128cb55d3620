from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.reclaim import COLD_NOTE, Demand, reclaim

AMOUNT = st.integers(0, 10**6)
MAYBE = st.one_of(st.none(), AMOUNT)
PEAK = st.one_of(st.none(), st.just(float("nan")), st.floats(0, 1e6))


def demand(**changed):
    base = {"capacity": 32000, "now": 4000, "system_now": 500, "requested": 8000, "peak": 6000.0}
    return Demand(**{**base, **changed})


DEMANDS = st.builds(Demand, capacity=MAYBE, now=MAYBE, system_now=MAYBE, requested=MAYBE, peak=PEAK)


@pytest.mark.parametrize(
    ("changed", "cold", "expected"),
    [
        ({}, False, 32000 - 1600 - 6000),
        ({"now": 9000}, False, 32000 - 1600 - 9000),
        ({}, True, 32000 - 1600 - 8500),
        ({"peak": 12000.0}, True, 32000 - 1600 - 12000),
        ({"peak": None}, False, 32000 - 1600 - 8500),
        ({"peak": float("nan")}, False, 32000 - 1600 - 8500),
        ({"requested": 0, "peak": None, "system_now": 700, "now": 700}, True, 32000 - 1600 - 700),
        ({"requested": 40000}, True, 0),
        ({"peak": 31000.5}, False, 0),
        ({"capacity": 3, "peak": 0.0, "now": 0}, False, 2),
    ],
)
def test_table(changed, cold, expected):
    assert reclaim(demand(**changed), 5, cold).reclaimable == expected


@pytest.mark.parametrize(
    ("changed", "cold", "missing"),
    [
        ({"capacity": None}, False, "capacity is not known"),
        ({"now": None}, False, "LS and SYSTEM use is not measured"),
        ({"requested": None}, True, "cold"),
        ({"system_now": None}, True, "cold"),
        ({"peak": None, "requested": None}, False, "cold"),
    ],
)
def test_what_is_missing_is_said_and_sells_nothing(changed, cold, missing):
    answer = reclaim(demand(**changed), 5, cold)
    assert answer.reclaimable is None
    assert missing in answer.missing


def test_a_cold_node_says_so():
    assert reclaim(demand(), 5, cold=True).note == COLD_NOTE
    assert reclaim(demand(), 5, cold=False).note == ""


@given(DEMANDS, st.floats(0, 100), st.booleans())
def test_never_above_what_is_left_and_never_below_zero(known, percent, cold):
    answer = reclaim(known, percent, cold)
    if answer.reclaimable is None:
        assert answer.missing
        return
    assert 0 <= answer.reclaimable <= max(0, known.capacity - math.ceil(known.capacity * percent / 100))
    assert answer.reclaimable <= max(0, known.capacity - known.now)
    assert answer.reclaimable <= max(0, known.capacity - answer.peak)


@given(DEMANDS, st.sampled_from(["capacity", "now", "system_now", "requested", "peak"]), st.booleans())
def test_removing_data_never_raises_what_is_sold(known, field, cold):
    """A model without an answer makes the node count with its requests, which a warm node may stay below."""
    less = Demand(**{name: None if name == field else getattr(known, name) for name in known.__slots__})
    before, after = reclaim(known, 5, cold), reclaim(less, 5, cold)
    if after.reclaimable is None:
        return
    if field == "peak" or before.reclaimable is None:
        promised = less.requested + less.system_now
        assert after.reclaimable <= max(0, less.capacity - promised)
    else:
        assert after.reclaimable <= before.reclaimable


@given(DEMANDS, st.integers(0, 10**6), st.booleans())
def test_more_use_never_raises_what_is_sold(known, extra, cold):
    if known.now is None:
        return
    more = Demand(**{**{n: getattr(known, n) for n in known.__slots__}, "now": known.now + extra})
    before, after = reclaim(known, 5, cold).reclaimable, reclaim(more, 5, cold).reclaimable
    assert (before is None) == (after is None)
    assert after is None or after <= before
