"""What `explain` prints, word for word, and the schemas of its documents; see `test_snapshots`."""

from __future__ import annotations

import json

import msgspec
import pytest

from cli.cycles import CountedReason, Cycle, NodeScore, PluginScore, Refusal, Scheduling
from cli.evictionexplained import EvictionsExplained
from cli.explaining import NodeDocument
from cli.main import main
from cli.podexplained import PodExplanation
from slacktide.explaining import (
    EVICTIONS_ROUTE,
    LADDER_ROUTE,
    POD_ROUTE,
    PUBLISHED_ROUTE,
    Decision,
    Evictions,
    HeldPod,
    Hold,
    Ladder,
    Published,
    PublishedChange,
    RungChange,
    RungLine,
    Signal,
    Waiting,
)
from tests.cli.heard import Heard
from tests.cli.test_snapshots import GIB, NOW, Terminal, amount, compare, scene

__all__ = ["scene"]

SHORT = Signal(
    what="LS waits for CPU beyond what it makes itself (psi)", now=0.41, unit="of the time", enters=0.3, opens=0.21
)
BUSY = Signal(what="CPUs are busy", now=92.0, unit="%", enters=75.0, joint=True)
MEMORY = Signal(what="memory that is available", now=44.0, unit="%", enters=10.0, opens=12.0, above=False)
LADDER = Ladder(
    node="worker-1",
    at=NOW - 1,
    line="1 LS and 1 BE pods; BE is limited to 2000m",
    held="",
    writes=True,
    shortage="LS waits for CPU: psi 0.45, alone it would be 0.04, cut at 0.3 more",
    closed="",
    be_limit_millis=2000,
    be_limit_reason="LS waits for CPU",
    rungs=(
        RungLine(name="weight", reason="BE comes last"),
        RungLine(
            name="contention",
            reason="LS waits for CPU: psi 0.45, alone it would be 0.04, cut at 0.3 more",
            level=8,
            top=10,
            for_seconds=4.2,
            opens_when="LS is calm, one step at a time",
            quiet_seconds=1.5,
            dwell_seconds=1.0,
            signals=(SHORT, BUSY),
        ),
        RungLine(name="close", reason="open", level=0, top=1, quiet_seconds=30.0, signals=(SHORT, BUSY, MEMORY)),
    ),
    changes=(
        RungChange(at=NOW - 4.2, name="contention", before=0, after=8, top=10, reason="LS waits for CPU: psi 0.45"),
        RungChange(at=NOW - 9000, name="close", before=1, after=0, top=1, reason="open: none of its causes shows"),
    ),
    since=NOW - 86400,
)
PUBLISHED = Published(
    node="worker-1",
    since=NOW - 86400,
    changes=(
        PublishedChange(
            at=NOW - 12,
            cause="drop",
            offered=amount(4600, 20),
            published=amount(4600, 20),
            why="cpu: now 0.90 -> 1.20, peak 2.40 -> 2.60",
        ),
    ),
    waiting=(Waiting(resource="memory", seconds=18.0, least=21 * GIB),),
)
HELD = HeldPod(
    node="worker-1",
    at=NOW,
    known=True,
    tier="BE",
    cpu_millis=1230,
    memory_bytes=700 << 20,
    quota_millis=2000,
    throttled_ratio=0.25,
    holds=(
        Hold(knob="cpu.idle", value="1", policy="weight", reason="BE comes last"),
        Hold(knob="cpu.quota", value="2000", policy="contention", reason="LS waits for CPU: psi 0.45"),
    ),
)
EVICTED = Decision(
    at=NOW - 600,
    namespace="team",
    name="late",
    uid="uid-late",
    way="evict",
    outcome="sent",
    reason="4.1 % of memory is available, evicted below 5 %: 1342177280 bytes to free; lowest priority (5000)",
    numbers={"priority": "5000", "memory_bytes": str(3 * GIB), "gap": "memory 1342177280", "available_bytes": str(GIB)},
)
SPARED = msgspec.structs.replace(
    EVICTED, at=NOW - 640, name="kept", outcome="blocked", detail="blocked by a disruption budget: kept", numbers={}
)
PLACED = Cycle(
    "team/batch",
    "uid-batch",
    1,
    NOW - 5400,
    "chosen",
    "worker-1",
    "",
    evaluated=3,
    feasible=2,
    weights={"BatchForecast": 2, "NodeResourcesFit": 1},
    scores=[
        NodeScore(
            "worker-1", 260, {"BatchForecast": PluginScore(80.0, 80, 160), "NodeResourcesFit": PluginScore(1, 100, 100)}
        ),
        NodeScore(
            "worker-2", 130, {"BatchForecast": PluginScore(20.0, 20, 40), "NodeResourcesFit": PluginScore(0.9, 90, 90)}
        ),
    ],
)
WAITING = Cycle(
    "team/huge",
    "uid-huge",
    7,
    NOW - 30,
    "unschedulable",
    "",
    "0/3 nodes are available: 1 no forecast room for kubernetes.io/batch-cpu, 1 node(s) closed for batch work",
    refusals=[
        Refusal(
            "BatchForecast",
            2,
            [
                CountedReason("no forecast room for kubernetes.io/batch-cpu", 1, "worker-1", "needs 9000m, room 3000m"),
                CountedReason("node(s) closed for batch work", 1, "worker-2", "Zürich drains its lake"),
            ],
        )
    ],
)


