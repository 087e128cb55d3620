"""Random histories of gangs: after all has settled a gang has its minimum or nothing, and no room is lost.

Pods arrive, vanish, change and fail to be bound in any order, on nodes with less room than all want. Rows 15, 16 and 18
of section 7 are cases of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide.cluster.errors import Forbidden
from slacktide.objects import Pod
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.gangs import GATED, member
from tests.scheduler_plugins.rig import Rig

GANGS = {"g": 2, "h": 3, "k": 4}
SLOTS = 3
SORTED = {"queueSort": {"disabled": [{"name": "PrioritySort"}], "enabled": [{"name": "GangSort"}]}}

GANG = st.sampled_from(sorted(GANGS))
STEP = st.one_of(
    st.tuples(st.just("join"), GANG),
    st.tuples(st.just("join"), GANG),
    st.tuples(st.just("fill"), GANG),
    st.tuples(st.just("gated"), GANG),
    st.tuples(st.just("picky"), GANG),
    st.tuples(st.just("plain"), st.just("")),
    st.tuples(st.just("delete"), st.integers(0, 20)),
    st.tuples(st.just("leave"), st.integers(0, 20)),
    st.tuples(st.just("ungate"), st.integers(0, 20)),
    st.tuples(st.just("minimum"), st.tuples(GANG, st.integers(1, 4))),
    st.tuples(st.just("try"), st.integers(1, 6)),
    st.tuples(st.just("bind"), st.just("")),
    st.tuples(st.just("refuse"), st.just("")),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 5.0, 61.0])),
    st.tuples(st.just("node"), st.just("")),
)


class World:
    def __init__(self, *, in_order: bool, bind_now: bool) -> None:
        plugins = {"multiPoint": {"disabled": [{"name": "DefaultPreemption"}]}, **(SORTED if in_order else {})}
        profile = {"schedulerName": "slacktide-scheduler", "plugins": plugins}
        self.rig = Rig(bind_now=bind_now, file={"profiles": [profile]})
        self.server = self.rig.server
        self.minimum = dict(GANGS)
        self.disturbed: set[str] = set()
        self.refusals = 0
        self.serial = 0
        self.bind_now = bind_now
        self.server.before_bind = self.before_bind
        for _ in range(2):
            self.node("")

    def gang_of(self, one: Pod) -> str:
        return one.metadata.labels.get("slacktide.io/pod-group", "")

    def pods(self, gang: str = "") -> list[Pod]:
        return [one for one in self.server.pods.values() if not gang or self.gang_of(one) == gang]

    def before_bind(self, one: Pod, where: str) -> None:
        gang = self.gang_of(one)
        if gang and self.bind_now and gang not in self.disturbed:
            placed = sum(1 for other in self.pods(gang) if other.metadata.uid in self.rig.cache)
            assert placed >= self.minimum[gang], f"{one.metadata.name} is bound as one of {placed}"
        if self.refusals:
            self.refusals -= 1
            self.disturbed.add(gang)
            raise Forbidden(403, "Forbidden", "admission says no")

    # What can happen.

    def node(self, _: Any) -> None:
        self.serial += 1
        self.server.put_node(node(f"n{self.serial}", {"cpu": str(SLOTS), "pods": "50"}))

    def join(self, gang: str, **spec: Any) -> None:
        self.serial += 1
        self.server.put(member(f"{gang}{self.serial}", gang, self.minimum[gang], **spec))

    def gated(self, gang: str) -> None:
        self.join(gang, **GATED)

    def picky(self, gang: str) -> None:
        """A pod that fits nowhere, which only its attempt shows."""
        self.join(gang, nodeSelector={"disk": "none has it"})

    def fill(self, gang: str) -> None:
        while len(self.pods(gang)) < self.minimum[gang]:
            self.join(gang)

    def plain(self, _: Any) -> None:
        self.serial += 1
        self.server.put(pod(f"p{self.serial}", {"cpu": "1"}))

    def _one(self, number: int) -> Pod | None:
        pods = self.pods()
        return pods[number % len(pods)] if pods else None

    def delete(self, number: int) -> None:
        one = self._one(number)
        if one is not None:
            self._lose(one)
            self.server.remove(one.metadata.name)

    def leave(self, number: int) -> None:
        one = self._one(number)
        if one is not None and one.metadata.deletion_timestamp is None:
            self._lose(one)
            metadata = msgspec.structs.replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.server.put(msgspec.structs.replace(one, metadata=metadata))

    def _lose(self, one: Pod) -> None:
        # Placed and let go: that its gang then lacks a pod is the doing of whoever deletes it.
        if one.metadata.uid in self.rig.cache:
            self.disturbed.add(self.gang_of(one))

    def ungate(self, number: int) -> None:
        one = self._one(number)
        if one is not None and one.spec.scheduling_gates:
            self.server.put(msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, scheduling_gates=[])))

    def change(self, change: tuple[str, int]) -> None:
        gang, minimum = change
        if minimum > self.minimum[gang] and any(one.metadata.uid in self.rig.cache for one in self.pods(gang)):
            self.disturbed.add(gang)
        self.minimum[gang] = minimum
        for one in self.pods(gang):
            metadata = msgspec.structs.replace(one.metadata, annotations={"slacktide.io/min-members": str(minimum)})
            self.server.put(msgspec.structs.replace(one, metadata=metadata))

    def attempts(self, count: int) -> None:
        for _ in range(count):
            self.rig.scheduler.attempt(0)

    def bindings(self, _: Any) -> None:
        self.rig.run_bindings()

    def refuse(self, _: Any) -> None:
        self.refusals += 1

    def wait(self, seconds: float) -> None:
        self.rig.clock.forward(seconds)
        self.rig.queue.flush_backoff()
        self.rig.waiting.expire()
        self.attempts(40)

    def do(self, what: str, how: Any) -> None:
        acts: dict[str, Callable[[Any], None]] = {
            "join": self.join, "fill": self.fill, "gated": self.gated, "picky": self.picky, "plain": self.plain,
            "delete": self.delete, "leave": self.leave, "ungate": self.ungate, "minimum": self.change,
            "try": self.attempts,
            "bind": self.bindings, "refuse": self.refuse, "wait": self.wait, "node": self.node,
        }  # fmt: skip
        acts[what](how)

    # What must then hold.

    def settle(self) -> None:
        self.refusals = 0
        for one in self.pods():
            if one.metadata.deletion_timestamp is not None:
                self.server.remove(one.metadata.name)
        for _ in range(16):
            self.rig.later(11.0)
            self.rig.run_bindings()

    def check(self) -> None:
        rig = self.rig
        assert [one.pod.key for one in rig.waiting.all()] == []
        assert rig.queue.in_flight_entries() == []
        contents = rig.cache.contents()
        assert (contents.assumed, contents.wrong_sums) == (frozenset(), ())
        assert contents.pods == {p.metadata.uid: p.spec.node_name for p in self.pods() if p.spec.node_name}
        free = SLOTS * len(self.server.nodes) - len(contents.pods)
        for gang in GANGS:
            pods = self.pods(gang)
            bound = sum(1 for one in pods if one.spec.node_name)
            could = sum(1 for one in pods if not (one.spec.scheduling_gates or one.spec.node_selector))
            minimum = self.minimum[gang]
            told = [(one.metadata.name, one.spec.node_name, rig.condition(one.metadata.name)) for one in pods]
            if gang not in self.disturbed:
                assert bound == 0 or bound >= minimum, (gang, minimum, told)
            if could >= minimum:
                wanted = could - bound if bound >= minimum else minimum - bound
                stuck = free > 0 if bound >= minimum and wanted else 0 < wanted <= free
                assert not stuck, (gang, minimum, free, told, rig.queue.counts())
        plain = [one for one in self.pods() if not self.gang_of(one) and not one.spec.node_name]
        assert not (plain and free), plain


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("bind_now", [True, False])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, max_size=30))
def test_a_gang_has_its_minimum_or_nothing(in_order: bool, bind_now: bool, steps: list[tuple[str, Any]]) -> None:
    world = World(in_order=in_order, bind_now=bind_now)
    for what, how in steps:
        world.do(what, how)
    world.settle()
    world.check()
