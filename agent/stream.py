"""One long gRPC stream to one predictor: sends what waits for it, oldest first, and notes what it acknowledges.

What was sent and not acknowledged is sent again on the next stream; the predictor takes duplicates as what they are.
When the files change that say who we are and whom to trust, the stream ends between two samples and another follows.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import grpc

from agent.drill import Hold
from agent.receivers import Receiver
from agent.settings import ReportSettings
from agent.wire import request_of
from slacktide.observe import get_logger
from slacktide.transport import Connection, TransportError
from slacktide.v1 import usage_pb2, usage_pb2_grpc

_LOG: Final = get_logger("agent.report")
_POLL_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_FILES_SECONDS: Final = 2.0
"""How often the files of a connection are looked at."""

Connect = Callable[[], Connection]
"""Opens a connection. Raises TransportError while what it needs cannot be read."""


@dataclass(slots=True)
class _Session:
    """One stream: what was sent last, since when nothing was acknowledged, until when to be silent.

    `renewing`: its credentials have changed, so nothing more is sent, and it ends once all is acknowledged.
    """

    boot_id: str
    progress_at: float
    sent: int = 0
    in_flight: deque[int] = field(default_factory=deque)
    silent_until: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    call: grpc.Call | None = None
    files_at: float = 0.0
    renewing: bool = False


class Streamer:
    """A thread that keeps a stream open. `counters`: sent, acknowledged, refused, streams, failures.

    `connected` while acks come. `held` is what a drill does to the stream now.
    """

    def __init__(
        self,
        node: str,
        boot_id: str,
        receiver: Receiver,
        settings: ReportSettings,
        connect: Connect,
        *,
        held: Callable[[], Hold] = lambda: Hold.NOTHING,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._spool = receiver
        self._settings = settings
        self._connect = connect
        self._held = held
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._session: _Session | None = None
        self._thread = threading.Thread(target=self._stream_loop, name="stream", daemon=True)
        self._away = ""
        self.counters: Counter[str] = Counter()
        self.connected = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the stream; `join` waits for it."""
        self._stopping.set()
        session = self._session
        if session is not None:
            session.done.set()
            if session.call is not None:
                session.call.cancel()
        self.notify()

    def join(self) -> None:
        """Wait for the thread, within a deadline."""
        self._thread.join(_STOP_SECONDS)

    def notify(self) -> None:
        """There is something to send, or no more."""
        with self._wake:
            self._wake.notify_all()

    def _stream_loop(self) -> None:
        pause = self._settings.backoff_seconds
        while not self._stopping.is_set():
            if self._held() is Hold.CUT:
                self._stopping.wait(_POLL_SECONDS)
                pause = self._settings.backoff_seconds
                continue
            acknowledged = self.counters["acknowledged"]
            try:
                self._stream()
            except grpc.RpcError as error:
                code, detail = getattr(error, "code", None), getattr(error, "details", None)
                self._failed(str(code() if code else None), str(detail() if detail else ""))
            except TransportError as error:
                self._failed("CREDENTIALS", str(error))
            except Exception:  # noqa: BLE001 - the one guard around a stream; logged and counted
                self.counters["failures"] += 1
                _LOG.exception("the stream failed in a way nobody foresaw; it is opened anew")
            self.connected = False
            if self.counters["acknowledged"] > acknowledged:
                pause = self._settings.backoff_seconds
            self._stopping.wait(pause * (0.5 + self._jitter()))
            pause = min(self._settings.backoff_max_seconds, pause * 2)

    def _failed(self, code: str, detail: str) -> None:
        """Tell it when it begins, and when it becomes something else."""
        self.counters["failures"] += 1
        if not self._stopping.is_set() and self._away != code:
            self._away = code
            _LOG.warning("predictor away, samples are spooled", predictor=self._spool.name, code=code, detail=detail)

    def _stream(self) -> None:
        """One stream from connect to end. Raises grpc.RpcError, TransportError."""
        connection = self._connect()
        session = _Session(self._spool.oldest_boot() or self._boot_id, self._clock())
        self._session = session
        try:
            stub = usage_pb2_grpc.UsageServiceStub(connection.channel)
            call = stub.Report(
                self._requests(session, connection.stale),
                timeout=self._settings.stream_seconds,
                metadata=connection.metadata,
            )
            session.call = call
            self.counters["streams"] += 1
            for response in call:
                self._take(session, response)
        except grpc.RpcError:
            if not ((session.renewing and not session.in_flight) or self._held() is Hold.CUT):
                raise
        finally:
            session.done.set()
            self.notify()
            connection.channel.close()

    def _requests(self, session: _Session, stale: Callable[[], bool]) -> Iterator[usage_pb2.ReportRequest]:
        """What to send, as it comes up; runs on a thread of gRPC."""
        while not (session.done.is_set() or self._stopping.is_set()):
            now = self._clock()
            if now >= session.files_at:
                session.files_at = now + _FILES_SECONDS
                session.renewing = session.renewing or stale()
            silent = session.renewing or now < session.silent_until
            message = None if silent else self._next(session)
            if message is not None:
                self.counters["sent"] += len(message.samples)
                yield message
                continue
            cut = self._held() is Hold.CUT
            overdue = self._overdue(session, now)
            if overdue:
                _LOG.warning(
                    "no receipt from the predictor, the stream is opened anew", seconds=now - session.progress_at
                )
            if (cut or overdue or (session.renewing and not session.in_flight)) and session.call is not None:
                session.call.cancel()
                return
            with self._wake:
                self._wake.wait(_POLL_SECONDS)

    def _overdue(self, session: _Session, now: float) -> bool:
        since = max(session.progress_at, session.silent_until)
        return bool(session.in_flight) and now - since > self._settings.ack_timeout_seconds

    def _next(self, session: _Session) -> usage_pb2.ReportRequest | None:
        if self._held() is not Hold.NOTHING:
            return None
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
            self._away = ""
            _LOG.info("predictor is back", predictor=self._spool.name, waiting=self._spool.waiting())
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
        self.notify()

    def _received(self, session: _Session, durable_sequence: int) -> None:
        session.progress_at = self._clock()
        session.sent = max(session.sent, durable_sequence)
        while session.in_flight and session.in_flight[0] <= durable_sequence:
            session.in_flight.popleft()
