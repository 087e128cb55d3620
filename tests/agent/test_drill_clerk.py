"""What is kept of drills and told of them, and the look beyond the node while one keeps samples back."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agent.act.drill_clerk import DrillClerk, look_at
from agent.act.drill_records import FILE_NAME, MOST, DrillRecords
from agent.drill import Drill, Kind, Target, abort
from agent.drill_board import DrillBoard
from agent.drill_metrics import DrillMetrics
from agent.drill_steps import advance
from agent.drill_wire import record_of
from slacktide.cluster.errors import Unreachable
from slacktide.forecast import Amount, Forecast, Terms, encode
from slacktide.names import FORECAST_ANNOTATION
from slacktide.v1 import drill_pb2 as pb
from tests.agent.test_drill import order, run, rung, seen, sent, victim
from tests.patience import PATIENCE

DEADLINE = 20.0 * PATIENCE
SOME = Amount(cpu_millis=1000, memory_bytes=1000)


def forecast(at=1000.0, **more):
    terms = Terms(capacity=SOME, reserve=SOME, peak=SOME, now=SOME, sold=SOME, fading=more.pop("fading", None))
    return Forecast(at=at, ttl_seconds=60.0, peak=SOME, reclaimable=SOME, terms=terms, **more)


def wait_for(condition):
    end = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)
    return value


class Recorder:
    def __init__(self):
        self.events = []

    def record(self, involved, type_, reason, message):
        self.events.append((involved.metadata.name, type_, reason, message))


class Api:
    """One node, or an API that does not answer."""

    def __init__(self, annotation=None):
        self.annotation = annotation
        self.away = False
        self.asked = 0

    def get_dict(self, _kind, name, _namespace=None, *, timeout_seconds=None):
        self.asked += 1
        assert (name, timeout_seconds is not None) == ("n1", True)
        if self.away:
            raise Unreachable("no answer")
        annotations = {} if self.annotation is None else {FORECAST_ANNOTATION: self.annotation}
        return {"metadata": {"name": "n1", "annotations": annotations}}


@pytest.fixture
def api():
    return Api(encode(forecast()))


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def records(tmp_path):
    return DrillRecords(str(tmp_path))


@pytest.fixture
def clerk(api, recorder, records):
    made = DrillClerk("n1", api, recorder, records, lambda: (True, 3), wall=lambda: 1010.0)
    made.start()
    yield made
    assert made.stop(DEADLINE)


def ended(drill_id, phase=None):
    drill = advance(Drill(order=order(drill_id)), seen(0.0))
    return drill if phase is None else abort(drill, "enough", 1.0)


def test_the_last_drills_are_kept_newest_first_over_a_restart(tmp_path):
    records = DrillRecords(str(tmp_path))
    for number in range(MOST + 5):
        records.put(record_of(ended(f"d{number}", "aborted"), "n1"))
    again = DrillRecords(str(tmp_path))
    assert [one.drill_id for one in again.all()] == [f"d{number}" for number in range(MOST + 4, 4, -1)]
    assert again.all() == records.all()
    assert again.problem == ""


def test_a_drill_that_ran_when_the_agent_died_is_a_failed_one(tmp_path):
    DrillRecords(str(tmp_path)).put(record_of(ended("d1"), "n1"))
    (found,) = DrillRecords(str(tmp_path)).all()
    assert (found.phase, found.message) == (pb.DRILL_PHASE_FAILED, "the agent ended")
    assert [moment.step for moment in found.result.timeline] == ["raised"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 2, "drills": []}', '{"version": 1, "drills": [7]}', '{"version": 1}', "\0\xff"],
)
def test_a_torn_or_foreign_file_is_set_aside_and_a_new_one_begun(tmp_path, text):
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    records = DrillRecords(str(tmp_path))
    assert records.all() == []
    assert f"set aside as {tmp_path}/{FILE_NAME}.bad" in records.problem
    assert (tmp_path / f"{FILE_NAME}.bad").read_bytes() == text.encode("latin-1")
    records.put(record_of(ended("d1", "aborted"), "n1"))
    assert len(DrillRecords(str(tmp_path)).all()) == 1


def test_a_field_of_a_later_release_is_no_reason_to_forget_the_rest(tmp_path):
    records = DrillRecords(str(tmp_path))
    records.put(record_of(ended("d1", "aborted"), "n1"))
    known = json.loads((tmp_path / FILE_NAME).read_text())
    known["drills"][0]["of_tomorrow"] = 1
    (tmp_path / FILE_NAME).write_text(json.dumps(known))
    assert [one.drill_id for one in DrillRecords(str(tmp_path)).all()] == ["d1"]


def test_a_disk_that_refuses_costs_the_file_and_not_the_drill(tmp_path):
    records = DrillRecords(str(tmp_path / "gone"))
    records.put(record_of(ended("d1"), "n1"))
    assert (len(records.all()), records.lost) == (1, 1)


def test_events_go_to_the_node_and_to_each_pod_that_is_evicted(clerk, recorder, records):
    board = DrillBoard(lambda: 0.0, clerk.news, lambda: "d1")
    board.start(order)
    board.observe(seen(0.0))
    board.observe(seen(1.0, victims=(victim("a"), victim("b"))))
    board.observe(seen(2.0, attempts=(sent("a"),)))
    board.observe(seen(3.0, attempts=(sent("a"),)))
    board.abort("d1", "aborted by me")
    board.observe(seen(4.0))
    wait_for(lambda: len(recorder.events) == 3)
    assert [event[:3] for event in recorder.events] == [
        ("n1", "Normal", "SlacktideDrill"),
        ("a", "Warning", "SlacktideDrill"),
        ("n1", "Warning", "SlacktideDrill"),
    ]
    begin, pod, end = (event[3] for event in recorder.events)
    assert begin == "drill d1 by me (game day) begins: pressure for 10 s; at most 2 pods may be evicted"
    assert pod == "Evicted by drill d1 by me (game day)"
    assert "aborted, evicted after 2.00 s; 1 pods evicted; aborted by me" in end
    (record,) = wait_for(lambda: [one for one in records.all() if one.phase == pb.DRILL_PHASE_ABORTED])
    assert (record.caller, record.reason, record.victim_budget) == ("me", "game day", 2)


def test_the_record_of_a_drill_that_runs_is_as_it_is_now(clerk):
    board = DrillBoard(lambda: 0.0, clerk.news, lambda: "d1")
    board.start(order)
    assert [one.phase for one in clerk.records(board.current())] == [pb.DRILL_PHASE_WAITING]
    board.observe(seen(0.0))
    assert [one.phase for one in clerk.records(board.current())] == [pb.DRILL_PHASE_RAISED]


def test_it_looks_beyond_the_node_only_while_a_drill_keeps_samples_back(api, recorder, records):
    clerk = DrillClerk("n1", api, recorder, records, lambda: (True, 3), wall=lambda: 1010.0, period_seconds=0.001)
    board = DrillBoard(lambda: 0.0, clerk.news, iter(["d1", "d2", "d3"]).__next__)

    def over(kind, looks):
        """One drill; how often it looked."""
        before, told = api.asked, len(recorder.events)
        board.start(lambda new: order(new, kind=kind))
        board.observe(seen(0.0))
        wait_for(lambda: api.asked >= before + looks)
        outside = clerk.outside()
        board.abort(board.current().order.id, "enough")
        board.observe(seen(1.0))
        wait_for(lambda: len(recorder.events) == told + 2)
        return api.asked - before, outside

    clerk.start()
    try:
        assert over(Kind.PRESSURE, 0) == (0, None)
        looked, outside = over(Kind.STALE, 2)
        assert looked >= 2
        assert (outside.connected, outside.waiting, outside.problem) == (True, 3, "")
        assert outside.forecast.said == "fresh, 10 s old"
        assert over(Kind.PRESSURE, 0)[0] == 0
    finally:
        assert clerk.stop(DEADLINE)


def test_an_api_that_does_not_answer_is_said_and_no_forecast_is_not_a_problem(clerk, api):
    api.away = True
    assert clerk.look().problem == "no answer"
    api.away, api.annotation = False, None
    assert (clerk.look().forecast, clerk.look().problem) == (None, "")
    api.annotation = "no forecast at all"
    assert clerk.look().forecast is None


@pytest.mark.parametrize(
    ("changed", "wall", "wanted"),
    [
        ({}, 1010.0, (False, False, True, 1000)),
        ({"fading": 0.5}, 1010.0, (True, False, True, 1000)),
        ({"fading": 0.0, "closed": "no sample"}, 1010.0, (True, True, True, 0)),
        ({}, 1120.0, (False, False, False, 500)),
        ({}, 1500.0, (False, True, False, 0)),
    ],
)
def test_a_forecast_as_a_drill_sees_it(changed, wall, wanted):
    found = look_at(forecast(**changed), wall)
    assert (found.silent, found.shut, found.fresh, found.offered_millis) == wanted


def test_metrics_have_the_times_of_the_last_drill_against_its_targets():
    registry = CollectorRegistry()
    metrics = DrillMetrics(registry)
    board = DrillBoard(lambda: 0.0, metrics.news, iter(["d1", "d2"]).__next__)
    targets = (Target(step="detected", within_seconds=0.5),)
    board.start(lambda new: order(new, targets=targets, started_wall=77.0, dead_man_seconds=1000.0))
    board.observe(seen(0.0))
    assert value(registry, 'slacktide_drill_raised{kind="pressure"}') == 1
    board.observe(replace(seen(0.25, rung("contention"), limit=500), pressure=0.75))
    board.observe(seen(1.0, victims=(victim("a"),), attempts=(sent("a"),)))
    board.observe(seen(10.0))
    board.observe(seen(12.0))
    assert value(registry, 'slacktide_drill_step_seconds{kind="pressure",step="detected"}') == 0.25
    assert value(registry, 'slacktide_drill_target_seconds{kind="pressure",step="detected"}') == 0.5
    assert value(registry, 'slacktide_drill_step_seconds{kind="pressure",step="recovered"}') == 12.0
    assert value(registry, 'slacktide_drill_ended_total{kind="pressure",outcome="passed"}') == 1
    assert value(registry, 'slacktide_drill_victims_total{kind="pressure"}') == 1
    assert value(registry, 'slacktide_drill_ls_pressure_max{kind="pressure"}') == 0.75
    assert value(registry, 'slacktide_drill_last_passed_timestamp_seconds{kind="pressure"}') == 77.0
    board.start(lambda new: order(new, targets=(), dead_man_seconds=1000.0))
    assert value(registry, 'slacktide_drill_step_seconds{kind="pressure",step="detected"}') is None
    board.observe(seen(20.0))
    board.observe(seen(20.7, rung("contention"), limit=500))
    board.abort("d2", "enough")
    board.observe(seen(21.0))
    assert value(registry, 'slacktide_drill_ended_total{kind="pressure",outcome="aborted"}') == 1
    assert value(registry, 'slacktide_drill_active{kind="pressure"}') == 0


def test_a_drill_that_recovered_late_is_missed_and_not_passed():
    registry = CollectorRegistry()
    metrics = DrillMetrics(registry)
    board = DrillBoard(lambda: 0.0, metrics.news, lambda: "d1")
    board.start(lambda new: order(new, targets=(Target(step="detected", within_seconds=0.5),)))
    drill = run(board.current(), seen(0.0), seen(0.9, rung("contention")), seen(10.0), seen(11.0))
    metrics.news(board.current(), drill)
    assert value(registry, 'slacktide_drill_ended_total{kind="pressure",outcome="missed"}') == 1
    assert value(registry, 'slacktide_drill_last_passed_timestamp_seconds{kind="pressure"}') is None


def value(registry, series):
    lines = generate_latest(registry).decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series), None)
