from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import prior
from predictor.models.base import DAY_SECONDS, HOUR_SECONDS, History
from predictor.models.boosted import reach_needed, reached
from predictor.models.features import feature_names, features
from predictor.models.node_features import WEEK
from predictor.prior import Group
from predictor.sketch import Sketch

pytest.importorskip("lightgbm", reason="weights are fitted with lightgbm, which is not installed")

from predictor.training import fit, linear, location_scale, residuals
from predictor.training.rows import Nodes, Rows, joined, trace_rows

NAMES = feature_names(HOUR_SECONDS)


def rows(count=900, seed=0, cut=False):
    """Rows whose peak is the hour's maximum and an exponential jump, larger for some nodes than for others."""
    rng = np.random.default_rng(seed)
    usage = rng.random((24 * 14 * 12, 60)) + 1
    _, one = features(History(usage, np.full(60, np.nan), 300.0), HOUR_SECONDS)
    table = np.tile(one, (count // 60, 1)) + rng.normal(0, 1e-3, (count, one.shape[1])).astype(np.float32)
    spread = rng.choice([0.02, 0.2], count)
    table[:, NAMES.index("sd_24h")] = spread
    peak = table[:, NAMES.index("max_1h")] + rng.exponential(spread)
    return Rows(
        table=table,
        peak=np.asarray(peak, dtype=np.float64),
        limit=np.full(count, 3.0),
        node=np.arange(count) % 60,
        slot=np.arange(count),
        fold=np.arange(count) % 3,
        cut=np.full(count, cut),
        scored=np.full(count, not cut),
    )


@pytest.fixture(scope="module")
def fitted():
    return location_scale.fit({"one": rows(), "two": rows(seed=1)}, rounds=60)


def test_answers_hold_the_asked_risk_on_rows_not_seen(fitted):
    model, _ = fitted
    unseen = rows(3000, seed=5)
    answers = model.answer(unseen)
    for level in (0.02, 0.05, 0.1, 0.2):
        measured = np.mean(unseen.peak > answers[location_scale.RISKS.index(level)])
        assert level / 2 < measured < level * 2


def test_deviation_tells_calm_rows_from_wild_ones(fitted):
    model, outside = fitted
    unseen = rows(3000, seed=5)
    wild = unseen.table[:, NAMES.index("sd_24h")] > 0.1
    deviation = np.exp(model.deviation.predict(unseen.table))
    assert np.median(deviation[wild]) > 1.5 * np.median(deviation[~wild])
    assert set(outside) == {"one", "two"}
    assert outside["one"].location.shape == outside["one"].rows.peak.shape


def test_reach_falls_with_the_risk(fitted):
    assert fitted[0].reach.shape == (2, len(location_scale.RISKS))
    assert (np.diff(fitted[0].reach) <= 0).all()


def test_young_series_have_a_reach_of_their_own():
    part = rows(900)
    part.table[::3, NAMES.index("hours_known")] = WEEK - 1
    wide = np.where(part.hours_known < WEEK, 2.0, 1.0) * np.random.default_rng(1).random(900)
    said = location_scale.Outside(dataclasses.replace(part, peak=wide), np.zeros(900), np.ones(900))
    one, same = location_scale.reaches([said], np.array(location_scale.STRAIGHT))
    assert one.tolist() == same.tolist(), "where nothing is bent, one serves all"
    young, known = location_scale.reaches([said], np.array([5.0, 0.5]))
    assert young[-1] == pytest.approx(1.6, abs=0.1)
    assert known[-1] == pytest.approx(0.8, abs=0.05)
    answers = reached(
        said.location, said.deviation, np.array([young, known]), np.array([5.0, 0.5]), said.rows.hours_known
    )
    for level, above in zip(location_scale.RISKS, (wide > answers), strict=True):
        assert np.mean(above) == pytest.approx(level, abs=0.005)


@settings(max_examples=50, deadline=None)
@given(
    location=st.floats(0.0, 1.5),
    deviation=st.floats(0.001, 0.5),
    peak=st.floats(0.0, 3.0),
    bend=st.tuples(st.floats(0.5, 1.2), st.floats(0.3, 1.0)),
)
def test_the_reach_that_a_peak_needs_reaches_it_and_no_further(location, deviation, peak, bend):
    at, by, high = (np.array(value, ndmin=1, dtype=float) for value in (location, deviation, peak))
    bent, known, young = np.array(bend), np.array([WEEK]), np.array([WEEK - 1])
    [needed] = reach_needed(at, by, high, bent, known)
    reaches = np.tile([needed + 1e-6, needed - 1e-6], (2, 1))
    above, below = reached(at, by, reaches, bent, known)[:, 0]
    assert below < peak + 1e-9
    assert above > peak - 1e-9
    straight = reached(at, by, reaches, bent, young)[:, 0]
    assert (
        reached(at, by, np.maximum(reaches, 0.0), bent, known)[:, 0] <= np.maximum(straight, location) + 1e-12
    ).all()


def test_a_bend_keeps_the_asked_risk(fitted):
    bent, _ = location_scale.fit({"one": rows(), "two": rows(seed=1)}, (1.4, 0.6), rounds=60)
    unseen = rows(3000, seed=5)
    answers = bent.answer(unseen)
    for level in (0.02, 0.1):
        measured = np.mean(unseen.peak > answers[location_scale.RISKS.index(level)])
        assert level / 2 < measured < level * 2
    assert (bent.reach >= fitted[0].reach).all(), "where a part of the reach counts, more of it is needed"


def test_only_series_known_for_a_week_are_bent():
    hours = np.array([WEEK, WEEK - 1, 336.0], dtype=np.float32)
    [found] = reached(np.full(3, 0.75), np.full(3, 0.1), np.full((2, 1), 5.0), np.array([0.95, 0.6]), hours)
    assert found.tolist() == pytest.approx([1.05, 1.25, 1.05])


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A trace of 90 jobs over ten days."""
    rng = np.random.default_rng(3)
    slots = pd.DataFrame(rng.random((900, 288)) * 20)
    folder = tmp_path / "google2011-jobs"
    folder.mkdir()
    frame = pd.concat(
        [pd.DataFrame({"job": np.repeat(np.arange(90), 10), "day": np.tile(np.arange(10), 90)}), slots], axis=1
    )
    frame.to_csv(folder / "cpu_pct.csv.gz", index=False)
    monkeypatch.setenv("SLACKTIDE_TRACES", str(tmp_path))


def test_rows_of_series_in_other_proportions_are_new_ones_of_the_same_folds(jobs):
    plain, same, spread = (
        trace_rows("google", HOUR_SECONDS, nodes, every_seconds=12 * HOUR_SECONDS)
        for nodes in (Nodes(0), Nodes(0), Nodes(0, spread=0.5))
    )
    np.testing.assert_array_equal(plain.table, same.table)
    np.testing.assert_array_equal(plain.fold, spread.fold)
    np.testing.assert_array_equal(plain.slot, spread.slot)
    assert not np.isclose(plain.peak, spread.peak).any()
    assert (spread.peak <= spread.limit + 1e-9).all(), "requests are in the same proportion as the use"


def test_smaller_nodes_are_more_nodes(jobs):
    plain, small = (
        trace_rows("google", HOUR_SECONDS, nodes, every_seconds=12 * HOUR_SECONDS) for nodes in (Nodes(0), Nodes(0, 10))
    )
    assert len(np.unique(small.node)) > len(np.unique(plain.node))


def test_the_same_rows_give_the_same_bytes(tmp_path):
    files = []
    for run in range(2):
        model, _ = location_scale.fit({"one": rows(300)}, rounds=5)
        path = tmp_path / f"{run}.npz"
        fit.save(path, {**model.location.arrays("location"), "reach": model.reach})
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_regression_holds_the_asked_risk_out_of_fold():
    given = {"one": rows(1800)}
    said = linear.outside(given, NAMES, risks=(0.1, 0.2))["one"]
    for level, answers in zip((0.1, 0.2), said, strict=True):
        measured = np.mean(given["one"].peak > answers)
        assert level / 2 < measured < level * 2


def test_residuals_go_to_the_group_of_their_history():
    part = rows(900)
    hours = np.repeat([5.0, 12.0, 336.0], 300)
    made = list(residuals.entries("cpu", "window_max", HOUR_SECONDS, "t", part, hours, {0.0: part.peak - 0.1}))
    assert {entry.group for entry in made} == {Group.DAY, Group.LONG}
    assert all(Sketch.unpack(entry.sketch).total == 300 for entry in made)
    assert Sketch.unpack(made[0].sketch).quantile(0.01) == pytest.approx(0.1, abs=0.002)


def test_a_prior_is_replaced_by_horizon(tmp_path):
    part = rows(600)
    hours = np.full(600, 336.0)

    def entries(horizon, answer):
        return list(residuals.entries("cpu", "m", horizon, "t", part, hours, {0.0: part.peak - answer}))

    fit.write_prior(tmp_path, 1, entries(HOUR_SECONDS, 0.1))
    fit.write_prior(tmp_path, 24, entries(DAY_SECONDS, 0.2))
    fit.write_prior(tmp_path, 1, entries(HOUR_SECONDS, 0.3))
    known = prior.decode((tmp_path / "prior.json").read_bytes())["cpu"]
    assert len(known.entries) == 2
    found = known.sketches("m", HOUR_SECONDS, Group.LONG, 0.0)["t"]
    assert found.quantile(0.5) == pytest.approx(0.3, abs=0.002)


def test_rows_are_joined_and_chosen():
    whole = joined([rows(60), rows(120, seed=1, cut=True)])
    assert len(whole.peak) == 180
    assert len(whole.where(whole.cut).peak) == 120


def test_shipped_prior_knows_the_fitted_models():
    for resource in ("cpu", "memory"):
        shipped = prior.shipped(resource)
        assert shipped is not None
        for model in ("boosted", "quantile_regression"):
            for horizon in (HOUR_SECONDS, DAY_SECONDS):
                assert 0.01 in shipped.levels(model, horizon)
                assert shipped.sketches(model, horizon, Group.LONG, 0.01)
