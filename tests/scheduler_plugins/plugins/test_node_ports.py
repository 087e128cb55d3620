"""NodePorts: the rows of the stock scheduler's table."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.plugins.node_ports import NodePorts
from tests.scheduler_plugins.build import info, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, Judged, hint


def ports(*given: dict[str, Any], init: bool = False, sidecar: bool = False) -> dict[str, Any]:
    container = {"name": "c", "ports": list(given)}
    if init or sidecar:
        return {"initContainers": [container | ({"restartPolicy": "Always"} if sidecar else {})]}
    return {"containers": [container]}


WEB = {"hostPort": 80}
AT_ONE, AT_TWO = WEB | {"hostIP": "1.1.1.1"}, WEB | {"hostIP": "2.2.2.2"}


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [
        (ports(), ports(WEB), True),
        (ports(WEB), ports(WEB), False),
        (ports(WEB), ports({"hostPort": 81}), True),
        (ports(AT_ONE), ports(AT_TWO), True),
        (ports(AT_ONE), ports(AT_ONE), False),
        (ports(WEB | {"protocol": "UDP"}), ports(WEB), True),
        (ports(WEB | {"hostIP": "0.0.0.0"}), ports(AT_ONE), False),
        (ports(AT_ONE), ports(WEB | {"hostIP": "0.0.0.0"}), False),
        (ports(AT_ONE), ports(WEB), False),
        (ports(WEB, init=True), ports(WEB), True),
        (ports(WEB), ports(WEB, init=True), True),
        (ports(WEB, sidecar=True), ports(WEB), False),
        (ports(WEB), ports(WEB, sidecar=True), False),
        (ports({"hostPort": 81}, WEB), ports(WEB), False),
    ],
)
def test_table(mine: Any, theirs: Any, fits: bool) -> None:
    there = {"n": [pod("q", nodeName="n", **theirs)]}
    judged = Judged(NodePorts(), info("p", **mine), [node("n"), node("free")], there)
    assert judged.codes() == {"n": FITS if fits else LATER, "free": FITS}


@pytest.mark.parametrize("mine", [ports(), ports(WEB, init=True), ports({"containerPort": 80})])
def test_pods_without_host_ports_are_not_judged(mine: Any) -> None:
    assert Judged(NodePorts(), info("p", **mine), [node("n")]).state.skip_filter == {"NodePorts"}


def test_what_if_the_holder_of_the_port_were_gone() -> None:
    there = {"n": [pod("q", nodeName="n", **ports(WEB)), pod("r", nodeName="n", **ports({"hostPort": 81}))]}
    judged = Judged(NodePorts(), info("p", **ports(WEB)), [node("n")], there)
    assert (judged.without("n", "uid-q"), judged.without("n", "uid-r")) == (FITS, LATER)


def test_many_nodes_are_refused_in_one_sentence() -> None:
    nodes = [node(f"n{i}") for i in range(5)]
    there = {one.metadata.name: [pod(f"q{i}", nodeName="x", **ports(WEB))] for i, one in enumerate(nodes)}
    assert Judged(NodePorts(), info("p", **ports(WEB)), nodes, there).message() == (
        "0/5 nodes are available: 5 node(s) didn't have free ports for the requested pod ports."
    )


def test_freed_port_wakes_and_others_do_not() -> None:
    who, plugin, gone = info("p", **ports(WEB)), NodePorts(), events.ASSIGNED_POD_DELETE
    assert hint(plugin, who, gone, info("q", nodeName="n", **ports(WEB)), None) is Hint.QUEUE
    assert hint(plugin, who, gone, info("q", nodeName="n", **ports({"hostPort": 81})), None) is Hint.SKIP
    assert hint(plugin, who, gone, info("q", **ports(WEB)), None) is Hint.SKIP
    with pytest.raises(TypeError, match="not a PodInfo"):
        hint(plugin, who, gone, node("n"), None)


def test_only_new_nodes_wake() -> None:
    who, plugin = info("p", **ports(WEB)), NodePorts()
    assert hint(plugin, who, events.NODE_ADD, None, node("n")) is Hint.QUEUE
    assert hint(plugin, who, ClusterEvent(events.NODE, Action.UPDATE_NODE_TAINT), node("n"), node("n")) is Hint.SKIP
    with pytest.raises(TypeError, match="not a Node"):
        hint(plugin, who, events.NODE_ADD, None, info("q"))
