"""Queue: the rows of the scheduler's own tables, and the properties they protect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import ClusterEvent, Hint, Registration
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queue import QueueError, QueueTimes, SchedulingQueue
from scheduler_plugins.framework.queued import QueuedPod, backoff_duration
from scheduler_plugins.framework.status import SUCCESS, Status, unresolvable
from tests.scheduler_plugins.build import Clock, Silent, info, node

NODE_ADD = events.NODE_ADD
GATES = ClusterEvent(events.UNSCHEDULABLE_POD, events.Action.UPDATE_POD_GATES_ELIMINATED)


def never(pod: PodInfo, old: Any, new: Any) -> Hint:
    return Hint.SKIP


def always(pod: PodInfo, old: Any, new: Any) -> Hint:
    return Hint.QUEUE


def broken(pod: PodInfo, old: Any, new: Any) -> Hint:
    raise ValueError("hint")


class Rules:
    """Framework of the queue: priority order, gates from the pod, registrations as given."""

    def __init__(self, registrations: Mapping[str, Sequence[Registration]] | None = None) -> None:
        self.registrations = registrations or {
            "Yes": [Registration(NODE_ADD, always)],
            "No": [Registration(NODE_ADD, never)],
            "Broken": [Registration(NODE_ADD, broken)],
            "NoHint": [Registration(NODE_ADD)],
            "Gate": [Registration(GATES, always)],
        }

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        return (-queued.info.priority, queued.timestamp)

    def run_pre_enqueue(self, pod: PodInfo, first: str = "") -> Status:
        return unresolvable("gated").by("Gate") if pod.pod.spec.scheduling_gates else SUCCESS


class Rig:
    def __init__(self, rules: Rules | None = None, **kwargs: Any) -> None:
        self.clock = Clock()
        self.seen = Silent()
        self.rules = rules or Rules()
        self.queue = SchedulingQueue(self.rules, self.seen, self.clock, **kwargs)

    def pop(self) -> QueuedPod:
        queued = self.queue.pop(0)
        assert queued is not None
        return queued

    def fail(self, *plugins: str, pending: str = "") -> QueuedPod:
        queued = self.pop()
        queued.unschedulable_plugins |= set(plugins)
        if pending:
            queued.pending_plugins.add(pending)
        self.queue.requeue(queued)
        return queued


@pytest.mark.parametrize(("failures", "want"), [(0, 0), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10), (7, 10)])
def test_backoff_table(failures: int, want: float) -> None:
    assert backoff_duration(failures, 1, 10) == want


@pytest.mark.parametrize("failures", [16, 33, 65, 1000])
def test_backoff_never_overflows(failures: int) -> None:
    assert backoff_duration(failures, 1e-9, 32e-9) == 32e-9


def test_no_maximum_means_no_backoff() -> None:
    """Row 6 of section 7 (#131661)."""
    rig = Rig(times=QueueTimes(maximum_backoff=0), pop_from_backoff=False)
    rig.queue.add(info())
    rig.fail("Yes")
    rig.queue.move_all(NODE_ADD, None, node())
    assert rig.queue.where(info()) == "active"


@pytest.mark.parametrize(
    ("window", "want"), [(1.0, ["p5", "p4", "p2", "p3"]), (0.0, ["p5", "p4", "p3", "p2"])], ids=["window", "exact"]
)
def test_order_of_flushed_pods(window: float, want: list[str]) -> None:
    rig = Rig(times=QueueTimes(ordering_window=window), pop_from_backoff=False)
    start = rig.clock.now
    # Entered from the oldest on, because time only moves forward; the offset is the time of their failure.
    rows = [("p5", 1, -3.0), ("p3", 1, -2.0), ("p4", 2, -2.0), ("p2", 2, -1.999), ("p1", 1, -1.0), ("p0", 1, 0.0)]
    for name, priority, offset in rows:
        rig.clock.now = start + offset
        rig.queue.add(info(name, priority=priority))
        rig.fail("Yes")
        rig.queue.move_all(NODE_ADD, None, node())
        assert rig.queue.where(info(name)) == "backoff"
    flushed: list[str] = []
    rig.seen.moves.clear()
    original = rig.queue._push_active
    rig.queue._push_active = lambda queued, label: (
        flushed.append(queued.info.pod.metadata.name),
        original(queued, label),
    )
    rig.queue.flush_backoff()
    assert flushed == want
    assert rig.seen.moves == [("active", "BackoffComplete")] * 4


def test_flush_empties_both_heaps_only_of_what_is_due() -> None:
    rig = Rig(pop_from_backoff=False)
    rig.queue.add(info("refused"))
    rig.fail("Yes")
    rig.queue.move_all(NODE_ADD, None, node())
    rig.queue.add(info("error"))
    rig.fail()
    rig.clock.forward(3)
    rig.queue.add(info("late"))
    rig.fail()
    rig.queue.flush_backoff()
    assert [rig.queue.where(info(n)) for n in ("refused", "error", "late")] == ["active", "active", "backoff"]


def test_pop_takes_refused_pods_from_backoff_but_never_failed_ones() -> None:
    rig = Rig()
    rig.queue.add(info("error"))
    rig.fail()
    assert rig.queue.pop(0) is None
    rig.queue.add(info("refused"))
    rig.fail("Yes")
    rig.queue.move_all(NODE_ADD, None, node())
    assert rig.queue.where(info("refused")) == "backoff"
    assert rig.pop().info.key == "default/refused"
    assert rig.seen.moves[-1] == ("active", "PopFromBackoffQ")


def test_waiting_for_a_pod_takes_none() -> None:
    rig = Rig()
    assert not rig.queue.wait(0)
    rig.queue.add(info("p"))
    assert rig.queue.wait(0)
    assert rig.pop().info.key == "default/p"
    assert not rig.queue.wait(0)
    rig.queue.close()
    assert rig.queue.wait()


def test_high_priority_pod_in_backoff_does_not_block_a_lower_one() -> None:
    rig = Rig(pop_from_backoff=False)
    rig.queue.add(info("high", priority=100))
    rig.fail()
    rig.queue.add(info("low", priority=1))
    assert rig.pop().info.key == "default/low"


@pytest.mark.parametrize(
    ("plugins", "pending", "want"),
    [
        (["Yes"], "", "backoff"),
        (["No"], "", "unschedulable"),
        (["NoHint"], "", "backoff"),
        (["Broken"], "", "backoff"),
        (["No", "Yes"], "", "backoff"),
        (["Unregistered"], "", "unschedulable"),
        ([], "", "backoff"),
        ([], "Yes", "active"),
        ([], "No", "unschedulable"),
    ],
)
def test_event_during_the_attempt_decides_where_a_failed_pod_goes(plugins: list[str], pending: str, want: str) -> None:
    rig = Rig(pop_from_backoff=False)
    rig.queue.add(info())
    queued = rig.pop()
    rig.queue.move_all(NODE_ADD, None, node())
    queued.unschedulable_plugins |= set(plugins)
    if pending:
        queued.pending_plugins.add(pending)
    rig.queue.requeue(queued)
    assert rig.queue.where(queued.info) == want
    assert rig.seen.hint_errors == (["Broken"] if "Broken" in plugins else [])


def test_events_before_pop_and_events_nobody_registered_for_are_not_kept() -> None:
    rig = Rig()
    rig.queue.add(info())
    rig.queue.move_all(NODE_ADD, None, node())
    queued = rig.pop()
    rig.queue.move_all(events.NODE_DELETE, node(), None)
    assert rig.queue.in_flight_entries() == [queued.info.uid]


def test_events_are_kept_as_long_as_a_pod_that_saw_them_is_in_flight() -> None:
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.queue.add(info(name))
    rig.pop()
    rig.queue.move_all(NODE_ADD, None, node())
    rig.pop()
    rig.queue.move_all(NODE_ADD, None, node())
    rig.pop()
    rig.queue.move_all(NODE_ADD, None, node())
    rig.queue.done("uid-b")
    assert rig.queue.in_flight_entries() == ["uid-a", "NodeAdd", "NodeAdd", "uid-c", "NodeAdd"]
    rig.queue.done("uid-a")
    assert rig.queue.in_flight_entries() == ["uid-c", "NodeAdd"]
    rig.queue.done("uid-c")
    assert rig.queue.in_flight_entries() == []


def test_a_pod_cannot_be_requeued_into_a_queue_that_has_it() -> None:
    rig = Rig()
    rig.queue.add(info())
    queued = rig.pop()
    rig.queue.done(queued.info.uid)
    rig.queue.add(info())
    with pytest.raises(QueueError, match="already"):
        rig.queue.requeue(queued)
    assert rig.queue.counts()["active"] == 1


@pytest.mark.parametrize(
    ("place", "want"),
    [("unknown", "active"), ("active", "active"), ("backoff", "backoff"), ("in flight", "in flight")],
)
def test_update_table(place: str, want: str) -> None:
    rig = Rig(pop_from_backoff=False)
    if place != "unknown":
        rig.queue.add(info())
    if place == "backoff":
        rig.fail()
    if place == "in flight":
        rig.pop()
    rig.queue.update(info(), info(metadata={"labels": {"a": "b"}}))
    assert rig.queue.where(info()) == want


@pytest.mark.parametrize(
    ("hint", "wait", "want"), [(always, 0, "backoff"), (always, 5, "active"), (never, 5, "unschedulable")]
)
def test_update_of_a_sleeping_pod_asks_the_plugins_that_refused_it(hint: Any, wait: float, want: str) -> None:
    label = ClusterEvent(events.UNSCHEDULABLE_POD, events.Action.UPDATE_POD_LABEL)
    rig = Rig(Rules({"P": [Registration(label, hint)]}), pop_from_backoff=False)
    rig.queue.add(info())
    rig.fail("P")
    rig.clock.forward(wait)
    rig.queue.update(info(), info(metadata={"labels": {"a": "b"}}))
    assert rig.queue.where(info()) == want


def test_status_update_moves_nobody_but_the_newest_pod_is_kept() -> None:
    rig = Rig(Rules({"P": [Registration(events.ALL_EVENTS)]}), pop_from_backoff=False)
    rig.queue.add(info())
    rig.fail("P")
    rig.queue.update(info(), info(status={"phase": "Pending", "message": "waiting"}))
    assert rig.queue.where(info()) == "unschedulable"
    rig.queue.activate([info()])
    assert rig.pop().info.pod.status.message == "waiting"


def test_update_and_delete_during_an_attempt_are_not_lost() -> None:
    rig = Rig()
    rig.queue.add(info("changed"))
    queued = rig.pop()
    rig.queue.update(info("changed"), info("changed", metadata={"labels": {"a": "b"}}))
    rig.queue.requeue(queued)
    assert queued.info.pod.metadata.labels == {"a": "b"}
    rig.queue.add(info("deleted"))
    gone = rig.pop()
    rig.queue.delete(gone.info)
    rig.queue.requeue(gone)
    assert rig.queue.where(gone.info) == ""


def test_pod_recreated_under_its_name_replaces_the_one_in_flight() -> None:
    rig = Rig()
    rig.queue.add(info())
    old = rig.pop()
    rig.queue.delete(old.info)
    fresh = info(metadata={"uid": "uid-second"})
    rig.queue.add(fresh)
    rig.queue.requeue(old)
    assert rig.pop().info.uid == "uid-second"


@pytest.mark.parametrize(
    ("place", "want"),
    [
        ("active", "active"),
        ("unknown", ""),
        ("unschedulable", "active"),
        ("backoff", "active"),
        ("in flight", "in flight"),
    ],
)
def test_activate_table(place: str, want: str) -> None:
    rig = Rig(pop_from_backoff=False)
    if place != "unknown":
        rig.queue.add(info())
    if place == "unschedulable":
        rig.fail("No")
    if place == "backoff":
        rig.fail()
    queued = rig.pop() if place == "in flight" else None
    rig.queue.activate([info()])
    assert rig.queue.where(info()) == want
    if queued is not None:
        queued.unschedulable_plugins.add("No")
        rig.queue.requeue(queued)
        assert rig.queue.where(info()) == "active"


GATED = {"schedulingGates": [{"name": "wait"}]}


def test_gated_pod_makes_no_attempt_and_enters_when_its_gate_goes() -> None:
    rig = Rig()
    rig.queue.add(info(**GATED))
    assert rig.queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 1}
    assert rig.queue.pop(0) is None
    rig.queue.move_all(NODE_ADD, None, node())
    rig.clock.forward(50)
    rig.queue.update(info(**GATED), info())
    queued = rig.pop()
    assert (queued.attempts, queued.initial_attempt) == (1, rig.clock.now)


