"""DefaultPreemption: the stock scheduler's tables (kube-scheduling.md 8.5), its bugs (section 7), and our tiers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.extending import ExtenderError, Victims
from scheduler_plugins.framework.interfaces import NodeFilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.status import (
    SUCCESS,
    PluginFailure,
    Status,
    failed,
    pending,
    unresolvable,
    unschedulable,
)
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.framework.yielding import Claim, MayBeRemoved, gives_way
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.default_preemption import DefaultPreemptionArgs, _helpful
from scheduler_plugins.plugins.preemption_candidates import Candidate, best
from slacktide.errors import SettingsError
from slacktide.objects import Pod
from slacktide.tier import Tier
from tests.scheduler_plugins.build import READER, Clock, framework, handle, info, node, snapshot_of
from tests.scheduler_plugins.plugins.preempting import (
    HIGH,
    HIGHEST,
    LARGE,
    LOW,
    MEDIUM,
    MID,
    SMALL,
    WHOLE,
    Watching,
    World,
    budget,
    sized,
    small_node,
)
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.test_permit import WAIT, Permits

ONE = [small_node("n1")]
TWO = [small_node("n1"), small_node("n2")]
FOO = {"metadata": {"labels": {"app": "foo"}}}
BE = {"metadata": {"labels": {"slacktide.io/tier": "be"}}}


def names(victims: Victims) -> list[str]:
    return sorted(one.pod.metadata.name for one in victims.pods)


def dry_run(who: Pod, nodes: list[Any], placed: dict[str, list[Pod]], *more: Any, **world: Any) -> dict[str, list[str]]:
    """Victims on each candidate."""
    watching = Watching()
    World(nodes, placed, *more, extenders=[watching], **world).attempt(who)
    return {name: names(victims) for name, victims in watching.seen.items()}


def spread(key: str) -> dict[str, Any]:
    return {
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "foo"}},
    }  # fmt: skip


# Dry run.

AGAINST_FOO = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "foo"}}},
]}}  # fmt: skip


@pytest.mark.parametrize(
    ("who", "placed", "wanted"),
    [
        pytest.param(
            sized("p", LARGE, MID),
            {"n1": [sized("a", LARGE, HIGH)], "n2": [sized("b", WHOLE, MID)]},
            {},
            id="residents of a higher or equal priority",
        ),
        pytest.param(
            sized("p", LARGE, HIGH),
            {"n1": [sized("a", LARGE, MID)], "n2": [sized("b", WHOLE, HIGH)]},
            {"n1": ["a"]},
            id="fits after removing one large pod",
        ),
        pytest.param(
            sized("p", LARGE, HIGH),
            {"n1": [sized("a", LARGE, MID)], "n2": [sized("b", LARGE, MID)]},
            {"n1": ["a"], "n2": ["b"]},
            id="on either node",
        ),
        pytest.param(
            sized("p", LARGE, HIGH),
            {"n1": [sized("a", SMALL, LOW), sized("b", LARGE, MID)], "n2": [sized("c", WHOLE, HIGHEST)]},
            {"n1": ["b"]},
            id="small pod of a low priority is reprieved, as the large one of a mid one suffices",
        ),
        pytest.param(
            sized("p", LARGE, HIGH),
            {
                "n1": [
                    sized("a", SMALL, MID),
                    sized("b", SMALL, LOW),
                    sized("c", MEDIUM, MID),
                    sized("d", SMALL, HIGH),
                ],
                "n2": [sized("e", WHOLE, HIGHEST)],
            },
            {"n1": ["b", "c"]},
            id="mixed priorities",
        ),
        pytest.param(
            sized("p", SMALL, HIGH),
            {
                "n1": [
                    sized("a", SMALL, LOW, 5),
                    sized("b", SMALL, LOW, 4),
                    sized("c", MEDIUM, MID),
                    sized("d", SMALL, HIGH),
                ],
                "n2": [sized("e", WHOLE, HIGHEST)],
            },
            {"n1": ["a"]},
            id="of equal priorities the one that started later",
        ),
        pytest.param(
            sized("p", SMALL, HIGH, **FOO),
            {
                "n1": [
                    sized("a", SMALL, LOW, affinity=AGAINST_FOO, **FOO),
                    sized("b", MEDIUM, MID),
                    sized("c", SMALL, HIGH),
                ],
                "n2": [sized("d", WHOLE, HIGHEST)],
            },
            {"n1": ["a"]},
            id="owner of an anti-affinity",
        ),
    ],
)
def test_dry_run_table(who: Pod, placed: dict[str, list[Pod]], wanted: dict[str, list[str]]) -> None:
    nodes = [small_node(name, labels={"kubernetes.io/hostname": name}) for name in ("n1", "n2")]
    if wanted:
        assert dry_run(who, nodes, placed) == wanted
    else:
        world = World(nodes, placed)
        assert world.attempt(who).nominate == ""
        assert (world.evictor.gone, world.evictor.attempts) == ([], 1)


def test_dry_run_of_a_spread_constraint() -> None:
    """One pod of a low priority on node a or b has to go; the other zone has none of them."""
    zone, host = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
    nodes = [small_node(name, labels={zone: z, host: name}) for name, z in (("a", "one"), ("b", "one"), ("x", "two"))]
    placed = {
        "a": [sized("a1", 0, HIGH, **FOO), sized("a2", 0, LOW, **FOO)],
        "b": [sized("b1", 0, LOW, **FOO)],
        "x": [sized("x1", 0, HIGH, **FOO), sized("x2", 0, HIGH, **FOO)],
    }
    who = sized("p", 0, HIGH, topologySpreadConstraints=[spread(zone), spread(host)], **FOO)
    assert dry_run(who, nodes, placed) == {"a": ["a2"], "b": ["b1"]}


class Refuses(NodeFilterPlugin):
    """Refuses every node, whatever is on it."""

    name = "Refuses"

    def filter(self, state: Any, pod: Any, node: Any) -> Status:
        return unschedulable("not here")


def test_dry_run_where_the_filter_refuses_even_the_empty_node() -> None:
    placed = {"n1": [sized("a", LARGE, LOW)], "n2": [sized("b", LARGE, LOW)]}
    found = World(TWO, placed, Refuses()).attempt(sized("p", LARGE, HIGH))
    assert (found.nominate, found.victims) == ("", [])
    assert found.message == ("preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.")


@pytest.mark.parametrize(
    ("going", "allowed", "violations"),
    [((), 1, 1), (("a", "b"), 1, 0), (("a",), 1, 0), ((), 2, 0), ((), 0, 2)],
    ids=["one of two is allowed", "both are going", "one is going", "both are allowed", "none is allowed"],
)
def test_disruptions_that_budgets_do_not_allow(going: tuple[str, ...], allowed: int, violations: int) -> None:
    placed = {"n1": [sized("a", MEDIUM, LOW, **FOO), sized("b", LARGE, LOW, **FOO)]}
    watching = Watching()
    budgets = [budget("one", {"app": "foo"}, allowed, going)]
    World(ONE, placed, extenders=[watching], budgets=budgets).attempt(sized("p", WHOLE, HIGH))
    assert (names(watching.seen["n1"]), watching.seen["n1"].pdb_violations) == (["a", "b"], violations)


@pytest.mark.parametrize(
    "one",
    [budget("all", {}, 0), budget("none", None, 0), budget("others", {"app": "bar"}, 0)],
    ids=["empty selector", "no selector", "of others"],
)
def test_budgets_that_are_about_nobody_here(one: Any) -> None:
    watching = Watching()
    placed = {"n1": [sized("a", WHOLE, LOW, **FOO)]}
    World(ONE, placed, extenders=[watching], budgets=[one]).attempt(sized("p", WHOLE, HIGH))
    assert watching.seen["n1"].pdb_violations == 0


def test_pods_that_a_budget_protects_are_put_back_first() -> None:
    placed = {"n1": [sized("a", MEDIUM, MID), sized("b", MEDIUM, LOW, **FOO)]}
    who = sized("p", LARGE, HIGH)
    assert dry_run(who, ONE, placed) == {"n1": ["b"]}
    assert dry_run(who, ONE, placed, budgets=[budget("one", {"app": "foo"}, 0)]) == {"n1": ["a"]}


# The best candidate.


def candidate(name: str, *pods: tuple[int, int], violations: int = 0) -> Candidate:
    """Victims as (priority, minute of the start)."""
    infos = tuple(READER.read(sized(f"{name}{i}", SMALL, *one)) for i, one in enumerate(pods))
    return Candidate(name, Victims(infos, violations))


@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        ([candidate("a", (HIGH, 0)), candidate("b", (MID, 0))], "b"),
        ([candidate("a", (MID, 0), (MID, 0)), candidate("b", (MID, 0), (LOW, 0))], "b"),
        ([candidate("a", (MID, 0), (-10, 0)), candidate("b", (MID, 0), (-10, 0), (-10, 0))], "a"),
        ([candidate("a", (-5, 0), (-5, 0)), candidate("b", (-5, 0))], "b"),
        ([candidate("a", (MID, 1), (LOW, 9)), candidate("b", (MID, 2), (LOW, 0))], "b"),
        ([candidate("a", (MID, 2), (MID, 5)), candidate("b", (MID, 3), (MID, 4))], "b"),
        ([candidate("a", (LOW, 0), violations=1), candidate("b", (HIGH, 0), (HIGH, 0))], "b"),
        ([candidate("a", (LOW, 1)), candidate("b", (LOW, 1))], "a"),
    ],
    ids=[
        "lowest maximum priority", "smallest sum", "fewest, although negative priorities add up to less",
        "negative priorities do not make more pods cheaper", "latest start of the highest priority",
        "latest of the earliest starts", "budgets go first", "the first of equal ones",
    ],
)  # fmt: skip
def test_best_candidate_table(candidates: list[Candidate], wanted: str) -> None:
    assert best(candidates).node == wanted


# Where preemption may help.


def test_nodes_where_preemption_may_help_are_those_that_are_unschedulable_and_no_more() -> None:
    profile = framework()
    snapshot = snapshot_of(profile, [node(name) for name in "abcdef"])
    statuses = [unschedulable("x"), unresolvable("x"), pending("x"), unschedulable("y")]
    rows = [snapshot.index[name] for name in "abcd"]
    diagnosis = Diagnosis(names=snapshot.names)
    diagnosis.refusals.append(Refusals("P", _array(rows), _array(range(4)), Verdicts.of(statuses)))
    for absent, wanted in ((None, "ad"), (unresolvable(), "ad"), (unschedulable(), "adef")):
        diagnosis.absent = absent
        helpful = _helpful(snapshot, diagnosis)
        assert sorted(name for name in snapshot.names if helpful[snapshot.index[name]]) == list(wanted)


def _array(values: Any) -> Any:
    return np.array(list(values), dtype=np.intp)


class FirstRefuses(PreFilterPlugin):
    """Its refusal does not keep later plugins from preparing their state."""

    name = "FirstRefuses"

    def pre_filter(self, state: Any, pod: Any, snapshot: Any) -> PreFilterResult:
        return PreFilterResult(unschedulable("taken as a whole"))


def test_state_of_later_plugins_is_there_when_a_prefilter_refuses_the_pod() -> None:
    """#119770: every node may be a candidate then, and each plugin must be able to judge it."""
    spread_pod = sized("p", LARGE, HIGH, topologySpreadConstraints=[spread("kubernetes.io/hostname")], **FOO)
    placed = {"n1": [sized("a", LARGE, LOW, **FOO)]}
    world = World([small_node("n1", labels={"kubernetes.io/hostname": "n1"})], placed)
    first = FirstRefuses()
    profile = framework(first, *(p for p in world.profile.plugins), nominations=world.nominator)
    world.profile = profile
    assert world.attempt(spread_pod).victims == ["a"]


