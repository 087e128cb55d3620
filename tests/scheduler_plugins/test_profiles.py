"""Several profiles in one process, and several schedulers on one cluster."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.events import NODE_ADD, Registration
from scheduler_plugins.framework.snapshot import Column
from scheduler_plugins.framework.state import PODS_TO_ACTIVATE
from scheduler_plugins.framework.status import SUCCESS, Status, unschedulable
from slacktide.cluster.errors import Conflict
from slacktide.objects import Pod
from tests.scheduler_plugins.build import info, node, pod
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.twin import Api

ONE_CPU = {"cpu": "1", "pods": "9"}


def test_each_pod_is_placed_by_the_profile_that_it_names_and_all_room_is_shared() -> None:
    rig = Rig(profile_names=("first", "second"))
    rig.server.put_node(node("n", ONE_CPU))
    for name, scheduler in (("a", "first"), ("b", "second"), ("c", "third")):
        rig.server.put(pod(name, {"cpu": "1"}, schedulerName=scheduler))
    rig.settle()
    assert (rig.where("a"), rig.where("b"), rig.where("c")) == ("n", "", "")
    assert "Insufficient cpu" in rig.condition("b")[2]
    assert rig.metric("scheduler_schedule_attempts_total", result="scheduled", profile="first") == 1
    assert rig.metric("scheduler_schedule_attempts_total", result="unschedulable", profile="second") == 1
    rig.server.remove("a")
    rig.settle()
    assert (rig.where("b"), rig.where("c")) == ("n", "")
    assert [cycle.profile for cycle in rig.records.last()] == ["second", "second", "first"]


def test_nodes_that_go_are_gone_for_every_profile() -> None:
    rig = Rig(profile_names=("first", "second"))
    for name in ("n", "m", "o"):
        rig.server.put_node(node(name))
    for scheduler in ("first", "second"):
        rig.server.put(pod(f"seen-by-{scheduler}", schedulerName=scheduler))
    rig.settle()
    rig.server.handlers.node_deleted(rig.server.nodes.pop("n"))
    for scheduler in ("first", "second"):
        rig.server.put(pod(f"asks-{scheduler}", {"cpu": "99"}, schedulerName=scheduler))
        rig.settle()
        assert rig.condition(f"asks-{scheduler}")[2].startswith("0/2 nodes are available")


def test_columns_of_two_profiles_do_not_mix() -> None:
    """The same plugin with other arguments keeps other numbers under the same name; each is made for trial first."""

    class Wants(api.NodeFilterPlugin, api.EnqueueExtensions):
        name = "Wants"
        made: ClassVar[list[Any]] = []

        def __init__(self) -> None:
            self.label = "xy"[len(self.made) % 2]
            self.made.append(self)

        def columns(self) -> list[Column]:
            return [Column("Wants/has", "bool", lambda node: self.label in node.labels)]

        def filter_nodes(self, state: Any, pod: Any, snapshot: Any, rows: Any) -> Any:
            from scheduler_plugins.framework.status import Code, Reason
            from scheduler_plugins.framework.verdicts import Verdicts

            lacks = ~snapshot.column("Wants/has")[rows]
            return Verdicts.where(lacks, Code.UNSCHEDULABLE, lambda i: (Reason(f"no {self.label}"),))

        def filter(self, state: Any, pod: Any, node: Any) -> Status:
            raise NotImplementedError

        def events_to_register(self) -> list[Any]:
            return [Registration(NODE_ADD)]

    rig = Rig(None, Wants, profile_names=("first", "second"))
    rig.server.put_node(node("with-x", labels={"x": ""}))
    rig.server.put_node(node("with-y", labels={"y": ""}))
    rig.server.put(pod("a", schedulerName="first"))
    rig.server.put(pod("b", schedulerName="second"))
    rig.settle()
    assert (rig.where("a"), rig.where("b")) == ("with-x", "with-y")


def test_pods_that_a_plugin_lists_are_activated_at_the_end_of_the_cycle() -> None:
    """The key kubernetes.io/pods-to-activate of the stock scheduler."""

    class Calls(api.ReservePlugin, api.NodeFilterPlugin, api.EnqueueExtensions):
        name = "Calls"
        opened = False

        def filter(self, state: Any, pod: Any, node: Any) -> Status:
            return SUCCESS if self.opened or pod.pod.metadata.name == "key" else unschedulable("closed")

        def reserve(self, state: Any, pod: Any, node_name: str) -> Status:
            self.opened = True
            sleeper = info("sleeper")
            state.write(PODS_TO_ACTIVATE, {sleeper.key: sleeper})
            return SUCCESS

        def unreserve(self, state: Any, pod: Any, node_name: str) -> None:
            """Nothing to undo."""

        def events_to_register(self) -> list[Any]:
            return []

    rig = Rig(None, Calls())
    rig.server.put_node(node("n"))
    rig.server.put(pod("sleeper"))
    rig.settle()
    assert rig.queue.where(info("sleeper")) == "unschedulable"
    rig.server.put(pod("key"))
    rig.settle()
    assert (rig.where("key"), rig.where("sleeper")) == ("n", "n")


# Other schedulers.


def test_pod_that_somebody_changed_during_its_binding_is_tried_again_at_once_but_not_for_ever() -> None:
    rig = Rig()
    rig.server.put_node(node("n"))
    refusals: list[str] = []

    def refuse(one: Pod, node_name: str) -> None:
        if len(refusals) < 3:
            refusals.append(node_name)
            raise Conflict(409, "Conflict", "the object has been modified")

    rig.server.before_bind = refuse
    rig.server.put(pod("p"))
    rig.settle()
    assert (len(refusals), rig.queue.where(info("p"))) == (2, "backoff")
    rig.later(5)
    rig.later(9)
    assert rig.where("p") == "n"


def test_pod_that_another_scheduler_places_while_it_waits_at_permit() -> None:
    from tests.scheduler_plugins.test_permit import WAIT, Permits

    plugin = Permits(WAIT)
    rig = Rig(None, plugin)
    for name in ("n", "m"):
        rig.server.put_node(node(name, ONE_CPU))
    rig.server.put(pod("p", {"cpu": "1"}))
    rig.settle()
    (waiter,) = rig.waiting.all()
    other = {"n": "m", "m": "n"}[waiter.node_name]
    rig.server.assign("p", other)
    assert rig.waiting.all() == ()
    assert plugin.log[-1] == "unreserve default/p"
    assert rig.queue.in_flight_entries() == []
    assert rig.cache.size().assumed_pods == 0
    plugin.answer = SUCCESS
    rig.server.put(pod("q", {"cpu": "1"}))
    rig.settle()
    assert rig.where("q") == waiter.node_name


class Cluster:
    """Two schedulers with names of their own over one API; the nodes admit what fits and fail the rest, as kubelets do.

    A pod that failed is replaced by its controller: the loser tries again.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = Api()
        self.first = Rig(self.server, profile_names=("first",), bind_now=False)
        one = self.server.handlers
        self.second = Rig(self.server, profile_names=("second",), bind_now=False)
        self.server.handlers = Both(one, self.server.handlers)
        self.server.after_bind = self.admit
        self.failures = 0
        self.serial = 0

    def pods_on(self, node_name: str) -> list[Pod]:
        here = [one for one in self.server.pods.values() if one.spec.node_name == node_name]
        return [one for one in here if one.status.phase != "Failed"]

    def admit(self, one: Pod, node_name: str) -> None:
        if len(self.pods_on(node_name)) > 2:
            self.failures += 1
            self.server.finish(one.metadata.name, "Failed")
            self.server.remove(one.metadata.name)
            self.create(one.spec.scheduler_name)

    def create(self, scheduler: str) -> None:
        self.serial += 1
        self.server.put(pod(f"p{self.serial}", {"cpu": "1"}, schedulerName=scheduler))

    def step(self) -> None:
        rig = self.random.choice((self.first, self.second))
        kind = self.random.randrange(4)
        if kind == 0 and self.serial < 8:
            self.create(self.random.choice(("first", "second")))
        elif kind == 1:
            rig.scheduler.attempt(0)
        elif kind == 2:
            rig.run_bindings()
        else:
            self.server.hold = not self.server.hold
            if not self.server.hold:
                self.server.deliver()


