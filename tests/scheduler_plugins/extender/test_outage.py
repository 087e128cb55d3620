"""A scheduler with its extender, over real HTTP: together, and with the extender slow, dead or wrong.

The caller is our own client, which has the rules of the stock one (kube-scheduling.md 2.1): a failure ends the attempt
unless the extender is ignorable, scores are a wish, and a pod that asks for nothing managed is never asked about.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_plugins.config.types import ExtenderConfig, ManagedResource
from scheduler_plugins.cycle import Placement, place
from scheduler_plugins.extender.binding import PodBinding
from scheduler_plugins.extender.server import ExtenderServer
from scheduler_plugins.extenders.client import HttpExtender
from scheduler_plugins.framework.diagnosis import FitError
from scheduler_plugins.framework.extending import Victims
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, PluginFailure
from scheduler_plugins.plugins.default_binder import DefaultBinder
from scheduler_plugins.plugins.priority_sort import PrioritySort
from slacktide.tier import Tier
from tests.scheduler_plugins.build import READER, Silent, be, handle, node, pod, snapshot_of
from tests.scheduler_plugins.extender.support import LIMITS, Bench, Gate, Picky, served

NODES = [
    node("low", labels={"score": "10"}),
    node("high", labels={"score": "90"}),
    node("no", labels={"say": "no", "score": "100"}),
]


@contextlib.contextmanager
def client(address: str, **fields: Any) -> Iterator[HttpExtender]:
    """The scheduler's client of the extender at `address`, with all verbs."""
    config = ExtenderConfig(
        **{
            "url_prefix": f"http://{address}",
            "filter_verb": "filter",
            "prioritize_verb": "prioritize",
            "preempt_verb": "preempt",
            "bind_verb": "bind",
            "weight": 1,
            "node_cache_capable": True,
            "http_timeout": "20s",
            **fields,
        }
    )
    made = HttpExtender(config, lambda node_name, uid: None)
    try:
        yield made
    finally:
        made.close()


def bare(*extenders: HttpExtender, bind: Any = None) -> Framework:
    """A profile without any filter or score of its own."""
    lent = dataclasses.replace(handle(), bind=bind or handle().bind)
    return Framework("test", [PrioritySort(), DefaultBinder(lent)], {}, Silent(), extenders=extenders)


def scheduled(extender: HttpExtender, asked: Any) -> Placement:
    """One cycle of a scheduler without any filter of its own."""
    framework = bare(extender)
    snapshot = snapshot_of(framework, NODES)
    return place(framework, CycleState(), READER.read(asked), snapshot, lambda count: 0)


def dead() -> str:
    """An address at which nobody listens any more."""
    with served(Bench(Picky()).service) as server:
        return server.address


@pytest.mark.parametrize("names_only", [True, False])
def test_the_extender_decides_where_a_best_effort_pod_goes(names_only) -> None:
    with (
        served(Bench(Picky(), nodes=NODES).service) as server,
        client(server.address, node_cache_capable=names_only) as extender,
    ):
        placement = scheduled(extender, be())
        assert placement.node == "high"
        assert placement.feasible == 2
        assert placement.diagnosis.statuses()["no"].message == "said no"
        assert extender.prioritize(READER.read(be()), snapshot_of(bare(), NODES).nodes) == {
            "low": 10,
            "high": 90,
            "no": 100,
        }


def test_a_pod_that_fits_nowhere_has_the_extender_s_reasons() -> None:
    cluster = [node("a", labels={"say": "no"}), node("b", labels={"say": "never"})]
    with served(Bench(Picky(), nodes=cluster).service) as server, client(server.address) as extender:
        framework = bare(extender)
        with pytest.raises(FitError) as caught:
            place(framework, CycleState(), READER.read(be()), snapshot_of(framework, cluster), lambda count: 0)
    assert str(caught.value) == "0/2 nodes are available: 1 said never, 1 said no."
    assert extender.name in caught.value.diagnosis.unschedulable_plugins


@pytest.mark.parametrize("asked", [be(), pod()], ids=["BE", "LS"])
def test_a_dead_extender_that_is_ignorable_is_as_none(asked) -> None:
    with client(dead(), ignorable=True) as extender:
        assert scheduled(extender, asked).feasible == 3


