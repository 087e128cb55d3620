"""Gangs in a whole scheduler: who waits for whom, what is given back, and which of two gangs gives way.

Cases of section 7 (15, 16, 18), of 8.3 (gang rows) and of the issue's bad input.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import msgspec
import pytest

from scheduler_plugins.plugins import default_registry
from scheduler_plugins.report import Reporter
from slacktide.objects import Pod
from tests.scheduler_plugins.build import info, node, pod
from tests.scheduler_plugins.gangs import (
    GATED,
    LEAVING,
    POD_GROUPS,
    SIGS_POD_GROUPS,
    member,
    sigs,
    sigs_group,
    stock,
    stock_group,
)
from tests.scheduler_plugins.rig import Rig

NAME = "slacktide-scheduler"


def scheduler(*nodes: int, plugins: Any = None, args: Any = None, bind_now: bool = True) -> Rig:
    """One whose nodes have so many cores."""
    off = {"multiPoint": {"disabled": [{"name": "DefaultPreemption"}]}}
    config = [{"name": "Gang", "args": args}] if args else []
    profile = {"schedulerName": NAME, "plugins": {**off, **(plugins or {})}, "pluginConfig": config}
    rig = Rig(bind_now=bind_now, file={"profiles": [profile]})
    for i, cores in enumerate(nodes):
        rig.server.put_node(node(f"n{i}", {"cpu": str(cores), "pods": "50"}))
    return rig


def put(rig: Rig, *pods: Pod) -> None:
    """One after the other, so that the queue has them in this order, gangs as soon as they are whole."""
    for one in pods:
        rig.server.put(one)
        rig.clock.forward(0.001)
    rig.settle()


def gang(name: str, count: int, minimum: int | None = None, **spec: Any) -> list[Pod]:
    return [member(f"{name}{i}", name, count if minimum is None else minimum, **spec) for i in range(count)]


def bound(rig: Rig, prefix: str = "") -> int:
    return sum(1 for one in rig.server.pods.values() if one.spec.node_name and one.metadata.name.startswith(prefix))


def restate(rig: Rig, one: Pod, minimum: int) -> None:
    current = rig.server.pods[("default", one.metadata.name)]
    metadata = msgspec.structs.replace(current.metadata, annotations={"slacktide.io/min-members": str(minimum)})
    rig.server.put(msgspec.structs.replace(current, metadata=metadata))


# Quorum.


def test_pods_that_a_gang_keeps_out_move_with_the_missing_sibling() -> None:
    """8.3, requeue table."""
    rig = scheduler(8)
    put(rig, *gang("a", 3)[:2])
    assert rig.queue.counts()["gated"] == 2
    put(rig, gang("a", 3)[2])
    assert bound(rig) == 3


# What people see of a gang that is not whole (KEP-5501).


def told(rig: Rig, seconds: float = 0.0) -> None:
    rig.clock.forward(seconds)
    rig.scheduler.tell_kept_out()
    rig.settle()


def test_why_a_gang_is_kept_out_stands_in_its_pods_after_a_while_and_no_longer_than_that() -> None:
    rig = scheduler(8)
    put(rig, *gang("a", 5)[:2])
    told(rig, 9)
    assert rig.condition("a0") == ("", "", "")
    told(rig, 1)
    few = "gang has fewer pods than it needs (gang default/a has 2, its minimum is 5)"
    assert rig.condition("a0") == rig.condition("a1") == ("False", "NotReadyForScheduling", few)
    written = len(rig.server.patches)
    for _ in range(5):
        told(rig, 10)
    assert len(rig.server.patches) == written
    put(rig, *gang("a", 5)[2:4])
    told(rig, 10)
    assert "has 4, its minimum is 5" in rig.condition("a0")[2]
    put(rig, gang("a", 5)[4])
    assert bound(rig) == 5
    assert rig.recorder.events[-1][2] == "Scheduled"


def test_pods_with_scheduling_gates_are_told_by_the_api_server_alone() -> None:
    rig = scheduler(8)
    put(rig, member("a0", "a", 2, **GATED), member("a1", "a", 2))
    told(rig, 60)
    assert rig.condition("a0") == ("", "", "")
    assert rig.condition("a1")[1] == "NotReadyForScheduling"


def test_a_pod_that_holds_a_place_is_no_longer_said_to_be_kept_out() -> None:
    rig = scheduler(4, args={"podGroupRejectPercentage": 100})
    put(rig, *gang("a", 3)[:2])
    told(rig, 10)
    put(rig, member("a2", "a", 3, nodeSelector={"nowhere": "yes"}))
    for name in ("a0", "a1"):
        assert rig.condition(name) == ("False", "NotReadyForScheduling", "holds a place on n0, waits for Gang")
    assert rig.condition("a2")[1] == "Unschedulable"
    rig.later(61)
    assert rig.condition("a0")[1] == "Unschedulable"


def test_many_are_told_a_few_at_a_time_those_who_wait_longest_first() -> None:
    rig = scheduler(8)
    for serial in range(250):
        rig.server.put(member(f"p{serial}", f"g{serial}", 2))
        rig.clock.forward(0.001)
    rig.settle()
    for expected in (100, 200, 250, 250):
        told(rig, 10)
        known = [serial for serial in range(250) if rig.condition(f"p{serial}")[1]]
        assert known == list(range(expected))


def test_a_pod_that_was_bound_meanwhile_is_not_told_that_it_is_kept_out() -> None:
    """The word is on its way while the pod is placed: the API refuses it, for the pod has changed."""
    rig = scheduler(8)
    put(rig, *gang("a", 3)[:2])
    seen = rig.server.pods["default", "a0"]
    put(rig, gang("a", 3)[2])
    assert bound(rig) == 3
    Reporter(rig.server, rig.recorder, rig.wall).not_ready(seen, "kept out")
    assert rig.condition("a0") == ("", "", "")


@pytest.mark.parametrize(
    ("make", "kind", "group"), [(sigs, SIGS_POD_GROUPS, sigs_group()), (stock, POD_GROUPS, stock_group())]
)
def test_pods_that_a_gang_keeps_out_move_when_the_group_appears(make: Any, kind: Any, group: Any) -> None:
    """8.3, requeue table."""
    rig = scheduler(8)
    put(rig, make("p0"), make("p1"))
    assert (bound(rig), rig.queue.counts()["gated"]) == (0, 2)
    rig.server.put_object(kind, group)
    rig.settle()
    assert bound(rig) == 2


def test_pods_of_a_group_without_gang_policy_are_placed_each_for_itself() -> None:
    rig = scheduler(1)
    rig.server.put_object(POD_GROUPS, stock_group(minimum=None))
    put(rig, stock("p0"), stock("p1"))
    assert bound(rig) == 1


def test_a_gate_that_goes_makes_the_gang_whole() -> None:
    rig = scheduler(8)
    first, last = gang("a", 2)
    put(rig, first, member("a1", "a", 2, **GATED))
    assert rig.queue.counts()["gated"] == 2
    put(rig, last)
    rig.later(1)
    assert bound(rig) == 2


def test_pods_beyond_the_minimum_follow_one_by_one() -> None:
    rig = scheduler(3)
    put(rig, *gang("a", 5, minimum=2))
    assert bound(rig) == 3
    put(rig, member("late", "a", 2))
    rig.server.remove("a0")
    rig.later(11)
    assert bound(rig) == 3


def test_bindings_under_way_count() -> None:
    rig = scheduler(8, bind_now=False)
    put(rig, *gang("a", 3, minimum=2))
    assert (len(rig.bindings), len(rig.waiting.all())) == (3, 0)
    rig.run_bindings()
    assert bound(rig) == 3


def test_rules_that_cannot_be_read_are_told_to_people() -> None:
    rig = scheduler(8)
    put(rig, *gang("a", 2, minimum=0))
    assert "slacktide.io/min-members of pod a0 is '0'" in rig.condition("a0")[2]
    for one in gang("a", 2):
        rig.server.put(one)
    rig.later(11)
    assert bound(rig) == 2


# Room.


def test_a_gang_that_can_never_fit_says_so_at_once_and_holds_nothing_up() -> None:
    rig = scheduler(2, 2)
    put(rig, *gang("a", 5), pod("x", {"cpu": "1"}))
    assert "gang can never fit (gang default/a: 5 pods ask for 5 cpu, all nodes have 4)" in rig.condition("a0")[2]
    assert rig.cache.size().assumed_pods == 0
    assert bound(rig) == 1
    rig.server.put_node(node("new", {"cpu": "2", "pods": "50"}))
    rig.later(11)
    assert bound(rig, "a") == 5


def test_a_gang_that_finds_no_room_takes_none_and_is_placed_when_there_is() -> None:
    rig = scheduler(2, 2)
    put(rig, pod("x", {"cpu": "2"}), *gang("a", 3))
    assert "gang does not fit now (gang default/a: 3 pods ask for 3 cpu, all nodes have 2)" in rig.condition("a0")[2]
    assert (bound(rig, "a"), rig.cache.size().assumed_pods) == (0, 0)
    rig.server.remove("x")
    rig.later(11)
    assert bound(rig, "a") == 3


def test_a_gang_of_which_one_pod_fits_nowhere_gives_all_places_back_at_once() -> None:
    """scheduler-plugins #713: half a gang held its places until the timeout, and others starved."""
    rig = scheduler(4)
    put(rig, *gang("a", 3)[:2], member("a2", "a", 3, nodeSelector={"disk": "ssd"}))
    assert rig.cache.size().assumed_pods == 0
    assert "gang gives its places back (gang default/a has 2 of 3 places)" in rig.condition("a2")[2]
    assert "gave its place back: a pod that its gang needs fits nowhere" in rig.condition("a0")[2]
    put(rig, *[pod(f"x{i}", {"cpu": "1"}) for i in range(2)])
    assert bound(rig, "x") == 2
    rig.server.put_node(node("ssd", {"cpu": "4", "pods": "50"}, labels={"disk": "ssd"}))
    rig.later(11)
    rig.later(11)
    assert bound(rig, "a") == 3


