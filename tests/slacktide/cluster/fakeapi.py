"""A real HTTP server, over TCP, TLS or a Unix socket, that answers what a test tells it to."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, urlsplit

CUT = object()
"""As a chunk: drop the connection without an end."""


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw: bytes
    peer: str = ""
    """Common name of the client certificate."""

    @property
    def body(self):
        return json.loads(self.raw) if self.raw else None

    @property
    def watching(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass
class Reply:
    """`chunks`: bytes are sent as they are, a callable is called (to wait), CUT drops the connection."""

    body: object = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[object] | None = None


def status(code: int, reason: str = "", message: str = "no", *, headers=None, **details) -> Reply:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    if details:
        body["details"] = details
    return Reply(body, code, headers or {})


def line(type_: str, **body) -> bytes:
    return json.dumps({"type": type_, "object": body}).encode() + b"\n"


def pod(name: str, version: int | str = 1, namespace: str = "ns", uid: str = "", **status_) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
        },
        "status": status_,
    }


def listing(items: Iterable[dict], version: int | str, continue_: str = "") -> Reply:
    metadata = {"resourceVersion": str(version)}
    if continue_:
        metadata["continue"] = continue_
    return Reply({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": list(items)})


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_):
        pass

    def address_string(self):
        return "client"

    def _serve(self):
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        call = Call(self.command, parts.path, dict(parse_qsl(parts.query)), dict(self.headers), raw, self._peer())
        api: FakeApi = self.server.api
        with api.lock:
            api.calls.append(call)
        reply = api.answer(call)
        if reply is CUT:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.chunks is not None:
            self._stream(reply.chunks)
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if "Content-Length" in reply.headers:
            self.close_connection = True

    def _peer(self):
        certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        return dict(part[0] for part in certificate["subject"]).get("commonName", "") if certificate else ""

    def _stream(self, chunks):
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for chunk in chunks:
            if chunk is CUT:
                self.close_connection = True
                return
            if callable(chunk):
                chunk()
                continue
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = True
    request_queue_size = 32
    context: ssl.SSLContext | None = None

    def get_request(self):
        sock, address = super().get_request()
        if self.context is not None:
            sock = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.api.sockets.append(sock)
        return sock, address or "client"

    def handle_error(self, request, client_address):
        pass


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)


class FakeApi:
    """`answer` decides; by default the next reply of `script[(method, path)]`, and 404 where there is none."""

    def __init__(self, unix_path: str | None = None, context: ssl.SSLContext | None = None):
        self.lock = threading.Lock()
        self.calls: list[Call] = []
        self.sockets: list[socket.socket] = []
        self.script: dict[tuple[str, str], list] = {}
        self.closing = threading.Event()
        if unix_path is None:
            self._server = _Server(("127.0.0.1", 0), _Handler)
            self.port = self._server.server_address[1]
            self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        else:
            self._server = _UnixServer(unix_path, _Handler)
            self.url = f"unix:{unix_path}"
        self._server.context = context
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def on(self, method: str, path: str, *replies) -> None:
        """Replies (or functions of the call) in order; the last one stays."""
        self.script.setdefault((method, path), []).extend(replies)

    def answer(self, call: Call):
        with self.lock:
            replies = self.script.get((call.method, call.path))
            if not replies:
                return status(404, "NotFound", f"nothing scripted for {call.method} {call.path}")
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply(call) if callable(reply) else reply

    def hang(self) -> None:
        """As a chunk: silence until the server closes."""
        self.closing.wait(30)

    def made(self, method: str, path: str | None = None) -> list[Call]:
        with self.lock:
            return [c for c in self.calls if c.method == method and path in (None, c.path)]

    def drop_connections(self) -> None:
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join(5)
        self.drop_connections()
        self._server.server_close()
