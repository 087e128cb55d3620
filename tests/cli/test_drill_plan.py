"""What speaks against a drill, by what node, API and agent say. On a real API server: tests/deploy/test_drills.py."""

from __future__ import annotations

import pytest

from cli.drillfacts import BudgetFacts, Facts, budgets_of, find, needed, node_facts
from cli.drillkinds import Kind
from cli.drillorder import Order, kind_name, phase_name
from cli.drillplan import Told, judge, lines
from cli.drillreport import Target, Victim
from cli.exits import REFUSED, CommandError
from slacktide import forecast
from slacktide.cluster import PDBS, Listing
from slacktide.cluster.errors import Forbidden, NotFound, Unreachable
from slacktide.cluster.kinds import (
    LabelSelector,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from slacktide.forecast import Amount, Forecast, Terms
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node, NodeCondition, NodeSpec, NodeStatus, ObjectMeta, Pod

NOW = 1_000_000.0
AMOUNT = Amount(cpu_millis=2500, memory_bytes=1 << 30)
TERMS = Terms(capacity=AMOUNT, reserve=AMOUNT, peak=AMOUNT, now=AMOUNT, sold=AMOUNT)


def node(name="n1", ready="True", annotation=None, age=0.0, closed="", **fields):
    """A node that sells, unless it is said otherwise."""
    if annotation is None:
        annotation = forecast.encode(
            Forecast(at=NOW - age, ttl_seconds=120.0, peak=AMOUNT, reclaimable=AMOUNT, terms=TERMS, closed=closed)
        )
    notes = {FORECAST_ANNOTATION: annotation} if annotation else {}
    conditions = [NodeCondition(type="Ready", status=ready, message="kubelet is stopped" if ready != "True" else "")]
    conditions += [NodeCondition(type=one, status="True") for one in fields.pop("pressures", ())]
    meta = ObjectMeta(name=name, annotations=notes, **fields.pop("meta", {}))
    return Node(metadata=meta, spec=NodeSpec(**fields), status=NodeStatus(conditions=conditions))


def order(**fields):
    return Order(**{"node": "n1", "kind": Kind.PRESSURE, "duration_seconds": 10.0, **fields})


GOOD = Facts(node=node_facts(node(), NOW), others_open=3)


def judged(asked=None, told=None, facts=GOOD, *, last_node=False, in_cluster=True):
    return judge(asked or order(), told or Told(), facts, last_node=last_node, in_cluster=in_cluster)


@pytest.mark.parametrize(
    ("made", "trouble"),
    [
        (node(ready="False"), "not ready: kubelet is stopped"),
        (node(ready="Unknown"), "not ready"),
        (Node(metadata=ObjectMeta(name="n1")), "not ready"),
        (node(unschedulable=True), "cordoned"),
        (node(meta={"deletion_timestamp": "2026-01-01T00:00:00Z"}), "deleted"),
        (node(pressures=("MemoryPressure",)), "MemoryPressure"),
        (node(pressures=("DiskPressure",)), "DiskPressure"),
    ],
)
def test_a_node_in_trouble_is_not_drilled(made, trouble):
    found = node_facts(made, NOW)
    assert not found.open_for_be
    (refusal,) = judged(facts=Facts(node=found, others_open=3)).refusals
    assert trouble in refusal
    # Not even where nobody else could take its work, which is another matter.
    assert judged(facts=Facts(node=found), last_node=True).refusals


@pytest.mark.parametrize(
    ("made", "is_open", "word"),
    [
        (node(), True, "2.50 CPU reclaimable, forecast fresh"),
        (node(age=200.0), True, "forecast ageing"),
        (node(age=1000.0), False, "expired"),
        (node(closed="memory is short"), False, "nothing is sold there (closed: memory is short)"),
        (node(annotation=""), False, "no forecast"),
        (node(annotation="{}"), False, "cannot be read"),
    ],
)
def test_where_best_effort_work_may_go(made, is_open, word):
    found = node_facts(made, NOW)
    assert found.open_for_be is is_open
    assert word in found.state


def test_the_only_open_node_is_drilled_on_request_alone():
    alone = Facts(node=GOOD.node, others_open=0)
    (refusal,) = judged(facts=alone).refusals
    assert "n1 is the only node where best-effort work may go: with --last-node" in refusal
    asked = judged(facts=alone, last_node=True)
    assert asked.refusals == ()
    assert "nowhere else to go" in asked.remarks[0]
    # One machine is always the only one.
    here = judged(facts=alone, in_cluster=False)
    assert here.refusals == ()
    assert "nowhere else to go" in here.remarks[0]
    closed = Facts(node=node_facts(node(closed="x"), NOW), others_open=0)
    assert judged(facts=closed).refusals == ()


VICTIMS = (Victim(namespace="team", name="a", uid="ua"), Victim(namespace="team", name="b", uid="ub"))


def test_an_unknown_node_is_said_with_the_nearest():
    with pytest.raises(CommandError, match=r"no node 'worker-77'; nearest known: worker-7"):
        find([node("worker-7"), node("db-1")], "worker-77")


def budget(allowed=0, selector=None, counted=True, name="kept"):
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="team", generation=1),
        spec=PodDisruptionBudgetSpec(selector=selector or LabelSelector(match_labels={"app": "x"})),
        status=PodDisruptionBudgetStatus(observed_generation=int(counted), disruptions_allowed=allowed),
    )


