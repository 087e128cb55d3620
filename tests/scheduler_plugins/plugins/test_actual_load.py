"""ActualLoad: measured load beside requests; hot spots; what is new, stale or not known.

Numbers with a source are rows of the upstream tables (kube-scheduling 8.5, LoadAware and LeastAllocated).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins import actual_load
from scheduler_plugins.plugins.actual_load import (
    ActualLoad,
    ActualLoadArgs,
    ActualLoadFilter,
    ActualLoadScore,
    LoadResource,
    Thresholds,
)
from scheduler_plugins.plugins.load_estimate import estimate
from slacktide import names
from slacktide.errors import SettingsError
from slacktide.objects import Node, Pod
from tests.scheduler_plugins.build import GI, READER, Clock, be, be_info, handle, info, node, offering, pod
from tests.scheduler_plugins.forecasts import forecast, terms
from tests.scheduler_plugins.rating import reasons, scores, snapshot_for, verdicts

NOW = 10_000.0
BIG = {"cpu": "96", "memory": "512Gi", "pods": "110"}


def score(load_weight: float = 1.0, **args: Any) -> ActualLoadScore:
    return ActualLoadScore(ActualLoadArgs(load_weight=load_weight, **args), handle(Clock(NOW)))


def refuse(**args: Any) -> ActualLoadFilter:
    return ActualLoadFilter(ActualLoadArgs(**args), handle(Clock(NOW)))


def measured(
    name: str, cpu: int | None, memory: int | None = GI, peak: int | None = None, offers: Any = None, **more: Any
) -> Node:
    """A node on which LS and SYSTEM use so much now, and `peak` millicores at the expected peak."""
    at = more.pop("at", NOW)
    of = terms(now=(cpu, memory), peak=(peak, memory), **more)
    text = forecast(4000, at=at, ttl=60, of=of)
    offered = offers or {"cpu": "8", "memory": "32Gi", "pods": "110", names.BATCH_CPU: "8000"}
    return node(name, offered, annotations={names.FORECAST_ANNOTATION: text})


def placed_at(name: str, seconds: float, requests: dict[str, str]) -> Pod:
    when = datetime.fromtimestamp(seconds, UTC).isoformat()
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": when}
    return pod(name, requests, status={"phase": "Running", "conditions": [condition]})


@pytest.mark.parametrize(
    ("where", "want"),
    [
        (measured("n", 0, 0, offers=BIG), 90),
        (measured("n", 32_000, 10 * GI, offers=BIG), 72),
        (node("n", BIG), 0),
        (measured("n", 0, 0, offers=BIG, at=NOW - 181), 0),
        (measured("n", None, 0, offers=BIG), 0),
        (measured("n", -5, 0, offers=BIG), 0),
        (measured("n", 10**30, 0, offers=BIG), 47),
        (measured("n", 0, 0, offers=BIG, at=NOW + 61), 0),
        (measured("n", 0, 0, offers=BIG, at=NOW - 120), 45),
        (measured("n", 0, 0, offers=BIG, fading=0.0, note="agent is silent"), 0),
        (measured("n", 0, 0, offers=BIG, fading=0.5), 45),
    ],
    ids=[
        "idle",
        "used",
        "no metric",
        "expired",
        "unknown",
        "negative",
        "absurd",
        "future",
        "ageing",
        "silent",
        "fading",
    ],
)
def test_rows_of_load_aware_score(where: Node, want: int) -> None:
    """koordinator PR 1563, 2076, #490 (section 7, row 23): stale scores 0, and is never taken for idle."""
    judge = score()
    assert scores(judge, info(requests={"cpu": "16", "memory": "32Gi"}), snapshot_for(judge, [where])) == {"n": want}


@pytest.mark.parametrize(
    ("cpu", "memory", "used", "want"),
    [
        (4000, 10_000, {}, 37),
        (6000, 10_000, {}, 50),
        (5000, 10_000, {"cpu": "3", "memory": "0"}, 25),
        (10_000, 20_000, {"cpu": "3", "memory": "0"}, 57),
        (10_000, 20_000, {"cpu": "3", "memory": "5000"}, 45),
        (4000, 10_000, {"cpu": "3", "memory": "0"}, 25),
    ],
)
def test_rows_of_least_allocated_where_load_weighs_nothing(
    cpu: int, memory: int, used: dict[str, str], want: int
) -> None:
    judge = score(load_weight=0.0)
    where = node("n", {"cpu": f"{cpu}m", "memory": str(memory), "pods": "110"})
    snapshot = snapshot_for(judge, [where], {"n": [pod("q", used)]} if used else None)
    assert scores(judge, info(requests={"cpu": "3", "memory": "5000"}), snapshot) == {"n": want}
    assert reasons(judge, info(), snapshot) == {}


