"""The verbs: what comes in, what goes out. Rows are named after kube-scheduling.md sections 2.1, 7 and 9."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.extender import ratings
from scheduler_plugins.extender.judge import Found
from scheduler_plugins.extender.questions import Memory
from scheduler_plugins.extenders import wire
from scheduler_plugins.framework.interfaces import NodeFilterPlugin, PreFilterPlugin, PreFilterResult
from scheduler_plugins.framework.status import SUCCESS, unresolvable, unschedulable
from slacktide import names
from slacktide.tier import Tier
from tests.scheduler_plugins.build import READER, be, info, node, pod
from tests.scheduler_plugins.extender.support import BE, Bench, Gate, Picky, body, plain

SAYS = ["yes", "no", "never"]


def picky(**says: str) -> list:
    return [node(name, labels={"say": say}) for name, say in says.items()]


def names_of(nodes: list[dict]) -> list[str]:
    return [one["metadata"]["name"] for one in nodes]


class Raises(NodeFilterPlugin):
    name = "Raises"

    def filter(self, state, pod, node):
        raise RuntimeError("secret detail of the machine")


class Narrow(PreFilterPlugin):
    """Narrows the search to one node."""

    name = "Narrow"

    def pre_filter(self, state, pod, snapshot):
        return PreFilterResult(SUCCESS, frozenset({"a"}))


class Refuse(PreFilterPlugin):
    name = "Refuse"

    def __init__(self, status):
        self.status = status

    def pre_filter(self, state, pod, snapshot):
        return PreFilterResult(self.status)


def test_filter_answers_names_with_names_and_each_refusal_by_what_preemption_can_do() -> None:
    bench = Bench(Picky(), nodes=picky(a="yes", b="no", c="never", d="yes"))
    answer = bench.ask("filter", Pod=be(), Nodes=None, NodeNames=["d", "c", "b", "a"])
    assert answer == {
        "Nodes": None,
        "NodeNames": ["d", "a"],
        "FailedNodes": {"b": "said no"},
        "FailedAndUnresolvableNodes": {"c": "said never"},
        "Error": "",
    }


def test_filter_answers_nodes_with_the_very_nodes_that_were_sent() -> None:
    """Row "Non-capable": unknown fields of a node must come back, or the scheduler loses them."""
    bench = Bench(Picky(), nodes=picky(a="yes", b="no"))
    sent = [
        {"metadata": {"name": name, "managedFields": [{"x": 1}]}, "spec": {"podCIDR": "10.0.0.0/24"}} for name in "ab"
    ]
    answer = bench.ask("filter", Pod=be(), Nodes={"metadata": {}, "items": sent}, NodeNames=None)
    assert answer["Nodes"]["items"] == sent[:1]
    assert answer["NodeNames"] is None
    assert answer["FailedNodes"] == {"b": "said no"}


def test_unknown_nodes_are_refused_and_never_kept() -> None:
    """Row [T] of 2.1: an unknown name in NodeNames of the answer is an error of the call."""
    bench = Bench(Picky(), nodes=picky(a="yes"))
    answer = bench.ask("filter", Pod=be(), NodeNames=["a", "ghost"])
    assert answer["NodeNames"] == ["a"]
    assert answer["FailedAndUnresolvableNodes"] == {"ghost": "the extender does not know this node yet"}


def test_what_filter_kept_is_read_again_by_prioritize() -> None:
    """The list that filter answers comes back as the question of prioritize, whatever others ask in between."""
    bench = Bench(Picky(), nodes=picky(a="yes", b="no", c="yes"))
    for _ in range(2):
        kept = bench.ask("filter", Pod=be(), NodeNames=["c", "b", "a"])["NodeNames"]
        assert bench.ask("filter", Pod=be("other"), NodeNames=["b"])["NodeNames"] == []
        assert [one["Host"] for one in bench.ask("prioritize", Pod=be(), NodeNames=kept)] == ["c", "a"]
        bench.cache.remove_node("a")
        bench.cache.set_node(node("a", labels={"say": "yes"}))


def test_rows_that_were_remembered_are_not_used_once_nodes_have_moved() -> None:
    bench = Bench(Picky(), nodes=[node("a", labels={"score": "10"}), node("b", labels={"score": "90"})])
    question = {"Pod": be(), "NodeNames": ["a", "b"]}
    assert bench.ask("filter", **question)["NodeNames"] == ["a", "b"]
    bench.cache.remove_node("a")
    bench.cache.set_node(node("c", labels={"score": "50"}))
    rated = {one["Host"]: one["Score"] for one in bench.ask("prioritize", **question)}
    assert rated == {"a": 0, "b": 9}


def test_only_so_much_is_remembered() -> None:
    memory = Memory(READER)
    for number in range(200):
        memory.keep(b"[%d]" % number, [], Found(np.zeros(0, dtype=np.intp), 0))
        memory.pod(body(metadata={"name": f"p{number}"}))
    assert len(memory._lists) == 16
    assert len(memory._pods) == 64
    assert memory.pod(body(metadata={"name": "p199"})) is memory.pod(body(metadata={"name": "p199"}))


def test_no_nodes_are_answered_with_no_nodes() -> None:
    bench = Bench(Picky(), nodes=picky(a="yes"))
    assert bench.ask("filter", Pod=be(), NodeNames=[])["NodeNames"] == []
    assert bench.ask("filter", Pod=be(), Nodes={"items": None})["Nodes"] == {"items": None}
    assert bench.ask("filter", Pod=be(), Nodes={"items": []})["Nodes"] == {"items": []}
    assert bench.ask("prioritize", Pod=be(), NodeNames=[]) == []


@pytest.mark.parametrize(("status", "field"), [(unschedulable("not now"), "FailedNodes"),
                                           (unresolvable("never"), "FailedAndUnresolvableNodes")])  # fmt: skip
def test_a_refusal_of_the_pod_as_a_whole_is_the_reason_of_every_node(status, field) -> None:
    bench = Bench(Refuse(status), nodes=picky(a="yes", b="yes"))
    answer = bench.ask("filter", Pod=be(), NodeNames=["a", "b"])
    assert answer["NodeNames"] == []
    assert answer[field] == dict.fromkeys("ab", status.message)


def test_nodes_that_a_pre_filter_left_out_are_unresolvable() -> None:
    bench = Bench(Narrow(), Picky(), nodes=picky(a="yes", b="yes"))
    answer = bench.ask("filter", Pod=be(), NodeNames=["b", "a"])
    assert answer["NodeNames"] == ["a"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["b"]
    assert bench.ask("prioritize", Pod=be(), NodeNames=["b"]) == [{"Host": "b", "Score": 0}]


def test_a_pod_that_cannot_be_read_fits_nowhere() -> None:
    bench = Bench(Picky(), nodes=picky(a="yes"))
    odd = pod(requests={names.BATCH_CPU: "200m"})
    answer = bench.ask("filter", Pod=odd, NodeNames=["a"])
    assert "cannot read its requests" in answer["FailedAndUnresolvableNodes"]["a"]
    assert bench.ask("prioritize", Pod=odd, NodeNames=["a"]) == [{"Host": "a", "Score": 0}]


@given(st.lists(st.sampled_from(SAYS), max_size=12), st.data())
@settings(max_examples=25)
def test_every_node_that_was_sent_is_in_exactly_one_part_of_the_answer(says, data) -> None:
    """Section 9: answers must be total."""
    known = [f"n{i}" for i in range(len(says))]
    bench = Bench(Picky(), nodes=picky(**dict(zip(known, says, strict=True))))
    asked = data.draw(st.lists(st.sampled_from([*known, "ghost", "other"]), max_size=20))
    answer = bench.ask("filter", Pod=be(), NodeNames=asked)
    parts = [set(answer["NodeNames"]), set(answer["FailedNodes"]), set(answer["FailedAndUnresolvableNodes"])]
    assert set().union(*parts) == set(asked)
    assert sum(map(len, parts)) == len(set(asked))
    assert [name for name in dict.fromkeys(asked) if name in parts[0]] == list(dict.fromkeys(answer["NodeNames"]))
    rated = bench.ask("prioritize", Pod=be(), NodeNames=asked)
    assert sorted(one["Host"] for one in rated) == sorted(asked)


# Scores.


def scored(**scores: int) -> list:
    return [node(name, labels={"score": str(score)}) for name, score in scores.items()]


def rated(bench: Bench, *asked: str) -> dict[str, int]:
    return {one["Host"]: one["Score"] for one in bench.ask("prioritize", Pod=be(), NodeNames=list(asked))}


@pytest.mark.parametrize(
    ("score", "wanted"), [(0, 0), (4, 0), (5, 1), (14, 1), (15, 2), (50, 5), (94, 9), (95, 10), (100, 10)]
)
def test_scores_of_0_to_100_become_0_to_10(score, wanted) -> None:
    """Section 9: map plugin score 0..100 to 0..10 (integer)."""
    assert rated(Bench(Picky(), nodes=scored(a=score)), "a") == {"a": wanted}


def test_the_best_total_of_all_plugins_that_scored_is_the_highest_score() -> None:
    class Second(Picky):
        name = "Second"

        def score(self, state, pod, node):
            return 100.0

    bench = Bench(Picky(), Second(), nodes=scored(a=0, b=100), weights={"Picky": 3})
    assert rated(bench, "a", "b") == {"a": 3, "b": 10}


def test_a_finer_scale_may_be_asked_for() -> None:
    assert rated(Bench(Picky(), nodes=scored(a=37), highest=100), "a") == {"a": 37}


def test_nothing_that_scores_gives_zero_everywhere() -> None:
    assert rated(Bench(Raises(), nodes=scored(a=1)), "a") == {"a": 0}


@given(st.lists(st.tuples(st.text(), st.integers(0, 100))))
@settings(max_examples=40)
def test_ratings_read_back_as_what_they_were(pairs) -> None:
    written = ratings.encoded([name for name, _ in pairs], np.array([score for _, score in pairs], dtype=np.int64))
    read = wire.decode(written, list[wire.HostPriority])
    assert sorted((one.host, one.score) for one in read) == sorted(pairs)


# Tiers that pass.


def test_pods_of_other_tiers_pass_without_plugins_snapshot_or_readiness() -> None:
    bench = Bench(Raises(), nodes=[], ready=lambda: "nothing listed yet")
    answer = bench.ask("filter", Pod=pod(), NodeNames=["a", "ghost"])
    assert answer["NodeNames"] == ["a", "ghost"]
    assert not answer["FailedNodes"]
    assert not answer["FailedAndUnresolvableNodes"]
    assert bench.ask("prioritize", Pod=pod(), NodeNames=["a"]) == []
    victims = {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
    kept = bench.ask("preempt", Pod=pod(), NodeNameToVictims=None, NodeNameToMetaVictims=victims)
    assert kept == {"NodeNameToMetaVictims": victims}
    assert bench.framework._observer.asked == []
    assert bench.count("passed") == 1
    assert bench.count("judged") == 0


def test_other_tiers_are_judged_where_the_settings_say_so() -> None:
    bench = Bench(Picky(), nodes=picky(a="no"), tiers=frozenset({Tier.LS}))
    assert bench.ask("filter", Pod=pod(), NodeNames=["a"])["FailedNodes"] == {"a": "said no"}
    assert bench.ask("filter", Pod=be(), NodeNames=["a"])["NodeNames"] == ["a"]


def test_a_plugin_that_hangs_holds_up_its_own_tier_only() -> None:
    gate = Gate()
    bench = Bench(gate, nodes=picky(a="yes"), wait_seconds=0.05)
    hung = threading.Thread(target=bench.ask, args=("filter",), kwargs={"Pod": be(), "NodeNames": ["a"]})
    hung.start()
    try:
        assert gate.entered.wait(30)
        assert bench.ask("filter", Pod=pod(), NodeNames=["a"])["NodeNames"] == ["a"]
        error = bench.ask("filter", Pod=be("second"), NodeNames=["a"])["Error"]
        assert "another pod has been judged for" in error
        assert bench.service.judging_seconds() > 0
    finally:
        gate.release.set()
        hung.join(30)
    assert bench.service.judging_seconds() == 0
    assert bench.ask("filter", Pod=be("third"), NodeNames=["a"])["NodeNames"] == ["a"]


# What cannot be answered.


def test_a_plugin_that_raises_is_an_error_of_the_call_and_says_which_one() -> None:
    bench = Bench(Raises(), nodes=picky(a="yes"))
    answer = bench.ask("filter", Pod=be(), NodeNames=["a"])
    assert "plugin Raises raised in Filter" in answer["Error"]
    assert "Traceback" not in answer["Error"]
    assert bench.count("failed") == 1


def test_a_plugin_that_cannot_judge_a_node_fails_the_call() -> None:
    bench = Bench(Picky(), nodes=picky(a="yes", b="broken"))
    assert "b: said broken" in bench.ask("filter", Pod=be(), NodeNames=["a", "b"])["Error"]


@pytest.mark.parametrize("score", ["101", "-1", "nan"])
def test_a_score_out_of_bounds_fails_prioritize(score) -> None:
    bench = Bench(Picky(), nodes=[node("a", labels={"score": score})])
    status, text = bench.refused("prioritize", body(Pod=be(), NodeNames=["a"]))
    assert status == 503
    assert "it must be 0 to 100" in text


def test_before_the_first_list_only_the_protocol_s_own_error_is_said() -> None:
    bench = Bench(Picky(), ready=lambda: "not listed yet: pods")
    assert bench.ask("filter", Pod=be(), NodeNames=["a"])["Error"] == "not ready: not listed yet: pods"
    assert bench.refused("prioritize", body(Pod=be(), NodeNames=["a"]))[0] == 503
    assert bench.refused("preempt", body(Pod=be(), NodeNameToMetaVictims={}))[0] == 503


def test_a_mistake_of_ours_is_said_without_its_details() -> None:
    bench = Bench(Picky(), nodes=picky(a="yes"))
    bench.service._cache = None
    answer = bench.ask("filter", Pod=be(), NodeNames=["a"])
    assert answer["Error"] == "internal error (AttributeError); see the extender's log"


BAD = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[]", "does not have the form"),
    (b"null", "does not have the form"),
    (b"{}", "has no Pod"),
    (b'{"Pod": null, "NodeNames": ["a"]}', "has no Pod"),
    (b'{"Pod": {}, "NodeNames": ["a"]}', "no metadata.name"),
    (b'{"Pod": 7, "NodeNames": ["a"]}', "does not have the form"),
    (b'{"Pod": {"metadata": {"name": "p"}}}', "neither Nodes nor NodeNames"),
    (b'{"Pod": {"metadata": {"name": "p"}}, "Nodes": null, "NodeNames": null}', "neither Nodes nor NodeNames"),
    (b'{"Pod": {"metadata": {"name": "p"}}, "NodeNames": [1]}', "does not have the form"),
    (b'{"Pod": {"metadata": {"name": "p"}}, "NodeNames": "a"}', "does not have the form"),
    (b'{"Pod": {"metadata": {"name": "p"}}, "Nodes": {"items": [{}]}}', "no metadata.name"),
    (b'{"Pod": {"metadata": {"name": "p"}}, "Nodes": {"items": [3]}}', "does not have the form"),
    (b"[" * 200_000, "recursion"),
]  # fmt: skip


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize(("content", "text"), BAD)
def test_bodies_that_no_scheduler_sends_get_400_and_a_sentence(verb, content, text) -> None:
    bench = Bench(Picky(), nodes=picky(a="yes"))
    status, error = bench.refused(verb, content)
    assert status == 400
    assert text in error
    assert bench.count("refused", verb) == 1


@given(st.binary(max_size=300) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
@settings(max_examples=40)
def test_no_body_whatsoever_raises(content) -> None:
    bench = Bench(Picky(), nodes=picky(a="yes"))
    for verb in bench.service.verbs:
        reply = bench.service.answer(verb, content)
        assert reply.status in {200, 400, 503}
        assert json.loads(reply.body) is not None


def test_field_names_of_another_case_are_read() -> None:
    """Row [T] of 2.1: Go peers decode without regard to case; what we write has exactly their names."""
    bench = Bench(Picky(), nodes=picky(a="yes"))
    answer = bench.ask("filter", pod=plain(be()), nodenames=["a"])
    assert set(answer) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert answer["NodeNames"] == ["a"]


# Preemption.


class OneEach(NodeFilterPlugin):
    """One pod a node, whatever it asks."""

    name = "OneEach"

    def filter(self, state, pod, node):
        return SUCCESS if not node.pods else unschedulable("taken")


def crowded() -> Bench:
    placed = {
        "a": [be("a1")],
        "b": [be("b1"), be("b2")],
        "c": [pod("c1")],
    }
    return Bench(OneEach(), nodes=[node(name) for name in "abc"], placed=placed)


def meta(**uids: list[str]) -> dict:
    return {name: {"Pods": [{"UID": uid} for uid in of], "NumPDBViolations": 0} for name, of in uids.items()}


def test_preempt_keeps_the_nodes_where_the_pod_then_fits() -> None:
    """Section 7 row 12: the extender's own filter counts in preemption."""
    asked = meta(a=["uid-a1"], b=["uid-b1"], ghost=["x"])
    answer = crowded().ask("preempt", Pod=be(), NodeNameToVictims=None, NodeNameToMetaVictims=asked)
    assert answer == {"NodeNameToMetaVictims": meta(a=["uid-a1"])}


