from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from slacktide.cluster import EventRecorder
from slacktide.cluster.correlate import Correlator, Limits, Occurrence, cut_message
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.objects import EventSource, Node, ObjectMeta, ObjectReference, Pod
from tests.slacktide.cluster.fakeapi import CUT, Reply, status, wait_for

POD = Pod(metadata=ObjectMeta(name="a", namespace="ns", uid="u1", resource_version="7"))
PATH = "/api/v1/namespaces/ns/events"


def seen(reason="R", message="m", uid="u1", type_="Normal", at="t0"):
    involved = ObjectReference(kind="Pod", namespace="ns", name="a", uid=uid)
    source = EventSource(component="c", host="h")
    return Occurrence(involved=involved, source=source, type=type_, reason=reason, message=message, at=at)


def test_repeats_raise_the_count_of_the_first():
    correlator = Correlator()
    first = correlator.plan(seen(at="t1"), 0.0)
    assert (first.name, first.count, first.first_at) == (None, 1, "t1")
    correlator.written(first.key, "a.1")
    second = correlator.plan(seen(at="t2"), 1.0)
    assert (second.name, second.count, second.first_at) == ("a.1", 2, "t1")


@pytest.mark.parametrize("other", [{"reason": "S"}, {"message": "n"}, {"uid": "u2"}, {"type_": "Warning"}])
def test_what_differs_is_an_event_of_its_own(other):
    correlator = Correlator()
    correlator.written(correlator.plan(seen(), 0.0).key, "a.1")
    assert correlator.plan(seen(**other), 0.0).name is None


def test_similar_messages_are_combined_from_the_tenth_on():
    correlator = Correlator()
    writes = [correlator.plan(seen(message=f"m{i}"), 0.0) for i in range(12)]
    assert [w.occurrence.message for w in writes[:9]] == [f"m{i}" for i in range(9)]
    assert writes[9].occurrence.message == "(combined from similar events): m9"
    assert writes[9].key == writes[10].key == writes[11].key
    assert [w.count for w in writes[9:]] == [1, 2, 3]


def test_similar_messages_far_apart_are_not_combined():
    correlator = Correlator(Limits(burst=100))
    writes = [correlator.plan(seen(message=f"m{i}"), i * 601.0) for i in range(20)]
    assert all(not w.occurrence.message.startswith("(") for w in writes)


def test_flood_of_one_object_is_limited_and_refills():
    correlator = Correlator()
    planned = [correlator.plan(seen(), 0.0) for _ in range(40)]
    assert [w is not None for w in planned] == [True] * 25 + [False] * 15
    assert correlator.plan(seen(uid="u2"), 0.0) is not None, "another object has its own allowance"
    assert correlator.plan(seen(), 299.0) is None
    late = correlator.plan(seen(), 300.0)
    assert late.count == 42, "what was kept quiet is counted"
    assert correlator.plan(seen(), 301.0) is None


def test_memory_is_bounded():
    correlator = Correlator(Limits(remembered=10))
    for number in range(1000):
        correlator.plan(seen(uid=str(number)), 0.0)
    assert (len(correlator._seen), len(correlator._similar), len(correlator._buckets)) == (10, 10, 10)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1000)), max_size=100))
def test_never_more_writes_than_the_bucket_allows(steps):
    correlator, now, writes = Correlator(Limits(burst=3, refill_seconds=10.0)), 0.0, {"a": 0, "b": 0}
    for uid, pause in steps:
        now += pause
        writes[uid] += correlator.plan(seen(uid=uid), now) is not None
        assert writes[uid] <= 3 + now / 10.0 + 1e-6


@settings(deadline=None)
@given(st.text(max_size=3000), st.integers(3, 1024))
def test_cut_message_fits_and_stays_text(message, limit):
    short = cut_message(message, limit)
    assert len(short.encode()) <= limit
    assert short == message if len(message.encode()) <= limit else message.startswith(short[:-3])


@pytest.fixture
def record(client):
    made = []

    def make(**options):
        options = {"retry_base_seconds": 0.001, **options}
        recorder = EventRecorder(client, "slacktide-agent", "n1", **options)
        made.append(recorder)
        return recorder

    yield make
    for recorder in made:
        recorder.stop()
        assert recorder._thread is None or not recorder._thread.is_alive()


def created(call):
    return Reply(call.body, 201)


def test_create_then_patch(api, record):
    api.on("POST", PATH, created)
    recorder = record()
    recorder.record(POD, "Warning", "Throttled", "cut to 500m")
    (post,) = wait_for(lambda: api.made("POST", PATH), "the event")
    body = post.body
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "a",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert (body["type"], body["reason"], body["message"]) == ("Warning", "Throttled", "cut to 500m")
    assert body["source"] == {"component": "slacktide-agent", "host": "n1"}
    assert (body["reportingComponent"], body["reportingInstance"]) == ("slacktide-agent", "n1")
    name = body["metadata"]["name"]
    assert name.startswith("a.")
    api.on("PATCH", f"{PATH}/{name}", Reply(body))
    recorder.record(POD, "Warning", "Throttled", "cut to 500m")
    (patch,) = wait_for(lambda: api.made("PATCH"), "the count")
    assert patch.body["count"] == 2
    assert patch.body["lastTimestamp"]
    assert len(api.made("POST")) == 1


