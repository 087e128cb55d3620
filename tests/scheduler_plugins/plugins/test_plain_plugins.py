"""NodeName, NodeUnschedulable, SchedulingGates, PrioritySort, DefaultBinder: the rows of the stock tables."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.points import POINTS
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, failed
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.default_binder import DefaultBinder
from scheduler_plugins.plugins.node_name import NodeName
from scheduler_plugins.plugins.node_unschedulable import NodeUnschedulable
from scheduler_plugins.plugins.priority_sort import PrioritySort
from scheduler_plugins.plugins.scheduling_gates import SchedulingGates
from tests.scheduler_plugins.build import handle, info, node
from tests.scheduler_plugins.plugins.cases import FITS, NEVER, Judged, hint

TAINTS = ClusterEvent(events.NODE, Action.UPDATE_NODE_TAINT)
CORDONED = node("n", unschedulable=True)
CORDON = {"key": "node.kubernetes.io/unschedulable"}

STOCK_POINTS = {
    "SchedulingGates": ["preEnqueue"],
    "PrioritySort": ["queueSort"],
    "NodeUnschedulable": ["filter"],
    "NodeName": ["filter"],
    "TaintToleration": ["filter", "preScore", "score"],
    "NodeAffinity": ["preFilter", "filter", "preScore", "score"],
    "NodePorts": ["preFilter", "filter"],
    "NodeResourcesFit": ["preFilter", "filter", "preScore", "score"],
    "NodeResourcesBalancedAllocation": ["preScore", "score"],
    "ImageLocality": ["score"],
    "DefaultBinder": ["bind"],
}


@pytest.mark.parametrize("name", STOCK_POINTS)
def test_a_profile_of_the_stock_scheduler_may_name_each_plugin_where_the_stock_one_takes_part(name: str) -> None:
    plugin = default_registry().build(name, {}, handle())
    assert [point for point in STOCK_POINTS[name] if not isinstance(plugin, POINTS[point])] == []


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        (CORDON | {"operator": "Exists"}, True),
        (CORDON | {"operator": "Exists", "effect": "NoSchedule"}, True),
        (CORDON | {"operator": "Exists", "effect": "NoExecute"}, False),
        (CORDON | {"value": "yes"}, False),
        ({"operator": "Exists"}, True),
    ],
)
def test_cordoned_node_takes_only_pods_that_tolerate_it(toleration: Any, fits: bool) -> None:
    who = info("p", tolerations=[toleration] if toleration else [])
    judged = Judged(NodeUnschedulable(), who, [CORDONED, node("m")])
    assert judged.codes() == {"n": FITS if fits else NEVER, "m": FITS}
    asked_alone = judged.plugin.filter_node(CycleState(), who, judged.snapshot, judged.snapshot.index["n"])
    assert asked_alone.ok is fits


def test_uncordon_and_new_schedulable_nodes_wake() -> None:
    plugin = NodeUnschedulable()
    assert hint(plugin, info("p"), TAINTS, CORDONED, node("n")) is Hint.QUEUE
    assert hint(plugin, info("p"), TAINTS, node("n"), CORDONED) is Hint.SKIP
    assert hint(plugin, info("p"), TAINTS, node("n"), node("n")) is Hint.SKIP
    assert hint(plugin, info("p"), events.NODE_ADD, None, node("n")) is Hint.QUEUE
    assert hint(plugin, info("p"), events.NODE_ADD, None, CORDONED) is Hint.SKIP


def test_toleration_of_the_cordon_wakes() -> None:
    plugin, own = NodeUnschedulable(), ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
    tolerant = info("p", tolerations=[CORDON | {"operator": "Exists"}])
    assert hint(plugin, info("p"), own, info("p"), tolerant) is Hint.QUEUE
    assert hint(plugin, info("p"), own, info("p"), info("p", tolerations=[{"key": "x"}])) is Hint.SKIP
    assert hint(plugin, info("q"), own, info("p"), tolerant) is Hint.SKIP


@pytest.mark.parametrize(("named", "fits"), [("n", True), ("m", False), ("gone", False), ("", True)])
def test_named_node_only(named: str, fits: bool) -> None:
    who = info("p", **({"nodeName": named} if named else {}))
    judged = Judged(NodeName(), who, [node("n"), node("m")])
    assert judged.codes()["n"] is (FITS if fits else NEVER)
    assert judged.plugin.filter_node(CycleState(), who, judged.snapshot, judged.snapshot.index["n"]).ok is fits


def test_the_named_node_wakes_when_it_comes() -> None:
    who, plugin = info("p", nodeName="n"), NodeName()
    assert hint(plugin, who, events.NODE_ADD, None, node("n")) is Hint.QUEUE
    assert hint(plugin, who, events.NODE_ADD, None, node("m")) is Hint.SKIP
    assert hint(plugin, who, TAINTS, node("n"), node("n")) is Hint.SKIP


def test_gates_hold_and_only_their_end_wakes() -> None:
    plugin, gated = SchedulingGates(), info("p", schedulingGates=[{"name": "a"}, {"name": "b"}])
    assert plugin.pre_enqueue(gated).message == "waiting for scheduling gates: a, b"
    assert plugin.pre_enqueue(info("p")).ok
    gone = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_GATES_ELIMINATED)
    assert hint(plugin, gated, gone, gated, info("p")) is Hint.QUEUE
    assert hint(plugin, gated, gone, gated, gated) is Hint.SKIP
    assert hint(plugin, gated, gone, info("q"), info("q")) is Hint.SKIP
    assert hint(plugin, gated, events.NODE_ADD, None, node("n")) is None


def test_higher_priority_first_then_who_came_first() -> None:
    def waiting(name: str, priority: int | None, timestamp: float) -> Any:
        spec = {} if priority is None else {"priority": priority}
        return SimpleNamespace(info=info(name, **spec), timestamp=timestamp)

    pods = [waiting("late", 5, 2.0), waiting("plain", None, 0.0), waiting("early", 5, 1.0), waiting("low", -1, 0.0)]
    ordered = sorted(pods, key=PrioritySort().sort_key)
    assert [one.info.pod.metadata.name for one in ordered] == ["early", "late", "plain", "low"]


@pytest.mark.parametrize("answer", [SUCCESS, failed("the API server said no")])
def test_binder_asks_the_host_and_passes_its_answer_on(answer: Any) -> None:
    asked = []

    def bind(pod: Any, node_name: str) -> Any:
        asked.append((pod.uid, node_name))
        return answer

    assert DefaultBinder(replace(handle(), bind=bind)).bind(CycleState(), info("p"), "n") == answer
    assert asked == [("uid-p", "n")]
