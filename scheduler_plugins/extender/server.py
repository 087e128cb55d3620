"""HTTP/1.1 for the extender: POST /VERB with a JSON body, over TCP or TLS, connections kept open.

A thread a connection, so that a slow client or a slow plugin holds up nobody else; as many as `Limits.connections`,
further ones get 503. A request must arrive within `request_seconds` of its first byte, its answer be taken within the
same. Bodies need a Content-Length. What is refused here is answered {"Error": text}: 400 not HTTP, 404 no such verb,
405 not POST, 408 too slow, 411 no length, 413 too large, 415 not JSON, 503 too many connections.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.service import ExtenderService, error_body
from scheduler_plugins.extender.tls import ServerTls
from slacktide.errors import SettingsError
from slacktide.observe import get_logger
from slacktide.serving import DeadlineReader, ListeningServer, Serving
from slacktide.sockets import Listen, parse_listen

_log = get_logger("extender.server")

_SETTING: Final = "listen"
_JSON: Final = "application/json"
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_SHOWN: Final = 80
"""How much of what a client sent is repeated to it."""

_BUFFER_BYTES: Final = 64 << 10
_STOP_SECONDS: Final = 3.0
_FULL: Final = error_body("all connections are in use; see max_connections of the extender")
_FULL_REPLY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    + f"Content-Length: {len(_FULL)}\r\n\r\n".encode()
    + _FULL
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the server. `idle_seconds` is how long a connection may be silent between two requests."""

    connections: int
    body_bytes: int
    request_seconds: float
    idle_seconds: float


class ExtenderServer:
    """Serves `service` at `listen`; with `tls` None in the clear."""

    def __init__(
        self,
        listen: str,
        service: ExtenderService,
        limits: Limits,
        metrics: ExtenderMetrics,
        tls: ServerTls | None = None,
    ) -> None:
        where = parse_listen(listen, _SETTING)
        if where.path:
            raise SettingsError([f"{_SETTING} = {listen!r}: a scheduler speaks TCP only; give HOST:PORT"])
        self._serving = Serving(
            "extender", where, _SETTING, lambda listen: _Server(listen, service, limits, metrics, tls)
        )

    @property
    def address(self) -> str:
        """Where it listens now, `HOST:PORT`; empty when it does not."""
        return self._serving.address

    def alive(self) -> str | None:
        """What is wrong, or None: the accepting thread must be running."""
        return self._serving.alive()

    def start(self) -> None:
        """Listen and serve. Raises SettingsError when the address cannot be had."""
        self._serving.start()

    def stop(self) -> None:
        """Stop listening, let answers under way go out, close the connections. May be called again."""
        server = self._serving.stop()
        if server is not None:
            server.end_connections(_STOP_SECONDS)


