"""The peaks between passes: when engines run, what counts when they do not, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from predictor.metrics import Metrics
from predictor.models.base import History
from predictor.peaks import STALE, Ask, Look, PeakRules, Peaks
from tests.predictor.support import WALL, FakeClock, TwinEngine

RULES = PeakRules(10.0, 2, 3600.0, 3600.0, 0.01, 0.001)
EDGE = WALL - WALL % 300


class Stand:
    """Peaks with twin engines over `usage` (slots, nodes)."""

    def __init__(self, usage, metrics, names=("a", "b"), run=lambda job: job()):
        self.clock = FakeClock()
        self.clock.wall = EDGE
        self.names = list(names)
        self.usage = np.asarray(usage, dtype=np.float32)
        self.engines = {"cpu": TwinEngine(RULES.cold_seconds), "memory": TwinEngine(RULES.cold_seconds)}
        self.saved = []
        self.peaks = Peaks(self.engines.__getitem__, run, lambda *pair: self.saved.append(pair), self.clock, metrics)

    def at(self):
        return self.clock.wall - self.clock.wall % 300

    def history(self):
        return History(self.usage, np.full(len(self.names), np.nan), 300.0, self.at())

    def offer(self):
        asked = Ask(self.names, self.history(), self.history())
        self.peaks.offer(lambda: asked, self.at(), self.clock.now(), RULES)

    def of(self, opened=None):
        opened = np.full(len(self.names), np.nan) if opened is None else np.asarray(opened, dtype=float)
        usage = {"cpu": self.history(), "memory": self.history()}
        look = Look(self.names, usage, {"cpu": opened, "memory": opened})
        return self.peaks.of(look, self.clock.now(), RULES)

    def steps(self):
        return [history.at for _, history, _ in self.engines["cpu"].asked]


@pytest.fixture
def stand(metrics):
    return Stand([[100.0, 50.0]] * 20, metrics)


def shown(peak):
    return peak.amount, peak.origin.path, peak.cold


def test_engines_run_once_a_slot_and_some_seconds_after_its_end(stand):
    for _ in range(60):
        stand.offer()
        stand.clock.advance(10)
    assert stand.steps() == [EDGE, EDGE + 300]
    assert stand.engines["memory"].asked[0][0] == ("a", "b")


def test_between_steps_the_kept_peak_counts_and_what_the_open_slot_shows(stand):
    stand.clock.advance(10)
    stand.offer()
    stand.engines["cpu"].peaks = [1.0, 1.0]
    assert [shown(peak) for peak in stand.of([70.0, 70.0])["cpu"]] == [(100.0, "model", False), (70.0, "model", False)]
    origin = stand.of()["memory"][0].origin
    assert (origin.risk, origin.model, origin.shift) == (0.001, "twin", 0.1)


def test_without_a_step_the_window_counts_and_a_cold_node_with_its_requests(metrics):
    stand = Stand([[np.nan, 50.0]] * 19 + [[100.0, 40.0]], metrics)
    cold, warm = stand.of([np.nan, 60.0])["cpu"]
    assert shown(cold) == (100.0, "requests", True)
    assert shown(warm) == (60.0, STALE, False)
    assert warm.origin.model == "window_max"


def test_a_node_that_nobody_measured_has_no_peak(metrics):
    stand = Stand([[np.nan, 50.0]] * 20, metrics)
    assert shown(stand.of()["cpu"][0])[1:] == ("requests", True)
    assert stand.of()["cpu"][0].amount is None


def test_an_engine_that_is_late_or_fails_gives_way_to_the_window_after_two_slots(stand, registry):
    stand.clock.advance(10)
    stand.engines["cpu"].peaks = [30.0, 30.0]
    stand.offer()
    stand.engines["cpu"].fails = True
    stand.clock.advance(900)
    stand.offer()
    # The newest forecast rests on a slot that ended 910 s ago: three slots and the grace.
    assert shown(stand.of()["cpu"][0]) == (30.0, "model", False)
    stand.clock.advance(1)
    assert shown(stand.of()["cpu"][0]) == (100.0, STALE, False)
    # The other engine works.
    assert stand.of()["memory"][0].origin.path == "model"
    assert registry.get_sample_value("slacktide_predictor_step_failures_total", {"resource": "cpu"}) == 1
    stand.engines["cpu"].fails = False
    stand.clock.advance(300)
    stand.offer()
    assert shown(stand.of()["cpu"][0]) == (30.0, "model", False)


def test_a_step_that_takes_long_holds_nobody_up_and_no_other_begins(metrics):
    jobs = []
    stand = Stand([[100.0, 50.0]] * 20, metrics, run=jobs.append)
    stand.clock.advance(10)
    stand.offer()
    stand.clock.advance(300)
    stand.offer()
    assert len(jobs) == 1
    assert shown(stand.of()["cpu"][0]) == (100.0, STALE, False)
    jobs.pop()()
    assert stand.of()["cpu"][0].origin.path == "model"
    stand.offer()
    assert len(jobs) == 1


def test_what_was_learned_is_kept_every_hour_and_at_the_end(stand):
    stand.clock.advance(10)
    for _ in range(8):
        stand.clock.advance(600)
        stand.offer()
    kept = [("engine/cpu", b"6 steps"), ("engine/memory", b"6 steps")]
    assert stand.saved == kept
    stand.peaks.stop()
    assert stand.saved == [*kept, ("engine/cpu", b"8 steps"), ("engine/memory", b"8 steps")]


def test_a_predictor_that_never_made_a_step_keeps_nothing_in_place_of_what_is_there(stand):
    stand.peaks.stop()
    assert stand.saved == []


def test_nodes_come_and_go_between_steps(stand):
    stand.clock.advance(10)
    stand.offer()
    stand.names, stand.usage = ["c", "b"], np.asarray([[7.0, 50.0]] * 20, dtype=np.float32)
    new, old = stand.of()["cpu"]
    assert shown(new) == (7.0, STALE, False)
    assert shown(old) == (50.0, "model", False)


def test_a_forgotten_node_has_no_peak_until_the_next_step(stand):
    stand.clock.advance(10)
    stand.engines["cpu"].peaks = [900.0, 900.0]
    stand.offer()
    stand.peaks.forget("a", stand.clock.wall)
    assert [shown(peak) for peak in stand.of()["cpu"]] == [(100.0, STALE, False), (900.0, "model", False)]
    stand.clock.advance(300)
    stand.offer()
    assert shown(stand.of()["cpu"][0]) == (900.0, "model", False)


def test_paths_are_counted(stand, registry):
    stand.clock.advance(10)
    stand.offer()
    stand.of()
    labels = {"resource": "cpu", "path": "model", "model": "twin"}
    assert registry.get_sample_value("slacktide_predictor_peaks", labels) == 2
    assert registry.get_sample_value("slacktide_predictor_forecast_age_seconds") == 10.0


def test_how_the_candidates_did_is_exported_champion_and_shadows(stand, registry):
    stand.clock.advance(10)
    stand.offer()

    def value(name, model):
        labels = {"resource": "memory", "model": model}
        return registry.get_sample_value(f"slacktide_predictor_model_{name}", labels)

    assert (value("champion", "twin"), value("champion", "shadow")) == (1, 0)
    assert (value("violation_ratio", "twin"), value("violation_ratio", "shadow")) == (0.01, 0.02)
    assert (value("reserve_ratio", "shadow"), value("decisions", "shadow"), value("shift", "shadow")) == (0.7, 90, 0.2)


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1000, width=32)), min_size=2, max_size=30),
    st.one_of(st.none(), st.floats(0, 1000)),
    st.floats(0, 1000),
)
def test_more_use_never_lowers_a_peak(rows, opened, extra):
    values = [[np.nan if value is None else value] for value in rows]
    stand = Stand(values, Metrics(CollectorRegistry()), names=["a"])
    stand.clock.advance(10)
    stand.offer()
    now = [np.nan if opened is None else opened]
    before = stand.of(now)["cpu"][0].amount
    after = stand.of([np.fmax(now[0], 0.0) + extra])["cpu"][0].amount
    assert before is None or np.isnan(before) or after >= before
