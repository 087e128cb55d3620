"""`slacktide explain pod`: why a pod is where it is, or nowhere, and what can be done."""

import json
import time

import msgspec
import pytest

from cli.advice import advice
from cli.cycles import CountedReason, Cycle, NodeScore, PluginScore, Refusal, Scheduling, drowned
from cli.podexplained import SchedulersRecord, explain_pod
from scheduler_plugins.plugins import default_registry
from slacktide.explaining import POD_ROUTE, Decision, Evictions, HeldPod, Hold
from slacktide.names import BATCH_CPU, TIER_LABEL
from slacktide.objects import Pod
from slacktide.tier import tier_of, tier_reason
from tests.cli.heard import Heard
from tests.scheduler_plugins.build import GI, be, forecast, node, offering
from tests.scheduler_plugins.build import pod as made
from tests.scheduler_plugins.rig import Rig
from tests.stories.test_drowned_plugin import rig_with

SERVER_SAYS = "0/1 nodes are available: 1 Insufficient cpu."


def body(name="p", **spec):
    requests = {BATCH_CPU: "1500"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {TIER_LABEL: "be"}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}], **spec},
        "status": {"phase": "Pending"},
    }


def kept(rig):
    return msgspec.json.decode(rig.records.body(), type=Scheduling)


DEBUG = ("scheduler", "/debug/scheduling")


@pytest.fixture
def heard(app):
    """Who answers; nobody unless a test says so."""
    heard = Heard()
    app.components = lambda _app, _client, _namespace: heard
    return heard


@pytest.fixture
def rig():
    rig = Rig()
    for name, cpu in (("small", 500), ("large", 1200)):
        rig.server.put_node(offering(name, forecast(cpu, 8 * GI, at=rig.wall.now)))
    rig.server.put_node(node("cordoned", unschedulable=True))
    return rig


def test_pending_pod_says_who_refused_how_many_and_the_nearest_with_numbers(command, twin, heard, out, err, rig):
    rig.server.put(be("p", 1500, GI))
    rig.settle()
    twin.put(body())
    heard.answers[DEBUG] = kept(rig)
    assert command("explain", "pod", "p") == 0
    lines = [" ".join(line.split()) for line in out.text.splitlines()]
    assert lines[0].startswith("default/p: pending; 0/3 nodes are available: ")
    assert lines[1].startswith("tier BE: label slacktide.io/tier is be; scheduler ")
    assert lines[2].startswith("from the scheduler's record of attempt 1, ")
    assert f"BatchForecast 2 no forecast room for {BATCH_CPU} large needs 1500m, room 1200m" in lines
    assert any(line.startswith("NodeUnschedulable 1 node(s) were unschedulable cordoned") for line in lines)
    assert any(line.startswith(f"-> ask for less {BATCH_CPU} (needs 1500m, room 1200m on large)") for line in lines)
    assert "-> nodes are cordoned: `kubectl uncordon`" in lines


def test_json_has_who_refused_how_many(command, twin, heard, out, err, rig):
    rig.server.put(be("p", 1500, GI))
    rig.settle()
    twin.put(body())
    heard.answers[DEBUG] = kept(rig)
    assert command("explain", "pod", "default/p", "-o", "json") == 0
    said = json.loads(out.text)
    assert {one["plugin"]: one["nodes"] for one in said["blocking"]} == {"BatchForecast": 2, "NodeUnschedulable": 1}
    assert (said["tier"], said["state"]) == ("BE", "pending")
    assert said["actions"]


def test_placed_pod_shows_the_score_table_of_the_chosen_and_the_next(command, twin, heard, out, err, rig):
    rig.server.put(be("p", 400, GI))
    rig.settle()
    twin.put(body(nodeName="large"))
    heard.answers[DEBUG] = kept(rig)
    assert command("explain", "pod", "p", "--nodes", "2") == 0
    text = out.text
    assert "placed on large; large has the highest score of the 2 nodes that fit, of 3" in text
    header = next(line.split() for line in text.splitlines() if line.startswith("PLUGIN"))
    assert header == ["PLUGIN", "WEIGHT", "large", "small", "DIFFERENCE"]
    row = next(line.split() for line in text.splitlines() if line.startswith("BatchForecast"))
    raw, normalised, weighted = row[2::2][:3]
    assert int(float(raw)) == int(normalised)
    assert int(weighted) == int(normalised) * int(row[1])


