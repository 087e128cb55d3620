"""The daemon as a process, beside the embedded API server as another."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import grpc
import pytest

from predictor.history import open_history
from slacktide import forecast as wire
from slacktide.cluster import NODES, connect
from slacktide.cluster.errors import Unreachable
from slacktide.names import BATCH_CPU, FORECAST_ANNOTATION
from slacktide.settings import ClusterSettings
from slacktide.v1 import usage_pb2, usage_pb2_grpc
from tests.predictor.support import eventually

GIB = 1 << 30


class Processes:
    """Daemons of one test in one short directory, since socket paths are short."""

    def __init__(self, directory):
        self.directory = directory
        self.running = []
        self.client = connect(ClusterSettings(server=self.unix("api.sock")), user_agent="test")

    def unix(self, name):
        return f"unix:{self.directory}/{name}"

    def start(self, module, *arguments):
        with open(f"{self.directory}/{module}.log", "ab") as log:
            process = subprocess.Popen([sys.executable, "-m", module, *arguments], stderr=log, stdout=log)
        self.running.append(process)
        return process

    def start_api(self):
        path = self.directory
        return self.start(
            "standalone.api",
            "--socket",
            f"{path}/api.sock",
            "--database",
            f"{path}/api.db",
            "--log-dir",
            f"{path}/logs",
        )

    def start_predictor(self, *more):
        return self.start(
            "predictor",
            *("--cluster.server", self.unix("api.sock")),
            *("--listen", self.unix("predictor.sock")),
            *("--history-dir", f"{self.directory}/history"),
            *("--observe.listen", self.unix("observe.sock")),
            *("--publish-seconds", "0.2", "--rise-wait-seconds", "0.5", "--forecast.cold-seconds", "0"),
            *more,
        )

    def log(self, module="predictor"):
        with open(f"{self.directory}/{module}.log") as text:
            return text.read()

    def observe(self, path):
        connection = http.client.HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            try:
                connection.sock.connect(f"{self.directory}/observe.sock")
            except OSError as error:
                return 0, str(error)
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def node(self):
        return self.client.get(NODES, "n1")

    def forecast(self):
        return wire.decode(self.node().metadata.annotations[FORECAST_ANNOTATION])

    def make_node(self):
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        body = {"metadata": {"name": "n1"}, "status": {"capacity": amounts, "allocatable": amounts}}

        def create():
            try:
                return self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", **body})
            except Unreachable:
                assert all(process.poll() is None for process in self.running), self.log("standalone.api")
                return None

        eventually(create, 30)

    def stop(self):
        for process in self.running:
            process.kill()
            process.wait(10)
        self.client.close()


@pytest.fixture
def processes():
    directory = tempfile.mkdtemp(prefix="slacktide-test-")
    processes = Processes(directory)
    yield processes
    processes.stop()
    shutil.rmtree(directory)


def sample(sequence, cpu):
    usage = usage_pb2.Usage(
        cpu_millis_mean=cpu, cpu_millis_max=cpu, memory_bytes_mean=GIB // 4, memory_bytes_max=GIB // 4
    )
    return usage_pb2.Sample(
        sequence=sequence,
        # Two windows of a node never end at the same moment.
        end_unix_millis=int(time.time() * 1000) + sequence,
        window_millis=1000,
        capacity=usage_pb2.Resources(cpu_millis=4000, memory_bytes=8 * GIB),
        ls=usage,
        system=usage,
    )


def send(processes, *samples):
    """One stream as an agent has it; the last sequence that was acknowledged. Waits for a server that is not there."""
    with grpc.insecure_channel(processes.unix("predictor.sock"), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = usage_pb2.ReportRequest(
            node="n1", boot_id="boot", samples=samples, sent_unix_millis=int(time.time() * 1000)
        )
        call = usage_pb2_grpc.UsageServiceStub(channel).Report(iter([request]), wait_for_ready=True, timeout=30)
        return [response.durable_sequence for response in call][-1]


def published(processes):
    return processes.node().status.allocatable.get(BATCH_CPU)


def test_from_sample_to_node_and_through_a_kill(processes):
    # No slot that ends meanwhile is forecast: the numbers below are those of the window.
    unforecast = ("--forecast.grace-seconds", "240")
    processes.start_api()
    predictor = processes.start_predictor(*unforecast)
    processes.make_node()
    assert send(processes, sample(1, 500), sample(2, 600)) == 2
    eventually(lambda: published(processes) == str(4000 - 200 - 1200), 30)
    node = processes.node()
    forecast = processes.forecast()
    assert forecast.closed == ""
    assert forecast.terms.peak.cpu_millis == 1200
    assert node.status.capacity["cpu"] == "4"
    assert node.status.capacity[BATCH_CPU] == node.status.allocatable[BATCH_CPU]
    eventually(lambda: processes.observe("/readyz")[0] == 200, 10)
    status, metrics = processes.observe("/metrics")
    assert status == 200
    assert 'slacktide_predictor_published{node="n1",resource="cpu"} 2600.0' in metrics

    predictor.kill()
    predictor.wait(10)
    before = processes.forecast()
    predictor = processes.start_predictor(*unforecast)
    # What was acknowledged is known: the same samples are no news, and the peak of before still counts.
    repeated = [sample(1, 500), sample(2, 600)]
    for index, old in enumerate(repeated):
        old.end_unix_millis -= 60_000 - index
    assert send(processes, *repeated, sample(3, 100)) == 3
    eventually(lambda: "slacktide_predictor_duplicate_samples_total 2.0" in processes.observe("/metrics")[1], 10)
    eventually(lambda: processes.forecast().at > before.at, 30)
    assert published(processes) == str(4000 - 200 - 1200)

    predictor.send_signal(signal.SIGTERM)
    assert predictor.wait(10) == 0
    assert not os.path.exists(f"{processes.directory}/predictor.sock")


def test_what_the_engines_learned_is_in_the_history_when_the_predictor_has_ended(processes):
    processes.start_api()
    predictor = processes.start_predictor("--forecast.grace-seconds", "0")
    processes.make_node()
    assert send(processes, sample(1, 500)) == 1
    stepped = "slacktide_predictor_step_seconds_count"
    eventually(lambda: f"{stepped} 0.0" not in (text := processes.observe("/metrics")[1]) and stepped in text, 60)
    predictor.send_signal(signal.SIGTERM)
    assert predictor.wait(15) == 0
    history = open_history(f"{processes.directory}/history", 1 << 30)
    try:
        assert history.states().keys() == {"engine/cpu", "engine/memory"}
    finally:
        history.close()


def test_without_an_api_server_samples_are_taken_and_readiness_says_what_lacks(processes):
    predictor = processes.start_predictor()
    assert send(processes, sample(1, 500)) == 1
    status, text = processes.observe("/readyz")
    assert status == 503
    assert "nodes and pods are not listed yet" in text
    processes.start_api()
    processes.make_node()
    send(processes, sample(2, 500))
    eventually(lambda: published(processes) is not None, 40)
    predictor.send_signal(signal.SIGTERM)
    assert predictor.wait(10) == 0


def test_bad_settings_leave_with_2_and_say_all(processes):
    predictor = processes.start_predictor("--ttl-seconds", "0", "--modell", "x")
    assert predictor.wait(30) == 2
    assert "ttl" in processes.log()
    assert "modell" in processes.log()
    predictor = processes.start_predictor("--forecast.candidates", "window_min")
    assert predictor.wait(30) == 2
    assert "window_max" in processes.log()


def test_a_history_of_a_newer_version_is_an_error_that_says_what_to_do(processes):
    history = open_history(f"{processes.directory}/history")
    history._connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    history.close()
    predictor = processes.start_predictor()
    assert predictor.wait(30) == 1
    assert "history format 99" in processes.log()
    assert "upgrade Slacktide" in processes.log()


def test_settings_have_units_ranges_and_descriptions(processes):
    shown = subprocess.run(
        [sys.executable, "-m", "predictor", "--help"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    for name in (
        "--history-dir",
        "--forecast.horizon-seconds",
        "--ttl-seconds",
        "--rise-step-percent",
        "--resources.cpu",
    ):
        assert name in shown
    printed = subprocess.run(
        [sys.executable, "-m", "predictor", "--print-settings", "--ttl-seconds", "2m"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    assert "120" in printed
