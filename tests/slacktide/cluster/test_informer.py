from __future__ import annotations

import math
import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from slacktide.cluster import NODES, PODS, Informer
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.cluster.retry import Backoff
from tests.slacktide.cluster.fakeapi import CUT, FakeApi, Reply, line, listing, pod, status, wait_for

PATH = "/api/v1/pods"
GONE = line("ERROR", kind="Status", code=410, reason="Expired", message="too old")


class World:
    """Scripted lists and watches, taken in order; when the watches are used up, the next one is silent."""

    def __init__(self, api: FakeApi, lists, watches):
        self.api, self.lists, self.watches = api, list(lists), list(watches)
        api.on("GET", PATH, self.answer)

    def answer(self, call):
        with self.api.lock:
            if call.watching:
                return self.watches.pop(0) if self.watches else Reply(chunks=[self.api.hang])
            return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]

    def watched_from(self) -> list[str]:
        return [c.query["resourceVersion"] for c in self.api.made("GET", PATH) if c.watching]

    def listed(self) -> int:
        return sum(not c.watching for c in self.api.made("GET", PATH))


class Told:
    """What the handlers heard, as short text."""

    def __init__(self):
        self.log: list[str] = []

    def on_add(self, item):
        self.log.append(f"+{item.metadata.name}@{item.metadata.resource_version}")

    def on_update(self, old, new):
        self.log.append(f"~{new.metadata.name}@{old.metadata.resource_version}>{new.metadata.resource_version}")

    def on_delete(self, item):
        self.log.append(f"-{item.metadata.name}@{item.metadata.resource_version}")


@pytest.fixture
def follow(client):
    started = []

    def start(told: Told | None = None, **options):
        handlers = {"on_add": told.on_add, "on_update": told.on_update, "on_delete": told.on_delete} if told else {}
        options = {"backoff": Backoff(0.01, 0.05), **handlers, **options}
        informer = Informer(client, PODS, **options)
        started.append(informer)
        informer.start()
        return informer

    yield start
    for informer in started:
        informer.stop()
        assert not informer._thread.is_alive(), "an informer outlived its stop"


def test_list_then_watch(api, follow):
    told = Told()
    changes = line("ADDED", **pod("b", 6)) + line("MODIFIED", **pod("a", 7)) + line("DELETED", **pod("b", 8))
    World(api, [listing([pod("a", 5)], 5)], [Reply(chunks=[changes[:100], changes[100:], api.hang])])
    informer = follow(told, field_selector="spec.nodeName=n", label_selector="l")
    assert informer.wait_synced(10)
    assert told.log[0] == "+a@5", "handlers of the first list have run when it is synced"
    wait_for(lambda: len(told.log) == 4, "all changes")
    assert told.log == ["+a@5", "+b@6", "~a@5>7", "-b@8"]
    assert [i.metadata.name for i in informer.items()] == ["a"]
    assert informer.get("ns", "a").metadata.resource_version == "7"
    assert informer.get("ns", "b") is None
    assert {c.query["fieldSelector"] for c in api.calls} == {"spec.nodeName=n"}


def test_watch_ending_normally_goes_on_where_it_was(api, follow):
    world = World(
        api,
        [listing([pod("a", 5)], 5)],
        [
            Reply(chunks=[line("BOOKMARK", metadata={"resourceVersion": "9"})]),
            Reply(chunks=[line("MODIFIED", **pod("a", 11))]),
        ],
    )
    follow()
    wait_for(lambda: len(world.watched_from()) == 3, "three watches")
    assert world.watched_from() == ["5", "9", "11"]
    assert world.listed() == 1


@pytest.mark.parametrize("how", ["in the stream", "as the answer"])
def test_gone_lists_again_and_tells_what_vanished(api, follow, how):
    told = Told()
    gone = Reply(chunks=[GONE]) if how == "in the stream" else status(410, "Expired")
    lists = [listing([pod("a", 5), pod("b", 5)], 5), listing([pod("b", 5), pod("c", 8)], 9)]
    world = World(api, lists, [gone])
    informer = follow(told)
    wait_for(lambda: len(told.log) == 4, "the difference")
    assert told.log == ["+a@5", "+b@5", "-a@5", "+c@8"]
    assert sorted(i.metadata.name for i in informer.items()) == ["b", "c"]
    wait_for(lambda: world.watched_from() == ["5", "9"], "the watch of the new list")


