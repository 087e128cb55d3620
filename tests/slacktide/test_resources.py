from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide import names
from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.objects import Node, Pod
from slacktide.resources import (
    batch_request,
    is_extended,
    limits_of,
    node_allocatable,
    node_capacity,
    qos_class,
    requests_of,
    validate_request,
)
from slacktide.settings import ResourceNames


def container(name="c", requests=None, limits=None, **more):
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def make_pod(*apps, init=(), **spec) -> Pod:
    status = spec.pop("status", {})
    body = {"spec": {"containers": list(apps), "initContainers": list(init), **spec}, "status": status}
    return msgspec.convert(body, Pod)


def need(cpu_millis, memory, **more):
    return {"cpu": f"{cpu_millis}m", "memory": str(memory), **more}


def app(cpu_millis, memory, **more):
    return container(requests=need(cpu_millis, memory, **more))


def sidecar(cpu_millis, memory):
    return container(requests=need(cpu_millis, memory), restartPolicy="Always")


# Rows of the scheduler's Fit table that concern what a pod effectively asks for.
EFFECTIVE = [
    ("nothing", make_pod(container()), {}),
    ("no container at all", make_pod(), {}),
    ("one app", make_pod(app(1, 1)), {"cpu": 1, "memory": 1}),
    ("apps are summed", make_pod(app(1, 1), app(2, 3)), {"cpu": 3, "memory": 4}),
    ("init above app in cpu", make_pod(app(1, 1), init=[app(3, 1)]), {"cpu": 3, "memory": 1}),
    ("largest init counts", make_pod(app(1, 1), init=[app(3, 1), app(2, 1)]), {"cpu": 3, "memory": 1}),
    ("init above app in memory", make_pod(app(1, 1), init=[app(1, 3)]), {"cpu": 1, "memory": 3}),
    ("init as large as app", make_pod(app(1, 1), init=[app(1, 1), app(1, 1)]), {"cpu": 1, "memory": 1}),
    ("init 5/1 and app 4/1", make_pod(app(4, 1), init=[app(5, 1)]), {"cpu": 5, "memory": 1}),
    ("max is per resource", make_pod(app(5, 1), init=[app(1, 9)]), {"cpu": 5, "memory": 9}),
    (
        "extended: init are not summed",
        make_pod(app(1, 1), init=[app(1, 1, **{"a.com/x": "3"}), app(1, 1, **{"a.com/x": "3"})]),
        {"cpu": 1, "memory": 1, "a.com/x": 3},
    ),
    (
        "extended: apps are summed",
        make_pod(app(1, 1, **{"a.com/x": "3"}), app(1, 1, **{"a.com/x": "3"})),
        {"cpu": 2, "memory": 2, "a.com/x": 6},
    ),
    ("sidecar beside app", make_pod(app(4, 1), init=[sidecar(1, 1)]), {"cpu": 5, "memory": 2}),
    ("sidecar runs during later init", make_pod(app(1, 1), init=[sidecar(2, 1), app(3, 1)]), {"cpu": 5, "memory": 2}),
    (
        "sidecar does not run during earlier init",
        make_pod(app(1, 1), init=[app(3, 1), sidecar(2, 1)]),
        {"cpu": 3, "memory": 2},
    ),
    ("two sidecars", make_pod(app(1, 1), init=[sidecar(2, 0), app(4, 0), sidecar(2, 0)]), {"cpu": 6, "memory": 1}),
    ("overhead comes on top", make_pod(app(1, 1), overhead=need(3, 13)), {"cpu": 4, "memory": 14}),
    ("overhead alone", make_pod(container(), overhead=need(3, 13)), {"cpu": 3, "memory": 13}),
    ("pod level replaces", make_pod(app(1, 1), resources={"requests": {"cpu": "7m"}}), {"cpu": 7, "memory": 1}),
    (
        "pod level replaces before overhead",
        make_pod(app(9, 1), resources={"requests": need(2, 2)}, overhead=need(3, 3)),
        {"cpu": 5, "memory": 5},
    ),
    (
        "pod level limit fills a gap only",
        make_pod(app(1, 1), resources={"limits": need(8, 8)}),
        {"cpu": 1, "memory": 1},
    ),
    (
        "pod level limit is the request",
        make_pod(container(), resources={"limits": need(8, 8)}),
        {"cpu": 8, "memory": 8},
    ),
    (
        "pod level knows cpu, memory and huge pages only",
        make_pod(container(), resources={"requests": {"a.com/x": "5", "hugepages-2Mi": "2Mi"}}),
        {"hugepages-2Mi": 2 << 20},
    ),
    ("limit without request is the request", make_pod(container(limits=need(5, 6))), {"cpu": 5, "memory": 6}),
    (
        "limit beside a request is not",
        make_pod(container(requests={"cpu": "1m"}, limits=need(5, 6))),
        {"cpu": 1, "memory": 6},
    ),
    ("an explicit 0 is kept", make_pod(container(requests={"cpu": "0"}, limits={"cpu": "1"})), {"cpu": 0}),
    (
        "sums are exact, then rounded up",
        make_pod(*[container(requests={"cpu": "100u", "kubernetes.io/batch-cpu": "200m"})] * 3),
        {"cpu": 1, "kubernetes.io/batch-cpu": 1},
    ),
    ("bare numbers", make_pod(container(requests={"cpu": 1, "memory": 5})), {"cpu": 1000, "memory": 5}),
]


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in EFFECTIVE], ids=[row[0] for row in EFFECTIVE])
def test_effective_request(pod, expected):
    assert requests_of(pod) == expected


