"""The usage stream of one agent: judge each sample, hand the good ones to the writer, acknowledge in order. Async.

An acknowledgement names the highest sequence such that everything the stream brought up to it is durable or refused.
When a durable write fails, acknowledgements stop where they are and the agent is asked to slow down; once writing
works again the stream is ended, because what is not acknowledged is sent again only after a reconnect.

A node that sends more than its share is slowed down, never cut off: its messages are taken one by one, and it is told
how long to wait. A clock that is off by seconds is corrected, so that use lands in the slot in which it happened.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import threading
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from predictor.clock import Clock, Instant
from predictor.fleet import Fleet
from predictor.history import Batch
from predictor.ingest_settings import IngestSettings
from predictor.metrics import Metrics
from predictor.pods import PodUse
from predictor.reporters import Bucket, ClockSkew, Twins
from predictor.samples import Limits, Sample, judge, judge_origin, judge_pods, read, read_pods, read_zones
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

_MOST_REPORTERS: Final = 100_000
"""Nodes whose clock and share are remembered; the one that spoke first goes first."""

_TOLD_SKEW_MILLIS: Final = 500

_LIVE_MILLIS: Final = 60_000
"""A sample that is older says nothing of who runs now."""

Read = Callable[[], Awaitable[usage_pb2.ReportRequest | None]]
Write = Callable[[usage_pb2.ReportResponse], Awaitable[None]]


class Resend(Exception):
    """The stream must be ended so that the agent sends again what never became durable."""


class BatchWriter(Protocol):
    """Makes batches durable."""

    def submit(self, batch: Batch, done: Callable[[bool], None], /) -> bool:
        """Queue a batch; False when there is no room."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class IngestRules:
    """Which times are believed, and how much a node may send."""

    max_skew_seconds: float
    retention_days: float
    share: IngestSettings = dataclasses.field(default_factory=IngestSettings)


@dataclasses.dataclass(slots=True)
class _Pending:
    """A message under way: what may be acknowledged once `durable` is True; None while it is not known."""

    boot_id: str
    highest: int
    refusals: list[usage_pb2.Refusal]
    received: float
    durable: bool | None


@dataclasses.dataclass(slots=True)
class _Reporter:
    """A node, however many streams it has: one that is half dead may overlap with its successor."""

    bucket: Bucket
    skew: ClockSkew = dataclasses.field(default_factory=ClockSkew)
    told_millis: int | None = None
    twins: Twins = dataclasses.field(default_factory=Twins)


