"""Gang: who is in a gang, what binds it, and what each extension point answers; rows of section 8.5, coscheduling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.points import POINTS
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.state import PODS_TO_ACTIVATE, CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, unschedulable
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.gang import Coscheduling, Gang, GangArgs
from scheduler_plugins.plugins.gang_group import gang_of_pod
from scheduler_plugins.plugins.gang_order import GangSort
from slacktide.cluster.kinds import PODS
from slacktide.objects import Node, Pod
from tests.scheduler_plugins.build import READER, Clock, framework, handle, node, pod, snapshot_of
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
from tests.scheduler_plugins.plugins.cases import FITS, NEVER, Objects, hint

ROOMY = node("n", {"cpu": "64", "memory": "64Gi", "pods": "110"})
WAIT = Code.WAIT


class Known(Objects):
    def indexed(self, kind: Any, index: Any, value: Any) -> list[Any]:
        found = (index.read(one) for one in self.all(kind))
        return [read[1] for read in found if read is not None and read[0] == value]


class Bench:
    """A Gang plugin before pods and groups; pods of `waits` wait at Permit on node n."""

    def __init__(self, pods: list[Pod], groups: Any = (), waits: list[Pod] | None = None, **args: Any) -> None:
        groups = groups if isinstance(groups, list | tuple) else [groups]
        self.clock = Clock()
        self.room = WaitingRoom(self.clock)
        self.told: dict[str, tuple[str, str]] = {}
        self.activated: list[str] = []
        self.objects = Known(
            {
                PODS: [*pods, *(waits or [])],
                SIGS_POD_GROUPS: [one for one in groups if type(one).__name__ == "SigsPodGroup"],
                POD_GROUPS: [one for one in groups if type(one).__name__ == "PodGroup"],
            }
        )
        lent = replace(
            handle(),
            monotonic=self.clock,
            waiting=self.room,
            objects=self.objects,
            activate=lambda infos: self.activated.extend(one.pod.metadata.name for one in infos),
        )
        self.plugin = Gang(msgspec.convert(args, GangArgs), lent)
        for one in waits or []:
            self.wait(one)

    def wait(self, one: Pod) -> None:
        info = READER.read(one)

        def told(status: Any, _: float) -> None:
            self.told[one.metadata.name] = (status.label, status.message)
            if not status.ok:
                self.plugin.unreserve(CycleState(), info, "n")

        self.room.add(info, "n", {self.plugin.name: 60.0}, told)

    def pre_filter(self, one: Pod, nodes: list[Node] | None = None, placed: dict[str, list[Pod]] | None = None) -> Any:
        snapshot = snapshot_of(framework(), nodes or [ROOMY], placed)
        return self.plugin.pre_filter(CycleState(), READER.read(one), snapshot).status

    def permit(self, one: Pod, state: CycleState | None = None) -> Any:
        return self.plugin.permit(state or CycleState(), READER.read(one), "n")

    def post_filter(self, one: Pod, state: CycleState | None = None) -> Any:
        snapshot = snapshot_of(framework(), [ROOMY])
        diagnosis = Diagnosis(names=snapshot.names)
        return self.plugin.post_filter(state or CycleState(), READER.read(one), snapshot, diagnosis, None)  # type: ignore[arg-type]


def three(make: Any = sigs, count: int = 3, **spec: Any) -> list[Pod]:
    return [make(f"p{i}", **spec) for i in range(count)]


# Who is in a gang.

BOTH = {"slacktide.io/pod-group": "a", "scheduling.x-k8s.io/pod-group": "b"}


@pytest.mark.parametrize(
    ("one", "want"),
    [
        (pod(), None),
        (member("p"), ("slacktide.io/pod-group", "default", "g")),
        (sigs("p"), ("scheduling.x-k8s.io/pod-group", "default", "g")),
        (stock("p"), ("spec.schedulingGroup", "default", "g")),
        (pod(metadata={"labels": BOTH}), ("slacktide.io/pod-group", "default", "a")),
        (sigs("p", schedulingGroup={"podGroupName": "c"}), ("scheduling.x-k8s.io/pod-group", "default", "g")),
        (pod(metadata={"labels": {"slacktide.io/pod-group": ""}}), None),
        (pod(schedulingGroup={}), None),
        (pod(metadata={"annotations": BOTH}), None),
    ],
)
def test_who_is_in_a_gang(one: Pod, want: Any) -> None:
    assert gang_of_pod(one) == want


# PreFilter, rows of 8.5.

BIG = {"min_resources": {"cpu": "60"}}
TOO_BIG = {"min_resources": {"cpu": "65"}}
BOUND = sigs("bound", cpu="40", nodeName="n")

PRE_FILTER: dict[str, tuple[Pod, list[Pod], Any, Code, str]] = {
    "no group": (pod("p0"), [], (), Code.SKIP, ""),
    "missing group": (sigs("p0"), [], (), FITS, ""),
    "missing group of Kubernetes": (stock("p0"), [], (), FITS, ""),
    "2 pods of min 3": (sigs("p0"), three(count=2), sigs_group(minimum=3), NEVER, "g has 2, its minimum is 3"),
    "equal to min": (sigs("p0"), three(), sigs_group(minimum=3), FITS, ""),
    "more than min": (sigs("p0"), three(count=5), sigs_group(minimum=3), FITS, ""),
    "gated but quorum": (sigs("p0"), [*three(), sigs("z", **GATED)], sigs_group(minimum=3), FITS, ""),
    "gated below quorum": (
        sigs("p0"), [*three(count=2), sigs("z", **GATED)], sigs_group(minimum=3), NEVER, "3, 1 of them kept out",
    ),
    "all gated": (sigs("p0"), three(**GATED), sigs_group(minimum=3), NEVER, "3, 3 of them kept out"),
    "leaving pods do not count": (
        sigs("p0"), [*three(count=2), sigs("z", metadata=LEAVING)], sigs_group(minimum=3), NEVER, "g has 2",
    ),
    "ended pods do not count": (
        sigs("p0"), [*three(count=2), sigs("z", status={"phase": "Failed"})], sigs_group(minimum=3), NEVER, "g has 2",
    ),
    "pods of another namespace do not count": (
        sigs("p0"), [*three(count=2), sigs("z", metadata={"namespace": "other"})], sigs_group(minimum=3), NEVER, "2",
    ),
    "pods of another gang do not count": (
        sigs("p0"), [*three(count=2), sigs("z", "other")], sigs_group(minimum=3), NEVER, "g has 2",
    ),
    "pods of another way to name a group do not count": (
        sigs("p0"), [*three(count=2), member("z")], sigs_group(minimum=3), NEVER, "g has 2",
    ),
    "minResources fit": (sigs("p0"), three(), sigs_group(minimum=3, **BIG), FITS, ""),
    "minResources do not fit": (
        sigs("p0"), three(), sigs_group(minimum=3, **TOO_BIG), NEVER, "minResources has 65 cpu, all nodes have 64 left",
    ),
    "minResources cannot be read": (
        sigs("p0"), three(), sigs_group(minimum=3, min_resources={"cpu": "x"}), NEVER, "minResources of PodGroup",
    ),
    "minMember 0": (sigs("p0"), three(), sigs_group(minimum=0), NEVER, "it must be 1 or more"),
    "min of Kubernetes": (stock("p0"), three(stock, 2), stock_group(minimum=3), NEVER, "g has 2, its minimum is 3"),
    "min of Kubernetes reached": (stock("p0"), three(stock), stock_group(minimum=3), FITS, ""),
    "each for itself": (stock("p0"), three(stock, 1), stock_group(minimum=None), FITS, ""),
    "stated": (member("p0", minimum=3), three(member, minimum=3), (), FITS, ""),
    "stated, one missing": (member("p0", minimum=3), three(member, 2, minimum=3), (), NEVER, "2, its minimum is 3"),
    "the largest of what is stated": (
        member("p0"), [*three(member), member("z", minimum=5)], (), NEVER, "has 4, its minimum is 5",
    ),
    "what a gated pod states does not count": (
        member("p0"), [*three(member), member("z", minimum=5, **GATED)], (), FITS, "",
    ),
    "nothing is stated": (
        pod("p0", metadata={"labels": BOTH}), [pod("p0", metadata={"labels": BOTH})], (), NEVER, "states slacktide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRE_FILTER)
def test_pre_filter(case: str) -> None:
    who, pods, groups, code, words = PRE_FILTER[case]
    status = Bench(pods, groups).pre_filter(who)
    assert status.code is code, status
    assert words in status.message


def test_own_bound_pods_are_excluded_from_min_resources() -> None:
    others = three()
    bench = Bench([*others, BOUND], sigs_group(minimum=4, **BIG))
    assert bench.pre_filter(others[0], placed={"n": [BOUND]}).ok
    foreign = pod("foreign", {"cpu": "40"}, nodeName="n")
    bench = Bench(others, sigs_group(minimum=3, **BIG))
    assert (
        "minResources has 60 cpu, all nodes have 24 left"
        in bench.pre_filter(others[0], placed={"n": [foreign]}).message
    )


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.5", " 2", "2e3", "٣", "100001", "9" * 5000, "NaN"])
def test_a_minimum_that_is_none_refuses_its_pod_with_a_reason_and_no_other(text: str) -> None:
    pods = [member("p0", minimum=text), *(member(f"p{i}") for i in (1, 2))]
    bench = Bench(pods)
    assert bench.plugin.pre_enqueue(READER.read(pods[0])).ok
    status = bench.pre_filter(pods[0])
    assert status.code is NEVER
    assert f"slacktide.io/min-members of pod p0 is {text[:40]!r}; it must be a whole number from 1 to 100000" in (
        status.message
    )
    assert bench.pre_filter(pods[1]).ok
    assert Bench(pods[:2]).pre_filter(pods[1]).code is NEVER


@pytest.mark.parametrize("text", ["0", "901", "soon"])
def test_a_timeout_that_is_none_refuses_the_pod_with_a_reason(text: str) -> None:
    odd = member("p0", metadata={"annotations": {"slacktide.io/pod-group-timeout-seconds": text}})
    assert "it must be a whole number from 1 to 900" in Bench([odd, member("p1")]).pre_filter(odd).message


def test_a_gang_without_its_group_and_one_with_too_few_pods_wait_before_the_queue() -> None:
    who = READER.read(sigs("p0"))
    assert Bench(three()).plugin.pre_enqueue(who).message == "the PodGroup of the pod is not there (default/g)"
    few = Bench(three(count=2), sigs_group(minimum=3)).plugin.pre_enqueue(who)
    assert few.message == "gang has fewer pods than it needs (gang default/g has 2, its minimum is 3)"
    assert Bench(three(), sigs_group(minimum=3)).plugin.pre_enqueue(who).ok
    assert Bench([]).plugin.pre_enqueue(READER.read(pod())).ok


# Room.

CORES = {"cpu": "4", "pods": "3"}
IN_G = {"labels": {"slacktide.io/pod-group": "g"}, "annotations": {"slacktide.io/min-members": "2"}}
ROOM: dict[str, tuple[list[Pod], list[Node], dict[str, list[Pod]], str]] = {
    "just fits": (three(count=6, make=member, minimum=6), [node("a", CORES), node("b", CORES)], {}, ""),
    "more than all nodes": (
        three(count=3, make=member, minimum=3, cpu="3"),
        [node("a", CORES), node("b", CORES)], {},
        "gang can never fit (gang default/g: 3 pods ask for 9 cpu, all nodes have 8)",
    ),
    "pieces are too small": (
        three(count=4, make=member, minimum=4, cpu="1500m"),
        [node(name, {"cpu": "2800m", "pods": "9"}) for name in "abc"], {},
        "gang can never fit (gang default/g: at most 3 of 4 pods fit on the nodes)",
    ),
    "too few pods may be there": (
        three(count=7, make=member, minimum=7, cpu="1m"), [node("a", CORES), node("b", CORES)], {},
        "gang can never fit (gang default/g: at most 6 of 7 pods fit on the nodes)",
    ),
    "the cheapest pods count": (
        [*three(count=2, make=member), member("big", cpu="100")], [node("a", CORES)], {}, "",
    ),
    "not now": (
        three(count=3, make=member, minimum=3), [node("a", CORES)], {"a": [pod("x", {"cpu": "2"})]},
        "gang does not fit now (gang default/g: 3 pods ask for 3 cpu, all nodes have 2)",
    ),
    "not now, but others may give way": (
        three(count=3, make=member, minimum=3, priority=5), [node("a", CORES)], {"a": [pod("x", {"cpu": "2"})]}, "",
    ),
    "would give way but may not": (
        three(count=3, make=member, minimum=3, priority=5, preemptionPolicy="Never"),
        [node("a", CORES)], {"a": [pod("x", {"cpu": "2"})]}, "gang does not fit now",
    ),
    "a resource that no node has is judged elsewhere": (
        [pod(f"p{i}", {"cpu": "1", "example.com/x": "9"}, metadata=IN_G) for i in range(2)],
        [node("a", CORES)], {}, "",
    ),
    "asks for nothing": (three(count=3, make=member, minimum=3, cpu="0"), [node("a", CORES)], {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ROOM)
def test_room(case: str) -> None:
    pods, nodes, placed, words = ROOM[case]
    status = Bench(pods).pre_filter(pods[0], nodes, placed)
    assert status.code is (NEVER if words else FITS), status
    assert words in status.message


def test_a_gang_of_which_pods_are_placed_already_is_not_measured_against_the_nodes_again() -> None:
    pods = three(count=3, make=member, minimum=3, cpu="3")
    bench = Bench(pods[1:], waits=pods[:1])
    assert bench.pre_filter(pods[1], [node("a", CORES)]).ok


# Permit, rows of 8.5.


def on(node_name: str, one: Pod) -> Pod:
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, node_name=node_name))


A, B, C, D = three(count=4)
PERMIT: dict[str, tuple[Pod, list[Pod], list[Pod], Any, Code, set[str]]] = {
    "no label": (pod(), [], [], (), FITS, set()),
    "unknown group": (A, [A, B], [], (), Code.UNSCHEDULABLE, set()),
    "below quorum": (A, [A, B, C], [], sigs_group(minimum=3), WAIT, set()),
    "quorum of one": (A, [A], [], sigs_group(minimum=1), FITS, set()),
    "one short": (A, [A, C], [B], sigs_group(minimum=3), WAIT, set()),
    "quorum of waiting pods": (A, [A], [B, C], sigs_group(minimum=3), FITS, {"p1", "p2"}),
    "quorum with bound pods": (A, [A, on("n", C)], [B], sigs_group(minimum=3), FITS, {"p1"}),
    "one that leaves does not count": (
        A, [A, on("n", sigs("z", metadata=LEAVING))], [B], sigs_group(minimum=3), WAIT, set(),
    ),
    "one of another gang does not count": (A, [A], [B, sigs("z", "other")], sigs_group(minimum=3), WAIT, set()),
    "complete before": (A, [A, on("n", B), on("n", C)], [], sigs_group(minimum=2), FITS, set()),
    "rules cannot be read": (A, [A], [B], sigs_group(minimum=0), Code.UNSCHEDULABLE, set()),
    "each for itself": (stock("p0"), [stock("p0")], [], stock_group(minimum=None), FITS, set()),
}  # fmt: skip


@pytest.mark.parametrize("case", PERMIT)
def test_permit(case: str) -> None:
    who, pods, waits, groups, code, released = PERMIT[case]
    bench = Bench(pods, groups, waits)
    assert bench.permit(who).status.code is code
    assert bench.told == dict.fromkeys(released, ("Success", ""))


def test_an_unknown_group_is_named() -> None:
    assert Bench([A]).permit(A).status.message == "the PodGroup of the pod is not there (default/g)"


@pytest.mark.parametrize(
    ("group", "args", "seconds"),
    [
        (sigs_group(minimum=3), {}, 60),
        (sigs_group(minimum=3), {"permitWaitingTimeSeconds": 7}, 7),
        (sigs_group(minimum=3, schedule_timeout_seconds=20), {"permitWaitingTimeSeconds": 7}, 20),
        (sigs_group(minimum=3, schedule_timeout_seconds=0), {}, 60),
        (sigs_group(minimum=3, schedule_timeout_seconds=10**9), {}, 900),
    ],
)
def test_the_timeout_of_the_gang_goes_before_that_of_the_arguments(group: Any, args: Any, seconds: float) -> None:
    assert Bench([A, B, C], group, **args).permit(A).timeout_seconds == seconds


def test_pods_may_state_the_timeout() -> None:
    given = {"annotations": {"slacktide.io/pod-group-timeout-seconds": "33"}}
    pods = three(make=member, minimum=3, metadata=given)
    assert Bench(pods).permit(pods[0]).timeout_seconds == 33


def test_only_the_first_pod_that_waits_gets_the_others_tried() -> None:
    """scheduler-plugins #682: each of them did, which is quadratic."""
    for waits, want in (([], {"default/p1", "default/p2"}), ([B], None)):
        bench, state = Bench([A, C, *([] if waits else [B])], sigs_group(minimum=4), waits), CycleState()
        assert bench.permit(A, state).status.code is WAIT
        assert (set(state.read(PODS_TO_ACTIVATE)) if PODS_TO_ACTIVATE in state else None) == want


