"""What a snapshot counts of pods and labels equals what a fresh one counts, however it came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import _MOST_LABELS, Snapshot, Terms
from tests.scheduler_plugins.build import READER, node, pod

NODES = ("a", "b", "c", "d")
APPS = ("web", "db")
ZONES = ("", "north", "south")


@dataclass(frozen=True)
class App:
    app: str

    @property
    def pairs(self):
        return (("app", self.app),)

    def matches(self, pod: PodInfo) -> bool:
        return pod.pod.metadata.labels.get("app") == self.app


@dataclass(frozen=True)
class Anything:
    """Selects by nothing that can be found by a label."""

    pairs = ()

    def matches(self, pod: PodInfo) -> bool:
        return True


TERMS = Terms("test/app", lambda pod: pod.pod.metadata.labels.values())
BY_LABEL = Terms("test/by label", lambda pod: pod.pod.metadata.labels.values(), lambda app: (("app", app),))


def _labels(zone: str) -> dict[str, str]:
    return {"zone": zone} if zone else {}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from(ZONES)),
        st.tuples(st.just("no node"), st.sampled_from(NODES)),
        st.tuples(st.just("pod"), st.integers(0, 5), st.sampled_from(NODES), st.sampled_from(APPS)),
        st.tuples(st.just("no pod"), st.integers(0, 5)),
        st.tuples(st.just("refresh")),
    ),
    max_size=40,
)


def _apply(cache: Cache, step: tuple[Any, ...], nodes: set[str], pods: dict[int, str]) -> None:
    match step:
        case ("node", name, zone):
            cache.set_node(node(name, labels=_labels(zone)))
            nodes.add(name)
        case ("no node", name) if name in nodes:
            cache.remove_node(name)
            nodes.discard(name)
        case ("pod", number, name, app):
            made = READER.read(pod(f"p{number}", metadata={"labels": {"app": app}}, nodeName=pods.get(number, name)))
            (cache.update_pod if number in pods else cache.add_pod)(made)
            pods.setdefault(number, name)
        case ("no pod", number) if number in pods:
            cache.remove_pod(f"uid-p{number}")
            del pods[number]


def _terms(snapshot: Snapshot, terms: Terms, app: str) -> dict[str, list[tuple[str, int]]]:
    """Terms that may be about a pod of an app, by node."""
    found: dict[str, list[tuple[str, int]]] = {}
    for term, rows, counts in snapshot.terms_about(terms, READER.read(pod("asker", metadata={"labels": {"app": app}}))):
        for row, count in zip(rows, counts, strict=True):
            found.setdefault(snapshot.names[row], []).append((term, int(count)))
    return {name: sorted(counted) for name, counted in found.items()}


def _seen(snapshot: Snapshot) -> dict[str, Any]:
    ids, values = snapshot.label("zone")
    terms, web = _terms(snapshot, TERMS, "web"), _terms(snapshot, BY_LABEL, "web")
    return {
        name: (
            values[ids[row]],
            [int(snapshot.pods_matching(matcher)[row]) for matcher in (App("web"), App("db"), Anything())],
            terms.get(name),
            web.get(name),
        )
        for name, row in snapshot.index.items()
    }


def _counted(snapshot: Snapshot) -> dict[str, Any]:
    """The same, counted pod by pod."""
    apps = {node.name: [pod.pod.metadata.labels["app"] for pod in node.pods.values()] for node in snapshot.nodes}
    return {
        node.name: (
            node.labels.get("zone"),
            [apps[node.name].count("web"), apps[node.name].count("db"), len(node.pods)],
            sorted((app, apps[node.name].count(app)) for app in set(apps[node.name])) or None,
            [("web", apps[node.name].count("web"))] if "web" in apps[node.name] else None,
        )
        for node in snapshot.nodes
    }


@given(steps)
def test_counts_follow_the_pods(history):
    cache, kept, nodes, pods = Cache(), Snapshot(), set(), {}
    _seen(kept)
    for step in history:
        _apply(cache, step, nodes, pods)
        if step == ("refresh",):
            cache.refresh(kept)
    cache.refresh(kept)
    fresh = Snapshot()
    for one in kept.nodes:
        fresh.put(one)
    assert _seen(kept) == _seen(fresh) == _counted(fresh)
    assert set(kept.index) == nodes


def test_a_snapshot_of_one_changed_node_numbers_labels_alike():
    cache = Cache()
    for name, zone in (("a", "north"), ("b", "south"), ("c", "")):
        cache.set_node(node(name, labels=_labels(zone)))
    whole = Snapshot()
    cache.refresh(whole)
    ids, values = whole.label("zone")
    changed = whole.nodes[whole.index["b"]].clone()
    changed.add_pod(READER.read(pod("p", metadata={"labels": {"app": "web"}})))
    one = whole.single(changed)
    ones, same = one.label("zone")
    assert (ones[0], same is values) == (ids[whole.index["b"]], True)
    assert (list(one.pods_matching(App("web"))), list(whole.pods_matching(App("web")))) == ([1], [0, 0, 0])
    assert np.array_equal(one.column("pod_count"), [1])


def test_labels_that_nobody_asks_for_are_forgotten_between_cycles_and_read_anew():
    """Pods may name any label: what is kept is bounded, and numbers hold for a cycle whatever is asked in it."""
    cache = Cache()
    for number in range(5):
        cache.set_node(node(f"n{number}", labels={"zone": f"z{number % 2}", "rack": f"r{number}"}))
    snapshot = Snapshot()
    cache.refresh(snapshot)
    zones, values = snapshot.label("zone")
    for number in range(10 * _MOST_LABELS):
        ids, known = snapshot.label(f"key-{number}")
        assert known == [None]
        assert not ids.any()
    assert snapshot.label("zone")[1] is values
    assert snapshot.label("zone")[0].tolist() == zones.tolist()
    snapshot.label("rack")
    cache.refresh(snapshot)
    assert len(snapshot._labels) == len(snapshot._label_values) == _MOST_LABELS
    cache.set_node(node("n0", labels={"zone": "new"}))
    cache.refresh(snapshot)
    for key in ("zone", "rack", "key-0"):
        ids, known = snapshot.label(key)
        assert [known[number] for number in ids] == [one.labels.get(key) for one in snapshot.nodes]
