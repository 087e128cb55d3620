"""Story: a profile `my-scheduler` whose pods go where little is used, not where little was asked for."""

from __future__ import annotations

from typing import Any

from slacktide.names import FORECAST_ANNOTATION, SCHEDULER_NAME
from tests.scheduler_plugins.build import GI, node, pod
from tests.scheduler_plugins.forecasts import forecast, terms
from tests.scheduler_plugins.rig import Rig
from tests.stories.examples import story, table

ME = "my-scheduler"


def measure(rig: Rig, name: str, cpu: int, peak: int | None = None, memory: int = 4 * GI) -> None:
    """A node of 8 CPUs, as its agent measures it at this moment."""
    of = terms(now=(cpu, memory), peak=(cpu if peak is None else peak, memory))
    text = forecast(4000, at=rig.wall.now, of=of)
    rig.server.put_node(node(name, annotations={FORECAST_ANNOTATION: text}))


def asking(name: str, cpu: str, where: str = "", scheduler: str = ME) -> Any:
    """A pod; one that is placed already runs since long ago."""
    status = {"phase": "Running", "startTime": "1970-01-01T01:00:00Z"} if where else {"phase": "Pending"}
    return pod(name, {"cpu": cpu, "memory": "1Gi"}, schedulerName=scheduler, nodeName=where, status=status)


def cluster(rig: Rig) -> None:
    """`asked` is booked out and idle; `busy` was asked for little and is at work; `hot` is over the threshold."""
    measure(rig, "asked", 800)
    measure(rig, "busy", 4800)
    measure(rig, "hot", 5600)
    for name, cpu in (("asked", "6"), ("busy", "1"), ("hot", "1")):
        rig.server.put(asking(f"on-{name}", cpu, name))


def test_pods_go_where_little_is_used() -> None:
    rig = story(ME)
    cluster(rig)
    rig.server.put(asking("p", "1"))
    rig.settle()
    assert rig.where("p") == "asked"
    shown = table(rig, "p")
    assert shown["weights"]["ActualLoadScore"] == 30
    assert set(shown["by_node"]) == {"asked", "busy"}
    asked = shown["by_node"]["asked"]["plugins"]["ActualLoadScore"]
    assert asked["weighted"] == 30 * asked["normalised"]


def test_the_default_profile_sends_the_same_pod_where_little_was_asked_for() -> None:
    rig = Rig()
    cluster(rig)
    rig.server.put(asking("p", "1", scheduler=SCHEDULER_NAME))
    rig.settle()
    assert rig.where("p") in {"busy", "hot"}


def test_a_cluster_of_hot_spots_is_refused_with_numbers_and_the_pod_goes_on_when_one_cools() -> None:
    rig = story(ME)
    measure(rig, "now", 5400)
    measure(rig, "later", 800, peak=7000)
    rig.server.put(asking("p", "1"))
    rig.settle()
    message = rig.condition("p")[2]
    assert message.startswith("0/2 nodes are available: ")
    assert "1 node(s) too busy: cpu (78 % of allocatable, at most 75 %)" in message
    assert "1 node(s) too busy at the expected peak: cpu (98 % of allocatable, at most 90 %)" in message
    measure(rig, "now", 3000)
    rig.later(3)
    assert rig.where("p") == "now"


def test_a_burst_of_pods_does_not_pile_up_on_the_node_that_was_idle_when_last_measured() -> None:
    rig = story(ME)
    measure(rig, "a", 500)
    measure(rig, "b", 700)
    for i in range(6):
        rig.server.put(asking(f"p{i}", "1"))
    rig.settle()
    places = [rig.where(f"p{i}") for i in range(6)]
    assert sorted(places) == ["a"] * 3 + ["b"] * 3


def test_ls_pods_are_placed_also_when_nothing_is_measured_any_more() -> None:
    rig = story(ME)
    cluster(rig)
    rig.wall.forward(1000)
    rig.server.put(asking("p", "1"))
    rig.settle()
    assert rig.where("p")
    assert {"asked", "busy", "hot"} == set(table(rig, "p")["unrated"]["ActualLoadScore"])