def test_pods_that_another_plugin_wants_tried_are_kept() -> None:
    state = CycleState()
    state.write(PODS_TO_ACTIVATE, {"default/x": READER.read(pod("x"))})
    Bench([A, B], sigs_group(minimum=2)).permit(A, state)
    assert set(state.read(PODS_TO_ACTIVATE)) == {"default/x", "default/p1"}


def test_pods_that_are_being_bound_count_before_the_api_shows_it() -> None:
    bench = Bench([A, B, C], sigs_group(minimum=2), [])
    bench.wait(B)
    assert bench.permit(A).status.ok
    assert bench.told == {"p1": ("Success", "")}
    assert bench.permit(C).status.ok
    # One of them is not bound after all: what remains is one short.
    for one in (A, C):
        bench.plugin.unreserve(CycleState(), READER.read(one), "n")
    assert bench.permit(C).status.ok
    bench.plugin.unreserve(CycleState(), READER.read(B), "n")
    bench.plugin.unreserve(CycleState(), READER.read(C), "n")
    assert bench.permit(C).status.code is WAIT


def test_a_pod_that_lost_its_place_while_the_gang_is_let_go_lets_nobody_go() -> None:
    """Exact release: B is told that it waited too long just as A is counted."""
    bench = Bench([A], sigs_group(minimum=3), [B, C])
    allow, state = bench.room.allow_together, CycleState()

    def late(uids: Any, plugin: str) -> bool:
        bench.room.reject("uid-p1", "", "preempted")
        return allow(uids, plugin)

    bench.room.allow_together = late  # type: ignore[method-assign]
    assert bench.permit(A, state).status.code is WAIT
    assert bench.told == {"p1": ("Unschedulable", "preempted")}
    assert [one.pod.pod.metadata.name for one in bench.room.all()] == ["p2"]
    assert set(state.read(PODS_TO_ACTIVATE)) == {"default/p1"}


