from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import models
from predictor.models import weights
from predictor.models.base import History, Members
from predictor.models.features import feature_names
from predictor.models.levels import at_risks

HOUR = 3600.0
DAY = 86400.0
PER_HOUR = 12
FITTED = ["boosted", "quantile_regression"]
RISKS = np.array([0.0005, 0.003, 0.01, 0.07, 0.2])


def history(hours=336, pods=(3, 4, 6), seed=0):
    """Nodes of some pods each, busy by day, with jumps."""
    rng = np.random.default_rng(seed)
    count, slots = sum(pods), hours * PER_HOUR
    clock = 2 * np.pi * np.arange(slots)[:, None] / (24 * PER_HOUR)
    use = 1 + 0.4 * np.sin(clock + rng.uniform(0, 1, count)) + rng.gamma(0.2, 0.4, (slots, count))
    owner = np.repeat(np.arange(len(pods)), pods)
    usage = np.stack([use[:, owner == node].sum(axis=1) for node in range(len(pods))], axis=1)
    blocks = use.reshape(hours, PER_HOUR, count).astype(np.float32)
    members = Members(owner, blocks.max(axis=1), blocks.mean(axis=1), np.full(count, np.nan))
    return History(usage, np.full(len(pods), np.nan), 300.0, 0.0, members)


def last(given, hours):
    """What was known had measuring begun `hours` ago."""
    members = given.members
    if members is not None:
        rows = slice(len(members.hourly_max) - hours, None)
        members = Members(members.series, members.hourly_max[rows], members.hourly_mean[rows], members.requested)
    usage = np.asarray(given.usage)
    return dataclasses.replace(given, usage=usage[len(usage) - hours * PER_HOUR :], members=members)


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("horizon", [300.0, HOUR, 6 * HOUR, DAY, 7 * DAY])
def test_less_risk_never_gets_a_lower_peak(name, horizon):
    peaks = models.create(name).predict(history(), horizon, RISKS)
    assert peaks.shape == (5, 3)
    assert np.isfinite(peaks).all()
    assert (np.diff(peaks, axis=0) <= 0).all()
    assert (peaks >= 0).all()


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("horizon", [HOUR, DAY])
def test_answers_lie_between_the_use_of_an_hour_and_twice_that_of_a_week(name, horizon):
    given = history()
    usage = np.asarray(given.usage)
    peaks = models.create(name).predict(given, horizon, np.array([0.01]))[0]
    assert (peaks > usage[-PER_HOUR:].mean(axis=0) * 0.8).all()
    assert (peaks < 2 * usage[-7 * 24 * PER_HOUR :].max(axis=0)).all()


@pytest.mark.parametrize("name", FITTED)
def test_a_longer_horizon_takes_the_next_longer_weights(name):
    model, given, risk = models.create(name), history(), np.array([0.01])
    np.testing.assert_array_equal(model.predict(given, 300.0, risk), model.predict(given, HOUR, risk))
    np.testing.assert_array_equal(model.predict(given, 2 * HOUR, risk), model.predict(given, DAY, risk))


@pytest.mark.parametrize("name", FITTED)
def test_days_share_the_risk(name):
    model, given = models.create(name), history()
    week = model.predict(given, 7 * DAY, np.array([0.07]))
    np.testing.assert_allclose(week, model.predict(given, DAY, np.array([0.01])))


@pytest.mark.parametrize("name", FITTED)
@settings(max_examples=10, deadline=None)
@given(factor=st.floats(1e-3, 1e9), seed=st.integers(0, 20))
def test_scaling_the_use_scales_the_peak(name, factor, seed):
    given_ = dataclasses.replace(history(200, seed=seed), members=None)
    larger = dataclasses.replace(given_, usage=np.asarray(given_.usage) * factor)
    model = models.create(name)
    # A value that lies on a threshold of a tree may fall on its other side by rounding.
    np.testing.assert_allclose(
        model.predict(larger, HOUR, RISKS), model.predict(given_, HOUR, RISKS) * factor, rtol=0.03
    )


