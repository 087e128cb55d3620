"""`slacktide history`: import from a real Prometheus, info and export of what came."""

import json
import os
import subprocess
import sys

import duckdb
import pytest

from cli.imported import ProgressLine
from cli.times import moment, step_seconds
from predictor.prometheus.importer import Step
from predictor.prometheus.plan import Span
from standalone.state import find
from tests.predictor.prometheus.cluster import BEGIN, MIB, SLOT, Load, Past, PodOf, sum_of
from tests.predictor.prometheus.fake import Fake, Said, forwarded
from tests.predictor.prometheus.server import MISSING, Prometheus, Text

SLOTS = 12
RANGE = ("--from", str(BEGIN), "--to", str(BEGIN + SLOTS * SLOT), "--rate", "100")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if MISSING is not None:
        pytest.skip(f"{MISSING} is not installed")
    text = Text()
    pod = PodOf("node-1", "web", Load([0.5] * SLOTS, [100.0 * MIB] * SLOTS), requests={"cpu": 1.0, "memory": 2e8})
    past = Past(text, SLOTS, "lab")
    past.cadvisor([pod])
    past.roots({"node-1": sum_of([pod.load], SLOTS, 0.25, 10.0 * MIB)})
    past.states([pod], {"node-1": (4.0, 1024.0 * MIB)})
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), text)
    yield running
    running.stop()


def test_a_dry_run_says_what_would_be_done_and_stores_nothing(command, server, root, out, err):
    assert command("history", "import", "--prometheus", server.url, *RANGE, "--dry-run") == 0
    assert "1 nodes, 2024-01-10T00:00Z to 2024-01-10T01:00Z" in out.text
    assert "root cgroup (CPU), root cgroup (memory); pods: containers; nodes are named by `node`" in out.text
    assert os.listdir(find(root).folder("predictor")) == []


def test_import_fills_the_history_of_this_instance_and_info_and_export_show_it(command, server, tmp_path, out, err):
    assert command("history", "import", "--prometheus", server.url, *RANGE, "-o", "json") == 0
    told = json.loads(out.text)
    assert (told["complete"], told["stored_slots"], told["pod_hours"], told["problems"]) == (True, SLOTS, 1, [])
    out.raw.truncate(0)
    out.raw.seek(0)
    assert command("history", "info", "-o", "json") == 0
    held = json.loads(out.text)
    assert [(node["name"], node["from_second"], node["to_second"], node["gap_percent"]) for node in held["nodes"]] == [
        ("node-1", BEGIN, BEGIN + SLOTS * SLOT, 0.0)
    ]
    assert held["file_bytes"] > 0
    target = tmp_path / "use.parquet"
    assert command("history", "export", "--out", str(target), "-o", "table") == 0
    assert f"{SLOTS} rows written" in err.text
    rows = duckdb.sql(f"SELECT time, series, node, usage, request FROM '{target}' ORDER BY time").fetchall()
    assert rows[0] == (BEGIN + SLOT, "node-1", "node-1", pytest.approx(0.75, abs=0.002), 1.0)
    assert len(rows) == SLOTS


def test_info_for_people(command, server, out, err):
    assert command("history", "import", "--prometheus", server.url, *RANGE) == 0
    assert f"imported {SLOTS} slots of nodes" in out.text
    assert command("history", "info") == 0
    assert "node-1  2024-01-10T00:00Z  2024-01-10T01:00Z  0.0   0.0 %" in out.text


def test_an_import_that_is_not_complete_is_1_and_says_how_to_go_on(command, server, tmp_path, err):
    partial = b'{"status":"success","warnings":["store gone"],"data":{"resultType":"matrix","result":[]}}'
    fake = Fake(lambda asked: Said(body=partial) if "rate(" in asked.form["query"] else forwarded(asked, server.url))
    try:
        code = command("history", "import", "--prometheus", fake.url, *RANGE, "--history-dir", str(tmp_path / "h"))
    finally:
        fake.stop()
    assert code == 1
    assert "in part only: store gone" in err.text
    assert "the same command goes on with what is missing" in err.text


def test_a_history_that_the_predictor_has_open_is_2(command, root, err):
    code = (
        "import sys\nfrom predictor.history import open_history\n"
        "history = open_history(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()\nhistory.close()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, find(root).folder("predictor")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "open\n"
        assert command("history", "info") == 2
        holder.stdin.close()
    assert "in use" in err.text


def test_without_an_instance_or_a_history_the_way_out_is_named(command, app, tmp_path, err):
    assert command("history", "info") == 2
    assert "there is no history" in err.text
    app.state_option = str(tmp_path / "nowhere")
    assert command("history", "info") == 2
    assert "--history-dir" in err.text
    assert command("history", "export", "--out", str(tmp_path / "x.parquet"), "--history-dir", str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "yesterday"), "is no time"),
        (("--from", "2026-11-02", "--to", "2026-11-01"), "--from must be before --to"),
        (("--step", "45s"), "divide a slot"),
        (("--step", "5m"), "divide a slot"),
        (("--match", "prod"), "no matcher"),
        (("--header", "nonsense"), "Name: value"),
        (("--token-file", "/nowhere/token"), "/nowhere/token"),
    ],
)
def test_bad_options_are_named_with_the_right_form(command, tmp_path, err, arguments, words):
    url = "http://127.0.0.1:9"
    assert command("history", "import", "--prometheus", url, *arguments, "--history-dir", str(tmp_path)) in (1, 2)
    assert words in err.text


def test_times_are_utc_unless_they_say_otherwise():
    assert moment("2024-01-10", "--from") == BEGIN
    assert moment("2024-01-10T00:00Z", "--from") == BEGIN
    assert moment("2024-01-10T02:00+02:00", "--from") == BEGIN
    assert moment("2024-01-10 00:00:00", "--from") == BEGIN
    assert moment(str(BEGIN), "--from") == BEGIN
    assert (step_seconds("30s"), step_seconds("1m"), step_seconds("15")) == (30, 60, 15)


def test_progress_is_told_now_and_then_where_nobody_watches(redirect, err):
    redirect()
    line = ProgressLine()
    for done in range(100):
        line.tell(Step("nodes", done, 100, Span(done, done + 1)))
    line.clear()
    assert err.text.count("\n") == 1
    assert "nodes   0 %, now 1970-01-01T00:00Z" in err.text
