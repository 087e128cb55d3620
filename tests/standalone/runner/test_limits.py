"""Formulas against the vectors that kubelets and runtimes are known by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.objects import Container
from slacktide.weights import shares_of, weight_of
from standalone.runner.limits import burstable_shares, container_limits, oom_score_adj, pod_limits, quota_of
from tests.standalone.runner.twin import make_pod, pod_dict, pod_view


@pytest.mark.parametrize(
    ("millis", "shares"),
    [(0, 2), (1, 2), (2, 2), (3, 3), (10, 10), (100, 102), (500, 512), (1000, 1024), (10**9, 262144)],
)
def test_shares(millis, shares):
    assert shares_of(millis) == shares


@pytest.mark.parametrize(
    ("shares", "weight"),
    [
        (2, 1),
        (10, 1),
        (102, 4),
        (512, 20),
        (1024, 39),
        (2048, 79),
        (4096, 157),
        (262144, 10000),
        (0, 1),
        (10**7, 10000),
    ],
)
def test_weight_is_the_linear_map(shares, weight):
    assert weight_of(shares) == weight


@pytest.mark.parametrize(
    ("millis", "quota"), [(0, None), (1, 1000), (10, 1000), (11, 1100), (1000, 100_000), (2500, 250_000)]
)
def test_quota(millis, quota):
    assert quota_of(millis) == quota


@given(st.integers(0, 10**8), st.integers(0, 10**8))
def test_more_request_never_weighs_less(one, other):
    low, high = sorted((one, other))
    assert 1 <= weight_of(shares_of(low)) <= weight_of(shares_of(high)) <= 10000


def container(requests=None, limits=None, name="c"):
    return {"name": name, "image": "", "resources": {"requests": requests or {}, "limits": limits or {}}}


def view(requests=None, limits=None):
    return pod_view(pod_dict(containers=[container(requests, limits)])).spec.containers[0]


def test_container_without_anything():
    found = container_limits(Container(name="c"))
    assert (found.shares, found.quota_micros, found.memory_bytes) == (2, None, None)


def test_container_request_defaults_to_its_limit():
    found = container_limits(view(limits={"cpu": "2", "memory": "1Gi"}))
    assert (found.shares, found.quota_micros, found.memory_bytes) == (2048, 200_000, 1 << 30)


def test_batch_resources_are_unknown():
    amounts = {"kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "1073741824"}
    pod = pod_view(pod_dict(containers=[container(amounts, amounts)]))
    for found in (pod_limits(pod), container_limits(pod.spec.containers[0])):
        assert (found.shares, found.quota_micros, found.memory_bytes) == (2, None, None)


def test_pod_sums_and_limits_only_where_every_container_has_one():
    both = container({"cpu": "250m", "memory": "1Mi"}, {"cpu": "500m", "memory": "2Mi"}, "a")
    half = container({"cpu": "250m"}, {"cpu": "1"}, "b")
    found = pod_limits(pod_view(pod_dict(containers=[both, half])))
    assert (found.shares, found.quota_micros, found.memory_bytes) == (512, 150_000, None)


def test_an_init_container_without_limit_leaves_the_pod_unlimited():
    limited = container({"cpu": "1"}, {"cpu": "1", "memory": "1Mi"}, "a")
    pod = pod_view(pod_dict(containers=[limited], initContainers=[container(name="i")]))
    assert pod_limits(pod).quota_micros is None


def test_burstable_class_sums_burstable_pods_only():
    burstable = pod_view(pod_dict("a", containers=[container({"cpu": "500m"})]))
    same = {"cpu": "4", "memory": "1Gi"}
    guaranteed = pod_view(pod_dict("b", containers=[container(same, same)]))
    assert burstable_shares([burstable, guaranteed, make_pod("c"), burstable]) == 1024
    assert burstable_shares([]) == 2


@pytest.mark.parametrize(
    ("requests", "limits", "score"),
    [
        (None, None, 1000),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, -997),
        ({"memory": "2Gi"}, None, 750),
        ({"memory": "8Gi"}, None, 3),
        ({"cpu": "1"}, None, 999),
        ({"kubernetes.io/batch-memory": "1"}, None, 1000),
    ],
)
def test_oom_score(requests, limits, score):
    pod = pod_view(pod_dict(containers=[container(requests, limits)]))
    assert oom_score_adj(pod, pod.spec.containers[0], 8 << 30) == score
