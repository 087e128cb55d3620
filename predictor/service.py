"""The gRPC server: UsageService (ingest), ForecastService (what is on the board), health and reflection, on one loop.

The loop runs in a thread of its own; the rest of the daemon is plain threads and talks to it through the writer's
queue, the fleet and the board.

It ends in order: health says NOT_SERVING, nothing new is taken, what was read is made durable and acknowledged, the
streams end, and the agents connect again to whoever serves then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from predictor.auth import Gate, Pass, Refusal
from predictor.board import Board, Entry
from predictor.ingest import Ingest, Resend
from slacktide.errors import SettingsError
from slacktide.forecast import Amount, Origin, Zone
from slacktide.sockets import parse_listen, private_files, remove_socket, remove_stale_socket
from slacktide.transport import CertificateFiles, check_plaintext, server_credentials
from slacktide.transport.server import AGE_OPTIONS
from slacktide.transport.traced import aio_interceptors
from slacktide.v1 import forecast_pb2, forecast_pb2_grpc, usage_pb2, usage_pb2_grpc

_SETTING: Final = "listen"
_START_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 2.0
_HEALTH_SECONDS: Final = 1.0
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICES: Final = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in ((usage_pb2, "UsageService"), (forecast_pb2, "ForecastService"))
)

OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.max_send_message_length", 4 * 1024 * 1024),
    ("grpc.max_metadata_size", 16 * 1024),
    # Agents ping through idle spells so that a dead peer is noticed; they may, but not faster than this.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # After a restart all agents come at once, and each is let in by a turn of the loop. By default gRPC refuses calls
    # at random when a thousand wait, or one for 30 s; who is refused comes again and makes the queue no shorter.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
    ("grpc.server_max_unrequested_time_in_server", 300),
    # Two predictors on one port would each see half of the fleet.
    ("grpc.so_reuseport", 0),
)


class UsageService(usage_pb2_grpc.UsageServiceServicer):
    """Takes usage from the agents."""

    def __init__(self, ingest: Ingest, gate: Gate | None = None) -> None:
        self._ingest = ingest
        self._gate = gate

    # gRPC takes a coroutine that writes to the context as well as a generator; the stubs know generators only.
    async def Report(  # type: ignore[override]  # noqa: N802 - named by the .proto
        self,
        request_iterator: AsyncIterator[usage_pb2.ReportRequest],  # noqa: ARG002 - gRPC passes it; the context is faster
        context: Any,
    ) -> None:
        """One stream; see `predictor.ingest`, and `predictor.auth` for whose reports are taken."""
        admitted = Pass()

        async def read() -> usage_pb2.ReportRequest | None:
            request = await context.read()
            if request is grpc.aio.EOF:
                return None
            if time.monotonic() >= admitted.look_at:
                await admitted.look()
            admitted.judge(request.node)
            return cast("usage_pb2.ReportRequest", request)

        try:
            if self._gate is not None:
                admitted = await self._gate.reporter(context)
            await self._ingest.serve(read, context.write)
        except Refusal as refusal:
            await _refuse(self._gate, refusal, context)
        except Resend:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "history can be written again: reconnect and send what was not acknowledged",
            )


class ForecastService(forecast_pb2_grpc.ForecastServiceServicer):
    """Tells what is on the board."""

    def __init__(self, board: Board, gate: Gate | None = None) -> None:
        self._board = board
        self._gate = gate

    async def _admit(self, context: Any, verb: str, node: str) -> Pass:
        """Let a reader in; ends the call for one that has no right."""
        if self._gate is None:
            return Pass()
        try:
            return await self._gate.reader(context, verb, node)
        except Refusal as refusal:
            await _refuse(self._gate, refusal, context)
            raise AssertionError("abort raises") from None

    async def GetForecast(  # noqa: N802 - named by the .proto
        self, request: forecast_pb2.GetForecastRequest, context: Any
    ) -> forecast_pb2.GetForecastResponse:
        """The newest forecast of one node."""
        await self._admit(context, "get", request.node)
        entry = self._board.get(request.node)
        if entry is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no forecast of node {request.node!r}")
            raise AssertionError("abort raises")
        return forecast_pb2.GetForecastResponse(forecast=to_wire(entry))

    async def WatchForecasts(  # noqa: N802 - named by the .proto
        self,
        request: forecast_pb2.WatchForecastsRequest,
        context: Any,
    ) -> AsyncIterator[forecast_pb2.WatchForecastsResponse]:
        """What stands, then every change; a reader that is slow gets the newest of each node."""
        admitted = await self._admit(context, "watch", request.nodes[0] if len(request.nodes) == 1 else "")
        loop = asyncio.get_running_loop()
        wanted = frozenset(request.nodes)
        pending: dict[str, tuple[Entry, bool]] = {}
        news = asyncio.Event()
        sent: dict[str, Entry] = {}

        def note(entries: Sequence[Entry], removed: bool) -> None:
            for entry in entries:
                if not wanted or entry.node in wanted:
                    pending[entry.node] = (entry, removed)
            if pending:
                news.set()

        def listen(entries: Sequence[Entry], removed: bool) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(note, entries, removed)

        note(self._board.subscribe(listen), False)
        try:
            while True:
                await news.wait()
                news.clear()
                if time.monotonic() >= admitted.look_at:
                    await admitted.look()
                batch = list(pending.values())
                pending.clear()
                for entry, removed in batch:
                    if removed or _differs(entry, sent.get(entry.node)):
                        sent[entry.node] = entry
                        yield forecast_pb2.WatchForecastsResponse(forecast=to_wire(entry), removed=removed)
        except Refusal as refusal:
            await _refuse(self._gate, refusal, context)
        finally:
            self._board.unsubscribe(listen)


async def _refuse(gate: Gate | None, refusal: Refusal, context: Any) -> None:
    """Tell whoever runs us, and end the call."""
    if gate is not None:
        gate.tell(refusal, context.peer())
    await context.abort(refusal.code, refusal.words)


class RpcServer:
    """The server in its thread. `not_ready` is what readiness says: what is wrong, by name; health goes by it.

    `tls` are the files of a TCP port, and `gate` lets its callers in. Without them TCP is served on loopback, and only
    when it may be `insecure`; a Unix socket needs neither. Raises SettingsError.
    """

    def __init__(
        self,
        listen: str,
        ingest: Ingest,
        board: Board,
        not_ready: Callable[[], Mapping[str, str]] = dict,
        *,
        tls: CertificateFiles | None = None,
        gate: Gate | None = None,
        insecure: bool = False,
    ) -> None:
        self._listen = parse_listen(listen, _SETTING)
        self._credentials = self._tls_of(tls, gate, insecure=insecure)
        self._text = listen
        self._ingest = ingest
        self._not_ready = not_ready
        self._health = health.aio.HealthServicer()
        self._usage = UsageService(ingest, gate)
        self._forecasts = ForecastService(board, gate)
        self._ready = threading.Event()
        self._failed: str | None = None
        self._bound = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)
        self.port = 0
        """Port that was bound; 0 for a socket file."""

    def _tls_of(self, tls: CertificateFiles | None, gate: Gate | None, *, insecure: bool) -> Any:
        """Credentials of the port; None for plaintext."""
        if tls is None or self._listen.path:
            check_plaintext(self._listen, insecure=insecure, setting=_SETTING)
            return None
        if gate is None:
            raise ValueError("a TLS port needs a gate: without it any caller could report for any node")
        return server_credentials(tls)

    def start(self) -> None:
        """Listen. Raises SettingsError when the address cannot be had."""
        if self._listen.path:
            remove_stale_socket(self._listen.path, _SETTING)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise SettingsError([f"{_SETTING}: gRPC did not start at {self._text} within {_START_SECONDS:g} s"])
        if self._failed is not None:
            raise SettingsError([f"{_SETTING}: cannot listen at {self._text}: {self._failed}"])

    def stop(self, timeout_seconds: float) -> None:
        """Refuse new calls, give those that run a moment, end."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        if self._bound:
            remove_socket(self._listen.path)

    def problem(self) -> str | None:
        """What is wrong with the server; None when it serves."""
        if self._failed is not None:
            return self._failed
        return None if self._thread.is_alive() else "the gRPC server has ended"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - the thread's one broad handler; readiness tells
            self._failed = f"{type(error).__name__}: {error}"
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        options = OPTIONS if self._credentials is None else (*OPTIONS, *AGE_OPTIONS)
        server = grpc.aio.server(options=options, interceptors=aio_interceptors())
        usage_pb2_grpc.add_UsageServiceServicer_to_server(self._usage, server)
        forecast_pb2_grpc.add_ForecastServiceServicer_to_server(self._forecasts, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        await self._tell_health()
        self._bind(server)
        await server.start()
        self._ready.set()
        while not self._stop.is_set():
            await self._tell_health()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _HEALTH_SECONDS)
        await self._health.enter_graceful_shutdown()
        self._ingest.drain()
        await server.stop(_GRACE_SECONDS)

    async def _tell_health(self) -> None:
        serving = _NOT_SERVING if self._not_ready() else _SERVING
        for name in ("", *_SERVICES):
            await self._health.set(name, serving)

    def _bind(self, server: grpc.aio.Server) -> None:
        if not self._listen.path:
            host = self._listen.host or "::"
            target = f"[{host}]:{self._listen.port}" if ":" in host else f"{host}:{self._listen.port}"
            if self._credentials is None:
                self.port = server.add_insecure_port(target)
            else:
                self.port = server.add_secure_port(target, self._credentials)
            return
        with private_files():
            server.add_insecure_port(f"unix:{self._listen.path}")
        self._bound = True
        os.chmod(self._listen.path, 0o600)


