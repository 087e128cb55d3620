"""HTTP to the API server over TLS, loopback or a Unix socket. Retries nothing except once after a 401.

Whole answers over TCP go the short way of `exchange`, everything else through urllib3. Both are behind this module:
above it there are bytes, status codes and `Unreachable`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from slacktide.cluster.credentials import Access, CredentialSource, Endpoint
from slacktide.cluster.errors import ClusterError, CredentialsError, Unreachable, Unreadable, from_response
from slacktide.cluster.exchange import CONNECT_ERRORS, Answer, Exchange, Limits, TooLong
from slacktide.observe import get_logger

_LOG: Final = get_logger("cluster.transport")
_POOL_SIZE: Final = 32
_CHUNK_BYTES: Final = 64 * 1024
_ERROR_BODY_BYTES: Final = 64 * 1024

# A peer whose machine vanished is noticed by the kernel within a minute, also where we wait without a timeout.
_KEEPALIVE: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One HTTP request.

    connect_seconds bounds connecting; read_seconds bounds each wait for bytes (None = for ever, for followed logs);
    total_seconds bounds the reading of a whole body.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    connect_seconds: float
    read_seconds: float | None
    total_seconds: float


@dataclass(frozen=True)
class Response:
    """A whole answer; status is below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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
                    raise _unreachable(self._describe, error) from error
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


