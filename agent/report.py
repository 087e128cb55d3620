"""Sends samples to the predictor over one long gRPC stream; the spool bridges its absence.

Two threads, neither of which the control loop ever waits for: *spool* takes samples from a bounded queue and puts
them on disk, *stream* keeps a stream open, sends what waits (oldest first) and deletes what is acknowledged. What
was sent and not acknowledged is sent again on the next stream; the predictor takes duplicates as what they are.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import grpc

from agent.settings import ReportSettings
from agent.spool import Spool
from agent.window import Sample
from agent.wire import encode_sample, request_of
from slacktide.observe import get_logger
from slacktide.v1 import usage_pb2, usage_pb2_grpc

_LOG: Final = get_logger("agent.report")
_QUEUE_SAMPLES: Final = 256
_POLL_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0

Connect = Callable[[], grpc.Channel]


def channel_to(target: str, settings: ReportSettings) -> grpc.Channel:
    """A channel to `unix:/path` or `HOST:PORT`. Pings agree with the predictor's limits (one a minute at most)."""
    return grpc.insecure_channel(
        target,
        options=[
            ("grpc.keepalive_time_ms", int(settings.keepalive_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ],
    )


@dataclass(slots=True)
class _Session:
    """One stream: what was sent last, since when nothing was acknowledged, until when to be silent."""

    boot_id: str
    progress_at: float
    sent: int = 0
    in_flight: deque[int] = field(default_factory=deque)
    silent_until: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    call: grpc.Call | None = None


class Reporter:
    """`counters`: sent, acknowledged, refused, streams, failures, queue_drops. `connected` while acks come."""

    def __init__(
        self,
        node: str,
        boot_id: str,
        spool: Spool,
        settings: ReportSettings,
        connect: Connect | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._spool = spool
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._queue: queue.Queue[Sample | None] = queue.Queue(_QUEUE_SAMPLES)
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._session: _Session | None = None
        self._threads: list[threading.Thread] = []
        self._away = False
        self.counters: Counter[str] = Counter()
        self.connected = False

    def submit(self, sample: Sample) -> None:
        """Hand over a sample; never blocks. A full queue (a disk that hangs) drops it and counts."""
        try:
            self._queue.put_nowait(sample)
        except queue.Full:
            self.counters["queue_drops"] += 1

    def start(self) -> None:
        """Start both threads; without a predictor only the spool's."""
        self._threads = [threading.Thread(target=self._spool_loop, name="spool", daemon=True)]
        if self._connect is not None:
            self._threads.append(threading.Thread(target=self._stream_loop, name="stream", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Put what is queued on disk, end the stream, join the threads within a deadline."""
        self._stopping.set()
        try:
            self._queue.put(None, timeout=1.0)
        except queue.Full:
            _LOG.warning("spool is stuck, its queue is lost", samples=self._queue.qsize())
        session = self._session
        if session is not None:
            session.done.set()
            if session.call is not None:
                session.call.cancel()
        self._notify()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

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
                self.counters["failures"] += 1
                _LOG.exception("a sample could not be spooled")
            self._notify()

    def _stream_loop(self) -> None:
        pause = self._settings.backoff_seconds
        while not self._stopping.is_set():
            acknowledged = self.counters["acknowledged"]
            try:
                self._stream()
            except grpc.RpcError as error:
                self._failed(error)
            except Exception:  # noqa: BLE001 - the one guard around a stream; logged and counted
                self.counters["failures"] += 1
                _LOG.exception("the stream failed in a way nobody foresaw; it is opened anew")
            self.connected = False
            if self.counters["acknowledged"] > acknowledged:
                pause = self._settings.backoff_seconds
            self._stopping.wait(pause * (0.5 + self._jitter()))
            pause = min(self._settings.backoff_max_seconds, pause * 2)

    def _failed(self, error: grpc.RpcError) -> None:
        self.counters["failures"] += 1
        code, detail = getattr(error, "code", None), getattr(error, "details", None)
        if not self._stopping.is_set() and not self._away:
            self._away = True
            _LOG.warning(
                "predictor away, samples are spooled",
                code=str(code() if code else None),
                detail=detail() if detail else "",
            )

    def _stream(self) -> None:
        """One stream from connect to end. Raises grpc.RpcError."""
        assert self._connect is not None
        channel = self._connect()
        session = _Session(self._spool.oldest_boot() or self._boot_id, self._clock())
        self._session = session
        try:
            stub = usage_pb2_grpc.UsageServiceStub(channel)
            call = stub.Report(self._requests(session), timeout=self._settings.stream_seconds)
            session.call = call
            self.counters["streams"] += 1
            for response in call:
                self._take(session, response)
        finally:
            session.done.set()
            self._notify()
            channel.close()

    def _requests(self, session: _Session) -> Iterator[usage_pb2.ReportRequest]:
        """What to send, as it comes up; runs on a thread of gRPC."""
        while not (session.done.is_set() or self._stopping.is_set()):
            now = self._clock()
            message = self._next(session) if now >= session.silent_until else None
            if message is not None:
                self.counters["sent"] += len(message.samples)
                yield message
                continue
            if self._overdue(session, now) and session.call is not None:
                _LOG.warning(
                    "no receipt from the predictor, the stream is opened anew", seconds=now - session.progress_at
                )
                session.call.cancel()
                return
            with self._wake:
                self._wake.wait(_POLL_SECONDS)

    def _overdue(self, session: _Session, now: float) -> bool:
        since = max(session.progress_at, session.silent_until)
        return bool(session.in_flight) and now - since > self._settings.ack_timeout_seconds

    def _next(self, session: _Session) -> usage_pb2.ReportRequest | None:
        room = max(0, self._settings.in_flight_samples - len(session.in_flight))
        batch = self._spool.batch(session.boot_id, session.sent, min(self._settings.batch_samples, room))
        if not batch:
            self._next_boot(session)
            return None
        if not session.in_flight:
            session.progress_at = self._clock()
        session.in_flight.extend(sequence for sequence, _ in batch)
        session.sent = batch[-1][0]
        return request_of(self._node, session.boot_id, batch, round(self._wall() * 1000))

    def _next_boot(self, session: _Session) -> None:
        """When all of an earlier boot is acknowledged, go on with the next one."""
        if session.boot_id == self._boot_id or session.in_flight:
            return
        session.boot_id = self._spool.oldest_boot() or self._boot_id
        session.sent = 0

    def _take(self, session: _Session, response: usage_pb2.ReportResponse) -> None:
        self.connected = True
        if self._away:
            self._away = False
            _LOG.info("predictor is back", waiting=self._spool.waiting())
        now = self._clock()
        if response.HasField("retry_after_millis"):
            session.silent_until = now + response.retry_after_millis / 1000
        for refusal in response.refusals:
            self.counters["refused"] += 1
            _LOG.warning("the predictor refused a sample", sequence=refusal.sequence, reason=refusal.reason)
        if response.durable_sequence:
            deleted = self._spool.acknowledge(response.boot_id, response.durable_sequence)
            self.counters["acknowledged"] += deleted
            if response.boot_id == session.boot_id:
                self._received(session, response.durable_sequence)
        self._notify()

    def _received(self, session: _Session, durable_sequence: int) -> None:
        session.progress_at = self._clock()
        session.sent = max(session.sent, durable_sequence)
        while session.in_flight and session.in_flight[0] <= durable_sequence:
            session.in_flight.popleft()
