"""Extenders of a configuration that is simulated: asked where that is wanted, and never to bind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_plugins.simulation.outcome import Fate
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.extenders.server import FakeExtender
from tests.scheduler_plugins.simulation.support import by_name, simulate

NODES = [node("n1"), node("n2"), node("n3")]
PODS = [pod(f"p{i}", {"cpu": "1"}) for i in range(4)]


@pytest.fixture
def extender() -> Iterator[FakeExtender]:
    """Keeps n1 and n2 and wishes for n2; binding by it would be an error."""
    made = FakeExtender(
        {
            "filter": lambda asked: {
                "NodeNames": [name for name in _names(asked) if name != "n3"],
                "Nodes": {"items": [one for one in _items(asked) if one["metadata"]["name"] != "n3"]},
                "FailedNodes": {"n3": "not n3"},
            },
            "prioritize": lambda _: [{"Host": "n2", "Score": 10}],
            "bind": lambda _: (500, b"bound a pod of a real cluster"),
        }
    )
    yield made
    made.stop()


def _items(asked: dict[str, Any]) -> list[dict[str, Any]]:
    return (asked["Nodes"] or {}).get("items", [])


def _names(asked: dict[str, Any]) -> list[str]:
    return asked["NodeNames"] or []


def configuration(extender: FakeExtender, **more: Any) -> dict[str, Any]:
    verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind", "weight": 10}
    return {"extenders": [{"urlPrefix": extender.url, **verbs, **more}]}


@pytest.mark.parametrize("names_only", [True, False], ids=["by names", "by whole nodes"])
def test_they_filter_and_score_and_bind_nothing(extender: FakeExtender, *, names_only: bool) -> None:
    file = configuration(extender, nodeCacheCapable=names_only)
    outcome = simulate(NODES, PODS, file=file, ask_extenders=True)
    assert {one.node for one in outcome.pods} == {"n2"}
    assert {path.rpartition("/")[2] for path, _ in extender.asked} == {"filter", "prioritize"}
    assert outcome.remarks == [
        "extenders were asked, but not to bind: they know their own cluster, and not the pods that were placed here"
    ]


def test_without_the_option_none_is_asked_and_that_is_said(extender: FakeExtender) -> None:
    outcome = simulate(NODES, PODS, file=configuration(extender))
    assert not extender.asked
    assert {one.fate for one in outcome.pods} == {Fate.PLACED}
    assert outcome.remarks == [
        "extenders of the configuration were not asked: they know their own cluster, and not the pods placed here"
    ]


def test_one_that_is_away_counts_as_it_would_in_the_scheduler(extender: FakeExtender) -> None:
    extender.stop()
    by_ignorable = {
        ignorable: simulate(NODES, PODS[:1], file=configuration(extender, ignorable=ignorable), ask_extenders=True)
        for ignorable in (True, False)
    }
    assert by_name(by_ignorable[True])["p0"].fate is Fate.PLACED
    lost = by_name(by_ignorable[False])["p0"]
    assert lost.fate is Fate.PENDING
    assert "filter" in lost.reason
