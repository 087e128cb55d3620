"""Stock filters: the rows of the scheduler's plugin tables, and which events wake whom."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status
from scheduler_plugins.plugins.node_affinity import NodeAffinity
from scheduler_plugins.plugins.node_name import NodeName
from scheduler_plugins.plugins.node_ports import NodePorts
from scheduler_plugins.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs
from scheduler_plugins.plugins.node_unschedulable import NodeUnschedulable
from scheduler_plugins.plugins.scheduling_gates import SchedulingGates
from scheduler_plugins.plugins.taint_toleration import TaintToleration
from scheduler_plugins.plugins.unsupported_pods import UnsupportedPods
from slacktide.names import BATCH_CPU
from tests.scheduler_plugins.build import READER, framework, handle, info, node, pod, snapshot_of


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


def hint(plugin: Any, who: Any, event: ClusterEvent, old: Any, new: Any) -> Hint | None:
    """What the plugin's registrations make of an event; None if it is not registered for it."""
    answers = [r.hint(who, old, new) for r in plugin.events_to_register() if r.event.covers(event) and r.hint]
    return (Hint.QUEUE if Hint.QUEUE in answers else Hint.SKIP) if answers else None


def on_node(action: Action) -> ClusterEvent:
    return ClusterEvent(events.NODE, action)


# NodeResourcesFit.


def fit(*ignored: str) -> NodeResourcesFit:
    args = NodeResourcesFitArgs(ignored_resources=list(ignored), ignored_resource_groups=["ignored.io"])
    return NodeResourcesFit(args, handle())


SMALL = {
    "cpu": "10m",
    "memory": "20",
    "pods": "32",
    "example.com/a": "5",
    "ephemeral-storage": "20",
    "hugepages-2Mi": "5",
}


def asks(cpu: int = 0, memory: int = 0, **more: Any) -> dict[str, Any]:
    named = {"a": "example.com/a", "b": "example.com/b", "k": "kubernetes.io/something", "huge": "hugepages-2Mi"}
    named |= {"disk": "ephemeral-storage", "i": "ignored.io/x"}
    requests = ({"cpu": f"{cpu}m"} if cpu else {}) | ({"memory": str(memory)} if memory else {})
    return {"resources": {"requests": requests | {named[key]: str(value) for key, value in more.items()}}}


