"""Structured logs on standard error, one pipeline for structlog and for the standard library's loggers.

Each line has `time` (RFC 3339, UTC), `level`, `component`, `logger`, `event` and the given fields. Warnings and worse
are counted as `slacktide_log_events_total{component,level}`, lines that a daemon could not write as
`slacktide_log_dropped_total{component}`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO
from weakref import WeakKeyDictionary

import structlog
from prometheus_client import CollectorRegistry, Counter

from slacktide.observe.queued import QueuedHandler
from slacktide.settings import ObserveSettings

_COUNTED: Final = ("warning", "error", "critical")
_QUIET: Final = {"kubernetes": logging.WARNING, "urllib3": logging.INFO, "asyncio": logging.INFO, "grpc": logging.INFO}
"""Libraries that at debug level write requests, and with them tokens, or a line for each event of a loop."""

_counters: WeakKeyDictionary[CollectorRegistry, Counter] = WeakKeyDictionary()
_dropped_counters: WeakKeyDictionary[CollectorRegistry, Counter] = WeakKeyDictionary()

_SHARED: Final[list[structlog.typing.Processor]] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
]

structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        *_SHARED,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=False,
)


def bound_logger(name: str) -> structlog.stdlib.BoundLogger:
    """structlog's logger of that name, for `slacktide.observe.get_logger`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def setup_logging(
    component: str,
    settings: ObserveSettings,
    registry: CollectorRegistry | None = None,
    stream: TextIO | None = None,
    *,
    queued: bool = False,
) -> None:
    """Route all logs of this process to `stream` (standard error) in the set format; call again to change it.

    With a `registry`, warnings and worse are counted there. `queued`: nobody who logs waits for the stream.
    """
    target = sys.stderr if stream is None else stream
    handler: logging.Handler
    if queued:
        dropped = _dropped(registry).labels(component) if registry is not None else None
        handler = QueuedHandler(target, dropped.inc if dropped is not None else lambda: None)
    else:
        handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(component, settings, target))
    if registry is not None:
        handler.addFilter(_Counting(component, _counter(registry)))
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
            old.close()
    root.addHandler(handler)
    level = logging.getLevelName(settings.log_level.upper())
    root.setLevel(level)
    for name, lowest in _QUIET.items():
        logging.getLogger(name).setLevel(max(level, lowest))
    logging.captureWarnings(capture=True)


class _Counting(logging.Filter):
    """Counts what passes and lets all of it pass."""

    def __init__(self, component: str, counter: Counter) -> None:
        super().__init__()
        self._component = component
        self._counter = counter
        for level in _COUNTED:
            counter.labels(component, level)

    def filter(self, record: logging.LogRecord) -> bool:
        """Count `record` when it is a warning or worse."""
        if record.levelno >= logging.WARNING:
            level = record.levelname.lower()
            self._counter.labels(self._component, level if level in _COUNTED else "error").inc()
        return True


def flush_logs() -> None:
    """Wait, for a second at most, until what was logged is written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def _dropped(registry: CollectorRegistry) -> Counter:
    if registry not in _dropped_counters:
        _dropped_counters[registry] = Counter(
            "slacktide_log_dropped", "Log lines that could not be written in time.", ["component"], registry=registry
        )
    return _dropped_counters[registry]


def _counter(registry: CollectorRegistry) -> Counter:
    if registry not in _counters:
        _counters[registry] = Counter(
            "slacktide_log_events",
            "Logged events of level warning and worse.",
            ["component", "level"],
            registry=registry,
        )
    return _counters[registry]


def _formatter(component: str, settings: ObserveSettings, stream: TextIO) -> structlog.stdlib.ProcessorFormatter:
    def add_component(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["component"] = component
        return event

    final: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        add_component,
    ]
    if settings.log_format == "json":
        final += [structlog.processors.format_exc_info, _ordered, structlog.processors.JSONRenderer()]
    else:
        final.append(
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, timestamp_key="time"
            )
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_SHARED, structlog.stdlib.ExtraAdder()], processors=final
    )


def _ordered(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """What people look for first stands first."""
    first = {key: event[key] for key in ("time", "level", "component", "logger", "event") if key in event}
    return {**first, **event}
