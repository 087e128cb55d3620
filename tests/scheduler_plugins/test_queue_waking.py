"""Who is asked about an event, and whom it wakes: only pods that it concerns, once for all that are alike."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import ClusterEvent, Hint, Registration
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queue import QueueError, SchedulingQueue
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.status import SUCCESS, Status, unresolvable
from tests.scheduler_plugins.build import Clock, Silent, info, node

TAINT = ClusterEvent(events.NODE, events.Action.UPDATE_NODE_TAINT)
LABEL = ClusterEvent(events.NODE, events.Action.UPDATE_NODE_LABEL)
GROUP_ADD = ClusterEvent(events.POD_GROUP, events.Action.ADD)


class Rules:
    """One profile; pods with label `gate` wait behind a plugin of that name."""

    def __init__(self, registrations: dict[str, list[Registration]]) -> None:
        self.registrations = registrations
        self.open: set[str] = set()

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        return (-queued.info.priority, queued.timestamp)

    def run_pre_enqueue(self, pod: PodInfo, first: str = "") -> Status:
        gate = pod.pod.metadata.labels.get("gate", "")
        return unresolvable("shut").by(gate) if gate and gate not in self.open else SUCCESS


class Rig:
    def __init__(self, rules: Any, **kwargs: Any) -> None:
        self.clock, self.seen = Clock(), Silent()
        self.queue = SchedulingQueue(rules, self.seen, self.clock, pop_from_backoff=False, **kwargs)

    def sleep(self, pod: PodInfo, *plugins: str) -> None:
        """Let the pod be refused by these plugins, long enough ago for its backoff to be over."""
        self.queue.add(pod)
        queued = self.queue.pop(0)
        assert queued is not None
        assert queued.info is pod
        queued.unschedulable_plugins |= set(plugins)
        self.queue.requeue(queued)
        self.clock.forward(60)

    def where(self, *names: str) -> list[str]:
        return [self.queue.where(info(name)) for name in names]


class Asked:
    """A hint that counts whom it was asked about and helps those of the names given."""

    def __init__(self, *helped: str) -> None:
        self.helped, self.names = helped, []

    def __call__(self, pod: PodInfo, old: Any, new: Any) -> Hint:
        self.names.append(pod.pod.metadata.name)
        return Hint.QUEUE if pod.pod.metadata.name in self.helped else Hint.SKIP


def test_only_pods_whose_plugins_registered_the_event_are_asked() -> None:
    taint, label = Asked("a"), Asked("b")
    rig = Rig(Rules({"Taint": [Registration(TAINT, taint)], "Label": [Registration(LABEL, label)]}))
    rig.sleep(info("a"), "Taint")
    rig.sleep(info("b"), "Label")
    rig.sleep(info("c"), "Taint", "Label")
    rig.queue.move_all(TAINT, node(), node())
    assert (taint.names, label.names) == (["a", "c"], [])
    assert rig.where("a", "b", "c") == ["active", "unschedulable", "unschedulable"]
    assert rig.seen.hints == [("Taint", TAINT.label, "Queue"), ("Taint", TAINT.label, "QueueSkip")]


def test_pods_that_are_alike_to_the_plugin_are_asked_once_and_woken_together() -> None:
    hint = Asked("a0", "b0")
    alike = Registration(TAINT, hint, alike=lambda pod: pod.requests.get("cpu", 0))
    rig = Rig(Rules({"P": [alike]}))
    for i in range(5):
        rig.sleep(info(f"a{i}", {"cpu": "1"}), "P")
        rig.sleep(info(f"c{i}", {"cpu": "2"}), "P")
    rig.queue.move_all(TAINT, node(), node())
    assert hint.names == ["a0", "c0"]
    assert rig.where("a0", "a4", "c0", "c4") == ["active", "active", "unschedulable", "unschedulable"]


def test_a_pod_that_changes_is_alike_to_others_from_then_on() -> None:
    hint = Asked("b")
    rig = Rig(Rules({"P": [Registration(TAINT, hint, alike=lambda pod: pod.requests.get("cpu", 0))]}))
    rig.sleep(info("a", {"cpu": "1"}), "P")
    rig.sleep(info("b", {"cpu": "2"}), "P")
    rig.queue.update(info("a", {"cpu": "1"}), info("a", {"cpu": "2"}))
    rig.queue.delete(info("b"))
    rig.sleep(info("b", {"cpu": "1"}), "P")
    rig.queue.move_all(TAINT, node(), node())
    assert (hint.names, rig.where("a", "b")) == (["a", "b"], ["unschedulable", "active"])


@pytest.mark.parametrize("mistake", [lambda pod: 1 / 0, lambda pod: []], ids=["raises", "not hashable"])
def test_a_plugin_that_cannot_say_what_is_alike_is_asked_about_each(mistake: Any) -> None:
    hint = Asked("b")
    rig = Rig(Rules({"P": [Registration(TAINT, hint, alike=mistake)]}))
    rig.sleep(info("a"), "P")
    rig.sleep(info("b"), "P")
    rig.queue.move_all(TAINT, node(), node())
    assert (hint.names, rig.where("a", "b")) == (["a", "b"], ["unschedulable", "active"])


def test_an_extender_is_a_rejector_that_every_event_helps() -> None:
    """Row 1 of section 7 (#122019, PR 122022): a pod that an extender refused slept until the timeout."""
    rig = Rig(Rules({"P": [Registration(TAINT)], "http://extender": [Registration(events.ALL_EVENTS)]}))
    for event, pod in ((LABEL, info("a")), (events.ASSIGNED_POD_DELETE, info("b")), (GROUP_ADD, info("c"))):
        rig.sleep(info("other"), "P")
        rig.sleep(pod, "http://extender")
        rig.queue.move_all(event, info("x", nodeName="n"), None)
        assert rig.where(pod.pod.metadata.name, "other") == ["active", "unschedulable"]
        rig.queue.delete(pod)
        rig.queue.delete(info("other"))


def test_profiles_share_the_queue_and_each_asks_its_own_plugins() -> None:
    one, two = Asked("a"), Asked("b")
    profiles = {"one": Rules({"P": [Registration(TAINT, one)]}), "two": Rules({"P": [Registration(TAINT, two)]})}
    rig = Rig(profiles)
    rig.sleep(info("a", schedulerName="one"), "P")
    rig.sleep(info("b", schedulerName="two", priority=5), "P")
    rig.queue.move_all(TAINT, node(), node())
    assert (one.names, two.names) == (["a"], ["b"])
    assert [rig.queue.pop(0).info.key for _ in range(2)] == ["default/b", "default/a"]
    with pytest.raises(QueueError, match="names scheduler 'three', which is none of the profiles here: one, two"):
        rig.queue.add(info("c", schedulerName="three"))


def test_an_event_during_an_attempt_is_judged_by_the_plugins_of_the_pods_profile() -> None:
    rig = Rig({"one": Rules({"P": [Registration(TAINT)]}), "two": Rules({"P": [Registration(LABEL)]})})
    for name, profile in (("a", "one"), ("b", "two")):
        rig.queue.add(info(name, schedulerName=profile))
    flying = [rig.queue.pop(0) for _ in range(2)]
    rig.queue.move_all(TAINT, node(), node())
    for queued in flying:
        queued.unschedulable_plugins.add("P")
        rig.queue.requeue(queued)
    assert rig.where("a", "b") == ["backoff", "unschedulable"]


def test_a_queue_without_profiles_is_refused() -> None:
    with pytest.raises(QueueError, match="at least one profile"):
        SchedulingQueue({}, Silent(), Clock())


def test_gate_of_one_profile_says_nothing_about_pods_of_another() -> None:
    one, two = Rules({"Gate": [Registration(GROUP_ADD)]}), Rules({"Gate": []})
    rig = Rig({"one": one, "two": two})
    for name, profile in (("a", "one"), ("b", "two")):
        rig.queue.add(info(name, schedulerName=profile, metadata={"labels": {"gate": "Gate"}}))
    one.open.add("Gate")
    two.open.add("Gate")
    rig.queue.move_all(GROUP_ADD, None, object())
    assert rig.where("a", "b") == ["active", "gated"]


def test_a_sibling_that_appears_wakes_pods_that_wait_for_it() -> None:
    """Requeue table: a pod that a gang keeps in PreEnqueue moves when the missing sibling or the group appears."""
    rules = Rules({"Gang": [Registration(events.POD_ADD), Registration(GROUP_ADD)]})
    rig = Rig(rules)
    member = {"metadata": {"labels": {"gate": "Gang"}}}
    rig.queue.add(info("a", **member))
    rig.queue.add(info("b", **member))
    assert rig.where("a", "b") == ["gated", "gated"]
    rules.open.add("Gang")
    rig.queue.add(info("c", **member))
    assert rig.where("a", "b", "c") == ["active", "active", "active"]


def test_gated_pods_hear_only_of_what_their_gate_registered_and_are_looked_at_after_the_timeout() -> None:
    """Row 20 of section 7 (#140082, PR 139162): a gate that opened without an event held its pod for ever."""
    rules = Rules({"Gate": [Registration(GROUP_ADD)], "P": [Registration(TAINT)]})
    rig = Rig(rules)
    pod = info("a", metadata={"labels": {"gate": "Gate"}})
    rig.queue.add(pod)
    rules.open.add("Gate")
    rig.queue.move_all(TAINT, node(), node())
    assert rig.where("a") == ["gated"]
    rig.clock.forward(301)
    rig.queue.flush_unschedulable()
    assert rig.where("a") == ["active"]
    queued = rig.queue.pop(0)
    assert (queued.attempts, queued.flushed, queued.initial_attempt) == (1, True, rig.clock.now)


def test_flushed_is_said_of_pods_that_only_time_woke() -> None:
    rig = Rig(Rules({"P": [Registration(TAINT)]}))
    rig.sleep(info("a"), "P")
    rig.clock.forward(301)
    rig.queue.flush_unschedulable()
    late = rig.queue.pop(0)
    assert late.flushed
    late.unschedulable_plugins.add("P")
    rig.queue.requeue(late)
    rig.clock.forward(60)
    rig.queue.move_all(TAINT, node(), node())
    assert not rig.queue.pop(0).flushed


@pytest.mark.parametrize(("priority", "want"), [(5, "active"), (4, "unschedulable"), (None, "active")])
def test_room_that_a_nomination_gives_up_helps_only_pods_that_minded_it(priority: int | None, want: str) -> None:
    """Section 1.7: a change of a nomination moves only pods of priority <= that pod's."""
    rig = Rig(Rules({"P": [Registration(events.ASSIGNED_POD_DELETE)]}))
    rig.sleep(info("a", priority=5), "P")
    rig.queue.move_all(events.ASSIGNED_POD_DELETE, info("x", nodeName="n"), None, priority=priority)
    assert rig.where("a") == [want]


def test_the_queue_keeps_nominations_as_the_watch_tells_of_them() -> None:
    """Update table: an update that sets a nomination adds it, whatever became of the pod; deletion drops it."""
    nominator = Nominator()
    rig = Rig(Rules({"P": [Registration(TAINT)]}), nominator=nominator)

    def nominated(node_name: str) -> PodInfo:
        return info("a", status={"phase": "Pending", "nominatedNodeName": node_name})

    rig.queue.add(nominated(""))
    rig.queue.update(nominated(""), nominated("n"))
    assert nominator.node_of("uid-a") == "n"
    queued = rig.queue.pop(0)
    rig.queue.update(nominated("n"), nominated("m"))
    assert nominator.node_of("uid-a") == "m"
    nominator.set(queued.info, "k")
    rig.queue.update(nominated(""), nominated(""))
    assert nominator.node_of("uid-a") == "k"
    queued.unschedulable_plugins.add("P")
    rig.queue.requeue(queued)
    rig.queue.update(nominated("m"), nominated(""))
    assert (rig.where("a"), nominator.node_of("uid-a")) == (["unschedulable"], "")
    nominator.set(queued.info, "n")
    rig.queue.delete(info("a"))
    assert nominator.node_of("uid-a") == ""


def test_a_pod_that_is_told_gone_and_there_again_during_its_attempt_comes_back() -> None:
    rig = Rig(Rules({"P": [Registration(TAINT)]}))
    rig.queue.add(info("a"))
    queued = rig.queue.pop(0)
    rig.queue.delete(info("a"))
    rig.queue.add(info("a", metadata={"labels": {"newest": "yes"}}))
    queued.unschedulable_plugins.add("P")
    rig.queue.requeue(queued)
    assert rig.where("a") == ["unschedulable"]
    assert queued.info.pod.metadata.labels == {"newest": "yes"}


def test_every_update_of_a_resource_is_covered_by_a_registration_for_update() -> None:
    for resource in (events.PERSISTENT_VOLUME_CLAIM, events.CSI_NODE, events.POD_GROUP):
        registered = ClusterEvent(resource, events.Action.ADD | events.Action.UPDATE)
        assert registered.covers(ClusterEvent(resource, events.Action.UPDATE_OTHER))
        assert not registered.covers(ClusterEvent(resource, events.Action.DELETE))
        assert ClusterEvent(resource, events.Action.UPDATE_OTHER).label == f"{resource}Update"
