"""A proxy in front of an API server that fails as told: away, slow, answering errors, mute watches, bad certificates.

    proxy.fail(answer(429, retry_after=1), method="PATCH", path="/status")
    proxy.away(); proxy.delay(5); proxy.mute(); proxy.heal()

It listens on loopback, in the clear or with TLS, and passes everything on with the rights of its upstream settings, or,
where a request carries a token, with that token alone.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3

from slacktide.cluster.credentials import source_for
from slacktide.cluster.transport import _Opener, _opener
from slacktide.settings import ClusterSettings

_CHUNK_BYTES = 64 * 1024
_PASSED_ON = ("Content-Type", "Accept", "User-Agent")


@dataclass(frozen=True)
class Call:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    agent: str = ""
    at: float = field(default_factory=time.monotonic)

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass(frozen=True)
class Answer:
    """An answer of the proxy's own; status 0 breaks the connection without one."""

    status: int
    reason: str = ""
    message: str = ""
    retry_after: int | None = None

    def body(self) -> bytes:
        said = {"message": self.message, "reason": self.reason, "code": self.status}
        return json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", **said}).encode()


CUT = Answer(0)
_REASONS = {403: "Forbidden", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


def answer(status: int, message: str = "said by the faulty proxy", retry_after: int | None = None) -> Answer:
    """What an API server in trouble says."""
    return Answer(status, _REASONS.get(status, ""), message, retry_after)


@dataclass
class _Rule:
    fault: Answer | float
    method: str
    path: str
    times: int | None

    def applies(self, call: Call) -> bool:
        return self.method in ("", call.method) and self.path in call.path


@dataclass
class _State:
    """What is wrong now."""

    rules: list[_Rule] = field(default_factory=list)
    mute: bool = False
    healed: threading.Event = field(default_factory=threading.Event)


class FaultyProxy:
    """See the module. `url` stays the same over `away` and `heal`; `calls` are all requests that came."""

    def __init__(self, upstream: ClusterSettings, context: ssl.SSLContext | None = None) -> None:
        self._upstream = source_for(upstream)
        self._openers: dict[bool, _Opener] = {}
        self._lock = threading.Lock()
        self._state = _State()
        self._context = context
        self._sockets: list[socket.socket] = []
        self._streams: list[Any] = []
        self.calls: list[Call] = []
        self.before: Callable[[Call], object] = lambda _call: None
        self._server: _Server | None = None
        self.port = self._listen(0)

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    def settings(self, token_file: str = "", **fields: Any) -> ClusterSettings:
        """How a client reaches it in the clear."""
        return ClusterSettings(server=self.url, token_file=token_file, **fields)

    def fail(self, fault: Answer | float, *, method: str = "", path: str = "", times: int | None = None) -> None:
        """From now on requests whose method and part of the path match get an answer, or a delay in seconds."""
        with self._lock:
            self._state.rules.append(_Rule(fault, method, path, times))

    def delay(self, seconds: float) -> None:
        """Every answer comes that much later."""
        self.fail(seconds)

    def mute(self) -> None:
        """Watches stay open, and nothing comes any more; also on those that are opened now."""
        self._state.mute = True

    def cut(self) -> None:
        """Break every connection, once."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def away(self) -> None:
        """Nobody listens, and what was open breaks."""
        self._stop_listening()
        self.cut()

    def heal(self, context: ssl.SSLContext | None = None) -> None:
        """All is well again; `context` are other certificates that new connections are shown from now on."""
        if context is not None:
            self._context = context
        with self._lock:
            was, self._state = self._state, _State()
        was.healed.set()
        if was.mute:
            self.cut()
        if self._server is None:
            self._listen(self.port)

    def close(self) -> None:
        """End everything."""
        self._state.healed.set()
        self.away()
        for opener in self._openers.values():
            opener.close()

    def made(self, method: str, path: str = "") -> list[Call]:
        """Requests so far."""
        return [call for call in list(self.calls) if call.method == method and path in call.path]

    def _listen(self, port: int) -> int:
        server = _Server(("127.0.0.1", port), _Handler)
        server.proxy = self
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), name="faulty-proxy", daemon=True).start()
        return int(server.server_address[1])

    def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def wrap(self, connection: socket.socket) -> socket.socket:
        """The connection as it is served, known so that it can be cut."""
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._sockets.append(connection)
        return connection

    def trouble(self, call: Call) -> Answer | float | None:
        """What happens to a call."""
        with self._lock:
            self.calls.append(call)
            for rule in self._state.rules:
                if rule.applies(call) and rule.times != 0:
                    if rule.times is not None:
                        rule.times -= 1
                    return rule.fault
        return None

    def wait(self, seconds: float) -> None:
        """Until then, or until all is well."""
        self._state.healed.wait(seconds)

    @property
    def is_mute(self) -> bool:
        return self._state.mute

    def send(self, handler: BaseHTTPRequestHandler, body: bytes) -> urllib3.BaseHTTPResponse:
        """The answer of the upstream."""
        access = self._upstream.current()
        token = handler.headers.get("Authorization")
        endpoint = access.endpoint if token is None else replace(access.endpoint, cert_file=None, key_file=None)
        with self._lock:
            if (token is None) not in self._openers:
                self._openers[token is None] = _opener(endpoint)
            opener = self._openers[token is None]
        headers = {name: handler.headers[name] for name in _PASSED_ON if name in handler.headers}
        given = token or access.authorization
        if given is not None:
            headers["Authorization"] = given
        timeout = urllib3.Timeout(connect=10.0, read=None)
        return opener(handler.command, handler.path, body=body or None, headers=headers, timeout=timeout)


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    proxy: FaultyProxy

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        return self.proxy.wrap(connection), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        agent = self.headers.get("User-Agent", "")
        call = Call(self.command, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), agent)
        fault = proxy.trouble(call)
        if isinstance(fault, Answer):
            self._fail(fault)
            return
        if fault is not None:
            proxy.wait(fault)
        proxy.before(call)
        response = proxy.send(self, body)
        try:
            if call.watching and response.status == 200:
                self._watch(response)
            else:
                self._whole(response)
        finally:
            response.close()

    def _fail(self, fault: Answer) -> None:
        if fault.status == 0:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        content = fault.body()
        self.send_response(fault.status)
        if fault.retry_after is not None:
            self.send_header("Retry-After", str(fault.retry_after))
        self._head("application/json", content)

    def _whole(self, response: urllib3.BaseHTTPResponse) -> None:
        content = b"".join(iter(lambda: response.read1(_CHUNK_BYTES), b""))
        self.send_response(response.status)
        if "Retry-After" in response.headers:
            self.send_header("Retry-After", response.headers["Retry-After"])
        self._head(response.headers.get("Content-Type", ""), content)

    def _head(self, content_type: str, content: bytes) -> None:
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _watch(self, response: urllib3.BaseHTTPResponse) -> None:
        proxy = self.server.proxy
        self.send_response(200)
        self.send_header("Content-Type", response.headers.get("Content-Type", ""))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        # The client hangs up when it has heard enough, and the upstream must then be left too.
        watcher = threading.Thread(target=self._until_hung_up, args=(response,), daemon=True)
        watcher.start()
        with contextlib.suppress(OSError, urllib3.exceptions.HTTPError, ValueError, AttributeError):
            while chunk := response.read1(_CHUNK_BYTES):
                if not proxy.is_mute:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        self.close_connection = True

    def _until_hung_up(self, response: urllib3.BaseHTTPResponse) -> None:
        # A watch's client sends nothing more, so that anything to read is its end.
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN | select.POLLRDHUP)
        poll.poll()
        with contextlib.suppress(Exception):
            response.shutdown()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


@contextlib.contextmanager
def proxied(upstream: ClusterSettings, context: ssl.SSLContext | None = None) -> Iterator[FaultyProxy]:
    """A proxy that is gone afterwards."""
    made = FaultyProxy(upstream, context)
    try:
        yield made
    finally:
        made.close()
