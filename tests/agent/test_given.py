"""What BE got, by namespace."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from agent.given import OTHERS, Given
from slacktide.tier import Tier
from tests.agent.nodes import pod


def given(*turns, most=64):
    registry = CollectorRegistry()
    counted = Given(registry, most)
    for pods, seconds in turns:
        counted.add(pods, seconds)
    return lambda name, namespace: registry.get_sample_value(f"slacktide_agent_{name}_total", {"namespace": namespace})


def pod_in(namespace, **more):
    made = pod(f"p-{namespace}", **more)
    return replace(made, identity=replace(made.identity, namespace=namespace))


def test_use_is_added_up_by_namespace_and_ls_is_not_in_it():
    value = given(
        ([pod_in("a", cpu=500, memory=100), pod_in("b", cpu=250), pod_in("a", tier=Tier.LS, cpu=4000)], 2.0),
        ([pod_in("a", cpu=1000, memory=50)], 1.0),
    )
    assert value("be_cpu_seconds", "a") == 2.0
    assert value("be_cpu_seconds", "b") == 0.5
    assert value("be_memory_byte_seconds", "a") == 250
    assert value("be_memory_byte_seconds", "b") is None


def test_what_was_not_measured_has_no_series():
    value = given(([pod_in("a", cpu=None)], 1.0), ([pod_in("a", cpu=500)], None))
    assert value("be_cpu_seconds", "a") is None


def test_namespaces_above_the_bound_share_a_series_and_the_known_ones_keep_theirs():
    value = given(([pod_in(name, cpu=1000) for name in "abcd"], 1.0), ([pod_in("b", cpu=1000)], 1.0), most=2)
    assert [value("be_cpu_seconds", name) for name in ("a", "b", OTHERS)] == [1.0, 2.0, 2.0]
    assert value("be_cpu_seconds", "c") is None