def test_record_that_is_gone_is_said_and_the_condition_stands_in(command, twin, heard, out, err):
    twin.put(body(schedulerName="slacktide-scheduler"))
    twin.unschedulable("p", SERVER_SAYS)
    heard.answers[DEBUG] = Scheduling(since=time.time() - 90)
    assert command("explain", "pod", "p") == 0
    assert SERVER_SAYS in out.text
    assert (
        "the scheduler's record of it is gone (it keeps the last ones, until it restarts; it began 90s ago)" in out.text
    )


def test_of_another_scheduler_nobody_keeps_a_record(command, twin, heard, out, err):
    twin.put(body(schedulerName="default-scheduler"))
    heard.answers[DEBUG] = Scheduling()
    assert command("explain", "pod", "p") == 0
    assert "of default-scheduler, which is to place it, no record is kept here" in out.text


def test_scheduler_that_does_not_answer(command, twin, heard, out, err):
    twin.put(body())
    heard.answers[DEBUG] = "tried and not heard"
    assert command("explain", "pod", "p") == 0
    assert "it was not tried yet" in out.text
    assert "the scheduler does not answer" in out.text
    assert "tried and not heard" in err.text


def test_no_socket_is_no_answer(command, twin, out, err):
    twin.put(body(nodeName="n1"))
    assert command("explain", "pod", "p") == 0
    assert "the scheduler does not answer" in out.text


def test_in_a_cluster_whoever_placed_it_is_found_among_the_replicas(command, twin, app, heard, out, err):
    twin.put(body(nodeName="a"))
    chosen = Cycle("default/p", "uid-p", 2, time.time() - 5, "chosen", "a", "", evaluated=4, feasible=1)
    earlier = Cycle("default/p", "uid-p", 1, time.time() - 50, "unschedulable", "", "0/4 nodes are available")
    heard.answers[DEBUG] = [
        ("the scheduler st/one", Scheduling([], [earlier], since=1.0)),
        ("the scheduler st/two", Scheduling([chosen], since=2.0)),
        ("the scheduler st/three", "st/three was not heard"),
    ]
    asked = []
    app.reach = lambda settings: asked.append(settings.kubeconfig) or twin
    assert command("explain", "pod", "p", "--kubeconfig", "their.yaml") == 0
    assert asked == ["their.yaml"]
    assert "from the scheduler st/two's record of attempt 2, 5s ago" in out.text
    assert "a is the only one of 4 nodes that fits" in out.text
    assert "st/three" not in err.text
    assert heard.asked[0] == ("scheduler", "/debug/scheduling", "", {"uid": "uid-p"})


HELD = HeldPod(
    node="n1",
    at=0.0,
    known=True,
    tier="BE",
    cpu_millis=300,
    memory_bytes=GI,
    quota_millis=300,
    throttled_ratio=0.25,
    holds=(
        Hold(knob="cpu.quota", value="300", policy="contention", reason="LS waits for CPU: 3.00"),
        Hold(knob="memory.max", value=str(GI), policy="batch_limits", reason="its limit", container="main"),
        Hold(knob="io.max", value="8:0 rbps=1\n8:16 rbps=1", policy="io", reason="LS waits for I/O"),
    ),
)


def decision(name="p", uid="uid-p", at=0.0, outcome="blocked", **more):
    numbers = {
        "priority": "5500",
        "available_bytes": str(2 * GI),
        "be_limit_millis": "400",
        "odd": "1 of 2",
        "created_at": "0",
    }
    reason = "LS is short although contention was cut to the end"
    return Decision(
        at=at,
        namespace="default",
        name=name,
        uid=uid,
        way="evict",
        outcome=outcome,
        reason=reason,
        numbers=numbers,
        **more,
    )