def test_load_and_requests_weigh_as_told() -> None:
    """A node that is asked for but idle, and one that is busy beyond what was asked for."""
    nodes = [measured("asked", 800, 0), measured("busy", 6400, 0)]
    placed = {name: [placed_at(name, NOW - 900, {"cpu": c})] for name, c in (("asked", "6"), ("busy", "1"))}
    cpu = (LoadResource(name="cpu"),)
    who = info(requests={"cpu": "0"})
    found = {}
    for weight in (0.0, 0.3, 0.7, 1.0):
        judge = score(weight, resources=cpu, new_pod_seconds=0)
        found[weight] = scores(judge, who, snapshot_for(judge, nodes, placed))
    assert found[0.0] == {"asked": 25, "busy": 87}
    assert found[1.0] == {"asked": 86, "busy": 16}
    # 250m stand for the pod, which asks for nothing.
    assert found[0.7] == {"asked": int(0.7 * 86 + 0.3 * 25), "busy": int(0.7 * 16 + 0.3 * 87)}
    assert found[0.3]["busy"] > found[0.3]["asked"]


def test_resources_weigh_as_told() -> None:
    resources = (LoadResource(name="cpu", weight=3), LoadResource(name="memory"))
    judge = score(resources=resources, new_pod_seconds=0)
    who = info(requests={"cpu": "1", "memory": "1Gi"})
    nodes = [measured("n", 4000, 0)]
    cpu, memory = (8000 - 4850) * 100 // 8000, 97
    assert scores(judge, who, snapshot_for(judge, nodes)) == {"n": (3 * cpu + memory) // 4}


def test_pods_too_new_to_show_count_by_estimate_until_a_measure_has_seen_them() -> None:
    """koordinator 1908, 1992, 2317, 1327: pods just assigned were ignored, which made hot spots."""
    cpu = (LoadResource(name="cpu"),)
    judge = score(resources=cpu, new_pod_seconds=60)
    ask = {"cpu": "4"}
    placed = {
        "old": [placed_at("a", NOW - 61, ask)],
        "new": [placed_at("b", NOW - 59, ask)],
        "after": [placed_at("c", NOW + 5, ask)],
        "batch": [be("d", 4000)],
    }
    nodes = [measured(name, 0) for name in placed]
    found = scores(judge, info(requests={"cpu": "0"}), snapshot_for(judge, nodes, placed))
    assert found == {"old": 96, "new": 54, "after": 54, "batch": 96}


def test_a_placement_under_way_counts_at_once_and_leaves_no_ghost_when_the_pod_lands_elsewhere() -> None:
    """koordinator: on another node name the old entry must be dropped (ghost load, 4.3)."""
    judge = score(resources=(LoadResource(name="cpu"),))
    cache, snapshot = Cache(), Snapshot(judge.columns())
    for name in ("a", "b"):
        cache.set_node(measured(name, 0))
    who = READER.read(pod("p", {"cpu": "4"}))

    def found() -> dict[str, int]:
        cache.refresh(snapshot)
        return scores(judge, info(requests={"cpu": "0"}), snapshot)

    assert found() == {"a": 96, "b": 96}
    cache.assume(who, "a")
    assert found() == {"a": 54, "b": 96}
    cache.add_pod(who.on("b"))
    assert found() == {"a": 96, "b": 54}
    cache.remove_pod(who.uid)
    assert found() == {"a": 96, "b": 96}


def test_best_effort_pods_are_spread_by_what_is_sold_beside_the_load() -> None:
    judge = score(resources=(LoadResource(name="cpu"),))
    nodes = [measured("free", 2000), measured("sold", 2000)]
    found = scores(judge, be_info(cpu=1000), snapshot_for(judge, nodes, {"sold": [be("q", 4000)]}))
    assert found == {"free": (8000 - 2850) * 100 // 8000, "sold": (8000 - 6850) * 100 // 8000}
    by_requests = score(0.0, resources=(LoadResource(name="cpu"),))
    found = scores(by_requests, be_info(cpu=1000), snapshot_for(by_requests, nodes, {"sold": [be("q", 4000)]}))
    assert found == {"free": 87, "sold": 37}


@pytest.mark.parametrize(
    ("who", "cpu", "memory"),
    [
        (info(requests={"cpu": "2", "memory": "10Gi"}), 1700, 7 * GI),
        (info(), 250, 200 << 20),
        (be_info(cpu=2000, memory=10 * GI), 1700, 7 * GI),
        (be_info(cpu=0, metadata={"labels": {names.TIER_LABEL: "be"}}), 250, 200 << 20),
        (info(requests={names.MID_CPU: "2000", names.MID_MEMORY: "10Gi"}), 1700, 7 * GI),
        (
            info(containers=[{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}}]),
            3400,
            200 << 20,
        ),
        (info(containers=[{"name": "c", "resources": {"limits": {"cpu": "4"}}}]), 3400, 200 << 20),
    ],
    ids=["requests", "nothing", "batch", "batch nothing", "mid", "limit above request", "limit alone"],
)
def test_estimates(who: Any, cpu: int, memory: int) -> None:
    """The mid row: koordinator estimates a mid pod without plain cpu at 0 (5.1)."""
    assert (estimate(who, "cpu", 85), estimate(who, "memory", 70)) == (cpu, memory)


# Filter.


def verdict(judge: ActualLoadFilter, who: Any, where: Node, placed: list[Pod] | None = None) -> Any:
    (found,) = verdicts(judge, who, snapshot_for(judge, [where], {where.metadata.name: placed or []})).values()
    return found


LS = info(requests={"cpu": "1", "memory": "1Gi"})


@pytest.mark.parametrize(
    ("who", "where", "code", "message"),
    [
        (LS, measured("n", 4385), Code.SUCCESS, ""),
        (LS, measured("n", 4389), Code.SUCCESS, ""),
        (LS, measured("n", 4390), Code.UNSCHEDULABLE, "node(s) too busy: cpu (66 % of allocatable, at most 65 %)"),
        (LS, measured("n", 100, 30 * GI), Code.UNSCHEDULABLE, "node(s) too busy: memory (96 % of"),
        (LS, measured("n", 8000, 32 * GI), Code.UNSCHEDULABLE, "cpu (111 % of allocatable, at most 65 %), node(s)"),
        (LS, measured("n", 10**30), Code.UNSCHEDULABLE, "too busy: cpu"),
        # A best-effort pod adds nothing to a hot spot: it gives way.
        (be_info(cpu=6000), measured("n", 5200), Code.SUCCESS, ""),
        (be_info(cpu=1), measured("n", 5300), Code.UNSCHEDULABLE, "66 %"),
        # Not known: best-effort pods are refused, others pass.
        (LS, node("n"), Code.SUCCESS, ""),
        (be_info(), node("n"), Code.UNRESOLVABLE, "node(s) whose load is not known (forecast: missing)"),
        (LS, measured("n", 8000, at=NOW - 181), Code.SUCCESS, ""),
        (be_info(), measured("n", 0, at=NOW - 181), Code.UNRESOLVABLE, "measured 181 s ago, good for 60 s"),
        (be_info(), measured("n", 0, at=NOW + 61), Code.UNRESOLVABLE, "measured 61 s ahead of this clock"),
        (be_info(), measured("n", 0, fading=0.0, note="silent for 300 s"), Code.UNRESOLVABLE, "silent for 300 s"),
        (be_info(), measured("n", None), Code.UNRESOLVABLE, "its use is not measured"),
        (be_info(), measured("n", -1), Code.UNRESOLVABLE, "its use is not measured"),
        (be_info(), measured("n", 0, at=NOW - 179), Code.SUCCESS, ""),
        (LS, measured("n", None, 31 * GI), Code.UNSCHEDULABLE, "memory (99 %"),
        (be_info(), offering("n", "{"), Code.UNRESOLVABLE, "forecast: annotation is no forecast"),
    ],
)
def test_filter(who: Any, where: Node, code: Code, message: str) -> None:
    found = verdict(refuse(), who, where)
    assert found.code is code
    assert message in found.message


def test_a_threshold_may_stand_on_the_expected_peak() -> None:
    args = {"thresholds": Thresholds(), "peak_thresholds": Thresholds(cpu=80.0)}
    assert verdict(refuse(**args), LS, measured("n", 7900, peak=5000)).ok
    found = verdict(refuse(**args), LS, measured("n", 100, peak=6000))
    assert found.message == "node(s) too busy at the expected peak: cpu (86 % of allocatable, at most 80 %)"
    assert verdict(refuse(**args), LS, measured("n", 100, peak=None)).ok
    assert verdict(refuse(**args), be_info(), measured("n", 100, peak=None)).code is Code.UNRESOLVABLE


@pytest.mark.parametrize(("policy", "ls", "batch"), [("none", True, True), ("be", True, False), ("all", False, False)])
def test_who_is_kept_off_nodes_of_which_nothing_is_known_is_a_setting(policy: Any, ls: bool, batch: bool) -> None:
    judge = refuse(refuse_unknown=policy)
    assert (verdict(judge, LS, node("n")).ok, verdict(judge, be_info(), node("n")).ok) == (ls, batch)
    hot = measured("n", 8000)
    assert not verdict(judge, LS, hot).ok


def test_new_pods_make_a_hot_spot_before_they_show() -> None:
    young = [placed_at("q", NOW, {"cpu": "6"})]
    assert verdict(refuse(), LS, measured("n", 100)).ok
    assert not verdict(refuse(), LS, measured("n", 100), young).ok
    assert verdict(refuse(new_pod_seconds=0), LS, measured("n", 100), [placed_at("q", NOW, {"cpu": "6"})]).ok


def test_pods_of_a_daemon_set_pass_everywhere() -> None:
    owner = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]}
    daemon = info(requests={"cpu": "1"}, metadata=owner)
    assert verdict(refuse(), daemon, measured("n", 8000)).ok
    assert not verdict(refuse(), LS, measured("n", 8000)).ok


