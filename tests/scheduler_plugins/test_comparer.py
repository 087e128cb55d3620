"""Comparison of cache and queue with the API: every kind of difference is named, and what is under way is none."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.comparer import SETTLE_SECONDS, SIGNAL, Comparer, Differences, OnSignal
from scheduler_plugins.framework.queue import SchedulingQueue
from slacktide import names
from slacktide.errors import SlacktideError
from tests.patience import PATIENCE
from tests.scheduler_plugins.build import Clock, Silent, info, node, pod
from tests.scheduler_plugins.test_queue import Rules


class World:
    """An API with nodes a and b, pod p on a, pod q waiting; cache and queue that know all of it."""

    def __init__(self) -> None:
        self.nodes = {"a": node("a"), "b": node("b")}
        self.pods = {"p": pod("p", {"cpu": "1"}, nodeName="a"), "q": pod("q")}
        self.cache = Cache()
        self.queue = SchedulingQueue(Rules(), Silent(), Clock())
        self.waits: list[float] = []
        self.meanwhile: Any = lambda: None
        for one in self.nodes.values():
            self.cache.set_node(one)
        self.cache.add_pod(info("p", {"cpu": "1"}, nodeName="a"))
        self.queue.add(info("q"))
        self.comparer = Comparer(
            self.cache,
            self.queue,
            lambda: self.nodes.values(),
            lambda: self.pods.values(),
            [names.SCHEDULER_NAME],
            self.wait,
        )

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.meanwhile()
        return False


def test_what_agrees_needs_one_look() -> None:
    world = World()
    assert not world.comparer.compare()
    assert world.waits == []


@pytest.mark.parametrize(
    ("change", "want"),
    [
        (lambda w: w.nodes.update(c=node("c")), {"missing_nodes": {"c"}}),
        (lambda w: w.nodes.pop("b"), {"surplus_nodes": {"b"}}),
        (lambda w: w.pods.update(r=pod("r", nodeName="b")), {"missing_pods": {"default/r"}}),
        (lambda w: w.pods.pop("p"), {"surplus_pods": {"default/p on a"}}),
        (lambda w: w.cache.assume(info("r"), "b"), {"surplus_pods": {"default/r on b"}}),
        (
            lambda w: w.pods.update(p=pod("p", nodeName="b")),
            {"misplaced_pods": {"default/p on a, by the API on b"}},
        ),
        (lambda w: w.pods.update(r=pod("r")), {"lost_pods": {"default/r"}}),
        (lambda w: w.pods.pop("q"), {"stale_in_queue": {"uid-q"}}),
        (lambda w: w.cache._nodes["a"].requested.update(cpu=1), {"wrong_sums": {"a"}}),
    ],
    ids=["node", "old node", "pod", "old pod", "assumed only", "elsewhere", "lost", "left in queue", "sums"],
)
def test_each_difference_is_named(change: Any, want: dict[str, set[str]]) -> None:
    world = World()
    change(world)
    assert world.comparer.compare() == Differences(**{name: frozenset(those) for name, those in want.items()})
    assert world.waits == [SETTLE_SECONDS]


@pytest.mark.parametrize(
    "change",
    [
        lambda w: (w.queue.pop(0), w.queue.done("uid-q"), w.cache.assume(info("q"), "a")),
        lambda w: w.queue.pop(0),
        lambda w: w.pods.update(r=pod("r", schedulerName="another")),
        lambda w: w.pods.update(r=pod("r", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        lambda w: w.pods.update(r=pod("r", nodeName="a", status={"phase": "Succeeded"})),
    ],
    ids=["assumed", "being attempted", "of another scheduler", "being deleted", "ended"],
)
def test_what_is_right_is_no_difference(change: Any) -> None:
    world = World()
    change(world)
    assert not world.comparer.compare()


def test_what_settles_meanwhile_is_not_told() -> None:
    world = World()
    world.nodes["c"] = node("c")
    world.meanwhile = lambda: world.cache.set_node(world.nodes["c"])
    assert not world.comparer.compare()


def test_an_api_that_cannot_be_listed_ends_in_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Any:
        raise SlacktideError("no route")

    world = World()
    Comparer(world.cache, world.queue, fails, fails, [], world.wait).report()
    assert "could not be listed" in caplog.text


def test_the_log_names_what_differs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World()
    world.comparer.report()
    assert "agree with the API" in caplog.text
    world.nodes["c"] = node("c")
    world.comparer.report()
    assert "differ from the API" in caplog.text
    assert "missing_nodes" in caplog.text


def test_each_signal_asks_for_one_comparison_even_after_one_that_failed() -> None:
    ran = threading.Semaphore(0)

    def action() -> None:
        ran.release()
        raise RuntimeError("first and last")

    with OnSignal(action) as listening:
        for _ in range(2):
            os.kill(os.getpid(), SIGNAL)
            assert ran.acquire(timeout=10 * PATIENCE)
    listening._thread.join(10 * PATIENCE)
    assert not listening._thread.is_alive()
