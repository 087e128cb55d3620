"""Random histories of a queue beside a plain account of them: no pod is lost, none sleeps through what helps it.

This is the property that the older rule of a counter of moves protected, and row 2 of section 7 (PR 120413): an event
during a pod's cycle is never lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import ClusterEvent, Hint, Registration
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.queue import SchedulingQueue
from scheduler_plugins.framework.queued import QueuedPod
from scheduler_plugins.framework.status import SUCCESS, Status, unresolvable
from tests.scheduler_plugins.build import Clock, Silent, info, node

TAINT = ClusterEvent(events.NODE, events.Action.UPDATE_NODE_TAINT)
GATES = ClusterEvent(events.UNSCHEDULABLE_POD, events.Action.UPDATE_POD_GATES_ELIMINATED)
LABEL = ClusterEvent(events.UNSCHEDULABLE_POD, events.Action.UPDATE_POD_LABEL)
NAMES = ("a", "b", "c", "d", "e")
WANTS = ("x", "y")
PLUGINS = ("Each", "Alike", "Wait", "Left", "Nothing", "Ext")


def wants(pod: PodInfo) -> str:
    return pod.pod.metadata.labels["wants"]


def suits(pod: PodInfo, old: Any, new: Any) -> Hint:
    return Hint.QUEUE if new.metadata.name == wants(pod) else Hint.SKIP


def own(pod: PodInfo, old: Any, new: Any) -> Hint:
    return Hint.QUEUE if new.uid == pod.uid else Hint.SKIP


def helps(plugin: str, pod: PodInfo, event: ClusterEvent, new: Any) -> bool:
    """What the registrations below say, said again in plain words."""
    if plugin in ("Each", "Alike", "Wait"):
        return event == TAINT and new.metadata.name == wants(pod)
    if plugin == "Left":
        return event == events.ASSIGNED_POD_DELETE and pod.pod.spec.scheduler_name == "one"
    return plugin == "Ext"


class Rules:
    """One profile. `shut` names pods that a plugin keeps out, beside those with gates of their own."""

    def __init__(self, name: str, shut: set[str]) -> None:
        self.shut = shut
        left = {"Left": [Registration(events.ASSIGNED_POD_DELETE)]} if name == "one" else {}
        self.registrations: Mapping[str, Sequence[Registration]] = {
            "Each": [Registration(TAINT, suits)],
            "Alike": [Registration(LABEL, own), Registration(TAINT, suits, alike=wants)],
            "Wait": [Registration(TAINT, suits, alike=wants)],
            "Nothing": [],
            "Ext": [Registration(events.ALL_EVENTS)],
            "Gates": [Registration(GATES, own)],
            "Door": [Registration(events.ASSIGNED_POD_ADD)],
            **left,
        }

    def sort_key(self, queued: QueuedPod) -> tuple[Any, ...]:
        return (-queued.info.priority, queued.timestamp)

    def run_pre_enqueue(self, pod: PodInfo, first: str = "") -> Status:
        if pod.pod.spec.scheduling_gates:
            return unresolvable("gates").by("Gates")
        return unresolvable("shut").by("Door") if pod.pod.metadata.name in self.shut else SUCCESS


class World:
    def __init__(self) -> None:
        self.clock, self.shut = Clock(), set[str]()
        rules = {name: Rules(name, self.shut) for name in ("one", "two")}
        self.queue = SchedulingQueue(rules, Silent(), self.clock)
        self.alive: dict[str, PodInfo] = {}
        self.flying: dict[str, QueuedPod] = {}
        self.since: dict[str, list[tuple[ClusterEvent, Any]]] = {}
        self.forced: set[str] = set()
        self.serial = 0

    def make(self, name: str, uid: str, want: str, *, gated: bool) -> PodInfo:
        self.serial += 1
        labels = {"wants": want, "version": str(self.serial)}
        gates = [{"name": "hold"}] if gated else []
        profile = "one" if name < "c" else "two"
        metadata = {"uid": uid, "labels": labels}
        return info(name, metadata=metadata, schedulerName=profile, schedulingGates=gates, priority=ord(name) % 3)

    def kept_out(self, pod: PodInfo) -> bool:
        return bool(pod.pod.spec.scheduling_gates) or pod.pod.metadata.name in self.shut

    # Steps. `pick` chooses among what there is.

    def add(self, name: str, pick: int) -> None:
        if name in self.alive:
            return
        self.alive[name] = self.make(name, f"{name}-{self.serial}", WANTS[pick % 2], gated=pick % 5 == 0)
        self.happened(events.POD_ADD, self.alive[name], lambda: self.queue.add(self.alive[name]))

    def pop(self, _name: str, _pick: int) -> None:
        queued = self.queue.pop(0)
        if queued is None:
            assert self.queue.counts()["active"] == 0
            return
        assert queued.info.uid not in self.flying
        assert not queued.gated
        self.flying[queued.info.uid] = queued
        self.since[queued.info.uid] = []

    def fail(self, _name: str, pick: int, uid: str = "") -> None:
        if not self.flying:
            return
        uid = uid or sorted(self.flying)[pick % len(self.flying)]
        queued, seen = self.flying.pop(uid), self.since.pop(uid)
        refused = {plugin for i, plugin in enumerate(PLUGINS) if pick >> i & 1}
        queued.unschedulable_plugins |= refused - {"Wait"}
        queued.pending_plugins |= refused & {"Wait"}
        self.queue.requeue(queued)
        place, forced = self.queue.where(queued.info), uid in self.forced
        self.forced.discard(uid)
        current = self.alive.get(queued.info.pod.metadata.name)
        if current is None or current.uid != uid:
            assert uid not in self.queue.uids()
            return
        helped = {plugin for plugin in refused for event, new in seen if helps(plugin, queued.info, event, new)}
        if not refused or helped or forced:
            assert place == ("gated" if self.kept_out(current) else place)
            assert place != "unschedulable"
            if not self.kept_out(current) and refused:
                assert place == "active" or not (forced or "Wait" in helped)
        elif not any(event == LABEL and new.uid == uid for event, new in seen):
            assert place == "unschedulable"

    def attempt(self, name: str, pick: int) -> None:
        """A whole attempt that is refused, with nothing in between."""
        before = set(self.flying)
        self.pop(name, pick)
        for uid in set(self.flying) - before:
            self.fail(name, pick, uid)

    def bind(self, _name: str, pick: int) -> None:
        if self.flying:
            uid = sorted(self.flying)[pick % len(self.flying)]
            queued = self.flying.pop(uid)
            self.queue.done(uid)
            self.queue.delete(queued.info)
            self.since.pop(uid)
            self.forced.discard(uid)
            self.alive = {name: one for name, one in self.alive.items() if one.uid != uid}

    def taint(self, _name: str, pick: int) -> None:
        new = node(WANTS[pick % 2])
        self.happened(TAINT, new, lambda: self.queue.move_all(TAINT, node(WANTS[pick % 2]), new))

    def left(self, _name: str, _pick: int) -> None:
        gone = info("gone", nodeName="n")
        event = events.ASSIGNED_POD_DELETE
        self.happened(event, gone, lambda: self.queue.move_all(event, gone, None))

    def door(self, name: str, pick: int) -> None:
        """A plugin shuts a pod out from now on, or lets all in again and says so."""
        if pick % 2:
            self.shut.add(name)
            return
        self.shut.clear()
        came = info("came", nodeName="n")
        event = events.ASSIGNED_POD_ADD
        self.happened(event, came, lambda: self.queue.move_all(event, None, came))
        gated = [one for one in self.alive.values() if self.queue.where(one) == "gated"]
        assert all(one.pod.spec.scheduling_gates for one in gated)

    def update(self, name: str, pick: int) -> None:
        if name not in self.alive:
            return
        old = self.alive[name]
        self.alive[name] = new = self.make(name, old.uid, WANTS[pick % 2], gated=False)
        if old.uid in self.since:
            # A change of a pod that is under way is an event like any other, for whoever else is.
            for seen in self.since.values():
                seen.append((LABEL, new))
        self.queue.update(old, new)
        if old.pod.spec.scheduling_gates and name not in self.shut:
            assert self.queue.where(new) != "gated"

    def delete(self, name: str, _pick: int) -> None:
        if name in self.alive:
            self.queue.delete(self.alive.pop(name))

    def activate(self, name: str, _pick: int) -> None:
        if name not in self.alive:
            return
        pod = self.alive[name]
        self.queue.activate([pod])
        if pod.uid in self.flying:
            self.forced.add(pod.uid)
        elif self.queue.where(pod) != "active":
            assert self.queue.where(pod) == "gated"
            assert self.kept_out(pod)

    def wait(self, _name: str, pick: int) -> None:
        self.clock.forward(7 if pick % 4 else 301)
        self.queue.flush_backoff()
        self.queue.flush_unschedulable()
        if not pick % 4:
            assert self.queue.counts()["unschedulable"] == 0

    def happened(self, event: ClusterEvent, new: Any, tell: Any) -> None:
        """Every pod asleep that the event helps wakes, and no other does."""
        asleep = {q.info.uid: (q.info, set(q.rejectors)) for q in self.queue._asleep if not q.gated}
        for seen in self.since.values():
            seen.append((event, new))
        tell()
        for pod, refused in asleep.values():
            still = self.queue.where(pod) == "unschedulable"
            assert still != any(helps(plugin, pod, event, new) for plugin in refused)

    def check(self) -> None:
        """Each pod that exists is in exactly one place, in its newest version; nothing else is queued."""
        queue = self.queue
        waiting = [*queue._asleep, *queue._active, *queue._backoff]
        assert len({one.info.uid for one in waiting}) == len(waiting)
        want = {one.uid: one for one in self.alive.values() if one.uid not in self.flying}
        assert {one.info.uid: one.info for one in waiting} == want
        assert sum(queue.counts().values()) == len(waiting)
        assert queue.uids() == set(want) | set(self.flying)
        assert queue.counts()["gated"] == sum(1 for one in queue._asleep if one.gated)
        refused = [(plugin, one.info.pod.spec.scheduler_name) for one in waiting for plugin in one.rejectors]
        assert queue.unschedulable_by_plugin() == {key: refused.count(key) for key in refused}


ACTIONS = (
    *("add", "add", "attempt", "attempt", "attempt", "pop", "pop", "fail", "fail", "taint", "taint", "left"),
    *("bind", "door", "update", "delete", "activate", "wait"),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES), st.integers(0, 63)), min_size=20, max_size=60
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_no_interleaving_loses_a_pod_or_an_event(steps: list[tuple[str, str, int]]) -> None:
    world = World()
    for action, name, pick in steps:
        getattr(world, action)(name, pick)
        world.check()
    for uid in world.flying:
        world.queue.done(uid)
    assert world.queue.in_flight_entries() == []