# Eligibility.


def test_pod_that_must_not_preempt_does_not() -> None:
    found = World(ONE, {"n1": [sized("a", WHOLE, LOW)]}).attempt(sized("p", SMALL, HIGH, preemptionPolicy="Never"))
    assert (found.nominate, found.victims) == (None, [])
    assert found.message == "preemption: not eligible due to preemptionPolicy=Never."


PREEMPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
TERMINATING = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("victim", "eligible"),
    [
        (sized("v", LARGE, LOW, status=PREEMPTED, **TERMINATING), False),
        (sized("v", LARGE, LOW, **TERMINATING), True),
        (sized("v", LARGE, LOW, status=PREEMPTED), True),
        (sized("v", LARGE, HIGHEST, status=PREEMPTED, **TERMINATING), True),
    ],
    ids=["preempted and going", "going by itself", "not going yet", "does not give way"],
)
def test_pod_waits_for_its_victim_on_the_nominated_node(victim: Pod, eligible: bool) -> None:
    placed = {"n1": [victim, sized("w", MEDIUM, LOW)], "n2": [sized("b", WHOLE, LOW)]}
    found = World(TWO, placed).attempt(sized("p", LARGE, HIGH, status={"nominatedNodeName": "n1"}))
    assert bool(found.victims) == eligible
    if not eligible:
        assert found.nominate is None
        assert found.message == "preemption: not eligible due to a terminating pod on the nominated node."


