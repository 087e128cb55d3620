"""Sends samples to the predictors, each over one long gRPC stream; the spool bridges their absence.

Threads, none of which the control loop ever waits for: *spool* takes samples from a bounded queue and puts them on
disk; one *stream* a predictor sends what waits for it and notes what it acknowledges (`agent.stream`); *resolve* looks
up names again and again, where there are names. Every replica gets every sample, so that a fail-over finds the next
leader warm.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from agent.drill import Hold
from agent.endpoints import Resolve, endpoints, has_names, host_of, resolve, split
from agent.receivers import Receiver, Receivers
from agent.settings import ReportSettings
from agent.spool import Spool
from agent.stream import Streamer
from agent.window import Sample
from agent.wire import encode_sample
from slacktide.observe import get_logger
from slacktide.transport import ClientFiles, Connection, connection_to

_LOG: Final = get_logger("agent.report")
_QUEUE_SAMPLES: Final = 256
_STOP_SECONDS: Final = 5.0

Dial = Callable[[str, str], Connection]
"""Address and the host that its certificate must be for to a connection. Raises TransportError."""


def files_of(settings: ReportSettings) -> ClientFiles:
    """The files that a connection to a predictor needs."""
    return ClientFiles(
        ca_file=settings.ca_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
        token_file=settings.token_file,
        insecure=settings.insecure,
        setting="report",
    )


def dial(target: str, host: str, settings: ReportSettings) -> Connection:
    """A connection to `unix:/path` or `HOST:PORT`. Pings agree with the predictor's limits (one a minute at most)."""
    options = [
        ("grpc.keepalive_time_ms", int(settings.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    return connection_to(target, settings.server_name or host, files_of(settings), options)


class Reporter:
    """`targets` are the predictors, comma separated; empty reports nowhere and only spools. `held` is what a drill
    does to the streams now.

    Raises SettingsError for targets that these settings cannot reach safely.

    `counters`: sent, acknowledged, refused, streams, failures of all streams together, queue_drops. `connected` while
    acks come from any.
    """

    def __init__(
        self,
        node: str,
        boot_id: str,
        spool: Spool,
        settings: ReportSettings,
        targets: str,
        *,
        connect: Dial | None = None,
        look_up: Resolve = resolve,
        held: Callable[[], Hold] = lambda: Hold.NOTHING,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._spool = spool
        self._settings = settings
        self._targets = split(targets)
        files_of(settings).check(self._targets)
        self._dial = connect or (lambda target, host: dial(target, host, settings))
        self._look_up = look_up
        self._held = held
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._queue: queue.Queue[Sample | None] = queue.Queue(_QUEUE_SAMPLES)
        self._receivers = Receivers(spool, settings.hold_seconds, clock)
        self._lock = threading.Lock()
        self._streamers: dict[str, tuple[Streamer, Receiver]] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ended: Counter[str] = Counter()

    @property
    def counters(self) -> Counter[str]:
        """What was counted so far."""
        total = self._ended.copy()
        for streamer, _ in self._current():
            total.update(streamer.counters)
        return total

    @property
    def connected(self) -> bool:
        """Whether acknowledgements come."""
        return any(streamer.connected for streamer, _ in self._current())

    def submit(self, sample: Sample) -> None:
        """Hand over a sample; never blocks. A full queue (a disk that hangs) drops it and counts."""
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self._ended["queue_drops"] += 1

    def start(self) -> None:
        """Start all threads; without a predictor only the spool's."""
        self._threads = [threading.Thread(target=self._spool_loop, name="spool", daemon=True)]
        if has_names(self._targets):
            # Looking up may take long, and the control loop waits for nobody.
            self._threads.append(threading.Thread(target=self._resolve_loop, name="resolve", daemon=True))
        else:
            self._connect({target: host_of(target) for target in self._targets})
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Put what is queued on disk, end the streams, join the threads within a deadline."""
        self._stopping.set()
        try:
            self._queue.put(None, timeout=1.0)
        except queue.Full:
            _LOG.warning("spool is stuck, its queue is lost", samples=self._queue.qsize())
        streamers = [streamer for streamer, _ in self._current()]
        for streamer in streamers:
            streamer.stop()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)
        for streamer in streamers:
            streamer.join()

    def _current(self) -> list[tuple[Streamer, Receiver]]:
        with self._lock:
            return list(self._streamers.values())

    def _spool_loop(self) -> None:
        lost = 0
        while (sample := self._queue.get()) is not None:
            try:
                kept = self._spool.append(self._boot_id, encode_sample(sample)) is not None
                # Told when it begins and when it ends: a line a sample would fill what is left of the disk.
                if not kept and not lost:
                    _LOG.warning("samples are kept in memory only", reason=self._spool.problem)
                elif kept and lost:
                    _LOG.warning("samples are kept on disk again", in_memory=lost)
                lost = 0 if kept else lost + 1
            except Exception:  # noqa: BLE001 - one bad sample must not end the reporting; logged and counted
                self._ended["failures"] += 1
                _LOG.exception("a sample could not be spooled")
            for streamer, _ in self._current():
                streamer.notify()

    def _resolve_loop(self) -> None:
        while not self._stopping.is_set():
            self._connect(endpoints(self._targets, self._look_up))
            self._stopping.wait(self._settings.resolve_seconds)

    def _connect(self, wanted: dict[str, str]) -> None:
        """Have a stream to each of `wanted` and to nobody else."""
        ending: list[Streamer] = []
        with self._lock:
            for target in self._streamers.keys() - wanted.keys():
                streamer, receiver = self._streamers.pop(target)
                self._receivers.remove(receiver)
                self._ended.update(streamer.counters)
                ending.append(streamer)
            for target, host in wanted.items():
                if target not in self._streamers and not self._stopping.is_set():
                    self._streamers[target] = self._open(target, host)
        for streamer in ending:
            streamer.stop()

    def _open(self, target: str, host: str) -> tuple[Streamer, Receiver]:
        receiver = self._receivers.add(target)
        streamer = Streamer(
            self._node,
            self._boot_id,
            receiver,
            self._settings,
            lambda: self._dial(target, host),
            held=self._held,
            clock=self._clock,
            wall=self._wall,
            jitter=self._jitter,
        )
        streamer.start()
        return streamer, receiver
