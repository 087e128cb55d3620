"""Judgements of a cluster, one by one: what cannot be had from the control plane of the tests is made by hand."""

from __future__ import annotations

import msgspec
import pytest

from cli.clusterchecks import judge, minor
from cli.clusterfacts import CheckedNode, Facts
from slacktide.objects import Lease

NOW = 1_700_000_000.0
WHEN = "2023-11-14T22:13:20Z"


def node(name="n1", kubelet="v1.36.3", kernel="6.12.0", system="linux", ready="True"):
    info = {"kubeletVersion": kubelet, "kernelVersion": kernel, "operatingSystem": system}
    status = {"nodeInfo": info, "conditions": [{"type": "Ready", "status": ready}]}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, CheckedNode)


def lease(name, renewed, holder="x"):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Lease)


def found(name, **facts):
    given = {"version": "v1.36.3", "nodes": (node(),), "pods": (), "now": NOW, "here": NOW + 0.5, "policies": {}}
    return [one for one in judge(Facts(namespace="s", **{**given, **facts})) if one.name == name]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("v1.32.9", "problem"),
        ("v1.33.0", "ok"),
        ("v1.36.3", "ok"),
        ("v1.36.1-gke.100", "ok"),
        ("v1.37.0", "warning"),
        ("v2.0.0", "warning"),
        ("unknown", "unknown"),
    ],
)
def test_versions_of_the_server(version, verdict):
    assert [one.verdict for one in found("api server", version=version)] == [verdict]


@pytest.mark.parametrize(
    ("text", "parts"), [("v1.33.10", (1, 33)), ("6.12.1-generic", (6, 12)), ("", None), ("x", None)]
)
def test_minor_versions(text, parts):
    assert minor(text) == parts


@pytest.mark.parametrize(
    ("kubelet", "server", "verdict"),
    [
        ("v1.33.0", "v1.36.0", "ok"),
        ("v1.36.0", "v1.35.0", "problem"),
        ("v1.32.0", "v1.36.0", "problem"),
        ("v1.32.0", "v1.35.0", "warning"),
    ],
)
def test_kubelets_beside_the_server(kubelet, server, verdict):
    assert [one.verdict for one in found("kubelets", version=server, nodes=(node(kubelet=kubelet),))] == [verdict]


def test_kernels_are_told_by_what_they_lack():
    (old,) = found("kernel", nodes=(node(kernel="5.14.0-570.el9"),))
    assert "cpu.idle" in old.remedy
    assert "cgroup.kill" not in old.remedy
    assert found("systems", nodes=(node(system="windows"),))[0].verdict == "warning"
    assert found("kernel", nodes=(node(system="windows"),)) == []


def test_clocks():
    (here,) = found("clock here", here=NOW + 90)
    assert "90 s ahead" in here.evidence
    assert found("clock here") == []
    leases = (lease("n1", "2023-11-14T22:23:20Z"),)
    (ahead,) = found("clocks of nodes", node_leases=leases)
    assert (ahead.verdict, "n1 by 600 s" in ahead.evidence) == ("problem", True)
    leases = (lease("n1", "2023-11-14T22:03:20Z"),)
    (behind,) = found("clocks of nodes", node_leases=leases)
    assert behind.verdict == "warning"
    # A node that is not Ready renews nothing: its clock is not to blame.
    assert found("clocks of nodes", node_leases=leases, nodes=(node(ready="Unknown"),))[0].verdict == "ok"


@pytest.mark.parametrize(
    ("settings", "verdict", "word"),
    [
        ({"cgroupsPerQOS": False}, "problem", "cgroupsPerQOS"),
        ({"cpuCFSQuota": False}, "warning", "cpuCFSQuota"),
        ({"featureGates": {"MemoryQoS": True}}, "warning", "MemoryQoS"),
        ({"featureGates": {"MemoryQoS": False}, "cgroupDriver": "systemd"}, "ok", "systemd"),
        ({"cpuManagerPolicy": "static"}, "ok", "static"),
    ],
)
def test_kubelet_settings_that_get_in_our_way(settings, verdict, word):
    (one,) = found("kubelet settings", kubelets={"n1": settings})
    assert (one.verdict, word in one.evidence) == (verdict, True)


def test_a_gate_without_which_agents_are_refused():
    assert found("feature gates", gates={"ServiceAccountTokenPodNodeInfo": False})[0].verdict == "problem"
    assert found("feature gates", gates={"MutatingAdmissionPolicy": True})[0].verdict == "ok"
    assert found("feature gates", gates=None)[0].verdict == "unknown"


def test_what_could_not_be_read_is_never_taken_for_sound():
    nothing = Facts(namespace="s", version="v1.36.3", missing={"nodes": "nodes is forbidden"})
    verdicts = {one.name: one for one in judge(nothing)}
    assert verdicts["kubelets"].evidence == "nodes is forbidden"
    assert {name for name, one in verdicts.items() if one.verdict == "ok"} == {"api server"}


def test_conversion_needs_a_server_that_has_it():
    (without,) = found("conversion", policies={"validating policies": ("p",), "validating bindings": ("b",)})
    assert "slacktide convert -f" in without.remedy
    (sound,) = found("admission", policies={"validating policies": ("p",), "validating bindings": ("b",)})
    assert sound.verdict == "ok"
