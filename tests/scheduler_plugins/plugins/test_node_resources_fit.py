"""NodeResourcesFit, Filter and hints: the rows of the stock scheduler's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs
from slacktide.errors import SettingsError
from slacktide.names import BATCH_CPU
from tests.scheduler_plugins.build import handle, info, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, NEVER, Judged, hint

SMALL = {
    "cpu": "10m",
    "memory": "20",
    "pods": "32",
    "example.com/a": "5",
    "ephemeral-storage": "20",
    "hugepages-2Mi": "5",
}
ALLOCATABLE = SMALL | {"cpu": 10}
NAMES = {"a": "example.com/a", "b": "example.com/b", "k": "kubernetes.io/something", "huge": "hugepages-2Mi"}
NAMES |= {"disk": "ephemeral-storage", "i": "ignored.io/x"}


def fit(*ignored: str) -> NodeResourcesFit:
    args = NodeResourcesFitArgs(ignored_resources=ignored, ignored_resource_groups=("ignored.io",))
    return NodeResourcesFit(args, handle())


def asks(cpu: int = 0, memory: int = 0, **more: Any) -> dict[str, Any]:
    requests = ({"cpu": f"{cpu}m"} if cpu else {}) | ({"memory": str(memory)} if memory else {})
    return {"resources": {"requests": requests | {NAMES[key]: str(value) for key, value in more.items()}}}


def named(name: str, cpu: int, memory: int, **more: Any) -> dict[str, Any]:
    return {"name": name, **asks(cpu, memory), **more}


def one(*apps: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Any:
    return info("p", containers=list(apps), initContainers=list(init), **spec)


def resized(cpu_asked: int, allocated: int, actual: int, *conditions: dict[str, str]) -> dict[str, Any]:
    """A placed pod whose container was resized in place."""
    return {
        "containers": [named("main", cpu_asked, 0)],
        "status": {
            "phase": "Running",
            "conditions": list(conditions),
            "containerStatuses": [
                {
                    "name": "main",
                    "allocatedResources": {"cpu": f"{allocated}m"},
                    "resources": {"requests": {"cpu": f"{actual}m"}},
                }
            ],
        },
    }


INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
SIDECAR = {"restartPolicy": "Always"}
POD_LEVEL = {"resources": {"requests": {"cpu": "4m", "memory": "6"}}}

ROWS = [
    ("no request", asks(10, 20), one(asks()), []),
    ("full", asks(10, 20), one(asks(1, 1)), ["cpu", "memory"]),
    ("init cpu", asks(8, 19), one(asks(1, 1), init=(asks(3, 1),)), ["cpu"]),
    ("largest init cpu", asks(8, 19), one(asks(1, 1), init=(asks(3, 1), asks(2, 1))), ["cpu"]),
    ("init memory", asks(9, 19), one(asks(1, 1), init=(asks(1, 3),)), ["memory"]),
    ("init fits", asks(9, 19), one(asks(1, 1), init=(asks(1, 1),)), []),
    ("two inits fit", asks(9, 19), one(asks(1, 1), init=(asks(1, 1), asks(1, 1))), []),
    ("both fit", asks(5, 5), one(asks(1, 1)), []),
    ("cpu", asks(9, 5), one(asks(2, 1)), ["cpu"]),
    ("memory", asks(5, 19), one(asks(1, 2)), ["memory"]),
    ("edge", asks(5, 19), one(asks(5, 1)), []),
    ("init and app at the edge", asks(5, 19), one(asks(4, 1), init=(asks(5, 1),)), []),
    ("extended fits", asks(), one(asks(a=1)), []),
    ("extended above allocatable", asks(), one(asks(a=10)), ["example.com/a"]),
    ("extended used up", asks(a=5), one(asks(a=1)), ["example.com/a"]),
    ("extended sum of apps", asks(a=2), one(asks(a=3), asks(a=3)), ["example.com/a"]),
    ("extended largest init", asks(a=2), one(init=(asks(a=3), asks(a=3))), []),
    ("extended init too large", asks(a=2), one(init=(asks(a=6), asks(a=3))), ["example.com/a"]),
    ("unknown extended", asks(), one(asks(b=1)), ["example.com/b"]),
    ("native prefixed", asks(), one(asks(k=10)), ["kubernetes.io/something"]),
    ("huge pages", asks(), one(asks(huge=10)), ["hugepages-2Mi"]),
    ("overhead fits", asks(5, 5), one(asks(1, 1), overhead={"cpu": "3m", "memory": "13"}), []),
    ("overhead does not", asks(5, 5), one(asks(1, 1), overhead={"cpu": "1m", "memory": "15"}), ["memory"]),
    ("disk", asks(), one(asks(disk=25)), ["ephemeral-storage"]),
    ("disk fits", asks(), one(asks(disk=10)), []),
    ("ignored group", asks(), one(asks(i=1)), []),
    ("zero scalar", asks(a=5), one(asks(a=0)), []),
    ("sidecar adds to apps", asks(5, 5), one(asks(3, 1), init=(asks(3, 1) | SIDECAR,)), ["cpu"]),
    ("init after a sidecar", asks(5, 5), one(asks(1, 1), init=(asks(2, 1) | SIDECAR, asks(4, 1))), ["cpu"]),
    ("init before a sidecar", asks(5, 5), one(asks(1, 1), init=(asks(4, 1), asks(2, 1) | SIDECAR)), []),
    ("pod level replaces the sum", asks(6, 14), one(asks(9, 9), **POD_LEVEL), []),
    ("pod level counts", asks(7, 14), one(asks(1, 1), **POD_LEVEL), ["cpu"]),
]


@pytest.mark.parametrize(("used", "who", "lacking"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_table(used: dict[str, Any], who: Any, lacking: list[str]) -> None:
    judged = Judged(fit(), who, [node("n", SMALL)], {"n": [pod("there", containers=[used], nodeName="n")]})
    above = any(who.requests[name] > int(ALLOCATABLE.get(name, 0)) for name in lacking)
    assert judged.codes() == {"n": NEVER if above else LATER if lacking else FITS}
    parts = [part.text for status in judged.diagnosis.statuses().values() for part in status.parts]
    assert parts == [f"Insufficient {name}" for name in lacking]


@pytest.mark.parametrize(
    ("placed", "fits"),
    [
        (resized(2, 2, 2), True),
        (resized(8, 2, 2), False),
        (resized(2, 8, 2), False),
        (resized(2, 2, 8), False),
        (resized(8, 2, 2, INFEASIBLE), True),
        (resized(8, 2, 8, INFEASIBLE), False),
    ],
)
def test_resize_in_place_counts_the_largest_unless_it_is_infeasible(placed: dict[str, Any], fits: bool) -> None:
    judged = Judged(fit(), one(asks(5, 1)), [node("n", SMALL)], {"n": [pod("there", nodeName="n", **placed)]})
    assert judged.codes() == {"n": FITS if fits else LATER}


def test_ignored_resource_is_not_checked() -> None:
    assert Judged(fit("example.com/b"), one(asks(b=1)), [node("n", SMALL)]).codes() == {"n": FITS}


@pytest.mark.parametrize("who", [one(asks()), one(asks(1, 1))])
def test_pod_count_is_checked_for_every_pod(who: Any) -> None:
    judged = Judged(fit(), who, [node("n", SMALL | {"pods": "1"})], {"n": [pod("there", nodeName="n")]})
    assert judged.codes() == {"n": LATER}
    assert judged.message() == "0/1 nodes are available: 1 Too many pods (1 of 1)."


def test_numbers_of_the_nearest_node_are_told() -> None:
    nodes = [node("n", {"cpu": "2", "memory": "2Gi", "pods": "9"}), node("m", {"cpu": "1", "memory": "1Gi"})]
    nodes += [node("o", {"cpu": "2500m", "memory": "8Gi", "pods": "9"})]
    judged = Judged(fit(), info("p", {"cpu": "3", "memory": "3Gi"}), nodes)
    assert judged.message() == (
        "0/3 nodes are available: 1 Too many pods (0 of 0), "
        "2 Insufficient memory (nearest n: asks for 3Gi, free 2Gi), "
        "3 Insufficient cpu (nearest o: asks for 3, free 2500m)."
    )


def test_refusal_by_many_resources_at_once_is_told_node_by_node() -> None:
    many = {f"example.com/r{i}": "1" for i in range(70)}
    fewer = {name: "1" for i, name in enumerate(many) if i != 65}
    nodes = [node("n", {"pods": "9"}), node("m", {"pods": "9"} | fewer)]
    judged = Judged(fit(), info("p", many), nodes)
    told = {name: len(status.parts) for name, status in judged.diagnosis.statuses().items()}
    assert told == {"n": 70, "m": 1}
    assert "2 Insufficient example.com/r65" in judged.message()


AMOUNTS = st.integers(0, 6)


@given(
    nodes=st.lists(st.tuples(AMOUNTS, AMOUNTS, st.integers(0, 2), AMOUNTS, AMOUNTS), min_size=1, max_size=20),
    cpu=AMOUNTS,
    memory=AMOUNTS,
)
def test_all_nodes_at_once_and_each_alone_are_judged_alike(nodes: Any, cpu: int, memory: int) -> None:
    offered = [
        node(f"n{i}", {"cpu": f"{c}m", "memory": str(m), "pods": str(p)}) for i, (c, m, p, _, _) in enumerate(nodes)
    ]
    placed = {
        f"n{i}": [pod(f"q{i}", containers=[asks(used, more)], nodeName=f"n{i}")]
        for i, (_, _, _, used, more) in enumerate(nodes)
    }
    judged = Judged(fit(), one(asks(cpu, memory)), offered, placed)
    plugin, snapshot, state = judged.plugin, judged.snapshot, CycleState()
    together = plugin.filter_nodes(state, judged.who, snapshot, snapshot.all())
    backwards = plugin.filter_nodes(state, judged.who, snapshot, snapshot.all()[::-1])
    for row, info_ in enumerate(snapshot.nodes):
        alone = plugin.filter_node(state, judged.who, snapshot.single(info_), 0)
        assert together.status(row).by(plugin.name) == alone.by(plugin.name)
        assert backwards.status(len(snapshot) - 1 - row).by(plugin.name) == alone.by(plugin.name)
        i = int(info_.name[1:])
        c, m, room, used, more = nodes[i]
        fits = room >= 2 and (not cpu or cpu <= c - used) and (not memory or memory <= m - more)
        assert alone.ok is fits


def test_rows_are_judged_in_the_order_asked() -> None:
    judged = Judged(fit(), info("p", {"cpu": "2"}), [node(f"n{i}", {"cpu": str(i), "pods": "9"}) for i in range(4)])
    rows = np.array([judged.snapshot.index[name] for name in ("n3", "n0", "n2")], dtype=np.intp)
    verdicts = judged.plugin.filter_nodes(CycleState(), judged.who, judged.snapshot, rows)
    assert verdicts.codes.tolist() == [Code.SUCCESS, Code.UNRESOLVABLE, Code.SUCCESS]


# Hints.


def on_node(action: Action) -> ClusterEvent:
    return ClusterEvent(events.NODE, action)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (None, {"cpu": "2", "pods": "9"}, Hint.QUEUE),
        (None, {"cpu": "500m", "pods": "9"}, Hint.SKIP),
        (None, {"cpu": "2"}, Hint.SKIP),
        ({"cpu": "1", "pods": "9"}, {"cpu": "2", "pods": "9"}, Hint.QUEUE),
        ({"cpu": "3", "pods": "9"}, {"cpu": "2", "pods": "9"}, Hint.SKIP),
        ({"cpu": "2", "memory": "1", "pods": "9"}, {"cpu": "2", "memory": "2", "pods": "9"}, Hint.SKIP),
        ({"cpu": "2", "pods": "1"}, {"cpu": "2", "pods": "2"}, Hint.QUEUE),
    ],
)
def test_wakes_only_for_growth_of_what_is_asked(old: Any, new: Any, want: Hint) -> None:
    action = Action.ADD if old is None else Action.UPDATE_NODE_ALLOCATABLE
    before = None if old is None else node("n", old)
    assert hint(fit(), info("p", {"cpu": "1"}), on_node(action), before, node("n", new)) is want


def test_taints_of_a_node_wake_nobody() -> None:
    tainted = node("n", taints=[{"key": "k", "effect": "NoSchedule"}])
    who = info("p", {"cpu": "1"})
    assert hint(fit(), who, on_node(Action.UPDATE_NODE_TAINT), tainted, node("n")) is Hint.SKIP


def test_growth_of_batch_resource_in_allocatable_wakes_without_help_of_another_plugin() -> None:
    old, new = node("n", {BATCH_CPU: "0", "pods": "9"}), node("n", {BATCH_CPU: "2000", "pods": "9"})
    assert hint(fit(), info("p", {BATCH_CPU: "1500"}), on_node(Action.UPDATE_NODE_ALLOCATABLE), old, new) is Hint.QUEUE


def test_ignored_resources_do_not_keep_a_pod_asleep() -> None:
    who, new = info("p", {"cpu": "1", "ignored.io/x": "3"}), node("n", {"cpu": "2", "pods": "9"})
    assert hint(fit(), who, events.NODE_ADD, None, new) is Hint.QUEUE


NOMINATED = {"status": {"phase": "Pending", "nominatedNodeName": "n"}}


@pytest.mark.parametrize(
    ("gone", "want"),
    [(info("q", nodeName="n"), Hint.QUEUE), (info("q", **NOMINATED), Hint.QUEUE), (info("q"), Hint.SKIP)],
)
def test_wakes_for_pods_that_leave_room(gone: Any, want: Hint) -> None:
    assert hint(fit(), info("p"), ClusterEvent(events.POD, Action.DELETE), gone, None) is want


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (info("q", {"cpu": "2"}, nodeName="n"), info("q", {"cpu": "1"}, nodeName="n"), Hint.QUEUE),
        (info("q", {"cpu": "2"}), info("q", {"cpu": "1"}), Hint.SKIP),
        (info("q", {"cpu": "1", "memory": "2"}, nodeName="n"), info("q", {"cpu": "1"}, nodeName="n"), Hint.SKIP),
        (info("p", {"cpu": "2"}), info("p", {"cpu": "1"}), Hint.QUEUE),
    ],
)
def test_wakes_for_assigned_pods_that_shrink_in_what_is_asked_and_for_the_pod_itself(
    old: Any, new: Any, want: Hint
) -> None:
    shrunk = ClusterEvent(events.POD, Action.UPDATE_POD_SCALE_DOWN)
    assert hint(fit(), info("p", {"cpu": "1"}), shrunk, old, new) is want


# Arguments.


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"ignoredResources": ["kubernetes.io/batch-cpu"]}, "kubernetes.io/batch-cpu is not an extended resource"),
        ({"ignoredResources": ["cpu"]}, "cpu is not an extended resource"),
        ({"ignoredResourceGroups": ["example.com/a"]}, "before the slash"),
        ({"ignoredResourceGroups": ["kubernetes.io"]}, "not extended"),
        ({"scoringStrategy": {"type": "Random"}}, "Random"),
        ({"scoringStrategy": {"resources": [{"name": "cpu", "weight": 0}]}}, "weight of resource cpu is 0"),
        ({"scoringStrategy": {"resources": [{"name": "cpu", "weight": -1}]}}, "is -1"),
        ({"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}}, "1 to 100"),
        ({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}, "shape"),
        ({"ignoredResorces": []}, "ignoredResources"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        default_registry().build("NodeResourcesFit", args, handle())


def test_all_problems_are_told_at_once() -> None:
    shape = [{"utilization": 50, "score": 11}, {"utilization": 40, "score": -1}, {"utilization": 101}]
    strategy = {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}}
    args = {"ignoredResources": ["memory"], "scoringStrategy": strategy}
    with pytest.raises(SettingsError) as caught:
        default_registry().build("NodeResourcesFit", args, handle())
    words = ("memory", "score of a shape point is 11", "score of a shape point is -1", "40 stands after 50", "is 101")
    assert [word for word in words if word not in str(caught.value)] == []
