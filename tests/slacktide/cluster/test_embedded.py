"""One suite for every API server that the client may meet.

By default it starts the embedded server. With SLACKTIDE_TEST_APISERVER=KUBECONFIG it runs against the server of that
kubeconfig instead (which must admit pods without a service account); where the two differ, the embedded one is wrong.
Each test works in a namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry

from slacktide.cluster import (
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    Client,
    EventRecorder,
    Informer,
    LeaderElector,
    Outcome,
    connect,
    errors,
)
from slacktide.cluster.client import PAGE_ITEMS
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.cluster.retry import Backoff
from slacktide.settings import ClusterSettings
from tests.slacktide.cluster.fakeapi import wait_for

REAL = os.environ.get("SLACKTIDE_TEST_APISERVER", "")
embedded_only = pytest.mark.skipif(bool(REAL), reason="needs a server that the test may kill")


class Embedded:
    """The embedded server as a process of its own, on a Unix socket and on loopback TCP."""

    def __init__(self, directory):
        self.directory = directory
        self.socket = f"{directory}/api.sock"
        self.token_file = f"{directory}/token"
        self.log = f"{directory}/api.log"
        self.process: subprocess.Popen | None = None
        (directory / "logs").mkdir()

    def start(self):
        arguments = {
            "--socket": self.socket,
            "--database": f"{self.directory}/objects.sqlite",
            "--log-dir": f"{self.directory}/logs",
            "--listen": "127.0.0.1:0",
            "--token-file": self.token_file,
            "--kubeconfig-file": f"{self.directory}/kubeconfig",
        }
        flat = [part for pair in arguments.items() for part in pair]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "standalone.api", *flat], stderr=log, stdout=log)
        client = connect(self.settings(), user_agent="test")
        try:
            wait_for(lambda: self._answers(client), "the embedded server to answer", 30.0)
        finally:
            client.close()
        return self

    def _answers(self, client):
        if self.process.poll() is not None:
            with open(self.log, errors="replace") as log:
                raise AssertionError(f"the embedded server ended with {self.process.returncode}:\n{log.read()}")
        try:
            return client.version()
        except errors.ClusterError:
            return None

    def settings(self):
        return ClusterSettings(server=f"unix:{self.socket}")

    def forget_history(self):
        """As a compaction would: changes until now can no longer be watched. Only while the server is down."""
        with contextlib.closing(sqlite3.connect(f"{self.directory}/objects.sqlite", isolation_level=None)) as database:
            database.execute("INSERT OR REPLACE INTO meta SELECT 'floor', max(version) FROM log")
            database.execute("DELETE FROM log")

    def end(self, how=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(15)
        return self.process.returncode


class Real:
    def settings(self):
        return ClusterSettings(kubeconfig=REAL)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if REAL:
        yield Real()
        return
    pytest.importorskip("standalone.api", reason="no embedded server in this tree")
    embedded = Embedded(tmp_path_factory.mktemp("api"))
    try:
        embedded.start().end()
        embedded.forget_history()
        yield embedded.start()
    finally:
        embedded.end()


@pytest.fixture
def client(server):
    made = connect(server.settings(), user_agent="slacktide-test")
    yield made
    made.close()


@pytest.fixture
def ns(client):
    name = f"slacktide-test-{secrets.token_hex(4)}"
    client.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for pod in client.list(PODS, name).items:
        with_grace_zero(client, pod)
    client.delete(NAMESPACES, name)


@pytest.fixture
def node(client):
    name = f"slacktide-test-{secrets.token_hex(4)}"
    yield client.create(NODES, {"metadata": {"name": name, "labels": {"x": "y"}}})
    client.delete(NODES, name)


def with_grace_zero(client, pod):
    with contextlib.suppress(errors.NotFound):
        client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)


def body(name, labels=None, **spec):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "main", "image": "slacktide.io/host-process"}], **spec},
    }


def make(client, ns, name, labels=None, **spec):
    return client.create(PODS, body(name, labels, **spec), ns)


def names(items):
    return sorted(item.metadata.name for item in items)


def ready(client, pod):
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    return client.patch(PODS, pod.metadata.name, pod.metadata.namespace, status, "status", "strategic")


def budget(client, ns, name, labels, **spec):
    """A budget whose status the server's controller has filled."""
    client.create(PDBS, {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, **spec}}, ns)

    def observed():
        found = client.get(PDBS, name, ns)
        return found if found.status.observed_generation >= 1 and found.status.expected_pods >= 1 else None

    try:
        return wait_for(observed, "the budget's status", 15.0)
    except AssertionError:
        pytest.skip("no disruption controller fills the budget's status here")


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
        with pytest.raises(refused, match=r"requests\[cpu\]"):
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


