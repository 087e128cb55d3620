"""NodeResourcesBalancedAllocation: the rows of the stock scheduler's table, and the score of 1.36 made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins import default_registry
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import handle, info, node, pod
from tests.scheduler_plugins.plugins.cases import Judged
from tests.scheduler_plugins.plugins.test_fit_scoring import GPU, has, holds

WITH_GPU = {"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": GPU}]}


def judged(args: dict[str, Any], who: dict[str, Any], *nodes: tuple[dict[str, str], dict[str, Any] | None]) -> Judged:
    plugin = default_registry().build("NodeResourcesBalancedAllocation", args, handle())
    there = {f"n{i}": [pod(f"q{i}", nodeName=f"n{i}", **used)] for i, (_, used) in enumerate(nodes) if used}
    offered = [node(f"n{i}", allocatable) for i, (allocatable, _) in enumerate(nodes)]
    return Judged(plugin, info("p", **who), offered, there)


def evenness(args: dict[str, Any], who: dict[str, Any], *nodes: tuple[dict[str, str], dict[str, Any] | None]) -> Any:
    """Without and with the pod, in the order of `nodes`."""
    asked = judged(args, who, *nodes)
    rows = np.array([asked.snapshot.index[f"n{i}"] for i in range(len(nodes))], dtype=np.intp)
    before, after = asked.plugin.evenness(asked.who, asked.snapshot, rows, len(rows))
    return before.tolist(), after.tolist()


def scores(args: dict[str, Any], who: dict[str, Any], *nodes: tuple[dict[str, str], dict[str, Any] | None]) -> Any:
    found = judged(args, who, *nodes).scores()
    return None if found is None else [found[f"n{i}"] for i in range(len(nodes))]


ROWS = [
    (holds(3000, 5000), [(has(4000, 10000), None), (has(6000, 10000), None)], [87, 100]),
    (holds(3000, 0), [(has(10000, 20000), holds(3000, 5000))], [82]),
    (holds(3000, 5000), [(has(10000, 20000), holds(3000, 5000))], [95]),
    (holds(3000, 5000), [(has(10000, 50000), holds(3000, 5000))], [80]),
    (holds(3000, 0), [(has(6000, 10000), holds(3000, 0))], [50]),
    (holds(3000, 0), [(has(6000, 10000), holds(3000, 5000))], [75]),
    (holds(9000, 0), [(has(6000, 10000), holds(3000, 5000))], [75]),
    (holds(3000, 0), [(has(0, 10000), holds(0, 5000))], [100]),
]


@pytest.mark.parametrize(("who", "nodes", "want"), ROWS)
def test_evenness_with_the_pod(who: Any, nodes: Any, want: list[int]) -> None:
    """Up to 1.35 this was the score."""
    assert evenness({}, who, *nodes)[1] == want


def test_evenness_of_three_resources() -> None:
    nodes = [(has(3500, 40000, 8), None)]
    assert evenness(WITH_GPU, holds(3000, 5000, 4), *nodes) == ([100], [70])
    assert evenness(WITH_GPU, holds(3000, 5000, 1), *nodes) == ([100], [65])


def test_a_scalar_that_is_not_asked_for_is_ignored() -> None:
    assert evenness(WITH_GPU, holds(3000, 5000), (has(3500, 40000, 8), holds(0, 0, 4))) == ([100], [63])


@pytest.mark.parametrize(
    ("who", "nodes", "want"),
    [
        # Idle before: evenness falls from 100 to 87 and stays at 100.
        (holds(3000, 5000), [(has(4000, 10000), None), (has(6000, 10000), None)], [68, 75]),
        # Takes memory where more cores are used (82 to 95), and where that overshoots (95 to 92).
        (holds(0, 5000), [(has(10000, 20000), holds(6000, 5000))], [81]),
        (holds(0, 10000), [(has(10000, 40000), holds(2000, 4000))], [73]),
        (holds(3000, 0), [(has(6000, 10000), holds(0, 5000)), (has(6000, 10000), holds(3000, 0))], [87, 62]),
        # From as uneven as can be (50) to even: the most that can be gained.
        (holds(6000, 0), [(has(6000, 10000), holds(0, 10000)), (has(6000, 10000), None)], [100, 50]),
    ],
)
def test_score_is_what_the_pod_changes(who: Any, nodes: Any, want: list[int]) -> None:
    assert scores({}, who, *nodes) == want


def test_nodes_that_offer_different_things_are_judged_by_what_they_offer() -> None:
    nodes = [(has(3500, 40000, 8), None), (has(3500, 40000), None), (has(3500, 0, 4), None), (has(0, 0), None)]
    assert evenness(WITH_GPU, holds(3000, 5000, 4), *nodes) == ([100, 100, 100, 100], [70, 63, 92, 100])
    assert scores(WITH_GPU, holds(3000, 5000, 4), *nodes) == [60, 56, 71, 75]


@pytest.mark.parametrize("who", [{"containers": []}, {"containers": [{"name": "c"}]}, holds(0, 0, 3)])
def test_pods_that_ask_for_none_of_it_do_not_pile_up_on_the_most_even_node(who: dict[str, Any]) -> None:
    """Reference section 7, row 25 (kubernetes #129138)."""
    nodes = [node("even", has(4000, 10000, 8)), node("odd", has(4000, 10000, 8))]
    there = {"odd": [pod("q", nodeName="odd", **holds(3000, 0))]}
    judged = Judged(
        default_registry().build("NodeResourcesBalancedAllocation", {}, handle()), info("p", **who), nodes, there
    )
    assert judged.scores() is None
    asked_all_the_same = judged.plugin.score_nodes(CycleState(), judged.who, judged.snapshot, judged.snapshot.all())
    assert asked_all_the_same.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ([{"name": "cpu", "weight": 2}], "weight of resource cpu is 2"),
        ([{"name": "cpu"}, {"name": "cpu"}], "cpu is named twice"),
        ([{"name": "cpu", "wieght": 1}], "wieght"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(resources: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        default_registry().build("NodeResourcesBalancedAllocation", {"resources": resources}, handle())
