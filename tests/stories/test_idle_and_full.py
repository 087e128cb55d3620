"""Story: 32 nodes, 40 replicas, 12 of them pending with "32 Insufficient cpu", and real use under 40 %.

As best-effort pods all 40 run, by what the forecast leaves, and LS is not touched.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cli.explained import explain
from predictor.reclaim import Bounds, Demand, reclaim
from slacktide import names
from slacktide.forecast import Amount, decode
from tests.scheduler_plugins.build import GI, be, node, pod
from tests.scheduler_plugins.forecasts import forecast, terms
from tests.scheduler_plugins.rig import Rig

NODES = 32
CORES = 16
USED_MILLIS = 5600
PEAK_MILLIS = 7000
RESERVE_PERCENT = 5.0


def reclaimable() -> int:
    """By the predictor's own formula."""
    demand = Demand(capacity=CORES * 1000, now=USED_MILLIS, system_now=400, requested=13_000, peak=float(PEAK_MILLIS))
    amount = reclaim(demand, Bounds(reserve_percent=RESERVE_PERCENT)).reclaimable
    assert amount is not None
    return amount


def cluster(rig: Rig) -> None:
    """28 nodes with 13 of 16 cores asked for, 4 with 14; 35 % of each is used."""
    of = terms(now=(USED_MILLIS, 8 * GI), peak=(PEAK_MILLIS, 10 * GI), capacity=(CORES * 1000, 64 * GI))
    text = forecast(reclaimable(), 40 * GI, at=rig.wall.now, of=of)
    offered = {"cpu": str(CORES), "memory": "64Gi", "pods": "110"}
    batch = {names.BATCH_CPU: str(reclaimable()), names.BATCH_MEMORY: str(40 * GI)}
    for i in range(NODES):
        rig.server.put_node(node(f"n{i}", offered | batch, annotations={names.FORECAST_ANNOTATION: text}))
        cpu = "14" if i >= 28 else "13"
        rig.server.put(pod(f"online-{i}", {"cpu": cpu, "memory": "8Gi"}, nodeName=f"n{i}", priority=1000))


def replicas(rig: Rig, make: Any) -> list[str]:
    """40 of them; where each is in the end."""
    for i in range(40):
        rig.server.put(make(f"r{i}"))
    rig.settle()
    rig.later(30)
    return [rig.where(f"r{i}") for i in range(40)]


def test_twelve_of_forty_wait_for_processors_that_stand_idle() -> None:
    rig = Rig()
    cluster(rig)
    places = replicas(rig, lambda name: pod(name, {"cpu": "3"}))
    waiting = [i for i, place in enumerate(places) if not place]
    assert len(waiting) == 12
    assert USED_MILLIS < 0.4 * CORES * 1000
    for i in waiting:
        status, reason, message = rig.condition(f"r{i}")
        assert (status, reason) == ("False", "Unschedulable")
        assert message.startswith("0/32 nodes are available: 32 Insufficient cpu (nearest n")
        assert "asks for 3, free 2" in message


def test_as_best_effort_pods_all_forty_run_and_ls_is_not_touched() -> None:
    rig = Rig()
    cluster(rig)
    before = {key: pod for key, pod in rig.server.pods.items() if pod.metadata.name.startswith("online-")}
    places = replicas(rig, lambda name: be(name, 3000, GI))
    assert all(places)
    # What is sold and what LS and SYSTEM need at their peak is on no node more than there is.
    for count in Counter(places).values():
        assert count * 3000 + PEAK_MILLIS <= CORES * 1000 * (1 - RESERVE_PERCENT / 100)
    assert {key: rig.server.pods[key] for key in before} == before
    # What LS asks for is still there: the 28 replicas that fitted before still do.
    for i in range(28):
        rig.server.put(pod(f"ls-{i}", {"cpu": "3"}, priority=1000))
    rig.settle()
    assert sorted(rig.where(f"ls-{i}") for i in range(28)) == sorted(f"n{i}" for i in range(28))


def test_explain_says_why_there_is_room_where_everything_is_asked_for() -> None:
    rig = Rig()
    cluster(rig)
    places = replicas(rig, lambda name: be(name, 3000, GI))
    name = places[0]
    said = decode(rig.server.nodes[name].metadata.annotations[names.FORECAST_ANNOTATION])
    sold = Amount(cpu_millis=3000 * places.count(name), memory_bytes=GI * places.count(name))
    published = Amount(cpu_millis=reclaimable(), memory_bytes=40 * GI)
    explanation = explain(name, said, sold, published, rig.wall.now)
    numbers = {line.amount.cpu_millis for line in explanation.lines}
    assert {CORES * 1000, PEAK_MILLIS, reclaimable(), sold.cpu_millis} <= numbers
    assert explanation.left.cpu_millis == reclaimable() - 3000 * places.count(name)


def test_one_more_than_the_forecast_leaves_is_told_how_much_is_missing() -> None:
    rig = Rig()
    cluster(rig)
    rig.server.put(be("large", reclaimable() + 1, GI))
    rig.settle()
    room = f"needs {reclaimable() + 1}m, room {reclaimable()}m"
    assert f"32 no forecast room for {names.BATCH_CPU} (nearest n" in rig.condition("large")[2]
    assert room in rig.condition("large")[2]