def test_gated_counts_never_go_below_zero() -> None:
    rig = Rig()
    for _ in range(3):
        rig.queue.add(info(**GATED))
        rig.queue.update(info(**GATED), info())
        rig.queue.delete(info())
        rig.queue.delete(info())
    assert set(rig.queue.counts().values()) == {0}


def asleep(rig: Rig, count: int, gated: int) -> None:
    for i in range(count - gated):
        rig.queue.add(info(f"asleep{i}"))
        rig.fail("No")
    for i in range(gated):
        rig.queue.add(info(f"gated{i}", **GATED))


def counted(rig: Rig) -> tuple[int, ...]:
    return tuple(rig.queue.counts()[queue] for queue in ("active", "backoff", "unschedulable", "gated"))


@pytest.mark.parametrize(
    ("active", "backoff", "want"), [(30, 0, (30, 0, 20, 10)), (15, 25, (15, 25, 20, 10))], ids=["30 active", "backoff"]
)
def test_pending_pods_table(active: int, backoff: int, want: tuple[int, ...]) -> None:
    rig = Rig(pop_from_backoff=False)
    asleep(rig, 30, 10)
    for i in range(backoff):
        rig.queue.add(info(f"backoff{i}"))
        rig.fail()
    for i in range(active):
        rig.queue.add(info(f"active{i}"))
    assert counted(rig) == want


