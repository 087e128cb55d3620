"""Series of single nodes: made of what was told last, of so many nodes at most, and never for what is not known."""

from __future__ import annotations

import re

from prometheus_client import generate_latest

from predictor.metrics import Metrics
from predictor.node_metrics import NodeFigures
from slacktide.forecast import Amount

NOTHING = Amount()
KNOWN = NodeFigures(
    reclaimable=Amount(cpu_millis=5, memory_bytes=0),
    published=Amount(cpu_millis=4),
    peak=Amount(cpu_millis=7, memory_bytes=8),
    sold=Amount(cpu_millis=3),
    requested=NOTHING,
    capacity=Amount(cpu_millis=12, memory_bytes=20),
    closed=False,
    sample_end=90.0,
)
UNKNOWN = NodeFigures(*(NOTHING,) * 6, closed=True, sample_end=None)


def series(registry, *names):
    chosen = registry.restricted_registry([f"slacktide_predictor_{name}" for name in names]) if names else registry
    lines = (line.rpartition(" ") for line in generate_latest(chosen).decode().splitlines() if line[0] != "#")
    found = {name.removeprefix("slacktide_predictor_"): float(value) for name, _, value in lines}
    return {name: value for name, value in found.items() if "node=" in name or name == "untold_nodes"}


def test_what_is_known_has_a_series_and_what_is_not_has_none(registry, metrics):
    metrics.nodes.tell("a", KNOWN)
    metrics.nodes.tell("b", UNKNOWN)
    metrics.nodes.tell_skew("c", -1.5)
    metrics.nodes.passed(100.0)
    assert series(registry) == {
        'clock_skew_seconds{node="c"}': -1.5,
        'sample_age_seconds{node="a"}': 10.0,
        'reclaimable{node="a",resource="cpu"}': 5.0,
        'reclaimable{node="a",resource="memory"}': 0.0,
        'published{node="a",resource="cpu"}': 4.0,
        'peak{node="a",resource="cpu"}': 7.0,
        'peak{node="a",resource="memory"}': 8.0,
        'sold{node="a",resource="cpu"}': 3.0,
        'closed{node="a"}': 0.0,
        'closed{node="b"}': 1.0,
        "untold_nodes": 0.0,
    }


def test_one_metric_can_be_asked_for_alone(registry, metrics):
    metrics.nodes.tell("a", KNOWN)
    metrics.nodes.tell_skew("a", 1.0)
    assert series(registry, "closed", "published") == {
        'closed{node="a"}': 0.0,
        'published{node="a",resource="cpu"}': 4.0,
    }


def test_the_fleet_is_summed_over_all_nodes_those_without_series_too_and_what_nobody_knows_is_left_out(registry):
    metrics = Metrics(registry, nodes_max=1)
    for name in ("a", "b", "c"):
        metrics.nodes.tell(name, KNOWN)
    metrics.nodes.tell("d", UNKNOWN)
    lines = generate_latest(registry).decode().splitlines()
    assert {line for line in lines if re.match(r"slacktide_predictor_(fleet|closed_nodes)", line)} == {
        'slacktide_predictor_fleet_cpu_millis{term="capacity"} 36.0',
        'slacktide_predictor_fleet_cpu_millis{term="peak"} 21.0',
        'slacktide_predictor_fleet_cpu_millis{term="reclaimable"} 15.0',
        'slacktide_predictor_fleet_cpu_millis{term="published"} 12.0',
        'slacktide_predictor_fleet_cpu_millis{term="sold"} 9.0',
        'slacktide_predictor_fleet_memory_bytes{term="capacity"} 60.0',
        'slacktide_predictor_fleet_memory_bytes{term="peak"} 24.0',
        'slacktide_predictor_fleet_memory_bytes{term="reclaimable"} 0.0',
        "slacktide_predictor_closed_nodes 1.0",
    }


def test_nodes_above_the_bound_are_left_out_and_counted_and_one_that_goes_makes_room(registry):
    metrics = Metrics(registry, nodes_max=2)
    for name in ("a", "b", "c", "d"):
        metrics.nodes.tell(name, KNOWN)
    assert series(registry, "closed", "untold_nodes") == {
        'closed{node="a"}': 0.0,
        'closed{node="b"}': 0.0,
        "untold_nodes": 2.0,
    }
    metrics.nodes.forget("a")
    assert series(registry, "closed", "untold_nodes") == {
        'closed{node="b"}': 0.0,
        'closed{node="c"}': 0.0,
        "untold_nodes": 1.0,
    }
    metrics.nodes.forget("nobody")
