"""Drills without samples in the whole product: the forecast ages and closes, and all is delivered afterwards."""

from __future__ import annotations

import contextlib
import json
import subprocess

import msgspec
import pytest

from cli.drillreport import Report
from slacktide.v1 import drill_pb2 as pb
from tests.patience import PATIENCE
from tests.whole.drills import drill
from tests.whole.node import bound
from tests.whole.support import SLACKTIDE, started, wait_until

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]

AGENT = """
turn_seconds: 0.5
policies: [weight, memory, close, evict]
drill: {dead_man_seconds: 30, refuse_in_trouble: false}
evict: {fresh_samples: 1, memory_settle_seconds: 1, memory_patience_seconds: 1, quiet_seconds: 1, min_dwell_seconds: 1}
close: {quiet_seconds: 1, min_dwell_seconds: 1}
"""
"""Nothing but a drill keeps samples back, and none of this machine's other work closes the node."""

PREDICTOR = {
    "SLACKTIDE_PREDICTOR_PUBLISH_SECONDS": "0.5",
    "SLACKTIDE_PREDICTOR_RISE_WAIT_SECONDS": "0",
    "SLACKTIDE_PREDICTOR_STALE_WINDOWS": "2",
    "SLACKTIDE_PREDICTOR_STALE_SECONDS": "2",
    "SLACKTIDE_PREDICTOR_EXPIRE_SECONDS": "6",
}


@pytest.fixture(scope="module")
def shared():
    with started(PREDICTOR, config={"agent": AGENT}) as running:
        yield running


class Asked:
    """A drill by the command, which goes on beside the test."""

    def __init__(self, up, *words):
        command = [*SLACKTIDE, "--state", up.root, "drill", "run", "--yes", "-o", "json", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answer(self):
        """(exit code, report), once it is over."""
        out, err = self._process.communicate(timeout=200 * PATIENCE)
        assert out, err
        (report,) = json.loads(out)["drills"]
        return self._process.returncode, msgspec.convert(report, Report)

    def close(self):
        self._process.kill()
        self._process.communicate()


def asked(up, *words):
    return contextlib.closing(Asked(up, *words))


def fresh(up):
    """The forecast once the node is heard of."""
    wait_until(lambda: up.metric("agent", "slacktide_agent_predictor_connected") == 1.0, up)
    return wait_until(
        lambda: (said := up.forecast()) and not said.closed and said.terms.fading is None and said, up, seconds=90
    )


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("stale", ["spooled", "ageing", "closed", "lowered", "delivered", "fresh"]),
        (
            "predictor-loss",
            ["cut", "spooled", "ageing", "closed", "lowered", "connected", "delivered", "fresh"],
        ),
    ],
)
def test_without_samples_nothing_is_sold_and_afterwards_all_are_delivered(up, kind, own):
    before = fresh(up)
    with asked(up, "--kind", kind, "--duration", "20s") as caller:
        why = wait_until(lambda: up.forecast().closed, up)
        connected = up.metric("agent", "slacktide_agent_predictor_connected")
        code, report = caller.answer()
    assert "no sample from the agent" in why
    assert connected == float(kind == "stale")
    assert (report.kind, report.phase) == (kind, "recovered"), report
    # How fast this machine is, is not what is tested.
    assert not [miss for miss in report.misses if "within" not in miss], report.misses
    assert (code, report.passed) == ((1, False) if report.misses else (0, True))
    at = {moment.step: moment for moment in report.timeline}
    assert set(own) <= set(at), report.timeline
    assert at["ageing"].elapsed_millis <= at["closed"].elapsed_millis <= at["lowered"].elapsed_millis
    assert at["lowered"].elapsed_millis <= at["delivered"].elapsed_millis
    assert int(at["delivered"].detail.split()[0]) >= 2
    assert up.forecast().at > before.at
    assert not report.victims


def test_the_node_has_an_event_of_begin_and_end(up):
    fresh(up)
    with drill(up, 1, pressure=pb.PRESSURE_KIND_STALE) as one:
        one.result()
    said = wait_until(
        lambda: (
            (found := [event.message for event in up.events("whole", "SlacktideDrill") if one.id in event.message])
            and len(found) == 2
            and found
        ),
        up,
    )
    assert any(text.startswith(f"drill {one.id} by the owner of the socket (test) begins: stale") for text in said)
    assert any("recovered" in text for text in said)


def test_an_abort_lets_the_samples_go_at_once(up):
    fresh(up)
    sent = up.metric("agent", "slacktide_agent_samples_acknowledged_total")
    with drill(up, 300, pressure=pb.PRESSURE_KIND_PREDICTOR_LOSS) as one:
        one.reaches_step("spooled")
        one.abort()
        assert one.result().phase == pb.DRILL_PHASE_ABORTED
    wait_until(lambda: up.metric("agent", "slacktide_agent_samples_acknowledged_total") > sent, up)
    wait_until(lambda: up.metric("agent", "slacktide_agent_predictor_connected") == 1.0, up)
    wait_until(lambda: up.metric("agent", "slacktide_agent_spool_bytes") == 0.0, up)


def test_memory_that_would_run_short_takes_the_pod_that_the_plan_named(up):
    fresh(up)
    victim = bound(up, "batch", "while sleep 1; do :; done", cpu=1000, memory=64 << 20)
    wait_until(
        lambda: any(one["name"] == "batch" for one in json.loads(up.ask("agent", "/status") or "{}").get("pods", ())),
        up,
    )
    with asked(up, "--kind", "memory", "--duration", "15s", "--victims-max", "1") as caller:
        code, report = caller.answer()
    assert (report.kind, report.phase) == ("memory", "recovered"), report
    assert (code, report.passed) == ((1, False) if report.misses else (0, True))
    (gone,) = report.victims
    assert (gone.uid, gone.evicted) == (victim.metadata.uid, True)
    at = {moment.step: moment.elapsed_millis for moment in report.timeline}
    assert at["raised"] <= at["detected"] <= at["evicted"] <= at["recovered"]
    wait_until(lambda: up.pod("batch") is None or up.pod("batch").status.phase == "Failed", up)
