"""Traces: nothing of them where nobody asked; else one trace over turns, cycles, passes, and calls of other daemons."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures

import grpc
import pytest

from slacktide.errors import SettingsError
from slacktide.observe import otel, traces
from slacktide.settings import ObserveSettings
from slacktide.transport.client import ClientFiles, connection_to
from slacktide.transport.traced import aio_interceptors, server_interceptors
from slacktide.v1 import forecast_pb2, forecast_pb2_grpc
from tests.agent.test_loop import Rig as AgentRig
from tests.cluster.harness import free_ports
from tests.patience import PATIENCE
from tests.predictor.test_daemon import Processes
from tests.scheduler_plugins.build import be
from tests.scheduler_plugins.rig import Rig as SchedulerRig

DEADLINE = 60.0 * PATIENCE


@pytest.fixture(autouse=True)
def off():
    """Whatever a test did, the next one begins without."""
    yield
    traces.use(None)


@pytest.fixture
def spans():
    """Spans that ended, oldest first; while it is used they are made."""
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter = export.InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.use(otel.OtelTracing(lambda: provider))
    return exporter.get_finished_spans


def tree(found):
    """(name of a span, name of its parent) of each, in the order in which they began."""
    names = {span.context.span_id: span.name for span in found}
    began = sorted(found, key=lambda span: span.start_time)
    return [(span.name, names.get(span.parent.span_id) if span.parent else None) for span in began]


def test_without_a_collector_nothing_is_made_or_imported():
    code = (
        "import sys\n"
        "from slacktide.observe import otel, traces\n"
        "from slacktide.settings import ObserveSettings\n"
        "stop = otel.start('test', ObserveSettings())\n"
        "assert traces.span('a') is traces.span('b', parent=(), c=1)\n"
        "with traces.span('a'): traces.note(x=1)\n"
        "assert traces.carried() == () and not traces.on()\n"
        "stop()\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'grpc'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_a_collector_nothing_is_put_between_calls():
    assert (server_interceptors(), aio_interceptors()) == ([], [])
    channel = connection_to("unix:/nowhere", "", ClientFiles()).channel
    with contextlib.closing(channel):
        assert type(channel) is type(grpc.insecure_channel("unix:/nowhere"))


@pytest.mark.parametrize("text", ["collector:4317", "http://", "unix:/collector"])
def test_a_collector_that_is_none_is_a_mistake_in_the_settings(text):
    with pytest.raises(SettingsError, match=r"expected http://HOST:PORT or https://HOST:PORT"):
        otel.start("test", ObserveSettings(traces=text))
    assert not traces.on()


def test_without_the_extra_the_setting_says_what_to_install(monkeypatch):
    monkeypatch.setattr(otel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"install slacktide\[otel\]"):
        otel.start("test", ObserveSettings(traces="http://localhost:4317"))


def test_a_turn_of_the_agent_is_a_trace_of_its_parts(spans):
    rig = AgentRig()
    rig.run(2, beats=3)
    turns = [span for span in spans() if span.name == "agent.turn"]
    assert len(turns) == 2
    second = [span for span in spans() if span.context.trace_id == turns[1].context.trace_id]
    parts = [("agent.turn", None), ("agent.sweep", "agent.turn"), ("agent.decide", "agent.turn")]
    assert tree(second) == [*parts, ("agent.apply", "agent.turn")]
    assert "LS" in turns[1].attributes["line"]
    assert turns[1].attributes["pods"] == 2


def test_an_error_in_a_turn_is_in_its_span(spans):
    rig = AgentRig()
    rig.host.sweep = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        rig.loop.turn()
    sweep, turn = spans()
    assert (sweep.name, turn.name) == ("agent.sweep", "agent.turn")
    assert turn.status.is_ok is False
    assert turn.events[0].attributes["exception.type"] == "ZeroDivisionError"


def test_a_scheduling_cycle_and_its_binding_are_one_trace(spans):
    rig = SchedulerRig()
    rig.offer(3000)
    rig.server.put(be("p", 2000))
    rig.settle()
    assert rig.where("p") == "n"
    found = spans()
    (cycle,) = [span for span in found if span.name == "scheduler.cycle"]
    assert (cycle.attributes["pod"], cycle.attributes["node"]) == ("default/p", "n")
    mine = [span for span in found if span.context.trace_id == cycle.context.trace_id]
    assert {("PreFilter", "scheduler.cycle"), ("Filter", "scheduler.cycle")} <= set(tree(mine))
    assert {("scheduler.bind", "scheduler.cycle"), ("Bind", "scheduler.bind")} <= set(tree(mine))


def test_a_span_on_another_thread_goes_on_where_it_was_carried_to(spans):
    with traces.span("here"):
        carried = traces.carried()

        def elsewhere():
            with traces.span("there", carried):
                pass

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert tree(spans()) == [("here", None), ("there", "here")]


def test_what_carries_nothing_begins_a_trace_of_its_own(spans):
    with traces.span("here"), traces.span("there", (("user-agent", "x"), ("binary-bin", b"\xff"))):
        pass
    assert tree(spans()) == [("here", None), ("there", None)]


class Collector:
    """A collector of OTLP: what was sent, as the wire has it."""

    def __init__(self):
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

        received = self.received = []

        class Takes(service.TraceServiceServicer):
            def Export(self, request, context):
                received.extend(request.resource_spans)
                return pb.ExportTraceServiceResponse()

        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        service.add_TraceServiceServicer_to_server(Takes(), self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def close(self):
        self._server.stop(None).wait()

    def spans(self, name):
        """(service, span) of each span of that name."""
        return [
            (next(a.value.string_value for a in one.resource.attributes if a.key == "service.name"), span)
            for one in list(self.received)
            for scope in one.scope_spans
            for span in scope.spans
            if span.name == name
        ]


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture
def daemons():
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        made = Processes(folder)
        try:
            made.start_api()
            yield made
        finally:
            for process in made.running:
                process.kill()
                process.wait()
            made.client.close()


def test_a_daemon_sends_its_spans_and_goes_on_below_the_call_that_asks_it(daemons, spans):
    pytest.importorskip("opentelemetry.proto")
    with contextlib.closing(Collector()) as collector:
        where = f"http://127.0.0.1:{collector.port}"
        daemons.start_predictor("--observe.traces", where, "--observe.traces-percent", "100")
        connection = connection_to(daemons.unix("predictor.sock"), "", ClientFiles())
        stub = forecast_pb2_grpc.ForecastServiceStub(connection.channel)
        with contextlib.closing(connection.channel), traces.span("asks"):
            request = forecast_pb2.GetForecastRequest(node="nobody")
            with pytest.raises(grpc.RpcError, match="no forecast of node"):
                stub.GetForecast(request, timeout=DEADLINE, wait_for_ready=True)
        method = "/slacktide.v1.ForecastService/GetForecast"
        service, answered = wait_for(lambda: collector.spans(method))[0]
        (asked,) = [span for span in spans() if span.name == method]
        assert service == "slacktide-predictor"
        assert int.from_bytes(answered.trace_id) == asked.context.trace_id
        assert int.from_bytes(answered.parent_span_id) == asked.context.span_id
        service, found = wait_for(lambda: collector.spans("predictor.pass"))[0]
        assert (service, found.parent_span_id) == ("slacktide-predictor", b"")


def test_a_collector_that_is_away_costs_one_line_and_no_time_at_the_end(daemons):
    pytest.importorskip("opentelemetry.sdk")
    (port,) = free_ports(1)
    where = f"http://127.0.0.1:{port}"
    predictor = daemons.start_predictor("--observe.traces", where, "--observe.traces-percent", "100")

    def said():
        with open(f"{daemons.directory}/predictor.log") as log:
            return log.read()

    wait_for(lambda: "spans are not taken by the collector" in said())
    predictor.terminate()
    assert predictor.wait(DEADLINE) == 0
    assert said().count("spans are not taken by the collector") == 1
    assert all(line.startswith("{") for line in said().splitlines())
