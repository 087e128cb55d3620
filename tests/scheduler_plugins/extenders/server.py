"""An extender for tests: a real HTTP server on loopback whose answers a test sets."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


class FakeExtender:
    """Answers each verb with what `answers[verb]` makes of the question: JSON-ready, bytes, or (status, bytes)."""

    def __init__(self, answers: dict[str, Answer], context: ssl.SSLContext | None = None) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                outer.connections += 1
                outer._open.append(self.request)
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.headers.append(dict(self.headers))
                outer.answer(self, body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Send the answer of the verb."""
        question = json.loads(body)
        self.asked.append((handler.path, question))
        made = self.answers[handler.path.rpartition("/")[2]](question)
        if made is None:
            return  # The answer was sent, or is never to be.
        status, content = made if isinstance(made, tuple) else (200, made)
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    @property
    def url(self) -> str:
        """urlPrefix of the server."""
        return f"http://127.0.0.1:{self.port}/scheduler"

    def drop(self) -> None:
        """End every connection, as a server does with one that was idle for long."""
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # It has ended already.
        self._open.clear()

    def stop(self) -> None:
        """End the server and its connections."""
        self._server.shutdown()
        self._thread.join(5)
        self.drop()
        self._server.server_close()