def one(*apps: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Any:
    return info("p", containers=list(apps), initContainers=list(init), **spec)


FIT_ROWS = [
    ("no request", asks(10, 20), one(asks()), []),
    ("full", asks(10, 20), one(asks(1, 1)), ["cpu", "memory"]),
    ("init cpu", asks(8, 19), one(asks(1, 1), init=(asks(3, 1),)), ["cpu"]),
    ("largest init cpu", asks(8, 19), one(asks(1, 1), init=(asks(3, 1), asks(2, 1))), ["cpu"]),
    ("init memory", asks(9, 19), one(asks(1, 1), init=(asks(1, 3),)), ["memory"]),
    ("init fits", asks(9, 19), one(asks(1, 1), init=(asks(1, 1),)), []),
    ("two inits fit", asks(9, 19), one(asks(1, 1), init=(asks(1, 1), asks(1, 1))), []),
    ("both fit", asks(5, 5), one(asks(1, 1)), []),
    ("cpu", asks(9, 5), one(asks(2, 1)), ["cpu"]),
    ("memory", asks(5, 19), one(asks(1, 2)), ["memory"]),
    ("edge", asks(5, 19), one(asks(5, 1)), []),
    ("init and app at the edge", asks(5, 19), one(asks(4, 1), init=(asks(5, 1),)), []),
    ("extended fits", asks(), one(asks(a=1)), []),
    ("extended above allocatable", asks(), one(asks(a=10)), ["example.com/a"]),
    ("extended used up", asks(a=5), one(asks(a=1)), ["example.com/a"]),
    ("extended sum of apps", asks(a=2), one(asks(a=3), asks(a=3)), ["example.com/a"]),
    ("extended largest init", asks(a=2), one(init=(asks(a=3), asks(a=3))), []),
    ("extended init too large", asks(a=2), one(init=(asks(a=6), asks(a=3))), ["example.com/a"]),
    ("unknown extended", asks(), one(asks(b=1)), ["example.com/b"]),
    ("native prefixed", asks(), one(asks(k=10)), ["kubernetes.io/something"]),
    ("huge pages", asks(), one(asks(huge=10)), ["hugepages-2Mi"]),
    ("overhead fits", asks(5, 5), one(asks(1, 1), overhead={"cpu": "3m", "memory": "13"}), []),
    ("overhead does not", asks(5, 5), one(asks(1, 1), overhead={"cpu": "1m", "memory": "15"}), ["memory"]),
    ("disk", asks(), one(asks(disk=25)), ["ephemeral-storage"]),
    ("disk fits", asks(), one(asks(disk=10)), []),
    ("ignored group", asks(), one(asks(i=1)), []),
    ("zero scalar", asks(a=5), one(asks(a=0)), []),
]


@pytest.mark.parametrize(("used", "who", "lacking"), [r[1:] for r in FIT_ROWS], ids=[r[0] for r in FIT_ROWS])
def test_fit_table(used: dict[str, Any], who: Any, lacking: list[str]) -> None:
    status = verdict(fit(), who, node("n", SMALL), [pod("there", containers=[used], nodeName="n")])
    assert [part.text for part in status.parts] == [f"Insufficient {name}" for name in lacking]
    above = any(who.requests[name] > READER_ALLOCATABLE.get(name, 0) for name in lacking)
    assert status.code is (Code.UNRESOLVABLE if above else Code.UNSCHEDULABLE if lacking else Code.SUCCESS)


READER_ALLOCATABLE = {
    "cpu": 10,
    "memory": 20,
    "example.com/a": 5,
    "ephemeral-storage": 20,
    "hugepages-2Mi": 5,
}


def test_ignored_resource_is_not_checked() -> None:
    assert verdict(fit("example.com/b"), one(asks(b=1)), node("n", SMALL)).ok


@pytest.mark.parametrize("who", [one(asks()), one(asks(1, 1))])
def test_pod_count_is_checked_for_every_pod(who: Any) -> None:
    status = verdict(fit(), who, node("n", SMALL | {"pods": "1"}), [pod("there", nodeName="n")])
    assert status.reasons == ("Too many pods (1 of 1)",)


def test_numbers_are_told() -> None:
    status = verdict(
        fit(), info("p", {"cpu": "3", "memory": "3Gi"}), node("n", {"cpu": "2", "memory": "2Gi", "pods": "9"})
    )
    assert status.reasons == ("Insufficient cpu (asks for 3, free 2)", "Insufficient memory (asks for 3Gi, free 2Gi)")


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (None, {"cpu": "2", "pods": "9"}, Hint.QUEUE),
        (None, {"cpu": "500m", "pods": "9"}, Hint.SKIP),
        (None, {"cpu": "2"}, Hint.SKIP),
        ({"cpu": "1", "pods": "9"}, {"cpu": "2", "pods": "9"}, Hint.QUEUE),
        ({"cpu": "3", "pods": "9"}, {"cpu": "2", "pods": "9"}, Hint.SKIP),
        ({"cpu": "2", "memory": "1", "pods": "9"}, {"cpu": "2", "memory": "2", "pods": "9"}, Hint.SKIP),
        ({"cpu": "2", "pods": "1"}, {"cpu": "2", "pods": "2"}, Hint.QUEUE),
    ],
)
def test_fit_wakes_only_for_growth_of_what_is_asked(old: Any, new: Any, want: Hint) -> None:
    action = Action.ADD if old is None else Action.UPDATE_NODE_ALLOCATABLE
    before = None if old is None else node("n", old)
    assert hint(fit(), info("p", {"cpu": "1"}), on_node(action), before, node("n", new)) is want