def test_where_one_loses_its_place_all_that_wait_give_theirs_back_and_others_do_not() -> None:
    other = sigs("o", "other")
    bench = Bench([A], [sigs_group(minimum=4), sigs_group("other", 4)], [B, C, other])
    bench.plugin.unreserve(CycleState(), READER.read(A), "n")
    assert {one.pod.pod.metadata.name for one in bench.room.all()} == {"o"}
    assert set(bench.told) == {"p1", "p2"}
    assert bench.told["p1"][1] == "gave its place back: pod p0 lost its place"
    bench.plugin.unreserve(CycleState(), READER.read(A), "n")
    bench.plugin.unreserve(CycleState(), READER.read(pod()), "n")
    assert bench.plugin.reserve(CycleState(), READER.read(A), "n") is SUCCESS


# PostFilter, thresholds of 8.5: percentage, places, whether the gang of ten keeps them.


@pytest.mark.parametrize(
    ("percentage", "places", "keeps"),
    [(10, 9, True), (10, 8, False), (0, 9, False), (100, 0, True), (50, 6, True), (50, 4, False), (50, 5, True)],
)
def test_how_much_may_lack(percentage: int, places: int, keeps: bool) -> None:
    pods = three(count=10)
    bench = Bench(pods[places:], sigs_group(minimum=10), pods[:places], podGroupRejectPercentage=percentage)
    status = bench.post_filter(pods[9]).status
    assert status.code is Code.UNSCHEDULABLE
    assert len(bench.room.all()) == (places if keeps else 0)
    assert ("keeps" if keeps else "back") in status.message
    assert f"{places} of 10 places" in status.message
    # A gang that gave up rests, whoever of it comes next.
    assert ("rests" in bench.pre_filter(pods[9]).message) is not keeps