def test_nominated_node_that_can_never_suit_again_keeps_nobody_waiting() -> None:
    going = sized("v", LARGE, LOW, status=PREEMPTED, **TERMINATING)
    nodes = [node("n1", {"cpu": "200m", "pods": "32"}), small_node("n2")]
    world = World(nodes, {"n1": [going], "n2": [sized("b", WHOLE, LOW)]})
    assert world.attempt(sized("p", LARGE, HIGH, status={"nominatedNodeName": "n1"})).nominate == "n2"


def test_stale_nomination_to_a_node_that_is_gone_blocks_nothing() -> None:
    """#85677, #106780: a phantom nominatedNodeName."""
    who = sized("p", LARGE, HIGH, status={"nominatedNodeName": "removed"})
    assert World(ONE, {"n1": [sized("a", WHOLE, LOW)]}).attempt(who).nominate == "n1"


def test_nomination_is_taken_back_when_there_is_no_candidate_any_more() -> None:
    who = sized("p", LARGE, HIGH, status={"nominatedNodeName": "n1"})
    assert World(ONE, {"n1": [sized("a", WHOLE, HIGHEST)]}).attempt(who).nominate == ""


# Tiers.


@pytest.mark.parametrize(
    ("who", "priority", "other", "other_priority", "way"),
    [
        ("be", 9000, "ls", 0, False),
        ("be", 9000, "system", 0, False),
        ("be", 100, "be", 0, True),
        ("be", 0, "be", 0, False),
        ("ls", 0, "be", 0, True),
        ("ls", 100, "be", 0, True),
        ("ls", 0, "be", 100, False),
        ("ls", 0, "ls", 0, False),
        ("ls", 100, "ls", 0, True),
        ("system", 0, "be", 0, True),
        ("system", 100, "ls", 0, True),
        ("ls", 100, "system", 0, True),
    ],
)
def test_who_gives_way(who: str, priority: int, other: str, other_priority: int, way: bool) -> None:
    def of(tier: str, value: int) -> Any:
        return info("x", priority=value, metadata={"labels": {"slacktide.io/tier": tier}})

    assert gives_way(of(other, other_priority), to=of(who, priority)) == way


