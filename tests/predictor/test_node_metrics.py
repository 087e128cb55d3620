"""Series of single nodes: made of what was told last, of so many nodes at most, and never for what is not known."""

from __future__ import annotations

from prometheus_client import generate_latest

from predictor.metrics import Metrics
from predictor.node_metrics import NodeFigures
from slacktide.forecast import Amount

KNOWN = NodeFigures(
    Amount(cpu_millis=5, memory_bytes=0), Amount(cpu_millis=4), Amount(cpu_millis=7, memory_bytes=8), False, 90.0
)


def series(registry, *names):
    chosen = registry.restricted_registry([f"slacktide_predictor_{name}" for name in names]) if names else registry
    lines = (line.rpartition(" ") for line in generate_latest(chosen).decode().splitlines() if line[0] != "#")
    found = {name.removeprefix("slacktide_predictor_"): float(value) for name, _, value in lines}
    return {name: value for name, value in found.items() if "node=" in name or name == "untold_nodes"}


def test_what_is_known_has_a_series_and_what_is_not_has_none(registry, metrics):
    metrics.nodes.tell("a", KNOWN)
    metrics.nodes.tell("b", NodeFigures(Amount(), Amount(), Amount(), True, None))
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
