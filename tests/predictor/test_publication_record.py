"""What a predictor tells of its last publications: what moved each number, what waits, and since when it is known."""

from __future__ import annotations

import pytest

from predictor.publication_record import KEPT, moved
from slacktide.forecast import Amount, Origin, Terms
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.predictor.test_forecasting import CPU, MEMORY, Cluster, Stage

GIB = 1 << 30


@pytest.fixture
def stage(clock, metrics):
    cluster = Cluster()
    cluster.add_node()
    return Stage(cluster, clock, metrics)


def told(stage, node="n1", leads=True):
    return stage.forecaster._publisher.told(node, leads=leads)


def test_each_change_says_what_moved_it_and_refreshes_are_none(stage, clock):
    stage.sample()
    stage.turn()
    began = clock.wall
    stage.run(4)
    stage.run(2, ls_cpu_mean=4300, ls_cpu_max=4300)
    stage.run(200, 10, ls_cpu_mean=4300, ls_cpu_max=4300)
    now = told(stage)
    dropped, first = now.changes
    assert (first.cause, first.at, first.offered) == ("first", began, Amount(cpu_millis=CPU, memory_bytes=MEMORY))
    assert first.why == "first since this predictor leads"
    assert (dropped.cause, dropped.offered.cpu_millis) == ("drop", CPU - 300)
    assert "cpu: peak 4.50 -> 4.80, now 4.50 -> 4.80" in dropped.why or "now 4.50 -> 4.80" in dropped.why
    assert (now.since, now.refused, now.stopped, now.waiting) == (began, "", "", ())


def test_a_rise_that_waits_is_told_with_its_time(stage):
    stage.sample()
    stage.turn()
    stage.run(2, closed="LS is short of CPU")
    stage.run(8)
    cpu, memory = told(stage).waiting
    assert (cpu.resource, cpu.least, memory.resource, memory.least) == ("cpu", CPU, "memory", MEMORY)
    assert 0 < cpu.seconds <= 8


def test_a_closed_node_and_one_that_is_sold_out_say_why(stage):
    stage.sample()
    stage.turn()
    stage.run(2, closed="LS is short of CPU")
    assert (told(stage).changes[0].cause, told(stage).changes[0].closed) == (
        "closed",
        "closed by the agent: LS is short of CPU",
    )
    stage.cluster.add_pod("a", "be", {BATCH_CPU: "30000", BATCH_MEMORY: str(GIB)})
    stage.run(2, closed="LS is short of CPU")
    sold = told(stage).changes[0]
    assert (sold.cause, sold.published.cpu_millis) == ("sold", 30000)
    assert sold.why.startswith("cpu: sold 0.00 -> 30.00")


def test_the_record_is_bounded_and_ends_with_the_node_and_with_leadership(stage, clock):
    for number in range(3 * KEPT):
        stage.run(2, ls_cpu_mean=4000 + 400 * number, ls_cpu_max=4000 + 400 * number)
    assert len(told(stage).changes) == KEPT
    assert told(stage, "nobody").changes == ()
    assert told(stage, leads=False).since is None
    stage.leader = False
    stage.run(2)
    stage.leader = True
    stage.run(2)
    began = told(stage)
    assert all(change.at >= began.since for change in began.changes)
    stage.cluster.bodies.pop("n1")
    stage.run(2)
    assert told(stage).changes == ()


def test_a_patch_that_is_refused_and_a_node_that_another_writes_are_told(stage):
    stage.sample()
    stage.turn()
    publisher = stage.forecaster._publisher
    publisher._known["n1"].refused = "HTTP 500"
    publisher._known["n1"].rival = "koordlet runs here"
    assert (told(stage).refused, told(stage).stopped) == ("HTTP 500", "koordlet runs here")


def terms(**changes):
    known = {name: Amount(cpu_millis=1000, memory_bytes=GIB) for name in ("capacity", "reserve", "peak", "now", "sold")}
    return Terms(
        **{**known, "cpu": Origin(path="short", model="a"), "memory": Origin(path="short", model="a"), **changes}
    )


def test_the_largest_moves_come_first_and_another_way_is_named():
    after = terms(
        peak=Amount(cpu_millis=4000, memory_bytes=GIB),
        now=Amount(cpu_millis=1500, memory_bytes=2 * GIB),
        reserve=Amount(cpu_millis=None, memory_bytes=GIB),
        cpu=Origin(path="model", model="b"),
    )
    assert moved(terms(), after) == (
        "cpu: peak 1.00 -> 4.00, reserve 1.00 -> unknown, now 1.00 -> 1.50; memory: now 1Gi -> 2Gi; "
        "peak of cpu by model (b), before by short (a)"
    )
    assert moved(terms(), terms()) == ""
    assert moved(terms(), terms(fading=0.5)) == "the node is silent: 50% of its room is left"
