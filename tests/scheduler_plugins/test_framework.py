"""Framework: what each answer of a plugin means at each extension point."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from scheduler_plugins.cycle import NoNodesError, place
from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.diagnosis import Diagnosis, FitError
from scheduler_plugins.framework.events import ALL_EVENTS, NODE, NODE_ADD, Action, ClusterEvent, Registration
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.state import CycleState, StateKey, StateMissing
from scheduler_plugins.framework.status import (
    SKIP,
    SUCCESS,
    Code,
    PluginFailure,
    Reason,
    Status,
    failed,
    pending,
    unresolvable,
    unschedulable,
)
from scheduler_plugins.framework.verdicts import Verdicts
from slacktide.errors import SettingsError
from tests.scheduler_plugins.build import Silent, framework, handle, info, node, snapshot_of

NODES = [node("a"), node("b"), node("c")]


def named(name: str, *bases: type, **methods) -> api.Plugin:
    return type(name, bases, {"name": name, "calls": [], **methods})()


def pre_filtering(name: str, answer: Status, nodes: frozenset[str] | None = None) -> api.Plugin:
    def pre_filter(self, state, pod, snapshot):
        self.calls.append("PreFilter")
        return api.PreFilterResult(answer, nodes)

    def filter_(self, state, pod, node):
        self.calls.append(node.name)
        return SUCCESS

    return named(name, api.PreFilterPlugin, api.NodeFilterPlugin, pre_filter=pre_filter, filter=filter_)


def run(*plugins: api.Plugin, choose=lambda count: 0, weights=None):
    profile = framework(*plugins, weights=weights)
    return place(profile, CycleState(), info("p"), snapshot_of(profile, NODES), choose)


# Status.


def test_codes_have_the_documented_order_and_names() -> None:
    assert [code.name for code in sorted(Code)] == [
        "SUCCESS",
        "ERROR",
        "UNSCHEDULABLE",
        "UNRESOLVABLE",
        "WAIT",
        "SKIP",
        "PENDING",
    ]
    assert [int(code) for code in Code] == list(range(7))


@pytest.mark.parametrize(
    ("status", "rejected"),
    [
        (SUCCESS, False),
        (failed("x"), False),
        (unschedulable("x"), True),
        (unresolvable("x"), True),
        (Status(Code.WAIT), False),
        (SKIP, False),
        (pending("x"), True),
    ],
)
def test_what_counts_as_a_refusal(status: Status, rejected: bool) -> None:
    assert status.rejected is rejected


def test_message_joins_reasons() -> None:
    assert unschedulable("a", Reason("b", "needs 2")).message == "a, b (needs 2)"


# CycleState.


def test_state_is_typed_by_key_and_clones_what_can_clone_itself() -> None:
    class Box:
        def __init__(self, value):
            self.value = value

        def clone(self):
            return Box(self.value)

    key, shared = StateKey[Box]("P/box"), StateKey[list]("P/list")
    state = CycleState()
    state.write(key, Box(1))
    state.write(shared, [])
    copy = state.clone()
    copy.read(key).value = 2
    assert state.read(key).value == 1
    assert copy.read(shared) is state.read(shared)
    state.delete(key)
    with pytest.raises(StateMissing, match="P/box"):
        state.read(key)


# PreFilter.


def test_skip_leaves_out_the_filter_of_that_plugin_only() -> None:
    skips, judges = pre_filtering("Skips", SKIP), pre_filtering("Judges", SUCCESS)
    run(skips, judges)
    assert skips.calls == ["PreFilter"]
    assert sorted(judges.calls) == ["PreFilter", "a", "b", "c"]


def test_unschedulable_lets_the_others_run_before_it_ends_the_cycle() -> None:
    first, second = pre_filtering("First", unschedulable("no")), pre_filtering("Second", SUCCESS)
    with pytest.raises(FitError, match="0/3 nodes are available: no") as caught:
        run(first, second)
    assert second.calls == ["PreFilter"]
    assert caught.value.diagnosis.unschedulable_plugins == {"First"}
    assert caught.value.diagnosis.absent is not None
    assert caught.value.diagnosis.absent.code is Code.UNSCHEDULABLE


def test_unresolvable_ends_pre_filter_at_once() -> None:
    first, second = pre_filtering("First", unresolvable("never")), pre_filtering("Second", SUCCESS)
    with pytest.raises(FitError):
        run(first, second)
    assert second.calls == []


def test_pending_is_remembered_as_such() -> None:
    with pytest.raises(FitError) as caught:
        run(pre_filtering("Waits", pending("not yet")))
    assert caught.value.diagnosis.pending_plugins == {"Waits"}
    assert caught.value.diagnosis.unschedulable_plugins == set()


def test_error_aborts() -> None:
    second = pre_filtering("Second", SUCCESS)
    with pytest.raises(PluginFailure, match="broken"):
        run(pre_filtering("First", failed("broken")), second)
    assert second.calls == []


def test_node_sets_are_intersected_and_unknown_names_ignored() -> None:
    one = pre_filtering("One", SUCCESS, frozenset({"a", "b", "ghost"}))
    two = pre_filtering("Two", SUCCESS, frozenset({"b", "c", "ghost"}))
    assert run(one, two).node == "b"
    assert one.calls == ["PreFilter", "b"]


def test_disjoint_node_sets_refuse_the_pod_and_name_who_did() -> None:
    with pytest.raises(FitError) as caught:
        run(pre_filtering("One", SUCCESS, frozenset({"a"})), pre_filtering("Two", SUCCESS, frozenset({"c"})))
    assert caught.value.diagnosis.absent.code is Code.UNRESOLVABLE
    assert caught.value.diagnosis.unschedulable_plugins == {"One", "Two"}


def test_nodes_left_out_by_a_set_are_counted_in_the_message() -> None:
    refuse = named("Refuse", api.NodeFilterPlugin, filter=lambda self, state, pod, node: unschedulable("full"))
    with pytest.raises(FitError) as caught:
        run(pre_filtering("Narrow", SUCCESS, frozenset({"a"})), refuse)
    assert str(caught.value) == "0/3 nodes are available: 1 full, 2 node(s) didn't satisfy plugin(s) [Narrow]."
    assert caught.value.diagnosis.unschedulable_plugins == {"Narrow", "Refuse"}


@pytest.mark.parametrize("method", ["pre_filter", "filter"])
def test_a_plugin_that_raises_fails_the_cycle_with_its_name(method: str) -> None:
    def boom(self, *args):
        raise RuntimeError("boom")

    plugin = type("Boom", (type(pre_filtering("Boom", SUCCESS)),), {method: boom})()
    with pytest.raises(PluginFailure, match=r"Boom.*boom"):
        run(plugin)


# Filter.


def test_first_refusal_of_a_node_decides_and_later_plugins_do_not_see_it() -> None:
    first = named(
        "First", api.NodeFilterPlugin, filter=lambda s, state, pod, n: SUCCESS if n.name == "b" else unschedulable("x")
    )
    second = pre_filtering("Second", SUCCESS)
    assert run(first, second).node == "b"
    assert second.calls == ["PreFilter", "b"]


def test_neither_success_nor_refusal_on_one_node_aborts() -> None:
    wrong = named(
        "Wrong", api.NodeFilterPlugin, filter=lambda s, state, pod, n: Status(Code.WAIT) if n.name == "c" else SUCCESS
    )
    with pytest.raises(PluginFailure, match="node c"):
        run(wrong)


def test_columnar_and_per_node_form_answer_for_each_other() -> None:
    class Columnar(api.FilterPlugin):
        name = "Columnar"

        def filter_nodes(self, state, pod, snapshot, rows):
            full = np.array([snapshot.names[row] == "b" for row in rows])
            return Verdicts.where(full, Code.UNSCHEDULABLE, lambda i: (Reason(f"full {snapshot.names[rows[i]]}"),))

    class PerNode(api.NodeFilterPlugin):
        name = "PerNode"

        def filter(self, state, pod, node):
            return unschedulable(f"full {node.name}") if node.name == "b" else SUCCESS

    for plugin in (Columnar(), PerNode()):
        profile = framework(plugin)
        snapshot = snapshot_of(profile, NODES)
        alone = [plugin.filter_node(CycleState(), info("p"), snapshot, row) for row in range(3)]
        together = plugin.filter_nodes(CycleState(), info("p"), snapshot, snapshot.all())
        assert [s.code for s in alone] == [together.status(i).code for i in range(3)]
        assert [s.reasons for s in alone] == [together.status(i).reasons for i in range(3)]
        assert [s.message for s in alone if s.rejected] == ["full b"]


def test_answer_of_the_wrong_length_is_an_error() -> None:
    short = named("Short", api.FilterPlugin, filter_nodes=lambda s, state, pod, snapshot, rows: Verdicts.of([]))
    with pytest.raises(PluginFailure, match="judged 0 nodes, asked for 3"):
        run(short)


def test_message_counts_by_kind_and_shows_the_nearest_numbers() -> None:
    misses = {"a": 500, "b": 20, "c": 900}
    near = named(
        "Near",
        api.NodeFilterPlugin,
        filter=lambda s, state, pod, n: unschedulable(Reason("too small", f"lacks {misses[n.name]}", misses[n.name])),
    )
    with pytest.raises(FitError) as caught:
        run(near)
    assert str(caught.value) == "0/3 nodes are available: 3 too small (nearest b: lacks 20)."
    assert {n: s.message for n, s in caught.value.diagnosis.statuses().items()}["c"] == "too small (lacks 900)"


def test_message_sorts_the_counted_reasons_as_text() -> None:
    reasons = {"a": ("zebra",), "b": ("apple", "zebra"), "c": ("apple", "zebra")}
    plugin = named("P", api.NodeFilterPlugin, filter=lambda s, state, pod, n: unschedulable(*reasons[n.name]))
    with pytest.raises(FitError, match=r"0/3 nodes are available: 2 apple, 3 zebra\."):
        run(plugin)


def test_no_nodes_at_all_is_its_own_case() -> None:
    profile = framework()
    with pytest.raises(NoNodesError, match="no nodes available to schedule pods"):
        place(profile, CycleState(), info("p"), snapshot_of(profile, []), lambda n: 0)


# PostFilter.


@pytest.mark.parametrize(
    ("first", "second_asked"), [(unschedulable("a"), True), (SUCCESS, False), (unresolvable("a"), False)]
)
def test_post_filter_goes_on_only_after_unschedulable(first: Status, second_asked: bool) -> None:
    asked = []

    def post(answer):
        def post_filter(self, state, pod, snapshot, diagnosis, what_if):
            asked.append(self.name)
            return api.PostFilterResult(answer)

        return post_filter

    refuse = named("Refuse", api.NodeFilterPlugin, filter=lambda s, state, pod, n: unschedulable("full"))
    plugins = [
        named("First", api.PostFilterPlugin, post_filter=post(first)),
        named("Second", api.PostFilterPlugin, post_filter=post(unschedulable("b"))),
    ]
    with pytest.raises(FitError, match="full") as caught:
        run(refuse, *plugins)
    assert asked == (["First", "Second"] if second_asked else ["First"])
    assert caught.value.diagnosis.post_filter_message == ("a, b" if second_asked else first.message)


# PreFilter extensions.


def test_extensions_run_in_order_without_skipped_plugins_and_stop_at_the_first_failure() -> None:
    asked = []

    def extended(name, answer, at_start=SUCCESS):
        def add_pod(self, state, pod, added, node):
            asked.append((self.name, added.key, node.name))
            return answer

        return named(
            name,
            api.PreFilterPlugin,
            api.PreFilterExtensions,
            pre_filter=lambda self, state, pod, snapshot: api.PreFilterResult(at_start),
            add_pod=add_pod,
            remove_pod=add_pod,
        )

    profile = framework(extended("Skipped", SUCCESS, SKIP), extended("Fails", failed("x")), extended("Never", SUCCESS))
    snapshot = snapshot_of(profile, NODES)
    state = CycleState()
    profile.run_pre_filter(state, info("p"), snapshot, Diagnosis(names=snapshot.names))
    for run_extension in (profile.run_add_pod, profile.run_remove_pod):
        asked.clear()
        assert run_extension(state, info("p"), info("other"), snapshot.nodes[0]).plugin == "Fails"
        assert asked == [("Fails", "default/other", snapshot.nodes[0].name)]


# Score.


def scoring(name: str, scores: dict[str, float], *, pre=SUCCESS, normalize=None) -> api.Plugin:
    def score(self, state, pod, node):
        self.calls.append(node.name)
        return scores[node.name]

    extra = {"normalize": normalize} if normalize else {}
    return named(
        name,
        api.PreScorePlugin,
        api.NodeScorePlugin,
        pre_score=lambda self, state, pod, snapshot, rows: pre,
        score=score,
        **extra,
    )


def test_total_is_the_weighted_sum_of_normalised_scores() -> None:
    doubled = scoring("Doubled", {"a": 10, "b": 20, "c": 30}, normalize=lambda s, state, pod, scores: scores * 2)
    plain = scoring("Plain", {"a": 90, "b": 10, "c": 40})
    placement = run(doubled, plain, weights={"Doubled": 3})
    totals = dict(zip([NODES[r].metadata.name for r in placement.scores.rows], placement.scores.totals, strict=True))
    assert {totals["a"], totals["b"], totals["c"]} == {150, 130, 220}
    assert placement.node == "c"


@pytest.mark.parametrize(("score", "fine"), [(0, True), (100, True), (101, False), (-1, False), (float("nan"), False)])
def test_score_out_of_range_is_an_error(score: float, fine: bool) -> None:
    plugin = scoring("S", {"a": 1, "b": score, "c": 1})
    if fine:
        run(plugin)
        return
    with pytest.raises(PluginFailure, match="must be 0 to 100"):
        run(plugin)


@pytest.mark.parametrize("where", ["score", "normalize"])
def test_score_or_normalize_that_raises_is_an_error(where: str) -> None:
    def boom(*args):
        raise RuntimeError("boom")

    plugin = type("Boom", (type(scoring("S", dict.fromkeys("abc", 1))),), {where: boom})()
    with pytest.raises(PluginFailure, match="boom"):
        run(plugin)


def test_plugin_skipped_in_pre_score_is_not_called_and_contributes_nothing() -> None:
    skipped, other = scoring("Skipped", {}, pre=SKIP), scoring("Other", {"a": 1, "b": 2, "c": 1})
    placement = run(skipped, other)
    assert skipped.calls == []
    assert placement.node == "b"
    assert set(placement.scores.by_plugin) == {"Other"}


def test_pre_score_that_refuses_is_an_error() -> None:
    with pytest.raises(PluginFailure):
        run(scoring("S", {}, pre=unschedulable("no")))


def test_a_single_feasible_node_is_taken_without_scoring() -> None:
    only = named(
        "Only", api.NodeFilterPlugin, filter=lambda s, state, pod, n: SUCCESS if n.name == "b" else unschedulable("x")
    )
    plugin = scoring("S", {})
    placement = run(only, plugin)
    assert (placement.node, placement.feasible, placement.evaluated) == ("b", 1, 3)
    assert plugin.calls == []


def test_tie_is_broken_by_the_injected_choice() -> None:
    plugin = scoring("S", {"a": 5, "b": 9, "c": 9})
    assert {run(plugin, choose=lambda count: 0).node, run(plugin, choose=lambda count: count - 1).node} == {"b", "c"}


@pytest.mark.parametrize(
    ("raw", "reverse", "want"),
    [
        ([0, 0], False, [0, 0]),
        ([0, 0], True, [100, 100]),
        ([1, 3], False, [33, 100]),
        ([1, 3], True, [67, 0]),
        ([], False, []),
    ],
)
def test_default_normalize(raw, reverse, want) -> None:
    assert api.default_normalize(np.array(raw), reverse=reverse).tolist() == want


# Reserve, PreBind, Bind, PostBind.


def reserving(name: str, log: list, answer: Status = SUCCESS) -> api.Plugin:
    def reserve(self, state, pod, node):
        log.append(f"reserve {self.name}")
        return answer

    def unreserve(self, state, pod, node):
        log.append(f"unreserve {self.name}")
        if self.name == "2":
            raise RuntimeError("books are gone")

    return named(name, api.ReservePlugin, reserve=reserve, unreserve=unreserve)


def test_reserve_stops_at_the_first_failure_and_unreserve_runs_for_all_in_reverse() -> None:
    log: list[str] = []
    profile = framework(reserving("1", log), reserving("2", log, unschedulable("no")), reserving("3", log))
    status = profile.run_reserve(CycleState(), info("p"), "a")
    assert (status.code, status.plugin) == (Code.UNSCHEDULABLE, "2")
    problems = profile.run_unreserve(CycleState(), info("p"), "a")
    assert log == ["reserve 1", "reserve 2", "unreserve 3", "unreserve 2", "unreserve 1"]
    assert [p.plugin for p in problems] == ["2"]


def test_bind_goes_to_the_first_that_does_not_skip() -> None:
    def binder(name, answer):
        return named(name, api.BindPlugin, bind=lambda s, state, pod, node: answer)

    assert framework(binder("A", SKIP), binder("B", SUCCESS)).run_bind(CycleState(), info("p"), "a").plugin == "B"
    skipping = api.BindPlugin
    profile = framework(binder("DefaultBinder", SKIP))
    assert isinstance(profile.plugins[0], skipping)
    assert profile.run_bind(CycleState(), info("p"), "a").code is Code.ERROR


def test_post_bind_that_raises_is_reported_and_the_others_run() -> None:
    seen = []

    def boom(self, state, pod, node):
        raise RuntimeError("late")

    profile = framework(
        named("Boom", api.PostBindPlugin, post_bind=boom),
        named("Sees", api.PostBindPlugin, post_bind=lambda s, state, pod, node: seen.append(node)),
    )
    assert [p.plugin for p in profile.run_post_bind(CycleState(), info("p"), "a")] == ["Boom"]
    assert seen == ["a"]


def test_pre_enqueue_asks_the_plugin_that_gated_last_first() -> None:
    asked = []

    def gate(name):
        def pre_enqueue(self, pod):
            asked.append(self.name)
            return SUCCESS

        return named(name, api.PreEnqueuePlugin, pre_enqueue=pre_enqueue)

    assert framework(gate("A"), gate("B")).run_pre_enqueue(info("p"), first="B").ok
    assert asked == ["B", "A"]


# Profile, registrations, registry.


def test_profile_reports_all_problems_at_once() -> None:
    from scheduler_plugins.framework.runtime import Framework

    sort = named("S", api.PreEnqueuePlugin, pre_enqueue=lambda s, pod: SUCCESS)
    with pytest.raises(SettingsError) as caught:
        Framework("prof", [sort, sort], {"Ghost": 2}, Silent())
    text = "\n".join(caught.value.problems)
    for words in ("enabled twice", "weight of Ghost", "exactly one queue sort", "no bind plugin"):
        assert words in text


def test_plugin_without_events_is_registered_for_all_and_node_add_brings_taints() -> None:
    class Quiet(api.PreEnqueuePlugin):
        name = "Quiet"

        def pre_enqueue(self, pod):
            return SUCCESS

    class Adds(Quiet, api.EnqueueExtensions):
        name = "Adds"

        def events_to_register(self):
            return (Registration(NODE_ADD),)

    known = framework(Quiet(), Adds()).registrations
    assert [r.event for r in known["Quiet"]] == [ALL_EVENTS]
    assert [r.event for r in known["Adds"]] == [NODE_ADD, ClusterEvent(NODE, Action.UPDATE_NODE_TAINT)]


def test_registry_names_the_nearest_and_all_known_plugins() -> None:
    from scheduler_plugins.plugins import default_registry

    with pytest.raises(SettingsError, match=r"'BatchForcast', did you mean BatchForecast\? Known: .*, DefaultBinder, "):
        default_registry().build("BatchForcast", {}, handle())


def test_registry_checks_arguments_by_type() -> None:
    class Args(msgspec.Struct, forbid_unknown_fields=True):
        weight: int = 1

    registry = Registry()
    registry.register(
        "P", lambda args, handle: named("P", api.PreEnqueuePlugin, pre_enqueue=lambda s, p: SUCCESS), Args
    )
    registry.build("P", {"weight": 3}, handle())
    with pytest.raises(SettingsError, match=r"plugin P.*known arguments: weight"):
        registry.build("P", {"wieght": 3}, handle())
    with pytest.raises(ValueError, match="twice"):
        registry.register("P", lambda args, handle: None, NoArgs)
