"""What this scheduler cannot judge, and which events come of a change of an object."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Action, ClusterEvent
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status
from scheduler_plugins.plugins.unsupported_pods import UnsupportedPods
from slacktide.names import BATCH_CPU
from tests.scheduler_plugins.build import READER, framework, info, node, pod, snapshot_of


def verdict(plugin: Any, who: Any, where: Any, placed: list[Any] = []) -> Status:  # noqa: B006
    """What a profile with this one plugin says of one pod on one node."""
    profile = framework(plugin)
    snapshot = snapshot_of(profile, [where], {where.metadata.name: placed})
    state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
    before = profile.run_pre_filter(state, who, snapshot, diagnosis)
    if not before.status.ok:
        return before.status
    status, rows = profile.run_filter(state, who, snapshot, before.rows, diagnosis)
    if not status.ok or len(rows):
        return status
    return diagnosis.statuses().get(where.metadata.name) or before.absent or SUCCESS


def on_node(action: Action) -> ClusterEvent:
    return ClusterEvent(events.NODE, action)


# UnsupportedPods.

HOSTNAME = {"topologyKey": "kubernetes.io/hostname"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"volumes": [{"name": "v", "storageos": {}}]}, "storageos"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resource claims"),
        ({"resourceClaims": [{"name": "gpu"}]}, "let the stock scheduler place the pod, with our extender"),
        ({"volumes": [{"name": "v", "rbd": []}]}, "cannot read its volumes of kind rbd"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": "c"}]}, "cannot read its volumes of kind persistentV"),
        ({"requests": {"cpu": "1.5.2"}}, "1.5.2"),
        ({"requests": {BATCH_CPU: "200m"}}, "whole number"),
    ],
)
def test_what_cannot_be_judged_is_refused_by_name(spec: dict[str, Any], words: str) -> None:
    status = verdict(UnsupportedPods(), info("p", **spec), node("n"))
    assert status.code is Code.UNRESOLVABLE
    assert words in status.message


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "c"}}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "w", "ephemeral": {}}]},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [HOSTNAME]}}},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [HOSTNAME]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
)
def test_what_others_judge_or_needs_nothing_is_let_pass(spec: dict[str, Any]) -> None:
    assert verdict(UnsupportedPods(), info("p", **spec), node("n")).ok


# Events from object differences.

TAINTED = node("n", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
AN = {"annotations": {"x": "1"}}


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (node("n"), node("n"), []),
        (node("n", unschedulable=True), node("n"), [Action.UPDATE_NODE_TAINT]),
        (node("n"), node("n", unschedulable=True), []),
        (node("n", {"cpu": "1"}), node("n", {"cpu": "2"}), [Action.UPDATE_NODE_ALLOCATABLE]),
        (node("n", {"cpu": "1"}), node("n", {"cpu": "1000m"}), []),
        (node("n"), node("n", labels={"a": "b"}), [Action.UPDATE_NODE_LABEL]),
        (node("n"), TAINTED, [Action.UPDATE_NODE_TAINT]),
        (node("n"), node("n", **AN), [Action.UPDATE_NODE_ANNOTATION]),
        (
            node("n", conditions=[{"type": "Ready", "status": "True"}]),
            node("n", conditions=[{"type": "Ready", "status": "False"}]),
            [Action.UPDATE_NODE_CONDITION],
        ),
        (
            node("n", conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"}]),
            node("n", conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "2"}]),
            [],
        ),
        (
            node("n"),
            node("n", labels={"a": "b"}, taints=[{"key": "k", "effect": "NoSchedule"}]),
            [Action.UPDATE_NODE_LABEL, Action.UPDATE_NODE_TAINT],
        ),
    ],
)
def test_node_event_table(old: Any, new: Any, want: list[Action]) -> None:
    assert [event.action for event in events.node_events(old, new)] == want


GATES = [{"name": "a"}, {"name": "b"}]
LABEL = {"metadata": {"labels": {"a": "b"}}}


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (pod("p"), pod("p"), []),
        (pod("p"), pod("p", status={"phase": "Pending", "message": "x"}), []),
        (pod("p"), pod("p", **LABEL), ["UnschedulablePodUpdatePodLabel"]),
        (pod("p", {"cpu": "2"}), pod("p", {"cpu": "1"}), ["UnschedulablePodUpdatePodScaleDown"]),
        (pod("p", {"cpu": "1"}), pod("p", {"cpu": "2"}), ["UnschedulablePodUpdate"]),
        (
            pod("p", {"cpu": "2"}),
            pod("p", {"cpu": "1"}, **LABEL),
            ["UnschedulablePodUpdatePodLabel", "UnschedulablePodUpdatePodScaleDown"],
        ),
        (pod("p"), pod("p", metadata={"annotations": {"a": "b"}}), ["UnschedulablePodUpdate"]),
        (
            pod("p", schedulingGates=GATES[:1]),
            pod("p"),
            ["UnschedulablePodUpdatePodSchedulingGatesEliminated"],
        ),
        (pod("p", schedulingGates=GATES), pod("p", schedulingGates=GATES[:1]), ["UnschedulablePodUpdate"]),
        (pod("p"), pod("p", tolerations=[{"operator": "Exists"}]), ["UnschedulablePodUpdatePodToleration"]),
        (pod("p", nodeName="n"), pod("p", nodeName="n", **LABEL), ["AssignedPodUpdatePodLabel"]),
    ],
)
def test_pod_event_table(old: Any, new: Any, want: list[str]) -> None:
    assert [event.label for event in events.pod_events(old, new)] == want


@pytest.mark.parametrize(
    ("registered", "incoming", "covers"),
    [
        (events.ALL_EVENTS, events.NODE_ADD, True),
        (events.NODE_ADD, events.ALL_EVENTS, False),
        (ClusterEvent(events.POD, Action.DELETE), events.ASSIGNED_POD_DELETE, True),
        (ClusterEvent(events.POD, Action.ADD), events.POD_ADD, True),
        (ClusterEvent(events.ASSIGNED_POD, Action.ADD), events.POD_ADD, False),
        (ClusterEvent(events.NODE, Action.UPDATE_NODE_LABEL), ClusterEvent(events.NODE, Action.UPDATE), False),
        (ClusterEvent(events.NODE, Action.UPDATE), ClusterEvent(events.NODE, Action.UPDATE_NODE_LABEL), True),
        (events.NODE_ADD, events.NODE_DELETE, False),
    ],
)
def test_event_match_table(registered: ClusterEvent, incoming: ClusterEvent, covers: bool) -> None:
    assert registered.covers(incoming) is covers


def test_labels_are_those_of_the_stock_scheduler() -> None:
    wanted = ["NodeAdd", "AssignedPodDelete", "UnschedulablePodAdd", "UnschedulableTimeout", "ForceActivate"]
    given = (
        events.NODE_ADD,
        events.ASSIGNED_POD_DELETE,
        events.POD_ADD,
        events.UNSCHEDULABLE_TIMEOUT,
        events.FORCE_ACTIVATE,
    )
    assert [event.label for event in given] == wanted
    assert on_node(Action.UPDATE_NODE_TAINT).label == "NodeUpdateNodeTaint"


def test_reader_sees_the_same_pod_on_its_node() -> None:
    assert READER.read(pod("p")).on("n").pod.spec.node_name == "n"
