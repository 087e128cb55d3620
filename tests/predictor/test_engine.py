from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.confidence import Path
from predictor.models.window_max import WindowMax
from tests.predictor.engines import (
    DAY,
    HOUR,
    MODELS,
    Broken,
    LastHour,
    make,
    names_of,
    noise,
    peaks_of,
    run,
    view,
)

HOURLY = range(DAY, 4 * DAY, HOUR)
LATE = range(DAY, 2 * DAY + HOUR, HOUR)


@pytest.mark.parametrize("risk", [0.005, 0.01, 0.05])
def test_the_asked_risk_holds_on_a_fleet_that_nobody_has_seen(risk):
    usage = noise(1, 24 * DAY, 40)
    ends = range(HOUR, 24 * DAY - HOUR, HOUR)
    peaks, _ = run(make(risk=risk, candidates=("last_hour",)), usage, ends)
    scored = slice(10 * 24, None)
    violated = (peaks < peaks_of(usage, ends))[scored].mean()
    assert risk / 2 <= violated <= 2 * risk


def test_the_asked_risk_holds_a_day_ahead():
    usage = noise(2, 40 * DAY, 60)
    ends = range(6 * HOUR, 39 * DAY, 6 * HOUR)
    peaks, _ = run(make(horizon_seconds=86400.0, candidates=("last_hour",)), usage, ends)
    violated = (peaks < peaks_of(usage, ends, DAY))[20 * 4 :].mean()
    assert 0.005 <= violated <= 0.02


def test_stepping_every_slot_learns_what_stepping_every_hour_learns():
    usage = noise(3, 3 * DAY, 6)
    hourly, often = make(), make()
    run(hourly, usage, range(HOUR, 3 * DAY, HOUR))
    run(often, usage, range(HOUR, 2 * DAY + 11 * HOUR + 1, 1))
    run(often, usage, range(2 * DAY + 12 * HOUR, 3 * DAY, HOUR))
    mine, other = hourly.scores()[0], often.scores()[0]
    assert mine.shift == pytest.approx(other.shift, abs=0.05)
    assert mine.decisions == other.decisions


def test_nothing_from_the_future_is_used():
    usage = noise(4, 4 * DAY, 5)
    cut = 3 * DAY
    other = usage.copy()
    other[cut:] = other[cut:][::-1] * 7.0
    ends = [end for end in HOURLY if end <= cut]
    seen, _ = run(make(), usage, ends)
    shifted, _ = run(make(), other, ends)
    np.testing.assert_array_equal(seen, shifted)


def test_an_outcome_is_learned_when_its_horizon_is_complete_and_not_before():
    usage = noise(5, 2 * DAY, 4)
    engine = make()
    run(engine, usage, [DAY])
    run(engine, usage, range(DAY + 1, DAY + HOUR))
    assert engine.scores()[0].decisions == 0
    run(engine, usage, [DAY + HOUR])
    assert engine.scores()[0].decisions == 4


def test_the_order_of_the_series_does_not_matter():
    usage = noise(6, 3 * DAY, 7)
    order = np.array([3, 0, 6, 2, 5, 1, 4])
    straight, _ = run(make(), usage, LATE)
    names = [names_of(7)[index] for index in order]
    turned, _ = run(make(), usage[:, order], LATE, names=names)
    np.testing.assert_allclose(turned, straight[:, order], rtol=1e-12)


def test_the_order_may_change_from_step_to_step():
    usage = noise(7, 3 * DAY, 5)
    straight, _ = run(make(), usage, LATE)
    engine, generator, turned = make(), np.random.default_rng(1), []
    for end in LATE:
        order = generator.permutation(5)
        step = engine.step([names_of(5)[index] for index in order], view(usage[:, order], end))
        turned.append(step.peak[np.argsort(order)])
    np.testing.assert_allclose(np.array(turned), straight, rtol=1e-12)


def test_scaling_the_use_scales_the_peak():
    usage = noise(8, 3 * DAY, 5)
    # A power of two: peaks that are remembered as float32 scale exactly.
    straight, _ = run(make(), usage, LATE)
    scaled, _ = run(make(), usage * 1024.0, LATE)
    np.testing.assert_allclose(scaled, straight * 1024.0, rtol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 4), st.floats(0, 100))