@pytest.mark.parametrize("name", FITTED)
def test_a_series_answers_for_itself_alone(name):
    given = history()
    order = np.array([2, 0])
    members = given.members
    kept = np.flatnonzero(np.isin(members.series, order))
    place = np.array([1, -1, 0])
    part = History(
        np.asarray(given.usage)[:, order],
        given.requested[order],
        300.0,
        0.0,
        Members(
            place[members.series[kept]],
            members.hourly_max[:, kept],
            members.hourly_mean[:, kept],
            members.requested[kept],
        ),
    )
    model = models.create(name)
    np.testing.assert_allclose(model.predict(part, HOUR, RISKS), model.predict(given, HOUR, RISKS)[:, order], rtol=1e-4)


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("hours", [6, 10, 23, 30, 100, 200])
def test_short_histories_are_answered_with_and_without_pods(name, hours):
    given = last(history(), hours)
    model = models.create(name)
    for known in (given, dataclasses.replace(given, members=None)):
        peaks = model.predict(known, HOUR, RISKS)
        assert np.isfinite(peaks).all()
        assert (peaks[2] < 3 * np.asarray(given.usage).max(axis=0)).all()


@pytest.mark.parametrize("name", FITTED)
def test_what_is_not_known_is_not_answered_and_what_idles_expects_nothing(name):
    usage = np.asarray(history().usage).copy()
    usage[:, 0] = np.nan
    usage[:, 1] = 0.0
    peaks = models.create(name).predict(History(usage, np.full(3, np.nan), 300.0), HOUR, RISKS)
    assert np.isnan(peaks[:, 0]).all()
    assert (peaks[:, 1] == 0.0).all()
    assert np.isfinite(peaks[:, 2]).all()
    empty = models.create(name).predict(History(usage[:0], np.full(3, np.nan), 300.0), HOUR, RISKS)
    assert empty.shape == (5, 3)
    assert np.isnan(empty).all()


@pytest.mark.parametrize("name", FITTED)
def test_what_pods_ask_for_changes_nothing(name):
    given = history()
    asked = dataclasses.replace(
        given, requested=np.full(3, 1e3), members=dataclasses.replace(given.members, requested=np.full(13, 7.0))
    )
    model = models.create(name)
    np.testing.assert_array_equal(model.predict(given, HOUR, RISKS), model.predict(asked, HOUR, RISKS))


@pytest.mark.parametrize("name", FITTED)
def test_gaps_are_no_zeros(name):
    given = history()
    rng = np.random.default_rng(1)
    usage = np.asarray(given.usage).copy()
    usage[rng.random(usage.shape) < 0.05] = np.nan
    model = models.create(name)
    whole = model.predict(given, HOUR, RISKS)
    holed = model.predict(dataclasses.replace(given, usage=usage), HOUR, RISKS)
    np.testing.assert_allclose(holed, whole, rtol=0.25)


def test_pods_that_jump_together_need_more_than_those_that_never_do():
    given = history()
    jumpy = given.members.hourly_max.copy()
    jumpy[-30::-24] *= 3.0
    model = models.create("boosted")
    calm = model.predict(given, HOUR, RISKS)
    wild = model.predict(
        dataclasses.replace(given, members=dataclasses.replace(given.members, hourly_max=jumpy)), HOUR, RISKS
    )
    assert wild[2].sum() != calm[2].sum()


def test_between_fitted_risks_the_answer_is_between_theirs():
    fitted, answers = np.array([0.01, 0.1]), np.array([[2.0, np.nan], [1.0, np.nan]])
    got = at_risks(fitted, answers, np.array([0.001, 0.01, np.sqrt(0.001), 0.1, 0.5]), HOUR)
    np.testing.assert_allclose(got[:, 0], [2.0, 2.0, 1.5, 1.0, 1.0])
    assert np.isnan(got[:, 1]).all()


def test_fitted_quantiles_that_cross_are_put_right():
    crossed = np.array([[1.0], [2.0]])
    np.testing.assert_allclose(at_risks(np.array([0.01, 0.1]), crossed, np.array([0.01, 0.1]), HOUR), [[2.0], [2.0]])


def test_weights_of_other_features_are_refused_with_their_names():
    names = feature_names(HOUR)
    with pytest.raises(weights.WeightsError, match=r"boosted_1h\.npz.*other features \(of_my_own"):
        weights.load("boosted", 1, (*names, "of_my_own"))
    with pytest.raises(weights.WeightsError, match="their order"):
        weights.load("boosted", 1, names[::-1])
    with pytest.raises(weights.WeightsError, match=r"nothing_1h\.npz are not in the package"):
        weights.load("nothing", 1, names)


def test_shipped_weights_are_small():
    from importlib import resources

    sizes = [
        len(path.read_bytes()) for path in resources.files(weights.__package__).iterdir() if path.name[-4:] == ".npz"
    ]
    assert sum(sizes) < 3 << 20
