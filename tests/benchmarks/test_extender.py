"""The benchmark of the extender: its questions are what a scheduler asks, and one small run gives every figure."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks import extender
from slacktide.errors import SlacktideError
from slacktide.objects import Pod
from slacktide.tier import Tier, tier_of


def test_orders_have_all_nodes_and_no_two_are_alike() -> None:
    known = [f"n{i}" for i in range(50)]
    order = extender.Orders(known)
    seen = [order() for _ in range(20)]
    assert all(sorted(one) == sorted(known) for one in seen)
    assert len({tuple(one) for one in seen}) == 20


def test_pods_are_of_the_tiers_that_are_meant() -> None:
    assert tier_of(msgspec.convert(extender.pod("p", 100), Pod)) is Tier.BE
    assert tier_of(msgspec.convert(extender.pod("p", 0), Pod)) is Tier.LS


def test_quantiles_are_in_milliseconds() -> None:
    assert extender.quantiles([0.001] * 98 + [0.005] * 2) == {"p50": 1.0, "p99": 5.0, "max": 5.0}


def test_a_wrong_answer_ends_the_benchmark() -> None:
    class Wrong:
        def ask(self, verb, content):
            return b'{"NodeNames": []}' if verb == "filter" else b"[]"

    with pytest.raises(SlacktideError, match="answers wrongly: 0 of 20"):
        extender.check(Wrong(), [f"n{i}" for i in range(20)])


def test_a_small_run_gives_every_figure() -> None:
    found = extender.at_size(20, 20, 50.0)
    rows = extender.table([found])
    assert [row[0] for row in rows][:2] == ["nodes", "filter_prioritize_ms"]
    assert found["filter_prioritize_ms"]["p99"] >= found["filter_prioritize_ms"]["p50"] > 0
    assert found["cpu_ms"] > 0
    assert found["concurrent_pods_per_second"] > 0
