"""Nominations: what a failed cycle says holds until the watch knows better; nobody is nominated who does not wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.objects import Pod
from tests.scheduler_plugins.build import info, pod


def nominated(name: str, node: str, **spec: object) -> PodInfo:
    return info(name, status={"phase": "Pending", "nominatedNodeName": node}, **spec)


def where(nominator: Nominator, name: str = "p") -> tuple[str, list[str]]:
    node = nominator.node_of(f"uid-{name}")
    return node, [one.key for one in nominator.on(node)] if node else []


def test_a_cycle_overrides_the_status_and_may_take_the_nomination_back() -> None:
    nominator = Nominator()
    assert nominator.seen(nominated("p", "a"))
    assert nominator.set(nominated("p", "a"), "b")
    assert (where(nominator), nominator.on("a"), nominator.nodes()) == (("b", ["default/p"]), (), {"b"})
    assert not nominator.set(nominated("p", "a"), "")
    assert (where(nominator), nominator.nodes()) == (("", []), frozenset())


@pytest.mark.parametrize(
    ("in_memory", "old", "new", "want"),
    [
        ("a", "", "", "a"),
        ("a", "", "b", "b"),
        ("a", "a", "b", "b"),
        ("a", "a", "a", "a"),
        ("a", "a", "", ""),
        ("", "", "a", "a"),
        ("", "a", "", ""),
        ("", "", "", ""),
    ],
    ids=["stale update keeps", "added", "moved", "same", "taken back", "new", "gone", "never"],
)
def test_update_table(in_memory: str, old: str, new: str, want: str) -> None:
    """Section 1.8 and row 19 of section 7: #85677, #106780: a stale update neither loses nor invents a nomination."""
    nominator = Nominator()
    nominator.set(info("p"), in_memory)
    nominator.changed(nominated("p", old), nominated("p", new, metadata={"labels": {"newest": "yes"}}))
    assert nominator.node_of("uid-p") == want
    if want:
        assert nominator.on(want)[0].pod.metadata.labels == {"newest": "yes"}


@pytest.mark.parametrize(
    "current",
    [
        None,
        pod("p", metadata={"uid": "another"}),
        pod("p", nodeName="n"),
        pod("p", status={"phase": "Failed"}),
    ],
    ids=["gone", "replaced", "bound", "ended"],
)
def test_a_pod_that_no_longer_waits_is_not_nominated(current: Pod | None) -> None:
    """Row 19 of section 7: a phantom nomination would block its room for good."""
    nominator = Nominator(lambda namespace, name: current if (namespace, name) == ("default", "p") else None)
    assert not nominator.set(info("p"), "a")
    assert not nominator.seen(nominated("p", "a"))
    assert nominator.nodes() == frozenset()


def test_dropping_says_where_the_pod_was_and_is_harmless_twice() -> None:
    nominator = Nominator(lambda namespace, name: pod(name))
    assert nominator.set(info("p"), "a")
    assert nominator.set(info("q"), "a")
    assert [one.key for one in nominator.on("a")] == ["default/p", "default/q"]
    assert (nominator.drop("uid-p"), nominator.drop("uid-p")) == ("a", "")
    assert [one.key for one in nominator.on("a")] == ["default/q"]


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from(["", "a", "b"]), st.booleans()), max_size=30))
def test_both_directions_agree(steps: list[tuple[str, str, bool]]) -> None:
    nominator, plain = Nominator(), {}
    for name, node, drop in steps:
        if drop:
            nominator.drop(f"uid-{name}")
            node = ""
        else:
            nominator.set(info(name), node)
        plain[name] = node
    for node in ("a", "b"):
        assert {one.pod.metadata.name for one in nominator.on(node)} == {n for n, at in plain.items() if at == node}
    assert nominator.nodes() == {at for at in plain.values() if at}
    assert all(nominator.node_of(f"uid-{name}") == at for name, at in plain.items())