def test_a_gang_that_cannot_be_placed_does_not_keep_the_scheduler_busy() -> None:
    """Places that are given back wake its own pods; without a rest they would be tried for ever."""
    rig = scheduler(4)
    put(rig, *gang("a", 3)[:2], member("a2", "a", 3, nodeSelector={"disk": "ssd"}))
    tried = [record.pod for record in rig.records.last()]
    assert len(tried) <= 8
    for _ in range(10):
        rig.later(11)
    assert len(rig.records.last()) <= len(tried) + 10


# Losses while others wait.


def half(rig: Rig, name: str = "a", **spec: Any) -> None:
    """A gang of four: three wait, and the last is taken out of the queue for good by a hand-made refusal."""
    put(rig, *gang(name, 3, minimum=4, **spec), member(f"{name}3", name, 4, nodeSelector={"disk": "none"}, **spec))


KEEPS = {"podGroupRejectPercentage": 50}


def test_a_pod_that_is_deleted_while_it_waits_releases_itself_and_its_gang() -> None:
    """#84554: it stayed in the list of waiting pods and kept its room. Also: a gang that is deleted half-way."""
    rig = scheduler(8, args=KEEPS)
    half(rig)
    assert len(rig.waiting.all()) == 3
    rig.server.remove("a1")
    rig.settle()
    assert (rig.waiting.all(), rig.cache.size().pods) == ((), 0)
    assert rig.queue.in_flight_entries() == []
    rig.later(11)
    assert bound(rig) == 0
    assert rig.queue.counts()["active"] == 0
    put(rig, member("a4", "a", 4), member("a5", "a", 4))
    rig.later(11)
    rig.later(11)
    assert bound(rig) == 4


