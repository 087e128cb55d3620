"""How many series there are: bounded for each daemon, and at 5,000 nodes no more than the page of metrics says."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry

from deploy import series
from predictor.metrics import Metrics as PredictorMetrics
from predictor.node_metrics import NodeFigures
from slacktide.forecast import Amount
from tests.scheduler_plugins.build import be
from tests.scheduler_plugins.rig import Rig
from tests.test_docs import METRICS, ROOT

NODES = METRICS.NODES
AMOUNT = Amount(cpu_millis=1, memory_bytes=1)


def count(registry):
    return sum(len(family.samples) for family in registry.collect())


def test_only_the_predictor_has_a_label_for_nodes_and_only_an_agent_one_for_namespaces():
    having = {
        label: {
            section.title
            for section in METRICS.SECTIONS
            for _, labels in METRICS.families(section.registry())
            if label in labels
        }
        for label in ("node", "namespace")
    }
    assert having == {"node": {"Predictor"}, "namespace": {"Agent"}}


def test_a_label_that_nobody_has_stated_is_a_mistake():
    with pytest.raises(KeyError):
        series.size("slacktide_agent_new_figure", "whatever")


def test_the_predictor_has_as_many_series_for_each_node_as_the_page_says_and_no_more_of_a_larger_fleet():
    fixed, each = METRICS.bounds(*METRICS.EVERYWHERE, "Predictor")
    registry = CollectorRegistry()
    nodes = PredictorMetrics(registry, NODES).nodes
    before = count(registry)
    for index in range(NODES + 1000):
        nodes.tell(f"n{index}", NodeFigures(*(AMOUNT,) * 6, closed=False, sample_end=0.0))
        nodes.tell_skew(f"n{index}", 0.0)
    terms = 2 * series.SIZES["term"]
    assert count(registry) == before + terms + each * NODES
    assert registry.get_sample_value("slacktide_predictor_untold_nodes") == 1000
    assert (
        f"| predictor | {fixed:,}, and {each} for each node | nodes | {fixed + each * NODES:,} |"
        in (ROOT / "docs" / "metrics.md").read_text()
    )


def scheduled(nodes):
    """Series of a scheduler that placed and refused pods on so many nodes."""
    rig = Rig(preemption=True)
    for index in range(nodes):
        rig.offer(3000, f"n{index}")
    for index in range(20):
        rig.server.put(be(f"fits-{index}", 500))
        rig.server.put(be(f"never-{index}", 50_000))
    rig.settle()
    rig.later(30)
    assert rig.where("fits-0")
    assert rig.metric("scheduler_cache_size", type="nodes") == nodes
    return count(rig.registry)


def test_a_scheduler_has_no_more_series_of_5000_nodes_than_of_50():
    few, many = scheduled(50), scheduled(NODES)
    assert few == many <= series.MOST["scheduler"]


def test_the_page_says_what_all_have_together():
    page = (ROOT / "docs" / "metrics.md").read_text()
    total = int(re.search(r"\| all, two replicas each \| +\| +\| ([\d,]+) \|", page)[1].replace(",", ""))
    agent, _ = METRICS.bounds(*METRICS.EVERYWHERE, "Agent")
    assert total > NODES * agent
