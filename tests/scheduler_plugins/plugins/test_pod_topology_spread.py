"""PodTopologySpread: the stock scheduler's tables (kube-scheduling.md 8.5), defaults, what-if questions and events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.plugins.kinds import (
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    SERVICES,
    STATEFUL_SETS,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)
from scheduler_plugins.plugins.pod_topology_spread import PodTopologySpread
from scheduler_plugins.plugins.spread_args import PodTopologySpreadArgs
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import READER, info, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, NEVER, Judged, Objects, handle_with, hint
from tests.scheduler_plugins.plugins.cases import alike as alike_to_the_queue

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


def plugin(objects: Objects | None = None, **args: Any) -> PodTopologySpread:
    return PodTopologySpread(msgspec.convert(args, PodTopologySpreadArgs), handle_with(objects or Objects()))


def at(name: str, zone: str | None = None, host: bool = True, **fields: Any) -> Any:
    labels = ({"zone": zone} if zone else {}) | ({HOST: name} if host else {})
    return node(name, labels=labels | fields.pop("labels", {}), **fields)


ABXY = [at("a", "1"), at("b", "1"), at("x", "2"), at("y", "2")]


def foo(count: int, where: str, app: str = "foo", **metadata: Any) -> list[Any]:
    metadata = {"labels": {app: ""}} | metadata
    return [pod(f"{app}-{where}-{i}", metadata=metadata) for i in range(count)]


def alike(*counts: int, app: str = "foo") -> dict[str, list[Any]]:
    return {name: foo(count, name, app) for name, count in zip("abxy", counts, strict=False)}


def both(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: one.get(name, []) + other.get(name, []) for name in one.keys() | other.keys()}


def rule(key: str, skew: int = 1, app: str | None = "foo", *, hard: bool = True, **more: Any) -> dict[str, Any]:
    selector = None if app is None else {"matchExpressions": [{"key": app, "operator": "Exists"}]}
    when = "DoNotSchedule" if hard else "ScheduleAnyway"
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": when, "labelSelector": selector, **more}


def soft(key: str, skew: int = 1, app: str | None = "foo", **more: Any) -> dict[str, Any]:
    return rule(key, skew, app, hard=False, **more)


def asking(*rules: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> Any:
    labels = {"foo": ""} if labels is None else labels
    return info("p", topologySpreadConstraints=list(rules), metadata={"labels": labels}, **spec)


TERMINATING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}

FILTER = {
    "zone 3/3": (asking(rule("zone")), ABXY, alike(2, 1, 1, 2), [FITS] * 4),
    "zone 1/2 because one node lacks the key": (
        asking(rule("zone")),
        [at("a", "1"), at("b"), at("x", "2"), at("y", "2")],
        alike(1, 1, 1, 1),
        [FITS, NEVER, LATER, LATER],
    ),
    "key nowhere": (asking(rule("zone")), [at(name) for name in "abxy"], alike(1), [NEVER] * 4),
    "node 2/1/0/3": (asking(rule(HOST)), ABXY, alike(2, 1, 0, 3), [LATER, LATER, FITS, LATER]),
    "node 2/1/0/3, skew 2": (asking(rule(HOST, 2)), ABXY, alike(2, 1, 0, 3), [LATER, FITS, FITS, LATER]),
    "pod that does not match itself": (
        asking(rule(HOST), labels={"bar": ""}),
        ABXY,
        alike(2, 1, 0, 3),
        [LATER, FITS, FITS, LATER],
    ),
    "terminating pods are ignored": (
        asking(rule("zone")),
        ABXY,
        {"a": foo(1, "a", **TERMINATING), "x": foo(1, "x")},
        [FITS, FITS, LATER, LATER],
    ),
    "other namespaces are ignored": (
        asking(rule("zone")),
        ABXY,
        {"a": foo(1, "a", namespace="other"), "x": foo(1, "x")},
        [FITS, FITS, LATER, LATER],
    ),
    "missing selector": (asking(rule(HOST, app=None)), ABXY, alike(5, 1), [FITS] * 4),
    "minDomains 4 of 3": (asking(rule(HOST, 2, minDomains=4)), ABXY[:3], alike(2, 2, 1), [LATER, LATER, FITS]),
    "minDomains 2 of 3": (asking(rule(HOST, 2, minDomains=2)), ABXY[:3], alike(2, 2, 1), [FITS] * 3),
    "minDomains 3 of 2 zones": (
        asking(rule("zone", 2, minDomains=3)),
        ABXY,
        alike(1, 1, 1, 0),
        [LATER, LATER, FITS, FITS],
    ),
    # Beyond the reference's rows.
    "two rules, each refuses one domain": (
        asking(rule("zone"), rule(HOST)),
        ABXY,
        alike(1, 0, 1, 1),
        [LATER, FITS, LATER, LATER],
    ),
    "empty selector counts nobody": (
        asking({"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}),
        ABXY,
        alike(3, 0),
        [FITS] * 4,
    ),
    "matchLabelKeys narrow the selector": (
        asking(rule(HOST, matchLabelKeys=["rev", "absent"]), labels={"foo": "", "rev": "2"}),
        ABXY[:2],
        {"a": foo(3, "a", labels={"foo": "", "rev": "1"}), "b": foo(1, "b", labels={"foo": "", "rev": "2"})},
        [FITS, LATER],
    ),
    "nodes that the selector leaves out do not count": (
        asking(rule("zone"), nodeSelector={"zone": "1"}),
        ABXY,
        alike(1, 1, 0, 0),
        [FITS, FITS, FITS, FITS],
    ),
    "they count when the policy says so": (
        asking(rule("zone", nodeAffinityPolicy="Ignore"), nodeSelector={"zone": "1"}),
        ABXY,
        alike(1, 1, 0, 0),
        [LATER, LATER, FITS, FITS],
    ),
    "tainted nodes count": (
        asking(rule("zone")),
        [*ABXY[:2], at("x", "2", taints=[{"key": "k", "effect": "NoSchedule"}])],
        alike(1),
        [LATER, LATER, FITS],
    ),
    "but not when the policy honours taints": (
        asking(rule("zone", nodeTaintsPolicy="Honor")),
        [*ABXY[:2], at("x", "2", taints=[{"key": "k", "effect": "NoSchedule"}])],
        alike(1),
        [FITS, FITS, FITS],
    ),
    "and the pod does not tolerate them": (
        asking(rule("zone", nodeTaintsPolicy="Honor"), tolerations=[{"operator": "Exists"}]),
        [*ABXY[:2], at("x", "2", taints=[{"key": "k", "effect": "NoSchedule"}])],
        alike(1),
        [LATER, LATER, FITS],
    ),
}


@pytest.mark.parametrize("case", FILTER)
def test_filter(case: str) -> None:
    who, nodes, placed, want = FILTER[case]
    assert list(Judged(plugin(), who, nodes, placed).codes().values()) == want


SCORE = {
    "node 2/1/0/3": (asking(soft(HOST)), "abxy", alike(2, 1, 0, 3), [20, 60, 100, 0]),
    "node 2/1/0/3, skew 2": (asking(soft(HOST, 2)), "abxy", alike(2, 1, 0, 3), [33, 66, 100, 16]),
    "node 4/3/2/1, skew 3": (asking(soft(HOST, 3)), "abxy", alike(4, 3, 2, 1), [44, 66, 77, 100]),
    "node 4/2/1/(3)": (asking(soft(HOST)), "abx", alike(4, 2, 1, 3), [33, 83, 100]),
    "zones 6 and 4": (asking(soft("zone")), "abx", alike(4, 2, 1, 3), [75, 75, 100]),
    "no pods": (asking(soft(HOST)), "ab", {}, [100, 100]),
    "missing selector": (asking(soft(HOST, app=None)), "abxy", alike(2, 1, 0, 3), [100] * 4),
    "zone 2/1 and node 0/1/0/1": (
        asking(soft("zone"), soft(HOST, app="bar")),
        "abxy",
        both(alike(1, 1, 1), alike(0, 1, 0, 1, app="bar")),
        [60, 20, 100, 60],
    ),
    "zone 0/1 and node 0/1/1/2": (
        asking(soft("zone"), soft(HOST, app="bar")),
        "abxy",
        both(alike(0, 0, 1), alike(0, 1, 1, 2, app="bar")),
        [100, 60, 40, 0],
    ),
    "zone 2/0 and node 2/3/1/(0)": (
        asking(soft("zone"), soft(HOST, app="bar")),
        "abx",
        both(alike(1, 1), alike(2, 3, 1, app="bar")),
        [50, 25, 100],
    ),
}


@pytest.mark.parametrize("case", SCORE)
def test_score(case: str) -> None:
    who, candidates, placed, want = SCORE[case]
    assert list((Judged(plugin(), who, ABXY, placed).scores(*candidates) or {}).values()) == want


def test_a_node_without_the_key_has_no_score() -> None:
    nodes = [at("a"), at("b", host=False), at("x")]
    assert Judged(plugin(), asking(soft(HOST)), nodes, alike(4, 2, 1)).scores() == {"a": 16, "b": 0, "x": 100}
    assert Judged(plugin(), asking(soft("zone")), nodes, alike(4, 2, 1)).scores() == {"a": 0, "b": 0, "x": 0}


def test_hard_rules_are_no_preference_and_soft_ones_refuse_nobody() -> None:
    assert Judged(plugin(), asking(rule(HOST)), ABXY, alike(9)).scores() is None
    assert set(Judged(plugin(), asking(soft(HOST)), ABXY, alike(9)).codes().values()) == {FITS}


def test_a_refusal_says_which_domain_has_how_many() -> None:
    judged = Judged(plugin(), asking(rule("zone")), [*ABXY[1:3], at("n")], alike(0, 1, 4))
    assert judged.codes() == {"b": FITS, "n": NEVER, "x": LATER}
    judged = Judged(plugin(), asking(rule("zone", minDomains=3)), [*ABXY[1:3], at("n")], alike(0, 1, 4))
    assert judged.message() == (
        "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)"
        " (no label zone), 2 node(s) didn't match pod topology spread constraints"
        " (nearest b: zone=1 has 1, least 0, max skew 1)."
    )


def test_malformed_constraints_refuse_the_pod_and_nobody_else() -> None:
    judged = Judged(plugin(), asking(rule("zone", 0)), ABXY)
    assert set(judged.codes().values()) == {NEVER}
    assert "topology spread constraints cannot be read" in judged.message()


# What-if questions: "Preemption dry run" rows of 8.5 that spread decides.


def test_a_pod_that_would_go_makes_room_for_one_of_its_kind() -> None:
    """One low pod per node a or b, none in the other zone: the pod fits on a once the one there is gone, not before."""
    judged = Judged(plugin(), asking(rule("zone"), rule(HOST)), ABXY, alike(1, 1))
    assert judged.codes()["a"] is LATER
    assert judged.without("a", "uid-foo-a-0") is LATER
    judged = Judged(plugin(), asking(rule("zone")), ABXY, alike(1, 0))
    assert judged.without("a", "uid-foo-a-0") is FITS
    assert judged.codes()["a"] is LATER


def test_a_pod_that_would_come_counts() -> None:
    judged = Judged(plugin(), asking(rule("zone")), ABXY, alike(1, 0, 1))
    new = READER.read(foo(1, "new")[0])
    assert judged.after("a", (), [new], judged="a") is LATER
    assert judged.after("a", (), [new], judged="b") is LATER
    assert judged.after("a", (), [new], judged="x") is FITS
    assert judged.after("a", ["uid-foo-a-0"], [new], judged="a") is FITS


# Default constraints.


def made(kind: Any, name: str, selector: Any, namespace: str = "default") -> Any:
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}}
    return msgspec.convert(body, kind)


def owned(kind: str, api: str = "apps/v1", name: str = "web") -> dict[str, Any]:
    owner = {"apiVersion": api, "kind": kind, "name": name, "controller": True}
    return {"labels": {"foo": "", "rev": "1"}, "ownerReferences": [owner]}


SERVICE = Objects({SERVICES: [made(Service, "web", {"foo": ""})]})
DEFAULTS = {
    "service": (SERVICE, {"labels": {"foo": ""}}, True),
    "service of another namespace": (
        Objects({SERVICES: [made(Service, "web", {"foo": ""}, "other")]}),
        {"labels": {"foo": ""}},
        False,
    ),
    "service that selects others": (SERVICE, {"labels": {"bar": ""}}, False),
    "service without selector": (Objects({SERVICES: [made(Service, "web", None)]}), {"labels": {"foo": ""}}, False),
    "replica set": (
        Objects({REPLICA_SETS: [made(ReplicaSet, "web", {"matchLabels": {"foo": ""}})]}),
        owned("ReplicaSet"),
        True,
    ),
    "stateful set": (
        Objects({STATEFUL_SETS: [made(StatefulSet, "web", {"matchLabels": {"foo": ""}})]}),
        owned("StatefulSet"),
        True,
    ),
    "replication controller": (
        Objects({REPLICATION_CONTROLLERS: [made(ReplicationController, "web", {"foo": ""})]}),
        owned("ReplicationController", "v1"),
        True,
    ),
    "service and replica set of another revision": (
        Objects(
            {
                SERVICES: [made(Service, "web", {"foo": ""})],
                REPLICA_SETS: [made(ReplicaSet, "web", {"matchLabels": {"rev": "1"}})],
            }
        ),
        owned("ReplicaSet"),
        False,
    ),
    "owner that is gone": (Objects(), owned("ReplicaSet"), False),
    "owner of no known kind": (Objects(), owned("Job", "batch/v1"), False),
    "nothing": (Objects(), {"labels": {"foo": ""}}, False),
}


@pytest.mark.parametrize("case", DEFAULTS)
def test_system_defaults_are_for_pods_of_a_service_or_controller(case: str) -> None:
    """hostname 3, zone 5: three alike pods on a weigh 3 ln 4 + 2 there and nothing but 2 on b."""
    objects, metadata, spread = DEFAULTS[case]
    scores = Judged(plugin(objects), info("p", metadata=metadata), ABXY[:2], alike(3, 0)).scores()
    if spread:
        assert scores == {"a": 33, "b": 100}
    else:
        assert scores is None or len(set(scores.values())) == 1


def test_system_defaults_do_not_ask_for_a_zone() -> None:
    nodes = [at("a", labels={ZONE: "1"}), at("b")]
    scores = Judged(plugin(SERVICE), info("p", metadata={"labels": {"foo": ""}}), nodes, alike(1, 0)).scores()
    assert scores is not None
    assert scores["b"] == 100


def test_own_constraints_replace_the_defaults() -> None:
    who = info("p", metadata={"labels": {"foo": ""}}, topologySpreadConstraints=[rule(HOST)])
    assert Judged(plugin(SERVICE), who, ABXY, alike(3)).scores() is None


def test_defaults_by_list_may_be_hard_and_ask_for_every_key() -> None:
    given = [{"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    spread = plugin(SERVICE, defaultingType="List", defaultConstraints=given)
    who = info("p", metadata={"labels": {"foo": ""}})
    assert list(Judged(spread, who, ABXY[:3], alike(1, 0, 1)).codes().values()) == [LATER, FITS, LATER]
    assert Judged(spread, who, [*ABXY[:1], at("b", host=False)], {}).codes()["b"] is NEVER
    assert Judged(plugin(defaultingType="List"), who, ABXY, alike(3)).scores() is None


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"defaultConstraints": [{"topologyKey": HOST, "maxSkew": 1}]}, "set it to List"),
        ({"defaultingType": "List", "defaultConstraints": [{"maxSkew": 1}]}, "topologyKey is missing"),
        (
            {"defaultingType": "List", "defaultConstraints": [{"topologyKey": HOST, "labelSelector": {}}]},
            "labelSelector must not be set",
        ),
        (
            {"defaultingType": "List", "defaultConstraints": [{"topologyKey": HOST}, {"topologyKey": HOST}]},
            "defaultConstraints[1] repeats",
        ),
    ],
)
def test_arguments_that_the_stock_scheduler_refuses(args: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        plugin(**args)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "args",
    [
        {"defaultingType": "Sometimes"},
        {"defaultConstraints": [{"maxSkew": 0}]},
        {"defaultConstraints": [{"skew": 1}]},
        {"constraints": []},
    ],
)
def test_arguments_of_another_shape(args: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        plugin(**args)


# Events.

ADDED, GONE = events.ASSIGNED_POD_ADD, events.ASSIGNED_POD_DELETE
LABELS = ClusterEvent(events.ASSIGNED_POD, Action.UPDATE_POD_LABEL)
OWN_LABELS = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL)
OWN_TOLERATION = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
NODE_LABEL = ClusterEvent(events.NODE, Action.UPDATE_NODE_LABEL)
NODE_TAINT = ClusterEvent(events.NODE, Action.UPDATE_NODE_TAINT)


def one(labels: dict[str, str] | None = None, **more: Any) -> Any:
    return info("other", metadata={"labels": {"foo": ""} if labels is None else labels, **more}, nodeName="a")


WAITING = asking(rule("zone"))
QUEUE, SKIP = Hint.QUEUE, Hint.SKIP
HINTS = {
    "alike pod added": (ADDED, None, one(), QUEUE),
    "other pod added": (ADDED, None, one({}), SKIP),
    "alike pod of another namespace added": (ADDED, None, one(namespace="other"), SKIP),
    "alike pod deleted": (GONE, one(), None, QUEUE),
    "terminating alike pod gone": (GONE, one(**TERMINATING), None, QUEUE),
    "other pod deleted": (GONE, one({}), None, SKIP),
    "label that makes it alike": (LABELS, one({}), one(), QUEUE),
    "label that makes it another": (LABELS, one(), one({}), QUEUE),
    "label that changes nothing": (LABELS, one(), one({"foo": "", "x": ""}), SKIP),
    "own label": (OWN_LABELS, WAITING, asking(rule("zone"), labels={}), QUEUE),
    "label of another that waits": (OWN_LABELS, one(), one({}), SKIP),
    "own toleration": (OWN_TOLERATION, WAITING, WAITING, QUEUE),
    "node with the key added": (events.NODE_ADD, None, at("n", "3"), QUEUE),
    "node without the key added": (events.NODE_ADD, None, at("n"), SKIP),
    "node with the key deleted": (events.NODE_DELETE, at("n", "3"), None, QUEUE),
    "node without the key deleted": (events.NODE_DELETE, at("n"), None, SKIP),
    "key appears": (NODE_LABEL, at("n"), at("n", "3"), QUEUE),
    "key disappears": (NODE_LABEL, at("n", "3"), at("n"), QUEUE),
    "domain changes": (NODE_LABEL, at("n", "3"), at("n", "4"), QUEUE),
    "other label changes": (NODE_LABEL, at("n", "3"), at("n", "3", labels={"x": ""}), SKIP),
    "taint without a policy about taints": (
        NODE_TAINT,
        at("n", "3", taints=[{"key": "k", "effect": "NoSchedule"}]),
        at("n", "3"),
        SKIP,
    ),
}


@pytest.mark.parametrize("case", HINTS)
def test_events(case: str) -> None:
    event, old, new, want = HINTS[case]
    assert hint(plugin(), WAITING, event, old, new) is want


def test_policies_make_taints_and_labels_count() -> None:
    tainted = at("n", "3", taints=[{"key": "k", "effect": "NoSchedule"}])
    honours = asking(rule("zone", nodeTaintsPolicy="Honor"))
    assert hint(plugin(), honours, NODE_TAINT, tainted, at("n", "3")) is QUEUE
    selects = asking(rule("zone"), nodeSelector={"disk": "ssd"})
    assert hint(plugin(), selects, NODE_LABEL, at("n", "3"), at("n", "3", labels={"disk": "ssd"})) is QUEUE
    assert hint(plugin(), selects, events.NODE_ADD, None, at("n", "3")) is SKIP


def test_waiting_pods_of_a_template_are_asked_once() -> None:
    one, other = asking(rule("zone")), asking(rule("zone"))
    for event in (ADDED, GONE, LABELS, NODE_LABEL, NODE_TAINT):
        assert alike_to_the_queue(plugin(), event, one, other)
        assert not alike_to_the_queue(plugin(), event, one, asking(rule("zone", 2)))
    assert not alike_to_the_queue(plugin(), NODE_LABEL, one, asking(rule("zone"), nodeSelector={"disk": "ssd"}))
    assert not alike_to_the_queue(plugin(), NODE_TAINT, one, asking(rule("zone"), tolerations=[{"operator": "Exists"}]))
    assert not alike_to_the_queue(plugin(), GONE, info("p"), info("p", metadata={"labels": {"foo": ""}}))