def to_wire(entry: Entry) -> forecast_pb2.NodeForecast:
    """An entry as the wire has it; what is not known stays absent."""
    forecast, terms = entry.forecast, entry.forecast.terms
    return forecast_pb2.NodeForecast(
        node=entry.node,
        at_unix_millis=int(forecast.at * 1000),
        ttl_millis=int(forecast.ttl_seconds * 1000),
        horizon_seconds=int(entry.horizon_seconds),
        peak=_resources(forecast.peak),
        reclaimable=_resources(forecast.reclaimable),
        capacity=_resources(terms.capacity),
        reserve=_resources(terms.reserve),
        now=_resources(terms.now),
        sold=_resources(terms.sold),
        published=_resources(entry.published or Amount()),
        model=terms.model,
        risk=terms.risk,
        closed=forecast.closed,
        note=terms.note,
        requested=_resources(terms.requested),
        held=_resources(terms.held),
        newcomers=_resources(terms.newcomers),
        newcomer_pods=terms.newcomer_pods,
        cap=_resources(terms.cap),
        floor=_resources(terms.floor),
        fading=terms.fading,
        cpu_origin=_origin(terms.cpu),
        memory_origin=_origin(terms.memory),
        pool=terms.pool,
        zones=[_zone(zone) for zone in forecast.zones],
        mid=_resources(forecast.mid),
        allocatable=_resources(terms.allocatable),
    )


def _resources(amount: Amount) -> usage_pb2.Resources:
    return usage_pb2.Resources(cpu_millis=amount.cpu_millis, memory_bytes=amount.memory_bytes)


def _origin(origin: Origin) -> forecast_pb2.PeakOrigin:
    return forecast_pb2.PeakOrigin(
        path=origin.path, model=origin.model, risk=origin.risk, shift=origin.shift, widened=origin.widened
    )


def _zone(zone: Zone) -> forecast_pb2.ZoneForecast:
    return forecast_pb2.ZoneForecast(
        id=zone.id, capacity=_resources(zone.capacity), reclaimable=_resources(zone.reclaimable)
    )


def _differs(new: Entry, sent: Entry | None) -> bool:
    """Whether a reader must be told: anything but the time changed, or a third of the time to live has passed."""
    if sent is None or new.published != sent.published:
        return True
    one, other = new.forecast, sent.forecast
    aged = one.at - other.at >= other.ttl_seconds / 3
    same = (one.reclaimable, one.terms, one.closed) == (other.reclaimable, other.terms, other.closed)
    return aged or not same