class Both:
    """Handlers of two schedulers."""

    def __init__(self, *handlers: Any) -> None:
        self._handlers = handlers

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> None:
            for one in self._handlers:
                getattr(one, name)(*args)

        return call


@pytest.mark.parametrize("seed", range(25))
def test_two_schedulers_on_the_same_nodes_never_sell_room_twice_and_place_everything(seed: int) -> None:
    """#30957, #60469, volcano #2700: admission on the node decides; whoever lost tries again, and all are placed."""
    cluster = Cluster(seed)
    for name in "abcd":
        cluster.server.put_node(node(name, {"cpu": "2", "pods": "9"}))
    for _ in range(120):
        cluster.step()
        assert all(len(cluster.pods_on(name)) <= 2 for name in "abcd")
    while cluster.serial < 8:
        cluster.create("first")
    cluster.server.hold = False
    for _ in range(40):
        cluster.server.deliver()
        for rig in (cluster.first, cluster.second):
            rig.later(11)
            rig.run_bindings()
    assert [len(cluster.pods_on(name)) for name in "abcd"] == [2, 2, 2, 2]
    for rig in (cluster.first, cluster.second):
        assert (rig.cache.size().pods, rig.cache.size().assumed_pods) == (8, 0)
        assert rig.queue.in_flight_entries() == []