def test_best_effort_pod_never_removes_another_tier() -> None:
    found = World(ONE, {"n1": [sized("ls", WHOLE, LOW)]}).attempt(sized("p", SMALL, HIGHEST, **BE))
    assert (found.nominate, found.victims) == ("", [])


def test_best_effort_pods_are_taken_before_any_other() -> None:
    """On one node by the order of the reprieve, whatever budgets and priorities say; of two by the choice."""
    placed = {"n1": [sized("ls", MEDIUM, -5), sized("be", MEDIUM, HIGH, **BE)]}
    who = sized("p", LARGE, HIGH)
    assert dry_run(who, ONE, placed) == {"n1": ["be"]}
    assert dry_run(who, ONE, placed, budgets=[budget("one", {"slacktide.io/tier": "be"}, 0)]) == {"n1": ["be"]}
    placed = {"n1": [sized("ls", WHOLE, LOW)], "n2": [sized("be", WHOLE, HIGH, **BE)]}
    budgets = [budget("one", {"slacktide.io/tier": "be"}, 0)]
    assert World(TWO, placed, budgets=budgets).attempt(sized("p", SMALL, HIGH)).victims == ["be"]


@pytest.mark.parametrize(
    "kept",
    [
        {"annotations": {"slacktide.io/evictable": "false"}},
        {"annotations": {"slacktide.io/evictable": ""}},
        {"labels": {"koordinator.sh/eviction-enabled": "false"}},
        {"annotations": {"kubernetes.io/config.mirror": "hash"}},
    ],
    ids=["opted out", "anything but true", "opted out as in koordinator", "static pod"],
)
def test_pods_that_must_not_go_stay(kept: dict[str, Any]) -> None:
    found = World(ONE, {"n1": [sized("a", WHOLE, LOW, metadata=kept)]}).attempt(sized("p", SMALL, HIGH))
    assert (found.nominate, found.victims) == ("", [])
    other = {"annotations": {"slacktide.io/evictable": "true"}}
    found = World(ONE, {"n1": [sized("a", WHOLE, LOW, metadata=other)]}).attempt(sized("p", SMALL, HIGH))
    assert found.victims == ["a"]


