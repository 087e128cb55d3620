from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictor import models
from predictor.models.base import History, Members

RISKS = np.array([0.01, 0.05])
CLASSICAL = ["histogram", "holt_winters", "n_sigma", "rc_percentile", "window_max"]
VALUES = st.one_of(st.just(float("nan")), st.floats(0, 1e6))
USAGE = arrays.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(0, 4)), elements=VALUES)


def history(usage, slot_seconds=300.0):
    return History(
        usage=np.asarray(usage, dtype=float), requested=np.full(np.shape(usage)[1], np.nan), slot_seconds=slot_seconds
    )


def brute_force(usage, slots):
    answers = []
    for column in range(usage.shape[1]):
        seen = [value for value in usage[-slots:, column] if value == value]
        answers.append(max(seen) if seen else float("nan"))
    return answers


@given(USAGE, st.integers(1, 25))
def test_window_max_is_the_highest_value_of_its_window(usage, slots):
    model = models.create("window_max", window_days=slots * 300 / 86400)
    peaks = model.predict(history(usage), 3600.0, RISKS)
    assert peaks.shape == (2, usage.shape[1])
    np.testing.assert_array_equal(peaks[0], brute_force(usage, slots))
    np.testing.assert_array_equal(peaks[0], peaks[1])


def test_window_max_looks_back_seven_days_by_default():
    usage = np.full((8 * 288, 1), 10.0)
    usage[287] = 99.0
    usage[288] = 50.0
    assert models.create("window_max").predict(history(usage), 3600.0, RISKS)[0, 0] == 50.0


def test_window_max_of_gaps_alone_is_not_known():
    peaks = models.create("window_max").predict(history([[np.nan, 4.0], [np.nan, np.nan]]), 3600.0, RISKS)
    assert np.isnan(peaks[0, 0])
    assert peaks[0, 1] == 4.0


@pytest.mark.parametrize("name", ["window_max", "histogram", "rc_percentile"])
@given(USAGE, st.integers(0, 19), st.integers(0, 3), st.floats(0, 1e6))
def test_adding_use_never_lowers_the_peak(name, usage, row, column, extra):
    column, row = min(column, usage.shape[1] - 1), min(row, len(usage) - 1)
    more = usage.copy()
    if column >= 0:
        more[row, column] += extra
    model = models.create(name)
    before, after = (model.predict(history(u), 3600.0, RISKS)[0] for u in (usage, more))
    assert np.all((after >= before) | np.isnan(before))


def waves(days=8, seed=0):
    """(slots, 6): days and nights with noise and bursts, a constant, one with gaps, and one that is all gaps."""
    random = np.random.default_rng(seed)
    hours = np.arange(days * 288) / 12
    usage = np.empty((len(hours), 6))
    for column in range(6):
        wave = 10 + 4 * np.sin(2 * np.pi * (hours - column) / 24)
        usage[:, column] = wave + random.gamma(2.0, 0.5, len(hours))
    usage[:, 3] = 7.0
    usage[random.random(len(hours)) < 0.1, 4] = np.nan
    usage[:, 5] = np.nan
    return usage


def with_members(usage, seed=0):
    """A history whose series are each the sum of three pods."""
    random = np.random.default_rng(seed)
    shares = random.dirichlet([1, 1, 1], usage.shape[1]).ravel()
    owner = np.repeat(np.arange(usage.shape[1]), 3)
    hourly = usage[len(usage) % 12 :].reshape(-1, 12, usage.shape[1])
    highest, total = np.fmax.reduce(hourly, axis=1), np.nansum(hourly, axis=1)
    mean = total / np.maximum(np.count_nonzero(~np.isnan(hourly), axis=1), 1)
    mean[np.isnan(highest)] = np.nan
    return History(
        usage=usage,
        requested=np.full(usage.shape[1], np.nan),
        slot_seconds=300.0,
        at=len(usage) * 300.0,
        members=Members(owner, highest[:, owner] * shares, mean[:, owner] * shares, np.full(len(owner), np.nan)),
    )


def alone(whole, columns):
    """The history of some of the series, in the order given."""
    kept = np.concatenate([np.flatnonzero(whole.members.series == column) for column in columns])
    members = Members(
        np.repeat(np.arange(len(columns)), 3),
        whole.members.hourly_max[:, kept],
        whole.members.hourly_mean[:, kept],
        whole.members.requested[kept],
    )
    return dataclasses.replace(
        whole, usage=whole.usage[:, columns], requested=whole.requested[list(columns)], members=members
    )