class Transport:
    """Sends requests with the current credentials; safe to use from several threads."""

    def __init__(self, source: CredentialSource, user_agent: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._user_agent = user_agent
        self._clock = clock
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._opener: _Opener | None = None

    def send(self, request: Request) -> Response:
        """The whole answer. Raises ApiError (status 400 and above), Unreachable, CredentialsError."""
        access = self._source.current()
        answer = self._whole(request, access)
        if answer.status == 401:
            if not self._source.renew(access):
                raise _refused(request, answer)
            answer = self._whole(request, self._source.current())
        if answer.status >= 300:
            raise _refused(request, answer)
        return Response(answer.status, answer.headers, answer.body)

    def stream(self, request: Request) -> Stream:
        """An answer to be read as it arrives. Raises as `send` does, before the first byte."""
        return Stream(self._open(request), f"{request.method} {request.path}")

    def close(self) -> None:
        """Close idle connections. Streams that are open stay open until closed themselves."""
        with self._lock:
            opener, self._opener, self._endpoint = self._opener, None, None
        if opener is not None:
            opener.close()

    def _open(self, request: Request) -> urllib3.BaseHTTPResponse:
        access = self._source.current()
        response = self._once(request, access)
        if response.status == 401:
            refused = self._error(request, response)
            if not self._source.renew(access):
                raise refused
            response = self._once(request, self._source.current())
        if response.status >= 300:
            raise self._error(request, response)
        return response

    def _error(self, request: Request, response: urllib3.BaseHTTPResponse) -> ClusterError:
        return _refused(request, self._answer(request, response))

    def _answer(self, request: Request, response: urllib3.BaseHTTPResponse) -> Answer:
        describe = f"{request.method} {request.path}"
        limit = _ERROR_BODY_BYTES if response.status >= 300 else None
        body = self._read(response, describe, request.total_seconds, limit)
        return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)

    def _whole(self, request: Request, access: Access) -> Answer:
        """The answer to one request, of any status."""
        exchange = self._opener_for(access.endpoint).exchange
        url, headers = _url(request), self._headers(request, access)
        if exchange is None or not exchange.can(url, headers):
            return self._answer(request, self._once(request, access))
        limits = Limits(request.connect_seconds, request.read_seconds, request.total_seconds, _ERROR_BODY_BYTES)
        try:
            return exchange.call(request.method, url, headers, request.body, limits)
        except TooLong:
            text = f"the answer was not complete after {request.total_seconds:g} s"
            raise Unreachable(f"{request.method} {request.path}: {text}") from None
        except CONNECT_ERRORS as error:
            raise _unreachable(f"{request.method} {request.path} at {access.endpoint.url}", error) from error

    def _headers(self, request: Request, access: Access) -> dict[str, str]:
        headers = {"User-Agent": self._user_agent, "Accept": request.accept, "Accept-Encoding": "identity"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if access.authorization is not None:
            headers["Authorization"] = access.authorization
        return headers

    def _once(self, request: Request, access: Access) -> urllib3.BaseHTTPResponse:
        url, headers = _url(request), self._headers(request, access)
        timeout = urllib3.Timeout(connect=request.connect_seconds, read=request.read_seconds)
        try:
            return self._opener_for(access.endpoint)(
                request.method, url, body=request.body, headers=headers, timeout=timeout
            )
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(f"{request.method} {request.path} at {access.endpoint.url}", error) from error

    def _opener_for(self, endpoint: Endpoint) -> _Opener:
        with self._lock:
            if self._opener is None or self._endpoint != endpoint:
                opener = _opener(endpoint)
                if self._opener is not None:
                    # Calls under way end undisturbed; their connections are closed instead of kept.
                    self._opener.close()
                self._opener, self._endpoint = opener, endpoint
            return self._opener

    def _read(
        self, response: urllib3.BaseHTTPResponse, describe: str, seconds: float, limit: int | None = None
    ) -> bytes:
        """Read the body to its end; `seconds` bounds the whole, so that a trickle cannot hold a caller for ever."""
        deadline = self._clock() + seconds
        parts: list[bytes] = []
        size = 0
        try:
            while chunk := response.read1(_CHUNK_BYTES):
                parts.append(chunk)
                size += len(chunk)
                if limit is not None and size >= limit:
                    response.close()
                    break
                if self._clock() > deadline:
                    response.close()
                    raise Unreachable(f"{describe}: the answer was not complete after {seconds:g} s")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            response.close()
            raise _unreachable(describe, error) from error
        response.release_conn()
        return b"".join(parts)


def _url(request: Request) -> str:
    return request.path + ("?" + urlencode(request.query) if request.query else "")


def _refused(request: Request, answer: Answer) -> ClusterError:
    """The error for an answer of 300 and above."""
    if answer.status < 400:
        text = f"the server redirects (HTTP {answer.status}), an API server never does"
        return Unreadable(f"{request.method} {request.path}: {text}")
    later = answer.headers.get("retry-after")
    return from_response(answer.status, answer.body, {} if later is None else {"Retry-After": later})


class _Opener(Protocol):
    """Sends one request to a fixed server and returns the answer with an unread body.

    `exchange` is the short way for whole answers, where there is one.
    """

    @property
    def exchange(self) -> Exchange | None: ...  # a protocol member has no body

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse: ...  # a protocol member has no body

    def close(self) -> None: ...  # a protocol member has no body


_PLAIN: Final[Mapping[str, Any]] = {
    "retries": False,
    "redirect": False,
    "preload_content": False,
}


class _TcpOpener:
    def __init__(self, endpoint: Endpoint) -> None:
        options: dict[str, Any] = {"maxsize": _POOL_SIZE, "block": False, "socket_options": _KEEPALIVE}
        context = ssl_context(endpoint) if endpoint.url.startswith("https:") else None
        if context is not None:
            options["ssl_context"] = context
            options["server_hostname"] = endpoint.server_name
        self.exchange = (
            None if endpoint.proxy else Exchange(endpoint.url, context, endpoint.server_name, _KEEPALIVE, _POOL_SIZE)
        )
        self._base = endpoint.url.rstrip("/")
        self._pools = (
            urllib3.ProxyManager(endpoint.proxy, **options) if endpoint.proxy else urllib3.PoolManager(**options)
        )

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        return self._pools.urlopen(method, self._base + url, body=body, headers=headers, timeout=timeout, **_PLAIN)

    def close(self) -> None:
        self._pools.clear()
        if self.exchange is not None:
            self.exchange.close()


class _UnixOpener:
    exchange = None

    def __init__(self, path: str) -> None:
        self._pool = _UnixPool(path)

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        return self._pool.urlopen(method, url, body=body, headers=headers, timeout=timeout, **_PLAIN)

    def close(self) -> None:
        self._pool.close()


def _opener(endpoint: Endpoint) -> _Opener:
    path = endpoint.unix_path
    return _TcpOpener(endpoint) if path is None else _UnixOpener(path)


class _UnixConnection(HTTPConnection):
    """An HTTP connection whose socket is a Unix socket."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__("localhost", **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A socket with a Python timeout does not block, and then the kernel refuses at once while the server's
            # backlog is full, instead of waiting for room.
            seconds = self.timeout or 0.0
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
            sock.connect(self._path)
            sock.settimeout(self.timeout)
        except BlockingIOError as error:
            sock.close()
            raise urllib3.exceptions.ConnectTimeoutError(self, f"{self._path}: nobody accepts") from error
        except OSError as error:
            sock.close()
            raise urllib3.exceptions.NewConnectionError(self, f"{self._path}: {error.strerror or error}") from error
        return sock


def _timeval(seconds: float) -> bytes:
    """struct timeval of the kernel; zero is no timeout."""
    return struct.pack("ll", int(seconds), int(seconds % 1.0 * 1_000_000))


class _UnixPool(HTTPConnectionPool):
    """Connections to one Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", maxsize=_POOL_SIZE, block=False)
        self._path = path

    def _new_conn(self) -> Any:
        self.num_connections += 1
        return _UnixConnection(self._path, timeout=self.timeout.connect_timeout)


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


def _unreachable(describe: str, error: Exception) -> Unreachable:
    """What a person reads, for each way in which urllib3 says that there was no answer."""
    exceptions = urllib3.exceptions
    if isinstance(error, exceptions.NewConnectionError):
        return Unreachable(f"{describe}: no connection: {str(error).rpartition('>: ')[2]}; is the API server running?")
    if isinstance(error, exceptions.ConnectTimeoutError):
        return Unreachable(f"{describe}: no connection within the timeout; is the address right?")
    if isinstance(error, (exceptions.ReadTimeoutError, TimeoutError)):
        return Unreachable(f"{describe}: the server was silent for longer than the timeout", silent=True)
    if isinstance(error, (exceptions.SSLError, ssl.SSLError)):
        return Unreachable(f"{describe}: TLS failed: {error}")
    cause = error.args[1] if isinstance(error, exceptions.ProtocolError) and len(error.args) > 1 else error
    dropped = isinstance(cause, (ConnectionResetError, BrokenPipeError, ConnectionAbortedError))
    return Unreachable(f"{describe}: the connection broke: {cause}", dropped=dropped)
