from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent import futures
from contextlib import contextmanager

import grpc
import msgspec
import pytest

from agent.drill import Hold
from agent.endpoints import endpoints, has_names, split
from agent.receivers import Receivers
from agent.report import Reporter
from agent.settings import ReportSettings
from agent.snapshot import PodIdentity
from agent.spool import Spool
from agent.window import PodWindow, Sample, WindowUsage
from agent.wire import encode_sample, request_of
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier
from slacktide.transport import Connection
from slacktide.v1 import usage_pb2, usage_pb2_grpc
from tests.patience import PATIENCE

QUICK = ReportSettings(backoff_seconds=0.05, backoff_max_seconds=0.2, ack_timeout_seconds=1.0, batch_samples=3)
DEADLINE = 20.0 * PATIENCE


def sample(number=0, **more):
    identity = PodIdentity(
        namespace="d", name="be", uid="u", tier=Tier.BE, requested=Amount(cpu_millis=1000, memory_bytes=5)
    )
    known = {
        "end": 1000.0 + number,
        "window_seconds": 5.0,
        "capacity": Usage(cpu_millis=2000, memory_bytes=100),
        "tiers": {Tier.LS: WindowUsage(cpu_millis_mean=number, cpu_millis_max=number), Tier.BE: WindowUsage()},
        "requested": {Tier.BE: Amount(cpu_millis=1000, memory_bytes=5), Tier.LS: Amount()},
        "pods": (PodWindow(identity=identity, usage=WindowUsage(), throttled_ratio=None),),
        "ls_pressure": None,
        "be_limit_millis": None,
    }
    return Sample(**{**known, **more})


class Predictor(usage_pb2_grpc.UsageServiceServicer):
    """Keeps what it is sent and answers by `answer(request) -> response | None`."""

    def __init__(self, answer=None):
        self.received: list[tuple[str, int]] = []
        self.requests: queue.Queue[usage_pb2.ReportRequest] = queue.Queue()
        self.answer = answer or durable
        self.streams = 0
        self.lock = threading.Lock()

    def Report(self, request_iterator, context):
        with self.lock:
            self.streams += 1
        for request in request_iterator:
            with self.lock:
                self.received += [(request.boot_id, one.sequence) for one in request.samples]
            self.requests.put(request)
            response = self.answer(request)
            if response is not None:
                yield response


def durable(request):
    return usage_pb2.ReportResponse(boot_id=request.boot_id, durable_sequence=request.samples[-1].sequence)


