"""What the agent reads of a pod: priority, age, end, opt-outs, limits and containers; hostile and half-made pods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pods import PodBook, identity_of
from slacktide.forecast import Amount
from slacktide.objects import Container, ContainerStatus, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements
from slacktide.settings import ResourceNames
from slacktide.tier import Tier
from tests.agent.twins import FakePods, pod

NAMES = ResourceNames()
ID_A, ID_B = "a" * 64, "b" * 64


def container(name="main", requests=None, limits=None, **more):
    resources = ResourceRequirements(requests=requests or {}, limits=limits or {})
    return Container(name=name, resources=resources, **more)


def batch(cpu=None, memory=None):
    return {name: value for name, value in ((NAMES.cpu, cpu), (NAMES.memory, memory)) if value is not None}


def be(*containers, **more):
    return identity_of(pod("u", "be", spec=PodSpec(containers=list(containers), **more)), NAMES)


def amount(cpu=None, memory=None):
    return Amount(cpu_millis=cpu, memory_bytes=memory)


def test_batch_only_is_a_pod_that_the_kubelet_does_not_limit():
    assert be(container(requests=batch("500", "1Mi"))).batch_only
    assert be(container(limits=batch("500"))).batch_only
    assert not be(container(requests=batch("500") | {"cpu": "1m"})).batch_only
    assert not be(container(requests=batch("500"), limits={"memory": "1Mi"})).batch_only
    assert not be(container()).batch_only
    assert be(container(requests=batch("500") | {"cpu": "0"})).batch_only, "what `slacktide run` sends is a plain 0"


def test_the_pods_limit_is_a_sum_only_where_every_container_has_one():
    one, two = container("a", limits=batch("500", "1Mi")), container("b", limits=batch("1500"))
    assert be(one).batch_limit == amount(500, 1 << 20)
    assert be(one, two).batch_limit == amount(2000, None)
    assert be(one, container("c")).batch_limit == amount()
    assert be(container(requests=batch("500"))).batch_limit == amount(), "a request is no limit"
    assert be(container(limits=batch("0", "0"))).batch_limit == amount(), "0 is no limit, as to a kubelet"


def test_init_containers_and_sidecars_count_as_the_scheduler_counts_them():
    # koordinator 2915, 2960: they were left out.
    main = container("main", limits=batch("500", "1Mi"))
    init = container("init", limits=batch("2000", "1Ki"))
    sidecar = container("side", limits=batch("100", "1Mi"), restart_policy="Always")
    assert be(main, init_containers=[init]).batch_limit == amount(2000, 1 << 20)
    found = be(main, init_containers=[sidecar, init])
    assert found.batch_limit == amount(2100, 2 << 20)
    assert {one.name: one.init for one in found.containers} == {"main": False, "side": False, "init": True}
    assert be(main, init_containers=[container("free")]).batch_limit == amount()


def test_native_limits_are_those_of_the_pod_as_a_whole():
    limits = {"cpu": "2", "memory": "1Mi"}
    assert (be(container(limits=limits)).cpu_limit_millis, be(container(limits=limits)).memory_limit_bytes) == (
        2000,
        1 << 20,
    )
    mixed = be(container("a", limits=limits), container("b"))
    assert (mixed.cpu_limit_millis, mixed.memory_limit_bytes) == (None, None)
    own = ResourceRequirements(limits={"cpu": "3"})
    assert be(container("a"), resources=own).cpu_limit_millis == 3000
    assert be(container(limits=batch("500"))).cpu_limit_millis is None, "no kubelet makes a quota of a batch limit"


def test_containers_have_their_requests_limits_and_ids():
    spec = PodSpec(
        containers=[container("a", batch("100"), batch("200", "1Mi")), container("b", limits=batch("300"))],
        init_containers=[container("i", batch("5"))],
    )
    status = PodStatus(
        container_statuses=[ContainerStatus(name="a", container_id=f"containerd://{ID_A}"), ContainerStatus(name="b")],
        init_container_statuses=[ContainerStatus(name="i", container_id=f"cri-o://{ID_B}")],
    )
    found = identity_of(Pod(metadata=ObjectMeta(uid="u"), spec=spec, status=status), NAMES).containers
    assert [(one.name, one.id, one.batch_request, one.batch_limit) for one in found] == [
        ("a", ID_A, amount(100, 1 << 20), amount(200, 1 << 20)),
        ("b", "", amount(300), amount(300)),
        ("i", ID_B, amount(5), amount()),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "containerd://", "://", ID_A[:-1], f"containerd://{ID_A}/../..", "docker://..", f"x://{ID_A}\n", "containerd://\0",
     f"containerd://crio-{ID_A}.scope", "A" * 64],
)  # fmt: skip
def test_an_id_of_no_known_form_is_no_id(text):
    status = PodStatus(container_statuses=[ContainerStatus(name="main", container_id=text)])
    found = identity_of(Pod(spec=PodSpec(containers=[container()]), status=status), NAMES)
    assert found.containers[0].id == ""


def test_statuses_of_containers_that_the_pod_does_not_have_are_passed_over():
    status = PodStatus(container_statuses=[ContainerStatus(name="debug", container_id=f"containerd://{ID_A}")])
    found = identity_of(Pod(spec=PodSpec(containers=[container()]), status=status), NAMES)
    assert [(one.name, one.id) for one in found.containers] == [("main", "")]


@pytest.mark.parametrize("bad", ["1.5.2", "x", "", "1e99999", "NaN", "--1", "9" * 200])
def test_a_quantity_that_cannot_be_read_is_unknown_and_limits_nothing(bad):
    found = be(container("a", batch("100"), batch(bad, "1Mi")), container("b", limits=batch("100", "1Mi")))
    assert found.requested == amount()
    assert found.batch_limit == amount()
    assert not found.batch_only
    assert [one.batch_limit for one in found.containers] == [amount(None, 1 << 20), amount(100, 1 << 20)]


@pytest.mark.parametrize("bad", ["200m", "0.2", "1.5"])
def test_volcano_4625_part_of_a_millicore_is_a_slip_and_limits_nothing(bad):
    """It became a quota of 1000 us: the API rounds 200m up to 1."""
    found = be(container("a", batch(bad), batch(bad, "1Mi")))
    assert found.batch_limit == amount(None, 1 << 20)
    assert [(one.batch_request, one.batch_limit) for one in found.containers] == [
        (amount(None, 1 << 20), amount(None, 1 << 20))
    ]
    assert be(container("a", limits=batch("200", "1.5Mi"))).batch_limit == amount(200, 3 << 19)


@pytest.mark.parametrize("bad", ["-5", "-1Gi"])
def test_a_negative_amount_is_no_limit_and_no_use(bad):
    found = be(container(requests=batch(bad, bad) | {"cpu": bad}, limits=batch(bad, bad) | {"memory": bad}))
    assert (found.requested, found.batch_limit) == (amount(0, 0), amount())
    assert (found.cpu_request_millis, found.memory_limit_bytes) == (0, None)
    assert found.containers[0].batch_limit == amount()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:01:40Z", 100.0), ("1970-01-01T01:01:40.5+01:00", 100.5), (None, None), ("", None),
     ("yesterday", None), ("1970-01-01T00:01:40", None), ("9999-99-99T00:00:00Z", None)],
)  # fmt: skip
def test_the_age_of_a_pod(text, seconds):
    assert identity_of(Pod(metadata=ObjectMeta(creation_timestamp=text)), NAMES).created_at == seconds


def test_priority_and_end():
    assert identity_of(Pod(spec=PodSpec(priority=5500)), NAMES).priority == 5500
    assert identity_of(Pod(), NAMES).priority == 0
    dying = ObjectMeta(deletion_timestamp="2026-01-01T00:00:00Z")
    assert identity_of(Pod(metadata=dying), NAMES).terminating
    for phase, ended in (("Running", False), ("Pending", False), ("", False), ("Succeeded", True), ("Failed", True)):
        assert identity_of(Pod(status=PodStatus(phase=phase)), NAMES).terminating is ended


@pytest.mark.parametrize(
    ("annotations", "labels", "evictable"),
    [({}, {}, True), ({"slacktide.io/evictable": "true"}, {}, True), ({"slacktide.io/evictable": "false"}, {}, False),
     ({"slacktide.io/evictable": "\x00no\n"}, {}, False), ({"slacktide.io/evictable": ""}, {}, False),
     ({}, {"koordinator.sh/eviction-enabled": "false"}, False), ({}, {"koordinator.sh/eviction-enabled": "x"}, True)],
)  # fmt: skip
def test_opting_out_of_eviction(annotations, labels, evictable):
    meta = ObjectMeta(annotations=annotations, labels=labels)
    assert identity_of(Pod(metadata=meta), NAMES).evictable is evictable


@given(text=st.text(max_size=200), amount_text=st.text(max_size=20) | st.integers() | st.floats())
def test_no_text_in_a_pod_breaks_the_agent(text, amount_text):
    spec = PodSpec(containers=[container(text, batch(amount_text), batch(amount_text, amount_text))])
    meta = ObjectMeta(name=text, namespace=text, uid=text, creation_timestamp=text, annotations={text: text})
    status = PodStatus(phase=text, container_statuses=[ContainerStatus(name=text, container_id=text)])
    found = identity_of(Pod(metadata=meta, spec=spec, status=status), NAMES)
    assert found.tier is Tier.BE
    for part in (found.batch_limit.cpu_millis, found.batch_limit.memory_bytes):
        assert part is None or part > 0
    assert "/" not in found.containers[0].id


def test_a_pod_that_is_resized_or_gets_its_ids_is_read_again():
    source = FakePods(pod("a", "be", spec=PodSpec(containers=[container(limits=batch("500"))])))
    book = PodBook(source, NAMES)
    assert book.refresh(["a"])["a"].batch_limit.cpu_millis == 500
    source.pods[0] = pod("a", "be", spec=PodSpec(containers=[container(limits=batch("900"))]))
    assert book.find({"a"})["a"].batch_limit.cpu_millis == 900
    assert book.refresh(["a"])["a"].batch_limit.cpu_millis == 900


def test_an_empty_or_partial_list_keeps_what_was_known_of_pods_that_run():
    # kubernetes 81324: state was wiped at the first, empty list.
    source = FakePods(pod("a", "be", spec=PodSpec(containers=[container(limits=batch("500"))])), pod("b", "be"))
    book = PodBook(source, NAMES)
    before = book.refresh(["a", "b"])
    source.pods.clear()
    assert book.refresh(["a", "b"]) == before
    assert book.find({"a"}) == {"a": before["a"]}
    source.synced = False
    assert book.refresh(["a"]) == {"a": before["a"]}
    assert book.find({"new"}) == {}


def test_what_was_found_between_refreshes_is_known_and_earlier_answers_stay_as_they_were():
    source = FakePods(pod("a", "be"))
    book = PodBook(source, NAMES)
    before = book.refresh(["a"])
    source.pods.append(pod("B", "be"))
    assert book.find({"b", "c"})["b"].uid == "B"
    assert set(before) == {"a"}
    source.pods.clear()
    assert set(book.refresh(["a", "b"])) == {"a", "b"}


def test_a_static_pod_is_known_by_the_hash_that_its_cgroup_carries_and_is_nobodys_victim():
    manifest = "0123456789ABCDEF0123456789abcdef"
    annotations = {"kubernetes.io/config.mirror": manifest, "kubernetes.io/config.hash": manifest}
    mirror = Pod(
        metadata=ObjectMeta(name="kube-apiserver-n1", namespace="kube-system", uid="u-1", annotations=annotations)
    )
    book = PodBook(FakePods(mirror), NAMES)
    known = book.refresh([manifest.lower()])
    assert known[manifest.lower()].name == "kube-apiserver-n1"
    assert not known[manifest.lower()].evictable
    assert book.find({manifest.lower()})[manifest.lower()].uid == "u-1"


def test_a_hash_without_a_mirror_is_no_uid():
    odd = Pod(metadata=ObjectMeta(name="p", uid="u-1", annotations={"kubernetes.io/config.hash": "0" * 32}))
    assert set(PodBook(FakePods(odd), NAMES).refresh(["u-1"])) == {"u-1"}
