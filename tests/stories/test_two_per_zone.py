"""Story: at most two alike in a zone, without a piece of every node gone.

Three zones of two nodes; a replica takes half a node. What is left whole is counted in pods that need a whole node.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.rig import Rig
from tests.stories.examples import story

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NAMES = ("a1", "a2", "b1", "b2", "c1", "c2")
SCHEDULER = "two-per-zone"


def cluster() -> Rig:
    rig = story(SCHEDULER)
    for name in NAMES:
        rig.server.put_node(node(name, labels={ZONE: name[0], HOST: name}))
    return rig


def replica(name: str, app: str = "web", **spec: Any) -> Any:
    half = {"cpu": "4", "memory": "16Gi"}
    return pod(name, half, schedulerName=SCHEDULER, metadata={"labels": {"app": app}}, **spec)


def whole(name: str) -> Any:
    return pod(name, {"cpu": "8", "memory": "32Gi"}, schedulerName=SCHEDULER)


def run(rig: Rig, *pods: Any) -> list[str]:
    """Nodes of these pods; empty text for one that waits."""
    for one in pods:
        rig.server.put(one)
    rig.settle()
    return [rig.where(one.metadata.name) for one in pods]


def zones(places: list[str]) -> list[int]:
    return sorted(Counter(place[0] for place in places).values())


def test_two_in_each_zone_on_as_few_nodes_as_they_need() -> None:
    rig = cluster()
    places = run(rig, *(replica(f"w{i}") for i in range(5)))
    assert zones(places) == [1, 2, 2]
    assert len({*places}) == 3
    assert "" not in run(rig, *(whole(f"big{i}") for i in range(3)))


def test_a_spread_over_nodes_leaves_halves() -> None:
    """The same pods with a spread constraint instead: five nodes are begun, and one pod of three finds a whole one."""
    selector = {"matchLabels": {"kind": "spread"}}
    rule = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    rig = cluster()
    alike = [
        pod(
            f"w{i}",
            {"cpu": "4", "memory": "16Gi"},
            schedulerName=SCHEDULER,
            metadata={"labels": {"kind": "spread"}},
            topologySpreadConstraints=[rule],
        )
        for i in range(5)
    ]
    assert len({*run(rig, *alike)} - {""}) == 5
    assert run(rig, *(whole(f"big{i}") for i in range(3))).count("") == 2


def test_one_too_many_waits_with_a_reason_and_takes_the_place_of_one_that_goes() -> None:
    rig = cluster()
    places = run(rig, *(replica(f"w{i}") for i in range(7)))
    assert zones(places[:6]) == [2, 2, 2]
    assert places[6] == ""
    status, reason, message = rig.condition("w6")
    assert (status, reason) == ("False", "Unschedulable")
    # Three nodes are full; the three that have room are refused by their zones.
    assert "3 node(s) were in a domain with as many alike pods as it may have (nearest " in message
    assert "has 2, may have 2" in message
    assert run(rig, replica("other", "db"))[0] != ""
    rig.server.remove("w3")
    rig.later(2)
    assert rig.where("w6")[0] == places[3][0]


def test_a_pod_may_state_its_own_number() -> None:
    rig = cluster()
    own = {"labels": {"app": "db"}, "annotations": {"slacktide.io/max-per-domain": "1"}}
    alike = [pod(f"d{i}", {"cpu": "1"}, schedulerName=SCHEDULER, metadata=own) for i in range(4)]
    places = run(rig, *alike)
    assert zones(places[:3]) == [1, 1, 1]
    assert places[3] == ""


def test_pods_placed_by_others_and_bindings_under_way_count() -> None:
    rig = cluster()
    for name in ("b1", "b2", "c1", "c2"):
        rig.server.put(
            pod(f"there-{name}", nodeName=name, metadata={"labels": {"app": "web"}}, status={"phase": "Running"})
        )
    rig.server.before_bind = lambda bound, where: (
        rig.server.put(replica("late")) if bound.metadata.name == "w0" else None
    )
    places = run(rig, replica("w0"), replica("w1"))
    assert {place[0] for place in places} == {"a"}
    assert rig.where("late") == ""
