"""HTTP to the API server over TLS, loopback or a Unix socket. Retries nothing except once after a 401.

Whole answers go the short way of `exchange`, everything else through urllib3, which is imported when it is needed.
Both are behind this module: above it there are bytes, status codes and `Unreachable`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlencode

from slacktide.cluster import exchange
from slacktide.cluster.credentials import Access, CredentialSource, Endpoint
from slacktide.cluster.errors import ClusterError, Unreachable, Unreadable, from_response
from slacktide.cluster.exchange import POOL_SIZE, Answer, Exchange, Limits
from slacktide.cluster.unix import UnixConnection

if TYPE_CHECKING:
    import urllib3

    from slacktide.cluster.wire import Stream, UnixPool

_ERROR_BODY_BYTES: Final = 64 * 1024


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


class Transport:
    """Sends requests with the current credentials; safe to use from several threads."""

    def __init__(self, source: CredentialSource, user_agent: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._user_agent = user_agent
        self._clock = clock
        self._dated: tuple[str, float] | None = None
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
        date = answer.headers.get("date")
        if date is not None:
            self._dated = date, self._clock()
        return Response(answer.status, answer.headers, answer.body)

    def server_seconds(self) -> float | None:
        """What the server's clock says now, in seconds since the epoch, to about a second.

        By header Date of its last answer (RFC 9110, whole seconds); None where it sent none.
        """
        if self._dated is None:
            return None
        from email.utils import parsedate_to_datetime

        text, at = self._dated
        try:
            # Cut to the second: what was cut is half of one on average.
            return parsedate_to_datetime(text).timestamp() + 0.5 + self._clock() - at
        except (ValueError, TypeError):
            return None

    def stream(self, request: Request) -> Stream:
        """An answer to be read as it arrives. Raises as `send` does, before the first byte."""
        from slacktide.cluster.wire import Stream

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
        from slacktide.cluster import wire

        body = wire.read(response, describe, request.total_seconds, limit, self._clock)
        return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, body)

    def _whole(self, request: Request, access: Access) -> Answer:
        """The answer to one request, of any status."""
        opener = self._opener_for(access.endpoint)
        url, headers = _url(request), self._headers(request, access)
        if opener.exchange is None or not opener.exchange.can(url, headers):
            return self._answer(request, self._once(request, access))
        limits = Limits(request.connect_seconds, request.read_seconds, request.total_seconds, _ERROR_BODY_BYTES)
        try:
            return opener.exchange.call(request.method, url, headers, request.body, limits)
        except opener.errors as error:
            raise opener.unreachable(f"{request.method} {request.path} at {access.endpoint.url}", error) from error

    def _headers(self, request: Request, access: Access) -> dict[str, str]:
        headers = {"User-Agent": self._user_agent, "Accept": request.accept, "Accept-Encoding": "identity"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if access.authorization is not None:
            headers["Authorization"] = access.authorization
        return headers

    def _once(self, request: Request, access: Access) -> urllib3.BaseHTTPResponse:
        import urllib3

        from slacktide.cluster import wire

        url, headers = _url(request), self._headers(request, access)
        timeout = urllib3.Timeout(connect=request.connect_seconds, read=request.read_seconds)
        try:
            return self._opener_for(access.endpoint)(
                request.method, url, body=request.body, headers=headers, timeout=timeout
            )
        except urllib3.exceptions.HTTPError as error:
            raise wire.unreachable(f"{request.method} {request.path} at {access.endpoint.url}", error) from error

    def _opener_for(self, endpoint: Endpoint) -> _Opener:
        with self._lock:
            if self._opener is None or self._endpoint != endpoint:
                opener = _opener(endpoint)
                if self._opener is not None:
                    # Calls under way end undisturbed; their connections are closed instead of kept.
                    self._opener.close()
                self._opener, self._endpoint = opener, endpoint
            return self._opener


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

    `exchange` is the short way for whole answers, where there is one, `errors` what it raises.
    """

    @property
    def exchange(self) -> Exchange | None: ...  # a protocol member has no body

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...  # a protocol member has no body

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse: ...  # a protocol member has no body

    def unreachable(self, describe: str, error: Exception) -> Unreachable: ...  # a protocol member has no body

    def close(self) -> None: ...  # a protocol member has no body


class _UnixOpener:
    errors: Final = exchange.ERRORS

    def __init__(self, path: str) -> None:
        self._path = path
        self._pool: UnixPool | None = None
        self.exchange = Exchange("http://localhost", lambda seconds: UnixConnection(path, seconds), POOL_SIZE)

    def __call__(
        self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], timeout: urllib3.Timeout
    ) -> urllib3.BaseHTTPResponse:
        from slacktide.cluster.wire import UnixPool

        if self._pool is None:
            self._pool = UnixPool(self._path)
        return self._pool(method, url, body=body, headers=headers, timeout=timeout)

    def unreachable(self, describe: str, error: Exception) -> Unreachable:
        return exchange.unreachable(describe, error)

    def close(self) -> None:
        self.exchange.close()
        if self._pool is not None:
            self._pool.close()


def _opener(endpoint: Endpoint) -> _Opener:
    path = endpoint.unix_path
    if path is not None:
        return _UnixOpener(path)
    from slacktide.cluster.wire import TcpOpener

    return TcpOpener(endpoint)
