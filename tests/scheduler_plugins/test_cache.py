"""Cache and snapshot: the cache rows of the scheduler's tables; a snapshot equals a rebuild whatever happened."""

from __future__ import annotations

import contextlib
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework.cache import Cache, CacheError
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.snapshot import Column, Interned, Snapshot
from slacktide.names import BATCH_CPU
from tests.scheduler_plugins.build import GI, READER, info, node, pod


def placed(name: str, on: str, cpu: str = "1", **spec):
    return info(name, {"cpu": cpu}, nodeName=on, **spec)


def cpu_on(cache: Cache, name: str) -> int:
    snapshot = Snapshot()
    cache.set_node(node(name))
    cache.refresh(snapshot)
    return int(snapshot.requested("cpu")[snapshot.index[name]])


def test_added_pod_confirms_the_assumed_one_and_replaces_it() -> None:
    cache = Cache()
    cache.assume(info("p", {"cpu": "1"}), "a")
    assert cache.is_assumed("uid-p")
    confirmed = placed("p", "a", "2")
    assert cache.add_pod(confirmed) == ""
    assert not cache.is_assumed("uid-p")
    assert cache.get("uid-p") is confirmed
    assert cpu_on(cache, "a") == 2000


def test_pod_assumed_on_one_node_and_bound_to_another_is_charged_once() -> None:
    cache = Cache()
    cache.assume(info("p", {"cpu": "1"}), "a")
    assert cache.add_pod(placed("p", "b")) == "a"
    assert (cpu_on(cache, "a"), cpu_on(cache, "b")) == (0, 1000)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda c: (c.add_pod(placed("p", "a")), c.add_pod(placed("p", "a"))),
        lambda c: c.update_pod(placed("p", "a")),
        lambda c: (c.assume(info("p"), "a"), c.update_pod(placed("p", "a"))),
        lambda c: c.get("uid-p"),
        lambda c: (c.add_pod(placed("p", "a")), c.remove_pod("uid-p"), c.remove_pod("uid-p")),
        lambda c: (c.assume(info("p"), "a"), c.assume(info("p"), "b")),
        lambda c: c.remove_node("a"),
    ],
    ids=["second add", "update unknown", "update assumed", "get unknown", "second remove", "second assume", "no node"],
)
def test_mistakes_are_errors(mistake) -> None:
    with pytest.raises(CacheError):
        mistake(Cache())


def test_remove_works_for_assumed_and_bound_pods_and_for_pods_whose_node_never_came() -> None:
    cache = Cache()
    cache.assume(info("assumed", {"cpu": "1"}), "a")
    cache.add_pod(placed("bound", "nowhere"))
    cache.remove_pod("uid-assumed")
    cache.remove_pod("uid-bound")
    assert cache.size().pods == 0
    assert "uid-bound" not in cache


def test_forget_twice_and_forget_of_a_confirmed_pod_change_nothing() -> None:
    cache = Cache()
    cache.assume(info("p", {"cpu": "1"}), "a")
    gone = cache.forget("uid-p")
    assert gone is not None
    assert gone.pod.spec.node_name == "a"
    assert cache.forget("uid-p") is None
    cache.add_pod(placed("p", "a"))
    assert cache.forget("uid-p") is None
    assert cpu_on(cache, "a") == 1000


def test_ephemeral_only_pod_counts_for_scoring_but_not_as_requested() -> None:
    cache = Cache()
    cache.add_pod(info("p", {"ephemeral-storage": "5"}, nodeName="a"))
    cache.set_node(node("a"))
    snapshot = Snapshot()
    cache.refresh(snapshot)
    assert (snapshot.requested("cpu")[0], snapshot.requested("memory")[0]) == (0, 0)
    assert snapshot.column("nonzero_cpu_millis")[0] == 100
    assert snapshot.column("nonzero_memory_bytes")[0] == 200 << 20


def test_explicit_zero_stays_zero() -> None:
    assert info("p", {"cpu": "0", "memory": "0"}).nonzero_cpu_millis == 0


def test_update_there_and_back_restores_sums_and_ports() -> None:
    cache = Cache()
    port = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": 80}]}]}
    first, second = info("p", nodeName="a", **port), placed("p", "a", "3")
    cache.add_pod(first)
    before = cache._nodes["a"].clone()
    cache.update_pod(second)
    assert cache._nodes["a"].ports == {}
    cache.update_pod(first)
    after = cache._nodes["a"]
    assert (after.requested, after.ports, after.nonzero_memory_bytes) == (
        before.requested,
        before.ports,
        before.nonzero_memory_bytes,
    )


