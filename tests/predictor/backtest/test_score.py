from __future__ import annotations

import numpy as np
import pytest

from predictor.backtest.pack import pack, packed
from predictor.backtest.replay import decision_slots, script
from predictor.backtest.score import FIGURES, by_node, score, slots_ahead, truth

NAN = float("nan")
HORIZON = 900.0


@pytest.fixture
def replay():
    usage = np.random.default_rng(5).gamma(2.0, 1.0, (60, 6))
    return packed("made", 300.0, 0.0, usage, pack(usage, 3, 1, seed=1), warmup_slots=24)


def scored(replay, forecast, horizon=HORIZON):
    made = script(replay, decision_slots(replay, 3600.0))
    peaks = forecast(made) if callable(forecast) else forecast
    return by_node(peaks, truth(replay, made, horizon), made, horizon)


def brute_force(replay, peaks, made):
    """The definitions of overcommit.md, section 4, one node and decision at a time."""
    found = {name: [] for name in FIGURES}
    for node in range(len(replay.nodes)):
        limit = sum(replay.members[:, replay.owner == node].max(axis=0))
        past, taken, given, actual, over, low, slots = None, [], [], [], [], [], []
        back, bad = [], []
        for number, slot in enumerate(made.slots):
            future = replay.usage[slot + 1 : slot + 4, node]
            if slot < 24 or len(future) < 3:
                continue
            p = peaks[number, node]
            p = limit if p != p else min(max(p, 0), limit)
            po = future.max()
            taken.append(limit - p)
            given.append(limit)
            actual.append(po)
            over.append(max(0, p - po))
            low.append(max(0, po - p) / po)
            bad.append(p < po * (1 - 1e-9))
            slots += [u > p * (1 + 1e-9) for u in future]
            if past is not None:
                back.append(max(0, p - past) / limit)
            past = p
        found["savings"].append(sum(taken) / sum(given))
        found["violation"].append(np.mean(bad))
        found["severity"].append(np.mean(low))
        found["severity_if_violated"].append(
            np.mean([s for s, b in zip(low, bad, strict=True) if b]) if any(bad) else NAN
        )
        found["waste"].append(sum(over) / sum(actual))
        found["slot_violation"].append(np.mean(slots))
        found["giveback"].append(np.mean(back))
    return found


def test_figures_are_those_of_the_definition(replay):
    made = script(replay, decision_slots(replay, 3600.0))
    peaks = np.random.default_rng(2).uniform(5, 9, (len(made.slots), 2))
    peaks[3, 0] = NAN
    peaks[4, 1] = 1e9
    found, wanted = scored(replay, peaks), brute_force(replay, peaks, made)
    for name in FIGURES:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, err_msg=name)


def test_an_oracle_never_violates_and_wastes_nothing(replay):
    made = script(replay, decision_slots(replay, 3600.0))
    found = scored(replay, truth(replay, made, HORIZON).peak)
    assert found["violation"].tolist() == [0, 0]
    assert found["waste"].tolist() == [0, 0]
    assert found["slot_violation"].tolist() == [0, 0]


def test_no_forecast_counts_as_the_requests(replay):
    found = scored(replay, lambda made: np.full((len(made.slots), 2), NAN))
    assert found["savings"].tolist() == [0, 0]
    assert found["violation"].tolist() == [0, 0]


def test_decisions_in_the_warm_up_or_without_their_whole_horizon_are_not_scored(replay):
    found = scored(replay, lambda made: np.zeros((len(made.slots), 2)))
    assert found["decisions"].tolist() == [3, 3]
    assert scored(replay, lambda made: np.zeros((len(made.slots), 2)), horizon=7200.0)["decisions"].tolist() == [1, 1]


def test_a_decision_whose_horizon_was_not_measured_is_not_scored(replay):
    replay.usage[26, 0] = NAN
    assert scored(replay, lambda made: np.zeros((len(made.slots), 2)))["decisions"].tolist() == [2, 3]


def test_a_horizon_reaches_into_each_slot_that_it_touches():
    assert [slots_ahead(seconds, 300.0) for seconds in (300, 301, 3600, 3601)] == [1, 2, 12, 13]


def test_the_mean_of_nodes_has_an_interval_that_holds_it(replay):
    part = scored(replay, lambda made: np.full((len(made.slots), 2), 7.0))
    found = score([part, part])
    assert found.nodes == 4
    assert found.decisions == 12
    for name in ("savings", "violation", "waste"):
        figure = found.figures[name]
        assert figure.low <= figure.mean <= figure.high
        assert figure.mean == pytest.approx(float(np.mean(part[name])))


def test_nothing_scored_has_no_figures(replay):
    replay = packed("made", 300.0, 0.0, replay.members, pack(replay.members, 3, 1, seed=1), warmup_slots=60)
    found = score([scored(replay, lambda made: np.zeros((len(made.slots), 2)))])
    assert found.decisions == 0
    assert found.figures["savings"].mean is None
    assert found.violation_p90 is None
