"""Story: a plugin of one's own says 100 where it means 0; the placement check shows what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler_plugins.framework.interfaces import MAX_SCORE, ScorePlugin
from scheduler_plugins.placement.check import check
from scheduler_plugins.placement.read import check_framework, problem_of
from slacktide import names
from slacktide.settings import ResourceNames
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.rig import Rig


class EmptyFirst(ScorePlugin):
    """Prefers the node with most of its processors free."""

    name = "EmptyFirst"

    def score_nodes(self, state: Any, pod: Any, snapshot: Any, rows: Any) -> Any:
        allocatable = np.maximum(snapshot.allocatable("cpu")[rows], 1)
        return MAX_SCORE * (1 - snapshot.requested("cpu")[rows] / allocatable)


class Reversed(EmptyFirst):
    """The same with the sign lost."""

    name = "Reversed"

    def score_nodes(self, state: Any, pod: Any, snapshot: Any, rows: Any) -> Any:
        return MAX_SCORE - super().score_nodes(state, pod, snapshot, rows)


@pytest.mark.parametrize(("plugin", "now"), [(EmptyFirst, 50.0), (Reversed, 100.0)])
def test_the_placement_check_tells_the_right_score_from_the_reversed_one(plugin: type[ScorePlugin], now: float) -> None:
    chosen = [{"name": one} for one in ("PrioritySort", "NodeResourcesFit", plugin.name, "DefaultBinder")]
    points = {"multiPoint": {"disabled": [{"name": "*"}], "enabled": chosen}, "score": {"disabled": [{"name": "*"}]}}
    points["score"]["enabled"] = [{"name": plugin.name}]
    rig = Rig(None, plugin, file={"profiles": [{"schedulerName": names.SCHEDULER_NAME, "plugins": points}]})
    for i in range(6):
        rig.server.put_node(node(f"n{i}", {"cpu": "8", "memory": "32Gi", "pods": "110"}))
    for i in range(24):
        rig.server.put(pod(f"p{i}", {"cpu": "1"}))
    rig.settle()
    nodes, pods = list(rig.server.nodes.values()), list(rig.server.pods.values())
    problem = problem_of(nodes, pods, lambda _: True, check_framework(), ResourceNames(), (), rig.wall())
    fullest = next(one for one in check(problem, "spread").findings if one.question == "fullest node, cpu")
    assert (fullest.now, fullest.best, fullest.exact) == (now, pytest.approx(50.0), True)
    assert fullest.gap == pytest.approx(now - 50.0)
