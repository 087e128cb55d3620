"""One minor version apart: what speaks the schema of the release before (`proto/baseline.json`) beside what is here.

Both ways and over a real wire: an old agent to this predictor, this agent to an old predictor, and so for readers of
forecasts and for drills. What the other side does not know is passed over, what it does not send is absent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from prometheus_client import CollectorRegistry

from agent.drill import Seen
from agent.drill_board import DrillBoard
from agent.drill_settings import DrillSettings
from agent.policy.rung import RungStatus
from cli.drills import rehearse
from predictor.metrics import Metrics
from slacktide.v1 import drill_pb2, forecast_pb2, forecast_pb2_grpc, usage_pb2
from tests.agent.test_report import reporting, sample, wait_for
from tests.drill_twin import drill_server
from tests.patience import PATIENCE
from tests.predictor.test_service import Running, entry, stored

BASELINE = Path(__file__).resolve().parent.parent / "proto" / "baseline.json"
PACKAGE = "slacktide.v1"
DEADLINE = 20 * PATIENCE


class Schema:
    """Messages as the release before had them, made from its descriptors alone."""

    def __init__(self):
        files = json_format.Parse(BASELINE.read_text(), descriptor_pb2.FileDescriptorSet())
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)

    def __getattr__(self, name):
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))

    def call(self, channel, service, method):
        """A client's call of a method, with the old messages."""
        found = self._pool.FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[method]
        kind = f"{_side(found.client_streaming)}_{_side(found.server_streaming)}"
        return getattr(channel, kind)(
            f"/{PACKAGE}.{service}/{method}",
            request_serializer=message_factory.GetMessageClass(found.input_type).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )

    def handlers(self, service, **answers):
        """A server's methods, with the old messages."""
        made = {}
        for method, answer in answers.items():
            found = self._pool.FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[method]
            kind = f"{_side(found.client_streaming)}_{_side(found.server_streaming)}"
            made[method] = getattr(grpc, f"{kind}_rpc_method_handler")(
                answer,
                request_deserializer=message_factory.GetMessageClass(found.input_type).FromString,
                response_serializer=message_factory.GetMessageClass(found.output_type).SerializeToString,
            )
        return grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", made)


def _side(streaming):
    return "stream" if streaming else "unary"


@pytest.fixture(scope="module")
def old():
    return Schema()


@contextlib.contextmanager
def serving(address, handlers):
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(address)
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait(5)


@pytest.fixture
def predictor(tmp_path):
    with Running(tmp_path, Metrics(CollectorRegistry())) as running:
        yield running


def test_this_release_says_more_than_the_one_before(old):
    new = {field.name for field in usage_pb2.Sample.DESCRIPTOR.fields}
    assert {field.name for field in old.Sample.DESCRIPTOR.fields} < new


def test_an_agent_of_the_release_before_reports_here(old, predictor):
    usage = old.Usage(cpu_millis_mean=500, cpu_millis_max=600, memory_bytes_mean=1 << 30, memory_bytes_max=1 << 30)
    one = old.Sample(
        sequence=1,
        end_unix_millis=int(time.time() * 1000),
        window_millis=1000,
        capacity=old.Resources(cpu_millis=4000, memory_bytes=8 << 30),
        ls=usage,
        system=usage,
        pods=[old.PodUsage(namespace="shop", name="web", uid="u1", tier=1, usage=usage)],
    )
    request = old.ReportRequest(node="n1", boot_id="b1", samples=[one], sent_unix_millis=int(time.time() * 1000))
    with grpc.insecure_channel(predictor.address) as channel:
        answers = list(old.call(channel, "UsageService", "Report")(iter([request]), timeout=DEADLINE))
    assert [answer.durable_sequence for answer in answers] == [1]
    assert not answers[0].refusals
    assert stored(predictor) == [1]
    view = predictor.fleet.view(time.time())
    # What it cannot say is not known: the node is open, and has no zones.
    assert list(view.names) == ["n1"]


def test_this_agent_reports_to_a_predictor_of_the_release_before(old, tmp_path):
    heard = []

    def report(requests, _context):
        for request in requests:
            heard.append(request)
            yield old.ReportResponse(boot_id=request.boot_id, durable_sequence=request.samples[-1].sequence)

    address = f"unix:{tmp_path}/old.sock"
    with (
        serving(address, old.handlers("UsageService", Report=report)),
        reporting(tmp_path, address) as (reporter, spool),
    ):
        reporter.submit(sample(7, closed="the disk is full", zones={0: 8, 1: 8}))
        wait_for(lambda: spool.waiting() == 0 and reporter.counters["acknowledged"] == 1)
        assert reporter.counters["failures"] == 0
    seen = heard[0].samples[0]
    assert (heard[0].node, seen.sequence, seen.capacity.cpu_millis) == ("n1", 1, 2000)
    assert seen.ls.cpu_millis_mean == 7
    assert not seen.be.HasField("cpu_millis_mean")
    # What it does not know it has passed over, and could pass on.
    assert usage_pb2.Sample.FromString(seen.SerializeToString()).closed == "the disk is full"


