"""TaintToleration: the rows of the stock scheduler's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.taint_toleration import TaintToleration
from tests.scheduler_plugins.build import info, node
from tests.scheduler_plugins.plugins.cases import FITS, NEVER, Judged, hint


def taint(key: str, value: str = "v", effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


def tolerating(*tolerations: dict[str, str]) -> Any:
    return info("p", tolerations=list(tolerations))


TAINTED = node("n", taints=[taint("k")])


@pytest.mark.parametrize(
    ("given", "toleration", "fits"),
    [
        (taint("k"), None, False),
        (taint("k", effect="NoExecute"), None, False),
        (taint("k", effect="PreferNoSchedule"), None, True),
        (taint("k"), {"key": "k", "operator": "Exists"}, True),
        (taint("k"), {"operator": "Exists"}, True),
        (taint("k"), {"key": "k", "value": "v"}, True),
        (taint("k"), {"key": "k", "value": "v", "operator": "Equal"}, True),
        (taint("k"), {"key": "k", "value": "w"}, False),
        (taint("k"), {"key": "other", "operator": "Exists"}, False),
        (taint("k"), {"key": "k", "value": "v", "effect": "NoExecute"}, False),
        (taint("k"), {"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        (taint("k"), {"key": "k", "value": "v", "effect": ""}, True),
        (taint("k", "800"), {"key": "k", "operator": "Gt", "value": "950"}, False),
        (taint("k", "950"), {"key": "k", "operator": "Gt", "value": "750"}, True),
        (taint("k", "950"), {"key": "k", "operator": "Lt", "value": "800"}, False),
        (taint("k", "7_5"), {"key": "k", "operator": "Gt", "value": "5"}, False),
        (taint("k", "words"), {"key": "k", "operator": "Lt", "value": "800"}, False),
    ],
)
def test_filter(given: Any, toleration: Any, fits: bool) -> None:
    judged = Judged(TaintToleration(), tolerating(*([toleration] if toleration else [])), [node("n", taints=[given])])
    assert judged.codes() == {"n": FITS if fits else NEVER}
    words = f"0/1 nodes are available: 1 node(s) had untolerated taint {{k: {given['value']}}}."
    assert fits or judged.message() == words


def test_the_first_taint_that_is_not_tolerated_is_named_and_counted() -> None:
    nodes = [node(f"n{i}", taints=[taint("fine"), taint("bad")]) for i in range(3)] + [node("m", taints=[taint("k")])]
    judged = Judged(TaintToleration(), tolerating({"key": "fine", "operator": "Exists"}), nodes)
    assert judged.message() == (
        "0/4 nodes are available: 1 node(s) had untolerated taint {k: v}, 3 node(s) had untolerated taint {bad: v}."
    )


SOFT = "PreferNoSchedule"


@pytest.mark.parametrize(
    ("who", "nodes", "want"),
    [
        (
            tolerating({"key": "foo", "value": "bar", "effect": SOFT}),
            [node("a", taints=[taint("foo", "bar", SOFT)]), node("b", taints=[taint("foo", "blah", SOFT)])],
            [100, 0],
        ),
        (
            tolerating(*({"key": key, "operator": "Exists", "effect": SOFT} for key in ("cpu", "disk"))),
            [
                node("a"),
                node("b", taints=[taint("cpu", effect=SOFT)]),
                node("c", taints=[taint("cpu", effect=SOFT), taint("disk", effect=SOFT)]),
            ],
            [100, 100, 100],
        ),
        (
            tolerating({"key": "foo", "value": "bar", "effect": SOFT}),
            [
                node("a"),
                node("b", taints=[taint("cpu", effect=SOFT)]),
                node("c", taints=[taint("cpu", effect=SOFT), taint("disk", effect=SOFT)]),
            ],
            [100, 50, 0],
        ),
        (
            tolerating(*({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in ("cpu", "disk"))),
            [node("a"), node("b", taints=[taint("cpu")]), node("c", taints=[taint("disk", effect=SOFT)])],
            [100, 100, 0],
        ),
        (tolerating(), [node("a"), node("b", taints=[taint("cpu", effect=SOFT)])], [100, 0]),
        (
            tolerating({"key": "cpu", "operator": "Exists"}),
            [node("a", taints=[taint("cpu", effect=SOFT)]), node("b", taints=[taint("disk", effect=SOFT)])],
            [100, 0],
        ),
    ],
    ids=["tolerated and not", "all tolerated", "0, 1, 2", "wrong effect", "none", "every effect"],
)
def test_score(who: Any, nodes: list[Any], want: list[int]) -> None:
    judged = Judged(TaintToleration(), who, nodes)
    plugin, snapshot, state = judged.plugin, judged.snapshot, CycleState()
    rows = np.array([snapshot.index[one.metadata.name] for one in nodes], dtype=np.intp)
    assert plugin.normalize(state, who, plugin.score_nodes(state, who, snapshot, rows)).tolist() == want
    taking_part = None if len(set(want)) == 1 else dict(zip((one.metadata.name for one in nodes), want, strict=True))
    assert judged.scores() == taking_part


def test_verdicts_follow_taints_and_tolerations_as_they_change() -> None:
    plugin = TaintToleration()
    fine = tolerating({"key": "k", "operator": "Exists"})
    assert Judged(plugin, fine, [TAINTED]).codes() == {"n": FITS}
    assert Judged(plugin, tolerating(), [TAINTED]).codes() == {"n": NEVER}
    assert Judged(plugin, tolerating(), [node("n")]).codes() == {"n": FITS}
    assert Judged(plugin, fine, [node("m", taints=[taint("z")]), TAINTED]).codes() == {"m": NEVER, "n": FITS}


def test_wakes_when_taints_become_tolerated_not_on_labels() -> None:
    plugin, update = TaintToleration(), ClusterEvent(events.NODE, Action.UPDATE_NODE_TAINT)
    assert hint(plugin, info("p"), update, TAINTED, node("n")) is Hint.QUEUE
    assert hint(plugin, info("p"), update, node("n"), TAINTED) is Hint.SKIP
    assert hint(plugin, info("p"), update, node("n"), node("n", taints=[taint("k", effect=SOFT)])) is Hint.SKIP
    assert hint(plugin, info("p"), events.NODE_ADD, None, node("n")) is Hint.QUEUE
    assert hint(plugin, info("p"), events.NODE_ADD, None, TAINTED) is Hint.SKIP
    labels = ClusterEvent(events.NODE, Action.UPDATE_NODE_LABEL)
    assert hint(plugin, info("p"), labels, TAINTED, node("n")) is None


def test_wakes_for_a_toleration_of_its_own_not_for_a_label() -> None:
    plugin, own = TaintToleration(), ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
    assert hint(plugin, info("p"), own, info("p"), info("p")) is Hint.QUEUE
    assert hint(plugin, info("p"), own, info("q"), info("q")) is Hint.SKIP
    label = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL)
    assert hint(plugin, info("p"), label, info("p"), info("p")) is None