def test_most_recently_touched_node_is_first() -> None:
    cache = Cache()
    for name in ("a", "b", "c"):
        cache.set_node(node(name))
    cache.add_pod(placed("p", "b"))
    assert cache.changed_since(0) == ["b", "c", "a"]
    assert cache.changed_since(3) == ["b"]


def test_pods_may_come_before_their_node_and_stay_after_it() -> None:
    cache, snapshot = Cache(), Snapshot()
    cache.add_pod(placed("p", "a"))
    cache.refresh(snapshot)
    assert len(snapshot) == 0
    cache.set_node(node("a"))
    cache.refresh(snapshot)
    assert snapshot.requested("cpu").tolist() == [1000]
    cache.remove_node("a")
    cache.refresh(snapshot)
    assert len(snapshot) == 0
    cache.set_node(node("a"))
    cache.refresh(snapshot)
    assert snapshot.requested("cpu").tolist() == [1000]
    cache.remove_node("a")
    cache.remove_pod("uid-p")
    assert cache.size() == type(cache.size())(nodes=0, pods=0, assumed_pods=0)


def test_every_snapshot_is_told_of_a_node_that_went_away() -> None:
    """Profiles have a snapshot each: one that is refreshed later must not go on placing pods on a node that is gone."""
    cache, first, second = Cache(), Snapshot(), Snapshot()
    for name in ("a", "b"):
        cache.set_node(node(name))
    cache.refresh(first)
    cache.refresh(second)
    cache.remove_node("a")
    cache.refresh(first)
    assert (sorted(first.index), sorted(second.index)) == (["b"], ["a", "b"])
    cache.refresh(second)
    assert list(second.index) == ["b"]
    assert cache.changed_since(0) == ["b"]
    assert (cache.refresh(first), cache.refresh(second)) == (0, 0)


def test_a_node_that_returns_before_a_snapshot_looked_is_simply_changed() -> None:
    cache, first, second = Cache(), Snapshot(), Snapshot()
    cache.set_node(node("a"))
    cache.refresh(first)
    cache.refresh(second)
    cache.remove_node("a")
    cache.refresh(first)
    cache.set_node(node("a", {"cpu": "2"}))
    for snapshot in (first, second):
        cache.refresh(snapshot)
        assert (list(snapshot.index), snapshot.allocatable("cpu").tolist()) == (["a"], [2000])


def test_names_of_gone_nodes_are_not_kept_for_ever() -> None:
    cache, snapshot = Cache(), Snapshot()
    for i in range(100):
        cache.set_node(node(f"n{i}"))
        cache.refresh(snapshot)
        cache.remove_node(f"n{i}")
    cache.refresh(snapshot)
    assert (cache._touched, cache._gone, len(snapshot)) == ({}, {}, 0)


def test_an_assumed_pod_never_expires() -> None:
    """Row 8 of section 7 (#106361, PR 136204): the room of one that expired too early was sold twice."""
    cache, snapshot = Cache(), Snapshot()
    cache.set_node(node("a"))
    cache.assume(info("p", {"cpu": "1"}), "a")
    for _ in range(1000):
        cache.refresh(snapshot)
    assert cache.is_assumed("uid-p")
    assert snapshot.requested("cpu").tolist() == [1000]


def test_contents_say_what_is_where_and_whether_the_sums_hold() -> None:
    cache = Cache()
    cache.set_node(node("a"))
    cache.add_pod(placed("p", "a"))
    cache.assume(info("q", {"cpu": "1"}), "b")
    held = cache.contents()
    assert (held.nodes, held.pods, held.assumed) == ({"a"}, {"uid-p": "a", "uid-q": "b"}, {"uid-q"})
    assert (held.keys["uid-p"], held.wrong_sums) == ("default/p", ())
    cache._nodes["a"].requested["cpu"] += 1
    assert cache.contents().wrong_sums == ("a",)


def test_sums_beyond_64_bits_are_cut() -> None:
    """Two pods that each ask for more than there is must not end the refresh of their node."""
    cache, snapshot = Cache(), Snapshot()
    cache.set_node(node("a"))
    for name in ("p", "q", "r"):
        cache.add_pod(info(name, {"memory": "9223372036854775807", "cpu": "9223372036854775807"}, nodeName="a"))
    cache.refresh(snapshot)
    assert snapshot.requested("memory").tolist() == snapshot.column("nonzero_memory_bytes").tolist() == [1 << 62]
    for name in ("p", "q", "r"):
        cache.remove_pod(f"uid-{name}")
    cache.refresh(snapshot)
    assert snapshot.requested("memory").tolist() == [0]


