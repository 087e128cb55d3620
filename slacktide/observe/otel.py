"""Spans by the SDK of OpenTelemetry, sent by OTLP over gRPC. Needs the extra slacktide[otel].

The SDK, its thread and its channel are made with the first span: by then an agent has started its helper processes.
Spans wait in a bounded queue and are sent in batches; while the collector is away they are dropped, which is said once.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from slacktide import __version__
from slacktide.errors import SettingsError
from slacktide.observe import traces
from slacktide.observe.logger import get_logger
from slacktide.settings import ObserveSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_LOG: Final = get_logger("observe.traces")
_EXPORT_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 3.0
_SCHEMES: Final = ("http://", "https://")


def start(component: str, settings: ObserveSettings) -> Callable[[], None]:
    """Make spans if `settings.traces` is set; gives what ends that. Raises SettingsError where it cannot be done."""
    if not settings.traces:
        return _nothing
    if not settings.traces.startswith(_SCHEMES) or settings.traces in _SCHEMES:
        raise SettingsError(
            [f"observe.traces = {settings.traces!r}: expected http://HOST:PORT or https://HOST:PORT of a collector"]
        )
    if any(importlib.util.find_spec(name) is None for name in ("opentelemetry", "grpc")):
        raise SettingsError(["observe.traces needs OpenTelemetry: install slacktide[otel], or leave it empty"])
    tracing = OtelTracing(lambda: _provider(component, settings))
    traces.use(tracing)

    def stop() -> None:
        traces.use(None)
        tracing.close()

    return stop


def _nothing() -> None:
    """There is nothing to end."""


class OtelTracing:
    """Spans of one provider, which is made when the first one is asked for."""

    def __init__(self, provider: Callable[[], TracerProvider]) -> None:
        self._make = provider
        self._lock = threading.Lock()
        self._provider: TracerProvider | None = None
        self._tracer: Any = None

    def span(
        self, name: str, attributes: dict[str, traces.Attribute], parent: Iterable[tuple[str, str | bytes]] | None
    ) -> AbstractContextManager[object]:
        """See `slacktide.observe.traces.Tracing`."""
        tracer = self._tracer or self._begin()
        context = None if parent is None else _context_of(parent)
        made: AbstractContextManager[object] = tracer.start_as_current_span(
            name, context=context, attributes=attributes
        )
        return made

    def note(self, attributes: dict[str, traces.Attribute]) -> None:
        """See `slacktide.observe.traces.Tracing`."""
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes(attributes)

    def carried(self) -> traces.Carried:
        """See `slacktide.observe.traces.Tracing`."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(found)
        return tuple(found.items())

    def close(self) -> None:
        """Send what waits, within a few seconds."""
        with self._lock:
            provider, self._provider, self._tracer = self._provider, None, None
        if provider is not None:
            # An exporter that waits for a collector must not hold up the end of a daemon.
            ending = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
            ending.start()
            ending.join(_STOP_SECONDS)

    def _begin(self) -> Any:
        with self._lock:
            if self._tracer is None:
                self._provider = self._make()
                self._tracer = self._provider.get_tracer("slacktide", __version__)
            return self._tracer


def _context_of(parent: Iterable[tuple[str, str | bytes]]) -> Any:
    """The context that a call carries; an empty one, so a new trace, where it carries none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    texts = {key: value for key, value in parent if isinstance(value, str)}
    return TraceContextTextMapPropagator().extract(texts, Context())


def _provider(component: str, settings: ObserveSettings) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider as Provider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    resource = Resource.create(
        {
            "service.name": f"slacktide-{component}",
            "service.version": __version__,
            "service.instance.id": platform.node(),
        }
    )
    made = Provider(
        sampler=ParentBased(TraceIdRatioBased(settings.traces_percent / 100.0)),
        resource=resource,
        shutdown_on_exit=False,
    )
    with _quiet():
        exporter = OTLPSpanExporter(
            endpoint=settings.traces, insecure=settings.traces.startswith("http://"), timeout=_EXPORT_SECONDS
        )
    made.add_span_processor(BatchSpanProcessor(told(exporter, settings.traces)))
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """The library writes a line for each batch that it cannot send; ours says it once."""
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    yield


def told(exporter: SpanExporter, where: str) -> SpanExporter:
    """`exporter`, which says in our log when spans begin to be lost, and when no more."""
    from opentelemetry.sdk.trace.export import SpanExporter as Exporter
    from opentelemetry.sdk.trace.export import SpanExportResult as Result

    class Told(Exporter):
        lost = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = exporter.export(spans)
            if (result is not Result.SUCCESS) != self.lost:
                self.lost = not self.lost
                if self.lost:
                    _LOG.warning("spans are not taken by the collector, and lost", collector=where)
                else:
                    _LOG.info("spans are taken by the collector again", collector=where)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Told()