def test_a_pod_that_is_held_says_by_what_and_why(command, twin, heard, out, err):
    twin.put(body(nodeName="n1"))
    heard.answers[DEBUG] = Scheduling()
    heard.answers["agent", POD_ROUTE] = msgspec.structs.replace(HELD, at=time.time())
    blocked = decision(at=time.time() - 60, detail="blocked by a disruption budget: b")
    of_another = decision(uid="earlier", at=time.time() - 30, outcome="sent")
    heard.answers["agent", "/debug/evictions"] = Evictions(node="n1", decisions=(of_another, blocked))
    assert command("explain", "pod", "p") == 0
    lines = [" ".join(line.split()) for line in out.text.splitlines()]
    assert (
        "on n1 (its agent, 0s ago): uses 0.30 cores and 1Gi, quota 0.30 cores, "
        "throttled in 25% of the periods of the last turn" in lines
    )
    assert "cpu.quota 0.30 cores contention LS waits for CPU: 3.00" in lines
    assert "main: memory.max 1Gi batch_limits its limit" in lines
    assert "io.max 8:0 rbps=1, 8:16 rbps=1 io LS waits for I/O" in lines
    (told,) = [line for line in lines if line.startswith("told to go: ")]
    assert told.startswith(
        "told to go: default/p on n1, 60s ago: not evicted: a disruption budget protects it "
        "(blocked by a disruption budget: b); LS is short"
    )
    assert "available_bytes 2Gi memory that was available" in lines
    assert "be_limit_millis 0.40 CPU that BE as a whole could get" in lines
    assert "odd 1 of 2" in lines
    assert "created_at 1970-01-01T00:00:00+00:00 when the pod was made: of like pods the newest goes first" in lines
    assert ("agent", POD_ROUTE, "n1", {"uid": "uid-p"}) in heard.asked


def test_an_agent_that_is_away_takes_only_its_own_part_of_the_answer(command, twin, heard, out, err, rig):
    rig.server.put(be("p", 400, GI))
    rig.settle()
    twin.put(body(nodeName="large"))
    heard.answers[DEBUG] = kept(rig)
    heard.answers["agent", POD_ROUTE] = "the agent was not heard: no route"
    heard.answers["agent", "/debug/evictions"] = "the agent was not heard: no route"
    assert command("explain", "pod", "p") == 0
    assert "has the highest score" in out.text
    assert err.text.count("the agent was not heard") == 1
    assert "from the pod object and those who answered" in err.text


def test_a_pod_that_is_gone_is_explained_by_its_eviction(command, twin, heard, out, err):
    sent = decision(at=time.time() - 60, outcome="sent", drill="d1")
    heard.answers["agent", "/debug/evictions"] = Evictions(node="n1", decisions=(sent,))
    assert command("explain", "pod", "p") == 0
    assert out.text.startswith("default/p: not there any more; it was told to go:\n")
    assert "default/p on n1, 60s ago for drill d1: evicted: the API took it; LS is short" in out.text
    assert ("agent", "/debug/evictions", "", {"pod": "default/p"}) in heard.asked


def test_pod_that_is_not_there(command, twin, out, err):
    assert command("explain", "pod", "nobody") == 1
    assert "there is no pod default/nobody" in err.text


def test_plugin_that_is_drowned_is_named():
    rig = rig_with(1, 10)
    rig.server.put_node(node("quiet", labels={"quiet": "yes"}))
    rig.server.put_node(node("empty"))
    rig.server.put(made("there", {"cpu": "4", "memory": "8Gi"}, nodeName="quiet"))
    rig.server.put(made("p", {"cpu": "1", "memory": "1Gi"}))
    rig.settle()
    (cycle,) = kept(rig).cycles
    (said,) = drowned(cycle)
    assert said.startswith(
        "Quiet alone would choose quiet: 40 more there at weight 1; outweighed by NodeResourcesFit, "
    )
    assert said.endswith("the other way at weight 10")


