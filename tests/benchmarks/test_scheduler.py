"""The scheduler's benchmark runs, and its figures are there."""

from __future__ import annotations

from benchmarks.scheduler import alone, table


def test_alone_places_every_pod_and_measures_each_cycle():
    figures = alone(nodes=12, pods=15)
    assert {"cycle_ms_p50", "cycle_ms_p99", "binding_ms_p50", "pods_per_second", "rss_mib"} == figures.keys()
    assert 0 < figures["cycle_ms_p50"] <= figures["cycle_ms_p99"]


def test_the_table_has_a_line_a_size():
    figures = dict.fromkeys(("cycle_ms_p50", "cycle_ms_p99", "binding_ms_p50", "pods_per_second", "rss_mib"), 1.0)
    results = {
        "alone": {"100": figures},
        "pods_per_second_5000": 3.0,
        "stock_pods_per_second_5000": 2.0,
        "ratio_5000": 1.5,
    }
    heading, small, large = table(results, [100, 5000])
    assert len(heading) == len(small) == len(large)
    assert (small[0], small[-1], large[1], large[-1]) == ("100", "", "", "1.50")
