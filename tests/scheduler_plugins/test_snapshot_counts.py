"""What a snapshot counts of pods and labels equals what a fresh one counts, however it came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Snapshot, Terms
from tests.scheduler_plugins.build import READER, node, pod

NODES = ("a", "b", "c", "d")
APPS = ("web", "db")
ZONES = ("", "north", "south")


@dataclass(frozen=True)
class App:
    app: str

    def matches(self, pod: PodInfo) -> bool:
        return pod.pod.metadata.labels.get("app") == self.app


TERMS = Terms("test/app", lambda pod: pod.pod.metadata.labels.values())


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


def _seen(snapshot: Snapshot) -> dict[str, Any]:
    ids, values = snapshot.label("zone")
    terms = snapshot.terms(TERMS)
    return {
        name: (
            values[ids[row]],
            [int(snapshot.pods_matching(App(app))[row]) for app in APPS],
            sorted((str(term), int(column[row])) for term, column in terms.items() if column[row]),
        )
        for name, row in snapshot.index.items()
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
    assert _seen(kept) == _seen(fresh)
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
