"""Plain counts become the series that prometheus_client itself would have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from scheduler_plugins.plain_metrics import Evaluations, PlainHistogram

BOUNDS = [0.001, 0.01, 0.5]


@given(st.lists(st.sampled_from([0.0, 0.0005, 0.001, 0.0011, 0.01, 0.4, 0.5, 0.6, 100.0])))
def test_histogram_equals_that_of_the_library(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    plain = PlainHistogram("h", "About.", ["a", "b"], BOUNDS)
    ours.register(plain)
    library = Histogram("h", "About.", ["a", "b"], buckets=BOUNDS, registry=theirs)
    for value in values:
        plain.observe(("x", "y"), value)
        library.labels("x", "y").observe(value)

    def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
        found = [sample for family in registry.collect() for sample in family.samples]
        return {(s.name, s.labels.get("le", "")): s.value for s in found if not s.name.endswith("_created")}

    assert samples(ours) == samples(theirs)


def test_plugins_are_counted_one_by_one_whoever_was_asked_with_them() -> None:
    registry = CollectorRegistry()
    evaluations = Evaluations("e", "About.")
    registry.register(evaluations)
    for plugins, point in (("A", "Filter"), ("AB", "Filter"), ("AB", "Filter"), ("B", "Score")):
        evaluations.add(list(plugins), point, "prof")

    def count(plugin: str, point: str) -> float | None:
        labels = {"plugin": plugin, "extension_point": point, "profile": "prof"}
        return registry.get_sample_value("e_total", labels)

    assert (count("A", "Filter"), count("B", "Filter"), count("B", "Score")) == (3, 2, 1)
