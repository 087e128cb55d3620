"""GPUWearLevel: key and scale are arguments, absent is 0, malformed is 0 with a reason and never an error."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_plugins.framework.score_reasons import MOST_REASONS
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.gpu_wear_level import GpuWearLevel, GpuWearLevelArgs
from tests.scheduler_plugins.build import framework, handle, info, node
from tests.scheduler_plugins.rating import reasons, scores, snapshot_for

KEY = "gpu.example.com/wear"


def plugin(**args: str) -> GpuWearLevel:
    return GpuWearLevel(GpuWearLevelArgs(annotation=KEY, **args), handle())


@pytest.mark.parametrize(
    ("scale", "text", "score"),
    [
        ("fraction", "0", 100),
        ("fraction", "0.25", 75),
        ("fraction", ".5", 50),
        ("fraction", "1", 0),
        ("fraction", "1.0", 0),
        ("percent", "25", 75),
        ("percent", "99.6", 0),
        ("percent", "0.25", 100),
        ("percent", "100", 0),
    ],
)
def test_level_is_read_on_its_scale(scale: str, text: str, score: int) -> None:
    judge = plugin(scale=scale)
    snapshot = snapshot_for(judge, [node("n", annotations={KEY: text}), node("other")])
    assert scores(judge, info(), snapshot) == {"n": score, "other": 0}
    assert reasons(judge, info(), snapshot) == {}


@pytest.mark.parametrize("scale", ["fraction", "percent"])
@pytest.mark.parametrize(
    "text", ["", "worn", "nan", "inf", "-0.1", "1e-3", "100.1", "1" * 400, "0,5", "0.5 ", "5%", "٣", "null", "0x1"]
)
def test_malformed_value_costs_the_node_its_score_and_says_why(scale: str, text: str) -> None:
    judge = plugin(scale=scale)
    snapshot = snapshot_for(judge, [node("bad", annotations={KEY: text}), node("good", annotations={KEY: "0.1"})])
    found = scores(judge, info(), snapshot)
    assert found["bad"] == 0
    assert found["good"] >= 90
    (reason,) = reasons(judge, info(), snapshot).items()
    assert reason[0] == "bad"
    assert f"annotation {KEY} is {text[:40]!r}; it must be a number from 0 to" in reason[1]


def test_a_fraction_above_one_is_no_fraction() -> None:
    judge = plugin(scale="fraction")
    snapshot = snapshot_for(judge, [node("n", annotations={KEY: "25"})])
    assert scores(judge, info(), snapshot) == {"n": 0}
    assert "from 0 to 1 (scale fraction)" in reasons(judge, info(), snapshot)["n"]


def test_the_cycle_goes_on_with_a_malformed_node() -> None:
    judge = plugin()
    profile = framework(judge)
    snapshot = snapshot_for(judge, [node("bad", annotations={KEY: "?"}), node("good", annotations={KEY: "0.4"})])
    status, table = profile.run_score(CycleState(), info(), snapshot, snapshot.all())
    assert status.ok
    assert dict(zip(snapshot.names, table.totals.tolist(), strict=True)) == {"bad": 0, "good": 60}


def test_only_pods_that_ask_for_the_resource_are_rated_where_one_is_named() -> None:
    judge = plugin(resource="nvidia.com/gpu")
    snapshot = snapshot_for(judge, [node("n")])
    assert judge.pre_score(CycleState(), info(), snapshot, snapshot.all()).skipped
    assert judge.pre_score(CycleState(), info(requests={"nvidia.com/gpu": "1"}), snapshot, snapshot.all()).ok


def test_thousands_of_malformed_nodes_are_not_all_named() -> None:
    judge = plugin()
    snapshot = snapshot_for(judge, [node(f"n{i}", annotations={KEY: "?"}) for i in range(100)])
    assert len(reasons(judge, info(), snapshot)) == MOST_REASONS
    assert not np.any(judge.score_nodes(CycleState(), info(), snapshot, snapshot.all()))
