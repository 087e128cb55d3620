"""How soon the extender answers: filter, then prioritize, over HTTP, for one best-effort pod after the other.

A real extender process on loopback; its nodes and pods come from the embedded API server, by list and watch. A client
of the plainest kind keeps its connection open and sends names only (nodeCacheCapable); time runs from the first byte
sent to the last byte received. Every node is asked about and every node fits: answers are as long as they can be.
Client, extender and API server share the machine: `busy` is the share of all CPUs that was in use meanwhile, and the
CPU time of the extender beside it says what a question costs whoever else is there.

    filter_prioritize_ms_p99_N   both questions about one pod at N nodes
    cpu_ms_N                     CPU of the whole extender process for both; answer_cpu_ms_N without HTTP
    ls_filter_ms_p99_N           filter for a latency-sensitive pod, which passes without work
    refused_ms_p99_N             filter for a pod that fits nowhere: a reason for each of N nodes
    churn_ms_p99_N               as the first, while nodes get new forecasts
    concurrent_ms_p99_N          as the first, with 50 clients at once; concurrent_pods_per_second_N likewise
    whole_nodes_ms_p99_N         as the first, with whole nodes in place of names
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from benchmarks.report import emit, parser
from slacktide import names
from slacktide.cluster import NODES, Client, connect
from slacktide.cluster.errors import ClusterError
from slacktide.errors import SlacktideError
from slacktide.forecast import Amount, Forecast, Terms, encode
from slacktide.settings import ClusterSettings
from standalone.probe import get

ROOT: Final = Path(__file__).resolve().parents[1]

CLIENTS: Final = 50
_CORES: Final = 32
_WRITERS: Final = 8
_READY_SECONDS: Final = 120.0
_HEADERS: Final = {"Content-Type": "application/json"}


def annotation(cpu_millis: int) -> str:
    """A fresh forecast that leaves so much CPU, and 64 GiB."""
    nothing = Amount()
    terms = Terms(capacity=nothing, reserve=nothing, peak=nothing, now=nothing, sold=nothing)
    left = Amount(cpu_millis=cpu_millis, memory_bytes=64 << 30)
    return encode(Forecast(at=time.time(), ttl_seconds=3600, peak=nothing, reclaimable=left, terms=terms))


def node(index: int) -> dict[str, Any]:
    """A node that sells between 8 and 24 of its 32 cores to batch work."""
    name = f"node-{index:05}.pool-a.example"
    offered = {
        "cpu": str(_CORES),
        "memory": "128Gi",
        "pods": "110",
        names.BATCH_CPU: "24000",
        names.BATCH_MEMORY: str(64 << 30),
    }
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{index % 5}"}
    annotations = {names.FORECAST_ANNOTATION: annotation(8000 + 1000 * (index % 17))}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": {"capacity": offered, "allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, millis: int, **labels: str) -> dict[str, Any]:
    """A pod as a scheduler would send it, with what defaulting adds."""
    asked = {names.BATCH_CPU: str(millis), names.BATCH_MEMORY: "2Gi"} if millis else {"cpu": "1"}
    return {
        "metadata": {
            "name": name,
            "namespace": "batch",
            "uid": f"uid-{name}",
            "labels": {"app": "benchmark", **labels},
            "annotations": {"note": "x" * 500},
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [
                {
                    "name": f"c{i}",
                    "image": "registry.example/batch:1",
                    "env": [{"name": f"VARIABLE_{n}", "value": "value"} for n in range(10)],
                    "resources": {"requests": asked, "limits": asked} if not i else {},
                }
                for i in range(2)
            ],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Pending"},
    }


class Cluster:
    """The embedded API server and an extender, as processes in one directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.client: Client = connect(ClusterSettings(server=f"unix:{directory}/api.sock"), user_agent="benchmark")
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._running: list[subprocess.Popen[bytes]] = []

    def start_api(self) -> None:
        """Start the API server; returns when it answers."""
        directory = self.directory
        flags = ["--socket", f"{directory}/api.sock", "--database", f"{directory}/o.sqlite", "--log-dir", directory]
        self._start("standalone.api", *flags)
        _until("the API server answers", self._api_answers)

    def start_extender(self, nodes: int) -> psutil.Process:
        """Start the extender; returns when it knows all nodes."""
        cluster = ["--cluster.server", f"unix:{self.directory}/api.sock", "--listen", self.address]
        limits = ["--max-body-bytes", str(256 << 20)]
        process = self._start(
            "scheduler_plugins.extender_main", *cluster, *limits, "--observe.listen", f"unix:{self.directory}/observe"
        )
        _until("the extender is ready", lambda: self.figures("cache_size").get("nodes") == nodes)
        return psutil.Process(process.pid)

    def figures(self, name: str) -> dict[str, float]:
        """Values of one metric of the extender by its only label."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            _, body = get(f"{self.directory}/observe", f"/metrics?name[]=slacktide_extender_{name}", 5.0)
            lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
            return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}
        return {}

    def create(self, count: int) -> None:
        """Create that many nodes."""
        with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(lambda index: self.client.create(NODES, node(index)), range(count)))

    def stop(self) -> None:
        """End both processes."""
        self.client.close()
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, module: str, *flags: str) -> subprocess.Popen[bytes]:
        with open(f"{self.directory}/{module}.log", "ab") as log:
            command = [sys.executable, "-m", module, *flags]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running.append(process)
        return process

    def _api_answers(self) -> bool:
        with contextlib.suppress(ClusterError):
            return bool(self.client.version().git_version)
        return False


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that is gone afterwards."""
    directory = tempfile.mkdtemp(prefix="slacktide-benchmark-")
    made = Cluster(directory)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _until(what: str, check: Any) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not check():
        if time.monotonic() > deadline:
            raise SlacktideError(f"not within {_READY_SECONDS:.0f} s: {what}")
        time.sleep(0.1)


