"""`slacktide explain pod`: why a pod is where it is, or nowhere, and what can be done."""

import json
import time

import msgspec
import pytest

from cli.advice import advice
from cli.cycles import CountedReason, Cycle, NodeScore, PluginScore, Refusal, Scheduling, drowned
from cli.podexplained import explain_pod
from scheduler_plugins.plugins import default_registry
from slacktide.names import BATCH_CPU, TIER_LABEL
from slacktide.objects import Pod
from slacktide.tier import tier_of, tier_reason
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


@pytest.fixture
def rig():
    rig = Rig()
    for name, cpu in (("small", 500), ("large", 1200)):
        rig.server.put_node(offering(name, forecast(cpu, 8 * GI, at=rig.wall.now)))
    rig.server.put_node(node("cordoned", unschedulable=True))
    return rig


def test_pending_pod_says_who_refused_how_many_and_the_nearest_with_numbers(command, twin, app, out, err, rig):
    rig.server.put(be("p", 1500, GI))
    rig.settle()
    twin.put(body())
    app.scheduling = lambda _: kept(rig)
    assert command("explain", "pod", "p") == 0
    lines = [" ".join(line.split()) for line in out.text.splitlines()]
    assert lines[0].startswith("default/p: pending; 0/3 nodes are available: ")
    assert lines[1].startswith("tier BE: label slacktide.io/tier is be; scheduler ")
    assert lines[2].startswith("from the scheduler's record of attempt 1, ")
    assert f"BatchForecast 2 no forecast room for {BATCH_CPU} large needs 1500m, room 1200m" in lines
    assert any(line.startswith("NodeUnschedulable 1 node(s) were unschedulable cordoned") for line in lines)
    assert any(line.startswith(f"-> ask for less {BATCH_CPU} (needs 1500m, room 1200m on large)") for line in lines)
    assert "-> nodes are cordoned: `kubectl uncordon`" in lines


def test_json_has_who_refused_how_many(command, twin, app, out, err, rig):
    rig.server.put(be("p", 1500, GI))
    rig.settle()
    twin.put(body())
    app.scheduling = lambda _: kept(rig)
    assert command("explain", "pod", "default/p", "-o", "json") == 0
    said = json.loads(out.text)
    assert {one["plugin"]: one["nodes"] for one in said["blocking"]} == {"BatchForecast": 2, "NodeUnschedulable": 1}
    assert (said["tier"], said["state"]) == ("BE", "pending")
    assert said["actions"]


def test_placed_pod_shows_the_score_table_of_the_chosen_and_the_next(command, twin, app, out, err, rig):
    rig.server.put(be("p", 400, GI))
    rig.settle()
    twin.put(body(nodeName="large"))
    app.scheduling = lambda _: kept(rig)
    assert command("explain", "pod", "p", "--nodes", "2") == 0
    text = out.text
    assert "placed on large; large has the highest score of the 2 nodes that fit, of 3" in text
    header = next(line.split() for line in text.splitlines() if line.startswith("PLUGIN"))
    assert header == ["PLUGIN", "WEIGHT", "large", "small", "DIFFERENCE"]
    row = next(line.split() for line in text.splitlines() if line.startswith("BatchForecast"))
    raw, normalised, weighted = row[2::2][:3]
    assert int(float(raw)) == int(normalised)
    assert int(weighted) == int(normalised) * int(row[1])


def test_record_that_is_gone_is_said_and_the_condition_stands_in(command, twin, app, out, err):
    twin.put(body())
    twin.unschedulable("p", SERVER_SAYS)
    app.scheduling = lambda _: Scheduling()
    assert command("explain", "pod", "p") == 0
    assert SERVER_SAYS in out.text
    assert "the scheduler's record of it is gone" in out.text


def test_scheduler_that_does_not_answer(command, twin, app, out, err):
    twin.put(body())
    app.scheduling = lambda _: None
    assert command("explain", "pod", "p") == 0
    assert "it was not tried yet" in out.text
    assert "the scheduler does not answer" in out.text


def test_no_socket_is_no_answer(command, twin, out, err):
    twin.put(body(nodeName="n1"))
    assert command("explain", "pod", "p") == 0
    assert "the scheduler does not answer" in out.text


def test_another_cluster_is_asked_for_the_pod_alone(command, twin, app, out, err):
    twin.put(body())
    twin.unschedulable("p", SERVER_SAYS)
    asked = []
    app.reach = lambda settings: asked.append(settings.kubeconfig) or twin
    app.scheduling = lambda _: pytest.fail("the local scheduler knows nothing of that cluster")
    assert command("explain", "pod", "p", "--kubeconfig", "their.yaml") == 0
    assert asked == ["their.yaml"]
    assert SERVER_SAYS in out.text
    assert "cannot be asked from here" in out.text


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
    known = kept or (None if cycle is None else Scheduling([cycle]))
    return explain_pod(msgspec.convert(fields, Pod), known, time.time(), "silent")


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
