"""Nominated pods: where they count, whom they keep out, where they are tried first, and how a nomination is made."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.cycle import NoFitError, place
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.state import CycleState, StateKey
from scheduler_plugins.framework.status import SUCCESS, Code, Reason, Status, failed, unresolvable, unschedulable
from tests.scheduler_plugins.build import framework, info, node, pod, snapshot_of
from tests.scheduler_plugins.rig import Rig


class Room(api.PreFilterPlugin, api.NodeFilterPlugin, api.PreFilterExtensions, api.EnqueueExtensions):
    """At most `most` pods a node, counted in the cycle's own books as a plugin over several nodes would."""

    name = "Room"
    BOOKS: StateKey[Books]

    def __init__(self, most: int = 1) -> None:
        self.most = most
        self.asked: list[str] = []

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Any) -> api.PreFilterResult:
        state.write(BOOKS, Books({one.name: len(one.pods) for one in snapshot.nodes}))
        return api.PreFilterResult()

    def filter(self, state: CycleState, pod: PodInfo, node: Any) -> Status:
        self.asked.append(node.name)
        count = state.read(BOOKS).counts[node.name]
        return SUCCESS if count < self.most else unschedulable(Reason("full", f"{count} pods"))

    def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: Any) -> Status:
        state.read(BOOKS).counts[node.name] += 1
        return SUCCESS

    def remove_pod(self, state: CycleState, pod: PodInfo, removed: PodInfo, node: Any) -> Status:
        state.read(BOOKS).counts[node.name] -= 1
        return SUCCESS

    def events_to_register(self) -> list[Any]:
        from scheduler_plugins.framework.events import ASSIGNED_POD_DELETE, Registration

        return [Registration(ASSIGNED_POD_DELETE)]


class Books:
    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def clone(self) -> Books:
        return Books(dict(self.counts))


BOOKS = StateKey[Books]("Room/books")
NODES = [node("a"), node("b")]


def placed(plugin: api.Plugin, nominator: Nominator, one: PodInfo, placed_on: dict[str, Any] | None = None) -> str:
    profile = framework(plugin, nominations=nominator)
    return place(profile, CycleState(), one, snapshot_of(profile, NODES, placed_on), lambda count: 0).node


@pytest.mark.parametrize(
    ("nominated", "priority", "fits"),
    [(0, 0, False), (10, 0, False), (0, 10, True)],
    ids=["equal", "higher", "lower gives way"],
)
def test_nominated_pods_of_no_lower_priority_count(nominated: int, priority: int, fits: bool) -> None:
    nominator = Nominator()
    for name in "ab":
        nominator.set(info(f"n{name}", priority=nominated), name)
    if fits:
        assert placed(Room(), nominator, info("p", priority=priority))
        return
    with pytest.raises(NoFitError, match=r"0/2 nodes are available: 2 full \(nearest .: 1 pods\)") as caught:
        placed(Room(), nominator, info("p", priority=priority))
    assert caught.value.diagnosis.unschedulable_plugins == {"Room"}
    assert {s.code for s in caught.value.diagnosis.statuses().values()} == {Code.UNSCHEDULABLE}


def test_a_pod_does_not_stand_in_its_own_way_and_its_node_is_tried_first_and_alone() -> None:
    nominator, plugin = Nominator(), Room()
    nominator.set(info("p"), "b")
    assert placed(plugin, nominator, info("p")) == "b"
    assert plugin.asked == ["b"]


@pytest.mark.parametrize("where", ["status", "nominator"])
def test_nominated_node_that_does_not_suit_is_no_reason_to_give_up(where: str) -> None:
    nominator, plugin = Nominator(), Room()
    status = {"phase": "Pending", "nominatedNodeName": "b"}
    one = info("p", status=status) if where == "status" else info("p")
    if where == "nominator":
        nominator.set(one, "b")
    assert placed(plugin, nominator, one, {"b": [pod("old")]}) == "a"


def test_error_on_the_nominated_node_is_no_error_of_the_cycle() -> None:
    class Breaks(Room):
        def filter(self, state: CycleState, pod: PodInfo, node: Any) -> Status:
            self.asked.append(node.name)
            return failed("broken") if len(self.asked) == 1 else SUCCESS

    nominator, plugin = Nominator(), Breaks()
    nominator.set(info("p"), "b")
    placed(plugin, nominator, info("p"))
    assert plugin.asked[0] == "b"


def test_node_that_suits_only_with_the_nominated_pod_does_not_suit() -> None:
    """The second pass: the nominated pod may never arrive."""

    class Company(Room):
        def filter(self, state: CycleState, pod: PodInfo, node: Any) -> Status:
            return SUCCESS if state.read(BOOKS).counts[node.name] else unschedulable("lonely")

    nominator = Nominator()
    nominator.set(info("friend"), "a")
    with pytest.raises(NoFitError, match="2 lonely"):
        placed(Company(), nominator, info("p"))


def test_pod_that_has_arrived_is_not_counted_twice() -> None:
    nominator = Nominator()
    nominator.set(info("old"), "a")
    nominator.set(info("x"), "b")
    assert placed(Room(2), nominator, info("p", nodeName=""), {"a": [pod("old")], "b": [pod("y")]}) == "a"


