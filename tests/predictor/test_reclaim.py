from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.reclaim import COLD_NOTE, Bounds, Demand, reclaim

AMOUNT = st.integers(0, 10**6)
MAYBE = st.one_of(st.none(), AMOUNT)
PEAK = st.one_of(st.none(), st.just(float("nan")), st.floats(0, 1e6))
BOUNDS = st.builds(
    Bounds,
    reserve_percent=st.floats(0, 100),
    cap_percent=st.floats(0, 100),
    floor_percent=st.one_of(st.just(0.0), st.floats(0, 100)),
)
FIVE = Bounds(reserve_percent=5)


def demand(**changed):
    base = {"capacity": 32000, "now": 4000, "system_now": 500, "requested": 8000, "peak": 6000.0}
    return Demand(**{**base, **changed})


DEMANDS = st.builds(
    Demand,
    capacity=MAYBE,
    allocatable=MAYBE,
    now=MAYBE,
    system_now=MAYBE,
    requested=MAYBE,
    peak=PEAK,
    cold=st.booleans(),
    beyond_peak=AMOUNT,
    beyond_now=AMOUNT,
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 32000 - 1600 - 6000),
        ({"now": 9000}, 32000 - 1600 - 9000),
        ({"cold": True}, 32000 - 1600 - 8500),
        ({"cold": True, "peak": 12000.0}, 32000 - 1600 - 12000),
        ({"peak": None}, 32000 - 1600 - 8500),
        ({"peak": float("nan")}, 32000 - 1600 - 8500),
        ({"cold": True, "requested": 0, "peak": None, "system_now": 700, "now": 700}, 32000 - 1600 - 700),
        ({"cold": True, "requested": 40000}, 0),
        ({"peak": 31000.5}, 0),
        ({"capacity": 3, "peak": 0.0, "now": 0}, 2),
        # Newcomers: beside the peak, beside the use of now; on a cold node their requests are in the sum already.
        ({"beyond_peak": 4000, "beyond_now": 3000}, 32000 - 1600 - 10000),
        ({"beyond_peak": 100, "beyond_now": 3000}, 32000 - 1600 - 7000),
        ({"cold": True, "beyond_peak": 4000, "beyond_now": 4000}, 32000 - 1600 - 8500),
        ({"cold": True, "beyond_peak": 4000, "beyond_now": 5000}, 32000 - 1600 - 9000),
        # What the node object keeps from pods is kept, less what SYSTEM uses of it now.
        ({"allocatable": 30000}, 32000 - 1600 - 1500 - 6000),
        ({"allocatable": 31800}, 32000 - 1600 - 6000),
        ({"allocatable": 30000, "system_now": None}, 32000 - 1600 - 2000 - 6000),
    ],
)
def test_table(changed, expected):
    assert reclaim(demand(**changed), FIVE).reclaimable == expected


@pytest.mark.parametrize(("newcomer", "expected"), [(0, 9200), (4000, 5200)])
def test_koordinator_case_1_to_the_millicore(newcomer, expected):
    # peer-koordinator.md 10, case 1: cap 32, alloc 30, threshold 60 %, SYSTEM 1, HP used 8; then an HP pod of 4
    # that nothing has measured. Koordinator's own maxUsageRequest on node level misses the second (2.6.1).
    known = demand(allocatable=30000, now=9000, system_now=1000, peak=9000.0, beyond_peak=newcomer, beyond_now=newcomer)
    assert reclaim(known, Bounds(reserve_percent=40)).reclaimable == expected


def test_an_oversold_node_sells_no_more_than_allocatable_minus_peak():
    # peer-koordinator.md, section 10, case 8 (issues 2325, 2291).
    known = demand(allocatable=20000, requested=50000, peak=15000.0, now=14000, system_now=12000)
    assert reclaim(known, Bounds()).reclaimable == 5000


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"capacity": None}, "capacity is not known"),
        ({"now": None}, "LS and SYSTEM use is not measured"),
        ({"cold": True, "requested": None}, "cold"),
        ({"cold": True, "system_now": None}, "cold"),
        ({"peak": None, "requested": None}, "cold"),
    ],
)
def test_what_is_missing_is_said_and_sells_nothing(changed, missing):
    answer = reclaim(demand(**changed), FIVE)
    assert answer.reclaimable is None
    assert missing in answer.missing


