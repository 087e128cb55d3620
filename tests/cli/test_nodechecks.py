"""Judgements of one node: what the API server says of it, and what its agent says itself."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from cli.asking import Told
from cli.clusterfacts import CheckedNode, Facts
from cli.nodechecks import judge_node
from slacktide.objects import Pod
from slacktide.status import AgentStatus, Usage
from standalone.state import find

NOW = 1_700_000_000.0
INFO = {"kubeletVersion": "v1.36.3", "kernelVersion": "6.12.0", "operatingSystem": "linux"}


def node(ready="True", *, cordoned=False, pressed=()):
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "no network"}]
    conditions += [{"type": name, "status": "True"} for name in pressed]
    status = {"nodeInfo": INFO, "conditions": conditions}
    return msgspec.convert(
        {"metadata": {"name": "n1"}, "spec": {"unschedulable": cordoned}, "status": status}, CheckedNode
    )


def agent_pod(ready="True"):
    labels = {"app.kubernetes.io/name": "slacktide", "app.kubernetes.io/component": "agent"}
    body = {
        "metadata": {"name": "slacktide-agent-x", "namespace": "s", "labels": labels},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }
    return msgspec.convert(body, Pod)


def status(ago=0.5, **fields):
    nothing = Usage()
    return AgentStatus(
        node="n1",
        version="0.1.0",
        at=NOW - ago,
        turn=9,
        turn_seconds=0.01,
        line="LS is calm",
        capacity=nothing,
        node_usage=nothing,
        tiers={},
        pods=[],
        **fields,
    )


def judged(of=None, told=None, pods=None, **fields):
    facts = {"version": "v1.36.3", "now": NOW, "here": NOW + 0.5, **fields}
    facts = Facts(namespace="s", nodes=(of or node(),), pods=(agent_pod(),) if pods is None else pods, **facts)
    found = {}
    for one in judge_node(facts, told or Told(who="agent", value=status())):
        found.setdefault(one.name, []).append(one)
        assert one.verdict == "ok" or one.remedy, one
    return found


def test_a_sound_node():
    found = judged()
    assert all(one.verdict == "ok" for name, of in found.items() if name != "clocks of nodes" for one in of)
    assert found["agent says"][0].evidence == "LS is calm"


@pytest.mark.parametrize(
    ("of", "verdict", "evidence"),
    [
        (node("False"), "problem", "not Ready: KubeletNotReady: no network"),
        (node("Unknown"), "problem", "not Ready"),
        (node(cordoned=True), "warning", "cordoned"),
        (node(), "ok", "takes pods"),
    ],
)
def test_whether_it_takes_pods(of, verdict, evidence):
    (one,) = judged(of)["node"]
    assert one.verdict == verdict
    assert evidence in one.evidence


def test_pressure_that_the_kubelet_sees():
    found = judged(node(pressed=["MemoryPressure"]))["node"]
    assert [(one.verdict, one.evidence) for one in found] == [
        ("ok", "Ready, takes pods"),
        ("problem", "MemoryPressure"),
    ]


def test_a_node_without_an_agent_and_one_whose_agent_is_not_ready():
    assert judged(pods=())["agent"][0].verdict == "problem"
    assert judged(pods=(agent_pod("False"),))["agent"][0].verdict == "problem"


def test_an_agent_that_is_not_heard_is_unknown_with_what_was_tried():
    told = Told(who="agent", value=None, problem="you may not get pods/proxy")
    (one,) = judged(told=told)["agent says"]
    assert (one.verdict, one.evidence) == ("unknown", "you may not get pods/proxy")


def test_an_agent_whose_loop_stands():
    (one,) = judged(told=Told(who="agent", value=status(ago=40.0)))["agent says"]
    assert (one.verdict, one.evidence) == ("problem", "last turn 40 s ago")


def test_what_the_agent_skips_and_that_it_only_observes():
    told = Told(who="agent", value=status(skipped={"psi": "cgroup v1 has none"}, observe_only=True))
    found = judged(told=told)
    assert [(one.verdict, one.evidence) for one in found["agent skips psi"]] == [("warning", "cgroup v1 has none")]
    assert "only observes" in found["agent"][1].evidence


def test_this_machine_is_the_only_node_there_is(command, app, root, out, err):
    report = {"node": "lab", "phase": "ready", "components": [], "pid": 1, "start_time": 1, "updated": time.time()}
    with open(find(root).supervisor_file, "w") as file:
        json.dump(report, file)
    assert command("doctor", "--node", "lap") == 1
    assert "no node 'lap'; do you mean lab?" in err.text


def test_a_bundle_is_not_of_one_node(command, app, out, err):
    app.kubectl = True
    assert command("doctor", "--node", "n1", "--bundle", "x.tar.gz") == 2
    assert "leave out --node" in err.text