def scheduling(_node, query):
    kept = {
        "uid-batch": Scheduling([PLACED], since=NOW - 9000),
        "uid-huge": Scheduling([], [WAITING], since=NOW - 9000),
    }
    return kept.get(query["uid"], Scheduling(since=NOW - 9000))


@pytest.fixture
def heard(scene):
    told = Evictions(
        node="worker-1", decisions=(EVICTED, SPARED), since=NOW - 7200, evicted_in_hour=1, evictions_per_hour=12
    )
    heard = Heard(
        {
            ("agent", LADDER_ROUTE): LADDER,
            ("agent", POD_ROUTE): HELD,
            ("agent", EVICTIONS_ROUTE): lambda _node, query: msgspec.structs.replace(
                told,
                decisions=tuple(
                    one
                    for one in told.decisions
                    if f"{one.namespace}/{one.name}" == query.get("pod", "team/" + one.name)
                ),
            ),
            ("predictor", PUBLISHED_ROUTE): PUBLISHED,
            ("scheduler", "/debug/scheduling"): scheduling,
        }
    )
    scene.components = lambda _app, _client, _namespace: heard
    return scene


QUESTIONS = {
    "node": (("node", "worker-1"), NodeDocument),
    "node-without": (("node", "worker-3"), NodeDocument),
    "pod-placed": (("pod", "team/batch"), PodExplanation),
    "pod-pending": (("pod", "team/huge"), PodExplanation),
    "pod-gone": (("pod", "team/late"), EvictionsExplained),
    "evictions": (("eviction",), EvictionsExplained),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_as_a_pipe_gets_them(heard, command, out, err, name):
    assert command("explain", *QUESTIONS[name][0]) == 0
    compare(f"explain-{name}.txt", out.text)


@pytest.mark.parametrize("name", ["node", "pod-placed", "evictions"])
def test_answers_on_a_narrow_terminal(heard, monkeypatch, name):
    terminal = Terminal(monkeypatch, 40, NO_COLOR="1")
    assert main(["explain", *QUESTIONS[name][0]], heard) == 0
    compare(f"explain-{name}-40.txt", terminal.text)


@pytest.mark.parametrize("name", QUESTIONS)
def test_json_is_what_its_schema_says_and_nothing_else(heard, command, out, err, name):
    words, schema = QUESTIONS[name]
    assert command("explain", *words, "-o", "json") == 0
    compare(f"explain-{name}.json", out.text)
    decoded = msgspec.json.decode(out.text.encode(), type=schema, strict=True)
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == json.loads(out.text)


def test_the_schemas_of_all_documents():
    documents = dict.fromkeys(schema for _, schema in QUESTIONS.values())
    _, parts = msgspec.json.schema_components(documents)
    compare("explain-schemas.json", json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
