"""The scheduler without a cluster: places as it would, in simulated time, and the same each time."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from scheduler_plugins.dump import DumpError, Other
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.status import unschedulable
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.simulation.outcome import Fate
from scheduler_plugins.simulation.start import Choice
from slacktide import names
from tests.scheduler_plugins.build import GI, be, forecast, node, offering, pod
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.simulation import support
from tests.scheduler_plugins.simulation.support import WALL, arriving, by_name, only, simulate


def test_every_pod_has_a_node_or_the_reason_and_is_counted_by_it() -> None:
    nodes = [offering(f"n{i}", forecast(2500, 8 * GI, at=WALL)) for i in range(2)]
    pods = [be(f"p{i}", 1000, GI) for i in range(6)]
    outcome = simulate(nodes, [*pods, pod("ls", {"cpu": "9"})])
    told = by_name(outcome)
    placed = [one for one in outcome.pods if one.fate is Fate.PLACED]
    assert sorted(one.node for one in placed) == ["n0", "n0", "n1", "n1"]
    assert told["ls"].reason.startswith("0/2 nodes are available: 2 Insufficient cpu (nearest n")
    room = f"no forecast room for {names.BATCH_CPU}"
    assert outcome.totals.by_fate == {"placed": 4, "pending": 3}
    assert outcome.totals.pending_by_reason == {room: 2, "Insufficient cpu": 1}
    assert outcome.totals.attempts == 7
    use = {one.name: one.use[names.BATCH_CPU].requested for one in outcome.nodes}
    assert use == {"n0": 2000, "n1": 2000}


def test_it_places_as_a_scheduler_process_does() -> None:
    nodes = [offering(f"n{i}", forecast(1000 * i, 8 * GI, at=WALL)) for i in range(5)]
    pods = [be(f"p{i}", 700 + 100 * i, GI) for i in range(8)]
    rig = Rig()
    for one in nodes:
        rig.server.put_node(one)
    for each in pods:
        rig.server.put(each)
    rig.settle()
    # A tie is broken by chance; without one both go by the same scores.
    told = by_name(simulate(nodes, pods))
    assert {name: bool(one.node) for name, one in told.items()} == {f"p{i}": bool(rig.where(f"p{i}")) for i in range(8)}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_same_seed_same_result(seed: int) -> None:
    nodes = [node(f"n{i}") for i in range(20)]
    pods = [pod(f"p{i}", {"cpu": "1"}) for i in range(30)]
    first, second = (simulate(nodes, pods, seed=seed) for _ in range(2))
    assert (first.pods, first.nodes, first.totals) == (second.pods, second.nodes, second.totals)


def test_seeds_break_ties_differently() -> None:
    nodes = [node(f"n{i}") for i in range(20)]
    chosen = {by_name(simulate(nodes, [pod("p", {"cpu": "1"})], seed=seed))["p"].node for seed in range(10)}
    assert len(chosen) > 1


def test_pods_come_and_go_and_those_that_wait_follow() -> None:
    big = [arriving(10.0 * i, pod(f"p{i}", {"cpu": "6"}), 3600.0) for i in range(3)]
    started = time.monotonic()
    outcome = simulate([node("n")], arrivals=big)
    assert time.monotonic() - started < 60, "hours were waited for"
    told = by_name(outcome)
    assert [one.fate for one in told.values()] == [Fate.FINISHED] * 3
    waited = [one.waited_seconds for one in told.values()]
    assert waited[0] == pytest.approx(0.0, abs=0.01)
    # A pod that waits tries when the one before it leaves, at once or after its backoff.
    assert waited[1] == pytest.approx(3590.0, abs=12.0)
    assert waited[2] == pytest.approx(7180.0, abs=24.0)
    assert outcome.totals.seconds == pytest.approx(3 * 3600.0, abs=40.0)
    assert told["p2"].attempts >= 2


def test_time_that_is_given_is_simulated_and_no_more() -> None:
    later = [arriving(100.0, pod("late", {"cpu": "1"})), arriving(1.0, pod("soon", {"cpu": "1"}))]
    outcome = simulate([node("n")], [pod("huge", {"cpu": "90"})], later, seconds=50.0)
    told = by_name(outcome)
    assert (told["late"].fate, told["soon"].fate, told["huge"].fate) == (Fate.COMING, Fate.PLACED, Fate.PENDING)
    assert outcome.totals.seconds == pytest.approx(50.0, abs=0.01)


def test_sleeping_pods_are_tried_again_by_the_timers_of_the_queue() -> None:
    outcome = simulate([node("n")], [pod("huge", {"cpu": "90"})], seconds=1000.0)
    # Asleep for more than 300 s, looked at each 30 s: after 330, 660 and 990.
    assert by_name(outcome)["huge"].attempts == 4


def test_forecasts_are_repeated_or_left_to_age() -> None:
    nodes = [offering("n", forecast(4000, 8 * GI, at=WALL, ttl=60))]
    late = [arriving(2 * 86_400.0, be("p", 1000, GI))]
    assert by_name(simulate(nodes, arrivals=late))["p"].node == "n"
    aged = by_name(simulate(nodes, arrivals=late, ageing=True))["p"]
    assert (aged.fate, aged.reason.partition(" (")[0]) == (
        Fate.PENDING,
        "0/1 nodes are available: 1 forecast expired",
    )


def test_released_pods_are_placed_anew_and_the_others_stay() -> None:
    nodes = [offering(f"n{i}", forecast(2000, 8 * GI, at=WALL)) for i in range(2)]
    crowded = [be(f"p{i}", 1000, GI, nodeName="n0", schedulerName="somebody") for i in range(2)]
    stays = pod("ls", {"cpu": "7"}, nodeName="n0")
    choice = Choice(names.SCHEDULER_NAME, released=lambda one: one.metadata.name.startswith("p"))
    outcome = simulate(nodes, [*crowded, stays], choice=choice)
    assert sorted(one.node for one in outcome.pods) == ["n0", "n1"]
    assert {one.name: one.pods for one in outcome.nodes} == {"n0": 2, "n1": 1}


def test_pods_of_other_schedulers_are_left_to_them_unless_adopted() -> None:
    theirs = pod("p", {"cpu": "1"}, schedulerName="somebody")
    outcome = simulate([node("n")], [theirs])
    assert (outcome.pods, outcome.totals.others) == ([], 1)
    assert "1 pods without a node name a scheduler that is not simulated" in outcome.remarks
    adopted = simulate([node("n")], [theirs], choice=Choice(names.SCHEDULER_NAME, adopt=True))
    assert [one.node for one in adopted.pods] == ["n"]


def test_gated_pod_says_what_keeps_it_out() -> None:
    gated = pod("p", {"cpu": "1"}, schedulingGates=[{"name": "quota"}])
    (told,) = simulate([node("n")], [gated]).pods
    assert told.fate is Fate.GATED
    assert "quota" in told.reason


def test_ended_and_hand_written_pods() -> None:
    ended = pod("ended", {"cpu": "8"}, nodeName="n", status={"phase": "Succeeded"})
    bare = [msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, uid="", namespace=""))
            for one in (pod("a", {"cpu": "4"}), pod("b", {"cpu": "4"}))]  # fmt: skip
    outcome = simulate([node("n")], [ended, *bare])
    assert [(one.namespace, one.node) for one in outcome.pods] == [("default", "n")] * 2


def test_nothing_to_place_takes_no_time() -> None:
    outcome = simulate([node("n")])
    assert (outcome.pods, outcome.totals.seconds) == ([], 0.0)


def test_no_nodes() -> None:
    outcome = simulate([], [pod("p")])
    # It would back off and try again for ever.
    assert 60 < outcome.totals.seconds < 120
    (told,) = outcome.pods
    assert (told.fate, told.reason) == (Fate.PENDING, "no nodes available to schedule pods")


def test_name_that_is_there_already() -> None:
    with pytest.raises(DumpError, match="default/p"):
        simulate([node("n")], [pod("p")], [arriving(1.0, pod("p"))])


def test_score_tables_of_the_last_cycles() -> None:
    nodes = [node("a"), node("b", {"cpu": "4", "memory": "8Gi", "pods": "10"})]
    outcome = simulate(nodes, [pod(f"p{i}", {"cpu": "1"}) for i in range(3)], kept_cycles=2)
    assert len(outcome.cycles) == 2
    shown = outcome.cycles[0].shown()
    assert {one["node"] for one in shown["scores"]} == {"a", "b"}
    assert set(shown["weights"]) >= {"NodeResourcesFit"}


def namespaces(*labelled: str) -> list[Other]:
    return [
        Other("v1", "Namespace", msgspec.json.encode({"metadata": {"name": name, "labels": {"team": name}}}), name)
        for name in labelled
    ]


def test_plugins_see_the_other_objects_of_the_dump() -> None:
    term = {
        "topologyKey": names.HOSTNAME_LABEL,
        "labelSelector": {},
        "namespaceSelector": {"matchLabels": {"team": "red"}},
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    nodes = [node(name, labels={names.HOSTNAME_LABEL: name}) for name in "ab"]
    red = pod("red", metadata={"namespace": "red"}, nodeName="a")
    alone = pod("alone", affinity=affinity)
    assert by_name(simulate(nodes, [red, alone], others=namespaces("red")))["alone"].node == "b"


def test_object_that_cannot_be_read_is_named() -> None:
    bad = Other("v1", "Namespace", b'{"metadata": 7}', "cluster.json: item 3")
    with pytest.raises(DumpError, match="item 3"):
        simulate([node("n")], [pod("p")], others=[bad])


def test_higher_priority_makes_room_and_its_victim_ends_in_its_time() -> None:
    low = pod("low", {"cpu": "6"}, priority=0, terminationGracePeriodSeconds=40)
    high = arriving(5.0, pod("high", {"cpu": "6"}, priority=100))
    outcome = simulate([node("n")], [low], [high], file=only("NodeResourcesFit", "DefaultPreemption"))
    told = by_name(outcome)
    assert told["low"].fate is Fate.PREEMPTED
    assert told["low"].reason.startswith("Preempted by")
    assert (told["high"].fate, told["high"].node) == (Fate.PLACED, "n")
    assert told["high"].waited_seconds == pytest.approx(40.0, abs=1.5)


def test_gang_that_is_not_complete_waits_for_its_timeout_and_lets_go() -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "train"}
    group = {
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"minMember": 3, "scheduleTimeoutSeconds": 120},
    }
    other = Other("scheduling.x-k8s.io/v1alpha1", "PodGroup", msgspec.json.encode(group), "group")
    pods = [pod(f"w{i}", {"cpu": "3"}, metadata={"labels": labels}) for i in range(3)]
    assert {one.fate for one in simulate([node("n")], pods, others=[other], seconds=200.0).pods} == {Fate.PENDING}
    fits = [node("n"), node("m")]
    outcome = simulate(fits, pods, others=[other])
    assert [one.fate for one in outcome.pods] == [Fate.PLACED] * 3


class Restless(api.PreFilterPlugin, api.EnqueueExtensions):
    """Refuses every pod, and wakes it at once."""

    name = "Restless"

    def __init__(self, handle: api.Handle) -> None:
        self._handle = handle

    def pre_filter(self, state: Any, pod: Any, snapshot: Any) -> api.PreFilterResult:
        self._handle.activate([pod])
        return api.PreFilterResult(unschedulable("not now"))

    def events_to_register(self) -> tuple[Any, ...]:
        return ()


@pytest.mark.parametrize("seconds", [None, 3600.0])
def test_pods_that_keep_waking_do_not_run_for_ever(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = default_registry()
    plugins.register(Restless.name, lambda _, handle: Restless(handle), msgspec.Struct)
    monkeypatch.setattr(support, "default_registry", lambda: plugins)
    outcome = simulate([node("n")], [pod("p")], file=only("Restless"), least_attempts=20, seconds=seconds)
    assert "stopped after 100 attempts" in outcome.remarks[0]


def test_many_attempts_over_a_long_time_are_no_such_thing() -> None:
    outcome = simulate([node("n")], [pod("p", {"cpu": "9"})], least_attempts=20, seconds=40_000.0)
    assert outcome.totals.attempts > 100
    assert not outcome.remarks