class _Settled:
    """Brings what the writer's thread has settled to the loop: one wake-up for all messages of a commit."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._items: list[tuple[_Pending, bool, asyncio.Event]] = []

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, pending: _Pending, durable: bool, news: asyncio.Event) -> None:
        with self._lock:
            self._items.append((pending, durable, news))
            first = len(self._items) == 1
        # The loop may be closed when the writer empties its queue at the very end; nobody waits then.
        if first and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        for pending, durable, news in items:
            pending.durable = durable
            news.set()


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
        self.settled = _Settled()
        self._reporters: dict[str, _Reporter] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._draining = False

    async def serve(self, read: Read, write: Write) -> None:
        """One stream until its agent ends it (`read` gives None), or until `drain`. Raises Resend."""
        if self._draining:
            return
        self.settled.use(asyncio.get_running_loop())
        stream = _Stream(self, write)
        self.metrics.streams.inc()
        reader = asyncio.create_task(stream.read(read))
        # Also of a reader that was cancelled before its first step.
        reader.add_done_callback(stream.no_more)
        self._readers.add(reader)
        try:
            await stream.answer()
        finally:
            self.metrics.streams.dec()
            reader.cancel()
            self._readers.discard(reader)

    def drain(self) -> None:
        """Read nothing more from any stream; what was read is acknowledged once it is durable, then each ends."""
        self._draining = True
        for reader in self._readers:
            reader.cancel()

    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    def reporter(self, node: str, now: Instant) -> _Reporter:
        """What is known of a node that reports."""
        found = self._reporters.get(node)
        if found is None:
            found = self._reporters[node] = _Reporter(Bucket(self.rules().share.node_burst_samples, now.monotonic))
            while len(self._reporters) > _MOST_REPORTERS:
                del self._reporters[next(iter(self._reporters))]
        return found


class _Stream:
    def __init__(self, shared: Ingest, write: Write) -> None:
        self._shared = shared
        self._write = write
        self._node: str | None = None
        self._pending: collections.deque[_Pending] = collections.deque()
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self._retry_millis = 0
        self._ended = False
        self._error: BaseException | None = None
        self._boot = ""
        self._durable = 0
        self._hole = False
        self._pods: list[PodUse] = []

    async def read(self, read: Read) -> None:
        """Take requests until the agent ends; bounded room makes a fast agent wait."""
        try:
            while (request := await read()) is not None:
                while len(self._pending) >= _PENDING_MESSAGES:
                    self._room.clear()
                    await self._room.wait()
                batch, pending = self._take(request)
                self._pending.append(pending)
                if batch is None:
                    self._news.set()
                elif not self._submit(batch, pending):
                    await self._submit_when_there_is_room(batch, pending)
                await self._slow_down(len(request.samples))
        except asyncio.CancelledError:
            # The server drains: what was read before is still answered. A stream that is over has nobody to answer.
            pass
        except Exception as error:  # noqa: BLE001 - handed to the answering side, which ends the stream with it
            self._error = error

    def no_more(self, _: object) -> None:
        """Nothing is read any more: the stream ends once what was read is answered."""
        self._ended = True
        self._news.set()

    async def answer(self) -> None:
        """Send one response for each message, or for several that became durable together."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._retry_millis:
                retry, self._retry_millis = self._retry_millis, 0
                await self._write(self._response([], retry))
            while ready := self._ready():
                await self._write(self._answer(ready))
            if self._ended and not self._pending:
                if self._error is not None:
                    raise self._error
                return

    def _ready(self) -> list[_Pending]:
        """Messages of one boot that are settled, in order."""
        ready: list[_Pending] = []
        while self._pending and self._pending[0].durable is not None:
            if ready and ready[0].boot_id != self._pending[0].boot_id:
                break
            ready.append(self._pending.popleft())
        self._room.set()
        return ready

    def _answer(self, items: list[_Pending]) -> usage_pb2.ReportResponse:
        retry: int | None = None
        refusals: list[usage_pb2.Refusal] = []
        now = self._shared.clock.now().monotonic
        for item in items:
            refusals += item.refusals
            if item.boot_id and item.boot_id != self._boot:
                self._boot, self._durable = item.boot_id, 0
            if not item.durable:
                self._hole = True
                retry = FAILED_RETRY_MILLIS
                continue
            if self._hole and item.highest:
                raise Resend
            self._durable = max(self._durable, item.highest)
            self._shared.metrics.ack_seconds.observe(now - item.received)
        return self._response(refusals, retry)

    def _response(self, refusals: list[usage_pb2.Refusal], retry: int | None) -> usage_pb2.ReportResponse:
        return usage_pb2.ReportResponse(
            boot_id=self._boot, durable_sequence=self._durable, refusals=refusals, retry_after_millis=retry
        )

    def _take(self, request: usage_pb2.ReportRequest) -> tuple[Batch | None, _Pending]:
        """Judge a message and show what is good of it to the fleet; a batch when something must become durable."""
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
            return None, _Pending("", 0, refusals, now.monotonic, True)
        correction = self._skew(request, now)
        good, refusals, highest = self._judge(request, correction, now)
        self._look_for_twins(request, good, now)
        pending = _Pending(request.boot_id, highest, refusals, now.monotonic, None if good else True)
        return Batch(self._node, request.boot_id, good) if good else None, pending

    def _look_for_twins(self, request: usage_pb2.ReportRequest, good: list[Sample], now: Instant) -> None:
        # What an earlier boot left in the spool comes late, and is no sign of life.
        if not good or now.wall * 1000 - good[-1].end_millis > _LIVE_MILLIS:
            return
        twins = self._shared.reporter(request.node, now).twins
        if twins.found(request.boot_id, now.monotonic):
            words = "two machines report as one node: what the busier leaves is sold"
            log.warning(words, node=request.node, boots=sorted(twins.boots))

    def _skew(self, request: usage_pb2.ReportRequest, now: Instant) -> int:
        """What to take off the times of this message, in milliseconds."""
        reporter = self._shared.reporter(request.node, now)
        # A message that waited behind others tells how long it waited, not what time it is at the node.
        if request.sent_unix_millis > 0 and not self._pending:
            reporter.skew.measure(request.sent_unix_millis - int(now.wall * 1000))
            estimate = reporter.skew.millis
            if reporter.told_millis is None or abs(estimate - reporter.told_millis) >= _TOLD_SKEW_MILLIS:
                reporter.told_millis = estimate
                self._shared.metrics.nodes.tell_skew(request.node, estimate / 1000)
        return reporter.skew.correction_millis

    def _judge(
        self, request: usage_pb2.ReportRequest, correction: int, now: Instant
    ) -> tuple[list[Sample], list[usage_pb2.Refusal], int]:
        rules = self._shared.rules()
        wall = int(now.wall * 1000)
        sent = (request.sent_unix_millis or wall + correction) - correction
        limits = Limits(
            latest_end_millis=wall + int(rules.max_skew_seconds * 1000),
            oldest_end_millis=wall - int(rules.retention_days * _DAY_MILLIS),
        )
        if correction < 0 and request.samples:
            # A clock that was taken to be behind, and is not: nothing is moved to where nobody has been yet.
            newest = max(message.end_unix_millis for message in request.samples)
            correction = max(correction, min(0, newest - wall))
        good: list[Sample] = []
        refusals: list[usage_pb2.Refusal] = []
        highest = 0
        for message in request.samples:
            sample, pods = read(message), read_pods(message, self._pods)
            highest = max(highest, sample.sequence)
            if correction:
                sample = sample._replace(end_millis=sample.end_millis - correction)
            verdict = judge(sample, limits) or judge_pods(pods, sample)
            if verdict is None:
                self._pods = pods
                good.append(sample)
                self._observe(request.node, sample, pods, message, now.monotonic - _age(sent, sample))
                continue
            kind, words = verdict
            self._shared.metrics.refused.labels(kind).inc()
            refusals.append(usage_pb2.Refusal(sequence=sample.sequence, reason=words))
        if refusals:
            log.warning("samples refused", node=request.node, count=len(refusals), first=refusals[0].reason)
        return good, refusals, highest

    def _observe(
        self, node: str, sample: Sample, pods: list[PodUse], message: usage_pb2.Sample, measured: float
    ) -> None:
        closed = message.closed[:_CLOSED_CHARACTERS]
        self._shared.fleet.observe(node, sample, measured, closed, pods, read_zones(message))

    def _submit(self, batch: Batch, pending: _Pending) -> bool:
        settled, news = self._shared.settled, self._news
        return self._shared.writer.submit(batch, lambda durable: settled.put(pending, durable, news))

    async def _submit_when_there_is_room(self, batch: Batch, pending: _Pending) -> None:
        self._ask_to_wait(BUSY_RETRY_MILLIS)
        try:
            while True:
                await asyncio.sleep(_BUSY_POLL_SECONDS)
                if self._submit(batch, pending):
                    return
        except asyncio.CancelledError:
            # It never reached the writer: the agent will send it again.
            pending.durable = False
            raise

    async def _slow_down(self, count: int) -> None:
        if self._node is None:
            return
        now = self._shared.clock.now()
        share = self._shared.rules().share
        bucket = self._shared.reporter(self._node, now).bucket
        wait = bucket.take(count, share.node_samples_per_second, share.node_burst_samples, now.monotonic)
        if wait > 0:
            self._ask_to_wait(max(1, round(wait * 1000)))
            await asyncio.sleep(wait)

    def _ask_to_wait(self, millis: int) -> None:
        self._retry_millis = max(self._retry_millis, millis)
        self._news.set()


def _age(sent_millis: int, sample: Sample) -> float:
    """How old the window is, in seconds.

    It is taken from the node's clock alone (sent - end), so that neither skew nor a replay from the spool makes an
    old sample look new. A request without a sending time is dated by our own clock.
    """
    return max(0, sent_millis - sample.end_millis) / 1000
