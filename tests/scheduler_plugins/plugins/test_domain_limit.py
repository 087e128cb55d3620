"""DomainLimit: at most so many alike pods in the node's own domain."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.domain_limit import MAX_PER_DOMAIN, DomainLimit, DomainLimitArgs
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import READER, framework, info, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, NEVER, Judged, alike, hint

BASE = {"topologyKey": "zone", "labelKey": "app", "maxPods": 2}


def plugin(**args: Any) -> DomainLimit:
    return DomainLimit(msgspec.convert(BASE | args, DomainLimitArgs))


def at(name: str, zone: str = "", **labels: str) -> Any:
    return node(name, labels=({"zone": zone} if zone else {}) | labels)


ABX = [at("a", "1"), at("b", "1"), at("x", "2"), at("y")]


def web(count: int, where: str, app: str = "web", **metadata: Any) -> list[Any]:
    labels = metadata.pop("labels", {"app": app})
    return [pod(f"{app}-{where}-{i}", metadata={"labels": labels, **metadata}) for i in range(count)]


def waiting(app: str = "web", **metadata: Any) -> Any:
    labels = {"app": app} | metadata.pop("labels", {})
    return info("p", metadata={"labels": labels, **metadata})


TERMINATING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
STATED = {"annotations": {MAX_PER_DOMAIN: "3"}}
SELECTOR = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}

FILTER = {
    "empty": (plugin(), waiting(), {}, [FITS, FITS, FITS, NEVER]),
    "one of two": (plugin(), waiting(), {"a": web(1, "a")}, [FITS, FITS, FITS, NEVER]),
    "two of two on one node": (plugin(), waiting(), {"a": web(2, "a")}, [LATER, LATER, FITS, NEVER]),
    "two of two on two nodes": (plugin(), waiting(), {"a": web(1, "a"), "b": web(1, "b")}, [LATER, LATER, FITS, NEVER]),
    "nothing has to be even": (plugin(), waiting(), {"a": web(1, "a")}, [FITS, FITS, FITS, NEVER]),
    "full everywhere": (plugin(), waiting(), {"a": web(2, "a"), "x": web(2, "x")}, [LATER, LATER, LATER, NEVER]),
    "above the limit already": (plugin(), waiting(), {"a": web(5, "a")}, [LATER, LATER, FITS, NEVER]),
    "others do not count": (plugin(), waiting(), {"a": web(4, "a", "db")}, [FITS, FITS, FITS, NEVER]),
    "other namespaces do not count": (
        plugin(),
        waiting(),
        {"a": web(2, "a", namespace="other")},
        [FITS, FITS, FITS, NEVER],
    ),
    "pods without a domain do not count": (plugin(), waiting(), {"y": web(9, "y")}, [FITS, FITS, FITS, NEVER]),
    "terminating pods do not count": (
        plugin(),
        waiting(),
        {"a": web(2, "a", **TERMINATING)},
        [FITS, FITS, FITS, NEVER],
    ),
    "pod without the label": (plugin(labelKey="team"), waiting(), {"a": web(2, "a")}, [FITS] * 4),
    "selector": (
        plugin(labelKey="", labelSelector=SELECTOR),
        waiting("api"),
        {"a": web(2, "a")},
        [LATER, LATER, FITS, NEVER],
    ),
    "selector about others": (
        plugin(labelKey="", labelSelector=SELECTOR),
        waiting("db"),
        {"a": web(2, "a")},
        [FITS] * 4,
    ),
    "annotation allows more": (plugin(), waiting(**STATED), {"a": web(2, "a")}, [FITS, FITS, FITS, NEVER]),
    "annotation allows no more": (plugin(), waiting(**STATED), {"a": web(3, "a")}, [LATER, LATER, FITS, NEVER]),
    "label allows one": (
        plugin(),
        waiting(labels={MAX_PER_DOMAIN: "1"}),
        {"a": web(1, "a")},
        [LATER, LATER, FITS, NEVER],
    ),
    "annotation goes before label": (
        plugin(),
        waiting(labels={MAX_PER_DOMAIN: "1"}, **STATED),
        {"a": web(1, "a")},
        [FITS, FITS, FITS, NEVER],
    ),
    "only who states a number is limited": (plugin(maxPods=None), waiting(), {"a": web(9, "a")}, [FITS] * 4),
    "and is": (plugin(maxPods=None), waiting(**STATED), {"a": web(9, "a")}, [LATER, LATER, FITS, NEVER]),
    "states a number, but not who is alike": (
        plugin(labelKey="team"),
        waiting(**STATED),
        {},
        [NEVER] * 4,
    ),
    "states a number, but another selector": (
        plugin(labelKey="", labelSelector=SELECTOR),
        waiting("db", **STATED),
        {},
        [NEVER] * 4,
    ),
    "by host": (plugin(topologyKey="host"), waiting(), {"a": web(2, "a")}, [NEVER] * 4),
}


@pytest.mark.parametrize("case", FILTER)
def test_filter(case: str) -> None:
    plugin, who, placed, want = FILTER[case]
    assert list(Judged(plugin, who, ABX, placed).codes().values()) == want


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.5", " 2", "2e3", "٣", "1000001", "9" * 5000, "NaN"])
def test_a_number_that_is_none_refuses_the_pod_with_a_reason(text: str) -> None:
    judged = Judged(plugin(), waiting(annotations={MAX_PER_DOMAIN: text}), ABX)
    assert set(judged.codes().values()) == {NEVER}
    assert (
        f"{MAX_PER_DOMAIN} of the pod is {text[:40]!r}; it must be a whole number from 1 to 1000000" in judged.message()
    )


def test_a_refusal_says_which_domain_has_how_many() -> None:
    judged = Judged(plugin(), waiting(), ABX, {"a": web(3, "a"), "x": web(2, "x")})
    assert judged.message() == (
        "0/4 nodes are available: 1 node(s) didn't have the label that the limit per domain goes by (no label zone),"
        " 3 node(s) were in a domain with as many alike pods as it may have (nearest x: zone=2 has 2, may have 2)."
    )


def test_an_assumed_pod_counts() -> None:
    profile = framework(plugin())
    cache, snapshot = Cache(), profile.new_snapshot()
    cache.set_node(ABX[0])
    for number in range(3):
        cache.refresh(snapshot)
        who = READER.read(pod(f"w{number}", metadata={"labels": {"app": "web"}}))
        state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
        rows = profile.run_pre_filter(state, who, snapshot, diagnosis).rows
        _, rows = profile.run_filter(state, who, snapshot, rows, diagnosis)
        assert len(rows) == (1 if number < 2 else 0)
        if len(rows):
            cache.assume(who, "a")
    cache.forget("uid-w1")
    cache.refresh(snapshot)
    state = CycleState()
    rows = profile.run_pre_filter(state, who, snapshot, diagnosis).rows
    assert len(profile.run_filter(state, who, snapshot, rows, diagnosis)[1]) == 1


def test_what_if_a_pod_went_or_came() -> None:
    judged = Judged(plugin(), waiting(), ABX, {"a": [*web(2, "a"), *web(1, "a", "db")]})
    new = READER.read(web(1, "new")[0])
    assert judged.without("a", "uid-web-a-0") is FITS
    assert judged.without("a", "uid-db-a-0") is LATER
    assert judged.after("a", ["uid-web-a-0"], (), judged="b") is FITS
    assert judged.after("a", ["uid-web-a-0"], [new], judged="b") is LATER
    assert judged.after("x", (), [new], judged="x") is FITS
    assert judged.codes()["a"] is LATER


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"maxPods": 0}, msgspec.ValidationError),
        ({"topologyKey": ""}, msgspec.ValidationError),
        ({"most": 2}, msgspec.ValidationError),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}, msgspec.ValidationError),
        ({"labelSelector": {}}, SettingsError),
    ],
)
def test_arguments_that_do_not_fit(args: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        plugin(**args)


# Events.

GONE = events.ASSIGNED_POD_DELETE
LABELS = ClusterEvent(events.ASSIGNED_POD, Action.UPDATE_POD_LABEL)
OWN = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_OTHER)
NODE_LABEL = ClusterEvent(events.NODE, Action.UPDATE_NODE_LABEL)
QUEUE, SKIP = Hint.QUEUE, Hint.SKIP


def one(app: str = "web", **metadata: Any) -> Any:
    return READER.read(web(1, "a", app, **metadata)[0]).on("a")


HINTS = {
    "alike pod gone": (GONE, one(), None, QUEUE),
    "terminating alike pod gone": (GONE, one(**TERMINATING), None, QUEUE),
    "other pod gone": (GONE, one("db"), None, SKIP),
    "alike pod of another namespace gone": (GONE, one(namespace="other"), None, SKIP),
    "alike pod becomes another": (LABELS, one(), one("db"), QUEUE),
    "other pod becomes alike": (LABELS, one("db"), one(), SKIP),
    "alike pod stays so": (LABELS, one(), one(labels={"app": "web", "x": ""}), SKIP),
    "node with the key added": (events.NODE_ADD, None, at("n", "3"), QUEUE),
    "node without the key added": (events.NODE_ADD, None, at("n"), SKIP),
    "key appears": (NODE_LABEL, at("n"), at("n", "3"), QUEUE),
    "domain changes": (NODE_LABEL, at("n", "2"), at("n", "3"), QUEUE),
    "key disappears": (NODE_LABEL, at("n", "2"), at("n"), SKIP),
    "other label": (NODE_LABEL, at("n", "2"), at("n", "2", disk="ssd"), SKIP),
    "own limit": (OWN, waiting(), waiting(**STATED), QUEUE),
    "other annotation": (OWN, waiting(), waiting(annotations={"x": "y"}), SKIP),
    "annotation of another that waits": (OWN, one(), one(**STATED), SKIP),
    "alike pod placed": (events.ASSIGNED_POD_ADD, None, one(), None),
}


@pytest.mark.parametrize("case", HINTS)
def test_events(case: str) -> None:
    event, old, new, want = HINTS[case]
    assert hint(plugin(), waiting(), event, old, new) is want


def test_waiting_pods_of_a_limit_are_asked_once() -> None:
    assert alike(plugin(), GONE, waiting(), waiting(labels={"x": ""}))
    assert alike(plugin(), NODE_LABEL, waiting(), waiting("db"))
    assert not alike(plugin(), GONE, waiting(), waiting("db"))
    assert not alike(plugin(), GONE, waiting(), waiting(**STATED))
