"""The predictor daemon: ties ingest, history, forecast pass, leader election and the gRPC server together."""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from predictor import prior
from predictor.auth import Gate
from predictor.board import Board
from predictor.clock import Clock, SystemClock
from predictor.engine import Engine
from predictor.fleet import Fleet
from predictor.forecasting import Forecaster
from predictor.history import open_history
from predictor.ingest import Ingest, IngestRules
from predictor.metrics import Metrics
from predictor.models import UnknownModel, create
from predictor.models.base import Model
from predictor.peaks import Peaks, Resource, state_key
from predictor.permissions import AUTH_PERMISSIONS, LEASE_NAME, PERMISSIONS
from predictor.published import names_of
from predictor.publisher import Publisher
from predictor.service import RpcServer
from predictor.settings import PredictorSettings
from predictor.storage import set_aside, set_log_aside
from predictor.writer import Place, Writer, WriterRules
from slacktide.cluster import NODES, PODS, Client, ClusterMetrics, Informer, LeaderElector, Rights, connect
from slacktide.cluster.events import EventRecorder
from slacktide.errors import SettingsError
from slacktide.explaining import PUBLISHED_ROUTE
from slacktide.names import SYSTEM_NAMESPACE
from slacktide.objects import Node, Pod
from slacktide.observe import Daemon, Queried, run_daemon
from slacktide.transport import CertificateFiles, Tokens, may, review_token, tls_files
from slacktide.transport.watched import ExpiryMetrics

ABOUT: Final = "Receives usage from the agents, forecasts the peak of each node and publishes what may be sold."

_STALE_SILENCES: Final = 2.0
"""Of `cluster.silence_seconds`: how long the API server may not be heard until the caches are not trusted."""

_STOP_SECONDS: Final = 3.0
_SWITCH_SECONDS: Final = 0.0001
"""How long a thread may keep the interpreter while others want it. A forecast of 10,000 nodes lets go of it ten
thousand times, once a numpy call, and waits for so long each time that a busy thread has it: 0.65 s of work take 6.5 s
with 0.5 ms beside a thread that never rests, 2.7 s with this, and 1.3 s and 1.2 s beside 1,000 samples a second. An
answer to an agent, which needs several turns of three threads, waits as long beside a forecast: with Python's 5 ms
agents connect at 60 a second."""

_GARBAGE_THRESHOLDS: Final = (50_000, 20, 20)
"""When the garbage collector looks for cycles. Hardly anything here is in one; samples come and go by the thousand, and
with Python's 700 a sixth of a large fleet's CPU went into looking at them."""


class ClusterObjects:
    """Nodes and bound pods as two informers have them; not trusted when the server was not heard for so long."""

    def __init__(self, nodes: Informer[Node], pods: Informer[Pod], stale_seconds: float) -> None:
        self._nodes = nodes
        self._pods = pods
        self._stale_seconds = stale_seconds

    @property
    def synced(self) -> bool:
        """Whether both were listed once."""
        return self._nodes.synced and self._pods.synced

    def nodes(self) -> Iterable[Node]:
        """All nodes."""
        return self._nodes.items()

    def pods(self) -> Iterable[Pod]:
        """All pods that are bound to a node."""
        return self._pods.items()

    def problem(self) -> str | None:
        """Why the caches cannot be trusted; None when they can."""
        if not self.synced:
            return "nodes and pods are not listed yet: the API server does not answer, or refuses"
        age = max(self._nodes.age_seconds(), self._pods.age_seconds())
        return f"the API server was last heard {age:.0f} s ago" if age > self._stale_seconds else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """Everything that runs, in the order it is started."""

    writer: Writer
    gate: Gate | None
    server: RpcServer
    nodes: Informer[Node]
    pods: Informer[Pod]
    elector: LeaderElector
    forecaster: Forecaster
    peaks: Peaks
    events: EventRecorder
    rights: Rights
    client: Client

    def start(self) -> None:
        """Begin to serve: ingest first, because a sample that waits is a sample that may be lost."""
        self.writer.start()
        self.server.start()
        self.nodes.start()
        self.pods.start()
        self.rights.start()
        self.elector.start()
        self.forecaster.start()

    def stop(self) -> None:
        """Stop publishing, then give the lease back; meanwhile stop listening and make durable what waits."""
        closing = [
            threading.Thread(target=stop, daemon=True)
            for stop in (self._stop_publishing, self.nodes.stop, self.pods.stop)
        ]
        for thread in closing:
            thread.start()
        self.server.stop(_STOP_SECONDS)
        if self.gate is not None:
            self.gate.stop()
        self.peaks.stop()
        self.writer.stop(_STOP_SECONDS)
        for thread in closing:
            thread.join(_STOP_SECONDS)
        self.events.stop()
        self.rights.stop()
        self.client.close()

    def _stop_publishing(self) -> None:
        self.forecaster.stop()
        self.elector.stop(_STOP_SECONDS)


