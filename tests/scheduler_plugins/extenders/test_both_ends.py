"""Our client asks our own extender: what the plugins say there arrives here as they said it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler_plugins.config.types import ExtenderConfig
from scheduler_plugins.extenders.client import HttpExtender
from scheduler_plugins.framework.extending import Victims
from scheduler_plugins.framework.node_info import NodeInfo
from tests.scheduler_plugins.build import be_info, node
from tests.scheduler_plugins.extender.support import Bench, Picky, served

LABELS = {"yes": {"score": "100"}, "no": {"say": "no"}, "never": {"say": "never"}, "poor": {"score": "20"}}
NODES = [node(name, labels=labels) for name, labels in LABELS.items()]


@pytest.fixture(params=[True, False], ids=["names", "whole nodes"])
def client(request: pytest.FixtureRequest) -> Iterator[HttpExtender]:
    """A client of a running extender that has the plugin Picky."""
    with served(Bench(Picky(), nodes=NODES).service) as server:
        made = HttpExtender(
            ExtenderConfig(
                url_prefix=f"http://{server.address}",
                filter_verb="filter",
                prioritize_verb="prioritize",
                preempt_verb="preempt",
                weight=2,
                node_cache_capable=request.param,
            ),
            lambda name, uid: None,
        )
        yield made
        made.close()


def test_filter_and_prioritize_arrive(client: HttpExtender) -> None:
    pod = be_info("p")
    infos = [NodeInfo.of(one) for one in NODES]
    result = client.filter(pod, infos)
    assert result.kept == {"yes", "poor"}
    assert (set(result.failed), set(result.unresolvable)) == ({"no"}, {"never"})
    assert "said no" in result.failed["no"]
    kept = [info for info in infos if info.name in result.kept]
    assert client.prioritize(pod, kept) == {"yes": 10 * 2 * 10, "poor": 2 * 2 * 10}


def test_preempt_keeps_the_candidates_that_the_plugins_could_use(client: HttpExtender) -> None:
    victims = {"yes": Victims((be_info("v1"), be_info("v2")), 1), "never": Victims((be_info("v3"),))}
    assert client.preempt(be_info("p", priority=10), victims) == {"yes": victims["yes"]}
