"""Group identity and core scheduling cookies of the weight policy; its idle class is in test_policies."""

from __future__ import annotations

import pytest

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context
from agent.policy.weight import Weight, WeightSettings
from agent.snapshot import ContainerSnapshot, NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.status import Usage
from slacktide.tier import Tier

BE, LS, SYSTEM = (f"kubepods/{name}" for name in ("besteffort/podb", "burstable/podl", "pods"))


def pod(group, tier):
    identity = PodIdentity(namespace="d", name=tier.value, uid=tier.value, tier=tier)
    return PodSnapshot(identity=identity, group=group, containers=(ContainerSnapshot(group=f"{group}/c", id="c"),))


NODE = NodeSnapshot(
    at=1.0,
    window_seconds=1.0,
    capacity=Usage(cpu_millis=2000),
    pods=(pod(BE, Tier.BE), pod(LS, Tier.LS), pod(SYSTEM, Tier.SYSTEM)),
)


def decide(*knobs, snapshot=NODE, able=False, **more):
    capabilities = Capabilities(
        mode="v1",
        cpu_version=1,
        writable=frozenset(knobs),
        core_scheduling=able,
        skipped={} if able else {"core-scheduling": "no hyper-threads"},
    )
    desired, _ = Weight().decide(snapshot, None, WeightSettings(**more), Context(capabilities=capabilities))
    return desired


def values(desired, knob=Knob.BVT):
    return {request.group: request.value for request in desired.requests if request.knob is knob}


def test_be_gets_group_identity_beside_the_idle_class_on_pod_and_container():
    desired = decide(Knob.IDLE, Knob.BVT)
    assert values(desired) == {BE: -1, f"{BE}/c": -1}
    assert values(desired, Knob.IDLE) == {BE: 1}
    assert desired.reason == "idle class: runs only where nobody else wants the CPU; group identity -1"


def test_ls_gets_identity_2_only_where_the_settings_say_so_and_system_never():
    assert values(decide(Knob.BVT, bvt_ls=True)) == {BE: -1, f"{BE}/c": -1, LS: 2, f"{LS}/c": 2}
    assert values(decide(Knob.BVT, bvt_ls=True, bvt=False)) == {}


def test_no_knob_is_ever_asked_for_on_a_qos_root():
    """koordinator #2732: cpu.idle on kubepods/besteffort makes the kubelet fail to start."""
    pods = {BE, LS}
    for request in decide(Knob.IDLE, Knob.WEIGHT, Knob.BVT, bvt_ls=True).requests:
        assert request.group in pods or request.group.rpartition("/")[0] in pods


def test_identity_alone_is_enough_where_nothing_else_can_be_set():
    desired = decide(Knob.BVT)
    assert desired.reason == "group identity -1"
    assert set(desired.requests[0].knob.tiers) == {Tier.LS, Tier.BE}


@pytest.mark.parametrize(
    ("knobs", "able", "cookies", "words"),
    [
        pytest.param((Knob.IDLE,), True, True, "one core scheduling cookie a tier", id="there"),
        pytest.param((Knob.IDLE,), False, False, "no core scheduling: no hyper-threads", id="absent"),
        pytest.param((Knob.IDLE, Knob.BVT), True, False, "switch weight.bvt off", id="koordinator #1829"),
    ],
)
def test_core_scheduling_is_had_alone_or_not_at_all(knobs, able, cookies, words):
    desired = decide(*knobs, able=able, core_scheduling=True)
    assert desired.cookies is cookies
    assert words in desired.reason
    assert not decide(*knobs, able=able).cookies


def test_without_a_be_pod_nothing_is_asked_of_be():
    alone = NodeSnapshot(at=1.0, window_seconds=1.0, capacity=Usage(), pods=(pod(LS, Tier.LS),))
    desired = decide(Knob.IDLE, Knob.BVT, snapshot=alone)
    assert desired.requests == ()
    assert desired.reason == "no BE pod is here"