class _Server(ListeningServer):
    request_queue_size = 128

    def __init__(
        self,
        listen: Listen,
        service: ExtenderService,
        limits: Limits,
        metrics: ExtenderMetrics,
        tls: ServerTls | None,
    ) -> None:
        self.service = service
        self.limits = limits
        self.metrics = metrics
        self.stopping = False
        self._tls = tls
        # Accepted socket -> the one to talk through, which is another where there is TLS.
        self._open: dict[socket.socket, socket.socket] = {}
        self._changed = threading.Condition()
        super().__init__(listen, _Handler, _SETTING)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            full = len(self._open) >= self.limits.connections
            if not full:
                self._open[request] = request
        if full:
            self.metrics.turned_away()
            self._turn_away(request)
            return
        self.metrics.connection(1)
        if not self.begin(request, client_address):
            self._ended(request)
            self.shutdown_request(request)

    def _turn_away(self, request: Any) -> None:
        if self._tls is None:
            # The socket is new: so little always fits its buffer.
            request.setblocking(False)
            with contextlib.suppress(OSError):
                request.send(_FULL_REPLY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        connection = request
        try:
            request.settimeout(self.limits.request_seconds)
            if self._tls is not None:
                connection = self._tls.wrap(request)
                with self._changed:
                    self._open[request] = connection
            self.finish_request(connection, client_address)
        except Exception as error:  # noqa: BLE001 - whatever a client does ends its own connection only
            _log.debug("connection ended", reason=repr(error))
        finally:
            self._ended(request)
            self.shutdown_request(connection)

    def _ended(self, request: Any) -> None:
        self.metrics.connection(-1)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()

    def end_connections(self, seconds: float) -> None:
        """Idle connections see an end of input; those that answer may finish."""
        self.stopping = True
        with self._changed:
            for connection in self._open.values():
                _half_close(connection, socket.SHUT_RD)
            self._changed.wait_for(lambda: not self._open, seconds)


def _half_close(connection: socket.socket, how: int) -> None:
    """Shut one direction of the TCP connection; a TLS socket's own method would give up encryption as well."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, how)


class _Arrival(DeadlineReader):
    """Reads a connection: idle for a while between requests, then one deadline for all of a request."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._limits = limits
        self.begun = False
        super().__init__(connection, limits.idle_seconds)

    def await_request(self) -> None:
        """The next byte begins a request."""
        self.begun = False
        self.renew(self._limits.idle_seconds)

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if not self.begun:
            self.begun = True
            self.renew(self._limits.request_seconds)
        return count


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._arrival = _Arrival(self.connection, self.server.limits)
        self.rfile = io.BufferedReader(self._arrival, _BUFFER_BYTES)

    def handle_one_request(self) -> None:
        """As the base class; a time-out of it ends in `log_error`."""
        self._arrival.await_request()
        super().handle_one_request()
        self.close_connection = self.close_connection or self.server.stopping

    def log_error(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the base class has it so
        """A request that came too late is told so; one that never began, or an answer nobody took, is not."""
        if args and isinstance(args[0], TimeoutError) and self._arrival.begun:
            seconds = self.server.limits.request_seconds
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive within {seconds:g} s")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Requests are counted, not logged."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses, in our form."""
        self._refuse(HTTPStatus(code), message or explain or HTTPStatus(code).phrase)

    def parse_request(self) -> bool:
        """As the base class, and refuse every method but POST here, whatever its name."""
        if not super().parse_request():
            return False
        if self.command == "POST":
            return True
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"use POST, not {self.command[:_SHOWN]}")
        return False

    def handle_expect_100(self) -> bool:
        """Invite the body only of a request whose head is good."""
        if self.command == "POST" and self._refusal() is None:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def do_POST(self) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._refuse(*refusal)
            return
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        reply = self.server.service.answer(self._verb(), body)
        self._send(reply.status, reply.body)

    def _verb(self) -> str:
        return self.path.partition("?")[0].removeprefix("/")

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """What the head of the request alone is refused for."""
        if self._verb() not in self.server.service.verbs:
            known = ", ".join(f"/{verb}" for verb in self.server.service.verbs)
            return HTTPStatus.NOT_FOUND, f"nothing at {self.path[:_SHOWN]}; known: {known}"
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {_JSON}, not {kind[:_SHOWN] or 'absent'}"
        lengths = self.headers.get_all("Content-Length", [])
        if not lengths:
            return HTTPStatus.LENGTH_REQUIRED, "the request needs a Content-Length; chunked bodies are not read"
        length = lengths[0]
        if len(lengths) > 1 or not _LENGTH.fullmatch(length) or "Transfer-Encoding" in self.headers:
            return HTTPStatus.BAD_REQUEST, "the length of the body is not clear"
        if int(length) > self.server.limits.body_bytes:
            limit = self.server.limits.body_bytes
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has {length} bytes, the limit is {limit}"
        return None

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer, and read what the client still sends for a while: else a reset may overtake the answer."""
        self.close_connection = True
        self._send(status, error_body(text))
        _half_close(self.connection, socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while self.rfile.read1(_BUFFER_BYTES):
                pass

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.close_connection = self.close_connection or self.server.stopping
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {_JSON}",
            f"Content-Length: {len(body)}",
            *(["Allow: POST"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
            *(["Connection: close"] if self.close_connection else []),
        ]
        self._write("\r\n".join([*lines, "", ""]).encode() + body)

    def _write(self, content: bytes) -> None:
        """Send all of it within the time of one request; a client that does not take it is cut off."""
        deadline = time.monotonic() + self.server.limits.request_seconds
        left = memoryview(content)
        try:
            while left:
                self.connection.settimeout(max(0.001, deadline - time.monotonic()))
                left = left[self.connection.send(left) :]
        except OSError:
            self.close_connection = True
            _half_close(self.connection, socket.SHUT_RDWR)
