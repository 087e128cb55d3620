from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from predictor import models
from predictor.models import weights
from predictor.models.base import History
from predictor.models.lstm import CHANNELS, FIXED, LEAST_HOURS, NAMES, STEPS, forward, inputs

RISKS = np.array([0.005, 0.01, 0.05, 0.2])
NAN = float("nan")
DAY = 288


def history(usage):
    usage = np.asarray(usage, dtype=float)
    return History(usage=usage, requested=np.full(usage.shape[1], NAN), slot_seconds=300.0, at=len(usage) * 300.0)


def by_hours(hours):
    """(slots, 1): each hour's value in its seventh slot, half of it in the others."""
    usage = np.repeat(np.asarray(hours, dtype=float)[:, None] / 2, 12, axis=0)
    usage[6::12] *= 2
    return history(usage)


def waves(days=8, series=4, seed=0):
    random = np.random.default_rng(seed)
    hour = np.arange(days * DAY)[:, None] / 12
    phase = np.arange(series)[None, :] * 3
    return 10 + 4 * np.sin(2 * np.pi * (hour - phase) / 24) + random.gamma(2.0, 0.5, (days * DAY, series))


def fixed(given):
    return dict(zip(FIXED, given.fixed[0].tolist(), strict=True))


def test_a_step_is_an_hour_and_the_one_after_it_a_day_before():
    given = inputs(by_hours(np.arange(1.0, 193.0)), 1)
    assert given.scale.tolist() == [192.0]
    assert given.sequence.shape == (STEPS, 1, len(CHANNELS))
    newest = given.sequence[-1, 0] * 192
    assert newest.tolist() == pytest.approx([192.0, (192 + 11 * 96) / 12, 192.0, 169.0])
    assert (given.sequence[0, 0] * 192)[[0, 3]].tolist() == pytest.approx([169.0, 146.0])


def test_fixed_inputs_are_what_they_are_called():
    given = fixed(inputs(by_hours(np.arange(1.0, 193.0)), 3))
    share = {name: value * 192 for name, value in given.items()}
    assert share["last_hour"] == pytest.approx(192)
    assert share["last_slot"] == pytest.approx(96)
    assert share["max_72h"] == pytest.approx(192)
    assert share["mean_24h"] == pytest.approx(180.5, rel=1e-5)
    assert share["deviation_24h"] == pytest.approx(np.arange(24).std(), rel=1e-5)
    assert share["same_hours_1d"] == pytest.approx(171), "three hours, a day before those to come"
    assert share["same_hours_7d"] == pytest.approx(27)
    assert (share["day_rank_1"], share["day_rank_3"]) == (pytest.approx(192), pytest.approx(144))
    assert (given["days_known"], given["hours_known"]) == (1.0, 1.0)


def test_scale_is_the_highest_use_of_seven_days():
    hours = np.ones(192)
    hours[23] = 50.0
    hours[24] = 8.0
    assert inputs(by_hours(hours), 1).scale.tolist() == [8.0]


def test_gaps_are_told_apart_from_zero():
    hours = np.full(192, 4.0)
    hours[-5] = NAN
    hours[-30] = 0.0
    whole = by_hours(hours)
    given = inputs(whole, 1)
    measured = given.sequence[:, 0, CHANNELS.index("measured")]
    assert measured.tolist() == [1.0] * 19 + [0.0] + [1.0] * 4
    assert fixed(given)["mean_24h"] == pytest.approx(1.0)


def test_of_a_short_history_what_is_not_known_is_what_is_nearest_to_it():
    given = inputs(by_hours([2.0, 4.0, 3.0]), 1)
    known = fixed(given)
    assert known["same_hours_1d"] == known["max_24h"] == 1.0
    assert known["mean_168h"] == known["mean_24h"] == pytest.approx(0.75)
    assert known["days_known"] == 0.0
    assert 0 < known["hours_known"] < 0.3


@pytest.mark.parametrize("horizon", [60.0, 3600.0, 86400.0, 3 * 86400.0])
def test_it_answers_for_each_risk_and_a_lower_risk_is_never_lower(horizon):
    peaks = models.create("lstm").predict(history(waves()), horizon, RISKS)
    assert peaks.shape == (4, 4)
    assert peaks.dtype == np.float64
    assert (peaks > 0).all()
    assert (np.diff(peaks, axis=0) <= 0).all()


def test_the_answer_scales_and_is_of_each_series_alone():
    usage = waves()
    model = models.create("lstm")
    peaks = model.predict(history(usage), 3600.0, RISKS)
    np.testing.assert_allclose(model.predict(history(usage * 1024), 3600.0, RISKS), peaks * 1024, rtol=1e-5)
    np.testing.assert_allclose(model.predict(history(usage[:, [2, 0]]), 3600.0, RISKS), peaks[:, [2, 0]], rtol=1e-5)


def test_more_series_than_are_taken_at_once_get_the_same_answers(monkeypatch):
    usage = waves()
    peaks = models.create("lstm").predict(history(usage), 3600.0, RISKS)
    monkeypatch.setattr("predictor.models.lstm._COLUMNS", 3)
    np.testing.assert_allclose(models.create("lstm").predict(history(usage), 3600.0, RISKS), peaks, rtol=1e-5)