def main(argv: list[str] | None = None, clock: Clock | None = None) -> int:
    """Run the predictor until it is told to stop; returns the exit code. `clock` is the machine's unless given."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    body = functools.partial(_body, clock or SystemClock())
    return run_daemon("predictor", PredictorSettings, body, argv, about=ABOUT)


def _body(clock: Clock, daemon: Daemon[PredictorSettings]) -> None:
    parts = _assemble(daemon, clock)
    try:
        parts.start()
        daemon.stop.wait()
    finally:
        parts.stop()


def _assemble(daemon: Daemon[PredictorSettings], clock: Clock) -> _Parts:
    settings = daemon.settings
    metrics = Metrics(daemon.registry, settings.metrics.nodes_max)
    cluster_metrics = ClusterMetrics(daemon.registry)
    models = _models(settings)
    waker = _Waker()
    board = Board()
    fleet = Fleet(settings.forecast.window_days, settings.stale_seconds, waker)
    writer = _writer(settings, clock, metrics, fleet)

    def rules() -> IngestRules:
        now = daemon.settings
        return IngestRules(now.max_skew_seconds, now.retention_days, now.ingest)

    ingest = Ingest(writer, fleet, rules, clock, metrics)
    client = connect(settings.cluster, user_agent="slacktide-predictor", metrics=cluster_metrics)
    tls = tls_files(settings.tls)
    gate = _gate(daemon, client, tls, metrics) if tls is not None else None
    if tls is not None:
        ExpiryMetrics(daemon.registry).follow(tls)
    server = RpcServer(
        settings.listen, ingest, board, daemon.health.not_ready, tls=tls, gate=gate, insecure=settings.insecure
    )
    nodes = Informer(client, NODES, on_add=waker.tell, name="nodes", metrics=cluster_metrics)
    pods = Informer(client, PODS, field_selector="spec.nodeName!=", name="pods", metrics=cluster_metrics)
    identity = settings.identity or _identity(settings)
    elector = LeaderElector(client, LEASE_NAME, SYSTEM_NAMESPACE, identity, waker, waker, metrics=cluster_metrics)
    objects = ClusterObjects(nodes, pods, _STALE_SILENCES * settings.cluster.silence_seconds)
    asks = tls is not None and not tls.ca_file
    rights = Rights(client, (*PERMISSIONS, *(AUTH_PERMISSIONS if asks else ())))
    peaks = _peaks(settings, models, writer, clock, metrics)
    events = EventRecorder(client, "slacktide-predictor", identity, metrics=cluster_metrics)

    def warn(node: Node, reason: str, message: str) -> None:
        events.record(node, "Warning", reason, message)

    publisher = Publisher(client, names_of(settings), clock, metrics, warn)
    forecaster = Forecaster(
        fleet,
        peaks,
        board,
        objects,
        publisher,
        lambda: elector.is_leader,
        writer.retire,
        settings,
        clock,
        metrics,
    )
    waker.target = forecaster.wake
    daemon.routes[PUBLISHED_ROUTE] = Queried(
        lambda query: msgspec.json.encode(publisher.told(query.get("node", ""), leads=elector.is_leader))
    )
    daemon.on_reload(forecaster.reload)
    daemon.health.add_live("writer", writer.ended)
    daemon.health.add_live("forecaster", forecaster.ended)
    daemon.health.add_ready("history", writer.problem)
    daemon.health.add_ready("grpc", server.problem)
    daemon.health.add_ready("cluster", objects.problem)
    daemon.health.add_ready("forecast", forecaster.problem)
    daemon.health.add_ready("permissions", rights.problem)
    return _Parts(writer, gate, server, nodes, pods, elector, forecaster, peaks, events, rights, client)


def _gate(daemon: Daemon[PredictorSettings], client: Client, tls: CertificateFiles, metrics: Metrics) -> Gate:
    """Who is let in over TLS, as the API server says."""

    def timeout() -> float:
        return daemon.settings.auth.review_timeout_seconds

    audience = daemon.settings.auth.audience
    tokens = Tokens(
        lambda token: review_token(client, token, audience, timeout()), lambda: daemon.settings.auth.review_seconds
    )
    return Gate(
        lambda: daemon.settings.auth,
        tokens,
        lambda user, verb, node: may(client, user, verb, "forecasts", node, timeout()),
        by_certificate=bool(tls.ca_file),
        count=lambda kind: metrics.refused_calls.labels(kind).inc(),
    )


def _models(settings: PredictorSettings) -> dict[str, Model]:
    forecast = settings.forecast
    try:
        # Each with the window of its own, as in a back-test: `window_days` is only what there is to look at.
        return {name: create(name) for name in (*forecast.candidates, forecast.fallback)}
    except UnknownModel as error:
        raise SettingsError([f"forecast.candidates and forecast.fallback: {error}"]) from error


def _peaks(
    settings: PredictorSettings, models: dict[str, Model], writer: Writer, clock: Clock, metrics: Metrics
) -> Peaks:
    rules = {"cpu": settings.forecast, "memory": settings.forecast.for_memory()}

    def build(resource: Resource) -> Engine:
        return Engine(rules[resource], models, prior.shipped(resource), writer.load_state(state_key(resource)))

    def run(step: Callable[[], None]) -> None:
        threading.Thread(target=step, name="peaks", daemon=True).start()

    return Peaks(build, run, writer.save_state, clock, metrics)


def _writer(settings: PredictorSettings, clock: Clock, metrics: Metrics, fleet: Fleet) -> Writer:
    directory, max_bytes = settings.history_dir, settings.history_max_bytes
    place = Place(
        lambda: open_history(directory, max_bytes), lambda: set_aside(directory), lambda: set_log_aside(directory)
    )
    rules = WriterRules(
        settings.commit_seconds,
        settings.queue_samples,
        settings.retention_days,
        settings.forecast.window_days,
        max_bytes,
    )
    return Writer(place, rules, clock, metrics, fleet.restore, fleet.restore_pods, fleet.take_pods)


class _Waker:
    """Asks for a forecast pass, once there is somebody to run it."""

    def __init__(self) -> None:
        self.target: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self.target is not None:
            self.target()

    def tell(self, _: object) -> None:
        """The same, for callers that say what happened."""
        self()


def _identity(settings: PredictorSettings) -> str:
    """Name in the lease. A history has one owner at a time, so a restarted predictor may go on with its own lease."""
    place = hashlib.sha256(os.path.realpath(settings.history_dir).encode()).hexdigest()[:8]
    return f"{socket.gethostname()}_{place}"
