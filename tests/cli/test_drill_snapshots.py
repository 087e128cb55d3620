"""What `drill` prints, word for word, and the schema of its documents. How to write them anew: test_snapshots.py."""

from __future__ import annotations

import json

import msgspec
import pytest

from cli.drillrecords import FileRecords
from cli.drillreport import Drills, Report, ended
from cli.main import main
from slacktide.v1 import drill_pb2 as pb
from tests.cli.fake_agent import DRILL_ID, FakeAgent, good_result, moment, serving
from tests.cli.test_snapshots import NOW, Terminal, compare

BEGAN = round(NOW * 1000) - 3_600_000


def drill(name, hours, **fields):
    known = {"node": "worker-7", "kind": "pressure", "duration_millis": 30_000, "victims_max": 1, "caller": "ana@desk"}
    known |= {"reason": "game day", "started_unix_millis": BEGAN - hours * 3_600_000, "skew_millis": -1500}
    return Report(id=name, **{**known, **fields})


def drills():
    """One that passed and evicted, one that missed a target, one that was aborted, one that runs."""
    victims = [pb.Victim(namespace="team", name="batch", reason="lowest priority (5500), then newest", evicted=True)]
    good = good_result(victims=victims, evicted_millis=900)
    good.timeline.insert(4, moment("evicted", 900, "evicted team/batch"))
    good.targets.append(pb.DrillTarget(step="evicted", within_millis=60_000))
    late = good_result(misses=["detected within 0.2 s: took 0.25 s"])
    late.targets[0].within_millis = 200
    aborted = pb.DrillResult(timeline=[moment("raised", 0), moment("aborted", 40, "nobody watched for 10 s")])
    return [
        ended(drill(DRILL_ID, 0), "recovered", "BE has its room back", good),
        ended(drill("late0", 24, victims_max=0, load_percent=80), "recovered", "BE has its room back", late),
        ended(drill("gone0", 48, kind="stale", dry_run=True), "aborted", "nobody watched for 10 s", aborted),
        drill("now00", 0, started_unix_millis=round(NOW * 1000) - 5000, message="has begun"),
    ]


@pytest.fixture
def scene(app):
    app.wall = lambda: NOW
    records = FileRecords(app.state().folder("drills"))
    for report in drills():
        records.put(report)
    agent = FakeAgent()
    with serving(agent, f"unix:{app.state().drill_socket}"):
        yield app


@pytest.mark.parametrize("form", ["table", "wide", "name"])
def test_the_list(scene, command, out, err, form):
    assert command("drill", "list", "-o", form) == 0
    compare(f"drill-list-{form}.txt", out.text)


@pytest.mark.parametrize("columns", [40, 80])
def test_the_list_on_a_terminal(scene, monkeypatch, columns):
    terminal = Terminal(monkeypatch, columns, NO_COLOR="1")
    assert main(["drill", "list"], scene) == 0
    assert all(len(line) <= columns for line in terminal.text.splitlines())
    compare(f"drill-list-{columns}.txt", terminal.text)


@pytest.mark.parametrize("name", [DRILL_ID, "late0", "gone0"])
def test_reports(scene, command, out, name):
    assert command("drill", "report", name) == 0
    compare(f"drill-report-{name}.md", out.text)


def test_one_in_short(scene, command, out):
    assert command("drill", "show", "late0") == 0
    compare("drill-show.txt", out.text)


def test_json_is_what_its_schema_says_and_nothing_else(scene, command, out):
    assert command("drill", "list", "-o", "json") == 0
    compare("drill-list.json", out.text)
    decoded = msgspec.json.decode(out.text.encode(), type=Drills, strict=True)
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == json.loads(out.text)


def test_the_schema_of_reports():
    _, parts = msgspec.json.schema_components([Drills])
    compare("drill-schemas.json", json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def test_what_a_node_says_cannot_steer_the_terminal(scene, capsys):
    hostile = drill("evil0", 0, reason="\x1b]0;owned\x07 |", message="\x1b[2J")
    FileRecords(scene.state().folder("drills")).put(ended(hostile, "failed", "\x1b[2Jgone", None))
    for words in (("show", "evil0"), ("report", "evil0"), ("list",)):
        assert main(["drill", *words], scene) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said
