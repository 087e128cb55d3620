"""NodeAffinity: the rows of the stock scheduler's tables; columns judge as the plain form does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.judgements import Judgements
from scheduler_plugins.plugins.node_affinity import NodeAffinity
from scheduler_plugins.plugins.node_selector import FEW, NodeAffinityTerms, Wanted, matching, matching_rows, worth
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import framework, handle, info, node, snapshot_of
from tests.scheduler_plugins.plugins.cases import FITS, NEVER, Judged, hint

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def terms(*terms: dict[str, Any], **spec: Any) -> Any:
    return info("p", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}, **spec)


def expr(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def field(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


def both(*given: dict[str, Any]) -> dict[str, Any]:
    """One term of several."""
    return {key: [one for term in given for one in term.get(key, [])] for key in ("matchExpressions", "matchFields")}


LABELLED = node("n", labels={"zone": "a", "size": "20", "odd": "2_0"})


@pytest.mark.parametrize("others", [0, FEW + 1], ids=["alone", "among many"])
@pytest.mark.parametrize(
    ("who", "fits"),
    [
        (info("p", nodeSelector={"zone": "a"}), True),
        (info("p", nodeSelector={"zone": "b"}), False),
        (info("p", nodeSelector={"zone": "a", "size": "21"}), False),
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
        (terms(expr("odd", "Gt", "1")), False),
        (terms(expr("zone", "In", "b"), expr("size", "Exists")), True),
        (terms(both(expr("zone", "In", "a"), expr("x", "Exists"))), False),
        (terms(both(expr("zone", "In", "a"), expr("size", "Gt", "5"))), True),
        (terms({}), False),
        (terms({}, expr("zone", "In", "a")), True),
        (terms(), False),
        (terms(field("In", "n")), True),
        (terms(field("NotIn", "n")), False),
        (terms(field("In", "m")), False),
        (terms(both(field("In", "n"), expr("zone", "In", "b"))), False),
        (terms(expr("zone", "In", "a"), nodeSelector={"zone": "b"}), False),
        (terms(expr("zone", "NotIn")), False),
        (terms(expr("zone", "Exists", "a")), False),
        (terms(field("Exists")), False),
        (terms({"matchFields": [{"key": "spec.unschedulable", "operator": "In", "values": ["n"]}]}), False),
    ],
)
def test_filter(who: Any, fits: bool, others: int) -> None:
    judged = Judged(NodeAffinity(), who, [LABELLED, *(node(f"m{i}") for i in range(others))])
    assert judged.codes()["n"] is (FITS if fits else NEVER) or "n" not in {
        judged.snapshot.names[row] for row in judged.before.rows
    }
    assert ("n" in {judged.snapshot.names[row] for row in judged.rows}) is fits


@pytest.mark.parametrize(
    ("who", "names"),
    [
        (terms(field("In", "node1")), {"node1"}),
        (terms(field("In", "node1"), field("In", "node2")), {"node1", "node2"}),
        (terms(field("In", "node1"), expr("zone", "Exists")), None),
        (terms(expr("zone", "Exists")), None),
        (info("p", nodeSelector={"zone": "a"}), None),
    ],
)
def test_narrows_to_named_nodes(who: Any, names: set[str] | None) -> None:
    snapshot = snapshot_of(framework(), [LABELLED])
    assert NodeAffinity().pre_filter(CycleState(), who, snapshot).nodes == names


def test_contradictory_names_and_unreadable_affinity_refuse_the_pod() -> None:
    judged = Judged(NodeAffinity(), terms(both(field("In", "node1"), field("In", "node2"))), [LABELLED])
    assert judged.before.status.message == "pod affinity terms conflict"
    status = Judged(NodeAffinity(), terms(expr("zone", "Like", "a")), [LABELLED]).before.status
    assert (status.code, "cannot be read" in status.message) == (Code.UNRESOLVABLE, True)


def test_pods_that_ask_nothing_are_not_judged() -> None:
    judged = Judged(NodeAffinity(), info("p"), [LABELLED])
    assert judged.state.skip_filter == {"NodeAffinity"}
    assert judged.scores() is None


# Score.


def prefers(*weighted: tuple[int, dict[str, Any]], **spec: Any) -> Any:
    preferred = [{"weight": weight, "preference": term} for weight, term in weighted]
    return info("p", affinity={"nodeAffinity": {PREFERRED: preferred}}, **spec)


FOO, KEY, AZ = expr("foo", "In", "bar"), expr("key", "In", "value"), expr("az", "In", "az1")
ONLY_FOO, ONLY_KEY = node("foo", labels={"foo": "bar"}), node("key", labels={"key": "value"})
EVERYTHING = node("all", labels={"foo": "bar", "key": "value", "az": "az1"})
NODES = [ONLY_FOO, EVERYTHING, ONLY_KEY]
THREE = ((2, FOO), (4, KEY), (5, both(FOO, KEY, AZ)))


@pytest.mark.parametrize(
    ("who", "want"),
    [
        (prefers(*THREE), {"foo": 18, "all": 100, "key": 36}),
        (prefers((2, expr("none", "Exists"))), {"foo": 0, "all": 0, "key": 0}),
        (prefers((7, {}), (7, FOO)), {"foo": 100, "all": 100, "key": 50}),
        (prefers((5, expr("key", "Gt", "ten")), (5, FOO)), {"foo": 100, "all": 100, "key": 0}),
        (prefers((3, field("In", "key"))), {"foo": 0, "all": 0, "key": 100}),
    ],
    ids=["three terms", "none matches", "an empty term matches all", "a broken term counts nothing", "by name"],
)
def test_score(who: Any, want: dict[str, int]) -> None:
    assert Judged(NodeAffinity(), who, NODES).scores() == want


def added(**affinity: Any) -> NodeAffinity:
    plugin = default_registry().build("NodeAffinity", {"addedAffinity": affinity}, handle())
    assert isinstance(plugin, NodeAffinity)
    return plugin


def test_what_the_profile_prefers_is_added() -> None:
    plugin = added(**{PREFERRED: [{"weight": 3, "preference": KEY}]})
    assert Judged(plugin, prefers((2, FOO)), NODES).scores() == {"foo": 40, "key": 60, "all": 100}
    assert Judged(plugin, info("p"), NODES).scores() == {"foo": 0, "key": 100, "all": 100}


def test_what_the_profile_requires_must_hold_as_well() -> None:
    plugin = added(**{REQUIRED: {"nodeSelectorTerms": [FOO]}})
    judged = Judged(plugin, terms(KEY), NODES)
    assert judged.codes() == {"foo": NEVER, "key": NEVER, "all": FITS}
    assert {name: status.message for name, status in judged.diagnosis.statuses().items()} == {
        "foo": "node(s) didn't match Pod's node affinity/selector",
        "key": "node(s) didn't match scheduler-enforced node affinity",
    }
    assert Judged(plugin, info("p"), NODES).codes() == {"foo": FITS, "key": NEVER, "all": FITS}


@pytest.mark.parametrize(
    ("affinity", "words"),
    [
        ({REQUIRED: {"nodeSelectorTerms": [expr("zone", "In")]}}, "zone: In needs values"),
        ({REQUIRED: {"nodeSelectorTerms": [{}]}}, "empty"),
        ({PREFERRED: [{"weight": 101, "preference": FOO}]}, "101 is not 1 to 100"),
        ({PREFERRED: [{"weight": 1, "preference": expr("size", "Gt", "ten")}]}, "Gt takes one whole number"),
        ({REQUIRED: {"nodeSelectorTerms": [expr("zone", "Like", "a")]}}, "Like"),
    ],
)
def test_added_affinity_that_makes_no_sense_is_refused(affinity: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        added(**affinity)


# Columns against the plain form.

KEYS = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["1", "2", "x"])
REQUIREMENT = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    st.lists(VALUES, max_size=2),
)
NAMED = st.builds(
    lambda operator, names: {"key": "metadata.name", "operator": operator, "values": names},
    st.sampled_from(["In", "NotIn"]),
    st.lists(st.sampled_from(["n0", "n1", "gone"]), min_size=1, max_size=2),
)
TERM = st.builds(
    lambda expressions, fields: {"matchExpressions": expressions, "matchFields": fields},
    st.lists(REQUIREMENT, max_size=2),
    st.lists(NAMED, max_size=1),
)
LABELS = st.dictionaries(KEYS, VALUES)


@given(
    required=st.none() | st.lists(TERM, max_size=3),
    preferred=st.lists(st.tuples(st.integers(1, 100), TERM), max_size=3),
    selector=LABELS,
    nodes=st.lists(LABELS, min_size=1, max_size=2 * FEW),
)
def test_all_nodes_at_once_and_each_alone_are_judged_alike(required, preferred, selector, nodes) -> None:
    body: dict[str, Any] = {PREFERRED: [{"weight": weight, "preference": term} for weight, term in preferred]}
    if required is not None:
        body[REQUIRED] = {"nodeSelectorTerms": required}
    asked = Wanted.of(msgspec.convert(body, NodeAffinityTerms), selector)
    snapshot = snapshot_of(framework(), [node(f"n{i}", labels=labels) for i, labels in enumerate(nodes)])
    judged = Judgements()
    alone = [asked.matches(one.node) for one in snapshot.nodes]
    assert matching(asked, snapshot, judged).tolist() == alone
    assert matching_rows(asked, snapshot, snapshot.all(), judged).tolist() == alone
    assert worth(asked, snapshot, judged).tolist() == [asked.worth(one.node) for one in snapshot.nodes]
    singles = [snapshot.single(one) for one in snapshot.nodes]
    assert [bool(matching(asked, single, judged)[0]) for single in singles] == alone


# Hints.


def on_node(action: Action) -> ClusterEvent:
    return ClusterEvent(events.NODE, action)


def test_wakes_only_when_a_node_becomes_matching() -> None:
    who, plugin, label = info("p", nodeSelector={"zone": "a"}), NodeAffinity(), on_node(Action.UPDATE_NODE_LABEL)
    assert hint(plugin, who, label, node("n"), LABELLED) is Hint.QUEUE
    assert hint(plugin, who, label, LABELLED, node("n", labels={"zone": "a", "more": "1"})) is Hint.SKIP
    assert hint(plugin, who, events.NODE_ADD, None, node("n")) is Hint.SKIP
    assert hint(plugin, who, events.NODE_ADD, None, LABELLED) is Hint.QUEUE
    assert hint(plugin, who, on_node(Action.UPDATE_NODE_TAINT), LABELLED, LABELLED) is Hint.SKIP


def test_a_node_wakes_only_when_it_has_what_the_profile_adds() -> None:
    plugin, label = added(**{REQUIRED: {"nodeSelectorTerms": [FOO]}}), on_node(Action.UPDATE_NODE_LABEL)
    who = info("p", nodeSelector={"key": "value"})
    assert hint(plugin, who, label, node("n"), ONLY_KEY) is Hint.SKIP
    assert hint(plugin, who, label, ONLY_KEY, EVERYTHING) is Hint.QUEUE
