"""The observe endpoint: GET and HEAD of /metrics, /healthz, /readyz and a daemon's own JSON routes.

`/metrics?name[]=NAME&name[]=OTHER` gives those metrics only, as with other exporters of Prometheus.

On a thread of its own, one short-lived thread a request, over TCP or a Unix socket with mode 0600. Small and bounded:
a request must arrive within seconds, only so many are served at once, and a route that fails answers 500 with the
reason while the server goes on.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from slacktide.observe.health import Health
from slacktide.serving import DeadlineReader, ListeningServer, Serving
from slacktide.sockets import Listen, parse_listen

Route = Callable[[], bytes]
"""Body of a JSON route; runs on a request's thread, so what it reads must be safe to read there."""


@dataclass(frozen=True, slots=True)
class Queried:
    """A JSON route that looks at what is asked for: parameters of the query -> body; the last of a name counts."""

    answer: Callable[[Mapping[str, str]], bytes]


REQUEST_SECONDS: Final = 5.0
"""A request must have arrived, and its answer been taken, within this time each."""

MAX_REQUESTS: Final = 16
"""More at once are closed unanswered: the endpoint must never cost a node more than it tells."""

_TEXT: Final = "text/plain; charset=utf-8"
_SETTING: Final = "observe.listen"
_METHODS: Final = "GET, HEAD"


class ObserveServer:
    """Serves `registry`, `health` and `routes` (path -> body) at `listen`; an empty `listen` serves nothing.

    `routes` is looked at with each request, so that a daemon may add to it later.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        health: Health,
        routes: Mapping[str, Route | Queried] | None = None,
    ) -> None:
        answers = _Answers(registry, health, {} if routes is None else routes)
        where = parse_listen(listen, _SETTING) if listen else None
        self._serving = Serving("observe", where, _SETTING, lambda listen: _Server(listen, answers))

    @property
    def address(self) -> str:
        """Where it listens now, `HOST:PORT` or `unix:/path`; empty when it does not."""
        return self._serving.address

    def start(self) -> None:
        """Listen and serve. Raises SettingsError when the address cannot be had."""
        self._serving.start()

    def stop(self) -> None:
        """Stop listening and remove the socket file. Requests under way are left to end. May be called again."""
        self._serving.stop()


class _Answers:
    """Path -> status, content type and body. Knows nothing of sockets."""

    def __init__(self, registry: CollectorRegistry, health: Health, routes: Mapping[str, Route | Queried]) -> None:
        self._registry = registry
        self._health = health
        self._routes = routes

    def answer(self, path: str, query: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return HTTPStatus.OK, content_type, encode(self._chosen(query))
        if path == "/healthz":
            return _verdict(self._health.not_live())
        if path == "/readyz":
            return _verdict(self._health.not_ready())
        route = self._routes.get(path)
        if route is not None:
            body = route.answer(dict(parse_qsl(query))) if isinstance(route, Queried) else route()
            return HTTPStatus.OK, "application/json", body
        known = " ".join(["/metrics", "/healthz", "/readyz", *sorted(self._routes)])
        return HTTPStatus.NOT_FOUND, _TEXT, f"nothing at this path; known: {known}\n".encode()

    def _chosen(self, query: str) -> Collector:
        """All metrics, or those that the query names; a name that nobody has gives nothing."""
        names = parse_qs(query, keep_blank_values=True).get("name[]")
        return self._registry if names is None else self._registry.restricted_registry(names)


def _verdict(problems: Mapping[str, str]) -> tuple[HTTPStatus, str, bytes]:
    if not problems:
        return HTTPStatus.OK, _TEXT, b"ok\n"
    lines = "".join(f"{name}: {problem}\n" for name, problem in problems.items())
    return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, lines.encode()


class _Server(ListeningServer):
    """Threads with an upper bound."""

    request_queue_size = 32

    def __init__(self, listen: Listen, answers: _Answers) -> None:
        self.answers = answers
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(listen, _Handler, _SETTING)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
        elif not self.begin(request, client_address):
            # This request is the least that the machine is short for.
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or was too slow is nobody's error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "slacktide"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(DeadlineReader(self.connection, REQUEST_SECONDS))

    def do_GET(self) -> None:
        try:
            asked = urlsplit(self.path)
            status, content_type, body = self.server.answers.answer(
                asked.path, asked.query, self.headers.get("Accept", "")
            )
        except Exception as error:  # noqa: BLE001 - one broken route must not take metrics and health with it
            status, content_type = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT
            body = f"{type(error).__name__}: {error}\n".encode()
        self._send(status, content_type, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def parse_request(self) -> bool:
        """As the base class, and refuse every other method here, whatever its name."""
        if not super().parse_request():
            return False
        if self.command in {"GET", "HEAD"}:
            return True
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, f"use {_METHODS}\n".encode())
        return False

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", _METHODS)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """A scrape every few seconds is no event."""
