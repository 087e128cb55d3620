"""HTTP/1.1 connections to one extender: kept alive, safe to use from several threads, each call bounded as a whole.

A peer that answers byte by byte cannot hold a caller longer than its time: every wait gets what is left of it.
"""

from __future__ import annotations

import http.client
import io
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from scheduler_plugins.config.types import ExtenderConfig, ExtenderTls
from scheduler_plugins.extenders import wire
from slacktide import __version__
from slacktide.errors import SettingsError, SlacktideError

_LARGEST_BODY_BYTES: Final = 256 << 20
_CHUNK_BYTES: Final = 1 << 20
_SHOWN_BYTES: Final = 200
_USER_AGENT: Final = f"slacktide-scheduler/{__version__}"


class CallError(SlacktideError):
    """A call had no answer with status 200: says what happened."""


class _Timed:
    """A connected socket whose every wait ends at `deadline`, a reading of the clock.

    As with a socket, what `makefile` gave may still be read after `close`.
    """

    def __init__(self, sock: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._clock = clock
        self._readers = 0
        self._closing = False
        self.deadline = deadline

    def arm(self) -> socket.socket:
        """The socket, which will wait no longer than is left. Raises TimeoutError when nothing is."""
        left = self.deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.arm().send(view[:_CHUNK_BYTES]) :]

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002  # http.client asks for "rb"
        self._readers += 1
        return io.BufferedReader(_TimedReader(self))

    def close(self) -> None:
        self._closing = True
        self._end_unused()

    def release(self) -> None:
        """One reader is done."""
        self._readers -= 1
        self._end_unused()

    def _end_unused(self) -> None:
        if self._closing and not self._readers:
            self._sock.close()


class _TimedReader(io.RawIOBase):
    """Reads from a timed socket; closing it leaves the socket open for the next call."""

    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.arm().recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._timed.release()


class _Connection(http.client.HTTPConnection):
    """A connection that is there already; http.client would make one without a time for the whole call."""

    def __init__(self, host: str, port: int, timed: _Timed) -> None:
        super().__init__(host, port)
        self.timed = timed
        self.sock = timed


class Connections:
    """Calls to one server. `timeout_seconds` bounds a call from connecting to the last byte of the answer."""

    def __init__(
        self, config: ExtenderConfig, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        parts = urlsplit(config.url_prefix)
        self._host = parts.hostname or ""
        self._context = tls_context(config)
        self._server_name = (config.tls_config.server_name if config.tls_config else "") or self._host
        self._port = parts.port or (443 if self._context else 80)
        self._base = parts.path.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._closed = False

    def call(self, verb: str, body: bytes, *, once: bool = False) -> bytes:
        """The body of the answer to a POST of `body` to `verb`. Raises CallError.

        A kept connection that the server closed meanwhile is replaced and the call sent again, unless `once`: then a
        new connection is used from the start, as a call that is not known to have failed must not be repeated.
        """
        deadline = self._clock() + self._timeout_seconds
        try:
            kept = None if once else self._take()
            if kept is not None:
                try:
                    return self._ask(kept, verb, body, deadline)
                except (ConnectionError, ssl.SSLEOFError):
                    kept.close()
            return self._ask(self._connect(deadline), verb, body, deadline)
        except TimeoutError as error:
            raise CallError(f"no whole answer within {self._timeout_seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise CallError(f"{_said(error)}; is it running at {self._host}:{self._port}?") from error

    def close(self) -> None:
        """Close idle connections; calls under way end undisturbed."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _take(self) -> _Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, deadline: float) -> _Connection:
        sock = socket.create_connection((self._host, self._port), timeout=max(deadline - self._clock(), 0.001))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                sock.settimeout(max(deadline - self._clock(), 0.001))
                sock = self._context.wrap_socket(sock, server_hostname=self._server_name)
        except BaseException:
            sock.close()
            raise
        return _Connection(self._host, self._port, _Timed(sock, deadline, self._clock))

    def _ask(self, connection: _Connection, verb: str, body: bytes, deadline: float) -> bytes:
        kept = False
        try:
            connection.timed.deadline = deadline
            headers = {"Content-Type": wire.CONTENT_TYPE, "Accept": wire.CONTENT_TYPE, "User-Agent": _USER_AGENT}
            connection.request("POST", f"{self._base}/{verb.lstrip('/')}", body, headers)
            with connection.getresponse() as response:
                answer = _read(response)
            if response.status != http.client.OK:
                raise CallError(f"it answered HTTP {response.status}{_shown(answer)}")
            kept = not response.will_close
            if kept:
                self._keep(connection)
            return answer
        finally:
            if not kept:
                connection.close()


def _read(response: http.client.HTTPResponse) -> bytes:
    parts, size = [], 0
    while part := response.read(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > _LARGEST_BODY_BYTES:
            raise CallError(f"its answer is larger than {_LARGEST_BODY_BYTES} bytes")
    if response.length:
        raise CallError("its answer broke off")
    return b"".join(parts)


def _shown(answer: bytes) -> str:
    text = answer[:_SHOWN_BYTES].decode(errors="replace").strip()
    return f": {text}" if text.isprintable() and text else ""


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def tls_context(config: ExtenderConfig) -> ssl.SSLContext | None:
    """TLS of an extender, None for plain HTTP. As in the stock scheduler, enableHTTPS without a CA verifies nothing.

    Raises SettingsError for certificates that cannot be used.
    """
    if urlsplit(config.url_prefix).scheme != "https":
        return None
    tls = config.tls_config or ExtenderTls()
    has_ca = bool(tls.ca_data or tls.ca_file)
    try:
        context = ssl.create_default_context(
            cafile=None if tls.ca_data else tls.ca_file or None,
            cadata=tls.ca_data.decode("ascii") if tls.ca_data else None,
        )
        # Python 3.13 refuses a CA without keyUsage by default; many clusters have such a CA, and it is trusted by name.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if tls.insecure or (config.enable_https and not has_ca):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.cert_data or tls.cert_file:
            _load_chain(context, tls)
    except (OSError, ValueError) as error:
        files = ", ".join(one for one in (tls.ca_file, tls.cert_file, tls.key_file) if one) or "data in the file"
        raise SettingsError(
            [f"extender {config.url_prefix}: its tlsConfig cannot be used ({files}): {error}"]
        ) from error
    return context


def _load_chain(context: ssl.SSLContext, tls: ExtenderTls) -> None:
    """Load certificate and key, each from its data or else its file; ssl reads files alone."""
    with tempfile.TemporaryDirectory(prefix="slacktide-tls-") as folder:
        files = []
        for name, data, file in (("cert", tls.cert_data, tls.cert_file), ("key", tls.key_data, tls.key_file)):
            if data:
                file = os.path.join(folder, name)
                with open(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as out:
                    out.write(data)
            files.append(file)
        # A password that is wrong rather than none: ssl would ask the terminal for one.
        context.load_cert_chain(files[0], files[1], password="")
