from __future__ import annotations

import copy
import threading
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from slacktide.cluster import LeaderElector, errors
from slacktide.cluster.election import ElectionSettings, Observed, lease_spec, next_step
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.objects import Lease, LeaseSpec, ObjectMeta
from tests.slacktide.cluster.fakeapi import Reply, status, wait_for

SETTINGS = ElectionSettings()
WALL = datetime(2026, 1, 1, tzinfo=UTC)


def lease(holder="other", renew="t1", duration=15, **spec):
    return Lease(
        metadata=ObjectMeta(name="l", namespace="ns", resource_version="1"),
        spec=LeaseSpec(holder_identity=holder, lease_duration_seconds=duration, renew_time=renew, **spec),
    )


def step(lease_, observed, now):
    return next_step(lease_, observed, now, "me", SETTINGS)


def test_no_lease_is_created():
    assert step(None, None, 0.0).action == "create"


def test_own_lease_is_renewed_and_a_free_one_taken():
    assert step(lease("me"), None, 0.0).action == "renew"
    assert step(lease(""), None, 0.0).action == "take"
    assert step(lease(None), None, 0.0).action == "take"


def test_lease_of_another_is_watched_for_its_whole_duration_whatever_its_timestamps_say():
    ancient = lease(renew="1970-01-01T00:00:00.000000Z")
    first = step(ancient, None, 100.0)
    assert (first.action, first.observed.at) == ("wait", 100.0)
    assert step(ancient, first.observed, 114.9).action == "wait"
    assert step(ancient, first.observed, 115.0).action == "take"


def test_each_renewal_starts_the_watch_anew():
    first = step(lease(renew="t1"), None, 0.0)
    second = step(lease(renew="t2"), first.observed, 14.0)
    assert second.observed == Observed(lease(renew="t2").spec, 14.0)
    assert step(lease(renew="t2"), second.observed, 28.0).action == "wait"


def test_change_of_labels_is_no_renewal():
    first = step(lease(), None, 0.0)
    touched = msgspec.structs.replace(lease(), metadata=ObjectMeta(name="l", resource_version="99", labels={"a": "b"}))
    assert step(touched, first.observed, 15.0).action == "take"


def test_duration_is_that_of_the_record():
    first = step(lease(duration=60), None, 0.0)
    assert step(lease(duration=60), first.observed, 59.0).action == "wait"
    assert step(lease(duration=None), None, 0.0).observed.at == 0.0


@pytest.mark.parametrize("numbers", [(15, 15, 2), (15, 10, 9), (15, 10, 0), (5, 10, 2)])
def test_settings_that_could_give_two_leaders(numbers):
    with pytest.raises(ValueError, match="lease_seconds > renew_seconds"):
        ElectionSettings(*numbers)


def test_spec_keeps_what_is_not_ours():
    current = {"strategy": "x", "holderIdentity": "other", "acquireTime": "a", "leaseTransitions": 4}
    taken = lease_spec(current, step(lease(""), None, 0.0), "me", SETTINGS, "now")
    assert taken == {
        "strategy": "x",
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "now",
        "renewTime": "now",
        "leaseTransitions": 5,
    }
    renewed = lease_spec(taken, step(lease("me"), None, 0.0), "me", SETTINGS, "later")
    assert renewed == {**taken, "renewTime": "later"}


def test_duration_written_is_never_shorter_than_the_one_kept():
    short = ElectionSettings(1.4, 1.2, 0.5)
    assert lease_spec({}, step(None, None, 0.0), "me", short, "now")["leaseDurationSeconds"] == 2


class Store:
    """A lease with an optimistic lock, shared by contenders; may be out of reach for some of them."""

    def __init__(self):
        self.body = None
        self.version = 0
        self.away: set[str] = set()
        self.writes = 0

    def port(self, who):
        return Port(self, who)


class Port:
    def __init__(self, store, who):
        self.store, self.who = store, who

    def reach(self):
        if self.who in self.store.away:
            raise errors.Unreachable("away")

    def get_dict(self, kind, name, namespace=None, *, timeout_seconds=None):
        self.reach()
        assert timeout_seconds > 0
        if self.store.body is None:
            raise errors.NotFound(404, "NotFound", "no lease")
        return copy.deepcopy(self.store.body)

    def create(self, kind, body, namespace=None, *, timeout_seconds=None):
        self.reach()
        if self.store.body is not None:
            raise errors.AlreadyExists(409, "AlreadyExists", "exists")
        return self.save(body)

    def replace(self, kind, body, *, timeout_seconds=None):
        self.reach()
        if self.store.body is None or body["metadata"]["resourceVersion"] != str(self.store.version):
            raise errors.Conflict(409, "Conflict", "modified")
        return self.save(body)

    def save(self, body):
        self.store.version += 1
        self.store.writes += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.store.version)}
        self.store.body = {**copy.deepcopy(body), "metadata": metadata}
        return msgspec.convert(self.store.body, Lease)


