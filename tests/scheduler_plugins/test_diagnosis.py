"""What is told of a pod that fits nowhere: who refused how many nodes, the nearest one, and a note that fits."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.status import Code, Reason, unresolvable
from scheduler_plugins.framework.verdicts import Verdicts
from scheduler_plugins.records import KEPT_UNPLACED, Cycle, Records
from scheduler_plugins.report import EVENT_LIMIT, event_text
from tests.scheduler_plugins.build import Clock, node, pod
from tests.scheduler_plugins.rig import Rig


def refusals(plugin: str, *reasons: Reason, kinds: Any = None, first: int = 0) -> Refusals:
    """Node `first` and those after it are refused for these reasons."""
    positions = np.arange(len(reasons))
    verdicts = Verdicts.where(positions >= 0, Code.UNSCHEDULABLE, lambda i: (reasons[i],), kinds)
    return Refusals(plugin, positions + first, positions, verdicts)


def test_who_refused_how_many_is_data() -> None:
    fit = refusals("Fit", Reason("Insufficient cpu", "free 1", 2.0), Reason("Insufficient cpu", "free 2", 1.0))
    found = Diagnosis(("a", "b", "c"), [fit], unresolvable("node(s) were left out").by("Pick"), 1).by_plugin()
    assert [(one.plugin, one.nodes, one.point) for one in found] == [("Pick", 1, "PreFilter"), ("Fit", 2, "Filter")]
    assert found[1].reasons is not None
    (reason,) = found[1].reasons
    assert (reason.text, reason.nodes, reason.nearest, reason.detail) == ("Insufficient cpu", 2, "b", "free 2")


def test_two_plugins_with_the_same_words_are_counted_together_and_the_nearer_is_shown() -> None:
    one, other = refusals("P", Reason("full", "P", 5.0)), refusals("Q", Reason("full", "Q", 3.0), first=1)
    message = Diagnosis(("a", "b"), [one, other]).message()
    assert message == "0/2 nodes are available: 2 full (nearest b: Q)."


def test_many_different_reasons_are_counted_and_not_all_said() -> None:
    told = refusals("P", *(Reason(f"reason {i:03}") for i in range(80)))
    message = Diagnosis([f"n{i}" for i in range(80)], [told]).message()
    assert message.endswith("1 reason 049, and 30 more reasons.")


def test_reasons_are_left_out_where_too_many_nodes_would_be_asked() -> None:
    reasons = [Reason("full")] * 5
    alone = Diagnosis(list("abcde"), [refusals("P", *reasons)]).by_plugin(most_asked=4)
    alike = Diagnosis(list("abcde"), [refusals("P", *reasons, kinds=np.zeros(5))]).by_plugin(most_asked=4)
    assert alone[0].reasons is None
    assert alike[0].reasons is not None


@given(st.text(max_size=3000))
def test_note_fits_and_is_the_beginning_of_the_message(message: str) -> None:
    note = event_text(message)
    assert len(note.encode()) <= EVENT_LIMIT
    assert note == message or message.startswith(note.removesuffix(" ..."))


@given(st.lists(st.text("abcdé", min_size=1, max_size=40), min_size=400, max_size=600))
def test_note_ends_with_a_whole_word(words: list[str]) -> None:
    note = event_text(" ".join(words))
    if note.endswith(" ..."):
        kept = note.removesuffix(" ...").split(" ")
        assert kept == words[: len(kept)]
        assert len(" ".join(words[: len(kept) + 1]).encode()) > EVENT_LIMIT - 4


class Only(api.PreFilterPlugin, api.FilterPlugin):
    """Looks at node `a` alone."""

    name = "Only"

    def pre_filter(self, state: Any, pod: Any, snapshot: Any) -> api.PreFilterResult:
        return api.PreFilterResult(nodes=frozenset({"a"}))

    def filter_nodes(self, state: Any, pod: Any, snapshot: Any, rows: Any) -> Verdicts:
        return Verdicts.where(rows >= 0, Code.UNSCHEDULABLE, lambda i: (Reason("not this one"),))


def test_record_names_who_left_nodes_out_before_any_was_judged() -> None:
    rig = Rig(None, Only)
    for name in "abc":
        rig.server.put_node(node(name))
    rig.server.put(pod("p"))
    rig.settle()
    (cycle,) = msgspec.json.decode(rig.records.body())["cycles"]
    assert [(one["plugin"], one["nodes"], one.get("point")) for one in cycle["refusals"]] == [
        ("Only", 2, "PreFilter"),
        ("Only", 1, None),
    ]


def cycle(uid: str, result: str) -> Cycle:
    return Cycle("profile", uid, uid, 1, 0.0, 0.0, result)


def test_last_cycle_of_a_pod_that_waits_is_kept_when_many_others_had_theirs() -> None:
    records = Records(Clock(), kept=2)
    records.add(cycle("waits", "unschedulable"))
    for i in range(5):
        records.add(cycle(f"placed-{i}", "chosen"))
    assert [one.uid for one in records.unplaced()] == ["waits"]
    assert [one["uid"] for one in msgspec.json.decode(records.body())["unplaced"]] == ["waits"]
    records.add(cycle("waits", "chosen"))
    assert not records.unplaced()


@pytest.mark.parametrize("again", [True, False])
def test_of_very_many_waiting_pods_those_tried_last_are_kept(again: bool) -> None:
    records = Records(Clock())
    for i in range(KEPT_UNPLACED):
        records.add(cycle(f"p{i}", "unschedulable"))
    if again:
        records.add(cycle("p0", "unschedulable"))
    records.add(cycle("new", "error"))
    assert len(records.unplaced()) == KEPT_UNPLACED
    assert ("p0" in {one.uid for one in records.unplaced()}) == again
