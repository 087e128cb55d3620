"""The service with a real gRPC client over a Unix socket, and the history on disk."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from predictor.board import Board, Entry
from predictor.clock import SystemClock
from predictor.fleet import Fleet
from predictor.history import Appended, open_history
from predictor.ingest import Ingest, IngestRules
from predictor.ingest_settings import IngestSettings
from predictor.service import OPTIONS, RpcServer
from predictor.storage import HistoryError, set_aside
from predictor.writer import Place, Writer, WriterRules
from slacktide.errors import SettingsError
from slacktide.forecast import Amount, Forecast, Terms
from slacktide.v1 import forecast_pb2, forecast_pb2_grpc, usage_pb2, usage_pb2_grpc
from tests.predictor.support import eventually

CLIENT_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def now_millis():
    return int(time.time() * 1000)


def message(sequence, end=None, **changed):
    usage = usage_pb2.Usage(cpu_millis_mean=300, cpu_millis_max=500, memory_bytes_mean=1000, memory_bytes_max=2000)
    sample = usage_pb2.Sample(
        sequence=sequence,
        # Young enough that no slot is folded meanwhile.
        end_unix_millis=now_millis() - 5_000 + sequence if end is None else end,
        window_millis=1000,
        capacity=usage_pb2.Resources(cpu_millis=4000, memory_bytes=10_000),
        ls=usage,
        system=usage,
        be=usage_pb2.Usage(cpu_millis_mean=0),
    )
    sample.MergeFrom(usage_pb2.Sample(**changed))
    return sample


def report(*samples, node="n1", boot="b1", ahead=0):
    return usage_pb2.ReportRequest(node=node, boot_id=boot, samples=samples, sent_unix_millis=now_millis() + ahead)


class GatedStore:
    """A history whose writes can be held back or made to fail."""

    def __init__(self, store):
        self.store = store
        self.gate = threading.Event()
        self.gate.set()
        self.failure = None
        self.appends = 0

    def append(self, batches):
        self.gate.wait(10)
        if self.failure:
            raise self.failure
        self.appends += 1
        return self.store.append(batches)

    def __getattr__(self, name):
        return getattr(self.store, name)


class Running:
    """Writer, ingest and server as the daemon has them."""

    def __init__(self, directory, metrics, **rules):
        self.directory = str(directory / "history")
        self.address = f"unix:{directory}/p.sock"
        self.metrics = metrics
        self.board = Board()
        self.fleet = Fleet(1.0, 15.0, lambda: None)
        self.stores = []
        self.open_failure = None
        known = {"commit_seconds": 0.01, "queue_samples": 1000, "retention_days": 35.0, "window_days": 1.0}
        place = Place(self._open, lambda: set_aside(self.directory))
        clock = SystemClock()
        self.writer = Writer(place, WriterRules(**{**known, **rules}), clock, metrics, self.fleet.restore)
        self.share = IngestSettings()
        self.ingest = Ingest(self.writer, self.fleet, lambda: IngestRules(60.0, 35.0, self.share), clock, metrics)
        self.not_ready = {}
        self.server = RpcServer(self.address, self.ingest, self.board, lambda: self.not_ready)

    def _open(self):
        if self.open_failure:
            raise self.open_failure
        self.stores.append(GatedStore(open_history(self.directory)))
        return self.stores[-1]

    @property
    def store(self):
        return self.stores[-1]

    def __enter__(self):
        self.writer.start()
        self.server.start()
        return self

    def __exit__(self, *_):
        for store in self.stores:
            store.gate.set()
        self.server.stop(5)
        assert self.writer.stop(5)


@pytest.fixture
def running(tmp_path, metrics):
    with Running(tmp_path, metrics) as service:
        yield service


def stored(service):
    # A cursor is a connection of its own; the other one belongs to the writer's thread.
    with service.store.store._connection.cursor() as connection:
        return [row[0] for row in connection.execute("SELECT sequence FROM samples").fetchall()]


def talk(service, scenario):
    async def main():
        async with grpc.aio.insecure_channel(service.address, options=CLIENT_OPTIONS) as channel:
            return await asyncio.wait_for(scenario(channel), 20)

    return asyncio.run(main())


async def until(call, wanted):
    """Read responses until one satisfies `wanted`; all that were read."""
    read = []
    while True:
        response = await call.read()
        assert response is not grpc.aio.EOF, read
        read.append(response)
        if wanted(response):
            return read


async def heard_of(service, nodes):
    await asyncio.to_thread(eventually, lambda: len(service.fleet.view(time.time()).names) >= nodes)


def acked(sequence):
    return lambda response: response.durable_sequence >= sequence


def test_an_acknowledged_sample_is_durable(running):
    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1), message(2)))
        first = (await until(call, acked(2)))[-1]
        assert (first.boot_id, first.durable_sequence, list(first.refusals)) == ("b1", 2, [])
        assert sorted(stored(running)) == [1, 2]
        await call.write(report(message(3)))
        await until(call, acked(3))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK

    talk(running, scenario)
    assert sorted(stored(running)) == [1, 2, 3]


def test_nothing_is_acknowledged_before_it_is_durable(running):
    running.store.gate.clear()

    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1)))
        # What was refused is done without the disk, but may not be named before what came earlier is durable.
        await call.write(report(message(2, end=1), message(0)))
        reading = asyncio.ensure_future(call.read())
        await heard_of(running, 1)
        await asyncio.sleep(0.1)
        assert not reading.done()
        running.store.gate.set()
        first = await reading
        responses = [first] if first.durable_sequence >= 2 else [first, *(await until(call, acked(2)))]
        assert sum(len(r.refusals) for r in responses) == 2
        call.cancel()

    talk(running, scenario)


def test_streams_are_committed_together(running):
    running.store.gate.clear()

    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        calls = [stub.Report() for _ in range(20)]
        for index, call in enumerate(calls):
            await call.write(report(message(1), node=f"n{index}"))
        await heard_of(running, 20)
        running.store.gate.set()
        for call in calls:
            await until(call, acked(1))
            call.cancel()

    talk(running, scenario)
    assert len(stored(running)) == 20
    assert running.store.appends <= 3


def test_refused_samples_do_not_end_the_stream_and_count_as_done(running, registry):
    bad_pressure = message(2, ls_pressure=float("nan"))
    too_much = message(3, ls=usage_pb2.Usage(cpu_millis_max=9999))
    future = message(4, end=now_millis() + 3_600_000)
    no_window = message(5)
    no_window.window_millis = 0

    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1), bad_pressure, too_much, future, no_window, message(0)))
        responses = await until(call, acked(5))
        await call.write(report(message(6), node="n2"))
        responses += await until(call, lambda r: r.refusals)
        assert responses[-1].durable_sequence == 5
        await call.write(report(message(6)))
        responses += await until(call, acked(6))
        call.cancel()
        return {r.sequence: r.reason for response in responses for r in response.refusals}

    reasons = talk(running, scenario)
    assert sorted(stored(running)) == [1, 6]
    assert sorted(reasons) == [0, 2, 3, 4, 5, 6]
    assert "nan" in reasons[2]
    assert "9999" in reasons[3]
    assert "clock" in reasons[4]
    assert "window_millis" in reasons[5]
    assert "stream is of node 'n1', the sample says 'n2'" in reasons[6]
    for kind in ("not_finite", "above_capacity", "future", "no_window", "zero_sequence", "other_node"):
        assert registry.get_sample_value("slacktide_predictor_refused_samples_total", {"reason": kind}) == 1.0


def test_a_client_that_comes_back_and_repeats_itself_does_no_harm(running):
    samples = [message(i) for i in range(1, 11)]

    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        call = stub.Report()
        await call.write(report(*samples[:6]))
        await until(call, acked(6))
        call.cancel()
        again = stub.Report()
        await again.write(report(*samples[3:]))
        await until(again, acked(10))
        await again.write(report(*reversed(samples)))
        await again.done_writing()
        while await again.read() is not grpc.aio.EOF:
            pass

    talk(running, scenario)
    assert sorted(stored(running)) == list(range(1, 11))


def test_a_new_boot_starts_at_one(running):
    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(500)))
        await until(call, acked(500))
        await call.write(report(message(1), boot="b2"))
        last = (await until(call, lambda r: r.boot_id == "b2"))[-1]
        assert last.durable_sequence == 1
        call.cancel()

    talk(running, scenario)


def test_an_old_sample_from_the_spool_is_not_news(running):
    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1, end=now_millis() - 600_000)))
        await until(call, acked(1))
        call.cancel()

    talk(running, scenario)
    measured = running.fleet.view(time.time()).measured[0]
    assert 590 < time.monotonic() - measured < 660


def test_a_full_disk_stops_acknowledgements_and_not_the_forecast(running, registry):
    running.store.failure = HistoryError("history: No space left on device")
    spool = {sequence: message(sequence) for sequence in range(1, 101)}

    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        call = stub.Report()
        await call.write(report(spool[1]))
        refused = await call.read()
        assert refused.durable_sequence == 0
        assert refused.retry_after_millis > 0
        assert "No space left" in running.writer.problem()
        # The disk has room again: opening succeeds and the agent must send anew what was lost.
        sequence = 1

        async def go_on():
            nonlocal sequence
            while True:
                sequence += 1
                await call.write(report(spool[sequence]))
                assert (await call.read()).durable_sequence == 0
                await asyncio.sleep(0.1)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await go_on()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        again = stub.Report()
        await again.write(report(*(spool[i] for i in range(1, sequence + 1))))
        await until(again, acked(sequence))
        again.cancel()
        return sequence

    last = talk(running, scenario)
    assert running.fleet.view(time.time()).names == ["n1"]
    assert sorted(stored(running)) == list(range(1, last + 1))
    assert running.writer.problem() is None
    assert registry.get_sample_value("slacktide_predictor_commit_failures_total") >= 1


def test_a_full_queue_makes_the_agent_wait_instead_of_growing(tmp_path, metrics):
    with Running(tmp_path, metrics, queue_samples=5) as service:
        service.store.gate.clear()

        async def scenario(channel):
            call = usage_pb2_grpc.UsageServiceStub(channel).Report()
            for first in range(1, 40, 4):
                await call.write(report(*(message(i) for i in range(first, first + 4))))
            busy = (await until(call, lambda r: r.retry_after_millis))[-1]
            assert busy.durable_sequence == 0
            assert service.writer._samples <= 8
            service.store.gate.set()
            await until(call, acked(40))
            call.cancel()

        talk(service, scenario)
        assert len(stored(service)) == 40


def test_a_history_that_cannot_be_opened_is_tried_again(tmp_path, metrics):
    service = Running(tmp_path, metrics)
    service.open_failure = HistoryError("no space")
    with service:
        assert "no space" in service.writer.problem()
        service.open_failure = None

        async def scenario(channel):
            while True:
                call = usage_pb2_grpc.UsageServiceStub(channel).Report()
                await call.write(report(message(1)))
                response = await call.read()
                call.cancel()
                if response.durable_sequence == 1:
                    return
                await asyncio.sleep(0.1)

        talk(service, scenario)
        assert service.writer.problem() is None


def test_a_message_that_is_too_large_is_refused_and_the_service_lives(running):
    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        call = stub.Report()
        await call.write(report(message(1), boot="b" * 5_000_000))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call = stub.Report()
        await call.write(report(message(1)))
        await until(call, acked(1))
        call.cancel()

    talk(running, scenario)


def test_the_socket_is_for_its_owner_alone_and_goes_with_the_server(tmp_path, metrics):
    with Running(tmp_path, metrics) as service:
        path = service.address.removeprefix("unix:")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(SettingsError, match="another process listens there"):
            RpcServer(service.address, service.ingest, service.board).start()
        assert os.path.exists(path)
    assert not os.path.exists(path)


def test_tcp(tmp_path, metrics):
    service = Running(tmp_path, metrics)
    service.server = RpcServer("127.0.0.1:0", service.ingest, service.board, insecure=True)
    with service:
        service.address = f"127.0.0.1:{service.server.port}"

        async def scenario(channel):
            call = usage_pb2_grpc.UsageServiceStub(channel).Report()
            await call.write(report(message(1)))
            await until(call, acked(1))
            call.cancel()

        talk(service, scenario)


def test_idle_pings_of_agents_are_allowed():
    options = dict(OPTIONS)
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.http2.min_recv_ping_interval_without_data_ms"] <= 10_000


def ends(service):
    with service.store.store._connection.cursor() as connection:
        return dict(connection.execute("SELECT sequence, end_millis FROM samples").fetchall())


@pytest.mark.parametrize("ahead", [7_200_000, -7_200_000])
def test_a_clock_that_is_off_is_measured_and_corrected(running, registry, ahead):
    started = now_millis()

    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        for sequence in range(1, 4):
            await call.write(report(message(sequence, end=now_millis() + ahead), ahead=ahead))
            responses = await until(call, acked(sequence))
            assert not any(response.refusals for response in responses)
        call.cancel()

    talk(running, scenario)
    assert all(abs(end - started) < 30_000 for end in ends(running).values())
    found = registry.get_sample_value("slacktide_predictor_clock_skew_seconds", {"node": "n1"})
    assert found == pytest.approx(ahead / 1000, abs=20)
    assert time.monotonic() - running.fleet.view(time.time()).measured[0] < 60


def test_a_sample_from_the_future_of_its_own_node_is_refused_whatever_the_skew(running):
    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1, end=now_millis() + 7_500_000), ahead=7_200_000))
        response = (await until(call, acked(1)))[-1]
        assert "beyond the allowed skew" in response.refusals[0].reason
        call.cancel()

    talk(running, scenario)
    assert stored(running) == []


def test_a_small_difference_of_clocks_is_left_alone(running):
    end = now_millis() - 5_000

    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1, end=end), ahead=-1_500))
        await until(call, acked(1))
        call.cancel()

    talk(running, scenario)
    assert ends(running) == {1: end}


def test_a_node_that_sends_too_much_is_slowed_down_and_loses_nothing(running):
    running.share = IngestSettings(node_samples_per_second=40.0, node_burst_samples=10)

    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        call, other = stub.Report(), stub.Report()
        started = time.monotonic()
        for first in range(1, 41, 10):
            await call.write(report(*(message(i) for i in range(first, first + 10))))
        told = await until(call, lambda response: response.retry_after_millis)
        assert 0 < told[-1].retry_after_millis <= 1000
        # Another node does not wait for it.
        await other.write(report(message(1), node="n2"))
        await until(other, acked(1))
        await until(call, acked(40))
        assert time.monotonic() - started > 0.4
        call.cancel()
        other.cancel()

    talk(running, scenario)
    assert sorted(stored(running)) == sorted([1, *range(1, 41)])


def test_an_old_stream_of_a_node_may_go_on_beside_the_new_one(running):
    samples = [message(sequence) for sequence in range(6)]

    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        half_dead, new = stub.Report(), stub.Report()
        await half_dead.write(report(*samples[1:3]))
        await until(half_dead, acked(2))
        await new.write(report(*samples[2:4]))
        await until(new, acked(3))
        await half_dead.write(report(*samples[3:5]))
        await until(half_dead, acked(4))
        half_dead.cancel()
        await new.write(report(samples[5]))
        await until(new, acked(5))
        new.cancel()

    talk(running, scenario)
    assert sorted(stored(running)) == [1, 2, 3, 4, 5]
    assert running.fleet.view(time.time()).names == ["n1"]


def pod(uid, cpu, tier=usage_pb2.TIER_LS):
    used = usage_pb2.Usage(cpu_millis_mean=cpu, memory_bytes_mean=700)
    return usage_pb2.PodUsage(namespace="shop", name=uid, uid=uid, tier=tier, usage=used)


def test_pods_reach_the_fleet_and_best_effort_is_none_of_its_business(running):
    # koordinator #1427: what best effort uses is never taken for LS or SYSTEM.
    pods = [pod("web", 200), pod("batch", 900, usage_pb2.TIER_BE), pod("daemon", 50, usage_pb2.TIER_SYSTEM)]

    async def scenario(channel):
        call = usage_pb2_grpc.UsageServiceStub(channel).Report()
        await call.write(report(message(1, pods=pods), message(2, pods=[pod("web", 4401)])))
        response = (await until(call, acked(2)))[-1]
        assert [refusal.reason for refusal in response.refusals] == ["pod shop/web used 4401 millicores"]
        call.cancel()

    talk(running, scenario)
    assert running.fleet.pod_use("web") == (200, 700)
    assert running.fleet.pod_use("daemon") == (50, 700)
    assert running.fleet.pod_use("batch") is None
    view = running.fleet.view(time.time() + 600)
    assert sorted(view.pods.uids) == ["daemon", "web"]
    assert view.cpu.usage[~np.isnan(view.cpu.usage)].tolist() == [600]


def test_health_is_what_readiness_says(running):
    async def scenario(channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="slacktide.v1.UsageService"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running.not_ready["history"] = "no space"
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
        running.not_ready.clear()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()

    talk(running, scenario)


def test_reflection_names_the_services(running):
    async def scenario(channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        return {service.name for service in answer.list_services_response.service}

    found = talk(running, scenario)
    assert {"slacktide.v1.UsageService", "slacktide.v1.ForecastService", "grpc.health.v1.Health"} <= found


def test_a_server_that_stops_finishes_what_it_read(running):
    running.store.gate.clear()

    async def scenario(channel):
        stub = usage_pb2_grpc.UsageServiceStub(channel)
        calls = [stub.Report() for _ in range(5)]
        for index, call in enumerate(calls):
            await call.write(report(message(1), node=f"n{index}"))
        await heard_of(running, 5)
        stopping = asyncio.create_task(asyncio.to_thread(running.server.stop, 5))
        await asyncio.to_thread(eventually, running.ingest.draining)
        running.store.gate.set()
        for call in calls:
            await until(call, acked(1))
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        await stopping

    talk(running, scenario)
    assert len(stored(running)) == 5


@pytest.mark.parametrize("drained", ["before", "at once", "later"])
def test_a_stream_ends_when_the_server_drains_however_young_it_is(running, drained):
    async def scenario(_):
        ingest = Ingest(running.writer, running.fleet, lambda: IngestRules(60.0, 35.0), SystemClock(), running.metrics)
        silent = asyncio.Event()

        async def write(_):
            raise AssertionError("nothing was read")

        if drained == "before":
            ingest.drain()
        stream = asyncio.create_task(ingest.serve(silent.wait, write))
        # After one turn of the loop the stream is there and its reader has not begun.
        for _ in range({"before": 0, "at once": 1, "later": 5}[drained]):
            await asyncio.sleep(0)
        ingest.drain()
        await asyncio.wait_for(stream, 10.0)

    talk(running, scenario)


def entry(node, value, at=1000.0, closed=""):
    amount = Amount(cpu_millis=value, memory_bytes=None)
    terms = Terms(capacity=amount, reserve=amount, peak=amount, now=amount, sold=amount, model="window_max")
    forecast = Forecast(at=at, ttl_seconds=60, peak=amount, reclaimable=amount, terms=terms, closed=closed)
    return Entry(node, forecast, amount, 3600.0)


def test_get_forecast(running):
    running.board.put(entry("n1", 7))

    async def scenario(channel):
        stub = forecast_pb2_grpc.ForecastServiceStub(channel)
        answer = (await stub.GetForecast(forecast_pb2.GetForecastRequest(node="n1"))).forecast
        assert (answer.node, answer.reclaimable.cpu_millis, answer.model) == ("n1", 7, "window_max")
        assert not answer.reclaimable.HasField("memory_bytes")
        assert not answer.HasField("risk")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetForecast(forecast_pb2.GetForecastRequest(node="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    talk(running, scenario)


def test_watch_forecasts_tells_what_stands_and_each_change(running):
    running.board.put(entry("n1", 7))
    running.board.put(entry("n2", 8))

    async def scenario(channel):
        stub = forecast_pb2_grpc.ForecastServiceStub(channel)
        everything = stub.WatchForecasts(forecast_pb2.WatchForecastsRequest())
        one = stub.WatchForecasts(forecast_pb2.WatchForecastsRequest(nodes=["n2"]))
        assert {(await everything.read()).forecast.node for _ in range(2)} == {"n1", "n2"}
        assert (await one.read()).forecast.node == "n2"
        running.board.put(entry("n1", 7, at=1001.0))
        running.board.put(entry("n1", 9, at=1002.0))
        assert (await everything.read()).forecast.reclaimable.cpu_millis == 9
        running.board.put(entry("n1", 9, at=1023.0))
        assert (await everything.read()).forecast.at_unix_millis == 1_023_000
        running.board.remove("n2")
        gone = await one.read()
        assert (gone.removed, gone.forecast.node) == (True, "n2")
        everything.cancel()
        one.cancel()

    talk(running, scenario)
    eventually(lambda: not running.board._listeners)


def test_the_store_double_is_true_to_the_store(running):
    assert isinstance(running.store.append([]), Appended)
