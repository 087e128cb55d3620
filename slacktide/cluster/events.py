"""Tells people what happened to an object, as Kubernetes events, without ever holding up the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from slacktide.cluster.correlate import Correlator, Limits, Occurrence, Write, cut_message
from slacktide.cluster.errors import AlreadyExists, ClusterError, NotFound, ServerError, TooManyRequests, Unreachable
from slacktide.cluster.kinds import EVENTS, HasMetadata, Kind
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.cluster.retry import Backoff
from slacktide.objects import Event, EventSource, ObjectMeta, ObjectReference, View
from slacktide.observe import get_logger

_LOG: Final = get_logger("cluster.events")
_ATTEMPTS: Final = 4
_NAME_LIMIT: Final = 253


class Involved(HasMetadata, Protocol):
    """An object that an event can be about: any whole view."""

    @property
    def api_version(self) -> str:
        """Group and version of the object."""
        ...  # a protocol member has no body

    @property
    def kind(self) -> str:
        """Kind of the object."""
        ...  # a protocol member has no body


class EventWriter(Protocol):
    """The two calls of the client that a recorder needs."""

    def create(self, kind: Kind[Event], body: dict[str, Any] | View, namespace: str | None = None) -> Event:
        """Create an event."""
        ...  # a protocol member has no body

    def patch(self, kind: Kind[Event], name: str, namespace: str | None, body: dict[str, Any]) -> Event:
        """Change named fields of an event."""
        ...  # a protocol member has no body


class EventRecorder:
    """Records events from any thread; one thread of its own sends them.

    Repeats (same object, type, reason, message, component) raise `count` of the event that is already there. When
    `queue_size` events wait, new ones are dropped and counted. An API server that is away costs four attempts an
    event. The thread starts with the first event.
    """

    def __init__(
        self,
        client: EventWriter,
        component: str,
        host: str,
        *,
        queue_size: int = 1000,
        limits: Limits | None = None,
        metrics: ClusterMetrics | None = None,
        retry_base_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._source = EventSource(component=component, host=host)
        self._queue_size = queue_size
        self._correlator = Correlator(limits)
        self._metrics = metrics if metrics is not None else ClusterMetrics()
        self._retry_base_seconds = retry_base_seconds
        self._clock = clock
        self._wall = wall
        self._queue: deque[Occurrence] = deque()
        self._wakeup = threading.Condition()
        self._stopping = threading.Event()
        self._flush_until = float("inf")
        self._thread: threading.Thread | None = None

    def record(self, involved: Involved, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue an event about an object; returns at once. `reason` is one CamelCase word."""
        occurrence = Occurrence(
            involved=reference_to(involved),
            source=self._source,
            type=type_,
            reason=reason,
            message=cut_message(message),
            at=self._wall().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        with self._wakeup:
            if self._stopping.is_set() or len(self._queue) >= self._queue_size:
                self._metrics.events.labels("dropped").inc()
                return
            self._queue.append(occurrence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()
            self._wakeup.notify()

    def stop(self, flush_seconds: float = 2.0) -> None:
        """Send what waits, for at most `flush_seconds`, and end; what is left is dropped and counted."""
        with self._wakeup:
            self._flush_until = self._clock() + flush_seconds
            self._stopping.set()
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join(flush_seconds + 1.0)

    def _run(self) -> None:
        while (occurrence := self._next()) is not None:
            try:
                self._handle(occurrence)
            except Exception:  # noqa: BLE001 - the one broad handler around a task
                _LOG.exception("event lost", reason=occurrence.reason)
                self._metrics.events.labels("failed").inc()

    def _next(self) -> Occurrence | None:
        with self._wakeup:
            while not self._queue and not self._stopping.is_set():
                self._wakeup.wait()
            if self._queue and self._clock() < self._flush_until:
                return self._queue.popleft()
            self._metrics.events.labels("dropped").inc(len(self._queue))
            self._queue.clear()
            return None

    def _handle(self, occurrence: Occurrence) -> None:
        write = self._correlator.plan(occurrence, self._clock())
        result = "limited" if write is None else self._send(write)
        self._metrics.events.labels(result).inc()

    def _send(self, write: Write) -> str:
        backoff = Backoff(self._retry_base_seconds, 10.0)
        name = write.name
        new_name = _event_name(write.occurrence.involved.name, self._wall())
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if name is not None:
                    self._raise_count(write, name)
                    return "patched"
                self._client.create(EVENTS, event_body(write, new_name), _namespace(write.occurrence))
            except AlreadyExists:
                # An earlier attempt arrived although its answer did not.
                pass
            except NotFound as error:
                # The server forgets events after an hour. A create that finds nothing means no namespace.
                if name is None:
                    return self._given_up(write, error)
                name = None
                self._correlator.written(write.key, None)
                continue
            except (Unreachable, TooManyRequests, ServerError) as error:
                if attempt == _ATTEMPTS or self._clock() >= self._flush_until:
                    return self._given_up(write, error)
                self._stopping.wait(backoff.next())
                continue
            except ClusterError as error:
                return self._given_up(write, error)
            self._correlator.written(write.key, new_name)
            return "created"
        return "failed"

    def _raise_count(self, write: Write, name: str) -> None:
        occurrence = write.occurrence
        body = {"count": write.count, "lastTimestamp": occurrence.at, "message": cut_message(occurrence.message)}
        self._client.patch(EVENTS, name, _namespace(occurrence), body)

    def _given_up(self, write: Write, error: ClusterError) -> str:
        _LOG.info("event not sent", reason=write.occurrence.reason, detail=str(error))
        return "failed"


def reference_to(involved: Involved) -> ObjectReference:
    """How an event names the object that it is about."""
    metadata = involved.metadata
    return ObjectReference(
        api_version=involved.api_version,
        kind=involved.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )


def event_body(write: Write, name: str) -> Event:
    """The event to create."""
    occurrence = write.occurrence
    return Event(
        metadata=ObjectMeta(name=name, namespace=_namespace(occurrence)),
        involved_object=occurrence.involved,
        type=occurrence.type,
        reason=occurrence.reason,
        message=cut_message(occurrence.message),
        source=occurrence.source,
        count=write.count,
        first_timestamp=write.first_at,
        last_timestamp=occurrence.at,
        reporting_component=occurrence.source.component,
        reporting_instance=occurrence.source.host,
    )


def _namespace(occurrence: Occurrence) -> str:
    """Events of cluster-wide objects live in `default`."""
    return occurrence.involved.namespace or "default"


def _event_name(involved_name: str, at: datetime) -> str:
    """Unique by time, as other recorders name theirs; within the length of a DNS subdomain."""
    suffix = f".{int(at.timestamp() * 1_000_000):x}{time.monotonic_ns() % 0x10000:04x}"
    return involved_name[: _NAME_LIMIT - len(suffix)].rstrip(".-") + suffix
