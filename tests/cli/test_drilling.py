"""Which nodes of a fleet are drilled, one after another, and what becomes of the exit code; nodes by script."""

from __future__ import annotations

import contextlib
import json
import random

import grpc
import pytest

from cli import drilling
from cli.app import App
from cli.drillfacts import Facts, NodeFacts
from cli.drilling import Drills, Wish, run
from cli.drillkinds import Kind
from cli.exits import REFUSED, USAGE, CommandError
from cli.session import StopSignals
from slacktide.transport import Connection
from slacktide.v1 import drill_pb2 as pb
from tests.cli.fake_agent import FakeAgent, good_result, serving

NODES = ("a", "b", "c", "d")


class Fleet:
    """A site of four nodes, each with an agent of its own; `records` keeps what it is given."""

    in_cluster = True

    def __init__(self, directory):
        self.agents = {name: FakeAgent() for name in NODES}
        self.kept = []
        self.places = []
        self.away = {}
        self.troubles = {}
        self.record_error = None
        self.broken = ""
        self._directory = directory

    @contextlib.contextmanager
    def listening(self):
        with contextlib.ExitStack() as stack:
            for name, agent in self.agents.items():
                stack.enter_context(serving(agent, f"unix:{self._directory}/{name}"))
            yield self

    @property
    def records(self):
        return self

    def put(self, report):
        if self.record_error:
            raise self.record_error
        self.kept.append(report)

    def nodes(self, name, selector):
        return [name] if name else list(NODES)

    def connect(self, node, seconds):
        if node in self.away:
            raise self.away[node]
        return Connection(grpc.insecure_channel(f"unix:{self._directory}/{node}"))

    def facts(self, order, told):
        node = NodeFacts(name=order.node, open_for_be=True, troubles=self.troubles.get(order.node, ()))
        return Facts(node=node, others_open=3)

    @contextlib.contextmanager
    def place(self, order, say):
        self.places.append(order.node)
        yield lambda: self.broken


@pytest.fixture
def fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("f")).listening() as made:
        yield made


@pytest.fixture
def app():
    return App(kubectl=True, stop_signals=StopSignals)


def wish(**fields):
    known = {"node": None, "selector": "pool=x", "pick": 1, "kind": Kind.PRESSURE, "seconds": 1.0}
    known |= {"load_percent": None, "victims_max": 0, "dry_run": False, "yes": True, "reason": "weekly"}
    return Wish(**{**known, "report_file": "", "patience": None, "last_node": False, **fields})


def drilled(app, fleet, **fields):
    return list(Drills(app, fleet, wish(**fields), random.Random(7)).reports())


def test_so_many_as_were_picked_by_chance(app, fleet):
    reports = drilled(app, fleet, pick=2)
    assert len({one.node for one in reports}) == 2
    assert fleet.places == [one.node for one in reports]
    picked = {drilled(app, fleet)[0].node}
    for seed in range(20):
        picked |= {one.node for one in Drills(app, fleet, wish(), random.Random(seed)).reports()}
    assert picked == set(NODES)


def test_nodes_that_refuse_are_passed_over(app, fleet):
    for name in ("a", "b"):
        fleet.agents[name].plan.refusals.append("LS is short")
    fleet.away["c"] = CommandError("no agent runs on node 'c'", REFUSED)
    reports = drilled(app, fleet, pick=2)
    assert [one.node for one in reports if one.id] == ["d"]
    assert {one.node: one.message for one in reports if not one.id} == {
        "a": "LS is short",
        "b": "LS is short",
        "c": "no agent runs on node 'c'",
    }


def test_it_stops_after_one_that_fails(app, fleet):
    for agent in fleet.agents.values():
        agent.result = good_result(misses=["detected within 0.5 s: took 3.00 s"])
    assert len(drilled(app, fleet, pick=3)) == 1


def test_what_is_not_known_of_a_drill_is_a_mistake_of_the_caller(app, fleet):
    fleet.away["a"] = CommandError("--account: expected NAMESPACE/NAME", USAGE)
    with pytest.raises(CommandError, match="expected NAMESPACE/NAME"):
        drilled(app, fleet, node="a")


def test_begin_and_end_are_recorded_and_a_record_that_cannot_be_kept_stops_nobody(app, fleet, capsys):
    (report,) = drilled(app, fleet, node="b")
    assert [(one.phase, one.id) for one in fleet.kept] == [("running", report.id), ("recovered", report.id)]
    fleet.record_error = CommandError("you may not update configmaps", REFUSED)
    (report,) = drilled(app, fleet, node="b")
    assert report.passed
    assert capsys.readouterr().err.count("this drill is not recorded: you may not update configmaps") >= 1


def test_a_drill_whose_place_is_lost_is_ended(app, fleet):
    fleet.agents["a"].hold = True
    fleet.broken = "somebody else has taken the lease"
    (report,) = drilled(app, fleet, node="a")
    assert fleet.agents["a"].aborts == 1
    assert (report.phase, report.restored) == ("aborted", "the next beat restores")


CODES = {
    "all pass": ((), {}, 0),
    "one passes, others refuse": (("a", "b"), {}, 0),
    "all refuse": (NODES, {}, 3),
    "one fails": ((), {"misses": ["late"]}, 1),
}


@pytest.mark.parametrize("case", CODES)
def test_exit_codes(app, fleet, monkeypatch, capsys, case):
    refusing, result, code = CODES[case]
    for name, agent in fleet.agents.items():
        agent.result = good_result(**result)
        if name in refusing:
            agent.plan.refusals.append("LS is short")
    monkeypatch.setattr(drilling, "site_of", lambda *_: contextlib.nullcontext(fleet))
    app.out.format = "json"
    assert run(app, wish(pick=4), reach=None) == code
    found = json.loads(capsys.readouterr().out)["drills"]
    assert sum(one["phase"] == "refused" for one in found) == len(refusing)


def test_an_order_says_what_was_asked_for(app, fleet):
    drilled(app, fleet, node="a", kind=Kind.STALE, seconds=2.5, victims_max=3, dry_run=True)
    (order,) = fleet.agents["a"].orders
    assert (order.node, order.pressure, order.duration_millis) == ("a", pb.PRESSURE_KIND_STALE, 2500)
    assert (order.victim_budget, order.dry_run, order.reason) == (3, True, "weekly")