def test_event_that_the_server_forgot_is_created_anew_with_its_count(api, record):
    api.on("POST", PATH, created)
    recorder = record()
    for _ in range(2):
        recorder.record(POD, "Normal", "R", "m")
    first, second = wait_for(lambda: len(c := api.made("POST", PATH)) == 2 and c, "the second create")
    assert len(api.made("PATCH")) == 1
    assert second.body["count"] == 2
    assert second.body["metadata"]["name"] != first.body["metadata"].get("uid")


def test_event_of_a_node_lives_in_default(api, record):
    api.on("POST", "/api/v1/namespaces/default/events", created)
    record().record(Node(metadata=ObjectMeta(name="n1", uid="x")), "Normal", "R", "m")
    (post,) = wait_for(lambda: api.made("POST"), "the event")
    assert post.body["involvedObject"]["kind"] == "Node"


def test_server_away_for_a_moment(api, record):
    registry = CollectorRegistry()
    api.on("POST", PATH, CUT, status(503, ""), created)
    record(metrics=ClusterMetrics(registry)).record(POD, "Normal", "R", "m")
    wait_for(lambda: registry.get_sample_value("slacktide_events_total", {"result": "created"}), "the event")
    assert len(api.made("POST")) == 3


def test_answer_that_was_lost(api, record):
    registry = CollectorRegistry()
    api.on("POST", PATH, CUT, status(409, "AlreadyExists"))
    record(metrics=ClusterMetrics(registry)).record(POD, "Normal", "R", "m")
    wait_for(lambda: registry.get_sample_value("slacktide_events_total", {"result": "created"}), "the event")
    first, second = api.made("POST")
    assert first.body["metadata"]["name"] == second.body["metadata"]["name"]


@pytest.mark.parametrize(
    ("reply", "attempts"), [(CUT, 4), (status(403, "Forbidden"), 1), (status(404, "NotFound"), 1), (status(422), 1)]
)
def test_retries_are_bounded(api, record, reply, attempts):
    registry = CollectorRegistry()
    api.on("POST", PATH, reply)
    record(metrics=ClusterMetrics(registry)).record(POD, "Normal", "R", "m")
    wait_for(lambda: registry.get_sample_value("slacktide_events_total", {"result": "failed"}), "giving up")
    assert len(api.made("POST")) == attempts


def test_full_queue_drops_and_counts_and_never_blocks(api, record):
    registry = CollectorRegistry()
    free = threading.Event()
    api.on("POST", PATH, lambda call: (free.wait(10), created(call))[1])
    recorder = record(queue_size=3, metrics=ClusterMetrics(registry))
    recorder.record(POD, "Normal", "R", "0")
    wait_for(lambda: api.made("POST"), "the first to be under way")
    for number in range(1, 10):
        recorder.record(POD, "Normal", "R", str(number))
    assert registry.get_sample_value("slacktide_events_total", {"result": "dropped"}) == 6
    free.set()
    wait_for(lambda: len(api.made("POST")) == 4, "those that fitted")


def test_stop_sends_what_waits(api, record):
    api.on("POST", PATH, created)
    recorder = record()
    for number in range(5):
        recorder.record(POD, "Normal", "R", str(number))
    recorder.stop(10)
    assert len(api.made("POST")) == 5
    recorder.record(POD, "Normal", "R", "late")
    assert len(api.made("POST")) == 5


def test_stop_does_not_wait_for_a_server_that_is_away(make_client):
    registry = CollectorRegistry()
    client = make_client("unix:/nonexistent/api.sock")
    recorder = EventRecorder(client, "c", "h", retry_base_seconds=30.0, metrics=ClusterMetrics(registry))
    for number in range(5):
        recorder.record(POD, "Normal", "R", str(number))
    recorder.stop(0.1)
    assert not recorder._thread.is_alive()
    lost = sum(
        registry.get_sample_value("slacktide_events_total", {"result": result}) or 0 for result in ("failed", "dropped")
    )
    assert lost == 5


def test_long_names_stay_names(api, record):
    api.on("POST", PATH, created)
    record().record(Pod(metadata=ObjectMeta(name="x" * 230 + "." * 23, namespace="ns")), "Normal", "R", "m" * 5000)
    (post,) = wait_for(lambda: api.made("POST"), "the event")
    name = post.body["metadata"]["name"]
    assert len(name) <= 253
    assert ".." not in name
    assert len(post.body["message"]) == 1024
