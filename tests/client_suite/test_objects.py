"""Create, read, patch, replace, delete: what each verb does and what it refuses."""

from __future__ import annotations

import pytest

from slacktide.cluster import EVENTS, LEASES, NODES, PODS, EventRecorder, LeaderElector, errors
from tests.client_suite.objects import body, make
from tests.slacktide.cluster.fakeapi import wait_for


def test_version(client):
    assert client.version().git_version.startswith("v1.")


def test_create_get_delete(client, ns):
    made = make(client, ns, "a", {"app": "x"})
    assert made.metadata.uid
    assert int(made.metadata.resource_version) > 0
    found = client.get(PODS, "a", ns)
    assert (found.metadata.uid, found.metadata.labels) == (made.metadata.uid, {"app": "x"})
    assert found.status.qos_class == "BestEffort"
    client.delete(PODS, "a", ns, grace_period_seconds=0)
    with pytest.raises(errors.NotFound, match=r'"a" not found'):
        client.get(PODS, "a", ns)
    with pytest.raises(errors.NotFound):
        client.delete(PODS, "a", ns)


def test_refusals(client, ns):
    make(client, ns, "a")
    with pytest.raises(errors.AlreadyExists, match="already exists"):
        make(client, ns, "a")
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        make(client, ns, "No_Name!")
    for amount, refused in (
        ("1.5.2", errors.BadRequest),
        ("1e", errors.BadRequest),
        ("-1", errors.Invalid),
    ):
        quantity = [{"name": "m", "image": "i", "resources": {"requests": {"cpu": amount}}}]
        with pytest.raises(refused, match=r"quantities|quantity|must be greater"):
            make(client, ns, "b", containers=quantity)
    with pytest.raises(errors.NotFound):
        make(client, f"{ns}-absent", "a")


def test_generated_names(client, ns):
    first, second = (client.create(PODS, {**body(""), "metadata": {"generateName": "job-"}}, ns) for _ in range(2))
    assert first.metadata.name.startswith("job-")
    assert first.metadata.name != second.metadata.name


def test_delete_spares_a_newer_object_of_the_name(client, ns):
    made = make(client, ns, "a")
    with pytest.raises(errors.Conflict):
        client.delete(PODS, "a", ns, uid="00000000-0000-0000-0000-000000000000")
    client.delete(PODS, "a", ns, uid=made.metadata.uid, grace_period_seconds=0)


def test_grace_period_shows_before_the_end(client, ns, node):
    pod = make(client, ns, "a", terminationGracePeriodSeconds=30)
    client.bind(pod, node.metadata.name)
    client.delete(PODS, "a", ns)
    leaving = client.get(PODS, "a", ns)
    assert leaving.metadata.deletion_timestamp
    assert leaving.metadata.deletion_grace_period_seconds == 30


def test_patches(client, ns):
    make(client, ns, "a", {"keep": "1", "drop": "1"})
    merged = client.patch(PODS, "a", ns, {"metadata": {"labels": {"drop": None, "new": "2"}}})
    assert merged.metadata.labels == {"keep": "1", "new": "2"}
    patched = client.patch(
        PODS, "a", ns, [{"op": "replace", "path": "/metadata/labels/new", "value": "3"}], patch_type="json"
    )
    assert patched.metadata.labels["new"] == "3"
    one = {"status": {"conditions": [{"type": "One", "status": "True"}]}}
    two = {"status": {"conditions": [{"type": "Two", "status": "True"}]}}
    client.patch(PODS, "a", ns, one, "status", "strategic")
    both = client.patch(PODS, "a", ns, two, "status", "strategic")
    assert {c.type for c in both.status.conditions} >= {"One", "Two"}, "strategic: merged by type"
    replaced = client.patch(PODS, "a", ns, two, "status", "merge")
    assert {c.type for c in replaced.status.conditions} == {"Two"}, "merge: a list is replaced"