def test_a_pod_whose_deletion_begins_while_it_waits_does_the_same() -> None:
    rig = scheduler(8, args=KEEPS)
    half(rig)
    put(rig, member("a1", "a", 4, metadata=LEAVING))
    assert (rig.waiting.all(), rig.cache.size().assumed_pods) == ((), 0)


def test_a_waiting_pod_that_is_preempted_releases_its_gang() -> None:
    """#100235: a waiting victim is rejected, not deleted."""
    rig = scheduler(8, args=KEEPS)
    half(rig)
    rig.waiting.reject("uid-a0", "", "preempted")
    assert (rig.waiting.all(), rig.cache.size().assumed_pods) == ((), 0)
    assert sum(rig.queue.counts().values()) == 4


def test_the_timeout_of_one_ends_the_wait_of_all() -> None:
    """scheduler-plugins #713: needs a timeout and a rejection of all."""
    rig = scheduler(8, args=KEEPS | {"permitWaitingTimeSeconds": 20})
    half(rig)
    rig.later(19.5)
    assert len(rig.waiting.all()) == 3
    rig.clock.forward(1)
    rig.waiting.expire()
    assert (rig.waiting.all(), rig.cache.size().assumed_pods) == ((), 0)
    assert rig.condition("a0")[2] == "waited too long at Permit for plugin Gang"
    assert rig.condition("a1")[2] == "gave its place back: pod a0 lost its place"


def test_another_gang_is_left_alone() -> None:
    rig = scheduler(16, args=KEEPS)
    half(rig, "a")
    half(rig, "b")
    assert len(rig.waiting.all()) == 3, "only the older of two half-placed gangs keeps its places"
    put(rig, *gang("c", 2))
    assert bound(rig, "c") == 2
    rig.server.remove("a1")
    rig.settle()
    assert bound(rig) == 2


