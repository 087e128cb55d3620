"""Extenders in the cycle: the stock scheduler's table of outcomes, and what their failures cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from scheduler_plugins.cycle import NoFitError, Placement, place
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.extending import ExtenderError, ExtenderFilter, Victims
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, PluginFailure, Status, failed, unschedulable
from tests.scheduler_plugins.build import framework, info, node, pod, snapshot_of
from tests.scheduler_plugins.rig import Rig


class Fake:
    """An extender that does what its parts say; a part that is None is a verb that it does not have."""

    def __init__(
        self,
        keep: Callable[[str], bool] | Exception | None = None,
        scores: Mapping[str, int] | Exception | None = None,
        *,
        bind: Status | Exception | None = None,
        ignorable: bool = False,
        interested: bool = True,
        name: str = "ext",
        unresolvable: Sequence[str] = (),
    ) -> None:
        self.name, self.ignorable, self._interested = name, ignorable, interested
        self._filter, self._scores, self._bind, self._unresolvable = keep, scores, bind, unresolvable
        self.filters, self.prioritizes = keep is not None, scores is not None
        self.binds, self.preempts = bind is not None, False
        self.calls: list[str] = []

    def interested(self, pod: PodInfo) -> bool:
        return self._interested

    def filter(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> ExtenderFilter:
        self.calls.append("filter " + " ".join(sorted(one.name for one in nodes)))
        if isinstance(self._filter, Exception):
            raise self._filter
        assert self._filter is not None
        kept = frozenset(one.name for one in nodes if self._filter(one.name))
        refused = {one.name: "ext says no" for one in nodes if one.name not in kept}
        return ExtenderFilter(kept, refused, dict.fromkeys(self._unresolvable, "never"))

    def prioritize(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Mapping[str, int]:
        self.calls.append("prioritize " + " ".join(sorted(one.name for one in nodes)))
        if isinstance(self._scores, Exception):
            raise self._scores
        assert self._scores is not None
        return self._scores

    def bind(self, pod: PodInfo, node_name: str) -> Status:
        self.calls.append(f"bind {node_name}")
        if isinstance(self._bind, Exception):
            raise self._bind
        assert self._bind is not None
        return self._bind

    def preempt(self, pod: PodInfo, candidates: Mapping[str, Victims]) -> Mapping[str, Victims]:
        return candidates


class Prefers(api.NodeScorePlugin):
    """Gives one node 100."""

    name = "Prefers"

    def __init__(self, best: str) -> None:
        self.best = best

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> float:
        return 100.0 if node.name == self.best else 0.0


def everything(name: str) -> bool:
    return True


def nothing(name: str) -> bool:
    return False


def only(wanted: str) -> Callable[[str], bool]:
    return lambda name: name == wanted


def run(*extenders: Any, plugins: Sequence[api.Plugin] = (), weights: dict[str, int] | None = None) -> Placement:
    profile = framework(*plugins, weights=weights, extenders=extenders)
    snapshot = snapshot_of(profile, [node("node1"), node("node2")])
    return place(profile, CycleState(), info("p"), snapshot, lambda count: 0)


BROKEN = ExtenderError("ext: connection refused")


@pytest.mark.parametrize(
    ("extenders", "want"),
    [
        ([Fake(everything), Fake(BROKEN)], "error"),
        ([Fake(everything), Fake(nothing)], "unfit"),
        ([Fake(everything), Fake(only("node1"))], ("node1", 2, 1)),
        ([Fake(only("node2")), Fake(only("node1"))], "unfit"),
        ([Fake(everything, BROKEN), Fake(only("node1"))], ("node1", 2, 1)),
        (
            [Fake(scores={"node1": 100}, name="w1"), Fake(scores={"node2": 500}, name="w5")],
            ("node2", 2, 2),
        ),
        ([Fake(nothing, interested=False)], ("either", 2, 2)),
        ([Fake(BROKEN, ignorable=True)], ("either", 2, 2)),
        ([Fake(RuntimeError("a mistake of ours"), ignorable=True)], ("either", 2, 2)),
        ([Fake(RuntimeError("a mistake of ours"))], "error"),
        ([Fake(scores={"node2": 10})], ("node2", 2, 2)),
        ([Fake(scores={"node1": -10})], ("node2", 2, 2)),
    ],
)
def test_outcomes(extenders: list[Fake], want: Any) -> None:
    if want == "error":
        with pytest.raises(PluginFailure, match=r"ext: (ext: connection refused|extender ext failed)"):
            run(*extenders)
    elif want == "unfit":
        with pytest.raises(NoFitError, match="ext says no"):
            run(*extenders)
    else:
        placement = run(*extenders)
        assert want[0] in (placement.node, "either")
        assert (placement.evaluated, placement.feasible) == want[1:]


class FullFirst(api.NodeScorePlugin):
    """Prefers nodes with many pods."""

    name = "FullFirst"

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> float:
        return 10.0 * len(node.pods)


def test_nodes_that_extenders_have_seen_are_scored_with_their_pods() -> None:
    """Row 11 of section 7 (#141781): the stock scheduler scores them as empty where whole nodes were sent."""
    profile = framework(FullFirst(), extenders=[Fake(everything)])
    there = {"node2": [pod("q", {"cpu": "1"})]}
    snapshot = snapshot_of(profile, [node("node1"), node("node2")], there)
    placement = place(profile, CycleState(), info("p"), snapshot, lambda count: 0)
    assert placement.node == "node2"
    assert placement.scores is not None
    assert dict(zip(snapshot.names, placement.scores.totals.tolist(), strict=True)) == {"node1": 0, "node2": 10}


def test_plugin_of_great_weight_outweighs_an_extender() -> None:
    extender = Fake(scores={"node1": 100})
    placement = run(extender, plugins=[Prefers("node2")], weights={"Prefers": 20})
    assert placement.node == "node2"
    assert placement.scores is not None
    assert {name: added.sum() for name, added in placement.scores.by_extender.items()} == {"ext": 100}


def test_one_feasible_node_is_not_prioritised() -> None:
    extender = Fake(only("node1"), {"node2": 10})
    assert run(extender).node == "node1"
    assert extender.calls == ["filter node1 node2"]


def test_extender_that_only_binds_forces_no_scoring() -> None:
    placement = run(Fake(bind=SUCCESS))
    assert placement.scores is not None
    assert placement.scores.totals.tolist() == [1, 1]


def test_ignorable_extenders_are_asked_last_and_see_what_the_others_left() -> None:
    late, early = Fake(everything, name="late", ignorable=True), Fake(only("node2"), name="early")
    run(late, early)
    assert (early.calls, late.calls) == (["filter node1 node2"], ["filter node2"])


def test_nobody_is_asked_about_no_nodes() -> None:
    full = type("Full", (api.NodeFilterPlugin,), {"name": "Full", "filter": lambda *_: unschedulable("full")})()
    extender = Fake(everything)
    with pytest.raises(NoFitError):
        run(extender, plugins=[full])
    assert extender.calls == []


def test_refusals_are_counted_by_reason_and_unresolvable_wins() -> None:
    with pytest.raises(NoFitError) as caught:
        run(Fake(nothing, unresolvable=["node2"]))
    diagnosis = caught.value.diagnosis
    assert {name: status.code for name, status in diagnosis.statuses().items()} == {
        "node1": Code.UNSCHEDULABLE,
        "node2": Code.UNRESOLVABLE,
    }
    assert diagnosis.unschedulable_plugins == {"ext"}
    assert str(caught.value) == "0/2 nodes are available: 1 ext says no, 1 never."


def test_node_that_was_not_asked_about_is_an_error() -> None:
    class Invents(Fake):
        def filter(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> ExtenderFilter:
            return ExtenderFilter(frozenset({"node1", "ghost"}), {}, {})

    with pytest.raises(PluginFailure, match="kept ghost"):
        run(Invents(everything))


def test_node_that_an_extender_loses_without_a_word_is_said_to_be_its() -> None:
    class Silent(Fake):
        def filter(self, pod: PodInfo, nodes: Sequence[NodeInfo]) -> ExtenderFilter:
            return ExtenderFilter(frozenset(), {}, {})

    with pytest.raises(NoFitError, match=r"2 node\(s\) were left out by extender ext"):
        run(Silent(everything))


@pytest.mark.parametrize(
    ("extender", "code", "bound_by"),
    [
        (Fake(bind=SUCCESS), Code.SUCCESS, "ext"),
        (Fake(bind=failed("no")), Code.ERROR, "ext"),
        (Fake(bind=RuntimeError("boom")), Code.ERROR, "ext"),
        (Fake(bind=failed("no"), ignorable=True), Code.SUCCESS, "DefaultBinder"),
        (Fake(bind=failed("no"), interested=False), Code.SUCCESS, "DefaultBinder"),
    ],
)
def test_binding(extender: Fake, code: Code, bound_by: str) -> None:
    status = framework(extenders=[extender]).run_bind(CycleState(), info("p"), "node1")
    assert (status.code, status.plugin) == (code, bound_by)


def test_pod_refused_by_an_extender_tries_again_after_any_event() -> None:
    """#122019 / PR 122022: it sat for five minutes, because the name of the extender woke nobody."""
    extender = Fake(nothing)
    rig = Rig(extenders=[extender])
    rig.server.put_node(node("a"))
    rig.server.put(pod("p"))
    rig.settle()
    assert rig.queue.where(info("p")) == "unschedulable"
    assert rig.condition("p")[2] == "0/1 nodes are available: 1 ext says no."
    extender._filter = everything
    rig.server.put_node(node("a", labels={"any": "change"}))
    rig.later(3)
    assert rig.where("p") == "a"


def test_failure_of_an_extender_is_an_error_that_backs_off() -> None:
    rig = Rig(extenders=[Fake(BROKEN)])
    rig.server.put_node(node("a"))
    rig.server.put(pod("p"))
    rig.settle()
    assert rig.condition("p")[1:] == ("SchedulerError", "ext: ext: connection refused")
    assert rig.queue.where(info("p")) == "backoff"
