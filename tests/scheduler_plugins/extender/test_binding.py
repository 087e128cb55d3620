"""The bind verb: counted at once, undone on every failure path, never leaked."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.extender.binding import PodBinding
from scheduler_plugins.extenders import wire
from scheduler_plugins.framework.interfaces import BindPlugin, PostBindPlugin, PreBindPlugin, ReservePlugin
from scheduler_plugins.framework.status import SUCCESS, Status, failed
from slacktide.cluster.errors import Unreachable
from slacktide.objects import Pod
from slacktide.tier import Tier
from tests.scheduler_plugins.build import READER, be, framework, node, pod
from tests.scheduler_plugins.extender.support import Bench


class Books(ReservePlugin, PreBindPlugin, PostBindPlugin):
    """Notes what it is told; `refuse` names the point at which it says no."""

    name = "Books"

    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.told: list[str] = []

    def _note(self, point: str) -> Status:
        self.told.append(point)
        return failed(f"no at {point}") if point == self.refuse else SUCCESS

    def reserve(self, state, pod, node_name):
        return self._note("reserve")

    def unreserve(self, state, pod, node_name):
        self._note("unreserve")

    def pre_bind(self, state, pod, node_name):
        return self._note("pre_bind")

    def post_bind(self, state, pod, node_name):
        self._note("post_bind")


class Binder(BindPlugin):
    name = "Binder"

    def __init__(self, status: Status) -> None:
        self.status = status
        self.seen_assumed: list[bool] = []
        self.cache: Any = None

    def bind(self, state, pod, node_name):
        self.seen_assumed.append(pod.uid in self.cache)
        return self.status


class World:
    """Pods of informer and API. `vanish_after` looks at the informer the pod is gone from it."""

    def __init__(self, informer: list[Pod] = (), api: list[Pod] = (), vanish_after: int = 99) -> None:
        self.informer = {one.metadata.name: one for one in informer}
        self.api = {one.metadata.name: one for one in api}
        self.left = vanish_after

    def get(self, *where: Any) -> Any:
        if isinstance(where[0], str):
            self.left -= 1
            return self.informer.get(where[1]) if self.left >= 0 else None
        if where[1] not in self.api:
            raise Unreachable("no API here")
        return self.api[where[1]]


def binding(world: World, status: Status = SUCCESS, refuse: str = "") -> tuple[PodBinding, Bench, Books, Binder]:
    books, binder = Books(refuse), Binder(status)
    bench = Bench(nodes=[node("a")])
    binder.cache = bench.cache
    direct = Binder(status)
    direct.cache = bench.cache
    profile = framework(books, binder)
    made = PodBinding(
        profile,
        bench.cache,
        READER,
        frozenset({Tier.BE}),
        world,
        world,
        lambda pod, where: direct.bind(None, pod, where),
    )
    binder.direct = direct
    return made, bench, books, binder


def order(name: str = "p", uid: str = "") -> wire.ExtenderBindingArgs:
    return wire.ExtenderBindingArgs(pod_name=name, pod_namespace="default", pod_uid=uid or f"uid-{name}", node="a")


def test_a_bound_pod_is_counted_before_the_api_is_told() -> None:
    made, bench, books, binder = binding(World([be("p")]))
    assert made.bind(order()) == ""
    assert binder.seen_assumed == [True]
    assert bench.cache.is_assumed("uid-p")
    assert books.told == ["reserve", "pre_bind", "post_bind"]


@pytest.mark.parametrize("refuse", ["reserve", "pre_bind"])
def test_whatever_fails_before_the_bind_is_undone(refuse) -> None:
    """Section 7 row 14: held state must be released on every failure path."""
    made, bench, books, binder = binding(World([be("p")]), refuse=refuse)
    assert made.bind(order()) == f"no at {refuse}"
    assert "uid-p" not in bench.cache
    assert books.told[-1] == "unreserve"
    assert binder.seen_assumed == []


def test_a_failed_bind_is_undone() -> None:
    """Row 14 of section 7 (HAMi #1130, #1422, #1875): what was held is given back on every way out."""
    made, bench, books, _ = binding(World([be("p")]), status=failed("the API said no"))
    assert made.bind(order()) == "the API said no"
    assert "uid-p" not in bench.cache
    assert books.told == ["reserve", "pre_bind", "unreserve"]


def test_a_pod_of_another_uid_is_not_bound() -> None:
    made, bench, _, binder = binding(World([be("p")]))
    assert "it was replaced" in made.bind(order(uid="uid-older"))
    assert binder.seen_assumed == []
    assert bench.cache.size().pods == 0


def test_a_pod_that_the_informer_has_not_seen_is_bound_and_not_counted() -> None:
    """It may end before the informer sees it, and then nothing would end the counting."""
    made, bench, _, binder = binding(World(api=[be("p")]))
    assert made.bind(order()) == ""
    assert binder.seen_assumed == [False]
    assert bench.cache.size().pods == 0


def test_a_pod_that_ends_while_it_is_counted_is_not_kept() -> None:
    made, bench, _, binder = binding(World([be("p")], vanish_after=1))
    assert made.bind(order()) == ""
    assert binder.seen_assumed == [False]
    assert bench.cache.size().pods == 0


def test_a_pod_that_nobody_can_read_is_an_error() -> None:
    made, bench, _, _ = binding(World())
    assert "default/p cannot be read" in made.bind(order())
    assert bench.cache.size().pods == 0


def test_an_order_that_comes_twice_counts_once() -> None:
    made, bench, _, _ = binding(World([be("p")]))
    assert made.bind(order()) == made.bind(order()) == ""
    assert bench.cache.size().pods == 1


def test_other_tiers_are_bound_without_plugins_and_books() -> None:
    made, bench, books, binder = binding(World([pod("p")]))
    assert made.bind(order()) == ""
    assert binder.direct.seen_assumed == [False]
    assert books.told == []
    assert bench.cache.size().pods == 0


def test_the_verb_says_what_the_binding_says() -> None:
    made, _, _, _ = binding(World())
    bench = Bench(binding=made)
    answer = bench.ask("bind", PodName="p", PodNamespace="default", PodUID="u", Node="a")
    assert "cannot be read" in answer["Error"]
    assert bench.count("failed", "bind") == 1