def test_plugins_that_agree_drown_nobody():
    scores = [NodeScore(n, t, {"P": PluginScore(None, t, t)}) for n, t in (("a", 9), ("b", 3))]
    cycle = Cycle("d/p", "u", 1, 0.0, "chosen", "a", "", scores=scores, weights={"P": 1})
    assert drowned(cycle) == []
    assert drowned(msgspec.structs.replace(cycle, node="elsewhere")) == []


def explained(cycle=None, kept=None, **fields):
    fields = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, **fields}
    found = kept.of("u") if kept is not None else cycle
    return explain_pod(msgspec.convert(fields, Pod), SchedulersRecord(cycle=found), time.time())


def test_gated_and_ended_pods():
    gated = explained(spec={"schedulingGates": [{"name": "quota"}]})
    assert (gated.state, gated.actions) == ("gated", ["take off the gates: quota"])
    ended = explained(spec={"nodeName": "n"}, status={"phase": "Succeeded"})
    assert (ended.state, ended.why) == ("ended", "it was placed on n")


def test_choice_that_came_to_nothing_and_another_ones_placement():
    chosen = Cycle("d/p", "u", 2, 0.0, "chosen", "a", "", evaluated=4, feasible=1)
    assert "attempt 2 chose a, and then it was not bound there" in explained(chosen).remarks
    assert "another one placed it" in explained(chosen, spec={"nodeName": "b"}).remarks[0]
    assert explained(chosen, spec={"nodeName": "a"}).why == "a is the only one of 4 nodes that fits"


def test_record_of_another_pod_of_that_name_does_not_count():
    other = Cycle("d/p", "earlier", 1, 0.0, "unschedulable", "", "0/1 nodes are available")
    assert explained(kept=Scheduling([other], [other])).cycle is None


def test_waiting_pod_is_found_among_those_without_a_node():
    old = Cycle("d/p", "u", 3, 0.0, "unschedulable", "", "0/1 nodes are available: 1 full.")
    assert explained(kept=Scheduling([], [old])).why == "0/1 nodes are available: 1 full."


@pytest.mark.parametrize(
    ("plugin", "text", "words"),
    [
        ("NodeResourcesFit", "Insufficient cpu", "or let it run as best effort"),
        ("NodeResourcesFit", "Insufficient example.com/gpu", "ask for less example.com/gpu (asks for 3, free 2 on n)"),
        ("NodeResourcesFit", f"Insufficient {BATCH_CPU}", "wait until batch work ends"),
        ("BatchForecast", "forecast expired", "is the predictor running"),
        ("BatchForecast", "node(s) closed for batch work", "opens again by itself"),
        ("TaintToleration", "node(s) had untolerated taint {a: b}", "tolerate the taint"),
    ],
)
def test_advice(plugin, text, words):
    (said,) = advice([Refusal(plugin, 1, [CountedReason(text, 1, "n", "asks for 3, free 2")])])
    assert words in said


def test_advice_knows_only_plugins_that_there_are():
    from cli.advice import _BY_PLUGIN

    assert set(_BY_PLUGIN) <= set(default_registry().names())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"labels": {TIER_LABEL: "LS"}}, "label slacktide.io/tier is LS"),
        ({"labels": {"koordinator.sh/qosClass": "BE"}}, "label koordinator.sh/qosClass is BE"),
        ({}, "nothing says otherwise"),
    ],
)
def test_tier_comes_with_the_rule_that_made_it(fields, words):
    pod = msgspec.convert({"metadata": fields}, Pod)
    tier, why = tier_reason(pod)
    assert tier is tier_of(pod)
    assert words in why


def test_tier_by_priority_and_by_request():
    assert tier_reason(made("p", priority=5500))[1] == "priority 5500 is within 5000-5999"
    assert tier_reason(be("p"))[1] == "it asks for batch resources"