def test_a_pod_that_somebody_else_binds_while_it_waits_counts_where_it_is() -> None:
    rig = scheduler(8, args=KEEPS)
    half(rig)
    rig.server.assign("a0", "n0")
    rig.settle()
    assert rig.where("a0") == "n0"
    rig.server.assign("a3", "n0")
    rig.later(11)
    assert bound(rig) == 4


def test_a_bind_that_fails_is_repeated_without_the_others() -> None:
    rig = scheduler(8)
    failures = iter([True])

    def refuse(one: Pod, where: str) -> None:
        if one.metadata.name == "a1" and next(failures, False):
            raise RuntimeError("boom")

    rig.server.before_bind = refuse
    put(rig, *gang("a", 3))
    assert bound(rig) == 2
    rig.later(2)
    assert bound(rig) == 3


# A minimum that changes.


def test_a_minimum_that_is_lowered_lets_the_gang_go() -> None:
    rig = scheduler(8)
    pods = gang("a", 3, minimum=4)
    put(rig, *pods)
    assert rig.queue.counts()["gated"] == 3
    for one in pods:
        restate(rig, one, 3)
    rig.settle()
    assert bound(rig) == 3


def test_a_minimum_that_is_lowered_while_pods_wait_lets_them_go_after_the_timeout_at_the_latest() -> None:
    rig = scheduler(8, args=KEEPS)
    rig.server.put_object(SIGS_POD_GROUPS, sigs_group("a", 4))
    put(rig, *[sigs(f"a{i}", "a") for i in range(3)], sigs("a3", "a", nodeSelector={"disk": "none"}))
    assert len(rig.waiting.all()) == 3
    rig.server.put_object(SIGS_POD_GROUPS, sigs_group("a", 3))
    for _ in range(8):
        rig.later(11)
    assert bound(rig) == 3


def test_a_minimum_that_is_raised_holds_for_pods_that_wait() -> None:
    rig = scheduler(8, args=KEEPS)
    rig.server.put_object(SIGS_POD_GROUPS, sigs_group("a", 4))
    put(rig, *[sigs(f"a{i}", "a") for i in range(3)], sigs("a3", "a", nodeSelector={"disk": "none"}))
    rig.server.put_object(SIGS_POD_GROUPS, sigs_group("a", 5))
    put(rig, sigs("a4", "a"))
    assert bound(rig) == 0
    rig.server.put_object(SIGS_POD_GROUPS, sigs_group("a", 4))
    for _ in range(8):
        rig.later(11)
    assert bound(rig) == 4


# Two gangs.

INTERLEAVED = [one for pair in zip(gang("a", 3), gang("b", 3), strict=True) for one in pair]


@pytest.mark.parametrize("percentage", [0, 10, 50, 100])
@pytest.mark.parametrize("bind_now", [True, False])
def test_two_gangs_that_come_mixed_and_fit_one_at_a_time_are_both_placed(percentage: int, bind_now: bool) -> None:
    """scheduler-plugins #117 and #114: each held half of the room and waited for the other half."""
    rig = scheduler(2, 2, args={"podGroupRejectPercentage": percentage}, bind_now=bind_now)
    # Higher priority: their free room is not measured beforehand, since others might have to give way.
    for one in INTERLEAVED:
        rig.server.put(msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, priority=1)))
    rig.settle()
    for _ in range(3):
        rig.run_bindings()
        rig.later(11)
    first = {name: bound(rig, name) for name in "ab"}
    assert sorted(first.values()) == [0, 3]
    placed = max(first, key=lambda name: first[name])
    for i in range(3):
        rig.server.remove(f"{placed}{i}")
    for _ in range(4):
        rig.later(11)
        rig.run_bindings()
    assert bound(rig) == 3