def test_adding_use_to_the_newest_slot_never_lowers_the_peak(column, more):
    usage = noise(9, 2 * DAY, 5)
    engine, other = make(), make()
    ends = range(DAY, DAY + 8 * HOUR, HOUR)
    run(engine, usage, ends)
    run(other, usage, ends)
    busier = usage.copy()
    busier[-1, column] += more
    before = engine.step(names_of(5), view(usage, 2 * DAY)).peak
    after = other.step(names_of(5), view(busier, 2 * DAY)).peak
    assert np.all(after >= before * (1 - 1e-9))
    assert np.all(after >= busier[-1])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 3 * HOUR))
def test_while_nothing_is_measured_nothing_more_is_sold(columns, gap):
    usage = noise(10, 3 * DAY, 5)
    engine = make()
    peaks, _ = run(engine, usage, range(2 * DAY - 6 * HOUR, 2 * DAY + 1, HOUR))
    silent = usage.copy()
    silent[2 * DAY : 2 * DAY + gap, columns] = np.nan
    last = peaks[-1]
    for end in range(2 * DAY + 1, 2 * DAY + gap + 1):
        peak = engine.step(names_of(5), view(silent, end)).peak
        assert np.all(peak[columns] >= last[columns])
        last = peak


def test_a_peak_falls_by_half_an_hour_at_most_and_rises_at_once():
    usage = np.full((5 * DAY, 3), 10.0)
    usage[2 * DAY : 2 * DAY + HOUR] = 100.0
    engine = make(candidates=("last_hour",), release_keep_ratio=0.5, release_step_percent=0.0)
    run(engine, usage, range(DAY, 2 * DAY, HOUR))
    burst = engine.step(names_of(3), view(usage, 2 * DAY + 1)).peak
    assert np.all(burst >= 100.0)
    run(engine, usage, range(2 * DAY + 2, 2 * DAY + HOUR + 1))
    peaks, _ = run(engine, usage, range(2 * DAY + HOUR + 1, 2 * DAY + 3 * HOUR))
    whole = np.vstack([burst, peaks])
    assert np.all(whole[HOUR:] >= 0.5 * whole[:-HOUR])
    assert np.all(peaks[-1] < burst)


def test_cold_nodes_count_with_their_requests():
    usage = noise(11, DAY, 4)
    usage[:, 1] = np.nan
    usage[: DAY - HOUR, 2] = np.nan
    usage[-1, 2] = 90.0
    engine = make(cold_seconds=8 * 3600.0)
    step = engine.step(names_of(4), view(usage, DAY, requested=[40.0, 50.0, 60.0, np.nan]))
    assert step.path == (Path.WEEK, Path.REQUESTS, Path.REQUESTS, Path.WEEK)
    assert step.peak[1] == 50.0
    assert step.peak[2] == 90.0, "requests below the use are no bound"
    early = make(cold_seconds=8 * 3600.0).step(names_of(4), view(usage, HOUR, requested=[40.0, 50.0, 60.0, np.nan]))
    assert early.path == (Path.REQUESTS, Path.REQUESTS, Path.REQUESTS, Path.UNKNOWN)
    assert early.peak[0] == 40.0
    assert np.isnan(early.peak[3])
    assert early.model == ("", "", "", "")


def test_the_path_follows_the_history():
    usage = noise(12, 9 * DAY, 1)
    engine = make()
    paths = {end: engine.step(["a"], view(usage, end)).path[0] for end in (9 * HOUR, 2 * DAY, 8 * DAY)}
    assert list(paths.values()) == [Path.SHORT, Path.WEEK, Path.MODEL]


def test_a_model_that_raises_is_left_out_and_said():
    usage = noise(13, 2 * DAY, 3)
    engine = make(models={**MODELS, "bad": Broken("bad")}, candidates=("bad", "last_hour"))
    step = engine.step(names_of(3), view(usage, 2 * DAY))
    assert step.path == (Path.FALLBACK,) * 3
    assert step.model == ("last_hour",) * 3
    assert "bad" in step.notes[0]
    assert "no such weights" in step.notes[0]
    assert [score.failures for score in engine.scores()] == [1, 0, 0]


