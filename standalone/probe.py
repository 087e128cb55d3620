"""Ask a daemon over its Unix socket whether it is ready: GET /readyz, one request a connection, short timeouts."""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Not `answered` is a daemon that does not listen (yet), or hangs."""

    answered: bool
    ready: bool
    detail: str


class UnixConnection(http.client.HTTPConnection):
    """HTTP/1.1 over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            raise
        self.sock = connection


def get(path: str, target: str, timeout: float = 1.0) -> tuple[int, bytes]:
    """Status and body of GET `target` over socket `path`. Raises OSError or http.client.HTTPException."""
    connection = UnixConnection(path, timeout)
    try:
        connection.request("GET", target, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def ready(path: str, timeout: float = 1.0) -> Answer:
    """Ask the daemon behind socket `path`; a refusal carries the daemon's own words."""
    try:
        status, body = get(path, "/readyz", timeout)
    except (OSError, http.client.HTTPException) as error:
        return Answer(False, False, f"does not answer on {path}: {error}")
    text = body.decode("utf-8", "replace").strip()
    return Answer(True, status == 200, "" if status == 200 else text or f"/readyz answers {status}")