def test_failure_to_add_a_nominated_pod_fails_the_cycle_in_the_name_of_the_plugin() -> None:
    from scheduler_plugins.framework.status import PluginFailure

    class Breaks(Room):
        def add_pod(self, state: CycleState, pod: PodInfo, added: PodInfo, node: Any) -> Status:
            raise RuntimeError("no books")

    nominator = Nominator()
    nominator.set(info("n"), "a")
    with pytest.raises(PluginFailure, match=r"Room: nominated pod default/n on node a: .*no books"):
        placed(Breaks(), nominator, info("p"))


def test_what_if_asks_all_filters_about_the_node_as_it_would_be_and_leaves_the_cycle_alone() -> None:
    answers: list[Any] = []

    class Asks(api.PostFilterPlugin):
        name = "Asks"

        def post_filter(
            self, state: CycleState, pod: PodInfo, snapshot: Any, diagnosis: Diagnosis, what_if: api.WhatIf
        ) -> api.PostFilterResult:
            for row in range(len(snapshot)):
                alone, clone = snapshot.nodes[row].clone(), state.clone()
                victim = next(iter(alone.pods.values()))
                what_if.remove_pod(clone, pod, victim, alone)
                answers.append((alone.name, what_if.judge(clone, pod, alone).code))
                what_if.add_pod(clone, pod, victim, alone)
                status = what_if.judge(clone, pod, alone)
                answers.append((alone.name, status.code, status.plugin))
            return api.PostFilterResult(unschedulable("asked"))

    nominator = Nominator()
    nominator.set(info("n", priority=5), "b")
    profile = framework(Room(), Asks(), nominations=nominator)
    snapshot = snapshot_of(profile, NODES, {"a": [pod("x")], "b": [pod("y")]})
    with pytest.raises(NoFitError, match="2 full"):
        place(profile, CycleState(), info("p"), snapshot, lambda count: 0)
    assert sorted(answers, key=str) == sorted(
        [
            ("a", Code.SUCCESS),
            ("a", Code.UNSCHEDULABLE, "Room"),
            ("b", Code.UNSCHEDULABLE),
            ("b", Code.UNSCHEDULABLE, "Room"),
        ],
        key=str,
    )
    assert [len(one.pods) for one in snapshot.nodes] == [1, 1]


class Makes(api.PostFilterPlugin, api.EnqueueExtensions):
    """Answers what it is told to."""

    name = "Makes"

    def __init__(self, *answers: api.PostFilterResult) -> None:
        self.answers = list(answers)

    def post_filter(self, *_: Any) -> api.PostFilterResult:
        return self.answers.pop(0)

    def events_to_register(self) -> list[Any]:
        return []


def crowded(*answers: api.PostFilterResult) -> Rig:
    """Two nodes with room for one pod each, both taken; pod p tries."""
    rig = Rig(None, Room(), Makes(*answers))
    for name in "ab":
        rig.server.put_node(node(name))
        rig.server.put(pod(f"on-{name}", nodeName=name))
    rig.server.put(pod("p", priority=10))
    rig.settle()
    return rig


def test_nomination_holds_at_once_and_stands_in_the_status_beside_the_reason() -> None:
    rig = crowded(api.PostFilterResult(SUCCESS, "b"))
    assert rig.nominator.node_of("uid-p") == "b"
    assert rig.server.pods[("default", "p")].status.nominated_node_name == "b"
    assert rig.condition("p")[:2] == ("False", "Unschedulable")
    rig.server.put(pod("q", priority=5))
    rig.server.remove("on-b")
    rig.later(15)
    assert (rig.where("p"), rig.where("q")) == ("b", "")
    assert rig.nominator.nodes() == frozenset()


def test_nomination_is_taken_back_or_left_alone() -> None:
    rig = crowded(
        api.PostFilterResult(SUCCESS, "b"),
        api.PostFilterResult(unresolvable("no")),
        api.PostFilterResult(unschedulable("no"), ""),
    )
    for want in ("b", ""):
        rig.queue.activate([info("p")])
        rig.settle()
        assert rig.nominator.node_of("uid-p") == want
        assert rig.server.pods[("default", "p")].status.nominated_node_name == want


def test_stale_update_of_the_watch_does_not_lose_the_nomination() -> None:
    """#85677, #106780: the informer tells of a change that is older than the nomination."""
    rig = Rig(None, Room(), Makes(api.PostFilterResult(SUCCESS, "a")))
    rig.server.put_node(node("a"))
    rig.server.put(pod("old", nodeName="a"))
    rig.server.put(pod("p"))
    rig.server.hold = True
    rig.settle()
    stale = pod("p", metadata={"labels": {"changed": "before"}})
    rig.server.handlers.pod_updated(rig.server.lookup("default", "p"), stale)
    assert rig.nominator.node_of("uid-p") == "a"
    rig.server.deliver()
    assert rig.nominator.node_of("uid-p") == "a"


def test_deleted_pod_claims_nothing_and_those_that_gave_way_to_it_try_again() -> None:
    rig = crowded(
        api.PostFilterResult(SUCCESS, "b"),
        api.PostFilterResult(unschedulable("x")),
        api.PostFilterResult(unschedulable("x")),
    )
    rig.server.remove("on-b")
    rig.clock.forward(400)
    rig.server.put(pod("low", priority=5, metadata={"labels": {"x": "y"}}))
    # p itself would take the room now; it is deleted before its turn.
    rig.server.remove("p")
    rig.settle()
    assert rig.nominator.nodes() == frozenset()
    assert rig.where("low") == "b"
