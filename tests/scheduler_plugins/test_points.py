"""Plugins where the profile says, in time or not, and with answers that nobody may give."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduler_plugins.cycle import place
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, PluginFailure, Status
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.plugins.default_binder import DefaultBinder
from scheduler_plugins.plugins.priority_sort import PrioritySort
from slacktide.errors import SettingsError
from tests.patience import PATIENCE
from tests.scheduler_plugins.build import Clock, Silent, framework, handle, info, node, snapshot_of


class Both(api.NodeFilterPlugin, api.NodeScorePlugin):
    """Filters and scores, and says so."""

    def __init__(self, name: str, log: list[str], slow: Any = None) -> None:
        self.name = name  # type: ignore[misc]
        self.log = log
        self.slow = slow

    def filter(self, state: Any, pod: Any, node: Any) -> Status:
        self.log.append(f"{self.name} filter")
        if self.slow:
            self.slow()
        return SUCCESS

    def score(self, state: Any, pod: Any, node: Any) -> float:
        self.log.append(f"{self.name} score")
        return 1.0


def profile(points: dict[str, list[str]] | None, *plugins: api.Plugin, **more: Any) -> Framework:
    every = [*plugins, PrioritySort(), DefaultBinder(handle())]
    return Framework("test", every, more.pop("weights", {}), more.pop("observer", Silent()), points=points, **more)


BASE = {"queueSort": ["PrioritySort"], "bind": ["DefaultBinder"]}


def cycle(one: Framework) -> None:
    place(one, CycleState(), info("p"), snapshot_of(one, [node("a"), node("b")]), lambda count: 0)


@pytest.mark.parametrize(
    ("points", "want"),
    [
        (None, ["A filter", "B filter", "A score", "B score"]),
        ({"filter": ["B", "A"], "score": ["A"]}, ["B filter", "A filter", "A score"]),
        ({"score": ["B", "A"]}, ["B score", "A score"]),
        ({"filter": ["A"]}, ["A filter"]),
    ],
)
def test_plugins_take_part_where_the_profile_says_and_in_its_order(points: Any, want: list[str]) -> None:
    log: list[str] = []
    cycle(profile(None if points is None else BASE | points, Both("A", log), Both("B", log)))
    assert list(dict.fromkeys(log)) == want


def test_points_are_checked_all_at_once() -> None:
    log: list[str] = []
    points = {"filter": ["Ghost", "A", "A"], "permit": ["A"], "prefilter": ["A"], "score": ["A"], "bind": []}
    with pytest.raises(SettingsError) as caught:
        profile(points, Both("A", log), weights={"B": 3})
    text = "\n".join(caught.value.problems)
    for words in (
        "filter names Ghost, which is no plugin of this profile",
        "filter names A twice",
        "permit names A, which takes no part there",
        "there is no extension point 'prefilter'; known: preEnqueue, queueSort, preFilter",
        "weight of B: the plugin does not score in this profile (those that do: A)",
        "exactly one queue sort plugin must be enabled",
        "no bind plugin is enabled",
    ):
        assert words in text, words


# Time.


def test_call_over_the_budget_is_reported_with_plugin_and_point() -> None:
    clock, observer, log = Clock(), Silent(), list[str]()
    slow, quick = Both("Slow", log, lambda: clock.forward(0.2)), Both("Quick", log)
    cycle(profile(None, slow, quick, observer=observer, monotonic=clock, budget_seconds=0.3))
    assert observer.over == [("Slow", "Filter")]


def test_slow_plugin_is_counted_each_time_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock, registry = Clock(), CollectorRegistry()
    metrics = SchedulerMetrics(registry, clock)
    for seconds, lines in ((0, 1), (59, 1), (60, 2)):
        clock.now = 1000.0 + seconds
        metrics.over_budget("Slow", "Filter", 0.4)
        assert sum("over its time budget" in record.getMessage() for record in caplog.records) == lines
    labels = {"plugin": "Slow", "extension_point": "Filter"}
    assert registry.get_sample_value("slacktide_scheduler_plugin_over_budget_total", labels) == 3


def test_binding_may_take_its_time() -> None:
    clock, observer = Clock(), Silent()

    class Binds(DefaultBinder):
        def bind(self, state: Any, pod: Any, node_name: str) -> Status:
            clock.forward(100)
            return SUCCESS

    Framework("test", [Binds(handle()), PrioritySort()], {}, observer, clock).run_bind(CycleState(), info("p"), "a")
    assert observer.over == []


def test_times_of_a_sampled_cycle_only_go_to_the_metrics() -> None:
    observer = Silent()
    one = profile(None, Both("A", []), observer=observer)
    cycle(one)
    assert observer.took == []
    state = CycleState()
    state.sampled = True
    place(one, state, info("p"), snapshot_of(one, [node("a"), node("b")]), lambda count: 0)
    assert observer.took == [("A", "Filter", "Success"), ("A", "Score", "Success")]


def test_plugin_that_hangs_is_named_while_it_hangs() -> None:
    started, let_go = threading.Event(), threading.Event()
    clock = Clock()

    def hang() -> None:
        started.set()
        let_go.wait(60 * PATIENCE)

    one = profile(None, Both("Hangs", [], hang), monotonic=clock)
    thread = threading.Thread(target=cycle, args=(one,))
    thread.start()
    try:
        assert started.wait(20 * PATIENCE)
        clock.forward(59)
        assert one.hung() == []
        clock.forward(2)
        assert one.hung() == ["plugin Hangs has not answered in Filter for 61 s"]
    finally:
        let_go.set()
        thread.join(20 * PATIENCE)
    assert one.hung() == []


def test_plugin_that_asks_others_is_the_one_that_hangs_afterwards() -> None:
    clock = Clock()
    seen: list[Any] = []

    class Asks(api.PostFilterPlugin):
        name = "Asks"

        def post_filter(
            self, state: Any, pod: Any, snapshot: Any, diagnosis: Any, what_if: api.WhatIf
        ) -> api.PostFilterResult:
            what_if.judge(state.clone(), pod, snapshot.nodes[0].clone())
            clock.forward(100)
            seen.extend(one.hung())
            from scheduler_plugins.framework.status import unschedulable

            return api.PostFilterResult(unschedulable("x"))

    from scheduler_plugins.cycle import NoFitError
    from scheduler_plugins.framework.status import unschedulable

    full = type("Full", (api.NodeFilterPlugin,), {"name": "Full", "filter": lambda *_: unschedulable("full")})()
    one = profile(None, full, Asks(), monotonic=clock)
    with pytest.raises(NoFitError):
        cycle(one)
    assert seen == ["plugin Asks has not answered in PostFilter for 100 s"]
    assert one.hung() == []


# Answers that nobody may give.


@pytest.mark.parametrize("bad", [101, -1, float("nan"), float("inf"), -0.5])
def test_score_outside_of_the_range_names_plugin_node_and_score(bad: float) -> None:
    class Scores(api.NodeScorePlugin):
        name = "Scores"

        def score(self, state: Any, pod: Any, node: Any) -> float:
            return bad if node.name == "b" else 50.0

    with pytest.raises(PluginFailure, match=rf"plugin Scores gave node b the score {bad:.1f}; it must be 0 to 100"):
        cycle(framework(Scores()))


@pytest.mark.parametrize("method", ["score_nodes", "normalize"])
def test_wrong_number_of_scores(method: str) -> None:
    import numpy as np

    class Scores(api.ScorePlugin):
        name = "Scores"

        def score_nodes(self, state: Any, pod: Any, snapshot: Any, rows: Any) -> Any:
            return np.zeros(len(rows))

    setattr(Scores, method, lambda *_: np.zeros(3))
    with pytest.raises(PluginFailure, match=r"Scores (scored|normalised) 3 .*asked for 2"):
        cycle(framework(Scores()))


def test_unknown_node_from_pre_filter_is_ignored_and_nothing_known_left_is_a_refusal() -> None:
    class Narrow(api.PreFilterPlugin):
        name = "Narrow"

        def pre_filter(self, state: Any, pod: Any, snapshot: Any) -> api.PreFilterResult:
            return api.PreFilterResult(nodes=frozenset({"ghost"}))

    from scheduler_plugins.cycle import NoFitError

    with pytest.raises(NoFitError, match=r"2 node\(s\) didn't satisfy plugin\(s\) \[Narrow\]"):
        cycle(framework(Narrow()))
