"""Story: a plugin of one's own has no effect, because NodeResourcesFit outweighs it; the score table shows that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler_plugins.framework.interfaces import ScorePlugin
from slacktide import names
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.rig import Rig
from tests.stories.examples import table


class Quiet(ScorePlugin):
    """Prefers nodes labelled `quiet`, by 40 points."""

    name = "Quiet"

    def score_nodes(self, state: Any, pod: Any, snapshot: Any, rows: Any) -> Any:
        numbers, values = snapshot.label("quiet")
        liked = np.array([value == "yes" for value in values])
        return np.where(liked[numbers[rows]], 70, 30)


def rig_with(mine: int, fit: int) -> Rig:
    enabled = [
        {"name": "PrioritySort"},
        {"name": "NodeResourcesFit", "weight": fit},
        {"name": "Quiet", "weight": mine},
        {"name": "DefaultBinder"},
    ]
    plugins = {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}}
    return Rig(None, Quiet, file={"profiles": [{"schedulerName": names.SCHEDULER_NAME, "plugins": plugins}]})


@pytest.mark.parametrize(("mine", "fit", "goes"), [(1, 10, "empty"), (10, 1, "quiet")])
def test_who_decided_is_in_the_score_table(mine: int, fit: int, goes: str) -> None:
    rig = rig_with(mine, fit)
    rig.server.put_node(node("quiet", labels={"quiet": "yes"}))
    rig.server.put_node(node("empty"))
    rig.server.put(pod("there", {"cpu": "4", "memory": "8Gi"}, nodeName="quiet"))
    rig.server.put(pod("p", {"cpu": "1", "memory": "1Gi"}))
    rig.settle()
    assert rig.where("p") == goes
    shown = table(rig, "p")
    assert shown["weights"] == {"NodeResourcesFit": fit, "Quiet": mine}
    quiet, empty = (shown["by_node"][name]["plugins"] for name in ("quiet", "empty"))
    assert (quiet["Quiet"]["raw"], empty["Quiet"]["raw"]) == (70, 30)
    span = {plugin: quiet[plugin]["weighted"] - empty[plugin]["weighted"] for plugin in quiet}
    assert span["Quiet"] == 40 * mine
    assert span["NodeResourcesFit"] < 0
    assert (span["Quiet"] > -span["NodeResourcesFit"]) == (goes == "quiet")
    totals = {name: row["total"] for name, row in shown["by_node"].items()}
    assert totals["quiet"] - totals["empty"] == sum(span.values())
