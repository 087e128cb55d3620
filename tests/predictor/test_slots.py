from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from predictor.slots import OpenSlots, SlotRing, percentile_90, slot_of


def test_a_window_that_ends_on_the_edge_belongs_to_the_slot_before():
    assert slot_of(300_000) == 0
    assert slot_of(300_001) == 1
    assert slot_of(1) == 0


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(100, 140), st.floats(0, 100)), max_size=60),
    st.integers(0, 12),
)
def test_ring_against_brute_force(observations, later):
    size = 10
    ring = SlotRing(size)
    newest = -1
    known = {}
    for column, slot, value in observations:
        if slot > newest - size:
            known[slot, column] = max(value, known.get((slot, column), -1.0))
            newest = max(newest, slot)
    for column, slot, value in observations:
        ring.observe(column, slot, value)
    now = max(newest, 100) + later
    matrix = ring.matrix(list(range(13)), now)
    assert matrix.shape == (size, 13)
    for row, slot in enumerate(range(now - size + 1, now + 1)):
        for column in range(13):
            expected = known.get((slot, column))
            assert np.isnan(matrix[row, column]) if expected is None else matrix[row, column] == expected


def test_a_node_whose_clock_runs_ahead_counts_in_the_newest_row():
    ring = SlotRing(4)
    ring.observe(0, 10, 5.0)
    ring.observe(0, 11, 8.0)
    assert list(ring.matrix([0], 10)[-1]) == [8.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.floats(0, 100)), min_size=1, max_size=60))
def test_restoring_at_once_equals_observing_one_by_one_in_order(observations):
    observations.sort(key=lambda item: item[1])
    one, other = SlotRing(10), SlotRing(10)
    for column, slot, value in observations:
        one.observe(column, slot, value)
    columns, slots, values = (np.array(part) for part in zip(*observations, strict=True))
    other.restore(columns, slots, values.astype(float))
    np.testing.assert_array_equal(one.matrix(range(6), 30), other.matrix(range(6), 30))


def test_a_column_that_is_cleared_is_all_gaps():
    ring = SlotRing(4)
    ring.observe(0, 1, 5.0)
    ring.observe(1, 1, 6.0)
    ring.clear(0)
    assert np.isnan(ring.matrix([0], 1)).all()
    assert ring.matrix([1], 1)[-1, 0] == 6.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentile_is_that_of_numpy(values):
    assert percentile_90(values) == np.quantile(values, 0.9, method="inverted_cdf")


def test_one_busy_second_does_not_stand_for_a_slot_and_a_busy_minute_does():
    windows = OpenSlots()
    for second in range(5, 300, 5):
        value = windows.put(0, second * 1000, 2000.0 if second == 100 else 500.0, float("nan"))
    assert value == 500.0
    for second in range(305, 600, 5):
        value = windows.put(1, second * 1000, 2000.0 if second >= 540 else 500.0, float("nan"))
    assert value == 2000.0


def test_repeats_change_nothing_and_what_stood_before_is_the_least():
    windows = OpenSlots()
    assert windows.put(0, 1000, 10.0, 700.0) == 700.0
    assert windows.put(0, 2000, 900.0, 700.0) == 900.0
    assert windows.put(0, 2000, 900.0, 900.0) == 900.0
    for second in range(3, 30):
        value = windows.put(0, second * 1000, 20.0, 900.0)
    assert value == 700.0


def test_slots_that_are_no_longer_open_are_told():
    windows = OpenSlots()
    for slot in (5, 6, 7):
        assert windows.put(slot, slot * 300_000, 1.0, float("nan")) == 1.0
    assert windows.put(4, 1, 1.0, float("nan")) is None
    assert windows.put(8, 1, 1.0, float("nan")) == 1.0
    assert windows.put(5, 1, 1.0, float("nan")) is None
