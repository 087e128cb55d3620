"""The client when the server is restarted, forgets, throttles, is slow, or sits behind a proxy that fails."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import secrets
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import urllib3
import yaml
from prometheus_client import CollectorRegistry

from slacktide.cluster import LEASES, PODS, Informer, LeaderElector, connect, errors
from slacktide.cluster.credentials import without_userinfo
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.settings import ClusterSettings
from tests.client_suite.objects import make, names
from tests.cluster.faults import answer, proxied
from tests.patience import PATIENCE
from tests.slacktide.cluster.fakeapi import wait_for

WAIT = 30.0 * PATIENCE


def told(registry, reason):
    """How often the informer `mine` failed that way."""
    return registry.get_sample_value("slacktide_informer_failures_total", {"informer": "mine", "reason": reason}) or 0


def lists(registry):
    return registry.get_sample_value("slacktide_informer_lists_total", {"informer": "mine"})


def test_watch_that_a_proxy_cuts_goes_on_where_it_was(client, ns, proxy, through, follow):
    registry = CollectorRegistry()
    informer = follow(through(), PODS, namespace=ns, metrics=ClusterMetrics(registry), name="mine")
    for name in "abc":
        make(client, ns, name)
        wait_for(lambda name=name: informer.get(ns, name), name, WAIT)
        proxy.cut()
    assert lists(registry) == 1, "nothing was lost, nothing is listed again"


def test_watch_that_a_proxy_leaves_mute_is_found_out(client, ns, proxy, through, follow):
    registry = CollectorRegistry()
    silent = through(silence_seconds=1)
    informer = follow(silent, PODS, namespace=ns, metrics=ClusterMetrics(registry), name="mine")
    proxy.mute()
    make(client, ns, "a")
    wait_for(lambda: informer.get(ns, "a"), "what no watch told", WAIT)
    assert told(registry, "Unreachable") >= 1
    assert "silent" in silent.contact.problem()
    proxy.heal()
    wait_for(lambda: proxy.made("GET") and proxy.calls[-1].watching, "a watch", WAIT)
    make(client, ns, "b")
    wait_for(lambda: informer.get(ns, "b"), "b", WAIT)
    assert silent.contact.problem() is None


def test_server_that_is_killed_and_has_forgotten(server, client, ns, proxy, through, follow, monkeypatch):
    """One restart, which takes long: an informer outlives it, one that was away lists again, pages expire."""
    monkeypatch.setattr("slacktide.cluster.client.PAGE_ITEMS", 3)
    near, far = CollectorRegistry(), CollectorRegistry()
    informer = follow(client, PODS, namespace=ns, metrics=ClusterMetrics(near), name="mine")
    behind = follow(through(), PODS, namespace=ns, metrics=ClusterMetrics(far), name="mine")
    first = make(client, ns, "a")
    wait_for(lambda: informer.get(ns, "a") and behind.get(ns, "a"), "a", WAIT)
    proxy.away()
    client.delete(PODS, "a", ns, uid=first.metadata.uid, grace_period_seconds=0)
    kept = [f"p{number}" for number in range(7)]
    for name in kept:
        make(client, ns, name)
    with held_at_second_page(server, ns) as listing:
        make(client, ns, "q")
        server.forget_history()
        assert names(client.list(PODS, ns).items) == [*kept, "q"], "what was acknowledged is still there"
    assert names(listing.result(WAIT).items) == [*kept, "q"], "a list of no single moment would have left one out"
    make(client, ns, "r")
    proxy.heal()
    for one, registry, reason in ((informer, near, "Unreachable"), (behind, far, "Gone")):
        wait_for(lambda one=one: names(one.items()) == [*kept, "q", "r"], "all of it", WAIT)
        assert told(registry, reason) >= 1


@contextlib.contextmanager
def held_at_second_page(server, ns):
    """A list of pods, page by page, that goes on after its first page only at the end."""
    asked, go_on = threading.Event(), threading.Event()

    def hold(call):
        if "continue" in call.query:
            asked.set()
            go_on.wait(2 * WAIT)

    with (
        proxied(server.settings()) as proxy,
        contextlib.closing(connect(proxy.settings(timeout_seconds=3 * WAIT), user_agent="test")) as slow,
        concurrent.futures.ThreadPoolExecutor(1) as beside,
    ):
        proxy.before = hold
        listing = beside.submit(slow.list, PODS, ns)
        try:
            assert asked.wait(WAIT)
            yield listing
        finally:
            go_on.set()
            concurrent.futures.wait([listing], WAIT)


def test_throttled_calls_wait_as_told_and_only_what_may_be_repeated_is(client, ns, proxy, through):
    make(client, ns, "a")
    mine = through()
    proxy.fail(answer(429, retry_after=1), method="GET", path="/pods/a", times=1)
    began = time.monotonic()
    assert mine.get(PODS, "a", ns).metadata.name == "a"
    assert time.monotonic() - began >= 1.0
    assert len(proxy.made("GET", "/pods/a")) == 2
    proxy.fail(answer(429, retry_after=1), method="POST", times=1)
    with pytest.raises(errors.TooManyRequests) as caught:
        make(mine, ns, "b")
    assert caught.value.retry_after == 1
    assert len(proxy.made("POST")) == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [(500, errors.ServerError), (503, errors.ServerError), (403, errors.Forbidden), (429, errors.TooManyRequests)],
)
def test_answers_of_a_server_in_trouble(ns, proxy, through, status, expected):
    proxy.fail(answer(status))
    with pytest.raises(expected, match="said by the faulty proxy"):
        through(timeout_seconds=0.5).list(PODS, ns)


def test_slow_server(ns, proxy, through):
    proxy.delay(1.0)
    with pytest.raises(errors.Unreachable, match="silent"):
        through(timeout_seconds=0.2).list(PODS, ns)
    assert through(timeout_seconds=20.0).list(PODS, ns).items == ()


def test_token_that_is_rotated_is_taken_up_at_once(server, ns, tmp_path):
    account = yaml.safe_load(Path(server.kubeconfig()).read_text())
    token_file = tmp_path / "token"
    token_file.write_text("of-yesterday")
    cluster = account["clusters"][0]
    # The embedded server's own kubeconfig has the token in the address.
    cluster["cluster"]["server"] = without_userinfo(cluster["cluster"]["server"])[0]
    user = {"name": "me", "user": {"tokenFile": str(token_file)}}
    context = {"name": "c", "context": {"cluster": cluster["name"], "user": "me"}}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({**account, "users": [user], "contexts": [context], "current-context": "c"}))
    with contextlib.closing(connect(ClusterSettings(kubeconfig=str(path)), user_agent="test")) as mine:
        for _ in range(2):
            with pytest.raises(errors.Unauthorized):
                mine.list(PODS, ns)
        token_file.write_text(server.token())
        assert mine.list(PODS, ns).items == ()


def test_rights_that_are_there_are_no_problem(client):
    review = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
    body = json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", **review}).encode()
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert json.loads(client.request("POST", path, body=body))["status"]["allowed"] is True


@pytest.fixture
def elector(ns):
    """Makes candidates for one lease, with short times; all are stopped at the end."""
    made = []

    def make_one(client, identity, **options):
        log = []
        one = LeaderElector(
            client,
            "leader",
            ns,
            identity,
            lambda: log.append("+"),
            lambda: log.append("-"),
            lease_seconds=2.0,
            renew_seconds=1.0,
            retry_seconds=0.1,
            **options,
        )
        one.log = log
        made.append(one)
        one.start()
        return one

    yield make_one
    for one in made:
        one.stop()


def test_leader_without_server_falls_by_its_own_clock_and_leads_again(ns, client, proxy, through, elector):
    one = elector(through(), "a")
    wait_for(lambda: one.is_leader, "to lead", WAIT)
    proxy.away()
    wait_for(lambda: one.log == ["+", "-"], "to fall", WAIT)
    assert not one.is_leader
    two = elector(client, "b")
    wait_for(lambda: two.is_leader, "the other to lead", WAIT)
    proxy.heal()
    wait_for(lambda: one.leader == "b", "to see it", WAIT)
    two.stop()
    wait_for(lambda: one.is_leader, "to lead again", WAIT)
    assert client.get(LEASES, "leader", ns).spec.holder_identity == "a"


@pytest.mark.parametrize("minutes", [-10, 10])
def test_clock_that_is_ten_minutes_off_neither_steals_nor_loses_a_lease(client, elector, minutes):
    one = elector(client, "a")
    wait_for(lambda: one.is_leader, "to lead", WAIT)
    two = elector(client, "b", wall=lambda: datetime.now(UTC) + timedelta(minutes=minutes))
    wait_for(lambda: two.leader == "a", "to see the leader", WAIT)
    # Longer than a lease lasts: whoever believed the times in it would have taken it by now.
    assert not threading.Event().wait(2.5)
    assert one.is_leader
    assert one.log == ["+"]
    assert not two.is_leader
    one.stop()
    wait_for(lambda: two.is_leader, "to lead after it", WAIT)


FLOW = "flowcontrol.apiserver.k8s.io/v1"


@pytest.fixture
def narrow(real):
    """Requests of the user of the scheduler for pods are served one at a time; what comes meanwhile is rejected."""
    name = f"narrow-{secrets.token_hex(4)}"
    limited = {
        "nominalConcurrencyShares": 0,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    user = {"kind": "User", "user": {"name": "system:kube-scheduler"}}
    rule = {"verbs": ["*"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"], "clusterScope": True}
    schema = {
        "priorityLevelConfiguration": {"name": name},
        "matchingPrecedence": 10,
        "rules": [{"subjects": [user], "resourceRules": [rule]}],
    }
    bodies = {
        "prioritylevelconfigurations": ("PriorityLevelConfiguration", {"type": "Limited", "limited": limited}),
        "flowschemas": ("FlowSchema", schema),
    }
    with contextlib.closing(real.client()) as admin:
        for plural, (kind, spec) in bodies.items():
            content = {"apiVersion": FLOW, "kind": kind, "metadata": {"name": name}, "spec": spec}
            admin.request("POST", f"/apis/{FLOW}/{plural}", body=json.dumps(content).encode())
        yield
        for plural in reversed(bodies):
            admin.request("DELETE", f"/apis/{FLOW}/{plural}/{name}")


@contextlib.contextmanager
def crowd(client, count=12):
    """Many that ask for pods without a pause; gives what they were refused with."""
    stop, refused = threading.Event(), []

    def ask():
        while not stop.is_set():
            try:
                client.request("GET", "/api/v1/pods")
            except errors.TooManyRequests as error:
                refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield refused
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


@pytest.mark.usefixtures("narrow")
def test_rejections_of_priority_and_fairness_are_waited_out(real):
    with contextlib.closing(connect(real.plane.settings("scheduler"), user_agent="test")) as mine:
        informer = Informer(mine, PODS, name="mine")
        with crowd(mine) as refused:
            first = wait_for(lambda: refused and refused[0], "a rejection", WAIT)
            informer.start()
        try:
            assert first.retry_after >= 1, "the server says when it may be asked again"
            assert informer.wait_synced(WAIT)
        finally:
            informer.stop()


def test_authority_without_key_usage_is_believed(real):
    context = ssl.create_default_context(cafile=real.plane._pki.ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        urllib3.PoolManager(ssl_context=context, retries=False) as strict,
        pytest.raises(urllib3.exceptions.SSLError, match="key usage"),
    ):
        strict.request("GET", f"{real.plane.url}/version")
    with contextlib.closing(real.client()) as mine:
        assert mine.version().git_version.startswith("v1.")
