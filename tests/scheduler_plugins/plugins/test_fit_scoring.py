"""Scores of NodeResourcesFit: the rows of the stock scheduler's tables (numbers worked out by hand in comments)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.fit_scoring import broken_line
from tests.scheduler_plugins.build import handle, info, node, pod
from tests.scheduler_plugins.plugins.cases import Judged

GPU = "example.com/gpu"


def holds(cpu: int, memory: int, gpu: int = 0) -> dict[str, Any]:
    requests = {"cpu": f"{cpu}m", "memory": str(memory)} | ({GPU: str(gpu)} if gpu else {})
    return {"containers": [{"name": "c", "resources": {"requests": requests}}]}


def has(cpu: int, memory: int, gpu: int | None = None) -> dict[str, str]:
    return {"cpu": f"{cpu}m", "memory": str(memory), "pods": "99"} | ({} if gpu is None else {GPU: str(gpu)})


def scores(strategy: dict[str, Any], who: dict[str, Any], *nodes: tuple[dict[str, str], dict[str, Any] | None]) -> Any:
    plugin = default_registry().build("NodeResourcesFit", {"scoringStrategy": strategy}, handle())
    there = {f"n{i}": [pod(f"q{i}", nodeName=f"n{i}", **used)] for i, (_, used) in enumerate(nodes) if used}
    offered = [node(f"n{i}", allocatable) for i, (allocatable, _) in enumerate(nodes)]
    found = Judged(plugin, info("p", **who), offered, there).scores()
    return [found[f"n{i}"] for i in range(len(nodes))]


NOTHING: dict[str, Any] = {"containers": []}
POD = holds(3000, 5000)
BIG = has(10000, 20000)


def weighed(**weights: int) -> list[dict[str, Any]]:
    names = {"cpu": "cpu", "memory": "memory", "gpu": GPU}
    return [{"name": names[key], "weight": weight} for key, weight in weights.items()]


LEAST = [
    ("differently sized nodes", POD, [(has(4000, 10000), None), (has(6000, 10000), None)], [37, 50]),
    ("empty pod on empty nodes", NOTHING, [(has(4000, 10000), None)] * 2, [100, 100]),
    ("existing, empty pod", NOTHING, [(BIG, holds(6000, 0)), (BIG, holds(6000, 5000))], [70, 57]),
    ("existing", POD, [(BIG, holds(3000, 0)), (BIG, holds(3000, 5000))], [57, 45]),
    ("larger memory", POD, [(BIG, holds(3000, 0)), (has(10000, 50000), holds(3000, 5000))], [57, 60]),
    ("too much", holds(3000, 0), [(has(4000, 10000), holds(3000, 0)), (has(4000, 10000), holds(3000, 5000))], [50, 25]),
    ("zero allocatable", POD, [(has(0, 0), None)], [0]),
]


@pytest.mark.parametrize(("who", "nodes", "want"), [row[1:] for row in LEAST], ids=[row[0] for row in LEAST])
def test_least_allocated(who: Any, nodes: Any, want: list[int]) -> None:
    assert scores({}, who, *nodes) == want
    assert scores({"type": "LeastAllocated", "resources": weighed(cpu=1, memory=1)}, who, *nodes) == want


def test_least_allocated_with_weights() -> None:
    nodes = [(has(4000, 10000), None), (has(6000, 10000), None)]
    assert scores({"resources": weighed(memory=2, cpu=1)}, POD, *nodes) == [41, 50]


def test_extended_resource_counts_only_when_it_is_asked_for() -> None:
    strategy = {"resources": weighed(cpu=1, memory=1, gpu=1)}
    nodes = [(has(6000, 10000, 4), None), (has(6000, 10000, 10), None)]
    assert scores(strategy, POD, *nodes) == [50, 50]
    assert scores(strategy, holds(3000, 5000, 2), *nodes) == [50, 60]


def test_a_node_is_judged_by_what_it_offers() -> None:
    strategy = {"resources": weighed(cpu=1, memory=1, gpu=1)}
    assert scores(strategy, holds(3000, 5000, 2), (has(6000, 10000), None), (has(6000, 10000, 2), None)) == [50, 33]


def test_containers_without_requests_count_with_defaults_and_an_explicit_zero_stays_zero() -> None:
    silent = {"containers": [{"name": "c"}]}
    room = has(1000, 1000 << 20)
    assert scores({}, silent, (room, None)) == [85]  # 90 % of the cores, 80 % of the memory
    assert scores({}, holds(0, 0), (room, None)) == [100]


@pytest.mark.parametrize(
    ("who", "nodes", "want"),
    [
        (NOTHING, [(has(4000, 10000), None)], [0]),
        (POD, [(has(4000, 10000), None), (has(6000, 10000), None)], [62, 50]),  # (75 + 50) / 2
        (NOTHING, [(BIG, holds(6000, 0)), (BIG, holds(6000, 5000))], [30, 42]),  # (60 + 25) / 2
        (POD, [(BIG, holds(3000, 0)), (BIG, holds(3000, 5000))], [42, 55]),
        (holds(5000, 10000), [(has(4000, 10000), None)], [100]),  # more than there is counts as full
        (POD, [(has(0, 0), None)], [0]),
    ],
)
def test_most_allocated(who: Any, nodes: Any, want: list[int]) -> None:
    assert scores({"type": "MostAllocated"}, who, *nodes) == want


def ratio(*points: tuple[int, int], **weights: int) -> dict[str, Any]:
    shape = [{"utilization": utilization, "score": score} for utilization, score in points]
    named = {"resources": weighed(**weights)} if weights else {}
    return {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}, **named}


FALLING = ratio((0, 10), (100, 0))


def test_ratio_rounds_where_least_allocated_cuts() -> None:
    assert scores(FALLING, POD, (has(4000, 10000), None), (has(6000, 10000), None)) == [38, 50]
    assert scores(FALLING, NOTHING, (has(4000, 10000), None)) == [100]
    assert scores(FALLING, NOTHING, (BIG, holds(6000, 0)), (BIG, holds(6000, 5000))) == [70, 58]


def test_ratio_of_an_extended_resource() -> None:
    rising = ratio((0, 0), (100, 1), gpu=1)
    nodes = [(has(4000, 10000, 8), None), (has(4000, 10000, 4), None)]
    assert scores(rising, holds(0, 0, 2), *nodes) == [2, 5]
    assert scores(rising, holds(0, 0, 4), nodes[1]) == [10]
    assert scores(rising, POD, *nodes) == [0, 0]


def test_ratio_means_only_resources_that_score() -> None:
    assert scores(ratio((0, 0), (50, 0), (100, 10)), holds(3000, 1000), (has(4000, 10000), None)) == [50]


@pytest.mark.parametrize(
    ("points", "values"),
    [
        (
            [(10, 1), (90, 9)],
            dict.fromkeys(range(-10, 20), 1) | {20: 2, 89: 8} | dict.fromkeys(range(90, 111), 9),
        ),
        ([(0, 2), (40, 10), (100, 0)], {-10: 2, 0: 2, 20: 6, 30: 8, 40: 10, 70: 5, 100: 0, 110: 0}),
        ([(0, 2), (40, 2), (100, 2)], dict.fromkeys((-10, 0, 20, 40, 70, 110), 2)),
    ],
)
def test_broken_line(points: list[tuple[int, int]], values: dict[int, int]) -> None:
    line = broken_line(points)
    assert {x: line(x) for x in values} == values


@given(
    nodes=st.lists(st.tuples(st.integers(0, 1 << 45), st.integers(0, 1 << 45)), min_size=1, max_size=6),
    asked=st.integers(0, 1 << 45),
    weight=st.integers(1, 100),
)
def test_columns_give_what_whole_numbers_give(nodes: list[tuple[int, int]], asked: int, weight: int) -> None:
    """Memory alone and cpu weighed against it, as whole-number arithmetic has it."""
    who = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": str(asked)}}}]}
    offered = [({"cpu": "3", "memory": str(total), "pods": "9"}, holds(0, used)) for total, used in nodes]
    found = scores({"resources": weighed(cpu=1, memory=weight)}, who, *offered)
    wanted = []
    for total, used in nodes:
        parts = [(66, 1)]
        if total:
            parts.append((max(0, total - used - asked) * 100 // total, weight))
        wanted.append(sum(score * w for score, w in parts) // sum(w for _, w in parts))
    assert found == wanted