def bind_and_give_up(cache: Cache, names: list[str], serial: itertools.count, chance: random.Random) -> None:
    for _ in range(150):
        name, where = f"p{next(serial)}", chance.choice(names)
        cache.assume(info(name, {"cpu": "1"}), where)
        if chance.random() < 0.3:
            cache.forget(f"uid-{name}")
            continue
        cache.add_pod(placed(name, where))
        if chance.random() < 0.5:
            cache.remove_pod(f"uid-{name}")


def come_and_go(cache: Cache) -> None:
    for _ in range(150):
        cache.set_node(node("n0"))
        cache.remove_node("n0")
    cache.set_node(node("n0"))


def test_bindings_beside_the_loop_leave_the_books_right() -> None:
    """The loop assumes, threads bind or give up, the watch confirms, nodes come and go: all at once."""
    cache, snapshot = Cache(), Snapshot(COLUMNS, INTERNED)
    names, serial = [f"n{i}" for i in range(8)], itertools.count()
    for name in names:
        cache.set_node(node(name))
    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(bind_and_give_up, cache, names, serial, random.Random(seed)) for seed in range(3)]
        work.append(pool.submit(come_and_go, cache))
        while not all(one.done() for one in work):
            cache.refresh(snapshot)
            for row, one in enumerate(snapshot.nodes):
                assert snapshot.requested("cpu")[row] == 1000 * len(one.pods)
                assert one.consistent()
    for one in work:
        one.result()
    cache.refresh(snapshot)
    held = cache.contents()
    assert (held.nodes, held.wrong_sums, held.assumed) == (set(names), (), frozenset())
    assert int(snapshot.requested("cpu").sum()) == 1000 * len(held.pods)


def test_refresh_costs_only_what_changed() -> None:
    cache, snapshot = Cache(), Snapshot()
    for i in range(50):
        cache.set_node(node(f"n{i}"))
    assert cache.refresh(snapshot) == 50
    assert cache.refresh(snapshot) == 0
    cache.assume(info("p", {"cpu": "1"}), "n7")
    assert cache.refresh(snapshot) == 1


def test_snapshot_is_not_touched_by_later_changes() -> None:
    cache, snapshot = Cache(), Snapshot()
    cache.set_node(node("a"))
    cache.refresh(snapshot)
    cache.assume(info("p", {"cpu": "1"}), "a")
    assert snapshot.nodes[0].pods == {}
    assert snapshot.requested("cpu").tolist() == [0]


def test_amounts_beyond_64_bits_are_cut_and_a_broken_node_offers_nothing() -> None:
    cache, snapshot = Cache(), Snapshot()
    cache.set_node(node("huge", {"memory": "9223372036854775807", "cpu": "9223372036854775807"}))
    cache.set_node(node("broken", {"cpu": "1.5.2"}))
    cache.refresh(snapshot)
    offered = dict(zip(snapshot.names, snapshot.allocatable("cpu").tolist(), strict=True))
    assert offered == {"huge": 1 << 62, "broken": 0}
    assert "1.5.2" in snapshot.nodes[snapshot.index["broken"]].problem


COLUMNS = (Column("cpus", "float64", lambda n: n.allocatable.get("cpu", 0) / 1000, of_object=True),)
INTERNED = (Interned("zone", lambda n: n.labels.get("zone", ""), of_object=True),)
NODES, PODS = [f"n{i}" for i in range(40)], [f"p{i}" for i in range(8)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["node", "drop node", "assume", "confirm", "forget", "delete", "update", "refresh"]),
        st.sampled_from(NODES),
        st.sampled_from(PODS),
        st.integers(0, 3),
    ),
    max_size=50,
)


def contents(snapshot: Snapshot) -> dict:
    """Everything a plugin can read, by node name."""
    ids, values = snapshot.interned("zone")
    resources = ("cpu", "memory", BATCH_CPU, "pods", "example.com/x")
    return {
        name: (
            [int(snapshot.allocatable(r)[row]) for r in resources],
            [int(snapshot.requested(r)[row]) for r in resources],
            [float(snapshot.column(c)[row]) for c in ("cpus", "pod_count", "nonzero_cpu_millis", "pods_allocatable")],
            values[ids[row]],
            sorted(snapshot.nodes[row].pods),
        )
        for name, row in snapshot.index.items()
    }


