from __future__ import annotations

import math

import pytest

from predictor.champion import Champion, ChampionRules, Tally, judge, kept
from predictor.models.window_max import WindowMax
from tests.predictor.engines import DAY, HOUR, LastHour, make, noise, run

RULES = ChampionRules(
    risk=0.01, tolerance=1.25, margin=0.02, wait_seconds=86400.0, memory_days=7.0, least_decisions=100.0
)
NAMES = ("first", "second", "third")


def tally(violation, reserve, decisions=10_000.0):
    return Tally(decisions, violation * decisions, reserve * decisions)


def reign(tallies, hours=range(48), champion=None):
    champion = champion or Champion()
    for hour in hours:
        champion = judge(champion, tallies, NAMES, hour * 3600.0, RULES)
    return champion


def test_the_first_candidate_reigns_until_another_is_better():
    assert reign([tally(0.01, 0.8), tally(0.01, 0.8), tally(0.01, 0.9)]).index == 0
    assert reign([Tally(), Tally(), Tally()]).index == 0
    assert reign([tally(0.01, 0.8), tally(0.01, 0.5, decisions=50), tally(0.01, 0.5, decisions=99)]).index == 0


def test_a_clearly_cheaper_safe_model_takes_over_after_a_day_and_says_why():
    tallies = [tally(0.01, 0.80), tally(0.01, 0.75), tally(0.009, 0.78)]
    assert reign(tallies, range(24)).index == 0
    champion = reign(tallies)
    assert champion.index == 1
    assert "second reserves" in champion.reason
    assert "first" in champion.reason


def test_a_small_gain_is_not_worth_a_change():
    assert reign([tally(0.01, 0.800), tally(0.01, 0.790), tally(0.01, 0.795)]).index == 0


def test_a_cheap_model_that_violates_is_no_champion():
    assert reign([tally(0.01, 0.8), tally(0.02, 0.4), tally(0.013, 0.5)]).index == 0


def test_a_champion_that_violates_gives_way_even_to_a_dearer_one():
    champion = reign([tally(0.04, 0.5), tally(0.009, 0.9), tally(0.012, 0.8)])
    assert champion.index == 1
    assert "4.00%" in champion.reason


def test_where_all_violate_the_least_does():
    assert reign([tally(0.08, 0.5), tally(0.03, 0.9), tally(0.04, 0.8)]).index == 1


def test_a_lead_that_breaks_off_starts_again():
    better, worse = [tally(0.01, 0.8), tally(0.01, 0.7)], [tally(0.01, 0.8), tally(0.01, 0.9)]
    champion = Champion()
    for hour in range(200):
        champion = judge(champion, worse if hour % 20 == 19 else better, NAMES, hour * 3600.0, RULES)
    assert champion.index == 0


def test_tallies_forget():
    old = Tally()
    old.add(1000, 100, 500.0, 1.0)
    for _ in range(24 * 60):
        old.add(10, 0, 5.0, kept(3600.0, RULES))
    assert old.violation < 1e-4
    assert old.mean_reserve == pytest.approx(0.5)


def test_the_interval_holds_the_rate_and_shrinks():
    low, high = tally(0.01, 0.5, decisions=1000).interval()
    assert low < 0.01 < high
    narrow = tally(0.01, 0.5, decisions=100_000).interval()
    assert narrow[0] > low
    assert narrow[1] < high
    assert Tally().interval() == (0.0, 1.0)
    assert math.isnan(Tally().violation)


class Jumpy(LastHour):
    """Five times too high every other hour: what the hours between need is wasted on these."""

    name = "jumpy"

    def predict(self, history, horizon_seconds, risks):
        factor = 5.0 if history.at // 3600.0 % 2 else 1.0
        return factor * LastHour.predict(self, history, horizon_seconds, risks)


def test_the_engine_dethrones_a_wasteful_first_candidate():
    usage = noise(1, 8 * DAY, 20)
    models = {"jumpy": Jumpy(), "last_hour": LastHour(), "window_max": WindowMax()}
    engine = make(models=models, candidates=("jumpy", "last_hour"), release_keep_ratio=0.0)
    _, step = run(engine, usage, range(DAY, 8 * DAY, HOUR))
    assert set(step.model) == {"last_hour"}
    assert "last_hour reserves" in engine.champion_reason
    scores = {score.model: score for score in engine.scores()}
    assert scores["last_hour"].champion
    assert scores["last_hour"].reserve < scores["jumpy"].reserve
    assert scores["last_hour"].violation <= scores["last_hour"].bound
