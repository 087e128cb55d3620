from __future__ import annotations

import mmap
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.host.knobs import ADAPTERS
from agent.policy.base import Context
from agent.policy.batch_limits import MAX_QUOTA_MILLIS, BatchLimits, BatchLimitsSettings
from agent.snapshot import ContainerIdentity, ContainerSnapshot, NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier
from slacktide.weights import kernel_weight

V1 = Capabilities(mode="v1", cpu_version=1, memory_version=1, writable=frozenset(Knob))
V2 = Capabilities(mode="v2", cpu_version=2, memory_version=2, writable=frozenset(Knob))
POD = "kubepods/besteffort/pod1"
MIB = 1 << 20


def amount(cpu=None, memory=None):
    return Amount(cpu_millis=cpu, memory_bytes=memory)


def container(name, number=0, request=None, limit=None, **more):
    return ContainerIdentity(
        name=name,
        id=f"{number:064x}" if number else "",
        batch_request=request or amount(),
        batch_limit=limit or amount(),
        **more,
    )


def leaf(number):
    return ContainerSnapshot(group=f"{POD}/{number:064x}", id=f"{number:064x}")


def be(*containers, leaves=(), whole=None, tier=Tier.BE, **more):
    identity = PodIdentity(
        namespace="d", name="p", uid="1", tier=tier, batch_limit=whole or amount(), containers=containers, **more
    )
    return PodSnapshot(identity=identity, group=POD, containers=tuple(leaf(number) for number in leaves))


def decide(*pods, capabilities=V1, settings=None):
    snapshot = NodeSnapshot(at=1.0, window_seconds=1.0, capacity=Usage(), pods=pods)
    policy, context = BatchLimits(), Context(capabilities=capabilities)
    desired, _ = policy.decide(snapshot, policy.start(context), settings or BatchLimitsSettings(), context)
    return desired


def wanted(*pods, **more):
    """(last part of the group, knob) -> value; a leaf by its number."""
    found = {}
    for request in decide(*pods, **more).requests:
        name = request.group.removeprefix(POD).removeprefix("/")
        assert (name, request.knob) not in found
        found[int(name, 16) if name else "pod", request.knob] = request.value
    return found


def test_one_container_gets_weight_quota_and_memory_and_the_pod_the_sums():
    pod = be(
        container("main", 7, request=amount(500, 64 * MIB), limit=amount(1500, 128 * MIB)),
        leaves=[7],
        whole=amount(1500, 128 * MIB),
    )
    assert wanted(pod) == {
        ("pod", Knob.QUOTA): 1500,
        ("pod", Knob.MEMORY_MAX): 128 * MIB,
        (7, Knob.WEIGHT): 512,
        (7, Knob.QUOTA): 1500,
        (7, Knob.MEMORY_MAX): 128 * MIB,
    }
    reasons = [request.reason for request in decide(pod).requests]
    assert "d/p: container main asks for 500m of batch-cpu: weight 512" in reasons
    assert "d/p: container main has a batch-cpu limit: 1500m" in reasons


def test_a_pod_without_a_batch_limit_has_no_quota_and_not_the_minimum():
    # peer-koordinator.md section 10, row 20.
    pod = be(container("main", 7, request=amount(500, 64 * MIB)), leaves=[7])
    assert wanted(pod) == {(7, Knob.WEIGHT): 512}
    assert wanted(be(container("main", 7), leaves=[7])) == {}


def test_a_tiny_limit_is_the_least_that_the_kernel_takes():
    # peer-koordinator.md section 10, row 20: a quota below 1000 us is never written.
    pod = be(container("main", 7, limit=amount(1)), leaves=[7], whole=amount(1))
    assert wanted(pod)[7, Knob.QUOTA] == wanted(pod)["pod", Knob.QUOTA] == 10


@pytest.mark.parametrize("limit", [amount(MAX_QUOTA_MILLIS + 1, 1 << 62), amount((1 << 63) - 1, (1 << 63) - 1)])
def test_a_limit_beyond_every_node_is_none(limit):
    assert wanted(be(container("main", 7, limit=limit), leaves=[7], whole=limit)) == {}