def test_a_cold_node_says_so():
    assert reclaim(demand(cold=True), FIVE).note == COLD_NOTE
    assert reclaim(demand(), FIVE).note == ""


def test_a_cap_bounds_and_a_floor_lifts_against_the_forecast_but_not_into_use():
    capped = reclaim(demand(), Bounds(cap_percent=25))
    assert (capped.reclaimable, capped.cap, capped.floor) == (8000, 8000, None)
    low = {"peak": 31000.0, "now": 4000}
    assert reclaim(demand(**low), Bounds(floor_percent=10)).reclaimable == 3200
    assert reclaim(demand(**{**low, "now": 30000}), Bounds(floor_percent=10)).reclaimable == 2000
    assert reclaim(demand(**low), Bounds(floor_percent=50, cap_percent=5)).reclaimable == 1600


def test_every_term_adds_up():
    answer = reclaim(demand(allocatable=30000, beyond_peak=4000, beyond_now=1000), FIVE)
    assert (answer.peak, answer.reserve, answer.held, answer.needed, answer.newcomers) == (
        6000,
        1600,
        1500,
        10000,
        4000,
    )
    assert answer.reclaimable == 32000 - answer.reserve - answer.held - max(answer.peak, 4000) - answer.newcomers


@given(DEMANDS, BOUNDS)
def test_never_above_what_is_left_and_never_below_zero(known, bounds):
    answer = reclaim(known, bounds)
    if answer.reclaimable is None:
        assert answer.missing
        return
    reserve = math.ceil(known.capacity * bounds.reserve_percent / 100)
    # Memory that LS and SYSTEM hold is never sold, whatever peak, floor and cap say.
    assert 0 <= answer.reclaimable <= max(0, known.capacity - reserve - known.now - known.beyond_now)
    assert answer.reclaimable <= known.capacity * bounds.cap_percent / 100
    if bounds.floor_percent == 0:
        assert answer.reclaimable <= max(0, known.capacity - answer.peak)
        if known.allocatable is not None:
            assert answer.reclaimable <= max(0, known.allocatable - answer.needed)


@given(DEMANDS, st.sampled_from(["capacity", "allocatable", "now", "system_now", "requested", "peak"]), BOUNDS)
def test_removing_data_never_raises_what_is_sold(known, field, bounds):
    """A model without an answer makes the node count with its requests, which a warm node may stay below."""
    less = known._replace(**{field: None})
    before, after = reclaim(known, bounds), reclaim(less, bounds)
    if after.reclaimable is None or field == "allocatable":
        return
    if field == "peak" or before.reclaimable is None:
        assert bounds.floor_percent > 0 or after.reclaimable <= max(0, less.capacity - less.requested - less.system_now)
    else:
        assert after.reclaimable <= before.reclaimable


@given(DEMANDS, st.integers(0, 10**6), BOUNDS, st.sampled_from(["now", "peak", "beyond_now", "beyond_peak"]))
def test_more_use_never_raises_what_is_sold(known, extra, bounds, field):
    value = getattr(known, field)
    if value is None or not math.isfinite(value):
        return
    before = reclaim(known, bounds).reclaimable
    after = reclaim(known._replace(**{field: value + extra}), bounds).reclaimable
    assert (before is None) == (after is None)
    assert after is None or after <= before


@given(DEMANDS, st.integers(2, 1000))
def test_one_unit_or_another_makes_no_difference_to_the_share(known, factor):
    """Memory in bytes and CPU in millicores go the same way."""
    fields = ("capacity", "allocatable", "now", "system_now", "requested", "peak", "beyond_peak", "beyond_now")
    if known.peak is not None and math.isfinite(known.peak):
        known = known._replace(peak=float(math.floor(known.peak)))
    scaled = {name: None if getattr(known, name) is None else getattr(known, name) * factor for name in fields}
    before = reclaim(known, Bounds()).reclaimable
    after = reclaim(known._replace(**scaled), Bounds()).reclaimable
    assert after == (None if before is None else before * factor)
