"""Permit in the cycle of the scheduler: rows of the stock scheduler's table, and what waiting pods hold and release."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, Code, Status, failed, unresolvable, unschedulable
from tests.scheduler_plugins.build import framework, info, node, pod
from tests.scheduler_plugins.rig import Rig

WAIT = Status(Code.WAIT)


class Permits(api.PermitPlugin, api.ReservePlugin, api.EnqueueExtensions):
    """Answers what it is told to, and keeps a log."""

    def __init__(self, answer: Status | Exception = SUCCESS, seconds: float = 10.0, name: str = "Permits") -> None:
        self.answer, self.seconds = answer, seconds
        self.name = name  # type: ignore[misc]
        self.log: list[str] = []

    def permit(self, state: Any, pod: Any, node_name: str) -> api.PermitResult:
        self.log.append(f"permit {pod.key}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return api.PermitResult(self.answer, self.seconds)

    def reserve(self, state: Any, pod: Any, node_name: str) -> Status:
        return SUCCESS

    def unreserve(self, state: Any, pod: Any, node_name: str) -> None:
        self.log.append(f"unreserve {pod.key}")

    def events_to_register(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("answers", "code", "by", "waits", "asked"),
    [
        ([], Code.SUCCESS, "", {}, 0),
        ([SUCCESS], Code.SUCCESS, "", {}, 1),
        ([unschedulable("no")], Code.UNSCHEDULABLE, "P0", {}, 1),
        ([failed("broken")], Code.ERROR, "P0", {}, 1),
        ([RuntimeError("boom")], Code.ERROR, "P0", {}, 1),
        ([SKIP], Code.ERROR, "P0", {}, 1),
        ([unresolvable("never")], Code.UNRESOLVABLE, "P0", {}, 1),
        ([WAIT], Code.WAIT, "P0", {"P0": 10.0}, 1),
        ([WAIT, WAIT], Code.WAIT, "P0", {"P0": 10.0, "P1": 10.0}, 2),
        ([WAIT, SUCCESS], Code.WAIT, "P0", {"P0": 10.0}, 2),
        ([WAIT, unschedulable("no"), SUCCESS], Code.UNSCHEDULABLE, "P1", {}, 2),
        ([unschedulable("no"), WAIT], Code.UNSCHEDULABLE, "P0", {}, 1),
    ],
)
def test_answers_of_permit(answers: list[Any], code: Code, by: str, waits: dict[str, float], asked: int) -> None:
    plugins = [Permits(answer, name=f"P{i}") for i, answer in enumerate(answers)]
    status, timeouts = framework(*plugins).run_permit(CycleState(), info("p"), "n")
    assert (status.code, status.plugin, timeouts) == (code, by, waits)
    assert sum(len(plugin.log) for plugin in plugins) == asked


def waiting_rig(plugin: Permits, bind_now: bool = True) -> Rig:
    rig = Rig(None, plugin, bind_now=bind_now)
    rig.server.put_node(node("n", {"cpu": "1", "pods": "9"}))
    rig.server.put(pod("p", {"cpu": "1"}))
    rig.settle()
    return rig


def test_waiting_pod_holds_its_room_and_no_thread_until_it_is_allowed() -> None:
    rig = waiting_rig(Permits(WAIT))
    rig.server.put(pod("q", {"cpu": "1"}))
    rig.settle()
    assert (rig.where("p"), rig.where("q"), rig.bindings) == ("", "", [])
    assert "Insufficient cpu" in rig.condition("q")[2]
    rig.waiting.get("uid-p").allow("Permits")
    assert rig.where("p") == "n"
    assert rig.queue.where(info("p")) == ""


@pytest.mark.parametrize(
    ("answer", "reason", "where"),
    [(unschedulable("no"), "Unschedulable", "unschedulable"), (failed("broken"), "SchedulerError", "backoff")],
)
def test_pod_refused_at_permit_is_undone(answer: Status, reason: str, where: str) -> None:
    plugin = Permits(answer)
    rig = Rig(None, plugin)
    rig.server.put_node(node("n"))
    rig.server.put(pod("p"))
    rig.scheduler.attempt(0)
    assert rig.condition("p")[1:] == (reason, answer.message)
    assert rig.queue.where(info("p")) == where
    assert plugin.log == ["permit default/p", "unreserve default/p"]
    assert rig.cache.size().assumed_pods == 0


def test_timeout_releases_the_room_and_sleeps_until_an_event_of_the_plugin() -> None:
    plugin = Permits(WAIT)
    rig = waiting_rig(plugin)
    rig.later(9.5)
    assert rig.cache.size().assumed_pods == 1
    rig.later(0.5)
    assert rig.cache.size().assumed_pods == 0
    assert plugin.log[-1] == "unreserve default/p"
    assert rig.condition("p")[2] == "waited too long at Permit for plugin Permits"
    assert rig.queue.where(info("p")) == "unschedulable"


def test_pod_deleted_while_it_waits_is_released_at_once() -> None:
    """#84554 / PR 84578: it stayed in the list of waiting pods and kept its room."""
    plugin = Permits(WAIT)
    rig = waiting_rig(plugin)
    rig.server.remove("p")
    rig.settle()
    assert (rig.waiting.all(), rig.cache.size().pods) == ((), 0)
    assert plugin.log[-1] == "unreserve default/p"
    assert rig.queue.in_flight_entries() == []
    assert sum(rig.queue.counts().values()) == 0
    plugin.answer = SUCCESS
    rig.server.put(pod("q", {"cpu": "1"}))
    rig.settle()
    assert rig.where("q") == "n"