@pytest.mark.parametrize(("asked", "held"), [(1, MIB), (4096, MIB), (MIB, MIB), (1 << 60, None), ((1 << 63) - 1, None)])
def test_a_memory_limit_that_nothing_could_live_in_or_no_node_has_spoils_nobody_elses_plan(asked, held):
    pod = be(container("main", 7, limit=amount(memory=asked)), leaves=[7], whole=amount(memory=asked))
    assert wanted(pod) == ({} if held is None else {("pod", Knob.MEMORY_MAX): held, (7, Knob.MEMORY_MAX): held})


def test_memory_is_rounded_up_to_a_page():
    pod = be(container("main", 7, limit=amount(memory=10 * MIB + 1)), leaves=[7])
    assert wanted(pod) == {(7, Knob.MEMORY_MAX): 10 * MIB + mmap.PAGESIZE}


@pytest.mark.parametrize(
    ("millis", "shares", "weight"),
    [(0, 2, 1), (1, 2, 1), (100, 102, 4), (500, 512, 20), (1000, 1024, 39), (2000, 2048, 79), (4000, 4096, 157),
     (256_000, 262_144, 10_000), (10**9, 262_144, 10_000)],
)  # fmt: skip
def test_weights_are_the_kubelets(millis, shares, weight):
    # koordinator 1521, kernel.md 2.2 (the old, linear map of shares) and row 18 of peer-koordinator.md section 10.
    assert (kernel_weight(millis, v2=False), kernel_weight(millis, v2=True)) == (shares, weight)


def test_each_matched_container_gets_its_own_and_the_sandbox_nothing():
    pod = be(
        container("a", 1, request=amount(100), limit=amount(200, 10 * MIB)),
        container("b", 2, request=amount(1000), limit=amount(2000, 20 * MIB)),
        leaves=[1, 2, 9],
        whole=amount(2200, 30 * MIB),
    )
    assert wanted(pod, capabilities=V2) == {
        ("pod", Knob.QUOTA): 2200,
        ("pod", Knob.MEMORY_MAX): 30 * MIB,
        (1, Knob.WEIGHT): 4,
        (1, Knob.QUOTA): 200,
        (1, Knob.MEMORY_MAX): 10 * MIB,
        (2, Knob.WEIGHT): 39,
        (2, Knob.QUOTA): 2000,
        (2, Knob.MEMORY_MAX): 20 * MIB,
    }


def test_the_leaves_of_a_pod_with_one_container_get_its_limits_before_the_api_knows_its_id():
    pod = be(container("main", request=amount(500), limit=amount(700, MIB)), leaves=[8, 9], whole=amount(700, MIB))
    found = wanted(pod)
    for number in (8, 9):
        assert (found[number, Knob.WEIGHT], found[number, Knob.QUOTA]) == (512, 700)
    reasons = [request.reason for request in decide(pod).requests]
    assert "d/p: container main (not matched yet) has a batch-cpu limit: 700m" in reasons


def test_a_restarted_container_is_limited_before_the_api_knows_its_new_id():
    # koordinator 972, 2055: the API still says 7, the kernel already has 8.
    pod = be(container("main", 7, limit=amount(700)), leaves=[8], whole=amount(700))
    assert wanted(pod)[8, Knob.QUOTA] == 700


def test_an_unmatched_leaf_gets_the_largest_of_those_that_have_no_leaf_yet():
    pod = be(
        container("a", 1, request=amount(100), limit=amount(200)),
        container("b", request=amount(300), limit=amount(300)),
        container("c", request=amount(50), limit=amount(400)),
        leaves=[1, 9],
    )
    found = wanted(pod)
    assert (found[1, Knob.QUOTA], found[9, Knob.QUOTA]) == (200, 400)
    assert found[9, Knob.WEIGHT] == 307


