"""A thousand nodes with simulated agents on a real API server: each offers its room, pods fill it, none is oversold."""

from __future__ import annotations

import pytest

from benchmarks.cluster import Pods, stage
from benchmarks.predictor import fleet
from slacktide import names
from slacktide.cluster import NODES
from slacktide.forecast import Freshness, decode, freshness
from tests.cluster.harness import missing
from tests.cluster.product import wait_for

pytestmark = pytest.mark.timeout(400)

COUNT = 1000


def test_a_thousand_nodes_offer_their_room_and_a_thousand_pods_find_it():
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with (
        stage(COUNT) as on,
        on.predictor("predictor", on.history) as predictor,
        fleet(on.address("predictor"), COUNT, 10.0),
        on.scheduler("scheduler"),
    ):
        predictor.wait_ready()
        wait_for(lambda: on.offering() == COUNT, lambda: f"offer of {COUNT} nodes, only {on.offering()}", 120.0)
        with Pods(on.client, "scale", names.SCHEDULER_NAME) as pods:
            pods.burst(COUNT)
            assert on.oversold() == 0
        nodes = on.client.list(NODES).items
        forecasts = [decode(node.metadata.annotations[names.FORECAST_ANNOTATION]) for node in nodes]
        newest = max(one.at for one in forecasts)
        assert {freshness(one, newest) for one in forecasts} == {Freshness.FRESH}
