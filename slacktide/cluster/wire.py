"""What urllib3 does for us: TCP with TLS and proxies, and answers that are read as they arrive.

Its own module, since its import is a good part of the time in which a command on this machine has answered.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool

from slacktide.cluster import exchange
from slacktide.cluster.credentials import Endpoint
from slacktide.cluster.errors import CredentialsError, TlsFailed, Unreachable
from slacktide.cluster.exchange import POOL_SIZE, Connection, Exchange, NotConnected, TooLong
from slacktide.cluster.unix import dial
from slacktide.observe import get_logger

_LOG: Final = get_logger("cluster.transport")
_CHUNK_BYTES: Final = 64 * 1024

# A peer whose machine vanished is noticed by the kernel within a minute, also where we wait without a timeout.
_KEEPALIVE: Final[list[tuple[int, int, int | bytes]]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Stream:
    """An answer that arrives bit by bit; iterate to read it, `close` from any thread to end it.

    Raises Unreachable while iterating when the connection breaks or is silent for longer than the read timeout.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, describe: str) -> None:
        self._response = response
        self._describe = describe
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        try:
            while not self._closed.is_set():
                try:
                    chunk = self._response.read1(_CHUNK_BYTES)
                except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
                    # ValueError and AttributeError: urllib3's answer when `close` cut the socket under a read.
                    if self._closed.is_set():
                        return
                    raise unreachable(self._describe, error) from error
                if not chunk:
                    return
                yield chunk
        finally:
            self._response.close()

    def close(self) -> None:
        """End the stream; a reader in another thread wakes up and sees the end."""
        self._closed.set()
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            # Only the read side is shut: closing a descriptor under a blocked read would not wake it.
            self._response.shutdown()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._response.close()


_PLAIN: Final[Mapping[str, Any]] = {
    "retries": False,
    "redirect": False,
    "preload_content": False,
}


class TcpOpener:
    """Sends requests to an endpoint over TCP, with TLS and through a proxy where it says so."""

    errors: Final = (urllib3.exceptions.HTTPError, *exchange.ERRORS)

    def __init__(self, endpoint: Endpoint) -> None:
        options: dict[str, Any] = {"maxsize": POOL_SIZE, "block": False, "socket_options": _KEEPALIVE}
        context = ssl_context(endpoint) if endpoint.url.startswith("https:") else None
        if context is not None:
            options["ssl_context"] = context
            options["server_hostname"] = endpoint.server_name
        self.exchange = None if endpoint.proxy else Exchange(endpoint.url, _dialler(endpoint, context), POOL_SIZE)
        self._base = endpoint.url.rstrip("/")
        self._pools = (
            urllib3.ProxyManager(endpoint.proxy, **options) if endpoint.proxy else urllib3.PoolManager(**options)
        )

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        """The answer with an unread body. Raises urllib3's HTTPError."""
        return self._pools.urlopen(method, self._base + url, body=body, headers=headers, timeout=timeout, **_PLAIN)

    def unreachable(self, describe: str, error: Exception) -> Unreachable:
        """What one of `errors` means."""
        return unreachable(describe, error)

    def close(self) -> None:
        """Close idle connections."""
        self._pools.clear()
        if self.exchange is not None:
            self.exchange.close()


def _dialler(endpoint: Endpoint, context: ssl.SSLContext | None) -> Callable[[float], Connection]:
    """Makes connections; urllib3 checks the name in the server's certificate."""
    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port

    def connected(seconds: float) -> HTTPConnection:
        if context is None:
            connection = HTTPConnection(host, port, timeout=seconds, socket_options=_KEEPALIVE)
        else:
            connection = HTTPSConnection(
                host,
                port,
                timeout=seconds,
                socket_options=_KEEPALIVE,
                ssl_context=context,
                server_hostname=endpoint.server_name,
            )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    return connected


class UnixPool(HTTPConnectionPool):
    """Connections to one Unix socket, for what `exchange` cannot do."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", maxsize=POOL_SIZE, block=False)
        self._path = path

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        """The answer with an unread body. Raises urllib3's HTTPError."""
        return self.urlopen(method, url, body=body, headers=headers, timeout=timeout, **_PLAIN)

    def _new_conn(self) -> Any:
        self.num_connections += 1
        return _UnixConnection(self._path, timeout=self.timeout.connect_timeout)


class _UnixConnection(HTTPConnection):
    """An HTTP connection whose socket is a Unix socket."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__("localhost", **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        try:
            return dial(self._path, self.timeout)
        except NotConnected as error:
            kind = urllib3.exceptions.ConnectTimeoutError if error.late else urllib3.exceptions.NewConnectionError
            raise kind(self, str(error)) from error


def ssl_context(endpoint: Endpoint) -> ssl.SSLContext:
    """The TLS context for an endpoint. Raises CredentialsError where a certificate file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        # Python 3.13 refuses a CA without keyUsage by default. Many clusters have such a CA, and the operator has
        # told us to trust exactly this one; signature, expiry and host name are checked as before.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not endpoint.verify:
            _LOG.warning("the API server is not verified, as the kubeconfig asks", server=endpoint.url)
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if endpoint.cert_file:
            context.load_cert_chain(endpoint.cert_file, endpoint.key_file)
    except (OSError, ValueError) as error:
        files = ", ".join(f for f in (endpoint.ca_file, endpoint.cert_file, endpoint.key_file) if f)
        raise CredentialsError(f"cannot use the certificates for {endpoint.url} ({files}): {error}") from error
    return context


def read(
    response: urllib3.BaseHTTPResponse, describe: str, seconds: float, limit: int | None, clock: Callable[[], float]
) -> bytes:
    """A body to its end, or to `limit` bytes; `seconds` bounds the whole, so that a trickle holds nobody for ever.

    Raises Unreachable.
    """
    deadline = clock() + seconds
    parts: list[bytes] = []
    size = 0
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            parts.append(chunk)
            size += len(chunk)
            if limit is not None and size >= limit:
                response.close()
                break
            if clock() > deadline:
                response.close()
                raise exchange.unreachable(describe, TooLong(seconds))
    except (urllib3.exceptions.HTTPError, OSError) as error:
        response.close()
        raise unreachable(describe, error) from error
    response.release_conn()
    return b"".join(parts)


def unreachable(describe: str, error: Exception) -> Unreachable:
    """What a person reads, for each way in which urllib3 and ssl say that there was no answer."""
    exceptions = urllib3.exceptions
    if isinstance(error, exceptions.NewConnectionError):
        return exchange.unreachable(describe, NotConnected(str(error).rpartition(">: ")[2]))
    if isinstance(error, exceptions.ConnectTimeoutError):
        return exchange.unreachable(describe, NotConnected(str(error), late=True))
    if isinstance(error, exceptions.ReadTimeoutError):
        return exchange.unreachable(describe, TimeoutError())
    if isinstance(error, (exceptions.SSLError, ssl.SSLError)) and not isinstance(error, TimeoutError):
        return TlsFailed(f"{describe}: TLS failed: {error}")
    cause = error.args[1] if isinstance(error, exceptions.ProtocolError) and len(error.args) > 1 else error
    return exchange.unreachable(describe, cause if isinstance(cause, Exception) else error)