def test_pod_that_was_replaced_meanwhile(api, follow):
    told = Told()
    World(api, [listing([pod("a", 5, uid="u1")], 5), listing([pod("a", 7, uid="u2")], 9)], [Reply(chunks=[GONE])])
    follow(told)
    wait_for(lambda: len(told.log) == 3, "delete and add")
    assert told.log == ["+a@5", "-a@5", "+a@7"]


def test_same_version_is_told_once(api, follow):
    """Row 9 of section 7 of the scheduler's facts (#96071): a resync must not wake pods."""
    told = Told()
    again = line("ADDED", **pod("a", 5)) + line("MODIFIED", **pod("a", 5)) + line("MODIFIED", **pod("a", 6))
    World(api, [listing([pod("a", 5)], 5)], [Reply(chunks=[again])])
    follow(told)
    wait_for(lambda: told.log[-1:] == ["~a@5>6"], "the real change")
    assert told.log == ["+a@5", "~a@5>6"]


def test_delete_of_something_unknown_is_no_news(api, follow):
    told = Told()
    World(api, [listing([], 5)], [Reply(chunks=[line("DELETED", **pod("x", 6)) + line("ADDED", **pod("y", 7))])])
    follow(told)
    wait_for(lambda: told.log == ["+y@7"], "only the addition")


def test_line_cut_by_a_broken_connection_comes_again(api, follow):
    told = Told()
    changed = line("MODIFIED", **pod("a", 6))
    world = World(
        api,
        [listing([pod("a", 5)], 5)],
        [Reply(chunks=[line("ADDED", **pod("b", 5)) + changed[:50], CUT]), Reply(chunks=[changed])],
    )
    follow(told)
    wait_for(lambda: told.log[-1:] == ["~a@5>6"], "the change after the cut")
    assert told.log == ["+a@5", "+b@5", "~a@5>6"]
    assert world.listed() == 1


def test_watches_that_stay_mute_are_not_believed(api, follow):
    mute = Reply(chunks=[api.hang])
    world = World(api, [listing([pod("a", 5)], 5), listing([pod("b", 9)], 9)], [mute, mute])
    informer = follow(inactivity_seconds=0.05)
    wait_for(lambda: informer.get("ns", "b"), "what no watch told, from a list")
    assert world.watched_from()


def test_server_away_at_start_and_later(api, follow):
    World(api, [status(503, "", "starting"), CUT, listing([pod("a", 5)], 5)], [CUT, status(500, "", "etcd")])
    informer = follow()
    assert informer.wait_synced(10)
    wait_for(lambda: len(api.made("GET")) >= 6, "the watch after the failures")


def test_watches_that_end_at_once_are_not_asked_for_in_a_tight_loop(api, follow):
    delays = []

    class Counting(Backoff):
        def next(self):
            delays.append(super().next())
            return delays[-1]

    api.on("GET", PATH, lambda call: Reply(chunks=[]) if call.watching else listing([], 5))
    follow(backoff=Counting(0.001, 0.05, lambda: 0.0))
    wait_for(lambda: len(delays) >= 5, "failures")
    assert delays[:5] == [0.001, 0.002, 0.004, 0.008, 0.016]


@pytest.mark.parametrize(("stood_seconds", "then"), [(60.0, 0.001), (5.0, 0.008)])
def test_an_idle_watch_that_stood_long_ends_a_grown_wait_and_a_short_one_does_not(api, follow, stood_seconds, then):
    delays, now = [], [1000.0]

    class Counting(Backoff):
        def next(self):
            delays.append(super().next())
            return delays[-1]

    away = status(503, "", "starting")
    World(api, [away, away, away, listing([pod("a", 5)], 5)], [])
    informer = follow(backoff=Counting(0.001, 0.05, lambda: 0.0), clock=lambda: now[0])
    wait_for(lambda: informer._watch is not None, "a watch that has nothing to tell")
    assert delays == [0.001, 0.002, 0.004]
    now[0] += stood_seconds
    api.drop_connections()
    wait_for(lambda: len(delays) >= 4, "the failure of the watch")
    assert delays[3] == then


def test_lists_that_expire_at_once_back_off_too(api, follow):
    delays = []

    class Counting(Backoff):
        def next(self):
            delays.append(super().next())
            return delays[-1]

    api.on("GET", PATH, lambda call: Reply(chunks=[GONE]) if call.watching else listing([], 5))
    follow(backoff=Counting(0.001, 0.05, lambda: 0.0))
    wait_for(lambda: len(delays) >= 4, "failures")
    assert delays[:4] == [0.001, 0.002, 0.004, 0.008]


