"""The API server's way to a kubelet that only this machine reaches: an HTTP CONNECT proxy on a Unix socket.

Source: kubernetes KEP 1281, EgressSelectorConfiguration (apiserver.k8s.io/v1beta1), proxyProtocol HTTPConnect over uds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any, Final

KUBELET_PORT: Final = 10250
_HEAD_BYTES: Final = 4096
_CHUNK_BYTES: Final = 64 * 1024
_CONNECT_SECONDS: Final = 30.0


class Tunnel:
    """Joins whoever asks for port 10250 of any host with `port` of loopback; `close` ends it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.path = directory / "egress.sock"
        self.configuration = directory / "egress.json"
        self.configuration.write_text(json.dumps(_configuration(self.path)))
        self._server = _Server(str(self.path), _Handler)
        self._server.port = port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="tunnel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; what is joined ends with either side."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def _configuration(path: Path) -> dict[str, Any]:
    transport = {"uds": {"udsName": str(path)}}
    selection = {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}
    kind = {"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration"}
    return {**kind, "egressSelections": [selection]}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    port: int


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            chunk = self.request.recv(_HEAD_BYTES)
            if not chunk or len(head) > _HEAD_BYTES:
                return
            head += chunk
        wanted = head.split(b" ", 2)[1]
        if not wanted.endswith(b":%d" % KUBELET_PORT):
            self.request.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        try:
            kubelet = socket.create_connection(("127.0.0.1", self.server.port), _CONNECT_SECONDS)
        except OSError:
            self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        kubelet.settimeout(None)
        with kubelet:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=(kubelet, self.request), daemon=True)
            back.start()
            _pass_on(self.request, kubelet)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK_BYTES):
            target.sendall(chunk)
    # The other direction ends with this one.
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