def resized(asked, allocated, actual, reason=""):
    status = {
        "containerStatuses": [
            {"name": "c", "allocatedResources": need(allocated, 1), "resources": {"requests": need(actual, 1)}}
        ]
    }
    if reason:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return make_pod(app(asked, 1), status=status)


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        (resized(5, 3, 2), 5),
        (resized(1, 3, 2), 3),
        (resized(1, 2, 4), 4),
        (resized(9, 3, 2, "Deferred"), 9),
        (resized(9, 3, 2, "Infeasible"), 3),
    ],
)
def test_resize_in_place_counts_the_largest_unless_it_is_infeasible(pod, cpu):
    assert requests_of(pod)["cpu"] == cpu


def test_a_status_without_resources_changes_nothing():
    assert requests_of(make_pod(app(5, 1), status={"containerStatuses": [{"name": "c"}]}))["cpu"] == 5


def test_limits():
    assert limits_of(make_pod(app(1, 1))) == {}
    assert limits_of(make_pod(container(limits=need(5, 6)), container(limits={"cpu": "1"}))) == {
        "cpu": 1005,
        "memory": 6,
    }
    assert limits_of(make_pod(container(limits=need(5, 6)), resources={"limits": {"cpu": "2m"}})) == {
        "cpu": 2,
        "memory": 6,
    }
    assert limits_of(make_pod(container(limits={"cpu": "5m"}), overhead=need(1, 1))) == {"cpu": 6}
    assert limits_of(make_pod(container(limits=need(1, 1)), init=[container(limits=need(9, 1))])) == {
        "cpu": 9,
        "memory": 1,
    }


def test_batch_request():
    names_ = ResourceNames()
    pod = make_pod(container(requests={names.BATCH_CPU: "1500", names.BATCH_MEMORY: "1Gi"}), app(1, 1))
    assert batch_request(pod, names_) == Amount(cpu_millis=1500, memory_bytes=1 << 30)
    assert batch_request(make_pod(app(1, 1)), names_) == Amount(cpu_millis=0, memory_bytes=0)
    other = ResourceNames(cpu="example.com/cpu", memory="example.com/memory")
    assert batch_request(make_pod(container(requests={"example.com/cpu": "7"})), other) == Amount(
        cpu_millis=7, memory_bytes=0
    )


def test_bad_quantity_names_the_resource():
    with pytest.raises(QuantityError, match=r"memory: '1\.5\.2' is no quantity"):
        requests_of(make_pod(container(requests={"memory": "1.5.2"})))


def test_node():
    status = {
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
        "allocatable": {"cpu": "3900m", "kubernetes.io/batch-cpu": "2500"},
    }
    node = msgspec.convert({"status": status}, Node)
    assert node_capacity(node) == {"cpu": 4000, "memory": 16 << 30, "pods": 110}
    assert node_allocatable(node) == {"cpu": 3900, "kubernetes.io/batch-cpu": 2500}
    assert node_allocatable(Node()) == {}


