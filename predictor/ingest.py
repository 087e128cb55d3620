"""The usage stream of one agent: judge each sample, hand the good ones to the writer, acknowledge in order. Async.

An acknowledgement names the highest sequence such that everything the stream brought up to it is durable or refused.
When a durable write fails, acknowledgements stop where they are and the agent is asked to slow down; once writing
works again the stream is ended, because what is not acknowledged is sent again only after a reconnect.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from predictor.clock import Clock, Instant
from predictor.fleet import Fleet
from predictor.history import Batch
from predictor.metrics import Metrics
from predictor.samples import Limits, Sample, judge, judge_origin, read
from slacktide.observe import get_logger
from slacktide.v1 import usage_pb2

log = get_logger("predictor.ingest")

BUSY_RETRY_MILLIS: Final = 500
FAILED_RETRY_MILLIS: Final = 2000

_PENDING_MESSAGES: Final = 64
_BUSY_POLL_SECONDS: Final = 0.02
_DAY_MILLIS: Final = 86_400_000
_CLOSED_CHARACTERS: Final = 512
"""Of an agent's reason, which ends up in an annotation."""


class Resend(Exception):
    """The stream must be ended so that the agent sends again what never became durable."""


class BatchWriter(Protocol):
    """Makes batches durable."""

    def submit(self, batch: Batch, done: Callable[[bool], None], /) -> bool:
        """Queue a batch; False when there is no room."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class IngestRules:
    """Which times are believed."""

    max_skew_seconds: float
    retention_days: float


@dataclasses.dataclass(slots=True)
class _Pending:
    """A message under way: what may be acknowledged once `durable` says True."""

    boot_id: str
    highest: int
    refusals: list[usage_pb2.Refusal]
    durable: asyncio.Future[bool]
    received: float


class Ingest:
    """What all streams share."""

    def __init__(
        self, writer: BatchWriter, fleet: Fleet, rules: Callable[[], IngestRules], clock: Clock, metrics: Metrics
    ) -> None:
        self.writer = writer
        self.fleet = fleet
        self.rules = rules
        self.clock = clock
        self.metrics = metrics

    async def serve(self, requests: AsyncIterator[usage_pb2.ReportRequest]) -> AsyncIterator[usage_pb2.ReportResponse]:
        """Answers to one stream of requests. Raises Resend."""
        stream = _Stream(self)
        reader = asyncio.create_task(stream.read(requests))
        self.metrics.streams.inc()
        try:
            async for response in stream.answers():
                yield response
        finally:
            self.metrics.streams.dec()
            reader.cancel()


class _Stream:
    def __init__(self, shared: Ingest) -> None:
        self._shared = shared
        self._node: str | None = None
        self._pending: collections.deque[_Pending] = collections.deque()
        self._room = asyncio.Semaphore(_PENDING_MESSAGES)
        self._news = asyncio.Event()
        self._busy = False
        self._ended = False
        self._error: BaseException | None = None
        self._boot = ""
        self._durable = 0
        self._hole = False

    async def read(self, requests: AsyncIterator[usage_pb2.ReportRequest]) -> None:
        """Take requests until the agent ends; bounded room makes a fast agent wait."""
        try:
            async for request in requests:
                await self._room.acquire()
                pending = await self._take(request)
                self._pending.append(pending)
                pending.durable.add_done_callback(lambda _: self._news.set())
        except Exception as error:  # noqa: BLE001 - handed to the answering side, which ends the stream with it
            self._error = error
        self._ended = True
        self._news.set()

    async def answers(self) -> AsyncIterator[usage_pb2.ReportResponse]:
        """One response for each message, or for several that became durable together."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._busy:
                self._busy = False
                yield self._response([], BUSY_RETRY_MILLIS)
            for _, ready in itertools.groupby(self._ready(), key=lambda item: item.boot_id):
                yield self._answer(list(ready))
            if self._ended and not self._pending:
                if self._error is not None:
                    raise self._error
                return

    def _ready(self) -> list[_Pending]:
        ready: list[_Pending] = []
        while self._pending and self._pending[0].durable.done():
            ready.append(self._pending.popleft())
            self._room.release()
        return ready

    def _answer(self, items: list[_Pending]) -> usage_pb2.ReportResponse:
        retry: int | None = None
        refusals: list[usage_pb2.Refusal] = []
        for item in items:
            refusals += item.refusals
            if item.boot_id and item.boot_id != self._boot:
                self._boot, self._durable = item.boot_id, 0
            if not item.durable.result():
                self._hole = True
                retry = FAILED_RETRY_MILLIS
                continue
            if self._hole and item.highest:
                raise Resend
            self._durable = max(self._durable, item.highest)
            self._shared.metrics.ack_seconds.observe(self._shared.clock.now().monotonic - item.received)
        return self._response(refusals, retry)

    def _response(self, refusals: list[usage_pb2.Refusal], retry: int | None) -> usage_pb2.ReportResponse:
        return usage_pb2.ReportResponse(
            boot_id=self._boot, durable_sequence=self._durable, refusals=refusals, retry_after_millis=retry
        )

    async def _take(self, request: usage_pb2.ReportRequest) -> _Pending:
        now = self._shared.clock.now()
        if self._node is None:
            self._node = request.node
        origin = judge_origin(request.node, request.boot_id, self._node)
        if origin is not None:
            if self._node == request.node:
                # A stream that begins with a bad name is of nobody yet.
                self._node = None
            kind, words = origin
            self._shared.metrics.refused.labels(kind).inc(len(request.samples))
            log.warning("samples refused", node=request.node[:64], reason=words, count=len(request.samples))
            refusals = [usage_pb2.Refusal(sequence=s.sequence, reason=words) for s in request.samples]
            return _Pending("", 0, refusals, _settled(True), now.monotonic)
        good, refusals = self._judge(request, now)
        closed = {message.sequence: message.closed for message in request.samples if message.closed}
        for sample in good:
            reason = closed.get(sample.sequence, "")[:_CLOSED_CHARACTERS]
            self._shared.fleet.observe(request.node, sample, _measured(request, sample, now), reason)
        highest = max((s.sequence for s in request.samples), default=0)
        durable = await self._submit(Batch(request.node, request.boot_id, good)) if good else _settled(True)
        return _Pending(request.boot_id, highest, refusals, durable, now.monotonic)

    def _judge(self, request: usage_pb2.ReportRequest, now: Instant) -> tuple[list[Sample], list[usage_pb2.Refusal]]:
        rules = self._shared.rules()
        wall = int(now.wall * 1000)
        limits = Limits(
            latest_end_millis=wall + int(rules.max_skew_seconds * 1000),
            oldest_end_millis=wall - int(rules.retention_days * _DAY_MILLIS),
        )
        good: list[Sample] = []
        refusals: list[usage_pb2.Refusal] = []
        for message in request.samples:
            sample = read(message)
            verdict = judge(sample, limits)
            if verdict is None:
                good.append(sample)
                continue
            kind, words = verdict
            self._shared.metrics.refused.labels(kind).inc()
            refusals.append(usage_pb2.Refusal(sequence=sample.sequence, reason=words))
        if refusals:
            first = refusals[0]
            log.warning("samples refused", node=request.node, count=len(refusals), first=first.reason)
        return good, refusals

    async def _submit(self, batch: Batch) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[bool] = loop.create_future()

        def settle(value: bool) -> None:
            if not durable.done():
                durable.set_result(value)

        def done(value: bool) -> None:
            # The loop may be closed when the writer empties its queue at the very end; nobody waits then.
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value)

        told = False
        while not self._shared.writer.submit(batch, done):
            if not told:
                self._busy = told = True
                self._news.set()
            await asyncio.sleep(_BUSY_POLL_SECONDS)
        return durable


def _measured(request: usage_pb2.ReportRequest, sample: Sample, now: Instant) -> float:
    """Monotonic time at which the window ended.

    The age of a sample is taken from the node's clock alone (sent - end), so that neither skew nor a replay from the
    spool makes an old sample look new. A request without a sending time is dated by our own clock.
    """
    sent = request.sent_unix_millis if request.sent_unix_millis > 0 else int(now.wall * 1000)
    return now.monotonic - max(0, sent - sample.end_millis) / 1000


def _settled(value: bool) -> asyncio.Future[bool]:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