class Contender:
    """An elector whose clock the test turns. `skew` shifts both of its clocks against everybody else's."""

    def __init__(self, store, name, time, skew=0.0):
        self.name, self.log = name, []
        self.elector = LeaderElector(
            store.port(name),
            "l",
            "ns",
            name,
            lambda: self.log.append("started"),
            lambda: self.log.append("stopped"),
            clock=lambda: time[0] + skew,
            wall=lambda: WALL + timedelta(seconds=time[0] - 3 * skew),
            uniform=lambda: 0.0,
        )

    def turn(self):
        return self.elector.turn()

    @property
    def leads(self):
        return self.elector.is_leader

    def heard(self, *expected):
        wait_for(lambda: self.log == list(expected), f"{self.name} hears {expected}, not {self.log}")


@pytest.fixture
def time():
    return [1000.0]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def contend(store, time):
    made = []

    def make(name, **options):
        made.append(Contender(store, name, time, **options))
        return made[-1]

    yield make
    for contender in made:
        contender.elector._callbacks.shutdown()


def test_acquire_and_renew(store, time, contend):
    a = contend("a")
    assert a.turn() == 2.0
    assert a.leads
    a.heard("started")
    assert store.body["spec"]["leaseTransitions"] == 0
    for _ in range(10):
        time[0] += 2.0
        a.turn()
    assert a.leads
    assert a.log == ["started"]
    assert store.writes == 11
    assert store.body["spec"]["acquireTime"] == "2026-01-01T00:16:40.000000Z"
    assert store.body["spec"]["renewTime"] == "2026-01-01T00:17:00.000000Z"


def test_second_waits_and_takes_over_when_the_first_is_gone(store, time, contend):
    a, b = contend("a"), contend("b")
    a.turn()
    assert b.turn() == 2.0
    assert not b.leads
    assert b.elector.leader == "a"
    time[0] += 14.9
    b.turn()
    assert not b.leads
    time[0] += 0.1
    b.turn()
    assert b.leads
    assert store.body["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("skew", [-86400.0, -20.0, 20.0, 86400.0])
def test_clocks_that_disagree_make_no_difference(store, time, contend, skew):
    a, b = contend("a"), contend("b", skew=skew)
    for _ in range(20):
        a.turn()
        b.turn()
        time[0] += 2.0
        assert (a.leads, b.leads) == (True, False)
    for _ in range(9):
        b.turn()
        time[0] += 2.0
    assert (a.leads, b.leads) == (False, True)


def test_leader_that_cannot_renew_falls_before_another_can_rise(store, time, contend):
    a, b = contend("a"), contend("b")
    a.turn()
    b.turn()
    store.away.add("a")
    both = []
    delay = 0.0
    for _ in range(80):
        time[0] += 0.25
        delay -= 0.25
        if delay <= 0:
            delay = a.turn()
        b.turn()
        both.append((a.leads, b.leads))
        if b.leads:
            break
    assert (True, True) not in both
    assert both[38] == (True, False)
    assert both[40] == (False, False), "after 10 s"
    assert both[-1] == (False, True)
    a.heard("started", "stopped")
    store.away.clear()
    a.turn()
    assert not a.leads


def test_fall_is_told_at_the_deadline_not_a_retry_later(store, time, contend):
    a = contend("a")
    a.turn()
    store.away.add("a")
    time[0] += 9.0
    assert a.turn() == 1.0
    time[0] += 1.0
    a.turn()
    a.heard("started", "stopped")


def test_leader_that_slept_through_its_lease_does_not_think_it_leads(store, time, contend):
    a, b = contend("a"), contend("b")
    a.turn()
    b.turn()
    time[0] += 15.0
    b.turn()
    assert (a.leads, b.leads) == (False, True), "a has not run a turn since, and still knows"
    a.turn()
    a.heard("started", "stopped")


def test_leader_whose_lease_was_taken_away_by_hand_falls_at_once(store, time, contend):
    a = contend("a")
    a.turn()
    store.body["spec"]["holderIdentity"] = "operator"
    store.version += 1
    store.body["metadata"]["resourceVersion"] = str(store.version)
    time[0] += 2.0
    a.turn()
    time[0] += 2.0
    a.turn()
    assert not a.leads
    a.heard("started", "stopped")


def test_lease_that_was_deleted_is_made_again(store, time, contend):
    a = contend("a")
    a.turn()
    store.body = None
    for _ in range(2):
        time[0] += 2.0
        a.turn()
    assert a.leads
    assert a.log == ["started"]
    assert store.body["spec"]["holderIdentity"] == "a"


def test_release_lets_the_next_one_in_at_once(store, time, contend):
    a, b = contend("a"), contend("b")
    a.turn()
    b.turn()
    a.elector.resign(5.0)
    assert not a.leads
    a.heard("started", "stopped")
    assert store.body["spec"]["holderIdentity"] == ""
    time[0] += 0.1
    b.turn()
    assert b.leads


def test_lease_is_kept_while_the_old_work_still_runs(store, time):
    going = threading.Event()
    elector = LeaderElector(
        store.port("a"), "l", "ns", "a", lambda: None, lambda: going.wait(10), clock=lambda: time[0]
    )
    elector.turn()
    elector.resign(0.01)
    assert store.body["spec"]["holderIdentity"] == "a"
    going.set()
    elector._callbacks.shutdown()


def test_release_of_a_lease_that_another_has_taken_changes_nothing(store, time, contend):
    a, b = contend("a"), contend("b")
    a.turn()
    b.turn()
    time[0] += 15.0
    b.turn()
    a.elector.resign(5.0)
    assert store.body["spec"]["holderIdentity"] == "b"


def test_callback_that_raises_does_not_end_the_election(store, time):
    log = []

    def started():
        raise RuntimeError("callback's own mistake")

    elector = LeaderElector(store.port("a"), "l", "ns", "a", started, lambda: log.append(1), clock=lambda: time[0])
    elector.turn()
    assert elector.is_leader
    elector.resign(5.0)
    assert log == [1]
    elector._callbacks.shutdown()


moves = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["turn", "turn", "turn", "cut", "heal", "resign"]),
        st.floats(0, 6),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(moves, st.lists(st.floats(-1e5, 1e5), min_size=3, max_size=3))