def test_pod_that_is_going_anyway_is_taken_first_and_its_node_before_others() -> None:
    going = sized("going", MEDIUM, MID, **TERMINATING)
    assert dry_run(sized("p", LARGE, HIGH), ONE, {"n1": [going, sized("low", MEDIUM, LOW)]}) == {"n1": ["going"]}
    placed = {"n1": [sized("low", WHOLE, LOW)], "n2": [sized("g", WHOLE, MID, **TERMINATING)]}
    assert World(TWO, placed).attempt(sized("p", SMALL, HIGH)).nominate == "n2"


# What happens to others.


def test_pods_nominated_to_the_node_that_give_way_look_elsewhere() -> None:
    nominator = Nominator()
    placed = {"n1": [sized("a", WHOLE, LOW)], "n2": [sized("b", WHOLE, HIGHEST)]}
    for name, priority, where in (("low", LOW, "n1"), ("equal", HIGH, "n1"), ("elsewhere", LOW, "n2")):
        nominator.set(READER.read(sized(name, 0, priority)), where)
    found = World(TWO, placed, nominator=nominator).attempt(sized("p", SMALL, HIGH))
    assert (found.nominate, found.evictor.withdrawn, found.activated) == ("n1", ["low"], ["low"])


def test_victim_that_could_not_be_removed_is_not_waited_for() -> None:
    """#134217, #134249: the preemptor waited for ever when a delete failed."""
    world = World(ONE, {"n1": [sized("a", WHOLE, LOW)]}, refuse={"a": failed("no right")})
    who = sized("p", SMALL, HIGH)
    first = world.attempt(who)
    assert (first.nominate, first.victims, first.activated) == ("n1", ["a"], ["p"])
    world.nominator.set(READER.read(who), "n1")
    assert world.attempt(who).victims == ["a"]


def test_victims_that_were_asked_to_go_are_not_replaced_by_others_before_the_watch_tells_of_it() -> None:
    world = World(TWO, {"n1": [sized("a", WHOLE, LOW)], "n2": [sized("b", WHOLE, MID)]})
    who = sized("p", LARGE, HIGH)
    assert world.attempt(who).nominate == "n1"
    world.nominator.set(READER.read(who), "n1")
    again = world.attempt(who)
    assert (again.nominate, again.victims) == (None, [])
    # The victim left, another took the room: a new attempt is a new choice.
    world.placed["n1"] = [sized("c", WHOLE, LOW)]
    assert world.attempt(who).victims == ["c"]


def test_evictor_that_raises_keeps_nobody_waiting() -> None:
    world = World(ONE, {"n1": [sized("a", WHOLE, LOW)]})

    def broken(*_: Any) -> Status:
        raise RuntimeError("broken")

    world.evictor.preempt = broken  # type: ignore[method-assign]
    assert world.attempt(sized("p", SMALL, HIGH)).activated == ["p"]


# Extenders.