def test_selectors(client, ns, node):
    for name, labels in (("a", {"tier": "be"}), ("b", {"tier": "ls"}), ("c", {})):
        make(client, ns, name, labels, schedulerName="slacktide-scheduler" if name == "a" else "other")
    client.bind(client.get(PODS, "b", ns), node.metadata.name)
    ready(client, client.get(PODS, "b", ns))

    def fields(selector):
        return names(client.list(PODS, ns, field_selector=selector).items)

    def labels(selector):
        return names(client.list(PODS, ns, label_selector=selector).items)

    assert fields("metadata.name=a") == ["a"]
    assert fields(f"spec.nodeName={node.metadata.name}") == ["b"]
    assert fields("spec.nodeName=") == ["a", "c"]
    assert fields("spec.schedulerName=slacktide-scheduler") == ["a"]
    assert fields("status.phase=Running") == ["b"]
    assert fields("status.phase!=Running,spec.schedulerName=other") == ["c"]
    assert labels("tier=be") == ["a"]
    assert labels("tier in (be, ls)") == ["a", "b"]
    assert labels("!tier") == ["c"]
    assert labels("tier,tier!=be") == ["b"]
    assert names(client.list(PODS, field_selector=f"spec.nodeName={node.metadata.name}").items) == ["b"]
    with pytest.raises(errors.BadRequest):
        fields("spec.nosuch=1")


def test_list_in_pages(client, ns, monkeypatch):
    for number in range(7):
        make(client, ns, f"p{number}")
    whole = client.list(PODS, ns)
    assert PAGE_ITEMS > 7
    monkeypatch.setattr("slacktide.cluster.client.PAGE_ITEMS", 3)
    paged = client.list(PODS, ns)
    assert paged.items == whole.items


def test_watch_tells_what_happens_after_a_list(client, ns):
    make(client, ns, "before")
    version = client.list(PODS, ns).resource_version
    pod = make(client, ns, "a")
    client.patch(PODS, "a", ns, {"metadata": {"labels": {"x": "y"}}})
    client.delete(PODS, "a", ns, uid=pod.metadata.uid, grace_period_seconds=0)
    watch = client.watch(PODS, namespace=ns, resource_version=version, timeout_seconds=1)
    events = [event for event in watch if event.type != "BOOKMARK"]
    assert [(e.type, e.object.metadata.name) for e in events] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(e.object.metadata.resource_version) for e in events]
    assert versions == sorted(set(versions))
    assert versions[0] > int(version)


def test_watch_with_selector_sees_objects_come_and_go(client, ns):
    version = client.list(PODS, ns).resource_version
    make(client, ns, "a")
    make(client, ns, "other")
    for value in ("be", "ls"):
        client.patch(PODS, "a", ns, {"metadata": {"labels": {"tier": value}}})
    watch = client.watch(PODS, namespace=ns, resource_version=version, label_selector="tier=be", timeout_seconds=1)
    events = [(e.type, e.object.metadata.name) for e in watch if e.type != "BOOKMARK"]
    assert events == [("ADDED", "a"), ("DELETED", "a")]


def test_bookmark_moves_the_version_on(client, ns):
    version = client.list(PODS, ns).resource_version
    # Changes that the selector hides still move the bookmark.
    latest = make(client, ns, "hidden").metadata.resource_version
    # A real server sends one in the last two seconds of a watch.
    seconds = 4 if REAL else 1
    watch = client.watch(
        PODS, namespace=ns, resource_version=version, field_selector="metadata.name=none", timeout_seconds=seconds
    )
    marks = [e.object.metadata.resource_version for e in watch if e.type == "BOOKMARK"]
    assert marks
    assert int(marks[-1]) >= int(latest)


def test_version_that_is_too_old_is_gone(client, ns):
    with pytest.raises(errors.Gone):
        list(client.watch(PODS, namespace=ns, resource_version="1", timeout_seconds=1))


def test_watch_is_ended_from_another_thread(client, ns):
    watch = client.watch(PODS, namespace=ns, resource_version=client.list(PODS, ns).resource_version)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (list(watch), done.set()))
    thread.start()
    watch.close()
    assert done.wait(10)
    thread.join(10)


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


def test_bind(client, ns, node):
    pod = make(client, ns, "a")
    client.bind(pod, node.metadata.name, {"slacktide.io/device": "0"})
    bound = client.get(PODS, "a", ns)
    assert bound.spec.node_name == node.metadata.name
    assert bound.metadata.annotations["slacktide.io/device"] == "0"
    assert [c.status for c in bound.status.conditions if c.type == "PodScheduled"] == ["True"]
    with pytest.raises(errors.Conflict, match="already assigned"):
        client.bind(pod, "elsewhere")


def test_bind_of_what_is_not_there(client, ns):
    first = make(client, ns, "a")
    with_grace_zero(client, first)
    with pytest.raises(errors.NotFound):
        client.bind(first, "n")
    make(client, ns, "a")
    with pytest.raises(errors.Conflict, match="UID"):
        client.bind(first, "n")


