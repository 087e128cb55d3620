"""What our small HTTP servers share: a thread that listens, one a connection, and requests that have one deadline."""

from __future__ import annotations

import io
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from slacktide.errors import SettingsError
from slacktide.sockets import Listen, remove_socket, remove_stale_socket

_POLL_SECONDS: Final = 0.2


class ListeningServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens on either kind of address, with a thread a connection; a subclass says how many there may be.

    A socket file has mode 0600 and is removed at the end. Raises OSError where the address cannot be had, SettingsError
    that names `setting` where something else is at the path.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, listen: Listen, handler: type[socketserver.BaseRequestHandler], setting: str) -> None:
        self._path = listen.path
        if listen.path:
            remove_stale_socket(listen.path, setting)
            self.address_family = socket.AF_UNIX
        elif ":" in listen.host:
            self.address_family = socket.AF_INET6
        super().__init__(listen.path or (listen.host, listen.port), handler)  # type: ignore[arg-type]  # typeshed knows no Unix path here

    def server_bind(self) -> None:
        """As the base class; nobody can connect before listen(), which comes next."""
        super().server_bind()
        if self._path:
            os.chmod(self._path, 0o600)

    @property
    def address(self) -> str:
        """Where it listens, `HOST:PORT` or `unix:/path`."""
        if self._path:
            return f"unix:{self._path}"
        host, port = self.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def begin(self, request: Any, client_address: Any) -> bool:
        """Serve a connection on a thread of its own; False where none could be started: the machine is short."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            return False
        return True

    def server_close(self) -> None:
        """Stop listening."""
        super().server_close()
        if self._path:
            remove_socket(self._path)


S = TypeVar("S", bound=ListeningServer)


class Serving(Generic[S]):
    """Runs the server that `make` gives, from `start` to `stop`, on a thread called `name`.

    `listen` None is never served; `setting` is what messages call the address.
    """

    def __init__(self, name: str, listen: Listen | None, setting: str, make: Callable[[Listen], S]) -> None:
        self._name = name
        self._listen = listen
        self._setting = setting
        self._make = make
        self._server: S | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where it listens now; empty when it does not."""
        return self._server.address if self._server else ""

    def alive(self) -> str | None:
        """What is wrong, or None: the accepting thread must be running."""
        return "the accepting thread ended" if self._thread is not None and not self._thread.is_alive() else None

    def start(self) -> None:
        """Listen and serve, unless that is so already. Raises SettingsError when the address cannot be had."""
        if self._listen is None or self._server is not None:
            return
        try:
            self._server = self._make(self._listen)
        except OSError as error:
            where = _shown(self._listen)
            raise SettingsError([f"{self._setting}: cannot listen at {where}: {error.strerror}"]) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name=self._name, daemon=True
        )
        self._thread.start()

    def stop(self) -> S | None:
        """Stop listening; the server, whose connections under way are left alone, or None if it did not run."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return None
        self._server = self._thread = None
        server.shutdown()
        thread.join()
        server.server_close()
        return server


def _shown(listen: Listen) -> str:
    return f"unix:{listen.path}" if listen.path else f"{listen.host}:{listen.port}"


class DeadlineReader(io.RawIOBase):
    """Reads a socket up to one deadline for all of it, however slowly the bytes trickle in."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """All that is read from now on has so long."""
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        """As it says."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read once. Raises TimeoutError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)