@pytest.mark.parametrize("asked", [be(), pod()], ids=["BE", "LS"])
def test_a_dead_extender_that_is_not_ignorable_ends_every_attempt(asked) -> None:
    """So it must be ignorable wherever it is asked about LS pods, that is unless it manages a resource."""
    with client(dead()) as extender, pytest.raises(PluginFailure, match="filter"):
        scheduled(extender, asked)


def test_with_a_managed_resource_a_dead_extender_is_never_asked_about_ls() -> None:
    managed = [ManagedResource(name="example.com/batch-cpu")]
    with client(dead(), managed_resources=managed) as extender:
        assert scheduled(extender, pod()).feasible == 3
        with pytest.raises(PluginFailure):
            scheduled(extender, pod(requests={"example.com/batch-cpu": "1"}))


def test_an_extender_that_hangs_holds_up_best_effort_pods_only() -> None:
    gate = Gate()
    service = Bench(gate, nodes=NODES, wait_seconds=0.2).service
    with served(service) as server, client(server.address, http_timeout="1s") as extender:
        try:
            with pytest.raises(PluginFailure):
                scheduled(extender, be("first"))
            assert gate.entered.is_set()
            assert scheduled(extender, pod()).feasible == 3
            with pytest.raises(PluginFailure, match="another pod has been judged"):
                scheduled(extender, be("second"))
        finally:
            gate.release.set()


def test_a_slow_extender_costs_no_more_than_its_time() -> None:
    gate = Gate()
    service = Bench(gate, nodes=NODES).service
    with served(service) as server, client(server.address, http_timeout="200ms", ignorable=True) as extender:
        try:
            began = time.monotonic()
            assert scheduled(extender, be()).feasible == 3
            # Well below the 60 s for which the plugin hangs, and not before the time is over.
            assert 0.2 <= time.monotonic() - began < 30
        finally:
            gate.release.set()


def test_an_extender_that_has_listed_nothing_yet_says_so() -> None:
    with served(Bench(Picky(), ready=lambda: "not listed yet: nodes").service) as server:
        with client(server.address) as extender, pytest.raises(PluginFailure, match="not ready: not listed yet: nodes"):
            scheduled(extender, be())
        with client(server.address) as extender:
            assert scheduled(extender, pod()).feasible == 3


def test_scores_that_cannot_be_had_are_left_out() -> None:
    odd = [node(one.metadata.name, labels={"score": "1000"}) for one in NODES]
    with served(Bench(Picky(), nodes=odd).service) as server, client(server.address) as extender:
        assert scheduled(extender, be()).feasible == 3


def test_an_extender_that_comes_back_is_asked_again() -> None:
    bench = Bench(Picky(), nodes=NODES)
    with served(bench.service) as server:
        address = server.address
        with client(address, ignorable=True) as extender:
            assert scheduled(extender, be()).feasible == 2
            server.stop()
            assert scheduled(extender, be()).feasible == 3
            again = ExtenderServer(address, bench.service, LIMITS, bench.metrics)
            again.start()
            try:
                assert scheduled(extender, be()).feasible == 2
            finally:
                again.stop()


@pytest.mark.parametrize("names_only", [True, False])
def test_preemption_asks_the_extender_too(names_only) -> None:
    """Section 7 row 12."""
    victims = {name: Victims((READER.read(be(f"v-{name}")),), 1) for name in ("low", "no")}
    placed = {name: [be(f"v-{name}")] for name in ("low", "no")}
    with (
        served(Bench(Picky(), nodes=NODES, placed=placed).service) as server,
        client(server.address, node_cache_capable=names_only) as extender,
    ):
        assert extender.preempt(READER.read(be()), victims) == {"low": victims["low"]}


def test_bind_goes_through_the_extender() -> None:
    bench = Bench(Picky(), nodes=NODES)

    class Known:
        def get(self, namespace, name):
            return be(name)

    bound: list[tuple[str, str]] = []

    def api(info, where):
        bound.append((info.key, where))
        return SUCCESS

    binding = PodBinding(bare(bind=api), bench.cache, READER, frozenset({Tier.BE}), Known(), None, api)
    bench.service._binding = binding
    with served(bench.service) as server, client(server.address) as extender:
        assert extender.bind(READER.read(be("p")), "high").ok
        assert "it was replaced" in extender.bind(READER.read(be("p", metadata={"uid": "older"})), "high").message
    assert bound == [("default/p", "high")]
    assert bench.cache.is_assumed("uid-p")
