from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.calibrate import LOOSEST, STRICTEST, Calibration, CalibrationRules, blind
from predictor.confidence import GROUPS
from predictor.models.base import DAY_SECONDS
from predictor.prior import Group
from predictor.sketch import Sketch

DAY, WEEK, LONG = (GROUPS.index(group) for group in (Group.DAY, Group.WEEK, Group.LONG))


def rules(**changes):
    return CalibrationRules(
        **{
            "risk": 0.01,
            "days": 14.0,
            "prior_weight_days": 14.0,
            "prior_nodes": 100,
            "feedback_per_day": 0.0,
            "loosens": True,
            "decisions_per_day": 24.0,
            **changes,
        }
    )


def prior_at(value, count=5000):
    sketch = Sketch.of(np.full(count, value))
    return {group: {"trace": sketch} for group in Group}


def feed(calibration, value, days, nodes=10, group=LONG, start=0):
    for day in range(start, start + days):
        for hour in range(24):
            at = day * DAY_SECONDS + hour * 3600.0
            calibration.learn(at, np.full(nodes, value), np.full(nodes, group), None)


def test_without_anything_the_shift_is_cautious_and_follows_the_risk():
    assert Calibration(rules(), {}).shifts(10)[LONG] == pytest.approx(0.2, abs=0.002)
    assert Calibration(rules(risk=0.001), {}).shifts(10)[LONG] == pytest.approx(0.3, abs=0.003)
    assert Calibration(rules(risk=0.05), {}).shifts(10)[LONG] < 0.14
    assert blind().total == pytest.approx(1.0)


def test_the_prior_stands_until_own_outcomes_come_and_then_gives_way():
    calibration = Calibration(rules(prior_weight_days=1.0), prior_at(0.3))
    assert calibration.shifts(10)[LONG] == pytest.approx(0.3, abs=0.002)
    feed(calibration, 0.05, days=14)
    assert calibration.shifts(10)[LONG] == pytest.approx(0.3, abs=0.002), "a fifteenth is above 1 %"
    risky = Calibration(rules(prior_weight_days=1.0, risk=0.1), prior_at(0.3))
    feed(risky, 0.05, days=14)
    assert risky.shifts(10)[LONG] == pytest.approx(0.05, abs=0.002)


def test_a_large_fleet_outweighs_the_prior():
    calibration = Calibration(rules(risk=0.05, prior_nodes=10), prior_at(0.3))
    feed(calibration, 0.05, days=14, nodes=300)
    assert calibration.shifts(300)[LONG] == pytest.approx(0.05, abs=0.002)


def test_traces_of_the_prior_count_alike_whatever_their_length():
    long, short = Sketch.of(np.full(100_000, 0.1)), Sketch.of(np.full(1000, 0.4))
    calibration = Calibration(rules(risk=0.4), {group: {"long": long, "short": short} for group in Group})
    assert calibration.shifts(10)[LONG] == pytest.approx(0.4, abs=0.002)


def test_old_outcomes_are_forgotten():
    calibration = Calibration(rules(days=7.0, prior_weight_days=0.0), {})
    feed(calibration, 0.5, days=10)
    feed(calibration, 0.1, days=7, start=10)
    assert calibration.shifts(10)[LONG] == pytest.approx(0.1, abs=0.002)
    assert len(calibration.days) == 7


def test_a_group_borrows_until_it_has_enough_of_its_own():
    calibration = Calibration(rules(prior_weight_days=0.0), {})
    feed(calibration, 0.4, days=14, group=WEEK)
    assert calibration.shifts(10)[LONG] == pytest.approx(0.4, abs=0.002)
    feed(calibration, 0.1, days=14, group=LONG)
    assert calibration.shifts(10)[LONG] == pytest.approx(0.1, abs=0.002)
    assert calibration.shifts(10)[WEEK] == pytest.approx(0.4, abs=0.002)


def test_a_smaller_risk_never_asks_for_less():
    calibration = Calibration(rules(), {})
    generator = np.random.default_rng(1)
    for hour in range(14 * 24):
        calibration.learn(hour * 3600.0, generator.gumbel(0, 0.05, 20), np.full(20, LONG), None)
    shifts = [calibration.shifts(20, factor)[LONG] for factor in (4.0, 1.0, 0.5, 0.25, 0.05, 0.001)]
    assert shifts == sorted(shifts)
    assert all(math.isfinite(shift) for shift in shifts)


def outcomes(calibration, count, violated, nodes=10):
    for _ in range(count):
        calibration.learn(0.0, np.zeros(nodes), np.full(nodes, LONG), violated)


def test_feedback_tightens_with_violations_loosens_without_and_has_bounds():
    calibration = Calibration(rules(feedback_per_day=0.5), prior_at(0.1))
    assert calibration.level == 0.0
    outcomes(calibration, 1, 0.1)
    assert calibration.level == pytest.approx(math.log((10 + 0.01 * 10) / (10 + 1)))
    outcomes(calibration, 1000, 1.0)
    assert calibration.level == STRICTEST
    outcomes(calibration, 20_000, 0.0, nodes=1000)
    assert calibration.level == LOOSEST


def test_one_violation_says_little_in_a_small_fleet_and_a_rate_much_in_a_large_one():
    small, large = (Calibration(rules(feedback_per_day=1.0), prior_at(0.1)) for _ in range(2))
    outcomes(small, 1, 1.0, nodes=1)
    assert -0.1 < small.level < 0.0
    outcomes(large, 24, 0.02, nodes=1000)
    assert large.level < -0.6, "twice the asked rate for a day is half the risk"


def test_feedback_comes_to_rest_where_the_rate_is_the_asked_one():
    calibration = Calibration(rules(feedback_per_day=1.0), prior_at(0.1))
    for _ in range(24 * 30):
        # Half of what the level asks for is met: the quantile is too wide by a factor of two.
        outcomes(calibration, 1, 0.5 * 0.01 * math.exp(calibration.level), nodes=5000)
    assert 0.5 * math.exp(calibration.level) == pytest.approx(1.0, abs=0.05)


def test_feedback_never_loosens_where_horizons_overlap():
    calibration = Calibration(rules(feedback_per_day=0.5, loosens=False), prior_at(0.1))
    outcomes(calibration, 1, 0.0)
    assert calibration.level == 0.0
    outcomes(calibration, 1, 1.0)
    assert calibration.level < 0.0


def test_the_order_of_outcomes_does_not_matter():
    outcomes = [(hour * 3600.0, np.random.default_rng(hour).normal(0, 0.1, 5)) for hour in range(200)]
    one, other = Calibration(rules(), {}), Calibration(rules(), {})
    for at, residuals in outcomes:
        one.learn(at, residuals, np.full(5, LONG), None)
    for at, residuals in sorted(outcomes, key=lambda outcome: outcome[0] % 7200.0):
        other.learn(at, residuals[::-1], np.full(5, LONG), None)
    np.testing.assert_array_equal(one.shifts(5), other.shifts(5))


def test_a_tiny_risk_takes_the_highest_residual_there_is():
    calibration = Calibration(rules(risk=1e-6, prior_weight_days=0.0), prior_at(0.1, count=3))
    feed(calibration, 0.25, days=2)
    assert calibration.shifts(1)[LONG] == pytest.approx(0.25, abs=0.002)
