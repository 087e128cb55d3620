"""`slacktide explain node`: the ladder and the last publications, from the records of agent and predictor."""

from __future__ import annotations

import json
import time

import pytest

from agent.settings import AgentSettings
from cli.ladderexplained import DOES, signal_rows
from slacktide.explaining import (
    LADDER_ROUTE,
    PUBLISHED_ROUTE,
    Ladder,
    Published,
    PublishedChange,
    RungChange,
    RungLine,
    Signal,
    Waiting,
)
from slacktide.forecast import Amount
from tests.cli.heard import Heard
from tests.cli.test_explain import both, made, node

GIB = 1 << 30
SHORT = Signal(
    what="LS waits for CPU beyond what it makes itself (run-delay)",
    now=2.5,
    unit="s per s run",
    enters=1.0,
    opens=0.7,
)
BUSY = Signal(what="CPUs are busy", now=91.2, unit="%", enters=75.0, joint=True)


def ladder(**changes):
    now = time.time()
    memory = Signal(what="memory that is available", now=63.0, unit="%", enters=10.0, opens=12.0, above=False)
    fields = {
        "node": "n1",
        "at": now - 1,
        "line": "1 LS and 1 BE pods",
        "held": "",
        "writes": True,
        "shortage": "LS waits for CPU: run-delay 3.00",
        "closed": "",
        "be_limit_millis": 300,
        "be_limit_reason": "LS waits",
        "rungs": (
            RungLine(name="weight", reason="BE comes last"),
            RungLine(
                name="contention",
                reason="LS waits for CPU: run-delay 3.00",
                level=9,
                top=10,
                for_seconds=12.0,
                opens_when="LS is calm, one step at a time",
                quiet_seconds=1.5,
                dwell_seconds=1.0,
                signals=(SHORT, BUSY),
            ),
            RungLine(name="close", reason="open", level=0, top=1, quiet_seconds=30.0, signals=(memory, SHORT, BUSY)),
            RungLine(name="from the future", reason="?"),
        ),
        "changes": (
            RungChange(at=now - 12, name="contention", before=0, after=9, top=10, reason="LS waits for CPU"),
            RungChange(at=now - 4000, name="close", before=1, after=0, top=1, reason="open: calm"),
        ),
        "since": now - 7300,
    }
    return Ladder(**{**fields, **changes})


def published(**changes):
    now = time.time()
    fields = {
        "node": "n1",
        "since": now - 600,
        "changes": (
            PublishedChange(
                at=now - 30,
                cause="drop",
                offered=both(15000, 37),
                published=both(15000, 37),
                why="cpu: peak 8.00 -> 9.00",
            ),
            PublishedChange(
                at=now - 300,
                cause="closed",
                offered=Amount(),
                published=both(2000, 1),
                why="",
                closed="closed by the agent: blind",
            ),
        ),
        "waiting": (
            Waiting(resource="cpu", seconds=12.3, least=16000),
            Waiting(resource="memory", seconds=2, least=GIB),
        ),
    }
    return Published(**{**fields, **changes})


@pytest.fixture
def heard(app, twin):
    heard = Heard({("agent", LADDER_ROUTE): ladder(), ("predictor", PUBLISHED_ROUTE): published()})
    app.components = lambda _app, _client, _namespace: heard
    twin.nodes = [node(made())]
    return heard


def lines(out):
    return [" ".join(line.split()) for line in out.text.splitlines()]


def test_each_rung_says_where_it_stands_why_and_what_opens_it(command, heard, out, err):
    assert command("explain", "node", "n1") == 0
    said = lines(out)
    assert "ladder of n1 (the agent, 1s ago): 1 LS and 1 BE pods" in said
    assert "* is LS short of CPU? LS waits for CPU: run-delay 3.00" in said
    assert (
        "contention 9 of 10 12s limits CPU of BE while LS is short of it LS waits for CPU: run-delay 3.00; "
        "opens when LS is calm, one step at a time (calm for 1.5 s, at this level for 1 s at least)" in said
    )
    assert "weight - - BE runs when nobody else wants the CPU BE comes last" in said
    assert "close 0 of 1 - nothing more is sold here open" in said
    assert "from the future - - - ?" in said


def test_figures_say_at_which_marks_of_which_rung_something_happens(command, heard, out, err):
    assert command("explain", "node", "n1") == 0
    said = lines(out)
    assert "memory that is available 63 % close below 10 (opens from 12)" in said
    (short,) = [line for line in said if line.startswith("LS waits for CPU beyond what it makes itself")]
    assert short.endswith(
        "2.5 s per s run contention from 1 (now) (opens below 0.7); close from 1 (now) (opens below 0.7); "
        "only while CPUs are busy from 75 (now 91.2 %)"
    )