def scaled(whole, factor):
    members = dataclasses.replace(
        whole.members, hourly_max=whole.members.hourly_max * factor, hourly_mean=whole.members.hourly_mean * factor
    )
    return dataclasses.replace(whole, usage=whole.usage * factor, members=members)


def peaks_of(name, whole, horizon=3600.0):
    return models.create(name).predict(whole, horizon, RISKS)


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("horizon", [60.0, 3600.0, 86400.0])
def test_a_model_answers_for_each_risk_and_series_and_knows_nothing_of_gaps(name, horizon):
    whole = with_members(waves())
    peaks = peaks_of(name, whole, horizon)
    assert peaks.shape == (2, 6)
    assert peaks.dtype == np.float64
    assert np.isnan(peaks[:, 5]).all(), "a column of gaps alone has no peak"
    assert (peaks[:, :5] > 0).all()
    if models.create(name).states_risk:
        assert (peaks[0, :5] >= peaks[1, :5]).all()
    else:
        np.testing.assert_array_equal(peaks[0], peaks[1])


@pytest.mark.parametrize("name", CLASSICAL)
def test_the_order_of_series_and_their_neighbours_do_not_matter(name):
    whole = with_members(waves())
    peaks = peaks_of(name, whole)
    order = [4, 2, 5, 0]
    np.testing.assert_allclose(peaks_of(name, alone(whole, order)), peaks[:, order], rtol=1e-12)


@pytest.mark.parametrize("name", CLASSICAL)
def test_scaling_the_use_scales_the_peak(name):
    whole = with_members(waves())
    for factor in (2.0**-20, 1024.0):
        np.testing.assert_allclose(peaks_of(name, scaled(whole, factor)), peaks_of(name, whole) * factor, rtol=1e-6)


@pytest.mark.parametrize("name", CLASSICAL)
def test_use_as_float32_gives_the_same_within_a_bucket(name):
    whole = with_members(waves())
    single = dataclasses.replace(whole, usage=whole.usage.astype(np.float32))
    np.testing.assert_allclose(peaks_of(name, single), peaks_of(name, whole), rtol=1e-4)


@pytest.mark.parametrize("name", CLASSICAL)
def test_gaps_are_left_out_and_never_read_as_zero(name):
    usage = np.full((14 * 288, 2), 10.0)
    usage[np.random.default_rng(0).random(len(usage)) < 0.3, 1] = np.nan
    usage[-1, 1] = 10.0
    full, gaps = models.create(name).predict(history(usage), 3600.0, RISKS)[0]
    assert full == pytest.approx(10.0, rel=0.06)
    assert gaps == pytest.approx(full)


@pytest.mark.parametrize("name", CLASSICAL)
def test_a_node_without_use_is_forecast_to_use_nothing(name):
    assert models.create(name).predict(history(np.zeros((8 * 288, 1))), 3600.0, RISKS)[0, 0] == 0.0


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("slots", [0, 1, 11, 40])
def test_a_short_history_gets_what_can_be_said_or_nan(name, slots):
    peaks = models.create(name).predict(history(np.full((slots, 2), 3.0)), 3600.0, RISKS)
    assert peaks.shape == (2, 2)
    assert (np.isnan(peaks) | (np.abs(peaks - 3.0) < 0.16)).all()


@pytest.mark.parametrize("name", CLASSICAL)
def test_no_series_at_all_is_no_answer_at_all(name):
    assert models.create(name).predict(history(np.empty((8 * 288, 0))), 3600.0, RISKS).shape == (2, 0)


@pytest.mark.parametrize("name", ["histogram", "holt_winters", "rc_percentile", "window_max"])
def test_the_forecast_of_a_daily_square_wave_has_risen_before_the_morning_edge(name):
    """peer-koordinator.md 10, case 10: 4 cores at night, 20 by day."""
    hour = np.arange(8 * 288) // 12 % 24
    usage = np.where((hour >= 8) & (hour < 20), 20.0, 4.0)[:, None]
    before_the_edge = usage[: 7 * 288 + 8 * 12]
    assert before_the_edge[-1, 0] == 4.0
    peaks = models.create(name).predict(history(before_the_edge), 3600.0, RISKS)
    assert (peaks >= 20.0).all()


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(models.UnknownModel, match=r"'windowmax' is not known.*histogram, .*window_max"):
        models.create("windowmax")


def test_the_predictor_starts_without_pandas_and_statsmodels():
    code = (
        "import sys, predictor.main; sys.exit(bool({'pandas', 'statsmodels', 'scipy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
