from __future__ import annotations

import pytest

from standalone.api.errors import ApiError
from standalone.api.kinds import EVENTS, LEASES, NODES, PODS
from standalone.api.selectors import attributes, of_label_selector, parse, parse_labels

LABELS = {"app": "web", "tier": "be", "n": "7", "empty": ""}


def selects(text, labels=None):
    return all(term.matches(LABELS if labels is None else labels) for term in parse_labels(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app=web",
        "app==web",
        "app = web , tier=be",
        "app!=db",
        "absent!=x",
        "app",
        "!absent",
        "app in (web,db)",
        "app in ( web )",
        "app notin (db)",
        "absent notin (db)",
        "n>6",
        "n<8",
        "empty=",
        "empty in (,x)",
        "app,!absent,n>1",
        "a.b/c!=1",
    ],
)
def test_label_selectors_that_match(text):
    assert selects(text)


@pytest.mark.parametrize(
    "text",
    [
        "app=db",
        "app!=web",
        "absent",
        "!app",
        "app in (db)",
        "app notin (web,db)",
        "absent in (x)",
        "n>7",
        "n<7",
        "app>1",
        "app=",
        "absent=",
    ],
)
def test_label_selectors_that_do_not(text):
    assert not selects(text)


@pytest.mark.parametrize(
    "text", ["=x", "a=b=c", "a in", "a in (b", "a b", ",", "a,", "a in b", "!", "a>x", "(a)", "a=b c", "!!a"]
)
def test_label_selectors_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"."):
        parse_labels(text)
    with pytest.raises(ApiError) as refused:
        parse(PODS, text, "")
    assert refused.value.code == 400


POD = {
    "metadata": {"name": "a", "namespace": "ns"},
    "spec": {"nodeName": "n1", "schedulerName": "s", "restartPolicy": "Never"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1,status.phase!=Failed,status.phase!=Succeeded", True),
        ("spec.nodeName=", False),
        ("spec.nodeName!=", True),
        ("metadata.name=a,metadata.namespace=ns", True),
        ("metadata.name=b", False),
        ("spec.schedulerName=s", True),
        ("status.podIP=", True),
        ("spec.hostNetwork=false", True),
        ("status.nominatedNodeName=x", False),
    ],
)
def test_field_selectors(text, expected):
    assert parse(PODS, "", text).matches(attributes("pods", POD)) is expected


def test_field_values_may_escape_separators():
    event = {"metadata": {"name": "e"}, "reason": "a,b=c\\d", "involvedObject": {"fieldPath": "spec.containers{main}"}}
    shown = attributes("events", event)
    assert parse(EVENTS, "", r"reason=a\,b\=c\\d").matches(shown)
    assert parse(EVENTS, "", "involvedObject.fieldPath=spec.containers{main}").matches(shown)
    assert parse(EVENTS, "", "involvedObject.name=").matches(shown)


@pytest.mark.parametrize(
    ("kind", "text"), [(PODS, "spec.foo=1"), (NODES, "spec.nodeName=x"), (LEASES, "status.phase=x"), (PODS, "nonsense")]
)
def test_field_selectors_that_are_not_offered(kind, text):
    with pytest.raises(ApiError) as refused:
        parse(kind, "", text)
    assert refused.value.code == 400


def test_nodes_by_schedulability():
    assert parse(NODES, "", "spec.unschedulable=false").matches(attributes("nodes", {"metadata": {"name": "n"}}))
    cordoned = attributes("nodes", {"metadata": {"name": "n"}, "spec": {"unschedulable": True}})
    assert parse(NODES, "", "spec.unschedulable=true").matches(cordoned)


def test_selectors_of_objects():
    assert not of_label_selector(None)({})
    assert of_label_selector({})({})
    both = of_label_selector(
        {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["be"]}]}
    )
    assert both(LABELS)
    assert not both({"app": "web"})
    for operator, expected in {"Exists": True, "DoesNotExist": False, "NotIn": False}.items():
        assert (
            of_label_selector({"matchExpressions": [{"key": "app", "operator": operator, "values": ["web"]}]})(LABELS)
            is expected
        )