def test_last_changes_have_their_times_and_records_say_how_far_they_go(command, heard, out, err):
    assert command("explain", "node", "n1") == 0
    said = lines(out)
    assert "last changes of the ladder (the agent's record, kept for 2h1m):" in said or (
        "last changes of the ladder (the agent's record, kept for 121m):" in said
    )
    assert "12s contention 0 -> 9 of 10 LS waits for CPU" in said
    assert "66m close 1 -> 0 of 1 open: calm" in said
    assert "last changes of what is offered (the predictor's record, kept for 10m):" in said
    assert "30s drop 15.00 37Gi 15.00 / 37Gi cpu: peak 8.00 -> 9.00" in said
    assert "5m0s closed - - 2.00 / 1Gi closed by the agent: blind" in said
    assert "* a rise of cpu waits for 12 s by now; up to 16.00 may follow" in said
    assert "* a rise of memory waits for 2 s by now; up to 1Gi may follow" in said


def test_fewer_changes_and_none(command, heard, out, err):
    assert command("explain", "node", "n1", "--changes", "1") == 0
    assert "12s contention" in " ".join(lines(out))
    assert "66m close" not in " ".join(lines(out))
    heard.answers["agent", LADDER_ROUTE] = ladder(changes=(), held="the API has not answered yet", writes=False)
    heard.answers["predictor", PUBLISHED_ROUTE] = published(
        changes=(), waiting=(), refused="HTTP 500", stopped="koordlet runs here"
    )
    assert command("explain", "node", "n1") == 0
    said = lines(out)
    assert any(line.startswith("no rung moved (the agent's record, kept for ") for line in said)
    assert "no change of what is offered is on record (the predictor's, kept for 10m)" in said
    assert "* the agent observes only: what is said below is what it would do" in said
    assert "* nothing is decided now: the API has not answered yet" in said
    assert "* the last write was refused: HTTP 500" in said
    assert "* nothing is published here: koordlet runs here" in said


def test_the_sum_is_explained_whoever_is_away(command, heard, out, err):
    heard.answers.clear()
    assert command("explain", "node", "n1") == 0
    assert "n1: fresh" in out.text
    assert "the agent does not answer" in err.text
    assert "the predictor does not answer" in err.text
    assert "from the node object and those who answered" in err.text


def test_only_a_predictor_that_leads_is_believed(command, heard, out, err):
    follows = published(since=None, changes=())
    heard.answers["predictor", PUBLISHED_ROUTE] = [("the predictor st/0", follows), ("the predictor st/1", published())]
    assert command("explain", "node", "n1") == 0
    assert "cpu: peak 8.00 -> 9.00" in out.text
    heard.answers["predictor", PUBLISHED_ROUTE] = [
        ("the predictor st/0", follows),
        ("the predictor st/1", "st/1 is gone"),
    ]
    assert command("explain", "node", "n1") == 0
    assert "no predictor that answers leads; st/1 is gone" in err.text


def test_json_has_it_all(command, heard, out, err, twin):
    assert command("explain", "node", "n1", "-o", "json") == 0
    said = json.loads(out.text)
    assert said["left"]["cpu_millis"] == 15000
    assert said["ladder"]["rungs"][1]["level"] == 9
    assert said["published"]["changes"][0]["cause"] == "drop"
    assert said["silent"] == []


def test_a_node_without_a_forecast_still_has_a_ladder(command, heard, out, err, twin):
    twin.nodes = [node(None)]
    assert command("explain", "node", "n1") == 0
    assert "n1: nothing is sold here: no forecast was published yet" in out.text
    assert "contention" in out.text


def test_without_the_api_the_daemons_of_this_machine_still_tell(command, app, twin, heard, out, err):
    twin.go_away()
    assert command("explain", "node") == 3
    said = lines(out)
    assert said[0] == "n1: its sum is on the node object, which cannot be read now"
    assert "12s contention 0 -> 9 of 10 LS waits for CPU" in said
    assert any("cpu: peak 8.00 -> 9.00" in line for line in said)
    assert "the API server does not answer: connection refused" in err.text
    heard.answers.clear()
    assert command("explain", "node") == 3
    assert "this machine: its sum is on the node object" in out.text
    app.reach = lambda _: twin
    assert command("explain", "node", "--context", "c") == 3
    assert err.text.endswith("slacktide: connection refused\n")


def test_in_a_cluster_the_namespace_of_slacktide_can_be_said(command, app, twin, heard, out, err):
    asked = []
    app.reach = lambda _: twin
    app.components = lambda _app, _client, namespace: asked.append(namespace) or heard
    assert command("explain", "node", "n1", "--context", "c", "--system", "batch") == 0
    assert command("explain", "node", "n1", "--context", "c") == 0
    assert asked == ["batch", "slacktide-system"]
    assert ("agent", LADDER_ROUTE, "n1", {}) in heard.asked
    assert ("predictor", PUBLISHED_ROUTE, "", {"node": "n1"}) in heard.asked


def test_what_each_policy_does_is_known():
    assert set(DOES) == set(AgentSettings().policies)


def test_a_figure_that_is_not_known_is_a_dash():
    unknown = Signal(what="tasks", now=None, unit="%", enters=80.0, lasts_seconds=3)
    (row,) = signal_rows(ladder(rungs=(RungLine(name="pids", reason="", level=0, top=1, signals=(unknown,)),)))
    assert row == ["tasks", "-", "pids from 80 for 3 s"]
