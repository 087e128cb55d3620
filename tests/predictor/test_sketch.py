from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import prior
from predictor.prior import Entry, Group, PriorError
from predictor.sketch import EDGES, HIGHEST, LOWEST, Packed, Sketch

RESIDUALS = st.lists(st.floats(LOWEST, HIGHEST), min_size=1, max_size=300)


def same(one, other):
    np.testing.assert_allclose(one.counts, other.counts, rtol=1e-12)


@given(RESIDUALS, st.floats(0.001, 0.9))
def test_quantile_is_at_most_one_bin_above_the_conformal_rank(residuals, risk):
    rank = math.ceil((1 - risk) * (len(residuals) + 1) - 1e-9)
    answer = Sketch.of(np.array(residuals)).quantile(risk)
    if rank > len(residuals):
        assert math.isnan(answer)
        return
    exact = sorted(residuals)[rank - 1]
    assert exact <= answer
    assert answer - exact <= max(0.0011, 0.0045 * abs(exact))


@given(RESIDUALS, RESIDUALS)
def test_sketches_add_up_in_any_order(one, other):
    whole = Sketch.of(np.array(one + other))
    same(Sketch.of(np.array(one)) + Sketch.of(np.array(other)), whole)
    same(Sketch.of(np.array(other)) + Sketch.of(np.array(one)), whole)


@given(RESIDUALS, st.floats(LOWEST, HIGHEST))
def test_no_more_than_the_risk_lies_above_the_quantile(residuals, risk_seed):
    sketch = Sketch.of(np.array(residuals))
    risk = 0.2 + 0.7 * (risk_seed - LOWEST) / (HIGHEST - LOWEST)
    answer = sketch.quantile(risk)
    if not math.isnan(answer):
        assert np.sum(np.array(residuals) > answer) <= risk * len(residuals) + 1e-9
        assert sketch.above(answer) <= risk * sketch.total + 1e-9


def test_exact_zero_stays_zero():
    assert Sketch.of(np.zeros(200)).quantile(0.01) == 0.0
    assert Sketch.of(np.zeros(200)).above(0.0) == 0.0


def test_what_lies_outside_is_held_by_the_outermost_bins():
    sketch = Sketch.of(np.array([-1e9, 1e9, np.nan]))
    assert sketch.total == 2
    assert sketch.counts[0] == 1
    assert sketch.counts[-1] == 1


def test_too_few_residuals_say_nothing():
    assert math.isnan(Sketch.empty().quantile(0.5))
    assert math.isnan(Sketch.of(np.zeros(98)).quantile(0.01))
    assert Sketch.of(np.zeros(99)).quantile(0.01) == 0.0


def test_weight_that_stands_for_few_samples_raises_the_rank():
    sketch = Sketch.of(np.arange(100) / 100.0, weight=50.0)
    assert sketch.quantile(0.1, samples=20) > sketch.quantile(0.1, samples=5000)
    assert math.isnan(sketch.quantile(0.01, samples=20))


def test_weighing_keeps_the_shape():
    sketch = Sketch.of(np.arange(100) / 100.0).weighing(7.0)
    assert sketch.total == pytest.approx(7.0)
    assert sketch.quantile(0.5, samples=1e9) == Sketch.of(np.arange(100) / 100.0).quantile(0.5, samples=1e9)
    assert Sketch.empty().weighing(3.0).total == 0.0


@given(RESIDUALS)
def test_packing_round_trips(residuals):
    sketch = Sketch.of(np.array(residuals), weight=0.5)
    np.testing.assert_array_equal(Sketch.unpack(sketch.pack()).counts, sketch.counts)


@pytest.mark.parametrize(
    "packed",
    [
        Packed(-1, (1.0,)),
        Packed(len(EDGES), (1.0,)),
        Packed(0, (-1.0,)),
        Packed(0, (math.nan,)),
        Packed(0, (math.inf,)),
    ],
)
def test_what_no_sketch_packs_is_refused(packed):
    with pytest.raises(ValueError, match="sketch"):
        Sketch.unpack(packed)


def entry(model="boosted", horizon=3600.0, group=Group.LONG, level=0.01, source="azure", residuals=(0.1, 0.2)):
    return Entry("cpu", model, horizon, group, level, source, Sketch.of(np.array(residuals)).pack())


def test_prior_round_trips_whatever_the_order():
    entries = [entry(source="google"), entry(), entry(level=0.05), entry(group=Group.DAY)]
    raw = prior.encode(entries, "a test")
    assert raw == prior.encode(reversed(entries), "a test")
    read = prior.decode(raw)["cpu"]
    assert read.levels("boosted", 3600.0) == (0.01, 0.05)
    assert sorted(read.sketches("boosted", 3600.0, Group.LONG, 0.01)) == ["azure", "google"]
    assert read.sketches("boosted", 3600.0, Group.DAY, 0.01)["azure"].total == 2
    assert "memory" not in prior.decode(raw)


def test_a_horizon_between_takes_the_next_longer_and_one_beyond_the_longest():
    read = prior.decode(prior.encode([entry(), entry(horizon=86400.0, residuals=(0.5,))], "a test"))["cpu"]
    totals = {
        horizon: read.sketches("boosted", horizon, Group.LONG, 0.01)["azure"].total
        for horizon in (300.0, 3600.0, 7200.0, 86400.0, 7 * 86400.0)
    }
    assert totals == {300.0: 2, 3600.0: 2, 7200.0: 1, 86400.0: 1, 7 * 86400.0: 1}
    assert read.sketches("unheard of", 3600.0, Group.LONG, 0.01) == {}
    assert read.levels("unheard of", 3600.0) == ()


def test_of_young_nodes_the_traces_of_young_nodes_alone_speak():
    entries = [entry(group=group, source=source) for group in Group for source in ("azure", "planetlab")]
    read = prior.decode(prior.encode(entries, "a test"))["cpu"]
    assert sorted(read.sketches("boosted", 3600.0, Group.DAY, 0.01)) == ["planetlab"]
    assert sorted(read.sketches("boosted", 3600.0, Group.WEEK, 0.01)) == ["azure", "planetlab"]
    cut = prior.decode(prior.encode([entry(group=Group.DAY)], "a test"))["cpu"]
    assert sorted(cut.sketches("boosted", 3600.0, Group.DAY, 0.01)) == ["azure"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        prior.encode([entry()], "a test")[:-9],
        prior.encode([entry()], "a test").replace(b'"version":1', b'"version":2'),
        prior.encode([entry()], "a test").replace(b'"first":', b'"first":9999'),
    ],
)
def test_a_damaged_prior_is_told_with_the_remedy(raw):
    with pytest.raises(PriorError, match="make it anew"):
        prior.decode(raw)