def test_a_complete_gang_and_one_that_can_do_without_the_pod_keep_their_places() -> None:
    bench = Bench([A, on("n", B)], sigs_group(minimum=2), [C])
    assert bench.post_filter(A).status.message == ""
    bench = Bench([A, B], sigs_group(minimum=2), [C])
    assert bench.post_filter(A).status.message == "gang goes on without the pod"
    assert [one.pod.pod.metadata.name for one in bench.room.all()] == ["p2"]
    assert "back" in bench.post_filter(B).status.message
    assert bench.room.all() == ()


def test_pods_of_a_gang_whose_one_pod_fits_nowhere_are_refused_at_once_until_that_one_is_tried_again() -> None:
    """koordinator: later members fail without being filtered; else each begins another round that fails."""
    bench = Bench([A, B, C], sigs_group(minimum=3), podGroupRejectPercentage=100)
    bench.post_filter(A)
    assert bench.pre_filter(B).message == ("pods that the gang needs fit nowhere (gang default/g: 2 of 3 are left)")
    assert bench.pre_filter(A).ok
    assert bench.pre_filter(B).ok


def test_a_rest_is_longer_each_time_and_ends_with_another_try_for_those_who_asked() -> None:
    bench = Bench([A, B], sigs_group(minimum=2))
    for seconds in (1, 2, 4, 8, 10, 10):
        bench.post_filter(A)
        bench.clock.forward(seconds - 0.01)
        bench.room.expire()
        assert bench.activated == []
        assert bench.pre_filter(B).message.startswith("gang rests after it could not be placed")
        bench.clock.forward(0.02)
        bench.room.expire()
        assert sorted(bench.activated) == ["p0", "p1"]
        bench.activated.clear()
        assert bench.pre_filter(B).ok
    bench.post_filter(A)
    bench.clock.forward(11)
    bench.room.expire()
    assert bench.activated == []


