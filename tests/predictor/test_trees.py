from __future__ import annotations

import numpy as np
import pytest

from predictor.models.trees import Trees
from predictor.training.convert import trees_of

lightgbm = pytest.importorskip("lightgbm", reason="weights are fitted with lightgbm, which is not installed")


def fitted(objective="l2", leaves=31, unknown=0.1, rounds=40, seed=0):
    """A booster, and rows that it has not seen: a fifth unknown, some on thresholds, some zero."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(3000, 6)).astype(np.float32)
    table[:, 3] = np.round(table[:, 3])
    target = np.exp(table[:, 0] * table[:, 1]) + (table[:, 3] > 1) + 0.1
    table[:, :4][rng.random((3000, 4)) < unknown] = np.nan
    booster = lightgbm.train(
        {"objective": objective, "num_leaves": leaves, "verbosity": -1, "num_threads": 1, "seed": 1, "max_bin": 63},
        lightgbm.Dataset(table, target),
        rounds,
    )
    rows = rng.normal(size=(20000, 6)).astype(np.float32)
    rows[:, 3] = np.round(rows[:, 3])
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[::50] = 0.0
    return booster, rows


@pytest.mark.parametrize(("objective", "leaves"), [("l2", 31), ("l2", 2), ("gamma", 15), ("quantile", 32)])
@pytest.mark.parametrize("unknown", [0.0, 0.1])
def test_equals_what_lightgbm_says_itself(objective, leaves, unknown):
    booster, rows = fitted(objective, leaves, unknown)
    np.testing.assert_allclose(
        trees_of(booster).predict(rows), booster.predict(rows, raw_score=True), rtol=1e-5, atol=1e-5
    )


def test_a_row_gets_the_same_number_alone_as_among_many():
    booster, rows = fitted()
    trees = trees_of(booster, start=2.5)
    many = trees.predict(rows)
    for few in (1, 7, 256):
        np.testing.assert_array_equal(trees.predict(rows[:few]), many[:few])


def test_values_on_a_threshold_go_left():
    booster, _ = fitted()
    trees = trees_of(booster)
    rows = np.zeros((len(trees.threshold), 6), dtype=np.float32)
    rows[np.arange(len(rows)), trees.feature] = trees.threshold
    np.testing.assert_allclose(trees.predict(rows), booster.predict(rows), rtol=1e-5, atol=1e-5)


def test_is_stored_and_read_back_unchanged():
    booster, rows = fitted()
    trees = trees_of(booster, start=2.5)
    again = Trees.of(trees.arrays("some"), "some")
    np.testing.assert_array_equal(again.predict(rows), trees.predict(rows))
    assert np.array_equal(trees.predict(rows), trees.predict(rows[:, :]))
    assert trees.predict(rows[:0]).shape == (0,)
    with pytest.raises(KeyError, match=r"other\.feature"):
        Trees.of(trees.arrays("some"), "other")


def test_a_tree_that_never_split_adds_its_only_leaf():
    table = np.zeros((100, 2), dtype=np.float32)
    booster = lightgbm.train(
        {"objective": "l2", "verbosity": -1, "num_threads": 1}, lightgbm.Dataset(table, np.full(100, 3.0)), 2
    )
    np.testing.assert_allclose(trees_of(booster).predict(table), booster.predict(table))


def test_more_leaves_than_fit_are_refused():
    booster, _ = fitted(leaves=64, rounds=2)
    with pytest.raises(ValueError, match="num_leaves <= 32"):
        trees_of(booster)
