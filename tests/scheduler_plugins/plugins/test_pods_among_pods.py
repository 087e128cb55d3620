"""Spread, affinity to pods and the limit per domain against plain words: loops over nodes and pods, nothing kept.

The reference below reads the API's JSON itself and shares no code with the plugins.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins.domain_limit import DomainLimit, DomainLimitArgs
from scheduler_plugins.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from scheduler_plugins.plugins.pod_topology_spread import PodTopologySpread
from scheduler_plugins.plugins.spread_args import PodTopologySpreadArgs
from slacktide.cluster.kinds import NAMESPACES, Namespace
from tests.scheduler_plugins.build import READER, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, NEVER, Judged, Objects, handle_with

HOST = "kubernetes.io/hostname"
KEYS = ("zone", HOST)
SPACES = {"default": {"team": "a"}, "east": {"team": "b"}}

# What clusters are made of.

labels = st.fixed_dictionaries({}, optional={"app": st.sampled_from("wd"), "rev": st.sampled_from("12")})
expressions = st.one_of(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["app", "rev"]), "operator": st.sampled_from(["Exists", "DoesNotExist"])}
    ),
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["app", "rev"]),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(st.sampled_from("wd12"), min_size=1, max_size=2),
        }
    ),
)
selectors = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"matchLabels": labels, "matchExpressions": st.lists(expressions, max_size=1)}),
    st.fixed_dictionaries({"matchLabels": st.fixed_dictionaries({"app": st.sampled_from("wd")})}),
)
terms = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from(KEYS), "labelSelector": selectors},
    optional={
        "namespaces": st.lists(st.sampled_from(sorted(SPACES)), max_size=2),
        "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"team": "a"}}, {"matchLabels": {"team": "b"}}]),
    },
)
sides = st.fixed_dictionaries(
    {},
    optional={
        "requiredDuringSchedulingIgnoredDuringExecution": st.lists(terms, min_size=1, max_size=2),
        "preferredDuringSchedulingIgnoredDuringExecution": st.lists(
            st.fixed_dictionaries({"weight": st.integers(1, 100), "podAffinityTerm": terms}), min_size=1, max_size=2
        ),
    },
)
affinities = st.one_of(st.none(), st.fixed_dictionaries({}, optional={"podAffinity": sides, "podAntiAffinity": sides}))
constraints = st.fixed_dictionaries(
    {
        "topologyKey": st.sampled_from(KEYS),
        "maxSkew": st.integers(1, 2),
        "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
        "labelSelector": selectors,
    },
    optional={
        "minDomains": st.integers(1, 4),
        "matchLabelKeys": st.just(["rev"]),
        "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
        "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
    },
)
nodes = st.lists(
    st.fixed_dictionaries(
        {
            "zone": st.sampled_from([None, "n", "s"]),
            "host": st.booleans(),
            "disk": st.booleans(),
            "taint": st.sampled_from([False, False, True]),
        }
    ),
    min_size=1,
    max_size=5,
)
placed = st.lists(
    st.fixed_dictionaries(
        {
            "on": st.integers(0, 4),
            "labels": labels,
            "space": st.sampled_from(["default", "default", "east"]),
            "going": st.sampled_from([False, False, True]),
            "affinity": affinities,
        }
    ),
    max_size=8,
)
asking = st.fixed_dictionaries(
    {
        "labels": labels,
        "affinity": affinities,
        "spread": st.lists(constraints, max_size=3),
        "disk": st.booleans(),
        "limit": st.sampled_from([None, "1", "2"]),
        "tolerates": st.booleans(),
    }
)


def _node_labels(number: int, one: dict[str, Any]) -> dict[str, str]:
    zone = {"zone": one["zone"]} if one["zone"] else {}
    return zone | ({HOST: f"n{number}"} if one["host"] else {}) | ({"disk": "ssd"} if one["disk"] else {})


class World:
    """One cluster, for the plugins and for the reference."""

    def __init__(self, nodes: list[Any], placed: list[Any], asking: dict[str, Any]) -> None:
        self.nodes = {f"n{number}": one | {"labels": _node_labels(number, one)} for number, one in enumerate(nodes)}
        self.placed = [one | {"on": f"n{one['on'] % len(nodes)}", "name": f"q{i}"} for i, one in enumerate(placed)]
        self.asking = asking

    def judged(self, plugin: Any) -> Judged:
        taints = [{"key": "k", "effect": "NoSchedule"}]
        made = [
            node(name, labels=one["labels"], taints=taints if one["taint"] else []) for name, one in self.nodes.items()
        ]
        on: dict[str, list[Any]] = {name: [] for name in self.nodes}
        for one in self.placed:
            on[one["on"]].append(self.pod(one))
        return Judged(plugin, self.waiting(), made, on)

    @staticmethod
    def pod(one: dict[str, Any]) -> Any:
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if one["going"] else {}
        metadata = {"labels": one["labels"], "namespace": one["space"], **going}
        return pod(one["name"], metadata=metadata, affinity=one["affinity"])

    def waiting(self) -> Any:
        asking = self.asking
        stated = {"annotations": {"slacktide.io/max-per-domain": asking["limit"]}} if asking["limit"] else {}
        return READER.read(
            pod(
                "p",
                metadata={"labels": asking["labels"], **stated},
                affinity=asking["affinity"],
                topologySpreadConstraints=asking["spread"],
                nodeSelector={"disk": "ssd"} if asking["disk"] else {},
                tolerations=[{"operator": "Exists"}] if asking["tolerates"] else [],
            )
        )

    def without(self, name: str) -> World:
        other = World([], [], self.asking)
        other.nodes, other.placed = self.nodes, [one for one in self.placed if one["name"] != name]
        return other

    def with_pod(self, one: dict[str, Any]) -> World:
        other = World([], [], self.asking)
        other.nodes, other.placed = self.nodes, [*self.placed, one]
        return other


# The reference.


def selects(selector: dict[str, Any] | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for one in selector.get("matchExpressions", []):
        has = one["key"] in labels
        holds = {
            "Exists": has,
            "DoesNotExist": not has,
            "In": has and labels[one["key"]] in one.get("values", []),
            "NotIn": not has or labels[one["key"]] not in one.get("values", []),
        }[one["operator"]]
        if not holds:
            return False
    return True


def about(term: dict[str, Any], owners_space: str, labels: dict[str, str], space: str) -> bool:
    names, chosen = term.get("namespaces", []), term.get("namespaceSelector")
    if not names and chosen is None:
        names = [owners_space]
    return selects(term["labelSelector"], labels) and (space in names or selects(chosen, SPACES[space]))


def required(affinity: dict[str, Any] | None, side: str) -> list[Any]:
    return ((affinity or {}).get(side) or {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])


def preferred(affinity: dict[str, Any] | None, side: str) -> list[Any]:
    return ((affinity or {}).get(side) or {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])


def shares(world: World, one: str, other: str, key: str) -> bool:
    here, there = world.nodes[one]["labels"], world.nodes[other]["labels"]
    return key in here and here[key] == there.get(key)


def affinity_code(world: World, name: str) -> Code:
    own, mine = world.asking["affinity"], world.asking["labels"]
    wants = required(own, "podAffinity")
    wanted = [
        one for one in world.placed if wants and all(about(t, "default", one["labels"], one["space"]) for t in wants)
    ]
    if any(t["topologyKey"] not in world.nodes[name]["labels"] for t in wants):
        return NEVER
    if not all(any(shares(world, name, one["on"], t["topologyKey"]) for one in wanted) for t in wants):
        anywhere = any(t["topologyKey"] in world.nodes[one["on"]]["labels"] for t in wants for one in wanted)
        if anywhere or not all(about(t, "default", mine, "default") for t in wants):
            return NEVER
    for one in world.placed:
        for t in required(own, "podAntiAffinity"):
            if about(t, "default", one["labels"], one["space"]) and shares(world, name, one["on"], t["topologyKey"]):
                return LATER
        for t in required(one["affinity"], "podAntiAffinity"):
            if about(t, one["space"], mine, "default") and shares(world, name, one["on"], t["topologyKey"]):
                return LATER
    return FITS


def affinity_raw(world: World, name: str) -> int:
    mine, total = world.asking["labels"], 0
    for one in world.placed:
        for side, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
            for wish in preferred(world.asking["affinity"], side):
                t = wish["podAffinityTerm"]
                if about(t, "default", one["labels"], one["space"]) and shares(
                    world, name, one["on"], t["topologyKey"]
                ):
                    total += sign * wish["weight"]
            for wish in preferred(one["affinity"], side):
                t = wish["podAffinityTerm"]
                if about(t, one["space"], mine, "default") and shares(world, name, one["on"], t["topologyKey"]):
                    total += sign * wish["weight"]
        for t in required(one["affinity"], "podAffinity"):
            if about(t, one["space"], mine, "default") and shares(world, name, one["on"], t["topologyKey"]):
                total += 1
    return total


def affinity_scores(world: World) -> list[int]:
    raw = [affinity_raw(world, name) for name in world.nodes]
    low, high = min(raw), max(raw)
    return [int(100 * ((one - low) / (high - low))) if high > low else 0 for one in raw]


def spread_selects(world: World, rule: dict[str, Any], labels: dict[str, str]) -> bool:
    keys = [key for key in rule.get("matchLabelKeys", []) if key in world.asking["labels"]]
    return selects(rule["labelSelector"], labels) and all(labels.get(k) == world.asking["labels"][k] for k in keys)


def spread_counts(world: World, rule: dict[str, Any], on: str) -> int:
    narrowed = any(key in world.asking["labels"] for key in rule.get("matchLabelKeys", []))
    given = rule["labelSelector"]
    if given is not None and not any(given.values()) and not narrowed:
        return 0  # an empty selector counts nobody
    return sum(
        1
        for one in world.placed
        if one["on"] == on
        and one["space"] == "default"
        and not one["going"]
        and spread_selects(world, rule, one["labels"])
    )


def spread_node_counts(world: World, rule: dict[str, Any], name: str, rules: list[Any]) -> bool:
    one = world.nodes[name]
    if any(r["topologyKey"] not in one["labels"] for r in rules):
        return False
    if rule.get("nodeAffinityPolicy") != "Ignore" and world.asking["disk"] and not one["disk"]:
        return False
    return not (rule.get("nodeTaintsPolicy") == "Honor" and one["taint"] and not world.asking["tolerates"])


def spread_code(world: World, name: str) -> Code:
    rules = [r for r in world.asking["spread"] if r["whenUnsatisfiable"] == "DoNotSchedule"]
    for rule in rules:
        key = rule["topologyKey"]
        mine = world.nodes[name]["labels"].get(key)
        if mine is None:
            return NEVER
        domains: dict[str, int] = {}
        for other, one in world.nodes.items():
            if spread_node_counts(world, rule, other, rules):
                domains[one["labels"][key]] = domains.get(one["labels"][key], 0) + spread_counts(world, rule, other)
        least = 0 if len(domains) < rule.get("minDomains", 1) else min(domains.values())
        itself = spread_selects(world, rule, world.asking["labels"])
        if domains.get(mine, 0) + itself - least > rule["maxSkew"]:
            return LATER
    return FITS


def spread_scores(world: World) -> list[int] | None:
    rules = [r for r in world.asking["spread"] if r["whenUnsatisfiable"] == "ScheduleAnyway"]
    if not rules:
        return None
    rated = [n for n, one in world.nodes.items() if all(r["topologyKey"] in one["labels"] for r in rules)]
    raw = {}
    for name in rated:
        total = 0.0
        for rule in rules:
            key = rule["topologyKey"]
            if key == HOST:
                count, size = spread_counts(world, rule, name), len(rated)
            else:
                mine = world.nodes[name]["labels"][key]
                count = sum(
                    spread_counts(world, rule, other)
                    for other, one in world.nodes.items()
                    if spread_node_counts(world, rule, other, rules) and one["labels"][key] == mine
                )
                size = len({world.nodes[other]["labels"][key] for other in rated})
            total += count * math.log(size + 2) + (rule["maxSkew"] - 1)
        raw[name] = math.floor(total + 0.5)
    most, least = max(raw.values(), default=0), min(raw.values(), default=0)
    return [
        (100 if most == 0 else 100 * (most + least - raw[name]) // most) if name in raw else 0 for name in world.nodes
    ]


def limit_code(world: World, name: str) -> Code:
    limit, app, mine = world.asking["limit"], world.asking["labels"].get("app"), world.nodes[name]["labels"].get("zone")
    if limit is None:
        return FITS
    if app is None or mine is None:
        return NEVER
    alike = sum(
        1
        for one in world.placed
        if one["space"] == "default"
        and not one["going"]
        and one["labels"].get("app") == app
        and shares(world, name, one["on"], "zone")
    )
    return LATER if alike + 1 > int(limit) else FITS


# The plugins.


def _spaces() -> Objects:
    made = [msgspec.convert({"metadata": {"name": n, "labels": own}}, Namespace) for n, own in SPACES.items()]
    return Objects({NAMESPACES: made})


def spread() -> PodTopologySpread:
    return PodTopologySpread(PodTopologySpreadArgs(), handle_with(Objects()))


def affinity() -> InterPodAffinity:
    return InterPodAffinity(InterPodAffinityArgs(), handle_with(_spaces()))


def limit() -> DomainLimit:
    return DomainLimit(DomainLimitArgs(topology_key="zone", label_key="app"))


PLUGINS = ((spread, spread_code), (affinity, affinity_code), (limit, limit_code))


@settings(max_examples=100, deadline=None)
@given(nodes, placed, asking)
def test_every_node_is_judged_as_the_reference_judges_it(nodes, placed, asking):
    world = World(nodes, placed, asking)
    for make, code in PLUGINS:
        assert world.judged(make()).codes() == {name: code(world, name) for name in world.nodes}


@settings(max_examples=100, deadline=None)
@given(nodes, placed, asking)
def test_every_node_is_scored_as_the_reference_scores_it(nodes, placed, asking):
    world = World(nodes, placed, asking)
    scores = world.judged(spread()).scores()
    assert (None if scores is None else list(scores.values())) == spread_scores(world)
    scores = world.judged(affinity()).scores()
    assert list((scores or dict.fromkeys(world.nodes, 0)).values()) == affinity_scores(world)


@settings(max_examples=80, deadline=None)
@given(nodes, placed, asking, st.data())
def test_what_if_answers_as_a_cluster_that_is_so(nodes, placed, asking, data):
    """A pod that leaves, and one that comes: the verdict on every node is that of the changed cluster."""
    world = World(nodes, placed, asking)
    for make, code in PLUGINS:
        judged = world.judged(make())
        if judged.plugin.name in judged.state.skip_filter or not judged.before.status.ok:
            continue  # the plugin takes no part in what-if questions of this cycle
        if world.placed:
            gone = data.draw(st.sampled_from(world.placed))
            changed = world.without(gone["name"])
            for name in world.nodes:
                assert judged.after(gone["on"], [f"uid-{gone['name']}"], (), judged=name) is code(changed, name)
        if placed:
            come = data.draw(st.sampled_from(world.placed)) | {
                "name": "new",
                "on": data.draw(st.sampled_from([*world.nodes])),
            }
            changed = world.with_pod(come)
            for name in world.nodes:
                made = READER.read(world.pod(come))
                assert judged.after(come["on"], (), [made], judged=name) is code(changed, name)