def test_the_arguments_may_ask_for_a_longer_rest() -> None:
    bench = Bench([A, B], sigs_group(minimum=2), podGroupBackoffSeconds=30)
    bench.post_filter(A)
    assert "for another 30 s" in bench.pre_filter(B).message
    bench.clock.forward(31)
    bench.room.expire()
    assert sorted(bench.activated) == ["p0", "p1"]


def test_waiting_pods_of_a_gang_that_has_too_few_pods_left_give_their_places_back() -> None:
    bench, state = Bench([A], sigs_group(minimum=4), [B]), CycleState()
    snapshot = snapshot_of(framework(), [ROOMY])
    assert bench.plugin.pre_filter(state, READER.read(A), snapshot).status.code is NEVER
    bench.post_filter(A, state)
    assert bench.told["p1"][1] == "gave its place back: its gang has too few pods"


# Events.

QUEUE, SKIP = Hint.QUEUE, Hint.SKIP
POD_ADD, PLACED, GONE = events.POD_ADD, events.ASSIGNED_POD_ADD, events.ASSIGNED_POD_DELETE
OWN = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_OTHER)
UNGATED = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_GATES_ELIMINATED)
SIGS_ADD = ClusterEvent(events.POD_GROUP, Action.ADD)
SIGS_UPDATE = ClusterEvent(events.POD_GROUP, Action.UPDATE_OTHER)
STOCK_ADD = ClusterEvent("scheduling.k8s.io/PodGroup", Action.ADD)
G2 = sigs_group(minimum=2)

