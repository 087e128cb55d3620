"""Removing victims through the API: the right pod, with its reason, and what counts as gone."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework.status import Code
from slacktide.cluster.errors import Forbidden, Unreachable
from tests.scheduler_plugins.build import info, node, pod
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.test_permit import WAIT, Permits

BY = info("boss", priority=1000)


def test_victim_gets_its_condition_then_goes_and_people_see_why() -> None:
    rig = Rig()
    rig.server.put(pod("v", nodeName="n"))
    assert rig.handle.evictor.preempt(info("v"), BY, "n").ok
    assert rig.server.deletions == ["v"]
    (patch,) = rig.server.patches
    assert patch["metadata"] == {"uid": "uid-v"}
    (condition,) = patch["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DisruptionTarget",
        "True",
        "PreemptionByScheduler",
    )
    assert rig.recorder.events == [("v", "Normal", "Preempted", "Preempted by pod uid-boss on node n")]


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "another of its name"])
def test_victim_that_is_gone_is_a_success_and_its_successor_is_spared(replaced: bool) -> None:
    """#134217, #134249: a preemptor waited for ever for a victim that was already gone."""
    rig = Rig()
    if replaced:
        rig.server.put(pod("v", nodeName="n", metadata={"uid": "another"}))
    assert rig.handle.evictor.preempt(info("v"), BY, "n").ok
    assert (rig.server.deletions, rig.server.patches) == ([], [])


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no right"), Unreachable("away")])
@pytest.mark.parametrize("call", ["patch", "delete"])
def test_failure_is_told_with_pod_and_node(call: str, error: Exception) -> None:
    rig = Rig()
    rig.server.put(pod("v", nodeName="n"))

    def fail(*_: Any) -> None:
        raise error

    setattr(rig.server, call, fail)
    status = rig.handle.evictor.preempt(info("v"), BY, "n")
    assert (status.code, status.error) == (Code.ERROR, error)
    assert status.message.startswith("preempting default/v on n: ")


def test_waiting_victim_is_rejected_not_deleted_and_tries_again_after_its_backoff() -> None:
    """#100235 / PR 100325; since PR 135719 it goes to the backoff queue."""
    plugin = Permits(WAIT)
    rig = Rig(None, plugin)
    rig.server.put_node(node("n"))
    rig.server.put(pod("v"))
    rig.settle()
    assert rig.handle.evictor.preempt(info("v"), BY, "n").ok
    assert (rig.server.deletions, rig.waiting.all()) == ([], ())
    assert rig.cache.size().assumed_pods == 0
    assert rig.condition("v") == ("False", "Unschedulable", "preempted at Permit by default/boss on node n")
    assert rig.queue.where(info("v")) == "backoff"


def test_nomination_is_taken_back_here_and_in_the_status() -> None:
    rig = Rig()
    rig.server.put(pod("low", status={"phase": "Pending", "nominatedNodeName": "n"}))
    rig.server.put(pod("gone", status={"phase": "Pending", "nominatedNodeName": "n"}))
    assert rig.nominator.nodes() == {"n"}
    gone = info("gone")
    rig.server.hold = True
    rig.server.remove("gone")
    assert rig.handle.evictor.withdraw(info("low")).ok
    assert rig.handle.evictor.withdraw(gone).ok
    assert rig.nominator.nodes() == frozenset()
    assert rig.server.pods[("default", "low")].status.nominated_node_name == ""
    rig.server.deliver()
    assert rig.nominator.nodes() == frozenset()


def test_preemptions_are_counted() -> None:
    rig = Rig()
    rig.handle.evictor.attempted()
    rig.handle.evictor.attempted()
    rig.handle.evictor.chosen([info("a"), info("b"), info("c")])
    assert rig.metric("scheduler_preemption_attempts_total") == 2
    assert (rig.metric("scheduler_preemption_victims_sum"), rig.metric("scheduler_preemption_victims_count")) == (3, 1)