def gate(rig: Rig, *numbers: int) -> None:
    for i in numbers:
        rig.queue.update(info(f"gated{i}", **GATED), info(f"gated{i}"))


def drop(rig: Rig, *names: str) -> None:
    for name in names:
        rig.queue.delete(info(name))


DROPPED = ("active0", "active1", "asleep0", "asleep1", "asleep2", "gated0", "gated1", "gated2", "gated3")


@pytest.mark.parametrize(
    ("step", "want"),
    [
        (lambda rig: (rig.clock.forward(400), rig.queue.flush_unschedulable()), (50, 0, 0, 10)),
        (lambda rig: drop(rig, *DROPPED), (28, 0, 17, 6)),
        (lambda rig: gate(rig, 0, 1, 2, 3, 4), (35, 0, 20, 5)),
        (lambda rig: (gate(rig, 0, 0), drop(rig, "gated0", "gated0")), (30, 0, 20, 9)),
    ],
    ids=["move all", "delete", "ungate", "again and again"],
)
def test_pending_pods_change_table(step: Any, want: tuple[int, ...]) -> None:
    """Row 5 of section 7 (#113945): the figures of gated and sleeping pods once reached -1."""
    rig = Rig(pop_from_backoff=False)
    asleep(rig, 30, 10)
    for i in range(30):
        rig.queue.add(info(f"active{i}"))
    step(rig)
    assert counted(rig) == want