def test_what_is_all_gaps_or_too_short_has_no_answer_and_no_use_has_none_to_come():
    usage = waves(series=4)
    usage[:, 0] = NAN
    usage[-DAY:, 1] = NAN
    usage[:, 2] = 0.0
    peaks = models.create("lstm").predict(history(usage), 3600.0, RISKS)
    assert np.isnan(peaks[:, :2]).all()
    assert (peaks[:, 2] == 0).all()
    assert np.isfinite(peaks[:, 3]).all()
    short = history(waves()[: 12 * LEAST_HOURS - 1])
    assert np.isnan(models.create("lstm").predict(short, 3600.0, RISKS)).all()
    for empty in (np.empty((0, 2)), np.empty((DAY, 0))):
        assert models.create("lstm").predict(history(empty), 3600.0, RISKS).shape == (4, empty.shape[1])


def test_it_has_learned_that_use_comes_back_each_day():
    """peer-koordinator.md 10, case 10: before the morning edge the forecast is above the night's level."""
    hour = np.arange(8 * DAY) // 12 % 24
    random = np.random.default_rng(0)
    usage = np.where((hour >= 8) & (hour < 20), 20.0, 4.0) + random.random(len(hour))
    before = history(usage[: 7 * DAY + 8 * 12, None])
    assert before.usage[-1, 0] < 5.0
    assert models.create("lstm").predict(before, 3600.0, np.array([0.01]))[0, 0] > 15.0


def test_what_it_weighs_and_reads_is_what_it_was_fitted_on():
    for hours in weights.HORIZONS_HOURS:
        stored = weights.load("lstm", hours, NAMES)
        assert stored["input"].shape[0] == len(CHANNELS)
        assert stored["dense"].shape[0] == stored["recurrent"].shape[0] + len(FIXED)
        assert (np.diff(stored["risks"]) > 0).all()
        assert sum(array.nbytes for name, array in stored.items() if name != "names") < 300_000


def test_forecasting_needs_nothing_of_the_extra():
    code = (
        "import sys, numpy as np; from predictor import models; from predictor.models.base import History;"
        "h = History(np.ones((300, 1)), np.ones(1), 300.0);"
        "models.create('lstm').predict(h, 3600.0, np.array([0.01])); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="the extra lstm (jax) is not installed")
def test_numpy_evaluates_what_jax_fitted_and_fitting_lowers_the_loss():
    code = """
import numpy as np
from predictor.models.lstm import CHANNELS, FIXED, STEPS, forward
from predictor.training import lstm
random = np.random.default_rng(0)
sequence = random.random((STEPS, 32, len(CHANNELS)), dtype=np.float32)
fixed = random.random((32, len(FIXED)), dtype=np.float32)
peak = fixed[:, 0] + random.gamma(2.0, 0.1, 32)
rows = lstm.Rows(sequence, fixed, peak, peak, peak[:, None], np.zeros(32, dtype=np.int64), np.zeros(32, dtype=bool))
first = lstm.start(7)
fitted = lstm.fit([rows], updates=40, batch=32)
for weights in (first, fitted):
    ours = forward({name: np.asarray(part) for name, part in weights.items()}, sequence, fixed)
    np.testing.assert_allclose(ours, np.asarray(lstm.network(weights, sequence, fixed)), atol=1e-5)
    assert (np.diff(ours, axis=1) < 0).all()
batch = (sequence, fixed, peak.astype(np.float32))
assert float(lstm.loss(fitted, *batch)) < 0.8 * float(lstm.loss(first, *batch))
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=110, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_network_is_its_formula_for_one_series():
    """Two steps of a cell of one unit, by hand."""
    given = {
        "input": np.array([[0.5, -0.5, 1.0, 2.0]], dtype=np.float32),
        "recurrent": np.array([[1.0, 0.5, -1.0, 0.5]], dtype=np.float32),
        "gate_bias": np.array([0.1, 1.0, 0.0, -0.5], dtype=np.float32),
        "dense": np.array([[1.5], [0.5]], dtype=np.float32),
        "dense_bias": np.array([0.25], dtype=np.float32),
        "out": np.array([[0.5, -1.0]], dtype=np.float32),
        "out_bias": np.array([-0.5, 0.25], dtype=np.float32),
    }

    def sigmoid(value):
        return 1 / (1 + np.exp(-value))

    state = cell = 0.0
    for value in (0.3, 0.8):
        take = sigmoid(0.5 * value + 1.0 * state + 0.1)
        keep = sigmoid(-0.5 * value + 0.5 * state + 1.0)
        show = sigmoid(1.0 * value - 1.0 * state)
        cell = keep * cell + take * np.tanh(2.0 * value + 0.5 * state - 0.5)
        state = show * np.tanh(cell)
    hidden = np.tanh(1.5 * state + 0.5 * 0.6 + 0.25)
    common = 0.6 - hidden + 0.25
    expected = [common + np.log1p(np.exp(0.5 * hidden - 0.5)), common]
    sequence = np.array([0.3, 0.8], dtype=np.float32).reshape(2, 1, 1)
    assert forward(given, sequence, np.array([[0.6]], dtype=np.float32))[0] == pytest.approx(expected, rel=1e-5)


def test_float32_history_gives_the_same():
    usage = waves()
    model = models.create("lstm")
    single = dataclasses.replace(history(usage), usage=usage.astype(np.float32))
    np.testing.assert_allclose(
        model.predict(single, 3600.0, RISKS), model.predict(history(usage), 3600.0, RISKS), rtol=1e-4
    )