def test_never_two_leaders(steps, skews):
    time, store = [0.0], Store()
    contenders = {n: Contender(store, n, time, skew) for n, skew in zip("abc", skews, strict=True)}
    try:
        for name, action, pause in steps:
            time[0] += pause
            if action == "turn":
                contenders[name].turn()
            elif action == "resign":
                contenders[name].elector.resign(5.0)
            elif action == "cut":
                store.away.add(name)
            else:
                store.away.discard(name)
            leaders = [n for n, c in contenders.items() if c.leads]
            assert len(leaders) <= 1, leaders
            for contender in contenders.values():
                # Told in turn: never started twice, never stopped before it was started.
                assert contender.log[::2] == ["started"] * len(contender.log[::2])
                assert contender.log[1::2] == ["stopped"] * len(contender.log[1::2])
    finally:
        for contender in contenders.values():
            contender.elector._callbacks.shutdown()


def test_over_http_from_start_to_release(api, make_client):
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    stored = {}

    def save(call, code):
        body = call.body
        body["metadata"]["resourceVersion"] = str(int(body["metadata"].get("resourceVersion", 0)) + 1)
        stored["body"] = body
        return Reply(body, code)

    api.on("GET", f"{path}/l", lambda _: Reply(stored["body"]) if stored else status(404, "NotFound"))
    api.on("POST", path, lambda call: save(call, 201))
    api.on("PUT", f"{path}/l", lambda call: save(call, 200))
    started, stopped = threading.Event(), threading.Event()
    registry = CollectorRegistry()
    elector = LeaderElector(
        make_client(api.url),
        "l",
        "kube-system",
        "me",
        started.set,
        stopped.set,
        lease_seconds=15,
        renew_seconds=10,
        retry_seconds=0.01,
        metrics=ClusterMetrics(registry),
    )
    elector.start()
    assert started.wait(10)
    assert registry.get_sample_value("slacktide_leader", {"lease": "l"}) == 1.0
    wait_for(lambda: len(api.made("PUT")) >= 2, "renewals")
    elector.stop()
    assert stopped.is_set()
    assert not elector.is_leader
    assert registry.get_sample_value("slacktide_leader", {"lease": "l"}) == 0.0
    assert stored["body"]["spec"]["holderIdentity"] == ""
    assert len(api.made("GET")) == 1, "a leader writes without reading"
