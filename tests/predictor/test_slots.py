from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from predictor.slots import OpenSlots, Rows, percentile_90, slot_of

NAN = float("nan")


def test_a_window_that_ends_on_the_edge_belongs_to_the_slot_before():
    assert slot_of(300_000) == 0
    assert slot_of(300_001) == 1
    assert slot_of(1) == 0


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(100, 140), st.integers(0, 100)), max_size=60),
    st.integers(0, 12),
    st.integers(0, 5),
)
def test_rows_against_brute_force(observations, later, slack):
    size = 10
    rows = Rows(size, slack)
    newest = -1
    known = {}
    for column, slot, value in observations:
        if slot > newest - size:
            known[slot, column] = max(value, known.get((slot, column), -1.0))
            newest = max(newest, slot)
        rows.observe(column, slot, value)
    now = max(newest, 100) + later
    found = rows.span(now, 13)
    assert 1 <= len(found) <= size
    for slot in range(now - size + 1, now + 1):
        row = len(found) - 1 - (now - slot)
        for column in range(13):
            expected = known.get((slot, column))
            if expected is None:
                assert row < 0 or np.isnan(found[row, column])
            else:
                assert found[row, column] == expected


def test_a_span_costs_no_copy_and_stays_what_it_was_when_rows_and_columns_come():
    rows = Rows(4, 2)
    rows.put(0, 10, 5.0)
    rows.put(0, 11, 6.0)
    view = rows.span(11, 1)
    assert view.base is not None
    assert np.shares_memory(view, rows.span(11, 1))
    for slot in range(12, 40):
        rows.put(slot % 300, slot, 9.0)
    rows.keep(np.array([5]))
    assert list(view[:, 0]) == [5.0, 6.0]


def test_a_row_that_is_still_being_filled_is_beyond_the_complete_ones():
    rows = Rows(4, 2)
    rows.put(0, 10, 5.0)
    rows.put(0, 11, 8.0)
    assert list(rows.span(10, 1)[:, 0]) == [5.0]
    assert list(rows.beyond(10, 1)[:, 0]) == [8.0]
    assert len(rows.beyond(11, 1)) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 100)), min_size=1, max_size=60))
def test_observing_many_at_once_equals_one_by_one_in_order(observations):
    observations.sort(key=lambda item: item[1])
    one, other = Rows(10, 3), Rows(10, 3)
    for column, slot, value in observations:
        one.observe(column, slot, value)
    columns, slots, values = (np.array(part) for part in zip(*observations, strict=True))
    other.observe_at(columns, slots, values.astype(float))
    np.testing.assert_array_equal(one.span(30, 6)[-10:], other.span(30, 6)[-10:])


def test_parts_of_the_past_may_come_in_any_order():
    rows = Rows(10, 3)
    for slots in ([19, 20], [11, 12], [5, 6]):
        rows.observe_at(np.zeros(2, dtype=int), np.array(slots), np.array([1.0, 2.0]))
    found = rows.span(20, 1)[:, 0]
    assert len(found) == 10
    np.testing.assert_array_equal(found, [1, 2, NAN, NAN, NAN, NAN, NAN, NAN, 1, 2])


def test_adding_never_goes_below_nothing_and_leaves_gaps():
    rows = Rows(10, 3)
    for slot, value in ((11, 5.0), (13, 5.0), (14, 1.0)):
        rows.put(0, slot, value)
    rows.add(0, 9, np.array([7.0, 7.0, -2.0, -2.0, NAN, -2.0]))
    np.testing.assert_array_equal(rows.span(14, 1)[:, 0], [3.0, NAN, 5.0, 0.0])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentile_is_that_of_numpy(values):
    assert percentile_90(values) == np.quantile(values, 0.9, method="inverted_cdf")


def test_one_busy_second_does_not_stand_for_a_slot_and_a_busy_minute_does():
    windows = OpenSlots()
    for second in range(5, 300, 5):
        value = windows.put(0, second * 1000, 2000.0 if second == 100 else 500.0, NAN)
    assert value == 500.0
    for second in range(305, 600, 5):
        value = windows.put(1, second * 1000, 2000.0 if second >= 540 else 500.0, NAN)
    assert value == 2000.0


def test_repeats_change_nothing_and_what_stood_before_is_the_least():
    windows = OpenSlots()
    assert windows.put(0, 1000, 10.0, 700.0) == 700.0
    assert windows.put(0, 2000, 900.0, 700.0) == 900.0
    assert windows.put(0, 2000, 900.0, 900.0) == 900.0
    for second in range(3, 30):
        value = windows.put(0, second * 1000, 20.0, 900.0)
    assert value == 700.0


@given(st.permutations(range(1, 31)))
def test_the_order_of_windows_does_not_matter(order):
    windows = OpenSlots()
    for tenth in order:
        value = windows.put(0, tenth * 10_000, float(tenth), NAN)
    assert value == percentile_90(range(1, 31))


def test_a_spool_that_is_replayed_fills_old_slots_as_live_ones_are_filled():
    windows = OpenSlots()
    for slot in (95, 96, 97, 98):
        windows.put(slot, slot * 300_000, 1.0, NAN)
    for second in range(10, 310, 10):
        value = windows.put(5, 5 * 300_000 + second * 1000, 2000.0 if second == 100 else 500.0, NAN)
    assert value == 500.0