def test_extender_narrows_the_candidates_and_names_other_victims() -> None:
    placed = {"n1": [sized("a", WHOLE, LOW)], "n2": [sized("b", MEDIUM, MID), sized("c", LARGE, LOW)]}

    def answer(candidates: Any) -> Any:
        return {"n2": Victims((READER.read(placed["n2"][0]), READER.read(placed["n2"][1])), 0)}

    watching = Watching(answer)
    found = World(TWO, placed, extenders=[watching]).attempt(sized("p", SMALL, HIGH))
    assert (sorted(watching.seen), found.nominate, sorted(found.victims)) == (["n1", "n2"], "n2", ["b", "c"])


def test_extender_without_the_verb_is_not_asked() -> None:
    """#139270: its filter has no say in preemption."""
    extender = Watching(lambda _: {})
    extender.preempts = False
    assert World(ONE, {"n1": [sized("a", WHOLE, LOW)]}, extenders=[extender]).attempt(sized("p", 1, HIGH)).nominate
    assert extender.seen == {}


@pytest.mark.parametrize("ignorable", [False, True])
def test_extender_that_fails(ignorable: bool) -> None:
    def fail(_: Any) -> Any:
        raise ExtenderError("extender watching: preempt: away")

    extender = Watching(fail)
    extender.ignorable = ignorable
    world = World(ONE, {"n1": [sized("a", WHOLE, LOW)]}, extenders=[extender])
    if ignorable:
        assert world.attempt(sized("p", SMALL, HIGH)).victims == ["a"]
        return
    with pytest.raises(PluginFailure, match="watching: extender watching: preempt: away"):
        world.attempt(sized("p", SMALL, HIGH))
    assert world.evictor.gone == []


@pytest.mark.parametrize("answer", ["nothing", "unknown node", "a pod that must stay"])
def test_extender_cannot_make_others_go_than_give_way(answer: str) -> None:
    stays = READER.read(sized("ls", SMALL, LOW))
    answers: dict[str, Any] = {
        "nothing": {}, "unknown node": {"n9": Victims(())}, "a pod that must stay": {"n1": Victims((stays,))},
    }  # fmt: skip
    placed = {"n1": [sized("be", LARGE, LOW, **BE), sized("ls", MEDIUM, LOW)]}
    world = World(ONE, placed, extenders=[Watching(lambda _: answers[answer])])
    who = sized("p", MEDIUM, HIGH, **BE)
    if answer == "unknown node":
        with pytest.raises(PluginFailure, match="n9, which is no candidate"):
            world.attempt(who)
    else:
        found = world.attempt(who)
        assert found.message == "preemption: no candidate is left after the extenders were asked"
        assert found.nominate is None
    assert world.evictor.gone == []


def test_node_with_no_victims_is_a_candidate_of_an_extender_only() -> None:
    """PR 135486: empty victim lists are legal where an extender can fill them; nobody else could."""
    placed = {"n1": [sized("a", SMALL, LOW)]}
    watching = Watching()
    found = World(ONE, placed, Once(), extenders=[watching]).attempt(sized("p", SMALL, HIGH))
    assert (names(watching.seen["n1"]), found.nominate, found.victims) == ([], "n1", [])
    assert World(ONE, placed, Once()).attempt(sized("p", SMALL, HIGH)).nominate == ""


class Once(NodeFilterPlugin):
    """Refuses the first question about a node only, as a filter outside the profile may look from inside."""

    name = "Once"

    def __init__(self) -> None:
        self.asked = 0

    def filter(self, state: Any, pod: Any, node: Any) -> Status:
        self.asked += 1
        return unschedulable("once") if self.asked == 1 else SUCCESS


# How many nodes are tried.