def woken(judge: ActualLoadFilter, event: ClusterEvent, old: Any, new: Any, who: Any = LS) -> bool:
    hints = [r.hint for r in judge.events_to_register() if r.event.covers(event)]
    return any(hint is not None and hint(who, old, new) is Hint.QUEUE for hint in hints)


def test_what_wakes_a_pod_that_was_refused() -> None:
    judge = refuse()
    note = ClusterEvent(events.NODE, Action.UPDATE_NODE_ANNOTATION)
    hot, cool = measured("n", 8000), measured("n", 100)
    assert woken(judge, note, hot, cool)
    assert not woken(judge, note, cool, hot)
    assert woken(judge, events.NODE_ADD, None, cool)
    assert woken(judge, note, hot, node("n"))
    assert not woken(judge, note, hot, node("n"), be_info())
    assert not woken(judge, note, hot, measured("n", 0, at=NOW - 500), be_info())
    assert woken(judge, ClusterEvent(events.NODE, Action.UPDATE_NODE_ALLOCATABLE), hot, cool)
    assert woken(judge, events.ASSIGNED_POD_DELETE, info("q", {"cpu": "1"}, nodeName="n"), None)
    assert not woken(judge, events.ASSIGNED_POD_DELETE, be_info("q", nodeName="n"), None)
    assert not woken(judge, ClusterEvent(events.NODE, Action.UPDATE_NODE_CONDITION), hot, cool)


