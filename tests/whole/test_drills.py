"""Drills without samples in the whole product: the forecast ages and closes, and all is delivered afterwards."""

from __future__ import annotations

import pytest

from slacktide.v1 import drill_pb2 as pb
from tests.whole.drills import drill
from tests.whole.support import started, wait_until

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]

AGENT = """
turn_seconds: 0.5
policies: [weight, close, evict]
drill: {dead_man_seconds: 30, refuse_in_trouble: false}
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


def fresh(up):
    """The forecast once the node is heard of."""
    wait_until(lambda: up.metric("agent", "slacktide_agent_predictor_connected") == 1.0, up)
    return wait_until(
        lambda: (said := up.forecast()) and not said.closed and said.terms.fading is None and said, up, seconds=90
    )


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (pb.PRESSURE_KIND_STALE, ["spooled", "ageing", "closed", "lowered", "delivered", "fresh"]),
        (
            pb.PRESSURE_KIND_PREDICTOR_LOSS,
            ["cut", "spooled", "ageing", "closed", "lowered", "connected", "delivered", "fresh"],
        ),
    ],
)
def test_without_samples_nothing_is_sold_and_afterwards_all_are_delivered(up, kind, own):
    before = fresh(up)
    with drill(up, 20, pressure=kind) as one:
        why = wait_until(lambda: up.forecast().closed, up)
        connected = up.metric("agent", "slacktide_agent_predictor_connected")
        last = one.result()
    assert "no sample from the agent" in why
    assert connected == float(kind == pb.PRESSURE_KIND_STALE)
    assert last.phase == pb.DRILL_PHASE_RECOVERED, last
    assert not [miss for miss in last.result.misses if "within" not in miss], last.result.misses
    at = {moment.step: moment for moment in last.result.timeline}
    assert set(own) <= set(at), last.result.timeline
    assert at["ageing"].elapsed_millis <= at["closed"].elapsed_millis <= at["lowered"].elapsed_millis
    assert at["lowered"].elapsed_millis <= at["delivered"].elapsed_millis
    assert int(at["delivered"].detail.split()[0]) >= 2
    assert up.forecast().at > before.at
    assert not last.result.victims


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