def test_arguments() -> None:
    build = default_registry().build
    for wrong in (
        {"minCandidateNodesPercentage": 101}, {"minCandidateNodesPercentage": -1}, {"minCandidateNodesAbsolute": -1},
        {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
    ):  # fmt: skip
        with pytest.raises(SettingsError, match="minCandidateNodes"):
            build("DefaultPreemption", wrong, handle())
    stock = DefaultPreemptionArgs()
    assert [stock.candidates(n) for n in (1, 50, 100, 900, 1000, 5000)] == [1, 50, 100, 100, 100, 500]
    assert DefaultPreemptionArgs(min_candidate_nodes_percentage=1, min_candidate_nodes_absolute=0).candidates(5) == 1


class Counts(NodeFilterPlugin):
    """Counts the questions about nodes with nobody on them but `left`."""

    name = "Counts"

    def __init__(self, left: int = 0, seconds: float = 0.0, clock: Clock | None = None) -> None:
        self.asked = 0
        self._left, self._seconds, self._clock = left, seconds, clock

    def filter(self, state: Any, pod: Any, node: Any) -> Status:
        if len(node.pods) <= self._left:
            self.asked += 1
            if self._clock is not None:
                self._clock.forward(self._seconds)
        return SUCCESS


def crowd(count: int, **labels: Any) -> tuple[list[Any], dict[str, list[Pod]]]:
    nodes = [small_node(f"n{i}") for i in range(count)]
    return nodes, {f"n{i}": [sized(f"v{i}", WHOLE, i, i % 60)] for i in range(count)}


def test_of_many_nodes_the_best_is_found_with_few_questions() -> None:
    nodes, placed = crowd(60)
    counts = Counts()
    found = World(nodes, placed, counts).attempt(sized("p", SMALL, HIGH))
    assert (found.victims, counts.asked) == (["v0"], 1)


def test_only_so_many_candidates_are_looked_at_as_the_arguments_say() -> None:
    nodes, placed = crowd(60)
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=50, min_candidate_nodes_absolute=1)
    watching = Watching()
    World(nodes, placed, extenders=[watching], args=args).attempt(sized("p", SMALL, HIGH))
    assert len(watching.seen) == 30


def test_trying_ends_after_a_while_and_says_how_many_nodes_were_left_out() -> None:
    nodes, placed = crowd(40)
    clock = Clock()

    class Slow(Counts):
        def filter(self, state: Any, pod: Any, node: Any) -> Status:
            super().filter(state, pod, node)
            return SUCCESS if node.pods else unschedulable("never")

    world = World(nodes, placed, Slow(0, 0.03, clock), clock=clock)
    found = world.attempt(sized("p", SMALL, HIGH))
    assert found.nominate == ""
    assert "node(s) were not tried, as the others took too long" in found.message


def test_a_pod_that_left_is_the_only_event_that_it_asks_for() -> None:
    plugin = default_registry().build("DefaultPreemption", {}, handle())
    assert [r.event for r in plugin.events_to_register()] == [events.ASSIGNED_POD_DELETE]  # type: ignore[attr-defined]


# Against the plain way.

PODS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0, 100, 200, 300]), st.booleans(), st.integers(0, 59)), max_size=9
)


def _plain(who: Any, placed: list[Any], room: int) -> list[str] | None:
    """Remove all, put one after the other back; resources only."""
    may_go = MayBeRemoved(Claim.of(who))
    stays = sum(one.requests.get("cpu", 0) for one in placed if not may_go.matches(one))
    wanted = who.requests.get("cpu", 0)
    if stays + wanted > room:
        return None
    order = [one for one in placed if may_go.matches(one)]
    order.sort(key=lambda one: (one.tier is Tier.BE, -one.priority, one.pod.status.start_time))
    victims = []
    for one in order:
        asked = one.requests.get("cpu", 0)
        if stays + wanted + asked <= room:
            stays += asked
        else:
            victims.append(one.pod.metadata.name)
    return victims


@settings(max_examples=80, deadline=None)
@given(pods=PODS, tier=st.booleans(), seed=st.integers(0, 1000), judged=st.booleans())
def test_victims_are_those_of_the_plain_way_and_all_of_them_give_way(
    pods: Any, tier: bool, seed: int, judged: bool
) -> None:
    """`judged`: without a foretelling from NodeResourcesFit, by questions alone, it comes to the same."""
    placed = [
        sized(f"v{i}", cpu, priority, minute, **(BE if be else {}))
        for i, (priority, cpu, be, minute) in enumerate(pods)
    ]
    random.Random(seed).shuffle(placed)
    who = sized("p", WHOLE - 50, 3, **(BE if tier else {}))
    infos = [READER.read(one) for one in placed]
    if sum(one.requests.get("cpu", 0) for one in infos) + WHOLE - 50 <= WHOLE:
        return
    world = World(ONE, {"n1": placed}, plugins=[CpuOnly()] if judged else None)
    wanted = _plain(READER.read(who), infos, WHOLE)
    found = world.attempt(who)
    assert sorted(found.victims) == sorted(wanted or [])
    assert bool(found.nominate) == bool(wanted)