def step(cache: Cache, action: str, where: str, name: str, size: int) -> None:
    request = {"cpu": str(size), BATCH_CPU: str(size * 100), **({"example.com/x": "1"} if size == 3 else {})}
    offered = {"cpu": str(size + 1), "memory": str(GI), "pods": "10"}
    steps = {
        "node": lambda: cache.set_node(node(where, offered, labels={"zone": str(size)})),
        "drop node": lambda: cache.remove_node(where),
        "assume": lambda: cache.assume(info(name, request), where),
        "confirm": lambda: cache.add_pod(info(name, request, nodeName=where)),
        "forget": lambda: cache.forget(f"uid-{name}"),
        "delete": lambda: cache.remove_pod(f"uid-{name}"),
        "update": lambda: cache.update_pod(info(name, request, nodeName=where)),
    }
    with contextlib.suppress(CacheError):
        steps[action]()


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_incremental_snapshots_equal_a_rebuild(steps) -> None:
    cache, snapshot, other = Cache(), Snapshot(COLUMNS, INTERNED), Snapshot(COLUMNS, INTERNED)
    for action, where, name, size in steps:
        if action == "refresh":
            cache.refresh(other if size == 3 else snapshot)
        else:
            step(cache, action, where, name, size)
    cache.refresh(snapshot)
    cache.refresh(other)
    rebuilt = Snapshot(COLUMNS, INTERNED)
    for one in cache._nodes.values():
        if one.node is not None:
            rebuilt.put(one.clone())
    assert contents(snapshot) == contents(other) == contents(rebuilt)
    assert not cache._gone
    if len(snapshot):
        # A clone with one pod less is judged as it is, and leaves the snapshot as it was.
        changed = snapshot.nodes[0].clone()
        for uid in list(changed.pods)[:1]:
            changed.remove_pod(uid)
        alone = Snapshot(COLUMNS, INTERNED)
        alone.put(changed)
        assert contents(snapshot.single(changed)) == contents(alone)
        assert contents(snapshot) == contents(rebuilt)
    assert all(one.consistent() for one in cache._nodes.values())


def test_a_column_that_several_plugins_name_is_read_once() -> None:
    reads: list[str] = []
    shared = Column(
        "Shared/cpus", "int64", lambda n: reads.append(n.name) or n.allocatable.get("cpu", 0), of_object=True
    )
    snapshot = Snapshot((shared, shared))
    info_of_node = NodeInfo.of(node("n"))
    snapshot.put(info_of_node)
    snapshot.put(info_of_node.clone())
    assert (reads, snapshot.column("Shared/cpus").tolist()) == (["n"], [8000])
    snapshot.put(NodeInfo.of(node("n", {"cpu": "2"})))
    assert (reads, snapshot.column("Shared/cpus").tolist()) == (["n", "n"], [2000])


def test_values_that_no_node_has_any_more_are_forgotten() -> None:
    snapshot = Snapshot((), INTERNED)
    for i in range(1100):
        snapshot.put(NodeInfo.of(node("n", labels={"zone": str(i)})))
    assert len(snapshot.interned("zone")[1]) == 1100
    snapshot.tidy()
    ids, values = snapshot.interned("zone")
    assert [values[i] for i in ids] == ["1099"]
    assert np.asarray(ids).dtype == np.int32


def test_resources_nobody_asks_for_any_more_cost_nothing() -> None:
    """Whoever may create pods may name resources that no node has."""
    snapshot = Snapshot()
    snapshot.put(NodeInfo.of(node("n", {"cpu": "8", **{f"example.com/{i}": "1" for i in range(40)}})))
    for i in range(1000):
        assert snapshot.allocatable(f"example.com/{i}").tolist() == [1 if i < 40 else 0]
        assert snapshot.requested(f"example.com/{i}").tolist() == [0]
        snapshot.allocatable("cpu")
        snapshot.tidy()
    assert max(len(snapshot._allocatable), len(snapshot._requested)) <= 64
    snapshot.put(NodeInfo.of(node("n", {"example.com/7": "9", "cpu": "4"})))
    assert [int(snapshot.allocatable(r)[0]) for r in ("example.com/7", "example.com/8", "cpu")] == [9, 0, 4000]


def test_pod_reader_says_what_it_cannot_read() -> None:
    for text in ("1.5.2", "1e", "200m"):
        assert READER.read(pod("p", {BATCH_CPU: text})).problem
