"""Packing: what is sold after the placement, as a share of what the node sells."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.packing import Packing, PackingArgs
from slacktide import names
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import GI, be, be_info, handle, info, node, offering
from tests.scheduler_plugins.rating import scores, snapshot_for

NODES = [
    offering("empty"),
    offering("half"),
    offering("full"),
    offering("memory"),
    node("none"),
    node("shrunk", {"pods": "110", names.BATCH_CPU: "100", names.BATCH_MEMORY: "0"}),
]
PLACED = {
    "half": [be("a", 4000)],
    "full": [be("b", 7500)],
    "memory": [be("c", 0, 24 * GI)],
    "shrunk": [be("d", 4000)],
}


@pytest.mark.parametrize(
    ("args", "who", "want"),
    [
        ({}, be_info(cpu=2000), {"empty": 25, "half": 75, "full": 0, "memory": 25, "none": 0, "shrunk": 0}),
        (
            {"strategy": "LeastAllocated"},
            be_info(cpu=2000),
            {"empty": 75, "half": 25, "full": 0, "memory": 75, "none": 0, "shrunk": 0},
        ),
        (
            {},
            be_info(cpu=2000, memory=8 * GI),
            {"empty": 25, "half": 50, "full": 0, "memory": 62, "none": 0, "shrunk": 0},
        ),
        (
            {"cpu_weight": 3},
            be_info(cpu=2000, memory=8 * GI),
            {"empty": 25, "half": 62, "full": 0, "memory": 43, "none": 0, "shrunk": 0},
        ),
        # A resource without a weight says nothing, yet a node that lacks it cannot hold the pod.
        (
            {"memory_weight": 0},
            be_info(cpu=2000, memory=8 * GI),
            {"empty": 25, "half": 75, "full": 0, "memory": 25, "none": 0, "shrunk": 0},
        ),
    ],
)
def test_score(args: dict[str, Any], who: Any, want: dict[str, int]) -> None:
    plugin = Packing(PackingArgs(**args), handle())
    assert scores(plugin, who, snapshot_for(plugin, NODES, PLACED)) == want


@pytest.mark.parametrize(
    "who", [info(), info(requests={"cpu": "1"}), be_info(cpu=0, metadata={"labels": {names.TIER_LABEL: "be"}})]
)
def test_rates_pods_that_ask_for_batch_resources_only(who: Any) -> None:
    plugin = Packing(PackingArgs(), handle())
    snapshot = snapshot_for(plugin, NODES)
    assert plugin.pre_score(CycleState(), who, snapshot, snapshot.all()).skipped


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(SettingsError, match="both 0"):
        Packing(PackingArgs(cpu_weight=0, memory_weight=0), handle())
