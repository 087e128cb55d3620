"""Trace context over gRPC: calls carry the span that they are made in, and servers go on below it.

Nothing is put between where no spans are made: `traced_channel` gives the channel back, the interceptors are none.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import grpc
import grpc.aio

from slacktide.observe import traces


def traced_channel(channel: grpc.Channel) -> grpc.Channel:
    """A channel whose calls carry the current span."""
    return grpc.intercept_channel(channel, _Client()) if traces.on() else channel


def server_interceptors() -> list[grpc.ServerInterceptor]:
    """For a server with threads: each call is a span, below the one that it carries."""
    return [_Server()] if traces.on() else []


def aio_interceptors() -> list[grpc.aio.ServerInterceptor]:
    """The same for a server on a loop."""
    return [_AioServer()] if traces.on() else []


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _CallDetails(_Details, grpc.ClientCallDetails):
    """What gRPC asks of the details of a call."""


def _carrying(details: Any) -> Any:
    return _CallDetails(
        details.method,
        details.timeout,
        (*(details.metadata or ()), *traces.carried()),
        details.credentials,
        getattr(details, "wait_for_ready", None),
        getattr(details, "compression", None),
    )


class _Client(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        with traces.span(client_call_details.method):
            return continuation(_carrying(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(_carrying(client_call_details), request)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(_carrying(client_call_details), request_iterator)


class _Server(grpc.ServerInterceptor):
    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        inner = handler.unary_stream if handler.response_streaming else handler.unary_unary
        parent, method = handler_call_details.invocation_metadata, handler_call_details.method

        def answer(request: Any, context: Any) -> Any:
            with traces.span(method, parent):
                return inner(request, context)

        def answers(request: Any, context: Any) -> Iterator[Any]:
            with traces.span(method, parent):
                yield from inner(request, context)

        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(
            answers if handler.response_streaming else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class _AioServer(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        kind = _kind(handler)
        inner = getattr(handler, kind)
        parent, method = handler_call_details.invocation_metadata, handler_call_details.method

        async def answer(request: Any, context: Any) -> Any:
            with traces.span(method, parent):
                return await inner(request, context)

        async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
            with traces.span(method, parent):
                async for one in inner(request, context):
                    yield one

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            answers if inspect.isasyncgenfunction(inner) else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _kind(handler: Any) -> str:
    """The field of a handler that holds what answers."""
    return f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
