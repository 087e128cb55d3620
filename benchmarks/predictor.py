"""The predictor with thousands of agents: what it loses, what it costs, how soon it is back.

A real predictor process, simulated agents over loopback (`benchmarks.simulated_agents`; their own CPU is not counted),
a history of 14 days of all nodes and of 7 days of their ten pods each. There is no API server: forecasts are made of
all nodes, nothing is published. CPU is that of the whole predictor process, in cores: streams, durable writes, folding,
and the forecasts that fall into the time.

    ingest_lost             samples that were sent and are not stored, over all sizes
    rss_mib_10000           highest resident memory of the predictor, its restart included
    forecast_pass_seconds_10000  one pass and one forecast of all peaks, CPU and memory
    restart_seconds_10000   from its start until agents are served, with all of the history read back
    acknowledged_lost       samples that 1,000 agents had acknowledged before one of 50 kills, and that are not stored

With `--tls` agents come as in a cluster: each over a TLS connection of its own, with a token that the predictor has
reviewed. What that costs is the difference to a run without; it is not kept. 10,000 of them, on their own:

    python -m benchmarks.predictor --tls --sizes 10000 --kills 0
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from benchmarks.report import emit, parser
from benchmarks.simulated_agents import PODS, Outcome, node_name, pod_name, pod_uid
from benchmarks.token_reviews import certificate, reviewer
from predictor.history import History, SlotColumns, open_history
from predictor.models.base import Integers
from predictor.sequences import Seen
from predictor.slots import SLOT_SECONDS, SLOTS_PER_HOUR
from predictor.store.columns import Pod, PodHours, PodReport, no_hours
from slacktide.errors import SlacktideError
from standalone.probe import get

ROOT: Final = Path(__file__).resolve().parents[1]
DAYS: Final = 14
POD_DAYS: Final = 7

_ROWS: Final = 1_000_000
_DAY_SLOTS: Final = 24 * SLOTS_PER_HOUR
_FILL: Final = """
    INSERT INTO node_slots BY NAME
    SELECT slot, node, false AS imported, 300000 AS covered_millis,
        cpu AS protected_cpu_mean, cpu AS protected_cpu_p90, cpu AS protected_cpu_max,
        memory AS protected_memory_mean, memory AS protected_memory_p90, memory AS protected_memory_max
    FROM (SELECT slot::INTEGER AS slot, nodes.id AS node,
            (4000 + 2000 * sin(slot * 2 * pi() / 288) + 2000 * random())::BIGINT AS cpu,
            (25000000000 + 2000000000 * random())::BIGINT AS memory
        FROM range(?, ?) AS times(slot), nodes)
    ORDER BY slot, node"""
_START_SECONDS: Final = 180.0
_STREAMS_SECONDS: Final = 900.0
"""Until all agents have a stream; on two CPUs agents and predictor share, 10,000 handshakes take minutes."""
_CLIENTS: Final = 2
_STREAMS_PER_CHANNEL: Final = 100


_FORECASTS: Final = ("pass_seconds_count", "pass_seconds_sum", "step_seconds_count", "step_seconds_sum")


class Predictor:
    """`python -m predictor` in a directory of its own, on a port of loopback.

    `tls` are its certificate and key; None for plaintext.
    """

    def __init__(self, directory: str, tls: tuple[str, str] | None = None) -> None:
        self.directory = directory
        self.tls = tls
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; the seconds until it served. Raises SlacktideError when it does not."""
        begin = time.monotonic()
        flags = {
            "--cluster.server": f"unix:{api_socket(self.directory)}",
            "--listen": self.address,
            "--history-dir": f"{self.directory}/history",
            "--observe.listen": f"unix:{self.directory}/observe.sock",
            "--forecast.window-days": str(DAYS),
        }
        if self.tls is None:
            flags["--insecure"] = "true"
        else:
            flags |= {"--tls.certificate-file": self.tls[0], "--tls.key-file": self.tls[1]}
        command = [sys.executable, "-m", "predictor", *(part for flag in flags.items() for part in flag)]
        with open(f"{self.directory}/predictor.log", "ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        host, port = self.address.split(":")
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return time.monotonic() - begin
            if self._process.poll() is not None or time.monotonic() - begin > _START_SECONDS:
                raise SlacktideError(f"the predictor does not serve; see {self.directory}/predictor.log")
            time.sleep(0.01)

    @property
    def ca_file(self) -> str:
        """What its certificate is signed by: itself; empty for plaintext."""
        return self.tls[0] if self.tls else ""

    @property
    def process(self) -> psutil.Process:
        """The running process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def cpu_seconds(self) -> float:
        """CPU that it used since its start."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def highest_mib(self) -> float:
        """Highest resident memory since its start."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def metrics(self, *names: str) -> list[float]:
        """Metrics, summed over their labels, 0 for one that has no value. Only these are asked for: all would cost what
        is measured here."""
        query = "&".join(f"name[]=slacktide_predictor_{name}" for name in names)
        found: dict[str, float] = {}
        with contextlib.suppress(OSError, http.client.HTTPException):
            _, body = get(f"{self.directory}/observe.sock", f"/metrics?{query}", 10.0)
            for line in body.decode().splitlines():
                if not line.startswith("#"):
                    series, value = line.removeprefix("slacktide_predictor_").rsplit(" ", 1)
                    name = series.partition("{")[0]
                    found[name] = found.get(name, 0.0) + float(value)
        return [found.get(name, 0.0) for name in names]

    def metric(self, name: str) -> float:
        """One of them."""
        return self.metrics(name)[0]

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it in order."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def api_socket(directory: str) -> str:
    """Where the predictor looks for an API server; without TLS nobody is there."""
    return f"{directory}/api.sock"


@contextlib.contextmanager
def predictor(*, tls: bool = False) -> Iterator[Predictor]:
    """A predictor that is not started yet; it and its directory are gone afterwards."""
    directory = tempfile.mkdtemp(prefix="slacktide-benchmark-")
    made = Predictor(directory, certificate(directory) if tls else None)
    try:
        with reviewer(api_socket(directory)) if tls else contextlib.nullcontext():
            try:
                yield made
            finally:
                made.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Fleet:
    """Processes with simulated agents. `ca_file`: over TLS, each over a connection of its own; empty for plaintext."""

    def __init__(self, address: str, nodes: int, period: float, ca_file: str = "") -> None:
        share = -(-nodes // _CLIENTS)
        self._processes = []
        for first in range(0, nodes, share):
            count = min(share, nodes - first)
            numbers = {
                "--first": first,
                "--count": count,
                "--channels": count if ca_file else max(1, count // _STREAMS_PER_CHANNEL),
                "--period": period,
            }
            command = [sys.executable, "-m", "benchmarks.simulated_agents", address]
            flags = [part for flag, value in numbers.items() for part in (flag, str(value))]
            flags += ["--ca-file", ca_file] if ca_file else []
            self._processes.append(
                subprocess.Popen([*command, *flags], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            )

    def end(self) -> list[Outcome]:
        """Tell them to end, and what they saw."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        outcomes = []
        for process in self._processes:
            output, _ = process.communicate(timeout=120)
            outcomes.append(msgspec.json.decode(output, type=Outcome))
        return outcomes

    def kill(self) -> None:
        """End them at once."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@contextlib.contextmanager
def fleet(address: str, nodes: int, period: float, ca_file: str = "") -> Iterator[Fleet]:
    """Agents that are gone afterwards."""
    made = Fleet(address, nodes, period, ca_file)
    try:
        yield made
    finally:
        made.kill()


def preload(directory: str, nodes: int, days: int = DAYS, pod_days: int = POD_DAYS) -> None:
    """A history as if `nodes` had reported for `days`, with a daily wave and noise."""
    history = open_history(directory)
    try:
        now = int(time.time()) // SLOT_SECONDS - 1
        _preload_slots(history, nodes, now - days * 24 * SLOTS_PER_HOUR, now)
        hour = now // SLOTS_PER_HOUR
        step = max(1, _ROWS // (nodes * PODS))
        pods = [_pod(index, pod) for index in range(nodes) for pod in range(PODS)]
        for start in range(hour - pod_days * 24, hour, step):
            history.save_pods(PodReport(_pod_hours(pods, np.arange(start, min(start + step, hour))), no_hours()))
    finally:
        history.close()


def _preload_slots(history: History, nodes: int, first: int, end: int) -> None:
    """Rows as folding makes them. The way of an import takes minutes for forty million."""
    names = [node_name(index) for index in range(nodes)]
    one, unknown, covered = np.ones(nodes), np.full(nodes, np.nan), np.full(nodes, 1000 * SLOT_SECONDS)
    # The names get their ids this way; the rest follows.
    slot = np.full(nodes, first - 1)
    known = SlotColumns(names, np.arange(nodes), slot, covered, one, one, one, one, one, one, unknown, unknown)
    history.import_slots({"protected": known})
    connection = history._connection  # noqa: SLF001 - there is no other way to put rows in that were never samples
    for start in range(first, end, _DAY_SLOTS):
        connection.execute(_FILL, [start, min(start + _DAY_SLOTS, end)])


def _pod(index: int, pod: int) -> Pod:
    return Pod(pod_uid(index, pod), "shop", pod_name(pod), node_name(index), "", "ls", 1000.0, float(4 << 30))


def _pod_hours(pods: list[Pod], hours: Integers) -> PodHours:
    pod = np.tile(np.arange(len(pods)), len(hours))
    hour = np.repeat(hours, len(pods))
    cpu = np.random.default_rng(int(hours[0])).integers(200, 900, len(hour)).astype(np.float64)
    memory = np.full(len(hour), float(2 << 30))
    return PodHours(pods, pod, hour, np.full(len(hour), SLOTS_PER_HOUR), cpu / 2, cpu, memory, memory)


def steady(nodes: int, seconds: float, period: float, days: int, *, tls: bool = False) -> dict[str, Any]:
    """One size: restart with a full history, then agents at their period for some time."""
    with predictor(tls=tls) as running:
        if days:
            preload(f"{running.directory}/history", nodes, days, min(days, POD_DAYS))
        restart = running.start()
        with fleet(running.address, nodes, period, running.ca_file) as agents:
            _wait_for_streams(running, nodes)
            begin, used, before = time.monotonic(), running.cpu_seconds(), running.metrics(*_FORECASTS)
            time.sleep(seconds)
            cores = (running.cpu_seconds() - used) / (time.monotonic() - begin)
            after = running.metrics(*_FORECASTS)
            outcomes = agents.end()
        sent = sum(outcome.samples for outcome in outcomes)
        seconds_to_ack = np.array([value for outcome in outcomes for value in outcome.ack_seconds])
        return {
            "nodes": nodes,
            "samples_sent": sent,
            "samples_lost": sent - int(running.metric("samples_total")),
            # Of those, what was refused for good, and what was taken for a repeat.
            "samples_refused": int(running.metric("refused_samples_total")),
            "samples_duplicate": int(running.metric("duplicate_samples_total")),
            # Of those, what agents still had and would have sent again: 0 unless the end came too soon.
            "samples_waiting": sum(outcome.waiting for outcome in outcomes),
            "cores": cores,
            "rss_mib": running.process.memory_info().rss / 2**20,
            "highest_rss_mib": running.highest_mib(),
            "forecast_pass_seconds": forecast_seconds(running.metrics(*_FORECASTS)),
            # The first forecast falls into the moment in which all agents connect; this is without it.
            "forecast_pass_seconds_steady": forecast_seconds(after, before),
            "restart_seconds": restart,
            "ack_p50_ms": float(np.quantile(seconds_to_ack, 0.5)) * 1000,
            "ack_p99_ms": float(np.quantile(seconds_to_ack, 0.99)) * 1000,
        }


def forecast_seconds(after: Sequence[float], before: Sequence[float] = (0.0,) * 4) -> float | None:
    """One pass and one forecast of both resources between two looks at _FORECASTS; None when there was no forecast."""
    passes, pass_sum, steps, step_sum = (late - early for late, early in zip(after, before, strict=True))
    # A step is of one resource; there are two.
    return pass_sum / max(1.0, passes) + 2 * step_sum / steps if steps else None


def _wait_for_streams(running: Predictor, nodes: int) -> None:
    deadline = time.monotonic() + _STREAMS_SECONDS
    while min(seen := running.metrics("streams", "samples_total")) < nodes:
        if time.monotonic() > deadline:
            raise SlacktideError(f"only {seen[0]:.0f} of {nodes} agents have a stream")
        time.sleep(1.0)


def killed(nodes: int, kills: int, period: float, *, tls: bool = False) -> dict[str, Any]:
    """Agents stream while the predictor is killed again and again; then what they had acknowledged must be stored."""
    with predictor(tls=tls) as running:
        running.start()
        with fleet(running.address, nodes, period, running.ca_file) as agents:
            _wait_for_streams(running, nodes)
            for _ in range(kills):
                time.sleep(0.2 + random.random())
                running.kill()
                running.start()
            time.sleep(2.0)
            running.kill()
            running.start()
            outcomes = agents.end()
        running.stop()
        acknowledged = {node: high for outcome in outcomes for node, high in outcome.acknowledged.items()}
        return {
            "kills": kills + 1,
            "acknowledged": sum(acknowledged.values()),
            "acknowledged_lost": missing(f"{running.directory}/history", acknowledged),
            "waiting": sum(outcome.waiting for outcome in outcomes),
        }


def missing(directory: str, acknowledged: dict[str, int]) -> int:
    """How many acknowledged samples the history does not have."""
    history = open_history(directory)
    try:
        seen = {name: boot.seen for (name, _), boot in history._boots.boots.items()}  # noqa: SLF001 - nobody else asks
    finally:
        history.close()
    return sum(absent(seen.get(node), high) for node, high in acknowledged.items())


def absent(seen: Seen | None, high: int) -> int:
    """How many of the sequences up to `high` were never stored."""
    if seen is None:
        return high
    holes = sum(max(0, min(last, high) - first + 1) for first, last in seen.holes)
    return max(0, high - seen.high) + holes


def table(sizes: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows for people."""
    names = {
        "nodes": "nodes",
        "samples_lost": "lost",
        "cores": "cores",
        "highest_rss_mib": "RSS MiB",
        "forecast_pass_seconds": "forecast s",
        "restart_seconds": "restart s",
        "ack_p50_ms": "ack p50 ms",
        "ack_p99_ms": "ack p99 ms",
    }
    rows = [list(names.values())]
    rows += [
        [f"{size[key]:.2f}" if isinstance(size[key], float) else str(size[key]) for key in names] for size in sizes
    ]
    return rows


def main() -> int:
    """Run the benchmark."""
    arguments = parser("predictor", __doc__)
    arguments.add_argument("--sizes", type=int, nargs="*", help="numbers of nodes (default: 1000 3000 10000)")
    arguments.add_argument("--seconds", type=float, help="how long each size runs (default: 330, so that a slot ends)")
    arguments.add_argument("--kills", type=int, help="how often the predictor is killed (default: 50)")
    arguments.add_argument("--days", type=int, default=DAYS, help="days of history before the start (default: 14)")
    arguments.add_argument("--killed", type=int, help="agents that stream meanwhile (default: 1000)")
    arguments.add_argument("--period", type=float, help="seconds between two samples of an agent (default: 10)")
    arguments.add_argument("--tls", action="store_true", help="agents with a TLS connection and a token each")
    chosen = arguments.parse_args()
    if chosen.tls and chosen.save:
        arguments.error("figures over TLS are not kept: the page has those without")
    period = chosen.period or (2.0 if chosen.quick else 10.0)
    sizes = chosen.sizes if chosen.sizes is not None else [100, 300] if chosen.quick else [1000, 3000, 10000]
    seconds = chosen.seconds or (8.0 if chosen.quick else 330.0)
    kills = chosen.kills if chosen.kills is not None else 2 if chosen.quick else 50
    found = []
    for nodes in sizes:
        found.append(steady(nodes, seconds, period, chosen.days, tls=chosen.tls))
        print(json.dumps(found[-1]), file=sys.stderr)
    killing = killed(chosen.killed or (100 if chosen.quick else 1000), kills, 1.0, tls=chosen.tls) if kills else {}
    results: dict[str, Any] = {"ingest_lost": sum(size["samples_lost"] for size in found)}
    for size in found:
        nodes = size["nodes"]
        results[f"cores_{nodes}"] = size["cores"]
        results[f"rss_mib_{nodes}"] = size["highest_rss_mib"]
        results[f"forecast_pass_seconds_{nodes}"] = size["forecast_pass_seconds"]
        results[f"forecast_pass_seconds_steady_{nodes}"] = size["forecast_pass_seconds_steady"]
        results[f"restart_seconds_{nodes}"] = size["restart_seconds"]
    results.update(killing)
    results["sizes"] = found
    emit("predictor", results, chosen.output, rows=table(found), save=chosen.save)
    if killing and chosen.output == "table":
        print(f"killed {killing['kills']} times: {killing['acknowledged_lost']} of {killing['acknowledged']} lost")
    return 1 if results["ingest_lost"] or results.get("acknowledged_lost") else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main())
