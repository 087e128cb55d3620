"""Pods that wait at Permit: who decides, that it counts once, and that nothing stays behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scheduler_plugins.framework.status import SUCCESS, Code, Status
from scheduler_plugins.framework.waiting import LONGEST_SECONDS, WaitingRoom
from tests.scheduler_plugins.build import Clock, info


class Waits:
    """A room with one pod that waits for plugins A and B, 10 s and 5 s."""

    def __init__(self, **timeouts: float) -> None:
        self.clock = Clock()
        self.room = WaitingRoom(self.clock)
        self.told: list[tuple[Status, float]] = []
        self.pod = self.add("p", timeouts or {"A": 10.0, "B": 5.0})

    def add(self, name: str, timeouts: dict[str, float]) -> Any:
        return self.room.add(info(name), "n", timeouts, lambda status, seconds: self.told.append((status, seconds)))


def test_one_allow_of_two_is_not_enough_both_are() -> None:
    waits = Waits()
    waits.pod.allow("A")
    assert (waits.told, waits.pod.pending()) == ([], {"B"})
    waits.clock.forward(2)
    waits.pod.allow("B")
    assert waits.told == [(SUCCESS, 2.0)]
    assert waits.room.all() == ()


def test_reject_by_one_beats_allow_of_the_other_and_the_first_decision_counts() -> None:
    waits = Waits()
    waits.pod.allow("A")
    waits.pod.reject("B", "no")
    waits.pod.allow("B")
    waits.pod.reject("A", "neither")
    assert [(s.code, s.plugin, s.message) for s, _ in waits.told] == [(Code.UNSCHEDULABLE, "B", "no")]
    assert waits.room.get("uid-p") is None


def test_earliest_timeout_rejects_the_whole_pod_in_the_name_of_its_plugin() -> None:
    waits = Waits()
    assert waits.room.expire() == 5.0
    waits.clock.forward(5)
    assert waits.room.expire() is None
    assert [(s.code, s.plugin) for s, _ in waits.told] == [(Code.UNSCHEDULABLE, "B")]


def test_allow_stops_the_timeout_of_that_plugin_only() -> None:
    waits = Waits()
    waits.pod.allow("B")
    waits.clock.forward(9)
    assert waits.room.expire() == 1.0
    waits.clock.forward(1)
    waits.room.expire()
    assert [s.plugin for s, _ in waits.told] == ["A"]


def test_no_plugin_keeps_a_pod_for_more_than_a_quarter_of_an_hour() -> None:
    waits = Waits(A=1e9)
    waits.clock.forward(LONGEST_SECONDS)
    waits.room.expire()
    assert len(waits.told) == 1


def test_two_pods_wait_independently() -> None:
    waits = Waits()
    second = waits.add("q", {"A": 60.0})
    assert {w.pod.key for w in waits.room.all()} == {"default/p", "default/q"}
    waits.clock.forward(5)
    waits.room.expire()
    assert waits.room.all() == (second,)
    assert waits.room.reject("uid-q", "", "gone")
    assert not waits.room.reject("uid-q", "", "gone")
    assert [(s.plugin, s.message) for s, _ in waits.told][1] == ("", "gone")


@pytest.mark.parametrize("turn", range(20))
def test_decisions_of_many_threads_are_told_once(turn: int) -> None:
    waits = Waits()
    together = threading.Barrier(4)

    def decide(call: Any) -> None:
        together.wait(20)
        call()

    calls = [
        lambda: (waits.pod.allow("A"), waits.pod.allow("B")),
        lambda: waits.pod.reject("A", "no"),
        lambda: waits.room.reject("uid-p", "", "deleted"),
        waits.room.expire,
    ]
    threads = [threading.Thread(target=decide, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(waits.told) == 1
    assert waits.room.all() == ()


def test_several_pods_are_allowed_in_one_moment_or_none_is() -> None:
    room, told = WaitingRoom(Clock()), []
    for name in "abc":
        room.add(
            info(name),
            "n",
            {"P": 60, "Q": 60} if name == "c" else {"P": 60},
            lambda s, _, n=name: told.append((n, s.ok)),
        )
    room.reject("uid-a", "P", "no")
    assert not room.allow_together(["uid-a", "uid-b", "uid-c"], "P")
    assert told == [("a", False)]
    assert room.get("uid-b").pending() == {"P"}
    assert room.allow_together(["uid-b", "uid-c"], "P")
    assert told == [("a", False), ("b", True)]
    assert room.get("uid-c").pending() == {"Q"}
    assert room.allow_together([], "P")
    room.get("uid-c").allow("Q")
    assert told[-1] == ("c", True)
    assert not room.allow_together(["uid-c"], "P")


def test_a_pod_that_is_decided_counts_no_more_when_others_are_told() -> None:
    """Its callback runs while it is being taken out: nobody may find it waiting by then."""
    room, seen = WaitingRoom(Clock()), []
    room.add(info("a"), "n", {"P": 60}, lambda *_: None)
    room.add(info("b"), "n", {"P": 60}, lambda *_: seen.append([w.pod.uid for w in room.all()]))
    room.get("uid-b").reject("P", "no")
    assert seen == [["uid-a"]]


def test_what_is_put_off_is_called_once_its_time_has_come_in_order() -> None:
    clock, called = Clock(), []
    room = WaitingRoom(clock)
    room.later(2, lambda: called.append("late"))
    room.later(1, lambda: called.append("early"))
    room.later(1, lambda: room.later(0, lambda: called.append("at once")))
    room.expire()
    assert called == []
    clock.forward(1)
    room.expire()
    assert called == ["early", "at once"]
    clock.forward(5)
    room.expire()
    room.expire()
    assert called == ["early", "at once", "late"]