def test_handler_that_raises_is_counted_and_the_rest_is_told(api, follow):
    registry = CollectorRegistry()
    heard = []

    def on_add(item):
        heard.append(item.metadata.name)
        if item.metadata.name == "a":
            raise RuntimeError("handler's own mistake")

    World(api, [listing([pod("a"), pod("b")], 5)], [Reply(chunks=[line("ADDED", **pod("c", 6)), api.hang])])
    informer = follow(on_add=on_add, metrics=ClusterMetrics(registry))
    wait_for(lambda: heard == ["a", "b", "c"], "all three")
    assert informer.synced
    assert registry.get_sample_value("slacktide_informer_handler_errors_total", {"informer": "pods"}) == 1
    assert registry.get_sample_value("slacktide_informer_objects", {"informer": "pods"}) == 3


def test_line_that_is_no_event_lists_again(api, follow):
    world = World(api, [listing([], 5), listing([pod("a", 9)], 9)], [Reply(chunks=[b"garbage\n"])])
    informer = follow()
    wait_for(lambda: informer.get("ns", "a"), "the second list")
    assert world.listed() == 2


def test_object_that_fits_no_view_keeps_the_last_good_state_until_deleted(api, follow):
    told = Told()
    odd = {**pod("a", 6), "spec": {"containers": 3}}
    gone = {**pod("a", 8), "spec": {"containers": 3}}
    step = threading.Event()
    World(
        api,
        [listing([pod("a", 5)], 5)],
        [
            Reply(
                chunks=[
                    line("MODIFIED", **odd) + line("ADDED", **pod("b", 7)),
                    lambda: step.wait(10),
                    line("DELETED", **gone),
                ]
            )
        ],
    )
    informer = follow(told)
    wait_for(lambda: informer.get("ns", "b"), "the addition after the odd one")
    assert informer.get("ns", "a").metadata.resource_version == "5"
    step.set()
    wait_for(lambda: informer.get("ns", "a") is None, "the deletion")
    assert told.log == ["+a@5", "+b@7", "-a@5"]


def test_age(api, client):
    now = [100.0]
    World(api, [listing([], 5)], [])
    informer = Informer(client, PODS, clock=lambda: now[0])
    assert informer.age_seconds() == math.inf, "never heard is not zero"
    informer.start()
    assert informer.wait_synced(10)
    now[0] += 7.0
    assert informer.age_seconds() == 7.0
    informer.stop()


def test_stop_is_quick_while_a_watch_is_silent(api, follow):
    world = World(api, [listing([], 5)], [])
    informer = follow()
    wait_for(lambda: world.watched_from(), "the watch")
    informer.stop()
    assert not informer._thread.is_alive()


def test_stop_before_the_server_was_ever_there(make_client):
    informer = Informer(make_client("unix:/nonexistent/api.sock"), NODES, backoff=Backoff(60, 60))
    informer.start()
    assert not informer.wait_synced(0.05)
    began = time.monotonic()
    informer.stop()
    assert not informer._thread.is_alive()
    assert time.monotonic() - began < 30, "stop does not wait for the backoff"


def test_cluster_wide_kind_and_one_namespace(api, client):
    api.on("GET", "/api/v1/nodes", listing([{"metadata": {"name": "n", "resourceVersion": "1"}}], 1))
    api.on("GET", "/api/v1/namespaces/ns/pods", listing([pod("a")], 1))
    nodes, pods = Informer(client, NODES), Informer(client, PODS, namespace="ns")
    for informer in (nodes, pods):
        informer.start()
        assert informer.wait_synced(10)
    assert nodes.get("", "n") is not None
    assert pods.get("ns", "a") is not None
    for informer in (nodes, pods):
        informer.stop()


def test_kind_that_the_server_does_not_serve_is_empty_where_that_is_wanted(api, follow):
    told = Told()
    missing = status(404, "NotFound")
    World(api, [missing], [])
    informer = follow(told, absent_is_empty=True)
    assert informer.wait_synced(10)
    assert (informer.items(), told.log) == ((), [])
    waits = follow()
    assert not waits.wait_synced(0.2)


def test_kind_that_the_server_serves_no_more_loses_its_objects(api, follow):
    told = Told()
    World(api, [listing([pod("a", 5)], 5), status(404, "NotFound")], [status(404, "NotFound")])
    informer = follow(told, absent_is_empty=True)
    wait_for(lambda: told.log == ["+a@5", "-a@5"], "the object is gone")
    assert informer.synced
