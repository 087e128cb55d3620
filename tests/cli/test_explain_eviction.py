"""`slacktide explain eviction`: who had to go and why, from the agents' audits, their file, or what events say."""

from __future__ import annotations

import json
import os
import time

import pytest

from agent.act.audit import Audit, AuditLine
from agent.eviction import Outcome, Way
from cli.evictionexplained import OUTCOMES
from slacktide.cluster.errors import Forbidden
from slacktide.explaining import EVICTIONS_ROUTE, Evictions
from standalone.state import find
from tests.cli.heard import Heard
from tests.cli.test_explain_pod import body, decision

AGENT = ("agent", EVICTIONS_ROUTE)


@pytest.fixture
def heard(app):
    heard = Heard()
    app.components = lambda _app, _client, _namespace: heard
    return heard


@pytest.fixture
def cluster(app, twin):
    app.reach = lambda _: twin
    return ("--context", "c")


def lines(out):
    return [" ".join(line.split()) for line in out.text.splitlines()]


def event(name="p", reason="SlacktideEvicted", node="n7", at="2026-11-30T10:00:00Z"):
    return {
        "metadata": {"name": f"{name}.{reason}.{node}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": name},
        "type": "Warning",
        "reason": reason,
        "message": "Evicted for the pods that must answer: memory",
        "source": {"component": "slacktide-agent", "host": node},
        "lastTimestamp": at,
    }


def test_all_decisions_of_this_machine_newest_first_with_the_budget(command, heard, out, err):
    now = time.time()
    found = (
        decision("late", "u2", now - 10, "sent"),
        decision("early", "u1", now - 100, "blocked", detail="by a budget"),
    )
    heard.answers[AGENT] = Evictions(
        node="n1",
        decisions=found,
        since=now - 3600,
        evicted_in_hour=1,
        evictions_per_hour=12,
        killed_in_hour=1,
        kills_per_hour=6,
        lost=2,
        unreadable=1,
    )
    assert command("explain", "eviction") == 0
    said = lines(out)
    assert said[0] == "AGE NODE POD WAY OUTCOME REASON"
    assert said[1].startswith("10s n1 default/late evict sent LS is short")
    assert said[2].startswith("100s n1 default/early evict blocked: by a budget LS is short")
    assert "* n1: 1 of 12 evictions of this hour are used" in said
    assert "* n1: 1 of 6 kills of this hour are used" in said
    assert "* n1: the disk refused 2 lines of the record since the agent started" in said
    assert "* n1: 1 lines of the record cannot be read" in said


def test_of_one_pod_the_numbers_that_decided_are_told(command, heard, out, err):
    heard.answers[AGENT] = Evictions(node="n1", decisions=(decision(at=time.time() - 5, outcome="sent"),))
    assert command("explain", "eviction", "p") == 0
    said = lines(out)
    assert said[0].startswith("default/p on n1, 5s ago: evicted: the API took it; LS is short")
    assert "priority 5500 of the pod: the lowest goes first" in said
    assert heard.asked == [("agent", EVICTIONS_ROUTE, "", {"pod": "default/p"})]


def test_a_record_without_the_pod_says_how_far_back_it_goes(command, heard, out, err):
    heard.answers[AGENT] = Evictions(node="n1", decisions=(), since=time.time() - 100)
    assert command("explain", "eviction", "team/p") == 0
    assert lines(out) == ["n1: team/p was not told to go by the agent; its record goes back 100s"]
    heard.answers[AGENT] = Evictions(node="n1", decisions=())
    assert command("explain", "eviction") == 0
    assert lines(out)[-1] == "n1: nobody was told to go by the agent; its record is empty"


def test_where_the_agent_is_down_its_file_tells(command, heard, out, err, root):
    folder = find(root).folder("agent")
    os.makedirs(folder, exist_ok=True)
    Audit(folder, 1 << 20).append(
        AuditLine(
            at=1.0,
            wall=time.time() - 50,
            boot_id="b",
            namespace="default",
            name="p",
            uid="u",
            way=Way.KILL,
            outcome="killed",
            reason="1.2 % of memory is available",
            numbers={"emergency_percent": "2"},
        )
    )
    assert command("explain", "eviction", "p") == 0
    said = lines(out)
    assert said[0] == "default/p, 50s ago: its processes were killed; 1.2 % of memory is available"
    assert "emergency_percent 2 a kill comes with less memory available than this" in said
    assert "the agent does not answer" in err.text


def test_in_a_cluster_events_and_the_pod_say_whom_to_ask(command, heard, twin, cluster, out, err):
    twin.put(body("p", nodeName="n2"))
    twin.events = [event(), event(reason="Pulled", node="n9"), event("other", node="n8"), event(node="n7")]
    now = time.time()

    def answer(node, _query):
        return Evictions(
            node=node, decisions=(decision(at=now - 5, outcome="sent"),) if node == "n7" else (), since=now
        )

    heard.answers[AGENT] = answer
    assert command("explain", "eviction", "p", *cluster) == 0
    assert [one[2] for one in heard.asked] == ["n2", "n7"]
    said = lines(out)
    assert said[0].startswith("default/p on n7, 5s ago: evicted: the API took it")
    assert "n2: default/p was not told to go by the agent; its record goes back 0s" in said


def test_in_a_cluster_one_node_can_be_named(command, heard, twin, cluster, out, err):
    heard.answers[AGENT] = Evictions(node="n3", decisions=())
    assert command("explain", "eviction", "--node", "n3", *cluster) == 0
    assert [one[2] for one in heard.asked] == ["n3"]


def test_where_no_agent_can_be_asked_the_events_stand_in(command, heard, twin, cluster, out, err):
    twin.events = [event(), event(reason="SlacktideEvictionBlocked", at="2026-11-30T09:00:00Z")]
    assert command("explain", "eviction", "p", *cluster) == 0
    said = lines(out)
    assert said[0] == "what the cluster's events say:"
    assert "SlacktideEvicted pod/default/p slacktide-agent Evicted for the pods that must answer: memory" in said[2]
    assert "the agent does not answer" in err.text


def test_where_nothing_is_known_it_is_said_and_what_to_do(command, heard, twin, cluster, out, err):
    assert command("explain", "eviction", "p", *cluster) == 0
    assert out.text == ""
    assert "no event tells of it; the API server forgets them after an hour: name the node with --node" in err.text
    assert command("explain", "eviction", "p", *cluster, "-o", "json") == 0
    assert json.loads(out.text)["nodes"] == []


def test_a_right_that_is_missing_is_named(command, heard, twin, cluster, out, err, monkeypatch):
    text = 'events is forbidden: User "jane" cannot list resource "events" in API group "" in the namespace "default"'

    def refuse(*_args, **_kwargs):
        raise Forbidden(403, "Forbidden", text)

    monkeypatch.setattr(twin, "list", refuse)
    monkeypatch.setattr(twin, "get", refuse)
    assert command("explain", "eviction", "p", *cluster) == 0
    assert (
        "events cannot be read: jane may not list events in namespace default: a Role in namespace default" in err.text
    )
    denied = 'nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope'
    text = denied
    assert command("explain", "node", "n1", *cluster) == 1
    assert 'jane may not list nodes: a ClusterRole needs the rule {apiGroups: [""], resources: ["nodes"]' in err.text


def test_an_unknown_pod_stays_unknown(command, heard, out, err):
    heard.answers[AGENT] = Evictions(node="n1", decisions=())
    assert command("explain", "pod", "nobody") == 1
    assert "there is no pod default/nobody" in err.text


def test_each_outcome_has_words():
    assert {outcome.value for outcome in Outcome} <= set(OUTCOMES)
