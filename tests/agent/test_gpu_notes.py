"""The GPU annotation: what goes in, when it is worth a write, and what happens while API or cards do not answer."""

from __future__ import annotations

import threading
import time

import pytest

from agent.act.gpu_publisher import GpuPublisher
from agent.gpu import Gpu
from agent.gpu_note import note_of, worth_writing
from slacktide.cluster import NODES, connect
from slacktide.cluster.errors import Forbidden, Unreachable
from slacktide.gpus import GpusError, decode, encode
from slacktide.names import GPUS_ANNOTATION
from tests.agent.twins import FakeClock
from tests.patience import PATIENCE

GIB = 1 << 30


def gpu(**more):
    known = {"index": 0, "uuid": "GPU-a", "name": "NVIDIA A100", "utilisation_percent": 50.0, "temperature_celsius": 60}
    known |= {"memory_used_bytes": 10 * GIB, "memory_total_bytes": 80 * GIB, "errors": 0}
    return Gpu(**(known | more))


def test_a_note_says_what_the_cards_say_and_can_be_read_back():
    note = decode(encode(note_of([gpu(), gpu(index=1, utilisation_percent=None, errors=None)], 1000.0, 30.0)))
    assert (note.at, note.ttl_seconds, note.version) == (1000.0, 300.0, 1)
    first, second = note.cards
    assert (first.index, first.model, first.utilisation_percent, first.errors) == (0, "NVIDIA A100", 50.0, 0)
    assert (first.memory_used_bytes, first.memory_total_bytes, first.free_block_bytes) == (10 * GIB, 80 * GIB, None)
    assert (second.index, second.utilisation_percent, second.errors) == (1, None, None)


@pytest.mark.parametrize(("told", "want"), [(101.0, 100.0), (-3.0, 0.0), (None, None)])
def test_a_driver_that_overshoots_does_not_spoil_the_note(told, want):
    text = encode(note_of([gpu(utilisation_percent=told, name="x" * 1000)], 0.0, 3600.0))
    assert decode(text).cards[0].utilisation_percent == want


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":2}', '{"at":1,"ttl_seconds":-1,"cards":[]}'])
def test_what_is_no_note_says_so(text):
    with pytest.raises(GpusError):
        decode(text)


@pytest.mark.parametrize(
    ("change", "seconds", "want"),
    [
        ({}, 30, False),
        ({}, 150, True),
        ({}, -30, True),
        ({"utilisation_percent": 59.0}, 30, False),
        ({"utilisation_percent": 60.0}, 30, True),
        ({"utilisation_percent": None}, 30, True),
        ({"temperature_celsius": 64}, 30, False),
        ({"temperature_celsius": 55}, 30, True),
        ({"errors": 1}, 30, True),
        ({"memory_used_bytes": 17 * GIB}, 30, False),
        ({"memory_used_bytes": 18 * GIB}, 30, True),
        ({"free_block_bytes": GIB}, 30, True),
        ({"name": "NVIDIA H200"}, 30, True),
    ],
)
def test_what_is_worth_a_write(change, seconds, want):
    old, new = note_of([gpu()], 1000.0, 30.0), note_of([gpu(**change)], 1000.0 + seconds, 30.0)
    assert worth_writing(old, new) is want
    assert worth_writing(None, new)
    assert worth_writing(old, note_of([gpu(), gpu(index=1)], 1001.0, 30.0))


class Client:
    def __init__(self):
        self.bodies = []
        self.error = None
        self.wrote = threading.Event()

    def patch(self, kind, name, namespace, body):
        if self.error:
            raise self.error
        assert (kind, name, namespace) == (NODES, "n1", None)
        self.bodies.append(body)
        self.wrote.set()


class Rig:
    def __init__(self, period=30.0):
        self.client, self.clock, self.cards = Client(), FakeClock(), (gpu(),)
        self.publisher = GpuPublisher(self.client, "n1", lambda: self.cards, period, self.clock)

    def look(self, seconds=30.0):
        self.clock.now += seconds
        self.publisher.look()
        return len(self.client.bodies)


def test_written_once_and_again_when_something_moved_or_half_its_life_is_over():
    rig = Rig()
    assert [rig.look() for _ in range(5)] == [1, 1, 1, 1, 1]
    assert rig.look() == 2
    rig.cards = (gpu(utilisation_percent=99.0),)
    assert (rig.look(), rig.look()) == (3, 3)
    annotations = rig.client.bodies[-1]["metadata"]["annotations"]
    assert list(annotations) == [GPUS_ANNOTATION]
    assert decode(annotations[GPUS_ANNOTATION]).cards[0].utilisation_percent == 99.0
    assert rig.publisher.counters == {"gpu_notes": 3, "gpu_notes_failed": 0}


@pytest.mark.parametrize("cards", [None, ()])
def test_without_cards_that_answer_nothing_is_written(cards):
    rig = Rig()
    rig.cards = cards
    assert rig.look() == 0
    rig.cards = (gpu(),)
    assert rig.look() == 1
    rig.cards = cards
    assert rig.look(1000.0) == 1, "the last note ages until no reader believes it"


@pytest.mark.parametrize("error", [Unreachable("away"), Forbidden(403, "Forbidden", "may not patch nodes")])
def test_an_api_that_does_not_take_it_is_asked_again(error):
    rig = Rig()
    rig.client.error = error
    assert (rig.look(), rig.look()) == (0, 0)
    rig.client.error = None
    assert rig.look() == 1
    assert rig.publisher.counters == {"gpu_notes": 1, "gpu_notes_failed": 2}


def test_the_thread_survives_a_bug_and_ends_when_told():
    rig = Rig(period=0.01)
    broken = [RuntimeError("bug")]

    def cards():
        if broken:
            raise broken.pop()
        return (gpu(),)

    rig.publisher = GpuPublisher(rig.client, "n1", cards, 0.01, rig.clock)
    rig.publisher.start()
    try:
        assert rig.client.wrote.wait(10 * PATIENCE)
    finally:
        assert rig.publisher.stop(5 * PATIENCE)
    assert Rig().publisher.stop(0.0), "one that never started ends at once"


@pytest.fixture
def server(tmp_path):
    from tests.client_suite.servers import Embedded

    embedded = Embedded(tmp_path)
    try:
        yield embedded.start()
    finally:
        embedded.stop()


def test_a_real_api_server_keeps_it_beside_what_others_wrote(server):
    client = connect(server.settings(), user_agent="slacktide-test")
    try:
        client.create(NODES, {"metadata": {"name": "n1", "annotations": {"other": "stays"}}})
        publisher = GpuPublisher(client, "n1", lambda: (gpu(),), 30.0)
        publisher.look()
        kept = client.get(NODES, "n1").metadata.annotations
        assert kept["other"] == "stays"
        note = decode(kept[GPUS_ANNOTATION])
        assert note.cards[0].model == "NVIDIA A100"
        assert abs(time.time() - note.at) < 60 * PATIENCE
        GpuPublisher(client, "nobody", lambda: (gpu(),), 30.0).look()
    finally:
        client.close()