def test_an_old_reader_understands_the_forecasts_of_this_predictor(old, predictor):
    predictor.board.put(entry("n1", 7))
    with grpc.insecure_channel(predictor.address) as channel:
        get = old.call(channel, "ForecastService", "GetForecast")
        forecast = get(old.GetForecastRequest(node="n1"), timeout=DEADLINE).forecast
        watch = old.call(channel, "ForecastService", "WatchForecasts")(
            old.WatchForecastsRequest(nodes=["n1"]), timeout=DEADLINE
        )
        watched = next(watch).forecast
        watch.cancel()
    for found in (forecast, watched):
        assert (found.node, found.reclaimable.cpu_millis, found.model) == ("n1", 7, "window_max")
        assert not found.reclaimable.HasField("memory_bytes")


def test_a_reader_here_understands_an_old_predictor_and_takes_what_is_missing_for_unknown(old, tmp_path):
    answer = old.GetForecastResponse(
        forecast=old.NodeForecast(node="n1", reclaimable=old.Resources(cpu_millis=7), model="window_max")
    )
    address = f"unix:{tmp_path}/old.sock"
    handlers = old.handlers("ForecastService", GetForecast=lambda _request, _context: answer)
    with serving(address, handlers), grpc.insecure_channel(address) as channel:
        stub = forecast_pb2_grpc.ForecastServiceStub(channel)
        found = stub.GetForecast(forecast_pb2.GetForecastRequest(node="n1"), timeout=DEADLINE).forecast
    assert (found.node, found.reclaimable.cpu_millis) == ("n1", 7)
    assert not found.HasField("allocatable")
    assert (found.pool, list(found.zones)) == ("", [])


def seen(level, limit):
    rung = RungStatus(name="contention", level=level, top=3, since=0.0, reason="a drill raises the signal")
    return Seen(at=time.monotonic(), rungs={"contention": rung}, be_limit_millis=limit)


@contextlib.contextmanager
def beating(board):
    """The control thread of an agent that cuts while a drill presses."""
    stop = threading.Event()

    def run():
        while not stop.wait(0.01):
            drill = board.active()
            pressing = drill is not None and drill.raised_at is not None and drill.pressing
            board.observe(seen(int(pressing), 500 if pressing else None))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_an_old_command_drills_this_agent(old, tmp_path):
    board = DrillBoard(time.monotonic)
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    server = drill_server(board, settings)
    server.start()
    try:
        with beating(board), grpc.insecure_channel(settings.listen) as channel:
            start, watch = (old.call(channel, "DrillService", name) for name in ("StartDrill", "WatchDrill"))
            request = old.StartDrillRequest(node="n1", pressure=1, duration_millis=100, dry_run=True, reason="weekly")
            drill_id = start(request, timeout=DEADLINE).drill_id
            heard = list(watch(old.WatchDrillRequest(drill_id=drill_id), timeout=DEADLINE))
    finally:
        server.stop()
    assert heard[-1].phase == drill_pb2.DRILL_PHASE_RECOVERED
    assert heard[-1].result.detected_millis >= 0


def test_this_command_drills_an_old_agent(old, tmp_path):
    asked = []

    def start(request, _context):
        asked.append(request)
        return old.StartDrillResponse(drill_id="d1")

    def watch(_request, _context):
        yield old.WatchDrillResponse(phase=drill_pb2.DRILL_PHASE_THROTTLED, message="BE is down to 500m")
        yield old.WatchDrillResponse(
            phase=drill_pb2.DRILL_PHASE_RECOVERED, result=old.DrillResult(detected_millis=50, recovered_millis=900)
        )

    address = f"unix:{tmp_path}/old.sock"
    with serving(address, old.handlers("DrillService", StartDrill=start, WatchDrill=watch)):
        found = rehearse(address, 1.0, "weekly", DEADLINE)
    assert (found.problem, found.detected_millis, found.recovered_millis) == ("", 50, 900)
    assert found.throttled_millis is None
    assert found.answer == "BE is down to 500m"
    assert (asked[0].pressure, asked[0].duration_millis, asked[0].reason) == (1, 1000, "weekly")
