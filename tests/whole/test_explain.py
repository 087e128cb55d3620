"""`explain` on the running product: each answer is from the record of whoever decided, and says so where it is away."""

from __future__ import annotations

import pytest

from tests.whole.drills import drill
from tests.whole.node import Group, bound, writable
from tests.whole.support import started, wait_until
from tests.whole.test_agent import AGENT, BUSY, PREDICTOR, limited, reported

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def shared():
    with started(PREDICTOR, config={"agent": AGENT}) as running:
        if not writable(running):
            pytest.skip("cgroups of this machine cannot be written, so there are no limits")
        yield running


def ladder(up):
    said = up.json("explain", "node")
    assert said["ladder"] is not None, said["silent"]
    return said["ladder"]


def published(up):
    return up.json("explain", "node")["published"]["changes"]


def rung(up, name):
    return next(one for one in ladder(up)["rungs"] if one["name"] == name)


def measured(up, name):
    return (reported(up, name).get("usage") or {}).get("cpu_millis")


def test_a_drill_is_seen_in_the_ladder_on_the_pod_and_in_what_was_published(up):
    wait_until(lambda: (said := up.forecast()) and not said.closed, up)
    bound(up, "busy", BUSY)
    group = Group(up, "busy")
    wait_until(lambda: measured(up, "busy"), up)
    with drill(up, 120) as one:
        wait_until(lambda: limited(up, group), up)
        cut = wait_until(lambda: (found := rung(up, "contention")).get("level") and found, up)
        assert cut["reason"] == "a drill raises LS pressure"
        (signal,) = cut["signals"]
        assert (signal["what"], signal["now"]) == ("a drill raises LS pressure", 1)
        held = up.json("explain", "pod", "busy")["held"]
        (quota,) = [hold for hold in held["holds"] if hold["knob"] == "cpu.quota" and hold["policy"] == "contention"]
        assert int(quota["value"]) == group.quota()
        assert quota["reason"] == "a drill raises LS pressure"
        wait_until(lambda: "a drill raises LS pressure" in up.run("explain", "node").stdout, up)
        wait_until(lambda: published(up)[0]["closed"], up)
        one.abort()
    wait_until(lambda: not rung(up, "contention")["level"] and not rung(up, "close")["level"], up)
    wait_until(lambda: not up.json("explain", "node")["closed"], up)
    said = up.json("explain", "node")
    moves = [(change["name"], bool(change["after"])) for change in said["ladder"]["changes"]]
    for name in ("contention", "close"):
        assert moves.index((name, False)) < moves.index((name, True)), moves
    times = [change["at"] for change in said["ladder"]["changes"]]
    assert times == sorted(times, reverse=True)
    assert min(times) >= said["ladder"]["since"]
    causes = [change["cause"] for change in said["published"]["changes"]]
    assert causes.index("reopened") < causes.index("closed")


def test_an_evicted_pod_is_explained_when_it_is_gone_and_when_the_agent_is_away(up):
    bound(up, "victim", BUSY)
    wait_until(lambda: measured(up, "victim"), up)
    uid = up.pod("victim").metadata.uid
    with drill(up, 60, victim_budget=1) as one:
        one.reaches("EVICTED")
        wait_until(lambda: up.pod("victim") is None, up)
        one.abort()
    gone = up.run("explain", "pod", "victim")
    assert gone.returncode == 0, gone.stderr
    assert gone.stdout.startswith("default/victim: not there any more; it was told to go:")
    assert "a drill raises LS pressure" in gone.stdout

    def decision():
        (node,) = up.json("explain", "eviction", "victim")["nodes"]
        (found,) = node["evictions"]["decisions"]
        return node, found

    node, found = decision()
    assert (node["source"], node["node"]) == ("the agent", "whole")
    assert (found["uid"], found["outcome"], found["drill"]) == (uid, "sent", one.id)
    assert found["numbers"]["shortage"] == "a drill raises LS pressure"
    shown = up.run("explain", "eviction").stdout
    assert "default/victim" in shown
    with up.without("agent"):
        node, same = decision()
        assert node["source"] == "the agent's file"
        assert "the agent does not answer on " in node["problem"]
        assert same == found
        said = up.json("explain", "node")
        assert said["ladder"] is None
        assert said["published"] is not None
        assert said["lines"]
        assert "the agent does not answer on " in up.run("explain", "node").stderr
    node, again = decision()
    assert (node["source"], again) == ("the agent", found)


def test_a_node_without_a_predictor_or_without_the_api_still_tells_the_rest(up):
    wait_until(up.forecast, up)
    with up.without("predictor"):
        said = up.json("explain", "node")
        assert said["published"] is None
        assert said["ladder"]["rungs"]
        assert "the predictor does not answer on " in said["silent"][0]
    with up.without("api"):
        done = up.run("explain", "node")
        assert done.returncode == 3
        assert done.stdout.startswith("whole: its sum is on the node object, which cannot be read now")
        assert "ladder of whole (the agent, " in done.stdout
        assert "the API server does not answer" in done.stderr