class CpuOnly(NodeFilterPlugin):
    """Room for the CPU request, of which preemption is told nothing."""

    name = "CpuOnly"

    def filter(self, state: Any, pod: Any, node: Any) -> Status:
        free = node.allocatable["cpu"] - node.requested.get("cpu", 0)
        return SUCCESS if pod.requests.get("cpu", 0) <= free else unschedulable("no room")


# Through the whole scheduler.


def test_room_is_made_and_the_pod_comes_to_it() -> None:
    rig = Rig(preemption=True)
    rig.server.put_node(small_node("n"))
    rig.server.put(sized("v", WHOLE, LOW, nodeName="n"))
    rig.server.put(sized("p", LARGE, HIGH, status={"phase": "Pending"}))
    rig.settle()
    rig.later(2)
    assert rig.where("p") == "n"
    assert rig.server.deletions == ["v"]
    assert ("v", "Normal", "Preempted", "Preempted by pod uid-p on node n") in rig.recorder.events
    assert rig.metric("scheduler_preemption_victims_sum") == 1


def test_deletions_do_not_hold_up_the_loop_and_nobody_else_gets_the_room() -> None:
    rig = Rig(preemption=True, bind_now=False)
    rig.server.put_node(small_node("n"))
    rig.server.put(sized("v", WHOLE, LOW, nodeName="n"))
    rig.server.put(sized("p", LARGE, HIGH, status={"phase": "Pending"}))
    rig.settle()
    assert (rig.server.deletions, len(rig.bindings), rig.nominator.node_of("uid-p")) == ([], 1, "n")
    rig.server.put(sized("other", LARGE, MID, status={"phase": "Pending"}))
    rig.settle()
    assert rig.server.pods["default", "p"].status.nominated_node_name == "n"
    rig.run_bindings()
    assert rig.server.deletions == ["v"]
    rig.later(11)
    rig.run_bindings()
    assert (rig.where("p"), rig.where("other")) == ("n", "")


def test_victim_that_waits_at_permit_is_rejected_and_not_deleted() -> None:
    """#100235 / PR 100325."""
    rig = Rig(None, Permits(WAIT), preemption=True)
    rig.server.put_node(small_node("n"))
    rig.server.put(sized("v", WHOLE, LOW, status={"phase": "Pending"}))
    rig.settle()
    assert len(rig.waiting.all()) == 1
    rig.server.put(sized("p", LARGE, HIGH, status={"phase": "Pending"}))
    rig.settle()
    rig.later(2)
    assert (rig.server.deletions, rig.where("v")) == ([], "")
    assert [waiter.pod.pod.metadata.name for waiter in rig.waiting.all()] == ["p"]


def test_best_effort_pod_leaves_room_that_was_made_for_another_tier_alone() -> None:
    """Whatever its priority: it would not have got it from the pod itself either."""
    rig = Rig(preemption=True)
    rig.offer(8000)
    waiting = {"phase": "Pending", "nominatedNodeName": "n"}
    rig.server.put(sized("p", 6000, LOW, status=waiting, schedulingGates=[{"name": "g"}]))
    rig.server.put(sized("be", 6000, HIGHEST, status={"phase": "Pending"}, **BE))
    rig.settle()
    assert rig.where("be") == ""
    assert "1 Insufficient cpu" in rig.condition("be")[2]
    rig.server.remove("p")
    rig.settle()
    rig.later(2)
    assert rig.where("be") == "n"


def test_many_pods_are_read_little_by_little_and_the_pod_tries_again_until_all_are() -> None:
    """No event would wake it for a node that was not read yet."""
    nodes, placed = crowd(6)

    class Running(Clock):
        def __call__(self) -> float:
            self.now += 0.011
            return self.now

    world = World(nodes, placed, clock=Running(), plugins=[Refuses()])
    snapshot = world.snapshot()
    attempts = [world.attempt(sized("p", SMALL, HIGH), snapshot) for _ in range(5)]
    assert "were not tried" in attempts[0].message
    assert "were not tried" not in attempts[-1].message
    assert 1 <= len(world.activated) < 5