def test_growth_of_batch_resource_in_allocatable_wakes_without_help_of_another_plugin() -> None:
    old, new = node("n", {BATCH_CPU: "0", "pods": "9"}), node("n", {BATCH_CPU: "2000", "pods": "9"})
    assert hint(fit(), info("p", {BATCH_CPU: "1500"}), on_node(Action.UPDATE_NODE_ALLOCATABLE), old, new) is Hint.QUEUE


def test_fit_wakes_for_assigned_pods_that_leave_or_shrink() -> None:
    assert hint(fit(), info("p"), events.ASSIGNED_POD_DELETE, info("q", nodeName="n"), None) is Hint.QUEUE
    assert hint(fit(), info("p"), events.ASSIGNED_POD_DELETE, info("q"), None) is Hint.SKIP
    shrunk = ClusterEvent(events.ASSIGNED_POD, Action.UPDATE_POD_SCALE_DOWN)
    assert hint(fit(), info("p"), shrunk, info("q", nodeName="n"), info("q", nodeName="n")) is Hint.QUEUE


# Taints, cordons, names.

TAINTED = node("n", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])


@pytest.mark.parametrize(
    ("taint", "toleration", "fine"),
    [
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, None, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, None, False),
        ({"key": "k", "value": "v", "effect": "PreferNoSchedule"}, None, True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"operator": "Exists"}, True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "value": "v", "effect": ""}, True),
        ({"key": "k", "value": "800", "effect": "NoSchedule"}, {"key": "k", "operator": "Gt", "value": "950"}, False),
        ({"key": "k", "value": "950", "effect": "NoSchedule"}, {"key": "k", "operator": "Gt", "value": "750"}, True),
        ({"key": "k", "value": "950", "effect": "NoSchedule"}, {"key": "k", "operator": "Lt", "value": "800"}, False),
    ],
)
def test_taint_table(taint: Any, toleration: Any, fine: bool) -> None:
    who = info("p", tolerations=[toleration] if toleration else [])
    status = verdict(TaintToleration(), who, node("n", taints=[taint]))
    assert status.code is (Code.SUCCESS if fine else Code.UNRESOLVABLE)
    assert fine or status.message == f"node(s) had untolerated taint {{k: {taint['value']}}}"


def test_taint_wakes_when_taints_become_tolerated_not_on_labels() -> None:
    plugin, taint = TaintToleration(), on_node(Action.UPDATE_NODE_TAINT)
    assert hint(plugin, info("p"), taint, TAINTED, node("n")) is Hint.QUEUE
    assert hint(plugin, info("p"), taint, node("n"), TAINTED) is Hint.SKIP
    assert hint(plugin, info("p"), on_node(Action.UPDATE_NODE_LABEL), TAINTED, node("n")) is None
    own = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
    assert hint(plugin, info("p"), own, info("p"), info("p")) is Hint.QUEUE
    assert hint(plugin, info("p"), own, info("q"), info("q")) is Hint.SKIP
    label = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL)
    assert hint(plugin, info("p"), label, info("p"), info("p")) is None