def test_a_pod_that_is_let_in_and_shut_out_again_is_gated_once() -> None:
    rig = Rig(pop_from_backoff=False)
    rig.queue.add(info())
    rig.fail("Yes")
    rig.queue.update(info(), info(metadata={"labels": {"a": "b"}}, **GATED))
    rig.queue.activate([info()])
    assert counted(rig) == (0, 0, 0, 1)


def test_refusals_are_counted_until_the_pod_is_popped_or_deleted() -> None:
    """Row 5 of section 7 (#120395): the figure by plugin was not taken back for a pod that was deleted."""
    rig = Rig(pop_from_backoff=False)
    profile = info().pod.spec.scheduler_name
    for name in ("a", "b", "c"):
        rig.queue.add(info(name))
        rig.fail("No", "Yes")
    rig.queue.move_all(NODE_ADD, None, node())
    assert rig.queue.unschedulable_by_plugin() == {("No", profile): 3, ("Yes", profile): 3}
    rig.queue.delete(info("a"))
    rig.clock.forward(20)
    rig.queue.flush_backoff()
    assert rig.queue.unschedulable_by_plugin() == {("No", profile): 2, ("Yes", profile): 2}
    rig.pop()
    assert rig.queue.unschedulable_by_plugin() == {("No", profile): 1, ("Yes", profile): 1}


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        ([], [("active", "UnschedulablePodAdd")]),
        (["sleep"], [("unschedulable", "ScheduleAttemptFailure")]),
        (["sleep", "timeout"], [("active", "UnschedulableTimeout")]),
        (["sleep", "event"], [("backoff", "NodeAdd")]),
        (["sleep", "late event"], [("active", "NodeAdd")]),
        (["sleep", "activate"], [("active", "ForceActivate")]),
        (["error"], [("backoff", "ScheduleAttemptFailure")]),
        (["error", "flush"], [("active", "BackoffComplete")]),
    ],
)
def test_incoming_table(steps: list[str], want: list[tuple[str, str]]) -> None:
    rig = Rig(pop_from_backoff=False)
    names = ("a", "b", "c")
    for name in names:
        rig.queue.add(info(name))
    for step in steps:
        rig.seen.moves.clear()
        if step in ("sleep", "error"):
            for _ in names:
                rig.fail(*(["Yes"] if step == "sleep" else []))
        elif step == "activate":
            rig.queue.activate([info(name) for name in names])
        else:
            rig.clock.forward({"timeout": 301, "event": 0, "late event": 20, "flush": 20}[step])
            rig.queue.flush_backoff()
            rig.queue.flush_unschedulable()
            if step.endswith("event"):
                rig.queue.move_all(NODE_ADD, None, node())
    assert rig.seen.moves == want * 3


