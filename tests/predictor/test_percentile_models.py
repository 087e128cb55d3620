"""Histogram, N-sigma and the per-pod percentile against values worked out by hand and against slower formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictor import models
from predictor.models.base import History, Members
from predictor.models.histogram import BUCKETS_PER_DOUBLING, Histogram, decayed_percentile
from predictor.models.n_sigma import NSigma
from predictor.models.rc_percentile import RcPercentile
from predictor.models.windows import hourly_maxima, percentile

RISKS = np.array([0.01])
NAN = float("nan")
VALUES = st.one_of(st.just(NAN), st.floats(0, 1e6))


def history(usage, members=None):
    usage = np.asarray(usage, dtype=float)
    return History(usage=usage, requested=np.full(usage.shape[1], NAN), slot_seconds=300.0, members=members)


def pods(series, hourly_max, requested=None):
    hourly_max = np.asarray(hourly_max, dtype=float)
    asked = np.full(len(series), NAN) if requested is None else np.array(requested)
    return Members(np.array(series), hourly_max, hourly_max, asked)


def bucket_end(value):
    return 2 ** (np.ceil(np.log2(value) * BUCKETS_PER_DOUBLING - 1e-9) / BUCKETS_PER_DOUBLING)


def weighted_percentile(values, weights, percent):
    """By sorting: the lowest value at or below which `percent` of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) >= percent / 100 * weights.sum() - 1e-9
    return values[order][np.argmax(reached)]


def test_the_answer_is_the_end_of_the_percentile_s_bucket():
    usage = np.arange(1.0, 101.0)[:, None]
    peak = decayed_percentile(usage, np.ones(100), 90.0)[0]
    assert peak == pytest.approx(bucket_end(90.0))
    assert 90.0 <= peak < 90.0 * 2 ** (1 / BUCKETS_PER_DOUBLING)


def test_a_power_of_two_is_a_bucket_s_end_and_stands_for_itself():
    assert decayed_percentile(np.full((3, 1), 4.0), np.ones(3), 99.0).tolist() == [4.0]


def test_use_counts_half_for_each_half_life_that_it_is_old():
    """Two slots, one half-life apart, weigh 1 : 2; the old peak is above 1/3 of the weight."""
    model = Histogram(window_days=1.0, half_life_seconds=300.0, percentile=66.0)
    usage = [[64.0], [1.0]]
    assert model.predict(history(usage), 3600.0, RISKS)[0, 0] == 1.0
    higher = Histogram(window_days=1.0, half_life_seconds=300.0, percentile=67.0)
    assert higher.predict(history(usage), 3600.0, RISKS)[0, 0] == 64.0


def test_a_margin_is_added_on_top():
    model = Histogram(percentile=95.0, margin_percent=10.0)
    assert model.predict(history([[4.0]]), 3600.0, RISKS)[0, 0] == pytest.approx(4.4)


@given(
    arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(2**-10, 1e6)),
    st.sampled_from([50.0, 90.0, 95.0, 99.0]),
    st.floats(1e2, 1e6),
)
def test_it_is_the_sorted_weighted_percentile_up_to_one_bucket(values, percent, half_life):
    weights = np.exp2(-np.arange(len(values) - 1, -1, -1) * 300.0 / half_life)
    answer = decayed_percentile(values[:, None], weights, percent)[0]
    # At a rank that falls between two values to the last bit, either is right.
    near = [weighted_percentile(values, weights, percent + step) for step in (-1e-3, 1e-3)]
    assert near[0] * (1 - 1e-9) <= answer <= max(near[1] * 1.06, values.max() * 2**-24)


def test_n_sigma_is_mean_and_five_sample_deviations():
    usage = [[8.0, 10.0], [12.0, 10.0]] * 12
    steady = np.sqrt(24 * 4 / 23)
    peaks = models.create("n_sigma").predict(history(usage), 3600.0, RISKS)[0]
    assert peaks.tolist() == [pytest.approx(10 + 5 * steady), 10.0]


def test_n_sigma_says_nothing_of_a_series_with_fewer_than_24_samples():
    usage = np.full((40, 2), 5.0)
    usage[:17, 1] = NAN
    assert np.isnan(models.create("n_sigma").predict(history(usage), 3600.0, RISKS)[0]).tolist() == [False, True]


def test_n_sigma_looks_back_a_day_at_most():
    usage = np.full((2 * 288, 1), 5.0)
    usage[:288] = 500.0
    assert models.create("n_sigma").predict(history(usage), 3600.0, RISKS)[0, 0] == 5.0
    assert NSigma(window_days=2.0).predict(history(usage), 3600.0, RISKS)[0, 0] > 500.0


def test_the_percentiles_of_the_pods_of_a_node_are_summed():
    """Hours 0 to 20: the 95th percentile of 21 values is the one at rank 19."""
    ramp = np.arange(21.0)
    members = pods([0, 1, 0], np.stack([ramp, np.full(21, 3.0), ramp[::-1] * 2], axis=1))
    peaks = models.create("rc_percentile").predict(history(np.ones((300, 3)), members), 3600.0, RISKS)[0]
    assert peaks.tolist() == [pytest.approx(19 + 38), pytest.approx(3.0), pytest.approx(1.0)]


def test_a_node_counts_with_at_least_the_percentile_of_its_own_use():
    members = pods([0], np.ones((24, 1)))
    assert models.create("rc_percentile").predict(history(np.full((288, 1), 6.0), members), 3600.0, RISKS)[0, 0] == 6.0


def test_cold_pods_count_with_their_request_or_what_they_were_seen_to_use():
    """peers.md 10, K #953: one pod without metrics does not take the answer for its node away."""
    one_hour = [[NAN, NAN, NAN], [9.0, 1.0, NAN]]
    members = pods([0, 1, 2], one_hour, [4.0, 4.0, 4.0])
    peaks = models.create("rc_percentile").predict(history(np.full((24, 3), 0.5), members), 3600.0, RISKS)[0]
    assert peaks.tolist() == [9.0, 4.0, 4.0]


def test_a_pod_of_which_nothing_is_known_leaves_its_node_alone_without_an_answer():
    members = pods([0, 1, 1], [[1.0, 1.0, NAN]] * 3)
    peaks = models.create("rc_percentile").predict(history(np.full((36, 2), 0.5), members), 3600.0, RISKS)[0]
    assert peaks[0] == 1.0
    assert np.isnan(peaks[1])


def test_hours_of_members_before_the_window_do_not_count():
    hourly = np.full((30, 1), 1.0)
    hourly[:6] = 50.0
    model = RcPercentile(percentile=100.0)
    assert model.predict(history(np.full((288, 1), 0.5), pods([0], hourly)), 3600.0, RISKS)[0, 0] == 1.0


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=VALUES), st.floats(0, 1))
def test_percentile_is_numpy_s_without_the_gaps(values, share):
    expected = [
        np.percentile(column[~np.isnan(column)], share * 100) if (~np.isnan(column)).any() else NAN
        for column in values.T
    ]
    np.testing.assert_allclose(percentile(values, share), expected, rtol=1e-9, atol=1e-9)


def test_hours_are_counted_from_the_end_and_a_rest_at_the_old_end_is_left_out():
    usage = np.array([[99.0], [1.0], [2.0], [NAN], [NAN], [5.0], [NAN]])
    hours = hourly_maxima(usage, 2)
    assert hours[:, 0].tolist() == [2.0, pytest.approx(NAN, nan_ok=True), 5.0]