FULL = need(5, 6)
QOS = [
    ("nothing", make_pod(container()), "BestEffort"),
    ("no container", make_pod(), "BestEffort"),
    (
        "batch resources only",
        make_pod(container(requests={names.BATCH_CPU: "1"}, limits={names.BATCH_CPU: "1"})),
        "BestEffort",
    ),
    ("zero requests", make_pod(container(requests={"cpu": "0", "memory": "0"})), "BestEffort"),
    ("requests", make_pod(app(1, 1)), "Burstable"),
    ("limits equal requests", make_pod(container(requests=FULL, limits=FULL)), "Guaranteed"),
    ("limits alone", make_pod(container(limits=FULL)), "Guaranteed"),
    (
        "same amount in other words",
        make_pod(container(requests={"cpu": "0.005", "memory": "6"}, limits=FULL)),
        "Guaranteed",
    ),
    ("limit of one resource", make_pod(container(requests={"cpu": "5m"}, limits={"cpu": "5m"})), "Burstable"),
    ("limit above request", make_pod(container(requests=FULL, limits=need(6, 6))), "Burstable"),
    ("one container without", make_pod(container(limits=FULL), container()), "Burstable"),
    (
        "one with zero limit",
        make_pod(container(limits=FULL), container(limits={"cpu": "0", "memory": "6"})),
        "Burstable",
    ),
    ("init container counts", make_pod(container(limits=FULL), init=[app(1, 1)]), "Burstable"),
    ("init container guaranteed too", make_pod(container(limits=FULL), init=[container(limits=FULL)]), "Guaranteed"),
    ("guaranteed beside extended", make_pod(container(limits={**FULL, "a.com/x": "1"})), "Guaranteed"),
    ("zero request below a limit", make_pod(container(requests={"cpu": "0"}, limits=FULL)), "Burstable"),
    (
        "pod level decides: guaranteed",
        make_pod(container(), resources={"requests": FULL, "limits": FULL}),
        "Guaranteed",
    ),
    ("pod level limits alone", make_pod(container(), resources={"limits": FULL}), "Guaranteed"),
    ("pod level limits above the containers' requests", make_pod(app(1, 1), resources={"limits": FULL}), "Burstable"),
    ("pod level request only", make_pod(container(limits=FULL), resources={"requests": FULL}), "Burstable"),
    ("empty pod level decides nothing", make_pod(container(limits=FULL), resources={}), "Guaranteed"),
]


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in QOS], ids=[row[0] for row in QOS])
def test_qos_class(pod, expected):
    assert qos_class(pod) == expected


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "a.com/x"]), st.integers(0, 50).map(str), max_size=3)
CONTAINERS = st.builds(
    lambda requests, limits, policy: container(requests=requests, limits=limits, **policy),
    AMOUNTS,
    AMOUNTS,
    st.sampled_from([{}, {"restartPolicy": "Always"}]),
)


@given(st.lists(CONTAINERS, max_size=3), st.lists(CONTAINERS, max_size=3), CONTAINERS)
def test_one_more_container_never_lowers_a_request(apps, init, more):
    before = requests_of(make_pod(*apps, init=init))
    for after in (requests_of(make_pod(*apps, more, init=init)), requests_of(make_pod(*apps, init=[*init, more]))):
        assert all(after[name] >= amount for name, amount in before.items())


@given(st.lists(CONTAINERS, max_size=3), st.lists(CONTAINERS, max_size=3))
def test_guaranteed_means_that_requests_equal_limits(apps, init):
    pod = make_pod(*apps, init=init)
    if qos_class(pod) == "Guaranteed":
        requests, limits = requests_of(pod), limits_of(pod)
        assert all(requests[name] == limits[name] > 0 for name in ("cpu", "memory"))


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("cpu", "1.5.2", r"spec\[cpu\]: '1\.5\.2' is no quantity"),
        ("memory", "1e", "an exponent needs digits"),
        ("cpu", "-1", "'-1' is negative"),
        ("cpu", -1, "-1 is negative"),
        (names.BATCH_CPU, "200m", "fraction: this resource is a whole count of millicores"),
        (names.BATCH_CPU, 0.5, "fraction"),
        (names.BATCH_MEMORY, "1m", "fraction"),
        ("example.com/gpu", "0.5", "fraction: this resource is a whole count of units"),
        ("hugepages-2Mi", "0.5", "fraction"),
    ],
)
def test_validate_request_refuses(name, source, message):
    with pytest.raises(QuantityError, match=message):
        validate_request(name, source, "spec")


@pytest.mark.parametrize(
    ("name", "source"), [("cpu", "0.5"), ("memory", "100m"), (names.BATCH_CPU, "1k"), ("cpu", 0), ("a.com/b", 3)]
)
def test_validate_request_returns_the_quantity(name, source):
    assert str(validate_request(name, source)) != ""


def test_validate_request_of_other_batch_names():
    with pytest.raises(QuantityError, match="millicores"):
        validate_request("kubernetes.io/my-cpu", "0.5", batch=frozenset({"kubernetes.io/my-cpu"}))


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        ("nvidia.com/gpu", True),
        ("cpu", False),
        ("kubernetes.io/batch-cpu", False),
        ("x.kubernetes.io/y", False),
        ("requests.a.com/b", False),
    ],
)
def test_extended_names(name, extended):
    assert is_extended(name) is extended