def test_a_leaf_that_may_be_a_container_without_a_limit_is_not_limited():
    pod = be(container("a", limit=amount(200)), container("b"), leaves=[8, 9])
    assert wanted(pod) == {}


def test_a_leaf_that_no_container_can_own_is_left_alone():
    assert wanted(be(leaves=[8])) == {}


def test_a_pod_that_asks_for_native_cpu_keeps_the_kubelets_weight():
    pod = be(
        container("main", 7, request=amount(500), limit=amount(700)), leaves=[7], cpu_request_millis=250
    )  # fmt: skip
    assert wanted(pod) == {(7, Knob.QUOTA): 700}


@pytest.mark.parametrize("tier", [Tier.LS, Tier.SYSTEM])
def test_only_be_is_limited(tier):
    pod = be(container("main", 7, limit=amount(700, MIB)), leaves=[7], whole=amount(700, MIB), tier=tier)
    assert decide(pod).requests == ()
    assert decide(pod).reason == "no BE pod is here"


def test_what_the_node_cannot_set_is_left_out_and_told():
    pod = be(container("main", 7, request=amount(500), limit=amount(700, MIB)), leaves=[7], whole=amount(700, MIB))
    only_cpu = replace(V1, writable=frozenset({Knob.QUOTA, Knob.WEIGHT}))
    assert {knob for _, knob in wanted(pod, capabilities=only_cpu)} == {Knob.QUOTA, Knob.WEIGHT}
    reason = decide(pod, capabilities=only_cpu).reason
    assert reason == (
        "of 1 BE pods 1 are held to a batch-cpu limit and 0 to a batch-memory limit; not on this node: memory.max"
    )
    assert decide(pod, capabilities=replace(V1, writable=frozenset())).requests == ()


def test_each_part_can_be_switched_off():
    pod = be(container("main", 7, request=amount(500), limit=amount(700, MIB)), leaves=[7], whole=amount(700, MIB))
    knobs = {
        name: {knob for _, knob in wanted(pod, settings=BatchLimitsSettings(**{name: False}))}
        for name in ("weights", "cpu", "memory")
    }
    assert knobs == {
        "weights": {Knob.QUOTA, Knob.MEMORY_MAX},
        "cpu": {Knob.WEIGHT, Knob.MEMORY_MAX},
        "memory": {Knob.WEIGHT, Knob.QUOTA},
    }


counts = st.none() | st.integers(1, 1 << 63)
amounts = st.builds(amount, counts, counts)
identities = st.builds(
    container, st.sampled_from("abc"), st.integers(0, 6), request=amounts, limit=amounts, init=st.booleans()
)


@given(
    containers=st.lists(identities, max_size=5),
    leaves=st.sets(st.integers(1, 9), max_size=6),
    whole=amounts,
    tier=st.sampled_from(Tier),
    version=st.sampled_from([V1, V2]),
)
def test_whatever_a_pod_asks_for_only_its_own_cgroups_get_values_that_no_limit_of_its_exceeds(
    containers, leaves, whole, tier, version
):
    pod = be(*containers, leaves=sorted(leaves), whole=whole, tier=tier)
    found = wanted(pod, capabilities=version)
    if tier is not Tier.BE:
        assert found == {}
    limits = [one.batch_limit for one in containers]
    for (group, knob), value in found.items():
        assert group == "pod" or group in leaves
        assert ADAPTERS[knob].problem(value) is None, "one such wish would refuse the plan of the whole node"
        if knob is Knob.WEIGHT:
            assert (2 if version is V1 else 1) <= value <= (262_144 if version is V1 else 10_000)
        elif group == "pod":
            assert value >= (whole.cpu_millis if knob is Knob.QUOTA else whole.memory_bytes)
        else:
            asked = [one.cpu_millis if knob is Knob.QUOTA else one.memory_bytes for one in limits]
            known = [one for one in asked if one is not None]
            least, grain = (10, 1) if knob is Knob.QUOTA else (MIB, mmap.PAGESIZE)
            assert value == least or any(one <= value < one + grain for one in known)
            assert any(one <= value for one in known)