def test_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    cordoned = node("n", unschedulable=True)
    tolerant = info("p", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert verdict(NodeUnschedulable(), info("p"), cordoned).code is Code.UNRESOLVABLE
    assert verdict(NodeUnschedulable(), info("p"), node("n")).ok
    assert verdict(NodeUnschedulable(), tolerant, cordoned).skipped is False
    assert verdict(NodeUnschedulable(), tolerant, cordoned).ok


def test_uncordon_and_new_schedulable_nodes_wake() -> None:
    plugin = NodeUnschedulable()
    assert (
        hint(plugin, info("p"), on_node(Action.UPDATE_NODE_TAINT), node("n", unschedulable=True), node("n"))
        is Hint.QUEUE
    )
    assert hint(plugin, info("p"), events.NODE_ADD, None, node("n")) is Hint.QUEUE
    assert hint(plugin, info("p"), events.NODE_ADD, None, node("n", unschedulable=True)) is Hint.SKIP


def test_named_node_only() -> None:
    assert verdict(NodeName(), info("p", nodeName="n"), node("n")).ok
    assert verdict(NodeName(), info("p", nodeName="m"), node("n")).code is Code.UNRESOLVABLE
    assert verdict(NodeName(), info("p"), node("n")).ok


# NodeAffinity.


def terms(*terms: dict[str, Any], **spec: Any) -> Any:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return info("p", affinity={"nodeAffinity": required}, **spec)


def expr(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def field(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


LABELLED = node("n", labels={"zone": "a", "size": "20"})


@pytest.mark.parametrize(
    ("who", "fine"),
    [
        (info("p", nodeSelector={"zone": "a"}), True),
        (info("p", nodeSelector={"zone": "b"}), False),
        (terms(expr("zone", "In", "a", "b")), True),
        (terms(expr("zone", "In", "b")), False),
        (terms(expr("zone", "NotIn", "b")), True),
        (terms(expr("absent", "NotIn", "b")), True),
        (terms(expr("zone", "NotIn", "a")), False),
        (terms(expr("zone", "Exists")), True),
        (terms(expr("absent", "Exists")), False),
        (terms(expr("absent", "DoesNotExist")), True),
        (terms(expr("zone", "DoesNotExist")), False),
        (terms(expr("size", "Gt", "10")), True),
        (terms(expr("size", "Gt", "20")), False),
        (terms(expr("size", "Lt", "30")), True),
        (terms(expr("zone", "Gt", "10")), False),
        (terms(expr("size", "Gt", "ten")), False),
        (terms(expr("zone", "In", "b"), expr("size", "Exists")), True),
        (
            terms(
                {
                    "matchExpressions": [
                        *expr("zone", "In", "a")["matchExpressions"],
                        *expr("x", "Exists")["matchExpressions"],
                    ]
                }
            ),
            False,
        ),
        (terms({}), False),
        (terms(), False),
        (terms(field("In", "n")), True),
        (terms(field("NotIn", "n")), False),
        (terms(expr("zone", "In", "a"), nodeSelector={"zone": "b"}), False),
    ],
)
def test_node_affinity_table(who: Any, fine: bool) -> None:
    assert verdict(NodeAffinity(), who, LABELLED).code is (Code.SUCCESS if fine else Code.UNRESOLVABLE)


@pytest.mark.parametrize(
    ("who", "names"),
    [
        (terms(field("In", "node1")), {"node1"}),
        (terms(field("In", "node1"), field("In", "node2")), {"node1", "node2"}),
        (terms(field("In", "node1"), expr("zone", "Exists")), None),
        (terms(expr("zone", "Exists")), None),
    ],
)
def test_node_affinity_narrows_to_named_nodes(who: Any, names: set[str] | None) -> None:
    snapshot = snapshot_of(framework(), [LABELLED])
    assert NodeAffinity().pre_filter(CycleState(), who, snapshot).nodes == names


def test_contradictory_names_and_unreadable_affinity_refuse_the_pod() -> None:
    both = {"matchFields": [*field("In", "node1")["matchFields"], *field("In", "node2")["matchFields"]]}
    assert verdict(NodeAffinity(), terms(both), LABELLED).message == "pod affinity terms conflict"
    status = verdict(NodeAffinity(), terms(expr("zone", "Like", "a")), LABELLED)
    assert (status.code, "cannot be read" in status.message) == (Code.UNRESOLVABLE, True)


def test_affinity_wakes_only_when_a_node_becomes_matching() -> None:
    who, plugin = info("p", nodeSelector={"zone": "a"}), NodeAffinity()
    label = on_node(Action.UPDATE_NODE_LABEL)
    assert hint(plugin, who, label, node("n"), LABELLED) is Hint.QUEUE
    assert hint(plugin, who, label, LABELLED, node("n", labels={"zone": "a", "more": "1"})) is Hint.SKIP
    assert hint(plugin, who, events.NODE_ADD, None, node("n")) is Hint.SKIP


# NodePorts.


def ports(*given: dict[str, Any], init: bool = False, sidecar: bool = False) -> dict[str, Any]:
    container = {"name": "c", "ports": list(given)}
    if init or sidecar:
        return {"initContainers": [container | ({"restartPolicy": "Always"} if sidecar else {})]}
    return {"containers": [container]}


@pytest.mark.parametrize(
    ("mine", "theirs", "fine"),
    [
        (ports(), ports({"hostPort": 80}), True),
        (ports({"hostPort": 80}), ports({"hostPort": 80}), False),
        (ports({"hostPort": 80}), ports({"hostPort": 81}), True),
        (ports({"hostPort": 80, "hostIP": "1.1.1.1"}), ports({"hostPort": 80, "hostIP": "2.2.2.2"}), True),
        (ports({"hostPort": 80, "hostIP": "1.1.1.1"}), ports({"hostPort": 80, "hostIP": "1.1.1.1"}), False),
        (ports({"hostPort": 80, "protocol": "UDP"}), ports({"hostPort": 80}), True),
        (ports({"hostPort": 80, "hostIP": "0.0.0.0"}), ports({"hostPort": 80, "hostIP": "1.1.1.1"}), False),
        (ports({"hostPort": 80, "hostIP": "1.1.1.1"}), ports({"hostPort": 80}), False),
        (ports({"hostPort": 80}, init=True), ports({"hostPort": 80}), True),
        (ports({"hostPort": 80}, sidecar=True), ports({"hostPort": 80}), False),
    ],
)
def test_node_ports_table(mine: Any, theirs: Any, fine: bool) -> None:
    status = verdict(NodePorts(), info("p", **mine), node("n"), [pod("q", nodeName="n", **theirs)])
    assert status.code is (Code.SUCCESS if fine else Code.UNSCHEDULABLE)


def test_freed_port_wakes_and_others_do_not() -> None:
    who, plugin, gone = info("p", **ports({"hostPort": 80})), NodePorts(), events.ASSIGNED_POD_DELETE
    assert hint(plugin, who, gone, info("q", nodeName="n", **ports({"hostPort": 80})), None) is Hint.QUEUE
    assert hint(plugin, who, gone, info("q", nodeName="n", **ports({"hostPort": 81})), None) is Hint.SKIP
    assert hint(plugin, who, gone, info("q", **ports({"hostPort": 80})), None) is Hint.SKIP
    with pytest.raises(TypeError, match="not a PodInfo"):
        hint(plugin, who, gone, node("n"), None)


# SchedulingGates, UnsupportedPods.


def test_gates_hold_and_only_their_end_wakes() -> None:
    plugin, gated = SchedulingGates(), info("p", schedulingGates=[{"name": "a"}, {"name": "b"}])
    assert plugin.pre_enqueue(gated).message == "waiting for scheduling gates: a, b"
    assert plugin.pre_enqueue(info("p")).ok
    gone = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_GATES_ELIMINATED)
    assert hint(plugin, gated, gone, gated, info("p")) is Hint.QUEUE
    assert hint(plugin, gated, gone, info("q"), info("q")) is Hint.SKIP
    assert hint(plugin, gated, events.NODE_ADD, None, node("n")) is None


HOSTNAME = {"topologyKey": "kubernetes.io/hostname"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "persistentVolumeClaim"),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, "ephemeral"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resource claims"),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [HOSTNAME]}}}, "podAffinity"),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [HOSTNAME]}}},
            "podAntiAffinity",
        ),
        ({"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}, "topology spread"),
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
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [HOSTNAME]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
)
def test_what_only_prefers_or_needs_nothing_is_let_pass(spec: dict[str, Any]) -> None:
    assert verdict(UnsupportedPods(), info("p", **spec), node("n")).ok


# Events from object differences.

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
