"""A cycle that reuses what an earlier one found out says what a cycle over all nodes says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_plugins.config.convert import Source
from scheduler_plugins.config.load import configure
from scheduler_plugins.config.profiles import build
from scheduler_plugins.cycle import NoFitError, NoNodesError, Placement, place
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.interfaces import (
    Handle,
    NodeFilterPlugin,
    NodeScorePlugin,
    PreScorePlugin,
    ScorePlugin,
)
from scheduler_plugins.framework.kept import ALONE, ANEW, REUSED, Kept
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SKIP, SUCCESS, PluginFailure, unschedulable
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.batch_forecast import BatchForecast
from scheduler_plugins.plugins.batch_score import BatchForecastArgs
from scheduler_plugins.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs
from scheduler_plugins.settings import SchedulerSettings
from slacktide import names
from slacktide.gpus import Card, Gpus, encode
from slacktide.objects import ContainerImage, Node, Pod
from tests.scheduler_plugins.build import GI, READER, Clock, Silent, framework, handle, node, pod
from tests.scheduler_plugins.forecasts import forecast, terms
from tests.scheduler_plugins.rig import Informed
from tests.scheduler_plugins.twin import Api

SERVICE_LABEL = {"app": "web"}
ZONE = "topology.kubernetes.io/zone"
SOFT = "ScheduleAnyway"


def selects(**labels: str) -> dict[str, Any]:
    return {"matchLabels": labels}


def anti(**labels: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selects(**labels)}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def preferred(zone: str) -> dict[str, Any]:
    wish = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": wish}]}}


def port(number: int) -> dict[str, Any]:
    return {"ports": [{"hostPort": number, "protocol": "TCP"}]}


BATCH = {names.BATCH_CPU: "1000", names.BATCH_MEMORY: "1Gi"}
TEMPLATES: tuple[dict[str, Any], ...] = (
    {"asks": {"cpu": "500m", "memory": "1Gi"}},
    {"asks": {"cpu": "500m", "memory": "1Gi"}},
    {"asks": {}, "labels": SERVICE_LABEL},
    {"asks": BATCH, "labels": {names.TIER_LABEL: "be"}},
    {"asks": BATCH, "labels": {names.TIER_LABEL: "be"}},
    {"asks": {"cpu": "1"}, "tolerations": [{"key": "t", "operator": "Exists"}]},
    {"asks": {"cpu": "1"}, "affinity": preferred("a")},
    {"asks": {"cpu": "1"}, "nodeSelector": {ZONE: "b"}},
    {"asks": {"cpu": "250m"}, "container": port(80)},
    {"asks": {"cpu": "250m"}, "container": {"image": "big"}},
    {"asks": {"cpu": "250m"}, "labels": {"lone": "yes"}, "affinity": anti(lone="yes")},
    {"asks": {"cpu": "250m"}, "labels": {"lone": "yes"}},
    {
        "asks": {"cpu": "100m"},
        "labels": {"even": "yes"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": SOFT, "labelSelector": selects(even="yes")}
        ],
    },
    {"asks": {"nvidia.com/gpu": "1"}},
    {"asks": {"cpu": "64"}},
)


def templated(number: int, name: str) -> Pod:
    body = dict(TEMPLATES[number])
    asks, labels, container = body.pop("asks"), body.pop("labels", {}), body.pop("container", {})
    made = {"name": "main", "image": "small", "resources": {"requests": asks, "limits": asks}, **container}
    return pod(name, metadata={"labels": labels}, containers=[made], **body)


PLAIN: tuple[dict[str, Any], ...] = ()
LOADED = ({"name": "ActualLoad", "weight": 2}, {"name": "GPUWearLevel"})
"""Plugins that go by measures, which age, and that say in words what they cannot rate."""


class World:
    """A cluster that changes by chance, and two schedulers that look at it: one reuses, the other never does."""

    def __init__(self, seed: int, enabled: tuple[dict[str, Any], ...] = PLAIN) -> None:
        self.enabled = enabled
        self.random = random.Random(seed)
        self.wall = Clock(50_000.0)
        self.cache, self.server, self.serial = Cache(), Api(), 0
        self.nominator = Nominator(self.server.lookup)
        self.nodes: dict[str, Node] = {}
        self.placed: list[str] = []
        self.sides = [self.profile(), self.profile()]
        self.snapshots = [side.new_snapshot() for side in self.sides]
        self.kept, self.reused, self.placements = Kept(), 0, 0
        for number in range(self.random.randint(1, 12)):
            self.put_node(f"n{number}")

    def profile(self) -> Framework:
        lists = {"disabled": [{"name": "DefaultPreemption"}], "enabled": list(self.enabled)}
        file = {"profiles": [{"plugins": {"multiPoint": lists}}]}
        registry = default_registry()
        handle = Handle(
            self.wall,
            lambda pod, where: SUCCESS,
            names.BATCH_CPU,
            names.BATCH_MEMORY,
            objects=Informed(self.server),
            nominations=self.nominator,
        )
        config = configure(SchedulerSettings(), file, Source("test"), registry)
        return next(iter(build(config, registry, lambda _: handle, Silent()).values()))

    def put_node(self, name: str) -> None:
        draw = self.random
        use = draw.choice([None, 500, 2000, 6000])
        text = forecast(
            draw.randint(0, 8000),
            16 * GI,
            at=self.wall.now - draw.choice([0, 0, 0, 59.5, 100, 300]),
            of=terms(now=(use, None if use is None else use << 21)),
        )
        taint = {"key": "t", "effect": draw.choice(["NoSchedule", "PreferNoSchedule"])}
        offered = {"cpu": "8", "memory": "32Gi", "pods": "12", "nvidia.com/gpu": draw.choice(["0", "4"])}
        made = node(
            name,
            offered | {names.BATCH_CPU: "8000", names.BATCH_MEMORY: str(32 * GI)},
            labels={"kubernetes.io/hostname": name, ZONE: draw.choice("ab")},
            annotations=({names.FORECAST_ANNOTATION: text} if draw.random() < 0.9 else {}) | self.gpus(),
            unschedulable=draw.random() < 0.1,
            taints=[taint] if draw.random() < 0.15 else [],
        )
        if draw.random() < 0.2:
            images = [ContainerImage(names=["big:latest"], size_bytes=900 << 20)]
            made = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, images=images))
        self.nodes[name] = made
        self.cache.set_node(made)

    def gpus(self) -> dict[str, str]:
        draw = self.random
        card = Card(index=0, model=draw.choice(["A100", "V100"]), utilisation_percent=draw.choice([10.0, 95.0]))
        text = encode(Gpus(at=self.wall.now - draw.choice([0, 0, 100, 179.5, 400]), ttl_seconds=60, cards=(card,)))
        told = {names.GPUS_ANNOTATION: draw.choice([text, text, text, "{"])} if draw.random() < 0.8 else {}
        level = {"slacktide.io/gpu-wear-level": draw.choice(["0.5", "0.9", "much"])} if draw.random() < 0.8 else {}
        return told | level

    def step(self) -> None:
        acts: tuple[Callable[[], None], ...] = (
            *[self.attempt] * 8,
            self.change_node,
            self.remove_node,
            self.remove_pod,
            self.change_pod,
            self.place_elsewhere,
            self.time_passes,
            self.nominate,
        )
        self.random.choice(acts)()

    def change_node(self) -> None:
        self.put_node(f"n{self.random.randint(0, 12)}")

    def remove_node(self) -> None:
        if self.nodes and self.random.random() < 0.3:
            name = self.random.choice(sorted(self.nodes))
            del self.nodes[name]
            self.cache.remove_node(name)

    def remove_pod(self) -> None:
        if self.placed:
            self.cache.remove_pod(self.placed.pop(self.random.randrange(len(self.placed))))

    def change_pod(self) -> None:
        """The API confirms a pod, with labels that it had not before."""
        if self.placed:
            uid = self.random.choice(self.placed)
            info = self.cache.get(uid)
            meta = msgspec.structs.replace(info.pod.metadata, labels={"lone": "yes"})
            fresh = READER.read(msgspec.structs.replace(info.pod, metadata=meta))
            (self.cache.add_pod if self.cache.is_assumed(uid) else self.cache.update_pod)(fresh)

    def place_elsewhere(self) -> None:
        if self.nodes:
            self.assume(self.new_pod(), self.random.choice(sorted(self.nodes)))

    def time_passes(self) -> None:
        self.wall.forward(self.random.choice([0.3, 1.0, 20.0]))

    def nominate(self) -> None:
        """Room is made for a pod, and soon after given up."""
        info = self.new_pod()
        if self.nodes:
            self.nominator.set(info, self.random.choice(sorted(self.nodes)))
            self.attempt()
            self.nominator.drop(info.uid)

    def new_pod(self) -> PodInfo:
        self.serial += 1
        return READER.read(templated(self.random.randrange(len(TEMPLATES)), f"p{self.serial}"))

    def assume(self, info: PodInfo, where: str) -> None:
        self.cache.assume(info, where)
        self.placed.append(info.uid)

    def attempt(self) -> None:
        info, lot = self.new_pod(), self.random.random()
        said = []
        for side, snapshot, kept in zip(self.sides, self.snapshots, (self.kept, None), strict=True):
            self.cache.refresh(snapshot)
            said.append(outcome(side, info, snapshot, lambda count: int(lot * count), kept))
        (again, told), (anew, placement) = said
        assert again == anew, f"{info.key} ({info.pod.spec})"
        if told is not None and placement is not None:
            self.placements += 1
            self.reused += told.reused
            same_scores(told, placement)
            self.assume(info, placement.node)


def outcome(
    side: Framework, info: PodInfo, snapshot: Any, choose: Callable[[int], int], kept: Kept | None
) -> tuple[object, Placement | None]:
    try:
        placement = place(side, CycleState(), info, snapshot, choose, kept)
    except (NoFitError, NoNodesError, PluginFailure) as error:
        return str(error), None
    refused = {plugin: count for plugin, count in placement.refused.items() if count}
    return (placement.node, placement.evaluated, placement.feasible, refused), placement


def same_scores(told: Placement, placement: Placement) -> None:
    assert (told.scores is None) == (placement.scores is None)
    if told.scores is None or placement.scores is None:
        return
    where = {int(row): at for at, row in enumerate(placement.scores.rows)}
    at = [where[int(row)] for row in told.scores.rows]
    assert told.scores.totals.tolist() == placement.scores.totals[at].tolist()
    assert told.scores.unrated == placement.scores.unrated
    for plugin, marks in told.scores.by_plugin.items():
        assert marks.tolist() == placement.scores.by_plugin[plugin][at].tolist(), plugin


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([PLAIN, LOADED]))
@example(510511, LOADED)
def test_random_histories_come_out_the_same(seed: int, enabled: tuple[dict[str, Any], ...]) -> None:
    world = World(seed, enabled)
    for _ in range(60):
        world.step()


@pytest.mark.parametrize("enabled", [PLAIN, LOADED], ids=["default profile", "with ActualLoad and GPUWearLevel"])
def test_most_cycles_of_a_quiet_cluster_reuse(enabled: tuple[dict[str, Any], ...]) -> None:
    world = World(5, enabled)
    for number in range(40):
        world.put_node(f"n{number}")
    for _ in range(300):
        world.attempt()
    assert world.placements > 150
    assert world.reused > world.placements / 4


def test_pods_that_want_a_gpu_reuse_what_is_known_of_the_cards_and_say_what_is_not() -> None:
    """Their words about annotations that cannot be read are those of a cycle over all nodes."""
    world = World(7, LOADED)
    for number in range(40):
        world.put_node(f"n{number}")
    said = []
    for serial in range(12):
        info = READER.read(templated(TEMPLATES.index({"asks": {"nvidia.com/gpu": "1"}}), f"gpu{serial}"))
        world.cache.refresh(world.snapshots[0])
        placement = place(world.sides[0], CycleState(), info, world.snapshots[0], lambda _: 0, world.kept)
        assert placement.reused == (serial > 0)
        assert placement.scores is not None
        said.append(placement.scores.unrated)
        world.assume(info, placement.node)
    assert said[0].keys() == {"ActualLoad", "GPUWearLevel", "GpuWear"}
    assert all("expired" in why or "JSON" in why or "truncated" in why for why in said[-1]["GpuWear"].values())


class Shy(PreScorePlugin, ScorePlugin, Reusable):
    """Has nothing to say of any pod, so that nobody may ask it for a score; normalises."""

    name = "Shy"

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Any, rows: Any) -> Any:
        return SKIP

    def score_nodes(self, state: CycleState, pod: PodInfo, snapshot: Any, rows: Any) -> Any:
        raise AssertionError("asked, though it wanted to be left out")

    def normalize(self, state: CycleState, pod: PodInfo, scores: Any) -> Any:
        return scores

    def reuse_key(self, pod: PodInfo) -> object:
        return ()


def test_plugins_that_are_left_out_once_more_than_one_node_fits_stay_left_out() -> None:
    """The first cycle found one node and rated none, so that nobody knew yet who takes no part in Score."""
    small = Small(Shy())
    others = [f"more{number}" for number in range(9)]
    for name in others:
        small.cache.set_node(node(name))
    fillers = [READER.read(pod(f"{name}-{i}")) for name in ("b", "c", *others) for i in range(2)]
    for filler in fillers:
        small.cache.assume(filler, filler.pod.metadata.name.rpartition("-")[0])
    assert small.cycle()[0].scores is None
    for filler in fillers[:2]:
        small.cache.forget(filler.uid)
    for feasible in (2, 2):
        placement, _ = small.cycle()
        assert (placement.reused, placement.feasible) == (True, feasible)
        assert placement.scores is not None
        assert placement.scores.by_plugin.keys() == {"Local"}


def test_what_led_to_a_failure_is_not_kept() -> None:
    small = Small()
    for number in range(9):
        small.cache.set_node(node(f"more{number}"))
    small.cycle()
    alike = READER.read(pod("p", metadata={"labels": {"kind": "x"}}))
    signature = small.framework.signature(alike, small.snapshot)
    found = small.kept.take(signature)
    assert found is not None
    found.fit.rows = None
    small.kept.keep(signature, found)
    with pytest.raises(TypeError):
        small.cycle()
    placement, asked = small.cycle()
    assert not placement.reused
    assert len(asked) == 12


@pytest.mark.parametrize("kind", ["x", None], ids=["alike", "alone"])
def test_cycles_are_counted_by_what_was_judged(kind: str | None) -> None:
    told: list[str] = []
    small = Small()
    small.kept = Kept(told.append)
    for number in range(9):
        small.cache.set_node(node(f"more{number}"))
    for _ in range(3):
        small.cycle(kind)
    assert told == ([ALONE] * 3 if kind is None else [ANEW, REUSED, REUSED])


class Local(NodeFilterPlugin, NodeScorePlugin, Reusable):
    """Judges by the number of pods; counts whom it was asked about."""

    name = "Local"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now: object = ()

    def filter(self, state: CycleState, pod: PodInfo, node: Any) -> Any:
        self.asked.append(node.name)
        return SUCCESS if len(node.pods) < 2 else unschedulable("full")

    def score(self, state: CycleState, pod: PodInfo, node: Any) -> float:
        return 50 - len(node.pods)

    def reuse_key(self, pod: PodInfo) -> object:
        return pod.pod.metadata.labels.get("kind")

    def reuse_now(self, pod: PodInfo, snapshot: Any) -> object:
        if self.now == "raises":
            raise RuntimeError("no")
        return self.now


class Beyond(NodeFilterPlugin):
    name = "Beyond"

    def filter(self, state: CycleState, pod: PodInfo, node: Any) -> Any:
        return SUCCESS


class Small:
    """Three nodes, one after the other gets a pod."""

    def __init__(self, *more: Any) -> None:
        self.plugin, self.cache, self.kept = Local(), Cache(), Kept()
        for name in "abc":
            self.cache.set_node(node(name))
        self.framework = framework(self.plugin, *more)
        self.snapshot = self.framework.new_snapshot()
        self.serial = 0

    def cycle(self, kind: str | None = "x") -> tuple[Placement, list[str]]:
        self.serial += 1
        labels = {} if kind is None else {"kind": kind}
        info = READER.read(pod(f"p{self.serial}", {"cpu": "1"}, metadata={"labels": labels}))
        self.cache.refresh(self.snapshot)
        self.plugin.asked.clear()
        placement = place(self.framework, CycleState(), info, self.snapshot, lambda _: 0, self.kept)
        self.cache.assume(info, placement.node)
        return placement, list(self.plugin.asked)


def test_only_nodes_that_changed_are_asked_about() -> None:
    small = Small()
    for number in range(9):
        small.cache.set_node(node(f"more{number}"))
    first, asked = small.cycle()
    assert len(asked) == 12
    placement, asked = small.cycle()
    assert (placement.reused, asked) == (True, [first.node])
    assert placement.evaluated == placement.feasible == 12


@pytest.mark.parametrize("change", ["key", "no key", "now", "no now", "raises", "node", "a plugin that is not local"])
def test_all_nodes_are_asked_where_others_may_matter(change: str) -> None:
    small = Small(*([Beyond()] if change == "a plugin that is not local" else []))
    small.cycle()
    if change == "node":
        small.cache.set_node(node("d"))
    small.plugin.now = {"now": 1, "no now": None, "raises": "raises"}.get(change, ())
    placement, asked = small.cycle({"key": "y", "no key": None}.get(change, "x"))
    assert not placement.reused
    assert sorted(asked) == sorted(small.snapshot.names)


def test_why_a_pod_fits_nowhere_is_told_of_every_node() -> None:
    small = Small()
    for _ in range(6):
        small.cycle()
    with pytest.raises(NoFitError, match="0/3 nodes are available: 3 full"):
        small.cycle()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_one_node_is_judged_and_rated_as_all_are(seed: int) -> None:
    world = World(seed)
    for number in range(30):
        world.put_node(f"n{number}")
        world.place_elsewhere()
    for strategy in ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"):
        shape = {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}
        chosen = {"type": strategy, "requestedToCapacityRatio": shape}
        args = msgspec.convert({"scoringStrategy": chosen}, NodeResourcesFitArgs)
        side = framework(
            NodeResourcesFit(args, handle(world.wall)), BatchForecast(BatchForecastArgs(), handle(world.wall))
        )
        snapshot = side.new_snapshot()
        world.cache.refresh(snapshot)
        info, state = world.new_pod(), CycleState()
        for plugin in (side.plugins[0], side.plugins[1]):
            assert isinstance(plugin, NodeResourcesFit | BatchForecast)
            marks = plugin.score_nodes(state, info, snapshot, snapshot.all())
            codes = plugin.filter_nodes(state, info, snapshot, snapshot.all()).codes
            for row in snapshot.all():
                assert plugin.score_nodes(state, info, snapshot, np.array([row]))[0] == marks[row]
                assert plugin.filter_nodes(state, info, snapshot, np.array([row])).codes[0] == codes[row]