@settings(max_examples=150, deadline=None)
@given(
    cpu=st.none() | st.integers(-10, 9000), ask=st.integers(0, 6000), age=st.integers(-100, 250), batch=st.booleans()
)
def test_a_node_that_becomes_fit_always_wakes(cpu: int | None, ask: int, age: int, batch: bool) -> None:
    judge = refuse(new_pod_seconds=0)
    who = be_info(cpu=ask or 1) if batch else info(requests={"cpu": f"{ask}m"})
    after = measured("n", cpu, at=NOW - age)
    fits = verdict(judge, who, after).ok
    assert woken(judge, ClusterEvent(events.NODE, Action.UPDATE_NODE_ANNOTATION), node("n"), after, who) or not fits


def test_thousands_of_hot_nodes_are_told_by_kind() -> None:
    judge = refuse()
    nodes = [measured(f"n{i}", 6000 + i) for i in range(50)] + [measured("m", 100, 32 * GI)]
    snapshot = snapshot_for(judge, nodes)
    found = verdicts(judge, LS, snapshot)
    assert not any(status.ok for status in found.values())
    all_verdicts = judge.filter_nodes(None, LS, snapshot, snapshot.all())
    assert all_verdicts.kinds is not None
    assert len(set(all_verdicts.kinds.tolist())) == 2
    assert all_verdicts.miss is not None
    assert snapshot.names[int(all_verdicts.miss.argmin())] in {"m", "n0"}


def test_registered_under_its_three_names_and_bad_arguments_are_refused() -> None:
    registry = Registry()
    actual_load.register(registry)
    assert registry.names() == ("ActualLoad", "ActualLoadScore", "ActualLoadFilter")
    both = registry.build("ActualLoad", {"loadWeight": 0.7}, handle(Clock(NOW)))
    assert isinstance(both, ActualLoad)
    snapshot = snapshot_for(both, [measured("hot", 8000, 0), measured("cool", 0, 0)])
    assert scores(both, LS, snapshot)["cool"] > scores(both, LS, snapshot)["hot"]
    assert verdicts(both, LS, snapshot)["cool"].ok
    cpu_only = registry.build("ActualLoad", {"thresholds": {"cpu": 50}}, handle(Clock(NOW)))
    assert scores(cpu_only, LS, snapshot_for(cpu_only, [measured("cool", 0, 0)]))["cool"] > 0
    for args, message in (
        ({"loadWeight": 1.5}, "loadWeight"),
        ({"loadweight": 0.5}, "loadWeight"),
        ({"thresholds": {"cpu": 0}}, "thresholds.cpu"),
        ({"resources": []}, "resources"),
        ({"resources": [{"name": "gpu"}]}, "resources"),
    ):
        with pytest.raises(SettingsError, match=message):
            registry.build("ActualLoadScore", args, handle())
    with pytest.raises(SettingsError, match="resources names one twice"):
        registry.build("ActualLoad", {"resources": [{"name": "cpu"}, {"name": "cpu"}]}, handle())
