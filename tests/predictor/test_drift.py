from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.drift import Alarm, ExceptionRules, Exceptions, risen, surprised, tail
from tests.predictor.engines import DAY, HOUR, make, names_of, noise, peaks_of, run, view


@given(st.integers(1, 200), st.floats(0.001, 0.3), st.integers(0, 200))
def test_the_bound_is_never_below_the_true_tail(trials, risk, hits):
    hits = min(hits, trials)
    true = sum(math.comb(trials, k) * risk**k * (1 - risk) ** (trials - k) for k in range(hits, trials + 1))
    assert float(tail(hits, trials, risk)) >= true * (1 - 1e-9)


def test_what_is_expected_is_no_surprise():
    assert not surprised(0, 0, 0.01)
    assert not surprised(10, 1000, 0.01)
    assert not surprised(3, 30, 0.01), "one series that three nodes share"
    assert surprised(30, 30, 0.01)
    assert surprised(300, 10_000, 0.01)


def test_an_alarm_fades():
    alarm = Alarm(1.0, 1000.0)
    assert alarm.now(1000.0, 3600.0) == 1.0
    assert alarm.now(4600.0, 3600.0) == 0.5
    assert alarm.now(1000.0 + 6 * 3600.0, 3600.0) == 0.0
    assert Alarm().now(0.0, 3600.0) == 0.0


@pytest.mark.parametrize("horizon_seconds", [3600.0, 86400.0])
def test_a_fleet_that_rises_is_widened_within_the_hour(horizon_seconds):
    usage = noise(1, 6 * DAY, 30)
    usage[5 * DAY :] *= 3.0
    engine = make(candidates=("last_hour",), horizon_seconds=horizon_seconds)
    _, calm = run(engine, usage, range(HOUR, 5 * DAY + 1, HOUR))
    assert calm.widened == ("",) * 30
    _, step = run(engine, usage, range(5 * DAY + 1, 5 * DAY + HOUR + 1))
    assert all("chance" in why for why in step.widened)
    assert np.all(step.shift > calm.shift)


def test_the_alarm_ends_and_the_risk_holds_again():
    usage = noise(2, 12 * DAY, 30)
    usage[5 * DAY :] *= 2.0
    engine = make(candidates=("last_hour",))
    ends = range(HOUR, 12 * DAY, HOUR)
    _, step = run(engine, usage, ends)
    assert step.widened == ("",) * 30


def test_a_node_whose_level_jumps_is_widened_and_the_others_are_not():
    usage = noise(3, 10 * DAY, 8)
    usage[9 * DAY :, 3] = usage[: 9 * DAY, 3].max() * 1.5 + usage[9 * DAY :, 3]
    engine = make(candidates=("last_hour",))
    _, before = run(engine, usage, range(DAY, 9 * DAY + 1, HOUR))
    step = engine.step(names_of(8), view(usage, 9 * DAY + 3))
    assert "above anything" in step.widened[3]
    assert [bool(why) for why in step.widened] == [index == 3 for index in range(8)]
    assert step.shift[3] > before.shift[3]
    _, later = run(engine, usage, range(9 * DAY + HOUR, 9 * DAY + 9 * HOUR, HOUR))
    assert later.widened[3] == ""


def test_one_spike_is_no_new_level():
    usage = np.full((2 * DAY, 2), 10.0)
    usage[-1, 0] = 100.0
    usage[-3:, 1] = 100.0
    assert risen(view(usage, 2 * DAY), 0.1).tolist() == [False, True]
    usage[-2, 1] = np.nan
    assert risen(view(usage, 2 * DAY), 0.1).tolist() == [False, False]
    assert risen(view(usage, 3), 0.1).tolist() == [False, False]


RULES = ExceptionRules(risk=0.01, kept=0.99, step=0.05, overlap=1.0)


def test_a_node_that_violates_for_days_gets_a_shift_of_its_own_and_loses_it_when_it_behaves():
    exceptions = Exceptions.none(2)
    rows = np.arange(2)
    for hour in range(48):
        exceptions.learn(rows, np.array([hour % 5 == 0, hour == 7]), RULES)
    assert exceptions.extra[0] > 0.1
    assert exceptions.extra[1] == 0.0, "one violation in two days is no pattern"
    for _ in range(1000):
        exceptions.learn(rows, np.array([False, False]), RULES)
    assert exceptions.extra.tolist() == [0.0, 0.0]


def test_violations_of_horizons_that_overlap_are_one():
    alone, overlapping = Exceptions.none(1), Exceptions.none(1)
    for hit in [True] * 8 + [False] * 10:
        alone.learn(np.array([0]), np.array([hit]), RULES)
        overlapping.learn(np.array([0]), np.array([hit]), dataclasses.replace(RULES, overlap=4.0))
    assert alone.extra[0] > 0.0
    assert overlapping.extra[0] == 0.0


def test_a_node_that_is_an_exception_comes_to_twice_the_risk():
    exceptions = Exceptions.none(1)
    generator = np.random.default_rng(1)
    violated = []
    for peak in generator.exponential(1.0, 6000) - 2.0:
        hit = bool(peak > 3 * exceptions.extra[0])
        violated.append(hit)
        exceptions.learn(np.array([0]), np.array([hit]), RULES)
    assert np.mean(violated[1000:]) == pytest.approx(0.02, abs=0.006)


def test_the_engine_says_which_node_is_an_exception():
    usage = noise(4, 12 * DAY, 20)
    # Every sixth hour this node alone does what no forecast sees coming.
    for hour in range(0, 12 * 24, 6):
        usage[hour * HOUR + 5, 7] *= 20.0
    engine = make(candidates=("last_hour",), release_keep_ratio=0.0)
    ends = range(DAY, 11 * DAY, HOUR)
    peaks, step = run(engine, usage, ends)
    assert "more often than asked" in step.widened[7]
    assert not any(step.widened[index] for index in range(20) if index != 7)
    violated = (peaks < peaks_of(usage, ends))[:, 7]
    assert violated[-96:].mean() < 0.5 * violated[:96].mean()
