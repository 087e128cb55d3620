"""Room that a preemption could make: sums by resource name, whoever invents the names."""

from __future__ import annotations

import numpy as np

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.yielding import Claim
from scheduler_plugins.plugins.preemption_room import _MOST_CLAIMS, _MOST_RESOURCES, Removable, Room
from tests.scheduler_plugins.build import READER, framework, node, pod
from tests.scheduler_plugins.plugins.preempting import HIGH, LOW

NAMES = [f"example.com/invented-{i}" for i in range(4 * _MOST_RESOURCES)]
WHO = Claim.of(READER.read(pod("p", priority=HIGH)))


class World:
    """Nodes, each with one pod on it that asks for so much of every invented resource."""

    def __init__(self, amounts: dict[str, int]) -> None:
        self.cache, self.snapshot = Cache(), framework().new_snapshot()
        self.victims: dict[str, str] = {}
        for name, amount in amounts.items():
            self.fill(name, amount)

    def fill(self, name: str, amount: int) -> None:
        self.cache.set_node(node(name, {"pods": "32", "cpu": "1", **dict.fromkeys(NAMES, "10")}))
        victim = READER.read(pod(f"v-{name}", dict.fromkeys(NAMES, str(amount)), priority=LOW)).on(name)
        self.victims[name] = victim.uid
        self.cache.add_pod(victim)
        self.cache.refresh(self.snapshot)

    def free(self, name: str) -> None:
        self.cache.remove_pod(self.victims.pop(name))
        self.cache.refresh(self.snapshot)


def ask(room: Room, world: World) -> Removable:
    return room.removable(WHO, world.snapshot, world.snapshot.all(), lambda: True)


def test_every_resource_is_summed_right_however_many_there_are() -> None:
    room, world = Room(), World({"a": 3, "b": 8})
    rows = world.snapshot.all()
    for _ in range(2):
        for name in NAMES:
            assert ask(room, world).enough({name: 10}, rows).tolist() == [True, True], name
            assert ask(room, world).enough({name: 11}, rows).tolist() == [False, False], name
    world.free("a")
    world.fill("c", 1)
    removable = ask(room, world)
    rows = world.snapshot.all()
    for name in (NAMES[-1], NAMES[0]):
        assert removable._kept.sums(name, rows).tolist() == [0, 8, 1], name
        assert removable.enough({name: 10}, rows).all()


def test_names_that_pods_invent_take_no_memory_for_good() -> None:
    room, world = Room(), World({"a": 3})
    for name in NAMES:
        ask(room, world).enough({name: 1}, world.snapshot.all())
    assert len(ask(room, world)._kept._sums) == _MOST_RESOURCES
    for priority in range(2 * _MOST_CLAIMS):
        claim = Claim.of(READER.read(pod("p", priority=HIGH + priority)))
        room.removable(claim, world.snapshot, np.zeros(1, dtype=np.intp), lambda: True)
    assert len(room._kept) <= _MOST_CLAIMS


def test_what_nobody_asks_for_is_not_summed() -> None:
    """A pod with many resources costs the preemption of others nothing."""
    room, world = Room(), World({"a": 3})
    assert ask(room, world)._kept._sums == {}