def test_status_and_the_rest_are_written_apart(client, ns):
    make(client, ns, "a")
    both = {"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Running"}}
    plain = client.patch(PODS, "a", ns, both)
    assert (plain.metadata.labels, plain.status.phase) == ({"x": "y"}, "Pending")
    status = client.patch(PODS, "a", ns, {"status": {"phase": "Running"}}, "status")
    assert status.status.phase == "Running"


def test_patch_that_assumes_an_old_version_is_a_conflict(client, ns):
    pod = make(client, ns, "a")
    client.patch(PODS, "a", ns, {"metadata": {"labels": {"x": "y"}}})
    stale = {"metadata": {"resourceVersion": pod.metadata.resource_version, "labels": {"x": "z"}}}
    with pytest.raises(errors.Conflict):
        client.patch(PODS, "a", ns, stale)
    with pytest.raises(errors.NotFound):
        client.patch(PODS, "absent", ns, {"metadata": {"labels": {"x": "z"}}})


def test_patch_of_nothing_leaves_the_version(client, ns):
    before = make(client, ns, "a", {"x": "y"}).metadata.resource_version
    assert client.patch(PODS, "a", ns, {"metadata": {"labels": {"x": "y"}}}).metadata.resource_version == before


def test_batch_resources_of_a_node(client, node):
    status = {"status": {"capacity": {"cpu": "4", "pods": "110"}, "allocatable": {"cpu": "4", "pods": "110"}}}
    client.patch(NODES, node.metadata.name, None, status, "status")
    batch = {"kubernetes.io/batch-cpu": "2500", "kubernetes.io/batch-memory": "1073741824"}
    client.patch(NODES, node.metadata.name, None, {"status": {"capacity": batch, "allocatable": batch}}, "status")
    annotated = client.patch(NODES, node.metadata.name, None, {"metadata": {"annotations": {"slacktide.io/f": "{}"}}})
    assert annotated.metadata.annotations["slacktide.io/f"] == "{}"
    assert annotated.status.allocatable["kubernetes.io/batch-cpu"] in ("2500", "2.5k")
    assert annotated.status.allocatable["cpu"] == "4"


def test_lease_is_replaced_only_as_read(client, ns):
    client.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}, ns)
    first, second = client.get_dict(LEASES, "l", ns), client.get_dict(LEASES, "l", ns)
    first["spec"]["holderIdentity"] = "b"
    assert client.replace(LEASES, first).spec.holder_identity == "b"
    with pytest.raises(errors.Conflict):
        client.replace(LEASES, second)


def test_leader_election(client, ns):
    log, electors = [], {}
    for name in "ab":
        electors[name] = LeaderElector(
            client,
            "leader",
            ns,
            name,
            lambda name=name: log.append(f"+{name}"),
            lambda name=name: log.append(f"-{name}"),
            retry_seconds=0.05,
        )
    electors["a"].start()
    try:
        wait_for(lambda: log == ["+a"], "a to lead")
        electors["b"].start()
        wait_for(lambda: electors["b"].leader == "a", "b to see it")
        electors["a"].stop()
        wait_for(lambda: log == ["+a", "-a", "+b"], "b to lead without waiting for the lease to expire")
    finally:
        for elector in electors.values():
            if elector._thread.ident is not None:
                elector.stop()
    lease = client.get(LEASES, "leader", ns)
    assert lease.spec.holder_identity == ""
    assert lease.spec.lease_transitions == 1


def test_events_are_counted(client, ns):
    pod = make(client, ns, "a")
    recorder = EventRecorder(client, "slacktide-test", "here")
    for _ in range(3):
        recorder.record(pod, "Warning", "Throttled", "cut to 500m")
    recorder.record(pod, "Normal", "Released", "back to 1000m")
    recorder.stop(10)
    found = client.list(EVENTS, ns, field_selector="involvedObject.name=a").items
    told = {(e.type, e.reason, e.count) for e in found if e.source.component == "slacktide-test"}
    assert told == {("Warning", "Throttled", 3), ("Normal", "Released", 1)}


def test_logs_of_a_pod_that_has_none_yet(client, ns):
    make(client, ns, "a")
    assert b"".join(client.logs(ns, "a")) == b""
    with pytest.raises(errors.NotFound):
        client.logs(ns, "absent")