class Asking:
    """One client with a connection of its own."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=60)

    def ask(self, verb: str, content: bytes) -> bytes:
        """One answer. Raises SlacktideError for any status but 200."""
        self._connection.request("POST", f"/{verb}", content, _HEADERS)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise SlacktideError(f"{verb} was answered {response.status}: {answer[:200]!r}")
        return answer

    def both(self, asked: dict[str, Any], known: Sequence[str]) -> float:
        """Seconds for filter about `known`, and prioritize about what that kept, as a scheduler asks."""
        content = _named(asked, known)
        begin = time.perf_counter()
        answer = self.ask("filter", content)
        filtered = time.perf_counter() - begin
        content = _named(asked, msgspec.json.decode(answer)["NodeNames"])
        begin = time.perf_counter()
        self.ask("prioritize", content)
        return filtered + time.perf_counter() - begin

    def whole(self, asked: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> float:
        """The same with whole nodes, all of which are kept."""
        content = msgspec.json.encode({"Pod": asked, "Nodes": {"items": nodes}, "NodeNames": None})
        begin = time.perf_counter()
        self.ask("filter", content)
        self.ask("prioritize", content)
        return time.perf_counter() - begin

    def one(self, asked: dict[str, Any], known: Sequence[str]) -> float:
        """Seconds for filter."""
        content = _named(asked, known)
        begin = time.perf_counter()
        self.ask("filter", content)
        return time.perf_counter() - begin

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Orders:
    """The nodes in another order with each call: a stock scheduler judges in parallel, and no two lists are alike."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = list(known)
        self._random = random.Random(0)

    def __call__(self) -> list[str]:
        """All nodes; the order changes by where it starts and by some that change places."""
        first = self._random.randrange(len(self._known))
        order = self._known[first:] + self._known[:first]
        for _ in range(20):
            i, j = self._random.randrange(len(order)), self._random.randrange(len(order))
            order[i], order[j] = order[j], order[i]
        return order


class Churn:
    """Gives nodes new forecasts, at a rate, until it is closed."""

    def __init__(self, client: Client, nodes: Sequence[str], per_second: float) -> None:
        self._client = client
        self._nodes = nodes
        self._pause = 1.0 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.changes = 0
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._pause, time.monotonic() - 1.0)
            name = self._nodes[self.changes % len(self._nodes)]
            text = annotation(8000 + self.changes % 16000)
            self._client.patch(NODES, name, None, {"metadata": {"annotations": {names.FORECAST_ANNOTATION: text}}})
            self.changes += 1

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(10.0)


