"""What commands print, word for word: tables, wide tables, narrow terminals, names, JSON, and the schema of each JSON.

A change shows in review as a change of `tests/cli/snapshots`; `SLACKTIDE_SNAPSHOTS=write` writes them anew.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from cli import checks, clusterchecks, fleet, forecasts, gather, happenings, plotted, pods, podview, savings
from cli.main import main
from slacktide import forecast as wire
from slacktide.forecast import Amount, Forecast, Origin, Terms
from slacktide.names import FORECAST_ANNOTATION
from slacktide.status import AgentStatus, PodReport, Usage
from slacktide.tier import Tier

KEPT = Path(__file__).parent / "snapshots"
GIB = 1 << 30
NOW = 1_767_261_600.0
"""2026-01-01T10:00:00Z."""


def amount(cpu, gib):
    return Amount(cpu_millis=cpu, memory_bytes=gib * GIB)


def forecast(closed="", age=12.0, now=1200):
    origin = Origin(path="week", model="pooled", risk=0.01, shift=0.05)
    terms = Terms(
        capacity=amount(8000, 32),
        allocatable=amount(7800, 30),
        reserve=amount(800, 3),
        peak=amount(2600, 9),
        now=amount(now, 7),
        sold=amount(1500, 2),
        model="pooled",
        risk=0.01,
        cpu=origin,
        memory=origin,
        pool="general",
    )
    return Forecast(
        at=NOW - age,
        ttl_seconds=90,
        peak=amount(2600, 9),
        reclaimable=amount(4600, 20),
        closed=closed,
        terms=terms,
        horizon_seconds=3600.0,
    )


def node(name, *said):
    notes = {FORECAST_ANNOTATION: wire.encode(said[0])} if said else {}
    amounts = {"kubernetes.io/batch-cpu": "4600", "kubernetes.io/batch-memory": "20Gi"} if said else {}
    return {
        "metadata": {"name": name, "uid": name, "annotations": notes},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name, namespace, on, *, cpu, tier="be", phase="Running", minutes=90, **status):
    resource = "kubernetes.io/batch-cpu" if tier == "be" else "cpu"
    memory = "kubernetes.io/batch-memory" if tier == "be" else "memory"
    began = f"2026-01-01T{10 - minutes // 60 - 1:02}:{(60 - minutes % 60) % 60:02}:00Z"
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {"slacktide.io/tier": tier},
            "creationTimestamp": began,
        },
        "spec": {
            "nodeName": on,
            "containers": [{"name": "main", "resources": {"requests": {resource: cpu, memory: "1Gi"}}}],
        },
        "status": {"phase": phase, **status},
    }


WAITS = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 1 batch room of 3000 millicores is less than 9000, 1 closed: Zürich drains "
    "its lake, 1 has no forecast",
}
FAILED = {
    "name": "main",
    "restartCount": 2,
    "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no such table"}},
}


def event(name, reason, kind, about, message, *, at, count=1, namespace="team"):
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": about},
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "slacktide-agent"},
        "count": count,
        "firstTimestamp": "2026-01-01T09:00:00Z",
        "lastTimestamp": at,
    }


def measured():
    batch = PodReport(
        namespace="team",
        name="batch",
        uid="uid-batch",
        tier=Tier.BE,
        usage=Usage(cpu_millis=1230, memory_bytes=700 << 20),
        throttled_ratio=0.25,
        quota_millis=2000,
    )
    return AgentStatus(
        node="worker-1",
        version="0.1.0",
        at=NOW,
        turn=7,
        turn_seconds=0.004,
        line="LS uses 1.20 of 8 cores; BE may use 2.00, uses 1.23",
        capacity=Usage(cpu_millis=8000, memory_bytes=32 * GIB),
        node_usage=Usage(cpu_millis=2600, memory_bytes=9 * GIB),
        tiers={Tier.LS: Usage(cpu_millis=1200, memory_bytes=7 * GIB), Tier.BE: Usage(cpu_millis=1230)},
        pods=[batch],
        be_quota_millis=2000,
    )


@pytest.fixture
def scene(app, twin):
    app.wall = lambda: NOW
    app.agent_status = lambda _: measured()
    twin.nodes = [node("worker-1", forecast()), node("worker-2", forecast("memory is low", 40.0)), node("worker-3")]
    for one in (
        pod("batch", "team", "worker-1", cpu="1500", minutes=90),
        pod("report", "team", "worker-1", cpu="500", phase="Failed", minutes=200, containerStatuses=[FAILED]),
        pod("web", "default", "worker-2", cpu="1", tier="ls", minutes=3000 % 540),
        pod("huge", "team", "", cpu="9000", phase="Pending", minutes=1, conditions=[WAITS]),
    ):
        twin.put(one)
    twin.events = [
        event("batch.1", "Throttled", "Normal", "batch", "LS needs 3.10 cores", at="2026-01-01T09:59:00Z", count=3),
        event("huge.1", "FailedScheduling", "Warning", "huge", WAITS["message"], at="2026-01-01T09:59:30Z"),
    ]
    return app


class Terminal:
    """A terminal of so many columns in place of standard output."""

    def __init__(self, monkeypatch, columns, encoding="utf-8", **environ):
        self.raw = io.BytesIO()
        self.stream = io.TextIOWrapper(self.raw, encoding=encoding, write_through=True)
        self.stream.isatty = lambda: True
        for name, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "", **environ}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", self.stream)

    @property
    def text(self):
        return self.raw.getvalue().decode(self.stream.encoding)


def compare(name, text):
    path = KEPT / name
    if os.environ.get("SLACKTIDE_SNAPSHOTS") == "write":
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs: SLACKTIDE_SNAPSHOTS=write writes it anew"


LISTS = {
    "ps": ("ps",),
    "forecast": ("forecast",),
    "events": ("events",),
    "top-node": ("top",),
}


@pytest.mark.parametrize("form", ["table", "wide"])
@pytest.mark.parametrize("name", LISTS)
def test_tables_as_a_pipe_gets_them(scene, command, out, err, name, form):
    assert command(*LISTS[name], "-o", form) == 0
    compare(f"{name}-{form}.txt", out.text)


@pytest.mark.parametrize("form", ["table", "wide", "name"])
def test_the_fleet(scene, twin, command, out, err, form):
    scene.kubectl, scene.reach = True, lambda _: twin
    assert command("top", "-o", form) == 0
    compare(f"top-fleet-{form}.txt", out.text)


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("name", ["ps", "forecast", "events"])
def test_tables_on_a_terminal(scene, monkeypatch, name, columns):
    terminal = Terminal(monkeypatch, columns, NO_COLOR="1")
    assert main([*LISTS[name]], scene) == 0
    assert all(len(line) <= columns for line in terminal.text.splitlines())
    compare(f"{name}-{columns}.txt", terminal.text)


@pytest.mark.parametrize("columns", [40, 120])
def test_the_node_on_a_terminal(scene, monkeypatch, columns):
    terminal = Terminal(monkeypatch, columns, NO_COLOR="1")
    assert main(["top", "--once"], scene) == 0
    assert "\x1b[3" not in terminal.text
    compare(f"top-node-{columns}.txt", terminal.text)


def test_colours_are_for_terminals_that_want_them(scene, monkeypatch):
    coloured = Terminal(monkeypatch, 200)
    assert main(["ps"], scene) == 0
    assert "\x1b[32mRunning\x1b[0m" in coloured.text
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = Terminal(monkeypatch, 200, **environ)
        assert main(["ps"], scene) == 0
        assert "\x1b" not in plain.text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf8_shows_what_it_can(scene, monkeypatch, encoding):
    terminal = Terminal(monkeypatch, 200, encoding, NO_COLOR="1")
    assert main(["ps"], scene) == 0
    assert ("Z?rich" if encoding == "ascii" else "Zürich") in terminal.text


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_programs_get_everything_also_without_utf8(scene, monkeypatch, form):
    terminal = Terminal(monkeypatch, 200, "ascii")
    assert main(["ps", "-o", form], scene) == 0
    found = (json.loads if form == "json" else yaml.safe_load)(terminal.text)
    assert any("Zürich" in one["reason"] for one in found["pods"])


DOCUMENTS = {
    "ps": podview.Pods,
    "forecast": forecasts.Forecasts,
    "events": happenings.Events,
    "top-node": gather.Picture,
    "top-fleet": fleet.Fleet,
    "rm": pods.Removed,
    "doctor": checks.Checks,
    "doctor-cluster": clusterchecks.Findings,
    "savings": savings.Savings,
    "plot": plotted.Drawn,
}
"""The documents of the commands."""


@pytest.mark.parametrize("name", ["ps", "forecast", "events", "top-node", "top-fleet"])
def test_json_is_what_its_schema_says_and_nothing_else(scene, twin, command, out, err, name):
    if name == "top-fleet":
        scene.kubectl, scene.reach = True, lambda _: twin
    assert command(name.split("-")[0], "-o", "json") == 0
    compare(f"{name}.json", out.text)
    decoded = msgspec.json.decode(out.text.encode(), type=DOCUMENTS[name], strict=True)
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == json.loads(out.text)


def test_the_schemas_of_all_documents():
    _, parts = msgspec.json.schema_components(DOCUMENTS.values())
    compare("schemas.json", json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def test_yaml_is_the_same_document(scene, command, out, err):
    assert command("ps", "-o", "yaml") == 0
    assert yaml.safe_load(out.text) == json.loads((KEPT / "ps.json").read_text())


def test_a_name_a_line_for_other_programs(scene, command, out, err):
    assert command("ps", "-o", "name") == 0
    assert out.text == "pod/default/web\npod/team/batch\npod/team/huge\npod/team/report\n"
