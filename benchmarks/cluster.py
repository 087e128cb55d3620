"""The product in a large cluster: what it asks of the API server, what it holds in memory, how soon pods run.

A real etcd and API server, thousands of nodes without machines, an agent for each (`benchmarks.simulated_agents`),
real predictors and schedulers as processes; the stock scheduler afterwards on the same server, alone: nothing of ours
runs then, and the nodes offer what was published last. All share this machine. There are no kubelets, so that all
requests are ours.

    node_writes_per_minute      requests of predictor and scheduler that write, a node and minute, while nothing happens
    api_bytes_per_node_minute   bytes between them and the API server (TLS included), likewise
    predictor_rss_mib, scheduler_rss_mib   highest resident memory
    published_seconds           from the first report until every node offers its room
    all_placed_seconds          from the first of a burst of pods created until the last is bound
    bound_ms_p50, bound_ms_p99  from created to bound, for pods that come one after another at a steady rate
    predictor_failover_seconds  from the kill of the leader until the standby publishes
    scheduler_failover_seconds  from the kill of the leader until a pod that waits is bound
    stock_...                   the same of the stock scheduler
    oversold_nodes              nodes with more bound to them than they offer, after the burst
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.predictor import fleet, preload
from benchmarks.relay import Relay, relay
from benchmarks.report import emit, parser
from benchmarks.scheduler import STOCK, all_at_once, node_body, pod_body
from slacktide import names
from slacktide.cluster import LEASES, NAMESPACES, NODES, PODS, Client, Informer
from slacktide.errors import SlacktideError
from slacktide.names import SYSTEM_NAMESPACE
from slacktide.objects import Pod
from slacktide.quantity import parse
from standalone.probe import get, ready
from tests.cluster.harness import ControlPlane, Program, control_plane, missing

_WAIT_SECONDS: Final = 600.0
_SETTLE_SECONDS: Final = 10.0
_CPU_MILLIS: Final = 1000
_WRITES: Final = re.compile(
    r'^apiserver_request_total\{.*verb="(?:POST|PUT|PATCH|APPLY|DELETE)".*\} (\S+)$', re.MULTILINE
)
_PUBLISHED: Final = re.compile(r"^slacktide_predictor_publications_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Size:
    """How large, and how long. `rate` is pods a second in a steady stream of `stream` pods."""

    nodes: int
    pods: int
    seconds: float
    days: int
    period: float
    rate: float = 20.0
    stream: int = 400


class Pods:
    """A namespace of pods: when each was created and seen on a node, by a watch. Use as a context manager."""

    def __init__(self, client: Client, namespace: str, scheduler: str) -> None:
        self._client = client
        self._namespace = namespace
        self._scheduler = scheduler
        self._created: dict[str, float] = {}
        self._bound: dict[str, float] = {}
        self._news = threading.Condition()
        self._informer = Informer(
            client,
            PODS,
            namespace=namespace,
            on_add=self._look,
            on_update=lambda _old, new: self._look(new),
            name="bound",
        )

    def __enter__(self) -> Pods:
        self._client.create(NAMESPACES, {"metadata": {"name": self._namespace}})
        self._informer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._informer.stop()
        found = [pod.metadata.name for pod in self._client.list(PODS, self._namespace).items]
        all_at_once(
            len(found),
            lambda index: self._client.delete(PODS, found[index], self._namespace, grace_period_seconds=0),
        )

    def _look(self, pod: Pod) -> None:
        if pod.spec.node_name and pod.metadata.name not in self._bound:
            with self._news:
                self._bound[pod.metadata.name] = time.monotonic()
                self._news.notify_all()

    def create(self, index: int) -> None:
        """One more pod."""
        body = pod_body(index, self._scheduler, cpu=_CPU_MILLIS)
        self._created[body["metadata"]["name"]] = time.monotonic()
        self._client.create(PODS, body, self._namespace)

    def wait(self) -> None:
        """Until all are bound. Raises SlacktideError."""
        with self._news:
            if not self._news.wait_for(lambda: len(self._bound) >= len(self._created), _WAIT_SECONDS):
                raise SlacktideError(f"only {len(self._bound)} of {len(self._created)} pods were bound")

    def burst(self, count: int) -> float:
        """Create so many as fast as it goes; seconds until the last is bound."""
        all_at_once(count, self.create)
        self.wait()
        return max(self._bound.values()) - min(self._created.values())

    def stream(self, first: int, count: int, rate: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Create one after another; milliseconds from created to bound of each."""
        begin = time.monotonic()
        for index in range(count):
            time.sleep(max(0.0, begin + index / rate - time.monotonic()))
            self.create(first + index)
        self.wait()
        names_ = [f"pod-{first + index:05}" for index in range(count)]
        return 1000 * np.array([self._bound[name] - self._created[name] for name in names_])


