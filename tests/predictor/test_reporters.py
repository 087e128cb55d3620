from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.reporters import CORRECTED_MILLIS, STEP_MILLIS, TWINS_SECONDS, Bucket, ClockSkew, Twins


def skew_after(*differences):
    skew = ClockSkew()
    for difference in differences:
        skew.measure(difference)
    return skew


@given(st.integers(-(10**9), 10**9), st.lists(st.integers(0, 30_000), max_size=30))
def test_delays_never_make_a_clock_look_further_ahead(true, delays):
    skew = skew_after(true, *(true - delay for delay in delays))
    assert skew.millis <= true
    if len(delays) < 8:
        assert skew.millis == true


def test_messages_that_are_late_after_a_restart_move_no_times():
    assert skew_after(-20_000, -15_000, -9_000).correction_millis == 0
    assert skew_after(*[-20_000] * 8).correction_millis == -20_000
    assert skew_after(*range(-40_000, -8_000, 4_000)).correction_millis == 0
    assert skew_after(-7_200_000).correction_millis == -7_200_000


@given(st.integers(-(10**9), 10**9), st.lists(st.integers(0, 900), min_size=1, max_size=100))
def test_corrections_do_not_tremble(true, delays):
    skew = skew_after(*[true] * 8)
    first = skew.correction_millis
    for delay in delays:
        skew.measure(true - delay)
    assert abs(skew.correction_millis - first) <= STEP_MILLIS
    assert skew.correction_millis % STEP_MILLIS == 0
    assert abs(true) > CORRECTED_MILLIS + 900 or abs(skew.correction_millis) <= CORRECTED_MILLIS + STEP_MILLIS


def test_a_clock_that_is_set_back_is_believed_at_the_second_message():
    skew = skew_after(*[3_600_000] * 8)
    skew.measure(0)
    assert skew.correction_millis == 3_600_000
    skew.measure(10)
    assert skew.correction_millis == 0


def test_a_burst_of_delayed_messages_is_forgotten_as_soon_as_one_is_in_time():
    skew = skew_after(0, -90_000, -89_000, -88_000, 0)
    assert skew.correction_millis == 0


def test_a_bucket_lets_a_burst_through_and_makes_the_rest_wait():
    bucket = Bucket(100, 0.0)
    assert bucket.take(100, 10.0, 100, 0.0) == 0
    assert bucket.take(10, 10.0, 100, 0.0) == 1.0
    assert bucket.take(10, 10.0, 100, 1.0) == 1.0
    assert bucket.take(10, 10.0, 100, 1000.0) == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5)), min_size=1, max_size=50))
def test_whoever_waits_as_told_sends_at_the_rate(messages):
    rate, burst, now, sent = 7.0, 20.0, 0.0, 0
    bucket = Bucket(burst, now)
    for count, pause in messages:
        now += bucket.take(count, rate, burst, now)
        sent += count
        assert sent <= burst + rate * now + 1e-6
        now += pause
    assert bucket.take(1, rate, burst, now) >= 0


def test_a_message_larger_than_the_burst_still_comes_through():
    assert Bucket(10, 0.0).take(1000, 10.0, 10, 0.0) == pytest.approx(99)


@given(st.lists(st.sampled_from("abcde"), unique=True, max_size=5), st.integers(1, 3))
def test_a_machine_that_is_started_again_is_no_twin_of_itself(boots, times):
    twins = Twins()
    assert not any(twins.found(boot, float(at)) for at, boot in enumerate(one for one in boots for _ in range(times)))


def test_two_machines_of_one_name_are_told_once_in_a_while():
    twins = Twins()
    assert [twins.found(boot, 0.0) for boot in "ababab"] == [False, False, True, False, False, False]
    assert not twins.found("a", TWINS_SECONDS - 1)
    assert twins.found("b", TWINS_SECONDS)
    assert sorted(twins.boots) == ["a", "b"]
