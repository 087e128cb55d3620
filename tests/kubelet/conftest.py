"""One emulated node for each cgroup driver, and what happens on it before its tests: without the agent, then with."""

from __future__ import annotations

import os

import pytest

from slacktide.cluster import NAMESPACES
from tests.kubelet import machine as machines
from tests.kubelet.agent import GuestAgent
from tests.kubelet.machine import Machine
from tests.kubelet.pods import MIB, NAMESPACE, Pods, batch, native
from tests.kubelet.scene import SETTINGS, Scene

VARIABLE = "SLACKTIDE_KUBELET_DRIVERS"
"""Cgroup drivers to test with, separated by commas; without it the first of DRIVERS that can be had here."""


def chosen():
    wanted = os.environ.get(VARIABLE)
    if wanted:
        return wanted.split(",")
    return [next((one for one in machines.DRIVERS if machines.missing(one) is None), machines.DRIVERS[0])]


@pytest.fixture(scope="module", params=chosen())
def node(request, tmp_path_factory):
    """A node that is ready, and nothing on it."""
    reason = machines.missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    made = Machine(tmp_path_factory.mktemp(request.param), request.param)
    try:
        made.start()
        made.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        yield Scene(machine=made, pods=Pods(made))
    finally:
        made.stop()


@pytest.fixture(scope="module")
def alone(node):
    """With pods that have lived beside the kubelet alone for a while."""
    pods = node.pods
    pods.create("early", [batch(500, 64 * MIB)])
    node.early = node.machine.wait(
        lambda: (pod := pods.get("early")).status.phase == "Failed" and pod, "refusal of a pod that asks for too much"
    )
    node.sell(4000, 2048 * MIB)
    pods.create("ls", [native("500m", "64Mi")])
    pods.create("be", [batch(500, 64 * MIB, request=250), batch(200, 32 * MIB)])
    for name in ("ls", "be"):
        pods.running(name)
    node.live("first")
    node.restart_kubelet()
    node.before = {name: pods.values(pods.get(name)) for name in ("ls", "be")}
    node.errors_alone = node.errors()
    return node


@pytest.fixture(scope="module")
def scene(alone, tmp_path_factory):
    """With the agent."""
    alone.agent = GuestAgent(alone.machine, SETTINGS, tmp_path_factory.mktemp("agent"))
    alone.agent.start()
    return alone
