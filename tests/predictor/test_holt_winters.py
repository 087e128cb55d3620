from __future__ import annotations

import numpy as np
import pytest
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from predictor.models.base import History
from predictor.models.holt_winters import UNFITTED, HoltWinters, carry, fit, peaks_after, upper_quantile

RISKS = np.array([0.01, 0.05, 0.5])
WEEK = 7 * 86400.0


def history(hours, at=2 * WEEK):
    """One slot holds the hour's maximum, the others half of it."""
    usage = np.repeat(np.asarray(hours, dtype=float) / 2, 12, axis=0)
    usage[5::12] *= 2
    return History(usage=usage, requested=np.full(usage.shape[1], np.nan), slot_seconds=300.0, at=at)


def daily(days, series=1, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    hour = np.arange(days * 24)[:, None]
    return 10 + 5 * np.sin(2 * np.pi * hour / 24) + noise * random.standard_normal((len(hour), series))


def test_states_are_carried_as_statsmodels_carries_them():
    values = daily(6, noise=1.0)[:, 0]
    start = values[:48].reshape(2, 24).mean(axis=0)
    theirs = ExponentialSmoothing(
        values[48:],
        seasonal="add",
        seasonal_periods=24,
        initialization_method="known",
        initial_level=start.mean(),
        initial_seasonal=start - start.mean(),
    ).fit(smoothing_level=0.3, smoothing_seasonal=0.15, optimized=False)
    run = carry(values[:, None], np.array([[0.3], [0.15]]), 1)
    assert run.forecast[0] == pytest.approx(theirs.forecast(1)[0])
    np.testing.assert_allclose(run.misses[:, 0], (values[48:] - theirs.fittedvalues)[1:], atol=1e-9)


def test_smoothing_is_what_statsmodels_fits():
    values = daily(7, noise=1.0)[:, 0]
    level, season = fit(values)
    assert 0 <= level <= 1
    assert 0 <= season <= 1
    assert fit(values * 1024) == pytest.approx((level, season))
    errors = {
        pair: np.square(carry(values[:, None], np.array(pair)[:, None], 1).misses).sum()
        for pair in [(level, season), (0.9, 0.9), (0.9, 0.05), (0.5, 0.5)]
    }
    assert min(errors, key=errors.get) == (level, season)


def test_what_cannot_be_fitted_runs_with_default_smoothing():
    gaps = daily(7)[:, 0]
    gaps[:72] = np.nan
    assert fit(gaps) == UNFITTED
    assert fit(np.zeros(168)) == UNFITTED


@pytest.mark.parametrize("hours", [1, 3, 24])
def test_a_clean_day_is_foreseen_hour_by_hour(hours):
    whole = daily(15)
    for now in range(13 * 24, 14 * 24, 5):
        peak = HoltWinters().predict(history(whole[:now]), hours * 3600.0, RISKS)
        assert peak[:, 0] == pytest.approx(whole[now : now + hours].max(), abs=0.05)


def test_the_quantile_of_its_own_misses_is_added_at_each_risk():
    values = daily(14, noise=1.0)
    run = carry(values, np.array(UNFITTED)[:, None], 1)
    peaks = HoltWinters(fits_per_call=0).predict(history(values), 3600.0, RISKS)[:, 0]
    ranked = np.sort(run.misses[:, 0])
    assert len(ranked) == 14 * 24 - 48 - 1
    for peak, rank in zip(peaks, (286, 274, 144), strict=True):
        assert peak == pytest.approx(run.forecast[0] + ranked[rank - 1])


def test_gaps_neither_lower_nor_end_the_forecast():
    values = daily(14)
    holes = values.copy()
    holes[np.random.default_rng(1).random(len(values)) < 0.2] = np.nan
    holes[-1] = values[-1]
    peaks = HoltWinters().predict(history(np.hstack([values, holes])), 3600.0, RISKS)
    np.testing.assert_allclose(peaks[:, 1], peaks[:, 0], rtol=0.02)


@pytest.mark.parametrize(
    ("what", "gone"),
    [
        ("the last hour", slice(-1, None)),
        ("more than a quarter", slice(100, 200)),
        ("an hour on both of the first days", slice(5, 48, 24)),
    ],
)
def test_gaps_where_they_matter_leave_no_answer(what, gone):
    values = np.hstack([daily(14), daily(14)])
    values[gone, 1] = np.nan
    peaks = HoltWinters().predict(history(values), 3600.0, RISKS)
    assert np.isfinite(peaks[:, 0]).all()
    assert np.isnan(peaks[:, 1]).all(), what


def test_under_three_days_and_a_horizon_there_is_no_answer():
    values = daily(4)
    assert np.isnan(HoltWinters().predict(history(values[:72]), 3600.0, RISKS)).all()
    assert np.isfinite(HoltWinters().predict(history(values[:73]), 3600.0, RISKS)).all()
    assert np.isnan(HoltWinters().predict(history(values[:95]), 86400.0, RISKS)).all()


def test_a_period_that_is_no_day_falls_back_instead_of_repeating_yesterday():
    """peers.md 10, C #787: a forecast by season on weak periodicity repeats the last period and fits badly."""
    random = np.random.default_rng(0)
    hour = np.arange(14 * 24)[:, None]
    of_a_day = np.where(hour % 24 < 6, 20.0, 4.0) + random.random(hour.shape)
    of_no_day = np.where(hour % 13 < 1, 20.0, 4.0) + random.random(hour.shape)
    peaks = HoltWinters(fits_per_call=0).predict(history(np.hstack([of_a_day, of_no_day])), 3600.0, RISKS)
    assert np.isfinite(peaks[:, 0]).all()
    assert np.isnan(peaks[:, 1]).all()


def test_a_forecast_is_never_below_zero():
    values = np.zeros((14 * 24, 1))
    values[:24] = 5.0
    peaks = HoltWinters().predict(history(values), 3600.0, RISKS)
    assert (peaks[np.isfinite(peaks)] >= 0).all()


def test_a_call_fits_no_more_than_it_may_and_the_next_goes_on(monkeypatch):
    fitted = []
    monkeypatch.setattr("predictor.models.holt_winters.fit", lambda hours: fitted.append(hours[0]) or (0.5, 0.5))
    model = HoltWinters(fits_per_call=2)
    past = history(daily(14, series=3, noise=1.0))
    for made in (2, 3, 3):
        model.predict(past, 3600.0, RISKS)
        assert len(fitted) == made
    assert len(set(fitted)) == 3


def test_a_fit_lasts_its_week_and_not_longer(monkeypatch):
    fitted = []
    monkeypatch.setattr("predictor.models.holt_winters.fit", lambda hours: fitted.append(len(hours)) or (0.5, 0.5))
    model = HoltWinters()
    values = daily(22, noise=1.0)
    for day in range(14, 22):
        model.predict(history(values[: day * 24], at=day * 86400.0), 3600.0, RISKS)
        assert len(fitted) == (1 if day < 21 else 2)
    assert fitted == [168, 168]


def test_peaks_are_of_the_hours_after_and_unknown_where_too_many_are_gaps():
    hours = np.array([1.0, 5.0, 2.0, np.nan, 3.0, 4.0])[:, None]
    assert np.array_equal(peaks_after(hours, 1)[:, 0], [5, 2, np.nan, 3, 4, np.nan], equal_nan=True)
    assert np.array_equal(peaks_after(hours, 2)[:, 0], [5, np.nan, np.nan, 4, np.nan, np.nan], equal_nan=True)


def test_an_upper_quantile_has_the_rank_that_covers_the_next_one():
    values = np.arange(1.0, 100.0)[:, None]
    assert [upper_quantile(values, risk)[0] for risk in (0.5, 0.05, 0.01, 0.001)] == [50, 95, 99, 99]
    assert np.isnan(upper_quantile(np.full((5, 1), np.nan), 0.01)[0])
    assert upper_quantile(np.array([[np.nan], [2.0], [1.0]]), 0.01)[0] == 2.0