def test_the_younger_of_two_half_placed_gangs_gives_way() -> None:
    """a and b hold 2 of 3 places each; the next pod of a, the older, fits nowhere, and b's places would help it."""
    rig = scheduler(4, args={"podGroupRejectPercentage": 0})
    times = {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01T00:00:01Z"}
    for name, i in ("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2):
        rig.server.put(member(f"{name}{i}", name, 3, priority=1, metadata={"creationTimestamp": times[name]}))
        rig.clock.forward(0.001)
    for _ in range(4):
        rig.scheduler.attempt(0)
    assert len(rig.waiting.all()) == 4
    rig.scheduler.attempt(0)
    assert {one.pod.pod.metadata.name for one in rig.waiting.all()} == {"a0", "a1"}
    assert "gave its place back: gang default/a is older and cannot go on without the place" in rig.condition("b0")[2]
    rig.later(11)
    rig.later(11)
    assert (bound(rig, "a"), bound(rig, "b")) == (3, 0)


def test_a_younger_gang_is_left_alone_where_its_places_would_not_help() -> None:
    rig = scheduler(8, args={"podGroupRejectPercentage": 0})
    times = {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01T00:00:01Z"}
    picky = {"nodeSelector": {"disk": "none"}}
    for name, i in ("b", 0), ("a", 0), ("a", 1), ("b", 1):
        spec = picky if (name, i) == ("a", 1) else {}
        rig.server.put(member(f"{name}{i}", name, 2, metadata={"creationTimestamp": times[name]}, **spec))
        rig.clock.forward(0.001)
    rig.settle()
    assert (bound(rig, "a"), bound(rig, "b")) == (0, 2)


def test_gangs_stay_in_one_piece_in_the_queue_order_of_gangs() -> None:
    """koordinator #872: two gangs in the order A, C, B, D blocked each other."""
    order = {"queueSort": {"disabled": [{"name": "PrioritySort"}], "enabled": [{"name": "GangSort"}]}}
    rig = scheduler(8, plugins=order)
    for one in INTERLEAVED:
        rig.server.put(one)
    seen = []
    rig.server.before_bind = lambda one, where: seen.append(one.metadata.name[0])
    rig.settle()
    assert seen == ["a"] * 3 + ["b"] * 3


def test_a_file_that_enables_coscheduling_as_its_readme_says_runs() -> None:
    plugins = {
        "multiPoint": {
            "enabled": [{"name": "Coscheduling"}],
            "disabled": [{"name": "PrioritySort"}, {"name": "Gang"}, {"name": "DefaultPreemption"}],
        }
    }
    rig = scheduler(8, plugins=plugins)
    rig.server.put_object(SIGS_POD_GROUPS, sigs_group("a", 3))
    put(rig, *[sigs(f"a{i}", "a") for i in range(2)])
    assert (bound(rig), rig.queue.where(info("a0"))) == (0, "gated")
    put(rig, sigs("a2", "a"))
    assert bound(rig) == 3


def test_both_names_in_one_profile_do_not_get_in_each_others_way() -> None:
    plugins = {
        "multiPoint": {
            "enabled": [{"name": "Coscheduling"}],
            "disabled": [{"name": "PrioritySort"}, {"name": "DefaultPreemption"}],
        }
    }
    rig = scheduler(8, plugins=plugins)
    put(rig, *gang("a", 3))
    assert bound(rig) == 3


def test_the_default_profile_knows_gangs() -> None:
    rig = Rig()
    rig.server.put_node(node("n"))
    put(rig, *gang("a", 2)[:1])
    assert rig.queue.counts()["gated"] == 1
    assert "Gang" in default_registry().names()


def test_a_gang_keeps_its_places_while_preemption_makes_room_for_the_rest() -> None:
    rig = Rig(preemption=True)
    for i in range(3):
        rig.server.put_node(node(f"n{i}", {"cpu": "2", "pods": "50"}))
    low = {"priority": -1, "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
    put(rig, *[pod(f"low{i}", {"cpu": "2"}, **low) for i in range(2)])
    put(rig, *gang("a", 5, priority=5))
    for _ in range(4):
        rig.run_bindings()
        rig.later(2)
    assert bound(rig, "a") == 5
    assert sorted(rig.server.deletions) == ["low0", "low1"]


def test_members_that_come_and_lose_their_places_on_many_threads_are_let_go_together_or_not_at_all() -> None:
    """Timeouts, preemptions and releases at the same time: each gang is let go whole, counted at the API server."""
    rig = scheduler(50, args=KEEPS)
    room = rig.waiting
    stop = threading.Event()
    chance = random.Random(5)

    def preempt() -> None:
        while not stop.wait(0.0005):
            for one in room.all():
                if chance.random() < 0.01:
                    room.reject(one.pod.uid, "", "preempted")

    releases: list[int] = []
    allow = room.allow_together

    def watched(uids: Any, plugin: str) -> bool:
        done = allow(uids, plugin)
        if done:
            releases.append(len(uids) + 1)
        return done

    room.allow_together = watched  # type: ignore[method-assign]
    thread = threading.Thread(target=preempt)
    thread.start()
    try:
        for number in range(10):
            put(rig, *gang(f"g{number}-", 5))
    finally:
        stop.set()
        thread.join()
    for _ in range(8):
        rig.later(11)
    assert releases == [5] * 10
    assert (bound(rig), room.all(), rig.cache.size().assumed_pods) == (50, (), 0)
