"""Baselines against values worked out by hand, on two nodes whose three series are known in each slot."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import baselines
from predictor.backtest.replay import Replay, decisions, node_usage
from slacktide.errors import SlacktideError

RISKS = np.array([0.01, 0.05])
DAY = 288
OWNER = np.array([0, 0, 1, 1])
"""The first series stands on both nodes."""


def replay(series, requested=(4.0, 2.0, 8.0)):
    members = np.asarray(series, dtype=np.float64)[:, [0, 1, 0, 2]]
    asked = np.asarray(requested)[[0, 1, 0, 2]]
    usage = node_usage(members, OWNER, 2)
    return Replay("made", 300.0, 300.0 * 12, ("one", "two"), usage, members, OWNER, asked)


def peaks(name, recorded, slot=None, horizon=3600.0):
    at = len(recorded.usage) - 1 if slot is None else slot
    ((_, history),) = decisions(recorded, horizon, slots=range(at, at + 1))
    answer = baselines.create(name, recorded).predict(history, horizon, RISKS)
    assert answer.shape == (2, 2)
    np.testing.assert_array_equal(answer[0], answer[1])
    return answer[0]


def steady(slots, values=(1.0, 0.5, 2.0)):
    return np.tile(np.asarray(values), (slots, 1))


def noisy(days, seed=0):
    """A daily wave on the last series, noise on all."""
    random = np.random.default_rng(seed)
    slot = np.arange(days * DAY)
    use = random.gamma(4.0, 0.25, (days * DAY, 3))
    use[:, 2] += 2 + 2 * np.sin(2 * np.pi * slot / DAY)
    return use


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("static", [6.0, 12.0]),
        ("borg_default", [5.4, 10.8]),
        ("koordinator_batch", [1.5 + 2.4, 3.0 + 4.8]),
        ("rc_p99", [1.5, 3.0]),
        ("n_sigma_10", [1.5, 3.0]),
        ("last_1h_max", [1.5, 3.0]),
        ("seasonal_max_7d", [1.5, 3.0]),
        ("conformal99_node", [1.5, 3.0]),
        ("crane_dsp", [1.5 * 1.01, 3.0 * 1.01]),
    ],
)
def test_steady_use_gives_what_the_formula_says(name, expected):
    assert peaks(name, replay(steady(3 * DAY))) == pytest.approx(expected)


def test_histograms_of_steady_use_have_the_margin_of_their_system_and_at_most_a_bucket_more():
    recorded = replay(steady(3 * DAY))
    for name, margin in (("koordinator_mid", 1.1), ("vpa_target", 1.15), ("crane_percentile", 1.0)):
        share = peaks(name, recorded) / (margin * np.array([1.5, 3.0]))
        assert (share >= 1 - 1e-9).all()
        assert (share < 1.052).all()


def test_windows_end_with_the_slot_of_the_decision_and_reach_as_far_as_their_name_says():
    series = steady(9 * DAY)
    now = 8 * DAY
    series[now - 13] = 100.0
    series[now - DAY] = 200.0
    series[now - 7 * DAY] = 400.0
    series[now + 1] = 900.0
    recorded = replay(series)
    highest = {name: peaks(name, recorded, now)[0] for name in ("last_1h_max", "last_24h_max", "last_7d_max")}
    assert highest == {"last_1h_max": 1.5, "last_24h_max": 200.0, "last_7d_max": 400.0}


def test_seasons_look_at_the_hours_to_come_on_days_before():
    series = steady(8 * DAY)
    now = 7 * DAY + 100
    series[now - DAY] = 50.0
    series[now + 12 - DAY] = 60.0
    series[now + 13 - DAY] = 70.0
    series[now + 5 - 3 * DAY] = 80.0
    recorded = replay(series)
    assert peaks("seasonal_naive", recorded, now)[0] == 120.0
    assert peaks("seasonal_max_7d", recorded, now)[0] == 160.0
    assert np.isnan(peaks("seasonal_naive", recorded, DAY - 2)).all()


def test_pods_are_ranked_each_for_itself_and_then_summed():
    series = noisy(2)
    recorded = replay(series)
    each = np.percentile(series[-DAY:], 95, axis=0)
    assert peaks("rc_p95", recorded) == pytest.approx([each[0] + each[1], each[0] + each[2]])


def test_n_sigma_is_of_the_node_and_the_higher_of_two_is_taken():
    recorded = replay(noisy(2))
    use = recorded.usage[-DAY:]
    assert peaks("n_sigma_3", recorded) == pytest.approx(use.mean(axis=0) + 3 * use.std(axis=0, ddof=1))
    ten_hours = recorded.usage[-120:]
    assert peaks("n_sigma_5_10h", recorded) == pytest.approx(ten_hours.mean(axis=0) + 5 * ten_hours.std(axis=0, ddof=1))
    both = np.maximum(peaks("n_sigma_5", recorded), peaks("rc_p99", recorded))
    assert peaks("max_n_sigma_5_rc_p99", recorded).tolist() == both.tolist()


def test_conformal_is_the_day_s_maximum_times_the_rank_of_past_ratios():
    recorded = replay(noisy(7))
    hours = recorded.usage.reshape(-1, 12, 2).max(axis=1)
    ratios = np.array([hours[t + 1] / hours[t - 23 : t + 1].max(axis=0) for t in range(23, len(hours) - 1)])
    count = len(ratios)
    rank = int(np.ceil((count + 1) * 0.99))
    expected = hours[-24:].max(axis=0) * np.sort(ratios, axis=0)[rank - 1]
    assert peaks("conformal99_node", recorded) == pytest.approx(expected)
    fleet = np.sort(ratios.ravel())[int(np.ceil((2 * count + 1) * 0.99)) - 1]
    assert peaks("conformal99_fleet", recorded) == pytest.approx(hours[-24:].max(axis=0) * fleet)


def test_dsp_repeats_the_day_of_a_clean_wave_with_its_least_margin():
    slot = np.arange(4 * DAY)
    wave = 10 + 4 * np.sin(2 * np.pi * slot / DAY)
    recorded = replay(np.stack([wave, wave, wave], axis=1))
    for now in (3 * DAY + 10, 3 * DAY + 150):
        truth = 2 * wave[now + 1 : now + 13].max()
        assert peaks("crane_dsp", recorded, now) == pytest.approx([truth * 1.01] * 2, rel=0.02)


@pytest.mark.parametrize("name", baselines.NAMES)
@pytest.mark.parametrize("horizon", [3600.0, 86400.0])
def test_nothing_after_the_decision_changes_it(name, horizon):
    series = noisy(9)
    now = 8 * DAY
    other = series.copy()
    other[now + 1 :] *= 17.0
    asked = (50.0, 50.0, 50.0)
    one, two = (peaks(name, replay(values, asked), now, horizon) for values in (series, other))
    assert np.isfinite(one).all()
    assert one.tolist() == two.tolist()


def test_an_unknown_baseline_lists_the_known_ones():
    with pytest.raises(SlacktideError, match=r"'crane' is not known; choose one of: static, .*crane_dsp"):
        baselines.create("crane", replay(steady(2)))