def test_pod_whose_deletion_begins_while_it_waits_is_released_at_once() -> None:
    rig = waiting_rig(Permits(WAIT))
    rig.server.put(pod("p", {"cpu": "1"}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    rig.settle()
    assert (rig.waiting.all(), rig.cache.size().pods) == ((), 0)
    assert sum(rig.queue.counts().values()) == 0


def test_pod_deleted_between_the_choice_and_the_wait_does_not_wait() -> None:
    class Deletes(Permits):
        def permit(self, state: Any, pod: Any, node_name: str) -> api.PermitResult:
            rig.server.remove("p")
            return api.PermitResult(WAIT, 60)

    rig = Rig(None, Deletes())
    rig.server.put_node(node("n"))
    rig.server.put(pod("p"))
    rig.settle()
    assert rig.waiting.all() == ()
    assert rig.queue.in_flight_entries() == []


def test_event_that_comes_while_a_pod_waits_is_not_lost_when_it_is_rejected() -> None:
    plugin = Permits(WAIT)
    from scheduler_plugins.framework.events import NODE_ADD, Registration

    plugin.events_to_register = lambda: [Registration(NODE_ADD)]  # type: ignore[method-assign]
    rig = waiting_rig(plugin)
    rig.server.put_node(node("m"))
    rig.waiting.get("uid-p").reject("Permits", "no")
    assert rig.queue.where(info("p")) == "backoff"


def test_one_hundred_waiting_pods_do_not_hold_up_a_binding() -> None:
    """Each would keep one of a few binding threads if a wait were a blocked thread."""
    plugin = Permits(WAIT)
    rig = Rig(None, plugin, bind_now=False)
    rig.server.put_node(node("n", {"cpu": "200", "pods": "200"}))
    for i in range(100):
        rig.server.put(pod(f"w{i}", {"cpu": "1"}))
    rig.settle()
    assert len(rig.waiting.all()) == 100
    plugin.answer = SUCCESS
    rig.server.put(pod("p", {"cpu": "1"}))
    rig.settle()
    assert len(rig.bindings) == 1
    rig.run_bindings()
    assert rig.where("p") == "n"
