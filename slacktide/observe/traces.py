"""Spans of the work that takes time: asked for everywhere, made only where `observe.traces` names a collector.

Off, which is the default, `span` gives one shared object that does nothing, and `traced` calls the function: nothing of
OpenTelemetry is imported. Who makes spans is said once, by `use`; that is `slacktide.observe.otel`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Attribute = str | int | float | bool
Carried = tuple[tuple[str, str], ...]
"""What a call carries of the span that it is made in: gRPC metadata, W3C trace context. Empty: nothing."""


class Tracing(Protocol):
    """What makes spans."""

    def span(
        self, name: str, attributes: dict[str, Attribute], parent: Iterable[tuple[str, str | bytes]] | None
    ) -> AbstractContextManager[object]:
        """A span that is the current one of this thread or task until left; below `parent`, or the current one."""
        ...

    def note(self, attributes: dict[str, Attribute]) -> None:
        """Add to the current span."""
        ...

    def carried(self) -> Carried:
        """The current span as a call carries it."""
        ...


class _Off:
    """A span that is not made."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_OFF: Final = _Off()
_tracing: Tracing | None = None


def use(tracing: Tracing | None) -> None:
    """Make spans with `tracing` from now on; None makes none."""
    global _tracing
    _tracing = tracing


def on() -> bool:
    """Whether spans are made."""
    return _tracing is not None


def span(
    name: str, parent: Iterable[tuple[str, str | bytes]] | None = None, **attributes: Attribute
) -> AbstractContextManager[object]:
    """A span around a `with` block; an error that leaves the block is noted in it.

    `parent` is the metadata of a call, or what `carried` gave elsewhere; None is the current span of this thread.
    """
    return _OFF if _tracing is None else _tracing.span(name, attributes, parent)


def traced(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose calls are spans."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _tracing is None:
                return function(*args, **kwargs)
            with _tracing.span(name, {}, None):
                return function(*args, **kwargs)

        return call

    return decorate


def note(**attributes: Attribute) -> None:
    """Add to the current span, where there is one."""
    if _tracing is not None:
        _tracing.note(attributes)


def carried() -> Carried:
    """The current span as metadata of a call, or to be the `parent` of a span on another thread."""
    return () if _tracing is None else _tracing.carried()