HINTS: dict[str, tuple[list[Pod], Any, ClusterEvent, Any, Any, Hint | None]] = {
    "the missing sibling": ([A, B], G2, POD_ADD, None, B, QUEUE),
    "a sibling, still too few": ([A, B], sigs_group(minimum=3), POD_ADD, None, B, SKIP),
    "a sibling, but no group": ([A, B], (), POD_ADD, None, B, SKIP),
    "a pod of another gang": ([A, B], G2, POD_ADD, None, sigs("z", "other"), SKIP),
    "a pod of no gang": ([A, B], G2, POD_ADD, None, pod(), SKIP),
    "a sibling placed by somebody": ([A, on("n", B)], G2, PLACED, None, on("n", B), QUEUE),
    "own change": ([A, B], G2, OWN, A, A, QUEUE),
    "a gate is gone": ([A, B], G2, UNGATED, sigs("p1", **GATED), B, QUEUE),
    "the group": ([A, B], G2, SIGS_ADD, None, G2, QUEUE),
    "the group changed": ([A, B], G2, SIGS_UPDATE, sigs_group(minimum=3), G2, QUEUE),
    "the group, too few pods": ([A], G2, SIGS_ADD, None, G2, SKIP),
    "another group": ([A, B], G2, SIGS_ADD, None, sigs_group("other"), SKIP),
    "a group of the other kind": ([A, B], G2, STOCK_ADD, None, stock_group(), SKIP),
    "a pod gone, nothing lacked": ([A, B], G2, GONE, on("n", pod("x", {"cpu": "1"})), None, SKIP),
    "a node, nothing lacked": ([A, B], G2, events.NODE_ADD, None, node(), SKIP),
    "a taint": ([A, B], G2, ClusterEvent(events.NODE, Action.UPDATE_NODE_TAINT), node(), node(), SKIP),
    "a node gone": ([A, B], G2, events.NODE_DELETE, node(), None, None),
}


