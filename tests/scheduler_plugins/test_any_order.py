"""Whatever happens in whatever order: no room is sold twice, no pod is lost, nothing stays behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_plugins.framework.status import SUCCESS, failed, unresolvable, unschedulable
from slacktide.cluster.errors import Conflict, ServerError, Unreachable
from slacktide.objects import Pod
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.test_permit import WAIT, Permits

ROOM = 2
NODES = ("a", "b", "c")
ANSWERS = (SUCCESS, SUCCESS, WAIT, WAIT, unschedulable("x"), unresolvable("x"), failed("x"), RuntimeError("x"))
ERRORS = (Unreachable("away"), ServerError(500, "", "etcd"), Conflict(409, "Conflict", "changed"))


class World:
    """One scheduler and everything that may happen to it, drawn by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.plugin = Permits(SUCCESS, 30.0)
        self.rig = Rig(None, self.plugin, bind_now=False)
        self.server = self.rig.server
        self.trouble = True
        self.serial = 0
        self.server.before_bind = self.server.after_bind = self.maybe_fail
        for name in NODES:
            self.add_node(name)

    def maybe_fail(self, one: Pod, node_name: str) -> None:
        if self.trouble and self.random.random() < 0.2:
            raise self.random.choice(ERRORS)

    def add_node(self, name: str) -> None:
        self.server.put_node(node(name, {"cpu": str(ROOM), "pods": "9"}))

    def names(self, bound: bool | None = None) -> list[str]:
        known = sorted(self.server.pods.items())
        return [name for (_, name), one in known if bound is None or bool(one.spec.node_name) is bound]

    def step(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self.create,
            self.attempt,
            self.attempt,
            self.rig.run_bindings,
            self.decide,
            self.remove,
            self.change,
            self.place_elsewhere,
            self.time_passes,
            self.watch_lags,
            self.node_goes_or_comes,
        )
        self.random.choice(steps)()
        for name in NODES:
            assert sum(1 for one in self.server.pods.values() if one.spec.node_name == name) <= ROOM

    def create(self) -> None:
        if len(self.server.pods) < ROOM * len(NODES):
            self.serial += 1
            self.server.put(pod(f"p{self.serial}", {"cpu": "1"}))

    def attempt(self) -> None:
        self.plugin.answer = self.random.choice(ANSWERS)
        self.rig.scheduler.attempt(0)

    def decide(self) -> None:
        waiting = self.rig.waiting.all()
        if waiting:
            one: Any = self.random.choice(waiting)
            self.random.choice((lambda: one.allow("Permits"), lambda: one.reject("Permits", "no")))()

    def remove(self) -> None:
        if self.names():
            self.server.remove(self.random.choice(self.names()))

    def change(self) -> None:
        if self.names():
            one = self.server.pods["default", self.random.choice(self.names())]
            fresh = pod(one.metadata.name, {"cpu": "1"}, metadata={"labels": {"n": str(self.random.random())}})
            if not one.spec.node_name:
                self.server.put(fresh)

    def place_elsewhere(self) -> None:
        """Another scheduler places a pod of ours, where the books of both sides have room."""
        free = [name for name in NODES if name in self.server.nodes and not self.counted(name)]
        if free and self.names(bound=False):
            self.server.assign(self.random.choice(self.names(bound=False)), self.random.choice(free))

    def counted(self, name: str) -> int:
        ours = sum(1 for where in self.rig.cache.contents().pods.values() if where == name)
        return ours + sum(1 for one in self.server.pods.values() if one.spec.node_name == name)

    def time_passes(self) -> None:
        self.rig.clock.forward(self.random.choice((1, 5, 31)))
        self.rig.waiting.expire()
        self.rig.queue.flush_backoff()

    def watch_lags(self) -> None:
        self.server.hold = not self.server.hold
        if not self.server.hold:
            self.server.deliver()

    def node_goes_or_comes(self) -> None:
        if self.server.hold or self.random.random() < 0.7:
            return
        name = self.random.choice(NODES)
        if name in self.server.nodes:
            self.server.handlers.node_deleted(self.server.nodes.pop(name))
        else:
            self.add_node(name)

    def come_to_rest(self) -> None:
        self.trouble = False
        self.plugin.answer = SUCCESS
        self.server.hold = False
        for name in NODES:
            if name not in self.server.nodes:
                self.add_node(name)
        for _ in range(12):
            self.server.deliver()
            self.rig.clock.forward(310)
            self.rig.waiting.expire()
            self.rig.queue.flush_unschedulable()
            self.rig.queue.flush_backoff()
            self.rig.settle()
            self.rig.run_bindings()


@pytest.mark.parametrize("seed", range(60))
def test_any_order(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        world.step()
    world.come_to_rest()
    rig = world.rig
    assert world.names(bound=False) == []
    assert rig.queue.in_flight_entries() == []
    assert sum(rig.queue.counts().values()) == 0
    assert rig.waiting.all() == ()
    assert (rig.cache.size().pods, rig.cache.size().assumed_pods) == (len(world.names()), 0)
    assert rig.cache.contents().wrong_sums == ()
    assert rig.nominator.nodes() == frozenset()