def test_gated_pod_is_not_bound(client, ns):
    gated = make(client, ns, "a", schedulingGates=[{"name": "slacktide.io/wait"}])
    with pytest.raises((errors.Conflict, errors.Invalid, errors.BadRequest)):
        client.bind(gated, "n")


def test_evict(client, ns):
    pod = make(client, ns, "a")
    assert client.evict(pod, dry_run=True).evicted
    assert client.get(PODS, "a", ns).metadata.deletion_timestamp is None
    assert client.evict(pod, grace_period_seconds=0).evicted
    gone = client.evict(pod)
    assert (gone.outcome, gone.gone) == (Outcome.GONE, True)
    make(client, ns, "a")
    assert client.evict(pod).outcome is Outcome.UID_MISMATCH
    assert client.get(PODS, "a", ns).metadata.deletion_timestamp is None


def test_evict_under_a_budget(client, ns, node):
    pods = [make(client, ns, name, {"app": "web"}) for name in ("a", "b")]
    for pod in pods:
        client.bind(pod, node.metadata.name)
        ready(client, pod)
    found = budget(client, ns, "one", {"app": "web"}, minAvailable=1)
    assert found.status.disruptions_allowed == 1
    assert client.evict(pods[0], dry_run=True).evicted, "a dry run uses nothing up"
    assert client.evict(pods[0], grace_period_seconds=0).evicted
    blocked = client.evict(pods[1])
    assert blocked.outcome is Outcome.BLOCKED
    assert "disruption budget" in blocked.message
    assert client.get(PODS, "b", ns).metadata.deletion_timestamp is None


def test_evict_under_two_budgets_and_of_a_pod_that_disrupts_nobody(client, ns, node):
    pod, pending = make(client, ns, "a", {"app": "web"}), make(client, ns, "pending", {"app": "web"})
    client.bind(pod, node.metadata.name)
    ready(client, pod)
    for name in ("one", "two"):
        budget(client, ns, name, {"app": "web"}, minAvailable=5)
    assert client.evict(pod).outcome is Outcome.SEVERAL_BUDGETS
    assert client.evict(pending, grace_period_seconds=0).evicted


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
    with pytest.raises(errors.ClusterError):
        b"".join(client.logs(ns, "a"))
    with pytest.raises(errors.NotFound):
        client.logs(ns, "absent")


@pytest.fixture
def follow(client):
    informers = []

    def start(kind, **options):
        informer = Informer(client, kind, backoff=Backoff(0.02, 0.2), **options)
        informers.append(informer)
        informer.start()
        assert informer.wait_synced(20)
        return informer

    yield start
    for informer in informers:
        informer.stop()


def test_informer(client, ns, follow):
    log = []
    make(client, ns, "a")
    informer = follow(
        PODS,
        namespace=ns,
        on_add=lambda p: log.append(f"+{p.metadata.name}"),
        on_update=lambda _, p: log.append(f"~{p.metadata.name}"),
        on_delete=lambda p: log.append(f"-{p.metadata.name}"),
    )
    make(client, ns, "b")
    client.patch(PODS, "a", ns, {"metadata": {"labels": {"x": "y"}}})
    client.delete(PODS, "b", ns, grace_period_seconds=0)
    wait_for(lambda: len(log) == 4, "all changes")
    assert log == ["+a", "+b", "~a", "-b"]
    assert names(informer.items()) == ["a"]


@embedded_only
def test_informer_outlives_a_killed_server(server, client, ns, follow):
    registry = CollectorRegistry()
    informer = follow(PODS, namespace=ns, metrics=ClusterMetrics(registry), name="mine")
    make(client, ns, "a")
    wait_for(lambda: names(informer.items()) == ["a"], "a")
    server.end(signal.SIGKILL)
    failures = {"informer": "mine", "reason": "Unreachable"}
    wait_for(
        lambda: (registry.get_sample_value("slacktide_informer_failures_total", failures) or 0) >= 2,
        "the informer to notice",
    )
    server.start()
    assert client.get(PODS, "a", ns).metadata.name == "a", "what was acknowledged is still there"
    make(client, ns, "b")
    wait_for(lambda: names(informer.items()) == ["a", "b"], "b")


@embedded_only
def test_tcp_with_a_token_and_with_the_kubeconfig(server, ns, client, tmp_path):
    make(client, ns, "a")
    by_file: Client = connect(ClusterSettings(kubeconfig=f"{server.directory}/kubeconfig"), user_agent="test")
    url = by_file._transport._source.current().endpoint.url
    by_token = connect(ClusterSettings(server=url, token_file=server.token_file), user_agent="test")
    (tmp_path / "wrong").write_text("wrong")
    refused = connect(ClusterSettings(server=url, token_file=str(tmp_path / "wrong")), user_agent="test")
    try:
        for reader in (by_token, by_file):
            assert names(reader.list(PODS, ns).items) == ["a"]
        with pytest.raises(errors.Unauthorized):
            refused.list(PODS, ns)
    finally:
        for each in (by_file, by_token, refused):
            each.close()
