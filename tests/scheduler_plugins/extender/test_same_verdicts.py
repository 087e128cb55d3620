"""One plugin class, two hosts: what the second scheduler decides in a cycle, the extender answers over the wire."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from scheduler_plugins.cycle import place
from scheduler_plugins.extender.feed import CacheFeed
from scheduler_plugins.extender.host import build_framework
from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.service import ExtenderService, Terms
from scheduler_plugins.extender.settings import ExtenderProfile, ExtenderSettings
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import Diagnosis, FitError
from scheduler_plugins.framework.interfaces import Plugin, QueueSortPlugin
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins import default_registry
from slacktide import names
from slacktide.errors import SettingsError
from slacktide.objects import Node, Pod
from slacktide.tier import Tier
from tests.scheduler_plugins.build import GI, READER, Clock, Silent, be, forecast, handle, offering
from tests.scheduler_plugins.extender.support import Bench

NOW = 1000.0
EVERYTHING = frozenset(Tier)


def usable() -> list[str]:
    """Every registered plugin that works in an extender as it is."""
    found = []
    for name in default_registry().names():
        try:
            profile(name)
        except SettingsError:
            continue
        found.append(name)
    return found


def built(name: str) -> Plugin:
    return default_registry().build(name, {}, handle(Clock(NOW)))


def profile(*plugins: str) -> Framework:
    chosen = ExtenderSettings(profile=ExtenderProfile(plugins=list(plugins)))
    return build_framework(chosen, default_registry(), handle(Clock(NOW)), Silent())


USABLE = usable()
SORTS = frozenset(name for name in USABLE if isinstance(built(name), QueueSortPlugin))
"""Of these a profile has exactly one."""


def profiles() -> st.SearchStrategy[list[str]]:
    """Names of plugins that work together."""
    chosen = st.lists(st.sampled_from(USABLE), min_size=1, max_size=5, unique=True)
    return chosen.map(lambda plugins: [one for one in plugins if one not in SORTS - set(plugins[:1])])


@st.composite
def nodes(draw: Any) -> list[Node]:
    made = []
    for i in range(draw(st.integers(1, 8))):
        text = draw(
            st.none()
            | st.just("{broken")
            | st.builds(
                lambda cpu, age, closed: forecast(cpu, 8 * GI, at=NOW - age, closed=closed),
                st.integers(0, 5) | st.integers(0, 8000),
                st.sampled_from([0.0, 59.0, 100.0, 5000.0, -500.0]),
                st.sampled_from(["", "drained"]),
            )
        )
        fields: dict[str, Any] = {
            "labels": draw(st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from(["x", "y"])))
        }
        if draw(st.booleans()):
            effect = draw(st.sampled_from(["NoSchedule", "PreferNoSchedule"]))
            fields["taints"] = [{"key": "k", "value": "v", "effect": effect}]
        if draw(st.integers(0, 5)) == 0:
            fields["unschedulable"] = True
        made.append(offering(f"n{i}", text, **fields))
    return made


@st.composite
def pods(draw: Any, name: str = "p") -> Pod:
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["nodeSelector"] = {"zone": draw(st.sampled_from(["x", "y"]))}
    if draw(st.booleans()):
        fields["tolerations"] = [{"key": "k", "operator": "Exists"}]
    if draw(st.booleans()):
        term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["x"]}]}
        fields["affinity"] = {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "preference": term}]}
        }
    if draw(st.integers(0, 4)) == 0:
        fields["metadata"] = {"labels": {names.TIER_LABEL: draw(st.sampled_from(["ls", "system"]))}}
    return be(name, draw(st.integers(0, 9000)), draw(st.integers(0, 9)) * GI, **fields)


def answered(framework: Framework, cluster: list[Node], placed: list[Pod], asked: Pod) -> tuple[dict[str, Any], list]:
    """Filter and prioritize as the extender answers them, its cache fed as by informers."""
    cache = Cache()
    feed = CacheFeed(cache, READER)
    for one in cluster:
        feed.node_added(one)
    for one in placed:
        feed.pod_added(one)
    service = ExtenderService(
        framework, cache, READER, Terms(EVERYTHING, 100, 20.0), ExtenderMetrics(CollectorRegistry()), lambda: None
    )
    bench = Bench.__new__(Bench)
    bench.service = service
    filtered = bench.ask("filter", Pod=asked, Nodes=None, NodeNames=[one.metadata.name for one in cluster])
    return filtered, bench.ask("prioritize", Pod=asked, NodeNames=filtered["NodeNames"])


def decided(framework: Framework, cluster: list[Node], placed: list[Pod], asked: Pod) -> tuple[Any, Diagnosis]:
    """(placement or None, diagnosis) of a cycle of the second scheduler."""
    cache = Cache()
    for one in cluster:
        cache.set_node(one)
    for one in placed:
        cache.add_pod(READER.read(one))
    snapshot = framework.new_snapshot()
    cache.refresh(snapshot)
    try:
        placement = place(framework, CycleState(), READER.read(asked), snapshot, lambda count: 0)
    except FitError as error:
        return None, error.diagnosis
    return placement, placement.diagnosis


@given(nodes(), pods(), st.lists(st.tuples(st.integers(0, 7), pods("q")), max_size=3), st.data())
@settings(max_examples=40)
def test_both_hosts_judge_and_rate_alike(cluster, asked, others, data) -> None:
    chosen = data.draw(profiles())
    placed = [
        be(f"q{i}", READER.read(one).batch_cpu_millis, nodeName=cluster[where % len(cluster)].metadata.name)
        for i, (where, one) in enumerate(others)
    ]
    filtered, rated = answered(profile(*chosen), cluster, placed, asked)
    placement, diagnosis = decided(profile(*chosen), cluster, placed, asked)

    refused = diagnosis.statuses()
    kept = filtered["NodeNames"]
    assert len(kept) == (0 if placement is None else placement.feasible)
    assert not refused.keys() & set(kept)
    for name, status in refused.items():
        part = "FailedNodes" if status.code is Code.UNSCHEDULABLE else "FailedAndUnresolvableNodes"
        text = filtered[part][name]
        assert all(reason.text in text for reason in status.parts)
    if placement is not None and placement.scores is not None:
        totals = {diagnosis.names[row]: total for row, total in zip(*_table(placement), strict=True)}
        scores = {one["Host"]: one["Score"] for one in rated}
        assert totals.keys() == scores.keys()
        assert scores[placement.node] == max(scores.values())
        ordered = sorted(totals, key=totals.__getitem__)
        assert [scores[name] for name in ordered] == sorted(scores.values())


def _table(placement: Any) -> tuple[list[int], list[int]]:
    return placement.scores.rows.tolist(), placement.scores.totals.tolist()


def test_the_plugins_of_this_project_work_in_an_extender() -> None:
    assert "BatchForecast" in USABLE


def test_nodes_refused_for_one_reason_share_a_text_and_the_nearest_has_the_numbers() -> None:
    """The caller counts equal texts; that of the nearest node says how little was missing."""
    cluster = [offering(f"n{i}", forecast(room, at=NOW)) for i, room in enumerate([500, 900, 700])]
    filtered, _ = answered(profile("BatchForecast"), cluster, [], be("p", 1000))
    _, diagnosis = decided(profile("BatchForecast"), cluster, [], be("p", 1000))
    refused = filtered["FailedAndUnresolvableNodes"] | filtered["FailedNodes"]
    assert refused["n0"] == refused["n2"]
    assert refused["n1"].startswith(refused["n0"])
    assert "needs 1000m, room 900m" in refused["n1"]
    assert "needs 1000m, room 900m" in diagnosis.message()