def at_size(nodes: int, pods: int, churn_per_second: float) -> dict[str, Any]:
    """All figures at one size."""
    with cluster() as running:
        running.start_api()
        running.create(nodes)
        extender = running.start_extender(nodes)
        asked = [node(index) for index in range(nodes)]
        known = [one["metadata"]["name"] for one in asked]
        with contextlib.closing(Asking(running.address)) as client:
            check(client, known)
            found = sequential(client, running, extender, known, pods)
            order = Orders(known)
            found["ls_filter_ms"] = quantiles([client.one(pod(f"ls{i}", 0), order()) for i in range(pods)])
            found["refused_ms"] = quantiles([client.one(pod(f"big{i}", 30_000), order()) for i in range(pods)])
            few = range(max(10, pods // 20))
            found["whole_nodes_ms"] = quantiles([client.whole(pod(f"w{i}", 100), asked) for i in few])
            with contextlib.closing(Churn(running.client, known, churn_per_second)) as churn:
                begin = time.monotonic()
                found["churn_ms"] = quantiles([client.both(pod(f"c{i}", 100), order()) for i in range(pods)])
                found["churn_per_second"] = churn.changes / (time.monotonic() - begin)
        found |= concurrent_clients(running.address, known, pods)
        found["rss_mib"] = extender.memory_info().rss / 2**20
        return {"nodes": nodes, **found}


def check(client: Asking, known: Sequence[str]) -> None:
    """What is measured must be right: all nodes fit, each has a score, the roomiest has the best one."""
    # Large enough that the share of the room that is left tells nodes apart.
    content = _named(pod("check", 6000), known)
    kept = msgspec.json.decode(client.ask("filter", content))["NodeNames"]
    scores = {one["Host"]: one["Score"] for one in msgspec.json.decode(client.ask("prioritize", content))}
    if kept != list(known) or scores.keys() != set(known) or scores[known[16]] <= scores[known[0]]:
        raise SlacktideError(f"the extender answers wrongly: {len(kept)} of {len(known)} nodes kept")


def sequential(
    client: Asking, running: Cluster, extender: psutil.Process, known: Sequence[str], pods: int
) -> dict[str, Any]:
    """One pod after the other, and what that cost the process: in all, and to answer without HTTP."""
    order = Orders(known)
    answering = sum(running.figures("cpu_seconds_total").values())
    psutil.cpu_percent()
    before = sum(extender.cpu_times()[:2])
    seconds = [client.both(pod(f"p{i}", 100 + i), order()) for i in range(pods)]
    used = sum(extender.cpu_times()[:2]) - before
    busy = psutil.cpu_percent() / 100
    answering = sum(running.figures("cpu_seconds_total").values()) - answering
    return {
        "filter_prioritize_ms": quantiles(seconds),
        "cpu_ms": 1000 * used / pods,
        "answer_cpu_ms": 1000 * answering / pods,
        "busy": busy,
    }


def concurrent_clients(address: str, known: Sequence[str], pods: int) -> dict[str, Any]:
    """Many clients at once, each with its share of the pods."""
    share = max(2, pods // CLIENTS)
    order = Orders(known)
    start = threading.Barrier(CLIENTS)

    def run(number: int) -> list[float]:
        with contextlib.closing(Asking(address)) as client:
            start.wait()
            return [client.both(pod(f"m{number}-{i}", 100), order()) for i in range(share)]

    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        seconds = [second for each in pool.map(run, range(CLIENTS)) for second in each]
    return {
        "concurrent_ms": quantiles(seconds),
        "concurrent_pods_per_second": len(seconds) / (time.monotonic() - begin),
    }


def _named(asked: dict[str, Any], known: Sequence[str]) -> bytes:
    return msgspec.json.encode({"Pod": asked, "Nodes": None, "NodeNames": known})


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in milliseconds."""
    millis = 1000 * np.array(seconds)
    return {
        "p50": float(np.quantile(millis, 0.5)),
        "p99": float(np.quantile(millis, 0.99)),
        "max": float(millis.max()),
    }


_TIMES: Final = ("filter_prioritize_ms", "ls_filter_ms", "refused_ms", "churn_ms", "concurrent_ms", "whole_nodes_ms")
_PLAIN: Final = ("cpu_ms", "answer_cpu_ms", "busy", "concurrent_pods_per_second", "rss_mib")


def table(sizes: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows for people: p50 / p99 in milliseconds."""
    rows = [["nodes", *_TIMES, *_PLAIN]]
    for size in sizes:
        times = [f"{size[key]['p50']:.2f} / {size[key]['p99']:.2f}" for key in _TIMES]
        rows.append([str(size["nodes"]), *times, *(f"{size[key]:.2f}" for key in _PLAIN)])
    return [list(column) for column in zip(*rows, strict=True)]


def main() -> int:
    """Run the benchmark."""
    arguments = parser("extender", __doc__)
    arguments.add_argument("--sizes", type=int, nargs="*", help="numbers of nodes (default: 100 1000 5000)")
    arguments.add_argument("--pods", type=int, help="pods asked about one after the other (default: 1000)")
    arguments.add_argument("--churn", type=float, default=100.0, help="nodes that change in a second (default: 100)")
    chosen = arguments.parse_args()
    sizes = chosen.sizes or ([100, 1000] if chosen.quick else [100, 1000, 5000])
    pods = chosen.pods or (200 if chosen.quick else 1000)
    found = [at_size(nodes, pods, chosen.churn) for nodes in sizes]
    results: dict[str, Any] = {}
    for size in found:
        nodes = size["nodes"]
        for key in _TIMES:
            results |= {f"{key}_{name}_{nodes}": size[key][name] for name in ("p50", "p99")}
        results |= {f"{key}_{nodes}": size[key] for key in _PLAIN}
    results["sizes"] = found
    emit("extender", results, chosen.output, rows=table(found), save=chosen.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
