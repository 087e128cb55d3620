"""The scheduler against an API in memory: nothing is placed twice, nothing is lost, every refusal has its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.status import SUCCESS, Status, unschedulable
from scheduler_plugins.report import event_text
from slacktide import names
from slacktide.cluster.errors import Forbidden, ServerError, Unreachable
from slacktide.objects import Pod
from tests.scheduler_plugins.build import READER, be, node, pod
from tests.scheduler_plugins.rig import Rig


def test_pod_waits_with_a_reason_and_is_placed_when_the_forecast_grows() -> None:
    rig = Rig()
    rig.offer(1000)
    rig.server.put(be("p", 2000))
    rig.settle()
    message = "0/1 nodes are available: 1 no forecast room for kubernetes.io/batch-cpu (needs 2000m, room 1000m)."
    assert rig.condition("p") == ("False", "Unschedulable", message)
    assert rig.recorder.events == [("p", "Warning", "FailedScheduling", message)]
    rig.offer(3000)
    rig.settle()
    assert rig.where("p") == "n"
    assert rig.recorder.events[-1] == ("p", "Normal", "Scheduled", "Successfully assigned default/p to n")
    profile = names.SCHEDULER_NAME
    assert rig.metric("scheduler_schedule_attempts_total", result="scheduled", profile=profile) == 1
    assert rig.metric("scheduler_schedule_attempts_total", result="unschedulable", profile=profile) == 1
    assert rig.metric("scheduler_cache_size", type="pods") == 1
    assert rig.metric("scheduler_inflight_events", event="PodPopped") == 0


def test_pod_is_placed_when_a_batch_pod_ends() -> None:
    rig = Rig()
    rig.offer(2000)
    rig.server.put(be("first", 2000))
    rig.server.put(be("second", 1000))
    rig.settle()
    assert (rig.where("first"), rig.where("second")) == ("n", "")
    rig.server.finish("first")
    rig.settle()
    assert rig.where("second") == "n"


def test_forecast_that_expired_is_refused_until_a_new_one_comes_and_ls_pods_do_not_care() -> None:
    rig = Rig()
    rig.offer(4000)
    rig.wall.forward(200)
    rig.server.put(be("batch"))
    rig.server.put(pod("online", {"cpu": "1"}))
    rig.settle()
    assert rig.where("online") == "n"
    assert "forecast expired (20 s ago)" in rig.condition("batch")[2]
    rig.offer(4000)
    rig.settle()
    assert rig.where("batch") == "n"


def test_request_that_no_node_can_ever_meet_says_so() -> None:
    rig = Rig()
    rig.offer(4000)
    rig.server.put(be("p", 64_000))
    rig.settle()
    assert rig.condition("p")[2] == (
        "0/1 nodes are available: 1 node(s) that can never have so much kubernetes.io/batch-cpu"
        " (asks for 64000m, the whole node has 8000m)."
    )


def test_no_node_at_all_is_tried_again_after_a_backoff() -> None:
    rig = Rig()
    rig.server.put(pod("p"))
    rig.settle()
    assert rig.condition("p") == ("False", "Unschedulable", "no nodes available to schedule pods")
    rig.server.put_node(node("n"))
    rig.later(3)
    assert rig.where("p") == "n"


def test_pods_are_not_oversold_while_their_bindings_are_under_way() -> None:
    rig = Rig(bind_now=False)
    rig.offer(2000)
    for i in range(5):
        rig.server.put(be(f"p{i}", 1000))
    rig.settle()
    assert len(rig.bindings) == 2
    assert rig.cache.size().assumed_pods == 2
    rig.run_bindings()
    assert len(rig.server.binds) == 2
    assert rig.cache.size().assumed_pods == 0


def test_assumption_holds_until_the_watch_confirms_it_however_long_that_takes() -> None:
    rig = Rig()
    rig.offer(1000)
    rig.server.put(be("first"))
    rig.server.hold = True
    rig.settle()
    assert rig.where("first") == "n"
    rig.later(100_000)
    assert rig.cache.size().assumed_pods == 1
    rig.server.hold = False
    rig.server.put(be("second"))
    rig.settle()
    assert rig.where("second") == ""


def test_only_pods_of_this_scheduler_are_placed_but_all_are_counted() -> None:
    rig = Rig()
    rig.offer(1000)
    rig.server.put(be("other", schedulerName="default-scheduler"))
    rig.settle()
    assert rig.where("other") == ""
    rig.server.assign("other", "n")
    rig.server.put(be("mine"))
    rig.settle()
    assert "room 0" in rig.condition("mine")[2]


def test_pod_bound_by_another_scheduler_first_is_accepted() -> None:
    rig = Rig()
    rig.offer(4000)
    rig.offer(1000, "m")
    rig.server.before_bind = lambda pod, node: rig.server.assign("p", "m")
    rig.server.put(be("p"))
    rig.settle()
    assert rig.where("p") == "m"
    assert rig.server.binds == []
    assert rig.cache.get("uid-p").pod.spec.node_name == "m"
    assert rig.queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0}
    assert rig.metric("slacktide_scheduler_binds_total", outcome="elsewhere") == 1


def test_pod_deleted_or_replaced_before_its_binding_frees_its_room() -> None:
    rig = Rig(bind_now=False)
    rig.offer(1000)
    rig.server.put(be("p"))
    rig.settle()
    rig.server.remove("p")
    rig.server.put(be("p", metadata={"uid": "uid-again"}))
    rig.run_bindings()
    rig.settle()
    rig.run_bindings()
    assert rig.server.binds == [("uid-again", "n")]


def test_deletion_that_the_watch_has_not_told_yet() -> None:
    rig = Rig(bind_now=False)
    rig.offer(1000)
    rig.server.put(be("p"))
    rig.settle()
    rig.server.hold = True
    rig.server.remove("p")
    rig.run_bindings()
    assert rig.cache.size().assumed_pods == 0
    rig.server.deliver()
    assert rig.queue.in_flight_entries() == []
    assert rig.metric("slacktide_scheduler_binds_total", outcome="gone") == 1


def raising(error: Exception, times: int = 1) -> Callable[[Pod, str], None]:
    left = [times]

    def maybe(pod: Pod, node: str) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise error

    return maybe


@pytest.mark.parametrize("error", [Unreachable("timed out"), ServerError(504, "", "gateway")])
def test_answer_lost_after_the_binding_took_effect_counts_as_bound(error: Exception) -> None:
    rig = Rig()
    rig.offer(4000)
    rig.server.after_bind = raising(error)
    rig.server.put(be("p"))
    rig.settle()
    assert rig.server.binds == [("uid-p", "n")]
    assert rig.metric("slacktide_scheduler_binds_total", outcome="bound") == 1


@pytest.mark.parametrize(
    "error", [Unreachable("refused"), ServerError(500, "", "etcd"), Forbidden(403, "Forbidden", "no right to bind")]
)
def test_failed_binding_frees_the_room_says_why_and_is_tried_again(error: Exception) -> None:
    rig = Rig()
    rig.offer(1000)
    rig.server.before_bind = raising(error)
    rig.server.put(be("p"))
    rig.settle()
    assert rig.condition("p")[:2] == ("False", "SchedulerError")
    assert str(error) in rig.condition("p")[2]
    assert rig.queue.counts()["backoff"] == 1
    rig.later(3)
    assert rig.server.binds == [("uid-p", "n")]


def test_room_stays_reserved_while_nobody_can_say_what_became_of_a_binding() -> None:
    rig = Rig()
    rig.offer(1000)
    rig.server.before_bind = raising(Unreachable("away"))
    answers = iter([Unreachable("away"), Unreachable("away")])
    real_get = rig.server.get

    def get(kind: Any, name: str, namespace: str | None = None) -> Pod:
        assert rig.cache.size().assumed_pods == 1
        error = next(answers, None)
        if error is not None:
            raise error
        return real_get(kind, name, namespace)

    rig.server.get = get  # type: ignore[method-assign]
    rig.server.put(be("p"))
    rig.scheduler.attempt(0)
    assert rig.waits == [0.5, 1.0]


def test_restart_places_nothing_twice_and_counts_what_is_placed() -> None:
    first = Rig(bind_now=False)
    first.offer(2000)
    for i in range(3):
        first.server.put(be(f"p{i}", 1000))
    first.settle()
    first.bindings.pop()()
    second = Rig(first.server)
    second.wall.now = first.wall.now
    second.settle()
    first.run_bindings()
    assert len(second.server.binds) == 2
    assert len({uid for uid, _ in second.server.binds}) == 2
    assert sum(1 for i in range(3) if second.where(f"p{i}")) == 2


def test_condition_is_written_only_when_it_changes() -> None:
    rig = Rig()
    rig.offer(500)
    rig.server.put(be("p"))
    rig.settle()
    first = rig.server.patches[0]["status"]["conditions"][0]["lastTransitionTime"]
    rig.clock.forward(400)
    rig.queue.flush_unschedulable()
    rig.settle()
    assert len(rig.server.patches) == 1
    rig.wall.forward(5)
    rig.offer(700)
    rig.clock.forward(400)
    rig.queue.flush_unschedulable()
    rig.settle()
    assert [p["status"]["conditions"][0]["lastTransitionTime"] for p in rig.server.patches] == [first, first]


def test_pod_changed_while_it_was_judged_is_judged_again_as_it_is_now() -> None:
    class Meddler(api.NodeFilterPlugin, api.EnqueueExtensions):
        name = "Meddler"
        meddle: Callable[[], None] = staticmethod(lambda: None)

        def filter(self, state: Any, pod: Any, node: Any) -> Status:
            self.meddle()
            return SUCCESS if pod.pod.metadata.labels else unschedulable("no label")

        def events_to_register(self) -> list[Any]:
            from scheduler_plugins.framework.events import UNSCHEDULABLE_POD, Action, ClusterEvent, Registration

            return [Registration(ClusterEvent(UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL))]

    meddler = Meddler()
    rig = Rig(None, meddler)
    rig.server.put_node(node("n"))
    rig.server.put(pod("p"))

    def label() -> None:
        meddler.meddle = lambda: None
        rig.server.put(pod("p", metadata={"labels": {"a": "b"}}))

    meddler.meddle = label
    rig.settle()
    assert rig.where("p") == "n"


@pytest.mark.parametrize("point", ["reserve", "pre_bind"])
def test_failure_after_the_choice_undoes_everything(point: str) -> None:
    log: list[str] = []

    class Books(api.ReservePlugin, api.PreBindPlugin, api.EnqueueExtensions):
        name = "Books"

        def reserve(self, state: Any, pod: Any, node_name: str) -> Status:
            return unschedulable("books say no") if point == "reserve" else SUCCESS

        def unreserve(self, state: Any, pod: Any, node_name: str) -> None:
            log.append(node_name)

        def pre_bind(self, state: Any, pod: Any, node_name: str) -> Status:
            raise RuntimeError("broken")

        def events_to_register(self) -> list[Any]:
            return []

    rig = Rig(None, Books())
    rig.server.put_node(node("n"))
    rig.server.put(pod("p"))
    rig.scheduler.attempt(0)
    assert log == ["n"]
    assert rig.cache.size().assumed_pods == 0
    assert rig.queue.where(READER.read(pod("p"))) == ("unschedulable" if point == "reserve" else "backoff")
    words = {"reserve": "books say no", "pre_bind": "plugin Books raised in PreBind"}[point]
    assert words in rig.condition("p")[2]


def test_plugin_that_raises_is_an_error_of_the_attempt_not_the_end_of_the_scheduler() -> None:
    class Boom(api.NodeFilterPlugin):
        name = "Boom"

        def filter(self, state: Any, pod: Any, node: Any) -> Status:
            raise RuntimeError("boom")

    rig = Rig(None, Boom())
    rig.server.put_node(node("n"))
    rig.server.put(pod("p"))
    rig.settle()
    assert rig.condition("p")[1] == "SchedulerError"
    assert rig.queue.counts()["backoff"] == 1


def test_terminating_and_gated_pods_are_not_attempted() -> None:
    """Row 4 of section 7 (PR 126962, #118226, koordinator PR 3190): an attempt that ends early is done, too."""
    rig = Rig()
    rig.server.put_node(node("n"))
    rig.server.put(pod("ending", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    rig.server.put(pod("gated", schedulingGates=[{"name": "wait"}]))
    rig.settle()
    assert (rig.where("ending"), rig.where("gated")) == ("", "")
    assert rig.queue.in_flight_entries() == []
    rig.server.put(pod("gated"))
    rig.settle()
    assert rig.where("gated") == "n"


def test_higher_priority_goes_first() -> None:
    rig = Rig()
    rig.server.put(be("low", priority=5000))
    rig.server.put(be("high", priority=5500))
    rig.offer(1000)
    rig.settle()
    assert (rig.where("low"), rig.where("high")) == ("", "n")


def test_long_message_is_cut_in_the_event_only() -> None:
    assert len(event_text("x" * 5000)) == 1024
    assert event_text("short") == "short"
    rig = Rig()
    rig.server.put_node(node("n", taints=[{"key": "k" * 200, "value": "v" * 2000, "effect": "NoSchedule"}]))
    rig.server.put(pod("p"))
    rig.settle()
    assert len(rig.condition("p")[2]) > 2000
    assert len(rig.recorder.events[0][3]) == 1024


def test_node_that_goes_and_comes_back() -> None:
    rig = Rig()
    rig.server.put_node(node("n", {"cpu": "1", "pods": "5"}))
    rig.server.put(pod("p", {"cpu": "1"}))
    rig.settle()
    rig.server.handlers.node_deleted(rig.server.nodes.pop("n"))
    rig.server.put(pod("q", {"cpu": "1"}))
    rig.settle()
    rig.server.put_node(node("n", {"cpu": "1", "pods": "5"}))
    rig.later(5)
    assert (rig.where("p"), rig.where("q")) == ("n", "")
    assert "Insufficient cpu" in rig.condition("q")[2]