def as_told(one: Any) -> Any:
    return READER.read(one) if isinstance(one, Pod) else one


@pytest.mark.parametrize("case", HINTS)
def test_events(case: str) -> None:
    pods, groups, event, old, new, want = HINTS[case]
    bench = Bench(pods, groups)
    assert hint(bench.plugin, READER.read(A), event, as_told(old), as_told(new)) is want


SMALL = [node("a", {"cpu": "1", "memory": "1Gi", "pods": "9"})]


def grown(**offered: str) -> Node:
    return node("a", {"cpu": "1", "memory": "1Gi", "pods": "9"} | offered)


@pytest.mark.parametrize(
    ("event", "old", "new", "want"),
    [
        (GONE, on("a", pod("x", {"cpu": "1"})), None, QUEUE),
        (GONE, on("a", pod("x", {"memory": "1"})), None, SKIP),
        (events.NODE_ADD, None, node("b"), QUEUE),
        (events.NODE_ADD, None, node("b", {"memory": "1Gi"}), SKIP),
        (ClusterEvent(events.NODE, Action.UPDATE_NODE_ALLOCATABLE), SMALL[0], grown(cpu="2"), QUEUE),
        (ClusterEvent(events.NODE, Action.UPDATE_NODE_ALLOCATABLE), SMALL[0], grown(memory="2Gi"), SKIP),
        (ClusterEvent(events.NODE, Action.UPDATE_NODE_ALLOCATABLE), grown(cpu="2"), SMALL[0], SKIP),
        (ClusterEvent(events.NODE, Action.UPDATE_NODE_ALLOCATABLE), SMALL[0], grown(cpu="?"), SKIP),
    ],
)
def test_a_gang_that_lacked_room_is_helped_by_more_of_what_lacked(event: Any, old: Any, new: Any, want: Hint) -> None:
    bench = Bench([A, B], G2)
    assert "never" in bench.pre_filter(A, SMALL).message
    assert hint(bench.plugin, READER.read(A), event, as_told(old), as_told(new)) is want
    assert bench.pre_filter(A).ok
    assert hint(bench.plugin, READER.read(A), event, as_told(old), as_told(new)) is SKIP


# Order.


def keys(sort: Any, queued: list[QueuedPod]) -> list[str]:
    return [one.info.pod.metadata.name for one in sorted(queued, key=sort.sort_key)]