def test_preempt_answers_whole_victims_by_uid() -> None:
    asked = {"a": {"Pods": [plain(be("a1"))], "NumPDBViolations": 2}}
    answer = crowded().ask("preempt", Pod=be(), NodeNameToVictims=asked, NodeNameToMetaVictims=None)
    assert answer == {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-a1"}], "NumPDBViolations": 2}}}


def test_best_effort_never_preempts_latency_sensitive() -> None:
    asked = meta(c=["uid-c1"])
    assert crowded().ask("preempt", Pod=be(), NodeNameToMetaVictims=asked) == {"NodeNameToMetaVictims": {}}


def test_a_victim_that_is_unknown_here_changes_nothing_and_stays_a_victim() -> None:
    asked = meta(a=["uid-a1", "uid-gone"])
    assert crowded().ask("preempt", Pod=be(), NodeNameToMetaVictims=asked) == {"NodeNameToMetaVictims": asked}


def test_an_empty_victim_list_is_judged_like_any_other() -> None:
    """Section 7 row 12, PR 135486."""
    bench = Bench(OneEach(), nodes=[node("free"), node("full")], placed={"full": [be("x")]})
    asked = {"free": {"Pods": None, "NumPDBViolations": 0}, "full": {"Pods": None, "NumPDBViolations": 0}}
    answer = bench.ask("preempt", Pod=be(), NodeNameToMetaVictims=asked)
    assert set(answer["NodeNameToMetaVictims"]) == {"free"}


def test_the_snapshot_is_as_before_after_a_what_if() -> None:
    bench = crowded()
    bench.ask("preempt", Pod=be(), NodeNameToMetaVictims=meta(a=["uid-a1"]))
    assert bench.ask("filter", Pod=be(), NodeNames=["a"])["FailedNodes"] == {"a": "taken"}


def test_preempt_without_either_form_is_refused() -> None:
    status, text = crowded().refused("preempt", body(Pod=be()))
    assert (status, "neither NodeNameToVictims" in text) == (400, True)


# Bind.


def test_bind_is_off_unless_asked_for() -> None:
    bench = Bench(Picky())
    order = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a"}
    assert "bind = true" in bench.ask("bind", **order)["Error"]


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_a_binding_order_that_lacks_something_is_refused(field) -> None:
    order = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a"} | {field: ""}
    status, text = Bench(Picky()).refused("bind", body(**order))
    assert status == 400
    assert field in text


def test_a_placement_is_seen_by_the_next_question() -> None:
    bench = Bench(OneEach(), nodes=[node("a")])
    assert bench.ask("filter", Pod=be(), NodeNames=["a"])["NodeNames"] == ["a"]
    bench.cache.assume(info("x"), "a")
    assert bench.ask("filter", Pod=be(), NodeNames=["a"])["FailedNodes"] == {"a": "taken"}


def test_tiers_in_force_are_best_effort_by_default() -> None:
    from scheduler_plugins.extender.settings import ExtenderSettings

    assert frozenset(Tier(tier) for tier in ExtenderSettings().tiers) == BE