@contextmanager
def serving(address, predictor):
    server = grpc.server(futures.ThreadPoolExecutor(4))
    usage_pb2_grpc.add_UsageServiceServicer_to_server(predictor, server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield server
    finally:
        server.stop(None).wait(5)


@contextmanager
def reporting(tmp_path, address, settings=QUICK, boot="boot", limit=1 << 20, node="n1", **more):
    spool = Spool(str(tmp_path), limit)
    reporter = Reporter(node, boot, spool, settings, address, **more)
    reporter.start()
    try:
        yield reporter, spool
    finally:
        reporter.stop()
        spool.close()


def wait_for(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.01)


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/p.sock"


def test_samples_arrive_in_order_and_leave_the_spool(tmp_path, address):
    predictor = Predictor()
    with serving(address, predictor), reporting(tmp_path, address) as (reporter, spool):
        for number in range(7):
            reporter.submit(sample(number))
        wait_for(lambda: reporter.counters["acknowledged"] == 7)
        assert spool.waiting() == 0
        assert reporter.connected
    assert predictor.received == [("boot", number) for number in range(1, 8)]
    first = predictor.requests.get_nowait()
    assert (first.node, first.boot_id) == ("n1", "boot")
    assert first.sent_unix_millis > 0


def test_a_dead_predictor_is_bridged_and_the_oldest_goes_first(tmp_path, address):
    with reporting(tmp_path, address) as (reporter, spool):
        for number in range(8):
            reporter.submit(sample(number))
        wait_for(lambda: spool.waiting() == 8 and reporter.counters["failures"] > 1)
        assert not reporter.connected
        predictor = Predictor()
        with serving(address, predictor):
            wait_for(lambda: spool.waiting() == 0)
        assert [sequence for _, sequence in predictor.received] == list(range(1, 9))


def test_what_was_not_acknowledged_is_sent_again_after_the_predictor_died(tmp_path, address):
    deaf = Predictor(answer=lambda _request: None)
    with reporting(tmp_path, address) as (reporter, spool):
        with serving(address, deaf):
            reporter.submit(sample(1))
            reporter.submit(sample(2))
            wait_for(lambda: len(deaf.received) >= 2)
        assert spool.waiting() == 2
        predictor = Predictor()
        with serving(address, predictor):
            wait_for(lambda: spool.waiting() == 0)
        assert [sequence for _, sequence in predictor.received] == [1, 2]


def test_a_predictor_that_never_answers_gets_a_new_stream(tmp_path, address):
    deaf = Predictor(answer=lambda _request: None)
    with serving(address, deaf), reporting(tmp_path, address) as (reporter, spool):
        reporter.submit(sample())
        wait_for(lambda: deaf.streams >= 2)
        assert spool.waiting() == 1
        deaf.answer = durable
        wait_for(lambda: spool.waiting() == 0)


def test_retry_after_is_honoured(tmp_path, address):
    times = []

    def slow_down(request):
        times.append(time.monotonic())
        response = durable(request)
        response.retry_after_millis = 700
        return response

    with serving(address, Predictor(slow_down)), reporting(tmp_path, address) as (reporter, _spool):
        reporter.submit(sample())
        wait_for(lambda: reporter.counters["acknowledged"] == 1)
        reporter.submit(sample())
        wait_for(lambda: reporter.counters["acknowledged"] == 2)
    assert times[1] - times[0] >= 0.6


def test_refused_samples_are_counted_and_the_stream_goes_on(tmp_path, address):
    def refuse(request):
        response = durable(request)
        response.refusals.add(sequence=request.samples[0].sequence, reason="window of 0 ms")
        return response

    with serving(address, Predictor(refuse)), reporting(tmp_path, address) as (reporter, spool):
        reporter.submit(sample())
        wait_for(lambda: reporter.counters["refused"] == 1)
        wait_for(lambda: spool.waiting() == 0)
        assert reporter.counters["streams"] == 1


def test_an_earlier_boot_is_replayed_first(tmp_path, address):
    with reporting(tmp_path, "", boot="old") as (reporter, spool):
        reporter.submit(sample())
        reporter.submit(sample())
        wait_for(lambda: spool.waiting() == 2)
    predictor = Predictor()
    with serving(address, predictor), reporting(tmp_path, address, boot="new") as (reporter, spool):
        reporter.submit(sample())
        wait_for(lambda: spool.waiting() == 0 and reporter.counters["acknowledged"] == 3)
    assert predictor.received == [("old", 1), ("old", 2), ("new", 1)]


def test_sequence_goes_on_after_a_restart_of_the_agent(tmp_path, address):
    predictor = Predictor()
    with serving(address, predictor):
        for _ in range(2):
            with reporting(tmp_path, address) as (reporter, _spool):
                reporter.submit(sample())
                wait_for(lambda reporter=reporter: reporter.counters["acknowledged"] == 1)
    assert predictor.received == [("boot", 1), ("boot", 2)]


def sequences(predictor):
    return [sequence for _, sequence in predictor.received]


def test_every_predictor_gets_every_sample(tmp_path):
    one, other = Predictor(), Predictor()
    addresses = [f"unix:{tmp_path}/{name}.sock" for name in ("one", "other")]
    with serving(addresses[0], one), reporting(tmp_path, ", ".join(addresses)) as (reporter, spool):
        for number in range(5):
            reporter.submit(sample(number))
        wait_for(lambda: sequences(one) == [1, 2, 3, 4, 5])
        # The other one is away: what it lacks stays in the spool, and is sent to nobody twice.
        assert spool.waiting() == 5
        assert reporter.connected
        with serving(addresses[1], other):
            wait_for(lambda: spool.waiting() == 0)
            reporter.submit(sample(5))
            wait_for(lambda: reporter.counters["acknowledged"] == 12)
    assert sequences(one) == sequences(other) == [1, 2, 3, 4, 5, 6]


def test_a_predictor_that_is_gone_for_long_is_not_waited_for(tmp_path):
    now = [0.0]
    addresses = [f"unix:{tmp_path}/{name}.sock" for name in ("one", "gone")]
    spool = Spool(str(tmp_path), 1 << 20)
    receivers = Receivers(spool, 3600.0, lambda: now[0])
    here, gone = (receivers.add(name) for name in addresses)
    for _ in range(3):
        spool.append("b", b"payload")
    now[0] = 3599.0
    assert here.acknowledge("b", 3) == 3
    assert (spool.waiting(), here.batch("b", 0, 9), len(gone.batch("b", 0, 9))) == (3, [], 3)
    assert (here.oldest_boot(), gone.oldest_boot()) == (None, "b")
    now[0] = 3601.0
    spool.append("b", b"payload")
    assert here.acknowledge("b", 4) == 1
    assert spool.waiting() == 0
    # Once it is back it is waited for again.
    spool.append("b", b"payload")
    assert gone.acknowledge("b", 4) == 0
    here.acknowledge("b", 5)
    assert [sequence for sequence, _ in gone.batch("b", 0, 9)] == [5]
    spool.close()


def test_without_any_receipt_nothing_leaves_the_spool(tmp_path):
    now = [0.0]
    spool = Spool(str(tmp_path), 1 << 20)
    receivers = Receivers(spool, 10.0, lambda: now[0])
    only = receivers.add("only")
    spool.append("b", b"payload")
    now[0] = 1e6
    assert spool.waiting() == 1
    assert only.acknowledge("b", 1) == 1
    assert spool.waiting() == 0
    spool.close()


def test_a_name_with_several_addresses_is_several_predictors_and_is_looked_up_again(tmp_path):
    predictors = {f"10.0.0.{number}:7443": Predictor() for number in (1, 2, 3)}
    answers = [["10.0.0.1:7443", "10.0.0.2:7443"]]
    settings = msgspec.structs.replace(QUICK, resolve_seconds=0.1, ca_file="for nobody here")

    def connect(target, host):
        assert host == "predictor.slacktide"
        number = target.split(":")[0].rsplit(".", 1)[1]
        return Connection(grpc.insecure_channel(f"unix:{tmp_path}/{number}.sock"))

    with contextlib.ExitStack() as stack:
        for target, predictor in predictors.items():
            stack.enter_context(serving(f"unix:{tmp_path}/{target.split(':')[0].rsplit('.', 1)[1]}.sock", predictor))
        more = {"settings": settings, "connect": connect, "look_up": lambda _host, _port: answers[-1]}
        reporter, spool = stack.enter_context(reporting(tmp_path, "predictor.slacktide:7443", **more))
        reporter.submit(sample(1))
        one, two, three = predictors.values()
        wait_for(lambda: sequences(one) == sequences(two) == [1] and spool.waiting() == 0)
        answers.append(["10.0.0.2:7443", "10.0.0.3:7443"])
        # What was submitted before the third was found is not for it: its stream may open with nothing to send.
        wait_for(lambda: sequences(three) or reporter.submit(sample(2)))
        wait_for(lambda: spool.waiting() == 0)
        before = len(one.received)
        reporter.submit(sample(3))
        wait_for(lambda: sequences(two)[-1] == sequences(three)[-1] and spool.waiting() == 0)
        assert len(one.received) <= before + 1


def test_endpoints():
    known = {"one": ["10.0.0.1:1"], "many": ["10.0.0.3:1", "10.0.0.2:1", "[fd00::2]:1", "[fd00::3]:1"], "none": []}

    def look_up(host, _port):
        return known[host]

    targets = split("unix:/a.sock, one:1,many:1 ,none:1,10.0.0.9:1,[::1]:1,one:1,")
    assert targets == ["unix:/a.sock", "one:1", "many:1", "none:1", "10.0.0.9:1", "[::1]:1"]
    assert endpoints(targets, look_up) == {
        "unix:/a.sock": "",
        "one:1": "one",
        "10.0.0.2:1": "many",
        "10.0.0.3:1": "many",
        "none:1": "none",
        "10.0.0.9:1": "10.0.0.9",
        "[::1]:1": "::1",
    }
    assert not has_names(["unix:/a.sock", "10.0.0.9:1", "[::1]:1"])
    assert has_names(["one:1"])
    assert endpoints(["localhost:1"]) == {"localhost:1": "localhost"}


def test_in_flight_samples_are_bounded(tmp_path, address):
    settings = ReportSettings(
        backoff_seconds=0.05, batch_samples=2, in_flight_samples=4, ack_timeout_seconds=60.0, backoff_max_seconds=0.2
    )
    deaf = Predictor(answer=lambda _request: None)
    with serving(address, deaf), reporting(tmp_path, address, settings) as (reporter, spool):
        for number in range(20):
            reporter.submit(sample(number))
        wait_for(lambda: spool.waiting() == 20 and len(deaf.received) >= 4)
        time.sleep(0.3)
        assert len(deaf.received) == 4


def test_submit_never_blocks_when_nobody_takes(tmp_path):
    spool = Spool(str(tmp_path), 1 << 20)
    reporter = Reporter("n", "b", spool, QUICK, "")
    for number in range(400):
        reporter.submit(sample(number))
    assert reporter.counters["queue_drops"] == 400 - 256
    spool.close()


def test_missing_never_travels_as_zero():
    message = request_of("n", "b", [(9, encode_sample(sample()))], 7).samples[0]
    assert message.sequence == 9
    assert not message.be.HasField("cpu_millis_mean")
    assert not message.system.HasField("memory_bytes_max")
    assert message.ls.HasField("cpu_millis_mean")
    assert message.ls.cpu_millis_mean == 0
    assert not message.HasField("ls_pressure")
    assert not message.HasField("be_quota_cpu_millis")
    assert not message.ls_requested.HasField("cpu_millis")
    assert message.be_requested.cpu_millis == 1000
    assert message.pods[0].tier == usage_pb2.TIER_BE
    assert not message.pods[0].HasField("throttled_ratio")
    assert (message.end_unix_millis, message.window_millis) == (1_000_000, 5000)


def test_a_drill_that_withholds_samples_keeps_the_stream_and_sends_them_afterwards(tmp_path, address):
    predictor, held = Predictor(), [Hold.NOTHING]
    with serving(address, predictor), reporting(tmp_path, address, held=lambda: held[0]) as (reporter, spool):
        reporter.submit(sample(0))
        wait_for(lambda: reporter.counters["acknowledged"] == 1)
        held[0] = Hold.WITHHELD
        for number in range(1, 5):
            reporter.submit(sample(number))
        wait_for(lambda: spool.waiting() == 4)
        assert (reporter.connected, reporter.counters["sent"]) == (True, 1)
        held[0] = Hold.NOTHING
        wait_for(lambda: spool.waiting() == 0)
        assert (predictor.streams, reporter.counters["failures"]) == (1, 0)
    assert predictor.received == [("boot", number) for number in range(1, 6)]


def test_a_drill_that_cuts_the_streams_is_no_failure_and_they_come_back(tmp_path, address):
    predictor, held = Predictor(), [Hold.NOTHING]
    with serving(address, predictor), reporting(tmp_path, address, held=lambda: held[0]) as (reporter, spool):
        reporter.submit(sample(0))
        wait_for(lambda: reporter.connected)
        held[0] = Hold.CUT
        wait_for(lambda: not reporter.connected)
        streams = predictor.streams
        for number in range(1, 5):
            reporter.submit(sample(number))
        wait_for(lambda: spool.waiting() == 4)
        assert (predictor.streams, reporter.counters["failures"]) == (streams, 0)
        held[0] = Hold.NOTHING
        wait_for(lambda: spool.waiting() == 0 and reporter.connected)
    assert sorted(set(predictor.received)) == [("boot", number) for number in range(1, 6)]
