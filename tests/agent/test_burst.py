from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, convert

from agent.capabilities import Knob
from agent.counters import CpuKnobs
from agent.policy.base import Context
from agent.policy.burst import Burst, BurstSettings, BurstState
from agent.snapshot import ContainerSnapshot
from slacktide.tier import Tier
from tests.agent.nodes import ALL, CONTEXT, SHORT, node, pod, turns

SETTINGS = BurstSettings()


def knobs(quota_us=100_000, burst_us=0):
    return CpuKnobs(quota_us=quota_us, period_us=100_000, burst_us=burst_us)


def container(name, quota_us=50_000, throttled=0.0, burst_us=0):
    return ContainerSnapshot(group=name, id=name, knobs=knobs(quota_us, burst_us), throttled_ratio=throttled)


def throttled(**more):
    return pod("ls", Tier.LS, **{"throttled_ratio": 0.2, "knobs": knobs(), **more})


def decide(snapshot, state=None, settings=SETTINGS, context=CONTEXT):
    return Burst().decide(snapshot, state or BurstState(), settings, context)


def given_to(desired):
    return {request.group: request.value for request in desired.requests}


def calm(*pods, **more):
    return node(ls=500, pods=(*pods, pod("be", throttled_ratio=0.9, knobs=knobs(50_000))), **more)


def test_a_throttled_ls_pod_may_burst_and_a_throttled_be_pod_never():
    desired, _ = decide(calm(throttled()))
    assert given_to(desired) == {"kubepods/ls": 100_000}
    assert {request.knob for request in desired.requests} == {Knob.BURST}, "no quota is ever touched"
    assert "1 throttled LS pods may burst" in desired.reason


@pytest.mark.parametrize(
    "quiet", [{"throttled_ratio": 0.005}, {"throttled_ratio": None}, {"throttled_ratio": 0.5, "knobs": knobs(None)}]
)
def test_not_without_need_and_not_without_a_quota(quiet):
    assert decide(calm(throttled(**quiet)))[0].requests == ()


def test_it_stays_when_it_helped():
    _, state = decide(calm(throttled()))
    desired, state = decide(calm(throttled(throttled_ratio=0.0, knobs=knobs(burst_us=100_000))), state)
    assert given_to(desired) == {"kubepods/ls": 100_000}
    assert decide(calm(), state)[1].given == frozenset()


def test_rubik_cf19376_a_container_that_restarts_gets_it_too():
    first = throttled(throttled_ratio=0.0, containers=(container("a", throttled=0.3),))
    desired, state = decide(calm(first))
    assert given_to(desired) == {"kubepods/ls": 100_000, "a": 50_000}
    again = replace(first, containers=(container("b"),))
    desired, _ = decide(replace(calm(again), urgent=True), state)
    assert given_to(desired) == {"kubepods/ls": 100_000, "b": 50_000}
    assert Burst.prompt


def test_koordinator_2326_a_burst_is_never_above_the_quota():
    with pytest.raises(ValidationError):
        convert({"percent": 1000}, BurstSettings)
    desired, _ = decide(calm(throttled()), settings=BurstSettings(percent=100))
    assert given_to(desired) == {"kubepods/ls": 100_000}
    desired, _ = decide(calm(throttled()), settings=BurstSettings(percent=33.3))
    assert given_to(desired) == {"kubepods/ls": 33_000}


def test_koordinator_2778_a_pod_that_is_about_to_be_resized_down_has_no_burst():
    _, state = decide(calm(throttled()))
    shrinking = throttled(knobs=knobs(burst_us=100_000), identity={"cpu_limit_millis": 500})
    desired, state = decide(calm(shrinking), state)
    assert desired.requests == ()
    resized = throttled(knobs=knobs(50_000), identity={"cpu_limit_millis": 500})
    assert given_to(decide(calm(resized), state)[0]) == {"kubepods/ls": 50_000}
    inner = throttled(knobs=knobs(None), identity={"cpu_limit_millis": 300}, containers=(container("a", 50_000),))
    assert decide(calm(inner), state)[0].requests == ()


def test_a_burst_of_the_pods_own_that_is_larger_is_left_alone():
    assert decide(calm(throttled(knobs=knobs(50_000, burst_us=80_000))))[0].requests == ()


@pytest.mark.parametrize("short", [{"ls": 1600}, {"ls": 500, "pressure": SHORT}])
def test_a_node_that_is_short_withholds_it_with_a_hold_band_and_a_way_back(short):
    _, state = decide(calm(throttled()))
    busy = node(pods=(throttled(),), at=101.0, **short)
    desired, state = decide(busy, state)
    assert desired.requests == ()
    assert desired.rung.engaged
    assert "no burst" in desired.reason
    for band in turns(node(ls=1450, system=0, pods=(throttled(),)), 60, start=102.0):
        desired, state = decide(band, state)
        assert desired.requests == ()
    given = []
    for quiet in turns(node(ls=500, pods=(throttled(throttled_ratio=0.0),)), 12, start=200.0):
        desired, state = decide(quiet, state)
        given.append(bool(desired.requests))
    assert given == [False] * 10 + [True] * 2


def test_what_is_not_known_changes_nothing():
    _, state = decide(calm(throttled()))
    assert decide(node(ls=None, pods=(throttled(),)), state)[0].requests
    _, state = decide(node(ls=1600, pods=(throttled(),)), state)
    for blind in turns(node(ls=None, pods=(throttled(),)), 60, start=101.0):
        desired, state = decide(blind, state)
        assert desired.requests == ()


def test_a_kernel_without_burst_says_so():
    context = Context(capabilities=replace(ALL, writable=frozenset({Knob.QUOTA})))
    desired, _ = decide(calm(throttled()), context=context)
    assert (desired.requests, desired.rung) == ((), None)
    assert "cannot be set" in desired.reason


@given(
    quota=st.one_of(st.none(), st.integers(1000, 10_000_000)),
    burst=st.one_of(st.none(), st.integers(0, 10_000_000)),
    percent=st.floats(1, 100),
    ratio=st.one_of(st.none(), st.floats(0, 1)),
    tier=st.sampled_from(list(Tier)),
    ls=st.one_of(st.none(), st.integers(0, 2000)),
)
def test_the_mainline_rule_holds_for_whatever_is_asked(quota, burst, percent, ratio, tier, ls):
    one = pod("x", tier, throttled_ratio=ratio, knobs=CpuKnobs(quota_us=quota, period_us=100_000, burst_us=burst))
    desired, _ = decide(node(ls=ls, pods=(one,)), settings=BurstSettings(percent=percent))
    for request in desired.requests:
        assert tier is Tier.LS
        assert 0 < request.value <= quota
        assert request.value % 1000 == 0