def test_a_series_that_the_champion_cannot_answer_takes_the_next():
    usage = noise(14, 2 * DAY, 3)
    engine = make(models={**MODELS, "gappy": Broken("gappy", silent=[1])}, candidates=("gappy",))
    step = engine.step(names_of(3), view(usage, 2 * DAY))
    assert step.model == ("gappy", "window_max", "gappy")
    assert step.path == (Path.WEEK, Path.FALLBACK, Path.WEEK)
    assert np.all(step.peak >= usage[-1])


def test_candidates_that_are_not_there_are_noted_and_a_missing_fallback_refused():
    engine = make(models={"window_max": WindowMax()}, candidates=("boosted", "window_max"))
    assert "boosted" in engine.step(["a"], view(noise(1, DAY, 1), DAY)).notes[0]
    with pytest.raises(ValueError, match="window_max"):
        make(models={"last_hour": LastHour()}, candidates=("last_hour",))


def test_nodes_come_and_go():
    usage = noise(15, 4 * DAY, 6)
    engine = make()
    run(engine, usage[:, :4], range(DAY, 2 * DAY, HOUR))
    peaks, last = run(engine, usage[:, 2:], range(2 * DAY, 3 * DAY, HOUR), names=names_of(6)[2:])
    assert np.all(np.isfinite(peaks))
    assert np.all(peaks >= [usage[end - 1, 2:] for end in range(2 * DAY, 3 * DAY, HOUR)])
    assert len(last.peak) == 4


def test_an_empty_fleet_is_no_error():
    engine = make()
    for end in (1, 2, 3 * HOUR):
        assert len(engine.step([], view(np.zeros((DAY, 0)), end)).peak) == 0


def test_nodes_that_changed_their_pods_are_not_judged():
    usage = noise(16, 2 * DAY, 3)
    engine = make()
    engine.step(names_of(3), view(usage, DAY))
    engine.step(names_of(3), view(usage, DAY + HOUR), settled=np.array([True, False, True]))
    assert engine.scores()[0].decisions == 2


def test_gaps_in_the_horizon_are_not_judged():
    usage = noise(17, 2 * DAY, 3)
    usage[DAY : DAY + 2, 0] = np.nan
    usage[DAY : DAY + 1, 1] = np.nan
    engine = make()
    run(engine, usage, [DAY, DAY + HOUR])
    assert engine.scores()[0].decisions == 2, "one gap of twelve is under a tenth, two are not"


def test_a_pause_of_the_engine_loses_outcomes_that_the_history_no_longer_holds():
    usage = noise(18, 6 * DAY, 3)
    engine = make()
    engine.step(names_of(3), view(usage, DAY, window=DAY))
    engine.step(names_of(3), view(usage, 5 * DAY, window=DAY))
    assert engine.scores()[0].decisions == 0
    engine.step(names_of(3), view(usage, 5 * DAY + 2 * HOUR, window=DAY))
    assert engine.scores()[0].decisions == 3, "late, but still there"


@pytest.mark.parametrize(("names", "end"), [(["a"], DAY), (["a", "a"], DAY), (["a", "b"], DAY - 1), (["a", "b"], 0)])
def test_what_does_not_fit_is_refused(names, end):
    usage = noise(19, 2 * DAY, 2)
    engine = make()
    engine.step(["a", "b"], view(usage, DAY))
    with pytest.raises(ValueError, match=r"names|backwards|no slots"):
        engine.step(names, view(usage, end))


def test_idle_nodes_and_absurd_answers_stay_finite():
    usage = np.zeros((3 * DAY, 3))
    usage[:, 1] = 1e12
    usage[2 * DAY :, 2] = 5.0
    peaks, last = run(make(), usage, range(DAY, 3 * DAY - HOUR, HOUR))
    assert np.all(np.isfinite(peaks))
    assert peaks[0, 0] == 0.0
    assert last.peak[2] >= 5.0
