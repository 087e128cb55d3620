"""Our plugins say of each node alone what they say of all at once, whatever stands in its annotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins import default_registry
from slacktide.gpus import Card, Gpus, encode
from slacktide.names import FORECAST_ANNOTATION, GPUS_ANNOTATION
from slacktide.objects import Node
from tests.scheduler_plugins.build import GI, Clock, be, be_info, handle, info, offering
from tests.scheduler_plugins.forecasts import forecast, terms
from tests.scheduler_plugins.rating import snapshot_for

NOW = 50_000.0
AMOUNT = st.none() | st.integers(-1, 9000)
GPU = {"nvidia.com/gpu": "1", "cpu": "1"}


@st.composite
def nodes(draw: Any, index: int) -> Node:
    of = terms(now=(draw(AMOUNT), GI), peak=(draw(AMOUNT), GI), fading=draw(st.none() | st.sampled_from([0.0, 0.5])))
    closed = draw(st.sampled_from(["", "", "why"]))
    age = draw(st.sampled_from([0, 0, 0, 100, 500, -100]))
    text = forecast(draw(AMOUNT), 8 * GI, at=NOW - age, closed=closed, of=of, horizon=draw(st.sampled_from([None, 60])))
    use = draw(st.none() | st.integers(0, 100))
    cards = (Card(index=0, model=draw(st.sampled_from(["A100", "V100", "T4"])), utilisation_percent=use),)
    gpus = encode(Gpus(at=NOW - age, ttl_seconds=60, cards=cards))
    annotations = {
        FORECAST_ANNOTATION: draw(st.sampled_from([text, text, text, "{"])),
        GPUS_ANNOTATION: draw(st.sampled_from([gpus, gpus, "[]"])),
        "slacktide.io/gpu-wear-level": draw(st.sampled_from(["0.5", "1", "x"])),
    }
    made = offering(f"n{index}", text)
    made.metadata.annotations.clear()
    made.metadata.annotations.update(
        {k: v for k, v in annotations.items() if draw(st.booleans()) or k == GPUS_ANNOTATION}
    )
    return made


CLUSTERS = st.tuples(*(nodes(i) for i in range(6)))
PODS = st.sampled_from(
    [
        be_info(cpu=1000, memory=GI),
        be_info(cpu=8500),
        be_info(cpu=1, metadata={"annotations": {"slacktide.io/expected-life-seconds": "600"}}),
        info(requests=GPU),
    ]
)


@pytest.mark.parametrize("name", ["BatchForecast", "ActualLoad", "ActualLoadFilter", "ActualLoadScore", "GpuWear"])
@settings(max_examples=60, deadline=None)
@given(cluster=CLUSTERS, who=PODS, sold=st.integers(0, 5000))
def test_alone_as_among_others(name: str, cluster: tuple[Node, ...], who: Any, sold: int) -> None:
    plugin = default_registry().build(name, {}, handle(Clock(NOW)))
    snapshot = snapshot_for(plugin, list(cluster), {"n0": [be("sold", sold)]} if sold else None)
    everywhere = snapshot.all()
    if hasattr(plugin, "filter_nodes"):
        together = plugin.filter_nodes(CycleState(), who, snapshot, everywhere)
        alone = [plugin.filter_node(CycleState(), who, snapshot, int(row)) for row in everywhere]
        assert [together.status(i).by(name) for i in range(len(everywhere))] == [one.by(name) for one in alone]
        assert all(one.ok or one.parts for one in alone)
        what_if = [plugin.filter_nodes(CycleState(), who, snapshot.single(n), np.array([0])) for n in snapshot.nodes]
        assert [int(one.codes[0]) for one in what_if] == [int(code) for code in together.codes]
    if hasattr(plugin, "score_nodes"):
        scores = plugin.score_nodes(CycleState(), who, snapshot, everywhere)
        backwards = plugin.score_nodes(CycleState(), who, snapshot, everywhere[::-1])
        assert np.array_equal(scores, backwards[::-1])
        assert ((scores >= 0) & (scores <= 100)).all()


@settings(max_examples=40, deadline=None)
@given(cluster=CLUSTERS, who=PODS)
def test_nodes_of_one_kind_are_refused_in_the_same_words(cluster: tuple[Node, ...], who: Any) -> None:
    for name in ("BatchForecast", "ActualLoadFilter"):
        plugin = default_registry().build(name, {}, handle(Clock(NOW)))
        snapshot = snapshot_for(plugin, list(cluster))
        verdicts = plugin.filter_nodes(CycleState(), who, snapshot, snapshot.all())
        if verdicts.kinds is None:
            continue
        words: dict[int, set[tuple[str, ...]]] = {}
        for i, kind in enumerate(verdicts.kinds.tolist()):
            status = verdicts.status(i)
            if not status.ok:
                words.setdefault(kind, set()).add(tuple(part.text for part in status.parts))
        assert all(len(texts) == 1 for texts in words.values())
