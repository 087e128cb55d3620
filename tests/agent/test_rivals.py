"""Agents of other systems on the node: known by what a tenant cannot fake, and nothing is sold beside them."""

from __future__ import annotations

import msgspec
import pytest

from agent.host.rivals import foreign_agents
from agent.pods import identity_of
from agent.policy.close import Close, CloseSettings
from agent.snapshot import PodIdentity
from slacktide.errors import KernelError
from slacktide.objects import Pod
from slacktide.rivals import agent_in, program_of, writer_in
from slacktide.settings import ResourceNames
from slacktide.tier import Tier
from tests.agent.nodes import CONTEXT, node, pod

KUBEPODS = "0::/kubepods.slice/kubepods-pod0a1b2c3d_0a1b_2c3d_4e5f_0a1b2c3d4e5f.slice/cri-containerd-x.scope\n"


def daemon_pod(image="example.com/koordlet:v1", labels=None, kind="DaemonSet", volumes=({"hostPath": {}},), phase=""):
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "x", "controller": True}
    body = {
        "metadata": {"name": "x-1", "namespace": "sys", "uid": "u", "labels": labels or {}, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": image}], "volumes": list(volumes)},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


@pytest.mark.parametrize(
    ("image", "labels", "system"),
    [
        ("mirror:5000/a/koordlet@sha256:0123", {}, "Koordinator"),
        ("renamed:v1", {"koord-app": "koordlet"}, "Koordinator"),
        ("katalyst-agent", {}, "Katalyst"),
        ("volcanosh/vc-agent:latest", {}, "Volcano"),
        ("x/crane-agent:1", {}, "Crane"),
        ("x/rubik:1", {}, "rubik"),
        ("x/slacktide-agent:1", {}, ""),
        ("koordlet/proxy:1", {}, ""),
    ],
)
def test_agents_are_known_by_image_or_label(image, labels, system):
    found = daemon_pod(image, labels)
    assert agent_in(found) == system
    assert identity_of(found, ResourceNames()).rival == system


@pytest.mark.parametrize("what", [{"kind": "ReplicaSet"}, {"volumes": [{"emptyDir": {}}]}, {"phase": "Succeeded"}])
def test_what_a_tenant_can_make_is_no_agent(what):
    assert agent_in(daemon_pod(**what)) == ""


def test_writers_are_known_wherever_they_run():
    assert writer_in(daemon_pod("x/koord-manager:1", kind="ReplicaSet", volumes=())) == "Koordinator"
    assert writer_in(daemon_pod("x/koord-manager:1", phase="Failed")) == ""


@pytest.mark.parametrize(
    ("image", "name"), [("a", "a"), ("h:5000/a/b", "b"), ("h/a:1", "a"), ("a@sha256:0", "a"), ("h/a:1@sha256:0", "a")]
)
def test_programs_of_images(image, name):
    assert program_of(image) == name


def process(root, pid, comm, cgroup="0::/system.slice/x.service\n"):
    directory = root / str(pid)
    directory.mkdir()
    (directory / "comm").write_text(f"{comm}\n")
    (directory / "cgroup").write_text(cgroup)


def test_services_of_the_node_are_found_and_processes_of_pods_are_not(tmp_path):
    process(tmp_path, 7, "koordlet", KUBEPODS)
    process(tmp_path, 8, "systemd")
    (tmp_path / "9").mkdir()
    (tmp_path / "self").mkdir()
    assert foreign_agents(str(tmp_path)) == {}
    process(tmp_path, 10, "katalyst-agent")
    assert foreign_agents(str(tmp_path)) == {"Katalyst": "process katalyst-agent, pid 10"}


def test_processes_that_cannot_be_listed_are_an_error_not_none(tmp_path):
    with pytest.raises(KernelError):
        foreign_agents(str(tmp_path / "none"))


def test_the_node_closes_at_once_says_what_to_do_and_opens_when_the_other_is_gone():
    policy, settings = Close(), CloseSettings(quiet_seconds=30, min_dwell_seconds=30)
    other = pod("koordlet-x", Tier.SYSTEM, identity={"rival": "Koordinator"})
    beside = node(ls=100, pods=(pod("ls", Tier.LS), other), at=0.0)
    desired, state = policy.decide(beside, policy.start(CONTEXT), settings, CONTEXT)
    assert "Koordinator (pod d/koordlet-x)" in desired.closed
    assert "uninstall it" in desired.closed
    # Limits on BE are another policy's, and stay: what is here already must not gain.
    assert desired.requests == ()
    for at, still in ((29.0, True), (58.0, True), (60.0, False)):
        desired, state = policy.decide(node(ls=100, at=at), state, settings, CONTEXT)
        assert bool(desired.closed) is still, at


def test_a_service_of_the_node_closes_too():
    beside = node(ls=100, rivals={"Katalyst": "process katalyst-agent, pid 10"})
    desired, _ = Close().decide(beside, Close().start(CONTEXT), CloseSettings(), CONTEXT)
    assert "Katalyst (process katalyst-agent, pid 10)" in desired.closed


def test_while_it_is_not_known_who_else_is_here_a_closed_node_stays_closed_and_an_open_one_open():
    policy, settings = Close(), CloseSettings(quiet_seconds=30, min_dwell_seconds=30)
    state = policy.start(CONTEXT)
    desired, state = policy.decide(node(ls=100, rivals=None, at=0.0), state, settings, CONTEXT)
    assert desired.closed == ""
    for at, rivals in ((1.0, {"Katalyst": "process katalyst-agent, pid 10"}), (100.0, None), (200.0, None)):
        desired, state = policy.decide(node(ls=100, rivals=rivals, at=at), state, settings, CONTEXT)
    assert desired.closed


def test_most_pods_are_nobodys_agent():
    assert PodIdentity(namespace="d", name="x", uid="x", tier=Tier.LS).rival == ""