def test_a_gated_pod_counts_as_incoming_only_when_it_is_first_shut_out() -> None:
    rig = Rig()
    rig.queue.add(info(**GATED))
    rig.queue.activate([info()])
    rig.clock.forward(301)
    rig.queue.flush_unschedulable()
    assert rig.seen.moves == [("unschedulable", "UnschedulablePodAdd")]


def test_a_pod_in_the_queue_that_is_being_attempted_is_not_popped_again() -> None:
    rig = Rig()
    rig.queue.add(info("p"))
    queued = rig.pop()
    rig.queue._active.push(queued.info.key, queued)
    assert rig.queue.pop(0) is None
    assert rig.queue.in_flight_entries() == [queued.info.uid]


def test_a_pod_of_high_priority_that_fails_fast_does_not_starve_the_others() -> None:
    """Row 6 of section 7 (#86373, PR 87616): each wake-up brought it back before those behind it had a turn."""
    rig = Rig()
    rig.queue.add(info("high", priority=100))
    for i in range(3):
        rig.queue.add(info(f"low{i}", priority=1))
    turns = []
    for _ in range(4):
        queued = rig.pop()
        turns.append(queued.info.pod.metadata.name)
        rig.queue.move_all(NODE_ADD, None, node())
        queued.unschedulable_plugins.add("Yes")
        rig.queue.requeue(queued)
    assert turns == ["high", "low0", "low1", "low2"]


def test_only_pods_that_slept_strictly_longer_are_flushed() -> None:
    rig = Rig()
    rig.queue.add(info())
    rig.fail("No")
    rig.clock.forward(300)
    rig.queue.flush_unschedulable()
    assert rig.queue.where(info()) == "unschedulable"
    rig.clock.forward(0.001)
    rig.queue.flush_unschedulable()
    assert rig.queue.where(info()) == "active"


def test_errors_and_refusals_count_their_backoff_apart() -> None:
    rig = Rig(pop_from_backoff=False)
    rig.queue.add(info())
    for _ in range(3):
        queued = rig.fail()
        rig.clock.forward(20)
        rig.queue.flush_backoff()
    assert (queued.consecutive_errors, queued.unschedulable_count) == (3, 0)
    queued = rig.fail("No")
    assert (queued.consecutive_errors, queued.unschedulable_count, queued.attempts) == (0, 1, 4)


def test_close_wakes_pop() -> None:
    rig = Rig()
    rig.queue.add(info())
    rig.queue.close()
    assert rig.queue.pop(None) is None
