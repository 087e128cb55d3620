"""Records of the last cycles: every number that decided, as a person asks for them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import numpy as np
import pytest

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.runtime import ScoreTable
from scheduler_plugins.framework.status import SUCCESS, Reason, Status, unschedulable
from scheduler_plugins.records import KEPT_CYCLES, SHOWN_CYCLES, Cycle, Records, Scores
from tests.scheduler_plugins.build import Clock, node, pod
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.test_cycle_extenders import Fake


class Size(api.NodeFilterPlugin, api.NodeScorePlugin):
    """Lets nodes pass whose label says so, and scores the label."""

    name = "Size"

    def filter(self, state: Any, pod: Any, node: Any) -> Status:
        size = int(node.labels["size"])
        return SUCCESS if size else unschedulable(Reason("too small", f"size {node.name}", miss=ord(node.name)))

    def score(self, state: Any, pod: Any, node: Any) -> float:
        return float(node.labels["size"])

    def normalize(self, state: Any, pod: Any, scores: Any) -> Any:
        return scores * 10


def cycles(rig: Rig) -> list[dict[str, Any]]:
    return msgspec.json.decode(rig.records.body())["cycles"]


def sized(**sizes: int) -> Rig:
    rig = Rig(None, Size(), extenders=[Fake(scores={"a": 7})])
    for name, size in sizes.items():
        rig.server.put_node(node(name, labels={"size": str(size)}))
    rig.server.put(pod("p"))
    rig.settle()
    return rig


def test_score_table_has_raw_normalised_and_weighted_scores_and_what_extenders_added() -> None:
    (cycle,) = cycles(sized(a=3, b=5, c=0))
    assert {k: cycle[k] for k in ("pod", "result", "node", "evaluated", "feasible", "attempt")} == {
        "pod": "default/p",
        "result": "chosen",
        "node": "b",
        "evaluated": 3,
        "feasible": 2,
        "attempt": 1,
    }
    assert [one["node"] for one in cycle["scores"]] == ["b", "a"]
    assert cycle["weights"]["Size"] == 1
    best, second = cycle["scores"]
    assert best["plugins"]["Size"] == {"raw": 5.0, "normalised": 50, "weighted": 50}
    assert (best["extenders"], second["extenders"]) == ({"ext": 0}, {"ext": 7})
    weighted = sum(one["weighted"] for one in second["plugins"].values())
    assert second["total"] == weighted + 7
    assert cycle["refusals"] == [{"plugin": "Size", "nodes": 1}]


def test_refusals_come_with_the_node_nearest_to_fitting() -> None:
    (cycle,) = cycles(sized(a=0, b=0, c=0))
    assert (cycle["result"], cycle["node"]) == ("unschedulable", "")
    assert cycle["message"] == "0/3 nodes are available: 3 too small (nearest a: size a)."
    assert cycle["refusals"] == [
        {
            "plugin": "Size",
            "nodes": 3,
            "reasons": [{"reason": "too small", "nodes": 3, "nearest": "a", "detail": "size a"}],
        }
    ]
    assert "scores" not in cycle


def test_only_the_last_cycles_are_kept_the_newest_first() -> None:
    records = Records(Clock())
    for i in range(KEPT_CYCLES + 3):
        records.add(Cycle("prof", f"p{i}", "", 1, 0.0, 0.0, "error"))
    assert [cycle.pod for cycle in records.last()] == [f"p{i}" for i in range(KEPT_CYCLES + 2, 2, -1)]


def test_who_asks_for_a_pod_gets_its_cycles_of_all_that_are_kept_and_others_the_newest() -> None:
    records = Records(Clock())
    records.add(Cycle("prof", "d/old", "u", 1, 0.0, 0.0, "chosen", "n1"))
    records.add(Cycle("prof", "d/waits", "w", 1, 0.0, 0.0, "unschedulable"))
    for i in range(SHOWN_CYCLES):
        records.add(Cycle("prof", f"p{i}", "", 1, 0.0, 0.0, "chosen"))
    asked = msgspec.json.decode(records.body({"uid": "u"}))
    assert ([one["pod"] for one in asked["cycles"]], asked["unplaced"]) == (["d/old"], [])
    assert [one["pod"] for one in msgspec.json.decode(records.body({"uid": "w"}))["unplaced"]] == ["d/waits"]
    every = msgspec.json.decode(records.body())
    assert (len(every["cycles"]), every["cycles"][0]["pod"]) == (SHOWN_CYCLES, f"p{SHOWN_CYCLES - 1}")
    assert every["since"] == records.since


def test_large_table_shows_the_best_nodes_and_the_chosen_one() -> None:
    totals = np.arange(1000, dtype=np.int64)
    table = ScoreTable(np.arange(1000), totals, {"P": totals}, {"P": totals.astype(np.float64)}, {"P": 2})
    shown = Scores.of(table, [f"n{i}" for i in range(1000)], "n4", most=3).shown()
    assert [one["node"] for one in shown] == ["n999", "n998", "n997", "n4"]
    assert shown[-1]["plugins"]["P"] == {"raw": 4.0, "normalised": 4, "weighted": 8}


def test_raw_score_that_json_does_not_have_is_null() -> None:
    table = ScoreTable(np.arange(1), np.array([5]), {"P": np.array([5])}, {"P": np.array([float("nan")])})
    assert Scores.of(table, ["n"], "n").shown()[0]["plugins"]["P"]["raw"] is None


def test_tables_go_to_the_log_at_level_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.clear()
        with caplog.at_level(level, logger="scheduler.scores"):
            sized(a=3, b=5)
        assert sum("normalised" in record.getMessage() for record in caplog.records) == lines