def aged(name: str, gang: str, second: int, **spec: Any) -> Pod:
    return member(name, gang, metadata={"creationTimestamp": f"1970-01-01T00:00:{second:02d}Z"}, **spec)


def test_pods_of_a_gang_stand_together_behind_older_ones_and_before_younger_ones() -> None:
    """koordinator #872: A, C, B, D of two gangs A, B and C, D block each other; a gang must be in one piece."""
    # Both clocks read 1000 at the same moment, so an entry at 30 s is as old as a gang created 30 s after the epoch.
    pods = {
        "plain-20": (pod("plain-20"), 20.0),
        "old-a": (aged("old-a", "old", 30), 40.0),
        "young-a": (aged("young-a", "young", 31), 41.0),
        "old-b": (aged("old-b", "old", 33), 42.0),
        "young-b": (aged("young-b", "young", 31), 43.0),
        "plain-35": (pod("plain-35"), 35.0),
        "urgent": (aged("urgent", "last", 50, priority=1), 50.0),
    }
    bench = Bench([one for one, _ in pods.values()])
    queued = [QueuedPod(READER.read(one), at) for one, at in pods.values()]
    want = ["urgent", "plain-20", "old-a", "old-b", "young-a", "young-b", "plain-35"]
    lent = bench.plugin._handle
    assert keys(GangSort(lent), queued) == want
    assert keys(Coscheduling(GangArgs(), lent), queued) == want


def test_gangs_of_the_same_moment_do_not_mix() -> None:
    """scheduler-plugins #117, #114."""
    pods = [aged(f"{gang}{i}", gang, 5) for i in range(3) for gang in "ab"]
    queued = [QueuedPod(READER.read(one), float(i)) for i, one in enumerate(pods)]
    assert keys(GangSort(Bench(pods).plugin._handle), queued) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_a_group_object_says_how_old_the_gang_is_and_without_it_the_queue_does() -> None:
    group = sigs_group(created="1970-01-01T00:00:10Z")
    queued = [QueuedPod(READER.read(pod("x")), 20.0), QueuedPod(READER.read(A), 30.0)]
    assert keys(GangSort(Bench([A], group).plugin._handle), queued) == ["p0", "x"]
    assert keys(GangSort(Bench([A]).plugin._handle), queued) == ["x", "p0"]
    assert keys(GangSort(Bench([A], sigs_group(created="long ago")).plugin._handle), queued) == ["x", "p0"]


# Names and arguments.


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("Gang", ["preEnqueue", "preFilter", "postFilter", "reserve", "permit"]),
        ("Coscheduling", ["preEnqueue", "queueSort", "preFilter", "postFilter", "reserve", "permit"]),
        ("GangSort", ["queueSort"]),
    ],
)
def test_extension_points(name: str, points: list[str]) -> None:
    plugin = default_registry().build(name, {}, handle())
    assert plugin.name == name
    assert [point for point, kind in POINTS.items() if isinstance(plugin, kind)] == points


def test_the_arguments_of_the_stock_plugin_are_accepted() -> None:
    args = {"permitWaitingTimeSeconds": 10, "podGroupBackoffSeconds": 5, "podGroupRejectPercentage": 20}
    default_registry().build("Coscheduling", args, handle())


@pytest.mark.parametrize(
    "args",
    [
        {"permitWaitingTimeSeconds": 0},
        {"permitWaitingTimeSeconds": 901},
        {"podGroupBackoffSeconds": -1},
        {"podGroupRejectPercentage": 101},
        {"permitWaitingTime": 1},
    ],
)
def test_arguments_that_do_not_fit(args: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(args, GangArgs)


def test_pods_of_no_gang_pass_everywhere() -> None:
    bench, state, who = Bench([]), CycleState(), READER.read(pod())
    assert bench.plugin.pre_enqueue(who) is SUCCESS
    assert bench.permit(pod()).status is SUCCESS
    assert bench.post_filter(pod(), state).status == unschedulable()
    assert PODS_TO_ACTIVATE not in state


def test_groups_and_pods_are_what_the_plugin_wants_listed() -> None:
    kinds = Bench([]).plugin.kinds()
    assert kinds == (PODS, SIGS_POD_GROUPS, POD_GROUPS)
