"""InterPodAffinity: the stock scheduler's tables (kube-scheduling.md 3, 8.3, 8.5), what-if questions and events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.plugins.affinity_terms import terms_of
from scheduler_plugins.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from slacktide.cluster.kinds import NAMESPACES, Namespace
from tests.scheduler_plugins.build import READER, info, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, NEVER, Judged, Objects, alike, handle_with, hint


def namespace(name: str, **labels: str) -> Namespace:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace)


SPACES = Objects({NAMESPACES: [namespace("default", team="a"), namespace("east", team="b"), namespace("west")]})


def plugin(objects: Objects = SPACES, **args: Any) -> InterPodAffinity:
    return InterPodAffinity(msgspec.convert(args, InterPodAffinityArgs), handle_with(objects))


def term(selector: Any, key: str = "zone", **more: Any) -> dict[str, Any]:
    if isinstance(selector, str):
        selector = {"matchLabels": {"app": selector}}
    return {"topologyKey": key, "labelSelector": selector, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def _preferred(terms: tuple[Any, ...]) -> dict[str, Any]:
    weighted = [{"weight": weight, "podAffinityTerm": one} for weight, one in terms]
    return {"preferredDuringSchedulingIgnoredDuringExecution": weighted}


def rather_near(*terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    return {"podAffinity": _preferred(terms)}


def rather_apart(*terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    return {"podAntiAffinity": _preferred(terms)}


def app(name: str, of: str = "", namespace: str = "default", **spec: Any) -> Any:
    metadata = {"labels": {"app": of or name}, "namespace": namespace, **spec.pop("metadata", {})}
    return pod(name, metadata=metadata, **spec)


def waiting(of: str = "web", affinity: dict[str, Any] | None = None, **spec: Any) -> Any:
    return READER.read(app("p", of, affinity=affinity, **spec))


ZONES = [
    node("a1", labels={"zone": "a", "host": "a1"}),
    node("a2", labels={"zone": "a", "host": "a2"}),
    node("b1", labels={"zone": "b", "host": "b1"}),
    node("none"),
]


def codes(who: Any, placed: dict[str, list[Any]], nodes: Any = ZONES, **args: Any) -> list[Any]:
    return list(Judged(plugin(**args), who, nodes, placed).codes().values())


# Required anti-affinity of placed pods.


@pytest.mark.parametrize(
    ("rule", "closed"),
    [
        (term("web"), "a1 a2"),
        (term("web", "host"), "a1"),
        (term("web", "absent"), ""),
        (term(None), ""),
        (term({}), "a1 a2"),
        (term("db"), ""),
        (term({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}), "a1 a2"),
        (term({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), ""),
        (term({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}), "a1 a2"),
        (term({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), "a1 a2"),
        (term("web", namespaces=["east"]), ""),
        (term("web", namespaces=["default"]), "a1 a2"),
        (term("web", namespaceSelector={}), "a1 a2"),
        (term("web", namespaceSelector={"matchLabels": {"team": "a"}}), "a1 a2"),
        (term("web", namespaceSelector={"matchLabels": {"team": "b"}}), ""),
        (term("web", namespaceSelector={"matchLabels": {"team": "b"}}, namespaces=["default"]), "a1 a2"),
    ],
)
def test_domains_closed_by_a_placed_pod(rule: dict[str, Any], closed: str) -> None:
    owner = app("owner", affinity=apart(rule))
    want = [LATER if one.metadata.name in closed.split() else FITS for one in ZONES]
    assert codes(waiting(), {"a1": [owner]}) == want


def test_a_term_without_namespaces_is_about_its_owners_namespace() -> None:
    owner = app("owner", namespace="east", affinity=apart(term("web")))
    assert codes(waiting(), {"a1": [owner]}) == [FITS] * 4
    stranger = READER.read(app("p", "web", "east"))
    assert codes(stranger, {"a1": [owner]}) == [LATER, LATER, FITS, FITS]


# The pod's own required terms.

DB = {"a1": [app("db")]}
FILTER = {
    "affinity met in the zone": (near(term("db")), DB, [FITS, FITS, NEVER, NEVER]),
    "affinity met on the host": (near(term("db", "host")), DB, [FITS, NEVER, NEVER, NEVER]),
    "affinity met nowhere": (near(term("cache")), DB, [NEVER] * 4),
    "affinity to a missing selector": (near(term(None)), DB, [NEVER] * 4),
    "two terms, one pod meets both": (near(term("db"), term("db", "host")), DB, [FITS, NEVER, NEVER, NEVER]),
    "two terms, no pod meets both": (
        near(term("db"), term("cache")),
        {"a1": [app("db"), app("cache")]},
        [NEVER] * 4,
    ),
    "first pod of its kind": (near(term("web")), DB, [FITS, FITS, FITS, NEVER]),
    "first pod of its kind, two keys": (near(term("web"), term("web", "host")), DB, [FITS, FITS, FITS, NEVER]),
    "not the first of its kind": (near(term("web")), {"b1": [app("web")]}, [NEVER, NEVER, FITS, NEVER]),
    "its kind only where the key is missing": (near(term("web")), {"none": [app("web")]}, [FITS, FITS, FITS, NEVER]),
    "its kind in another namespace only": (
        near(term("web")),
        {"b1": [app("web", namespace="east")]},
        [FITS, FITS, FITS, NEVER],
    ),
    "affinity by namespace selector": (
        near(term("db", namespaceSelector={"matchLabels": {"team": "b"}})),
        {"a1": [app("db")], "b1": [app("db2", "db", "east")]},
        [NEVER, NEVER, FITS, NEVER],
    ),
    "affinity by namespace selector and names": (
        near(term("db", namespaceSelector={"matchLabels": {"team": "b"}}, namespaces=["default"])),
        {"a1": [app("db")], "b1": [app("db2", "db", "east")]},
        [FITS, FITS, FITS, NEVER],
    ),
    "affinity to all namespaces": (
        near(term("db", namespaceSelector={})),
        {"b1": [app("db", namespace="west")]},
        [NEVER, NEVER, FITS, NEVER],
    ),
    "terminating pods count": (
        near(term("db")),
        {"a1": [app("db", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})]},
        [FITS, FITS, NEVER, NEVER],
    ),
    "anti-affinity in the zone": (apart(term("db")), DB, [LATER, LATER, FITS, FITS]),
    "anti-affinity on the host": (apart(term("db", "host")), DB, [LATER, FITS, FITS, FITS]),
    "anti-affinity, either term": (
        apart(term("db", "host"), term("cache", "host")),
        DB | {"b1": [app("cache")]},
        [LATER, FITS, LATER, FITS],
    ),
    "affinity and anti-affinity": (
        near(term("db")) | apart(term("db", "host")),
        DB,
        [LATER, FITS, NEVER, NEVER],
    ),
    "contradiction": (near(term("db", "host")) | apart(term("db", "host")), DB, [LATER, NEVER, NEVER, NEVER]),
    "unmet affinity goes before anti-affinity": (
        near(term("cache")) | apart(term("db", "host")),
        DB,
        [NEVER, NEVER, NEVER, NEVER],
    ),
    "matchLabelKeys": (
        near(term("db", matchLabelKeys=["app"])) | apart(term({}, "host", mismatchLabelKeys=["app"])),
        DB,
        [NEVER] * 4,
    ),
}


@pytest.mark.parametrize("case", FILTER)
def test_filter(case: str) -> None:
    affinity, placed, want = FILTER[case]
    assert codes(waiting(affinity=affinity), placed) == want


def test_nobody_asked_nobody_minds() -> None:
    judged = Judged(plugin(), waiting(), ZONES, DB)
    assert "InterPodAffinity" in judged.state.skip_filter
    assert judged.scores() is None
    assert "InterPodAffinity" in judged.state.skip_score


def test_a_refusal_says_which_domain() -> None:
    owners = {name: [app(f"o-{name}", affinity=apart(term("web", "host")))] for name in ("a1", "a2")}
    db = {"a1": [*owners["a1"], app("db")]}
    judged = Judged(plugin(), waiting(affinity=near(term("db"))), ZONES[:3], owners | db)
    assert judged.message() == (
        "0/3 nodes are available: 1 node(s) didn't match pod affinity rules (zone=b has none),"
        " 2 node(s) didn't satisfy existing pods anti-affinity rules (nearest a2: host=a2 has 1)."
    )


def test_malformed_affinity_refuses_its_own_pod_only() -> None:
    broken = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": 7}]}}
    judged = Judged(plugin(), waiting(affinity=broken), ZONES)
    assert set(judged.codes().values()) == {NEVER}
    assert "the pod's pod affinity cannot be read" in judged.message()
    assert codes(waiting(), {"a1": [app("owner", affinity=broken)]}) == [FITS] * 4


# What-if questions.


def test_the_owner_of_an_anti_affinity_gone_opens_the_domain() -> None:
    """Preemption dry run of 8.5: the owner of the anti-affinity is removed."""
    owner = app("owner", affinity=apart(term("web")))
    judged = Judged(plugin(), waiting(), ZONES, {"a1": [owner, app("db")]})
    assert judged.without("a1", "uid-owner") is FITS
    assert judged.without("a1", "uid-db") is LATER


def test_what_comes_and_goes_counts_for_every_rule() -> None:
    judged = Judged(plugin(), waiting(affinity=near(term("db")) | apart(term("cache", "host"))), ZONES, DB)
    cache, db = READER.read(app("cache")), READER.read(app("db2", "db"))
    minding = READER.read(app("owner", affinity=apart(term("web", "host"))))
    assert judged.without("a1", "uid-db") is NEVER
    assert judged.after("a1", ["uid-db"], [db], judged="a2") is FITS
    assert judged.after("a1", (), [cache], judged="a1") is LATER
    assert judged.after("a1", (), [cache], judged="a2") is FITS
    assert judged.after("a1", (), [minding], judged="a1") is LATER
    assert judged.after("b1", (), [db], judged="b1") is FITS
    assert judged.codes()["b1"] is NEVER


# Score.

REGIONS = [
    node("n1", labels={"region": "china"}),
    node("n2", labels={"region": "india"}),
    node("n3", labels={"az": "az1"}),
]
THREE = {"n1": [app("s1")], "n2": [app("s2")], "n3": [app("s3", "s1")]}
S1 = term("s1", "region")
ANY = term({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "region")
NOT_S1 = term({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["s1"]}]}, "region")
SHARED = [node("n1", labels={"region": "china"}), node("n2", labels={"region": "china", "az": "az1"}), REGIONS[1]]
FIVE = [
    node(f"n{i}", labels={"region": region}) for i, region in enumerate(("china", "india", "china", "china", "india"))
]
SCORE = {
    "affinity to pods on node1 and node3": (waiting(affinity=rather_near((5, S1))), REGIONS, THREE, [100, 0, 0]),
    "same region shares the score": (
        waiting(affinity=rather_near((5, S1))),
        [SHARED[0], SHARED[1], node("n3", labels={"region": "india"})],
        {"n1": [app("s1")]},
        [100, 100, 0],
    ),
    "region sums 4 vs 2": (
        waiting(affinity=rather_near((1, term("s2", "region")))),
        FIVE,
        {f"n{i}": [app(f"s{i}{k}", "s2") for k in range(count)] for i, count in enumerate((2, 1, 1, 1, 1))},
        [100, 0, 100, 100, 0],
    ),
    "mixed terms": (waiting(affinity=rather_near((8, NOT_S1), (2, ANY))), REGIONS, THREE, [20, 100, 0]),
    "preferred by placed pods": (
        waiting("s2"),
        REGIONS,
        {
            "n1": [app("o1", "s1", affinity=rather_near((5, S1)))],
            "n2": [app("o2", "s2", affinity=rather_near((5, term("s2", "region"))))],
        },
        [0, 100, 0],
    ),
    "required by two placed pods": (
        waiting("s1"),
        REGIONS,
        {"n1": [app("o1", affinity=near(S1))], "n2": [app("o2", affinity=near(S1))]},
        [100, 100, 0],
    ),
    "preferred anti-affinity": (
        waiting(affinity=rather_apart((5, term("s1", "az")))),
        [node("n1", labels={"az": "az1"}), node("n2", labels={"region": "china"})],
        {"n1": [app("s1")], "n2": [app("s2")]},
        [0, 100],
    ),
    "placed pod would rather be apart": (
        waiting("s1"),
        REGIONS[:2],
        {"n1": [app("o1", affinity=rather_apart((5, S1)))]},
        [0, 100],
    ),
    "all alike": (waiting(affinity=rather_near((5, S1))), SHARED[:2], {"n1": [app("s1")]}, [0, 0]),
    "for and against": (
        waiting(affinity=rather_near((5, S1)) | rather_apart((3, term("s2", "region")))),
        REGIONS,
        THREE,
        [100, 0, 37],
    ),
}


@pytest.mark.parametrize("case", SCORE)
def test_score(case: str) -> None:
    who, nodes, placed, want = SCORE[case]
    assert list((Judged(plugin(), who, nodes, placed).scores() or {}).values()) == want


def test_weight_of_required_affinity_and_preferences_of_others_can_be_turned_off() -> None:
    placed = {
        "n1": [app("o1", affinity=near(S1))],
        "n2": [app("o2", affinity=rather_near((3, S1)))],
    }
    assert Judged(plugin(), waiting("s1"), REGIONS, placed).scores() == {"n1": 33, "n2": 100, "n3": 0}
    heavy = plugin(hardPodAffinityWeight=6)
    assert Judged(heavy, waiting("s1"), REGIONS, placed).scores() == {"n1": 100, "n2": 50, "n3": 0}
    none = plugin(hardPodAffinityWeight=0)
    assert Judged(none, waiting("s1"), REGIONS, placed).scores() == {"n1": 0, "n2": 100, "n3": 0}
    assert Judged(plugin(ignorePreferredTermsOfExistingPods=True), waiting("s1"), REGIONS, placed).scores() is None
    with_own = waiting("s1", rather_near((1, term("o1", "region"))))
    ignoring = plugin(ignorePreferredTermsOfExistingPods=True)
    assert Judged(ignoring, with_own, REGIONS, placed).scores() == {"n1": 66, "n2": 100, "n3": 0}


@pytest.mark.parametrize("args", [{"hardPodAffinityWeight": -1}, {"hardPodAffinityWeight": 101}, {"weight": 1}])
def test_arguments_of_another_shape(args: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        plugin(**args)


# Events.

ADDED, GONE = events.ASSIGNED_POD_ADD, events.ASSIGNED_POD_DELETE
LABELS = ClusterEvent(events.ASSIGNED_POD, Action.UPDATE_POD_LABEL)
OWN_LABELS = ClusterEvent(events.UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL)
NODE_LABEL = ClusterEvent(events.NODE, Action.UPDATE_NODE_LABEL)
WANTS, AVOIDS, PLAIN = waiting(affinity=near(term("db"))), waiting(affinity=apart(term("db"))), waiting()
QUEUE, SKIP = Hint.QUEUE, Hint.SKIP


def placed(of: str, **spec: Any) -> Any:
    return READER.read(app("other", of, nodeName="a1", **spec))


MINDING = placed("x", affinity=apart(term("web")))
HINTS = {
    "wanted pod placed": (WANTS, ADDED, None, placed("db"), QUEUE),
    "other pod placed": (WANTS, ADDED, None, placed("x"), SKIP),
    "wanted pod still waits": (
        WANTS,
        events.POD_ADD,
        None,
        info("other", metadata={"labels": {"app": "db"}}),
        None,
    ),
    "placed pod becomes wanted": (WANTS, LABELS, placed("x"), placed("db"), QUEUE),
    "placed pod stays wanted": (
        WANTS,
        LABELS,
        placed("db"),
        placed("db", metadata={"labels": {"app": "db", "x": ""}}),
        SKIP,
    ),
    "wanted pod gone": (WANTS, GONE, placed("db"), None, SKIP),
    "last of its kind gone": (waiting(affinity=near(term("web"))), GONE, placed("web"), None, QUEUE),
    "avoided pod gone": (AVOIDS, GONE, placed("db"), None, QUEUE),
    "avoided pod placed": (AVOIDS, ADDED, None, placed("db"), SKIP),
    "avoided pod is so no more": (AVOIDS, LABELS, placed("db"), placed("x"), QUEUE),
    "other pod gone": (AVOIDS, GONE, placed("x"), None, SKIP),
    "minding pod gone": (PLAIN, GONE, MINDING, None, QUEUE),
    "minding pod of others gone": (waiting("db"), GONE, MINDING, None, SKIP),
    "own label": (PLAIN, OWN_LABELS, PLAIN, waiting("db"), QUEUE),
    "label of another that waits": (AVOIDS, OWN_LABELS, info("x", metadata={"labels": {"app": "db"}}), info("x"), SKIP),
    "node with the key added": (WANTS, events.NODE_ADD, None, ZONES[0], QUEUE),
    "node without the key added": (WANTS, events.NODE_ADD, None, ZONES[3], SKIP),
    "node without the key for an avoider": (AVOIDS, events.NODE_ADD, None, ZONES[3], QUEUE),
    "key appears": (WANTS, NODE_LABEL, ZONES[3], ZONES[0], QUEUE),
    "key disappears": (WANTS, NODE_LABEL, ZONES[0], ZONES[3], SKIP),
    "key disappears for an avoider": (AVOIDS, NODE_LABEL, ZONES[0], ZONES[3], QUEUE),
    "other label changes": (WANTS, NODE_LABEL, ZONES[0], ZONES[1], SKIP),
}


@pytest.mark.parametrize("case", HINTS)
def test_events(case: str) -> None:
    who, event, old, new, want = HINTS[case]
    assert hint(plugin(), who, event, old, new) is want


def test_a_label_that_a_minding_pod_goes_by_wakes() -> None:
    """The pod has no terms of its own; which keys count is known from the pods that refused it."""
    minds = plugin()
    assert hint(minds, PLAIN, NODE_LABEL, ZONES[0], ZONES[1]) is SKIP
    owner = app("owner", affinity=apart(term("web", "host")))
    assert Judged(minds, PLAIN, ZONES, {"a1": [owner]}).codes()["a1"] is LATER
    assert hint(minds, PLAIN, NODE_LABEL, ZONES[0], ZONES[1]) is QUEUE


def test_terms_of_a_template_are_kept_once_and_those_by_own_labels_are_not_mixed_up() -> None:
    one, other = (READER.read(app(name, "web", affinity=apart(term("db")))) for name in ("p1", "p2"))
    assert terms_of(one) is terms_of(other)
    elsewhere = READER.read(app("p3", "web", "east", affinity=apart(term("db"))))
    assert terms_of(elsewhere) != terms_of(one)
    by_label = apart(term({}, matchLabelKeys=["app"]))
    web, api = (READER.read(app(name, affinity=by_label)) for name in ("web", "api"))
    assert [terms_of(who).anti_affinity[0].selector.pairs for who in (web, api)] == [
        (("app", "web"),),
        (("app", "api"),),
    ]


def test_namespaces_are_looked_at_anew_when_they_change() -> None:
    objects = Objects({NAMESPACES: [namespace("default"), namespace("east", team="b")]})
    wants = waiting(affinity=near(term("db", namespaceSelector={"matchLabels": {"team": "b"}})))
    placed, minds = {"b1": [app("db2", "db", "west")]}, plugin(objects)
    assert Judged(minds, wants, ZONES, placed).codes()["b1"] is NEVER
    objects.put(NAMESPACES, [namespace("default"), namespace("west", team="b")])
    assert Judged(minds, wants, ZONES, placed).codes()["b1"] is FITS


def test_waiting_pods_of_a_template_are_asked_once() -> None:
    one, other = (READER.read(app(name, "web", affinity=near(term("db")))) for name in ("p1", "p2"))
    for event in (ADDED, GONE, LABELS, NODE_LABEL):
        assert alike(plugin(), event, one, other)
        assert not alike(plugin(), event, one, AVOIDS)
    assert not alike(plugin(), GONE, PLAIN, waiting("db"))
