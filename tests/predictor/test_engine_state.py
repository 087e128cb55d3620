from __future__ import annotations

import numpy as np
import pytest

from predictor import engine_state
from predictor.models.window_max import WindowMax
from tests.predictor.engines import DAY, HOUR, MODELS, LastHour, make, names_of, noise, run, view

USAGE = noise(1, 6 * DAY, 12)
BEFORE = range(HOUR, 3 * DAY + 1, HOUR)
AFTER = range(3 * DAY + HOUR, 5 * DAY, HOUR)


@pytest.mark.parametrize("horizon_seconds", [3600.0, 86400.0])
def test_a_restart_changes_nothing(horizon_seconds):
    engine = make(horizon_seconds=horizon_seconds)
    run(engine, USAGE, BEFORE)
    again = make(state=engine.state(), horizon_seconds=horizon_seconds)
    assert again.state() == engine.state()
    straight, last = run(engine, USAGE, AFTER)
    resumed, other = run(again, USAGE, AFTER)
    np.testing.assert_array_equal(straight, resumed)
    assert last.widened == other.widened
    assert engine.scores() == again.scores()
    assert again.state() == engine.state()


def test_a_restart_in_the_middle_of_an_hour_changes_nothing():
    engine = make()
    run(engine, USAGE, [*BEFORE, 3 * DAY + 5])
    again = make(state=engine.state())
    ends = range(3 * DAY + 6, 3 * DAY + 40)
    np.testing.assert_array_equal(run(engine, USAGE, ends)[0], run(again, USAGE, ends)[0])


def learned():
    engine = make()
    run(engine, USAGE, BEFORE)
    return engine.state()


@pytest.mark.parametrize("place", [0, 4, 5, 200, -1])
def test_damage_anywhere_is_seen_and_said(place):
    raw = bytearray(learned())
    raw[place] ^= 0xFF
    engine = make(state=bytes(raw))
    fresh = make()
    step = engine.step(names_of(12), view(USAGE, 4 * DAY))
    assert "cannot be used" in step.notes[0]
    np.testing.assert_array_equal(step.peak, fresh.step(names_of(12), view(USAGE, 4 * DAY)).peak)


@pytest.mark.parametrize("raw", [b"", b"abc", b"\x00" * 100, learned()[:-1], learned() + b"x"])
def test_what_is_no_state_starts_anew(raw):
    assert "cannot be used" in make(state=raw).step(names_of(12), view(USAGE, 4 * DAY)).notes[0]


def altered(**changes):
    import msgspec

    return engine_state.encode(msgspec.structs.replace(engine_state.decode(learned()), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 99},
        {"models": ("last_hour",)},
        {"nodes": ("a", "b")},
        {"nodes": ("a",) * 12},
        {"roster": ()},
        {"pending": (engine_state.LearnedDecision(0.0, ()),)},
    ],
)
def test_state_that_does_not_fit_together_starts_anew(changes):
    raw = altered(**changes)
    assert "cannot be used" in make(state=raw).step(names_of(12), view(USAGE, 4 * DAY)).notes[0]


def test_another_horizon_starts_anew_and_says_so():
    step = make(state=learned(), horizon_seconds=7200.0).step(names_of(12), view(USAGE, 4 * DAY))
    assert "horizon" in step.notes[0]


def test_another_risk_keeps_what_is_known_of_models_that_state_none():
    engine = make(state=learned(), risk=0.05)
    assert engine.scores()[0].decisions > 0
    assert engine.scores()[0].shift < make(state=learned()).scores()[0].shift


def test_feedback_that_an_earlier_build_kept_as_a_number_begins_anew():
    import msgspec

    models = engine_state.decode(learned()).learned
    assert all(isinstance(entry.feedback, tuple) and entry.feedback[0] > 0 for entry in models)
    older = tuple(msgspec.structs.replace(entry, feedback=-0.5) for entry in models)
    state = engine_state.decode(make(state=altered(learned=older)).state())
    assert [entry.feedback for entry in state.learned] == [(0.0, 0.0)] * len(models)
    assert [entry.days for entry in state.learned] == [entry.days for entry in models]


class Second(LastHour):
    """Another candidate."""

    name = "second"


def test_a_candidate_that_joins_or_leaves_does_not_cost_what_the_others_learned():
    joined = make(
        state=learned(),
        models={"second": Second(), **MODELS},
        candidates=("second", "last_hour", "window_max"),
    )
    scores = {score.model: score for score in joined.scores()}
    assert scores["second"].decisions == 0
    assert scores["last_hour"].decisions > 0
    assert scores["last_hour"].champion
    run(joined, USAGE, AFTER)
    assert {score.model: score.decisions > 0 for score in joined.scores()}["second"]
    left = make(state=joined.state(), models={"window_max": WindowMax()}, candidates=("window_max",))
    assert left.scores()[0].decisions > 0
    run(left, USAGE, range(5 * DAY, 5 * DAY + 3 * HOUR, HOUR))


def test_nodes_that_are_long_gone_are_forgotten():
    usage = noise(2, 20 * DAY, 4)
    engine = make()
    run(engine, usage, range(DAY, 2 * DAY, HOUR))
    run(engine, usage[:, :2], range(2 * DAY, 10 * DAY, 6 * HOUR), names=names_of(2))
    assert engine_state.decode(engine.state()).nodes == ("node-0", "node-1")
    peaks, _ = run(engine, usage, range(10 * DAY, 11 * DAY, HOUR))
    assert np.all(np.isfinite(peaks))