class Api:
    """Budgets and pods in memory; both pods have the label app=x."""

    def __init__(self, *budgets, error=None):
        self._budgets, self._error = budgets, error

    def get(self, kind, name, namespace):
        if name == "gone":
            raise NotFound(404, "NotFound", "x")
        return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=f"u{name}", labels={"app": "x"}))

    def list(self, kind, namespace):
        assert (kind, namespace) == (PDBS, "team")
        if self._error:
            raise self._error
        return Listing(self._budgets, "1")


def refusals(*budgets, asked=None, victims=VICTIMS):
    facts = Facts(node=GOOD.node, others_open=3, budgets=budgets_of(Api(*budgets), victims))
    plan = judged(asked or order(victims_max=2), Told(victims=victims), facts)
    return plan.refusals, plan.remarks


def test_a_budget_without_room_for_the_expected_victims_refuses():
    ((refusal,), _) = refusals(budget(allowed=1))
    assert refusal == "budget team/kept lets 1 of its pods go now, 2 would: team/a, team/b"
    assert refusals(budget(allowed=2)) == ((), ())
    ((refusal,), _) = refusals(budget(counted=False, allowed=5))
    assert "has not been counted yet" in refusal


def test_whom_a_budget_is_about():
    assert refusals(budget(selector=LabelSelector(match_labels={"app": "y"})))[0] == ()
    # policy/v1: an empty selector is about the whole namespace.
    assert refusals(budget(selector=LabelSelector()))[0]
    expression = {"key": "app", "operator": "In", "values": ["x"]}
    assert refusals(budget(selector=LabelSelector(match_expressions=[expression])))[0]
    # Pods that are gone, or others of the same name, need no room.
    others = (Victim(namespace="team", name="gone"), Victim(namespace="team", name="a", uid="of-before"))
    assert refusals(budget(), victims=others)[0] == ()
    none = PodDisruptionBudget(metadata=ObjectMeta(name="n", namespace="team"))
    assert refusals(none)[0] == ()


def test_several_budgets_for_one_pod_are_never_let_go_by_the_api():
    (found, _) = refusals(budget(allowed=5), budget(allowed=5, name="other"))
    assert any("several budgets (team/kept, team/other)" in one for one in found)


@pytest.mark.parametrize("asked", [order(victims_max=2, dry_run=True), order(victims_max=0)])
def test_where_nobody_is_evicted_a_budget_is_remarked_on_alone(asked):
    (found, (remark,)) = refusals(budget(), asked=asked)
    assert found == ()
    assert "nobody is evicted this time" in remark


def test_what_is_missing_of_rights_is_said():
    forbidden = Forbidden(403, "Forbidden", 'poddisruptionbudgets.policy is forbidden: User "eve" cannot list it')
    with pytest.raises(CommandError, match="disruption budgets the expected victims fall under") as caught:
        budgets_of(Api(error=forbidden), VICTIMS)
    assert caught.value.code == REFUSED
    with pytest.raises(CommandError, match="it is asked to see"), needed("to see"):
        raise Unreachable("connection refused")
    # An API server of one machine may know no budgets.
    assert budgets_of(Api(error=NotFound(404, "NotFound", "no such resource")), VICTIMS) == ()


def test_the_agents_own_refusals_and_an_old_agent():
    assert judged(told=Told(refusals=("LS is short",))).refusals == ("LS is short",)
    old = judged(order(victims_max=1), Told(knows=False))
    assert "too old to name whom it would evict" in old.refusals[0]
    assert judged(order(victims_max=1, dry_run=True), Told(knows=False)).refusals == ()


@pytest.mark.parametrize(("skew", "words"), [(600_000, "600.0 s ahead of"), (-90_000, "90.0 s behind"), (500, "")])
def test_clocks(skew, words):
    remarks = judged(told=Told(skew_millis=skew)).remarks
    assert (words in remarks[0]) if words else not remarks


def test_the_plan_in_words():
    told = Told(
        victims=VICTIMS[:1],
        expectations=("contention: BE is cut",),
        targets=(Target(step="evicted", within_millis=60_000),),
    )
    budgets = (BudgetFacts(name="team/kept", victims=("team/a",), allowed=1),)
    facts = Facts(node=GOOD.node, others_open=3, budgets=budgets)
    asked = order(victims_max=1, load_percent=30)
    assert lines(judged(asked, told, facts)) == [
        "Plan: pressure on n1 for 10 s, burning 30 % of idle CPU",
        "  node      ready, 2.50 CPU reclaimable, forecast fresh",
        "  victim    team/a:  [budget team/kept: 1 may go]",
        "  limit     at most 1 evicted",
        "  expected  contention: BE is cut",
        "  target    evicted within 60 s",
    ]


def test_what_a_newer_agent_says_is_shown_as_it_is():
    assert (kind_name(2), kind_name(7), kind_name(99)) == ("pressure", "stale", "99")
    assert (phase_name(6), phase_name(99)) == ("recovered", "99")