class Daemon:
    """One of ours as a process, through a relay of its own."""

    def __init__(
        self, plane: ControlPlane, directory: Path, name: str, through: Relay, module: str, *flags: str
    ) -> None:
        self.name = name
        self._socket = f"{directory}/{name}.observe"
        config = json.loads(Path(plane.kubeconfig()).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{through.port}"
        path = directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        words = ("--observe.listen", f"unix:{self._socket}", "--identity", name, *flags)
        self.program = plane.daemon(module, *words, name=name, kubeconfig=str(path))

    def wait_ready(self) -> None:
        """Until it says so. Raises SlacktideError."""
        _until(lambda: self._alive() and ready(self._socket, 10.0).ready, f"{self.name} is not ready")

    def _alive(self) -> bool:
        if self.program.process.poll() is not None:
            raise self.program.fail("ended")
        return True

    def published(self) -> float:
        """Publications so far, of a predictor."""
        with contextlib.suppress(OSError):
            _, body = get(self._socket, "/metrics?name[]=slacktide_predictor_publications_total", 10.0)
            return sum(float(value) for value in _PUBLISHED.findall(body.decode()))
        return 0.0

    def highest_mib(self) -> float:
        """Highest resident memory so far."""
        status = Path(f"/proc/{self.program.process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def kill(self) -> float:
        """SIGKILL; returns when (monotonic)."""
        self.program.process.kill()
        self.program.process.wait()
        return time.monotonic()


class Stage:
    """API server, nodes and relays of one run; use `stage`."""

    def __init__(self, plane: ControlPlane, client: Client, directory: Path, relays: dict[str, Relay]) -> None:
        self.plane = plane
        self.client = client
        self.directory = directory
        self._relays = relays
        self.history = str(directory / "history")

    def address(self, name: str) -> str:
        """Where a predictor of that name listens."""
        return f"unix:{self.directory}/{name}.grpc"

    @contextlib.contextmanager
    def predictor(self, name: str, history: str) -> Iterator[Daemon]:
        """A predictor, not ready yet."""
        flags = ("--listen", self.address(name), "--history-dir", history)
        with _ended(Daemon(self.plane, self.directory, name, self._relays["predictor"], "predictor", *flags)) as made:
            yield made

    @contextlib.contextmanager
    def scheduler(self, name: str) -> Iterator[Daemon]:
        """A scheduler, ready."""
        with _ended(Daemon(self.plane, self.directory, name, self._relays["scheduler"], "scheduler_plugins")) as made:
            made.wait_ready()
            yield made

    def counts(self) -> tuple[float, int]:
        """(requests that wrote, bytes to and from ours) since the start."""
        text = self.client.request("GET", "/metrics").decode()
        return sum(float(value) for value in _WRITES.findall(text)), sum(one.total() for one in self._relays.values())

    def offering(self) -> int:
        """How many nodes offer batch CPU."""
        return sum(names.BATCH_CPU in node.status.allocatable for node in self.client.list(NODES).items)

    def oversold(self) -> int:
        """Nodes with more bound to them than they offer now."""
        bound: dict[str, int] = {}
        for pod in self.client.list(PODS, field_selector="spec.nodeName!=").items:
            bound[pod.spec.node_name] = bound.get(pod.spec.node_name, 0) + _CPU_MILLIS
        offered = {
            node.metadata.name: parse(node.status.allocatable.get(names.BATCH_CPU, "0")).value()
            for node in self.client.list(NODES).items
        }
        return sum(sold > offered.get(node, 0) for node, sold in bound.items())

    def leader(self, lease: str) -> str:
        """Who holds a lease."""
        return self.client.get(LEASES, lease, SYSTEM_NAMESPACE).spec.holder_identity or ""


@contextlib.contextmanager
def _ended(daemon: Daemon) -> Iterator[Daemon]:
    try:
        yield daemon
    finally:
        daemon.program.stop()


@contextlib.contextmanager
def stage(nodes: int) -> Iterator[Stage]:
    """A control plane with so many nodes that sell nothing yet; gone afterwards."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        plane = stack.enter_context(control_plane(directory, throughput=True))
        client = stack.enter_context(contextlib.closing(plane.client()))
        all_at_once(nodes, lambda index: client.create(NODES, _node(index)))
        relays = {name: stack.enter_context(relay(plane.port)) for name in ("predictor", "scheduler")}
        yield Stage(plane, client, directory, relays)


def _node(index: int) -> dict[str, Any]:
    body = node_body(index, time.time())
    body["metadata"]["annotations"].pop(names.FORECAST_ANNOTATION)
    sold = (names.BATCH_CPU, names.BATCH_MEMORY)
    plain = {name: value for name, value in body["status"]["capacity"].items() if name not in sold}
    body["status"]["capacity"] = body["status"]["allocatable"] = plain
    return body


def ours(on: Stage, size: Size) -> dict[str, float]:
    """Everything that is measured of Slacktide; the nodes go on offering what was published last."""
    if size.days:
        preload(on.history, size.nodes, size.days, min(size.days, 7))
    with (
        on.predictor("predictor-a", on.history) as predicting,
        fleet(on.address("predictor-a"), size.nodes, size.period),
    ):
        begin = time.monotonic()
        _until(lambda: on.offering() == size.nodes, "not all nodes offer room")
        found = {"published_seconds": time.monotonic() - begin}
        with on.scheduler("scheduler-a") as placing:
            found |= _steady(on, size)
            found |= _placed(on, size, "ours", names.SCHEDULER_NAME, "")
            found |= {"predictor_rss_mib": predicting.highest_mib(), "scheduler_rss_mib": placing.highest_mib()}
            found |= _failover(on, size, predicting, placing)
    return found


def _steady(on: Stage, size: Size) -> dict[str, float]:
    time.sleep(_SETTLE_SECONDS)
    begin, before = time.monotonic(), on.counts()
    time.sleep(size.seconds)
    after = on.counts()
    node_minutes = size.nodes * (time.monotonic() - begin) / 60
    return {
        "node_writes_per_minute": (after[0] - before[0]) / node_minutes,
        "api_bytes_per_node_minute": (after[1] - before[1]) / node_minutes,
    }


def _placed(on: Stage, size: Size, namespace: str, scheduler: str, prefix: str) -> dict[str, float]:
    with Pods(on.client, namespace, scheduler) as pods:
        found = {f"{prefix}all_placed_seconds": pods.burst(size.pods)}
        found[f"{prefix}oversold_nodes"] = on.oversold()
        times = pods.stream(size.pods, size.stream, size.rate)
        found |= {f"{prefix}bound_ms_p{at}": float(np.percentile(times, at)) for at in (50, 99)}
    return found


def _failover(on: Stage, size: Size, predicting: Daemon, placing: Daemon) -> dict[str, float]:
    """Both standbys have heard everything before the leaders are killed."""
    history = f"{on.history}-b"
    with (
        on.predictor("predictor-b", history) as next_predictor,
        fleet(on.address("predictor-b"), size.nodes, size.period),
        on.scheduler("scheduler-b"),
    ):
        next_predictor.wait_ready()
        time.sleep(2 * size.period)
        killed = predicting.kill()
        _until(lambda: next_predictor.published() > 0, "the standby does not publish")
        found = {"predictor_failover_seconds": time.monotonic() - killed}
        found["scheduler_failover_seconds"] = _rebound(on, names.SCHEDULER_NAME, placing.kill, "failover")
    return found


def _rebound(on: Stage, scheduler: str, kill: Callable[[], float], namespace: str) -> float:
    """Seconds from a kill of the leader until a pod that was created then is bound."""
    with Pods(on.client, namespace, scheduler) as pods:
        killed = kill()
        pods.create(0)
        pods.wait()
        return time.monotonic() - killed


def stock(on: Stage, size: Size) -> dict[str, float]:
    """The stock scheduler alone; then two of them, of which the leader is killed."""
    with on.plane.scheduler():
        found = _placed(on, size, "stock", STOCK, "stock_")
    elected = {"leaderElection": {"leaderElect": True}}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_killable(on.plane, elected))
        _until(lambda: "_" in _holder(on), "the stock scheduler does not lead")
        stack.enter_context(_killable(on.plane, elected))
        time.sleep(_SETTLE_SECONDS)
        found["stock_scheduler_failover_seconds"] = _rebound(on, STOCK, lambda: _kill(first), "stock-failover")
    return found


@contextlib.contextmanager
def _killable(plane: ControlPlane, configuration: dict[str, Any]) -> Iterator[Program]:
    """A stock scheduler that may be killed meanwhile."""
    program = plane.stock_scheduler(configuration)
    try:
        yield program
    finally:
        program.stop()


def _kill(program: Program) -> float:
    program.process.kill()
    program.process.wait()
    return time.monotonic()


def _holder(on: Stage) -> str:
    with contextlib.suppress(SlacktideError):
        return on.leader("kube-scheduler")
    return ""


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SlacktideError(f"{otherwise} after {_WAIT_SECONDS:.0f} s")
        time.sleep(0.1)


def main() -> int:
    """Run the benchmark."""
    arguments = parser("cluster", __doc__)
    arguments.add_argument("--nodes", type=int, help="fake nodes (default: 5000)")
    arguments.add_argument("--pods", type=int, help="best-effort pods of a burst (default: 5000)")
    arguments.add_argument("--seconds", type=float, help="how long nothing happens (default: 330, so that a slot ends)")
    arguments.add_argument("--days", type=int, help="days of history before the start (default: 14)")
    arguments.add_argument("--period", type=float, default=10.0, help="seconds between two samples of an agent")
    chosen = arguments.parse_args()
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    quick = chosen.quick
    size = Size(
        nodes=chosen.nodes or (200 if quick else 5000),
        pods=chosen.pods or (200 if quick else 5000),
        seconds=chosen.seconds or (60.0 if quick else 330.0),
        days=chosen.days if chosen.days is not None else 0 if quick else 14,
        period=chosen.period,
        stream=100 if quick else 400,
    )
    with stage(size.nodes) as on:
        results: dict[str, Any] = {**ours(on, size), **stock(on, size)}
    emit("cluster", results, chosen.output, save=chosen.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
