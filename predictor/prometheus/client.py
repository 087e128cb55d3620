"""HTTP to a Prometheus or to what speaks its query API (Thanos, Mimir, VictoriaMetrics).

One query at a time, at most so many a second; each has a deadline that the server knows too. What may pass (no
connection, 429, 5xx) is tried again with growing jittered pauses; what is too much for the server leaves as
`TooHeavy`, because only a smaller query helps. Redirects are not followed: they lead to login pages, and would carry
the token along.

Source: Prometheus documentation, "HTTP API": 400 bad expression, 422 cannot be executed (limits among the causes), 503
timed out or cancelled. Thanos takes `partial_response` and `dedup`, VictoriaMetrics `deny_partial_response` and
`nocache` (without which it rounds times and may hide data that was filled in later); the others skip what they do not
know.
"""

from __future__ import annotations

import email.utils
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import urllib3

from predictor.prometheus import answers
from predictor.prometheus.access import Access, secure_pool
from predictor.prometheus.answers import Answer
from predictor.prometheus.errors import Away, PrometheusError, TooHeavy
from slacktide import __version__
from slacktide.cluster.retry import Backoff

_CHUNK_BYTES: Final = 256 * 1024
_ERROR_BYTES: Final = 64 * 1024
_EXTRA_SECONDS: Final = 5.0
"""The server gives up first, so that it says why."""
_TOO_MUCH: Final = re.compile(
    r"too many|more than|exceed|limit|maximum|max[-_ ]|out of memory|timed out|time ?out|deadline|too large|canceled",
    re.IGNORECASE,
)
_TOO_MANY_SERIES: Final = re.compile(
    r"(number of|too many|unique) (\w+ )?(time ?)?series|max-series|cardinality", re.IGNORECASE
)
_LONGEST_PAUSE: Final = 60.0
_GREETINGS: Final = 2
_QUIET: Final[Mapping[str, str]] = {
    "dedup": "true",
    "partial_response": "false",
    "deny_partial_response": "1",
    "nocache": "1",
}


@dataclass(frozen=True, slots=True)
class Manners:
    """How hard the server may be asked.

    answer_seconds  one query may take so long, at the server and until its last byte is here
    max_bytes       a longer answer is not read to its end: the query must be smaller
    """

    connect_seconds: float = 10.0
    answer_seconds: float = 120.0
    attempts: int = 6
    per_second: float = 10.0
    max_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class World:
    """Clocks, chance and sleep, so that a test needs none of them."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[], float] = random.random


@dataclass(slots=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Passing(Exception):  # never leaves this module
    """An answer that may be another one soon; `pause`: the server said when."""

    def __init__(self, why: str, pause: float | None = None, *, slow: bool = False) -> None:
        self.why = why
        self.pause = pause
        self.slow = slow
        super().__init__(why)


@dataclass(slots=True)
class Client:
    """Asks one server. Not for several threads at once."""

    access: Access
    manners: Manners = field(default_factory=Manners)
    world: World = field(default_factory=World)
    queries: int = 0
    skew_seconds: float = 0.0
    """Clock of the server minus ours, as of the newest answer that said its time."""
    _pool: urllib3.PoolManager | None = None
    _next_at: float = 0.0
    _method: str = "POST"

    def instant(self, expression: str, at: float) -> Answer:
        """Vector of `expression` at epoch second `at`. Raises PrometheusError, Away, TooHeavy."""
        return self._ask("query", expression, {"time": _number(at)})

    def range(self, expression: str, start: float, end: float, step: float) -> Answer:
        """Matrix of `expression` at start, start + step, ... up to `end`. Raises PrometheusError, Away, TooHeavy."""
        return self._ask(
            "query_range", expression, {"start": _number(start), "end": _number(end), "step": _number(step)}
        )

    def greet(self) -> None:
        """Ask the cheapest query there is, which also tells the clock of the server.

        It is tried twice only: an address that is wrong must not take minutes to say so.
        Raises PrometheusError, Away, TooHeavy.
        """
        self._ask("query", "vector(1)", {"time": _number(self.now())}, attempts=_GREETINGS)

    def alive(self) -> bool:
        """Whether the server answers at all."""
        try:
            self.greet()
        except (Away, TooHeavy):
            return False
        return True

    def now(self) -> float:
        """Time of day by the clock of the server, which is the one its samples carry."""
        return self.world.wall() + self.skew_seconds

    def close(self) -> None:
        """Close idle connections."""
        if self._pool is not None:
            self._pool.clear()

    def _ask(self, endpoint: str, expression: str, extra: Mapping[str, str], attempts: int | None = None) -> Answer:
        timeout = f"{self.manners.answer_seconds:g}s"
        form = {"query": expression, "timeout": timeout, **extra, **_QUIET}
        where = f"{self.access.base}/api/v1/{endpoint}"
        backoff = Backoff(1.0, _LONGEST_PAUSE, self.world.uniform)
        slow = 0
        most = self.manners.attempts if attempts is None else attempts
        for attempt in range(1, most + 1):
            try:
                reply = self._once(f"/api/v1/{endpoint}", form, where)
                return answers.read(reply.body, where)
            except _Passing as passing:
                # A second time-out in a row is no accident.
                slow += passing.slow
                if slow >= 2:
                    raise TooHeavy(f"{where}: {passing.why}") from passing
                if attempt == most:
                    raise Away(f"{where}: {passing.why}; gave up after {attempt} attempts") from passing
                asked = backoff.next() if passing.pause is None else min(passing.pause, _LONGEST_PAUSE)
                self.world.sleep(asked + 0.2 * self.world.uniform() * max(asked, 1.0))
        raise AssertionError("the loop returns or raises")

    def _once(self, path: str, form: Mapping[str, str], where: str) -> _Reply:
        self._pace()
        reply = self._send(self._method, path, form, where)
        if reply.status in (403, 405, 501) and self._method == "POST":
            # Some proxies let nothing but GET through; the API server of Kubernetes wants more rights for POST.
            by_get = self._send("GET", path, form, where)
            if by_get.status == 200:
                self._method, reply = "GET", by_get
        self._note_time(reply.headers)
        if reply.status != 200:
            raise self._judged(reply, where)
        return reply

    def _pace(self) -> None:
        now = self.world.monotonic()
        if now < self._next_at:
            self.world.sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + 1.0 / self.manners.per_second
        self.queries += 1

    def _send(self, method: str, path: str, form: Mapping[str, str], where: str) -> _Reply:
        if self._pool is None:
            self._pool = secure_pool(self.access)
        headers = {
            "User-Agent": f"slacktide/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            **self.access.fresh_headers(),
        }
        encoded = urlencode(form)
        url = self.access.base + path
        body: bytes | None = None
        if method == "POST":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = encoded.encode()
        else:
            url = f"{url}?{encoded}"
        deadline = self.world.monotonic() + self.manners.answer_seconds + _EXTRA_SECONDS
        options: dict[str, Any] = {"retries": False, "redirect": False, "preload_content": False}
        timeout = urllib3.Timeout(
            connect=self.manners.connect_seconds, read=self.manners.answer_seconds + _EXTRA_SECONDS
        )
        try:
            response = self._pool.urlopen(method, url, body=body, headers=headers, timeout=timeout, **options)
            try:
                return _Reply(response.status, dict(response.headers), self._body(response, deadline, where))
            finally:
                response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(error, where) from error

    def _body(self, response: urllib3.BaseHTTPResponse, deadline: float, where: str) -> bytes:
        limit = self.manners.max_bytes if response.status == 200 else _ERROR_BYTES
        parts: list[bytes] = []
        size = 0
        while chunk := response.read(_CHUNK_BYTES, decode_content=True):
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                response.close()
                if response.status == 200:
                    raise TooHeavy(f"{where}: the answer is longer than {limit} bytes", series=True)
                break
            if self.world.monotonic() > deadline:
                response.close()
                raise _Passing("the answer did not end in time", slow=True)
        return b"".join(parts)

    def _note_time(self, headers: Mapping[str, str]) -> None:
        text = {name.lower(): value for name, value in headers.items()}.get("date")
        try:
            told = email.utils.parsedate_to_datetime(text).timestamp() if text else None
        except (ValueError, OverflowError):
            told = None
        if told is not None:
            skew = told - self.world.wall()
            # The header has whole seconds, and the answer was on its way.
            self.skew_seconds = skew if abs(skew) > 2.0 else 0.0

    def _judged(self, reply: _Reply, where: str) -> Exception:
        """What a refusal means."""
        said = answers.trouble(reply.body)
        status = reply.status
        if status == 429 or (status in (500, 502, 503) and not _TOO_MUCH.search(said)):
            return _Passing(f"HTTP {status}: {said}", _retry_after(reply.headers))
        if status in (503, 504):
            return _Passing(f"HTTP {status}: {said}", slow=True)
        if status == 413 or (status in (400, 422, 500, 502) and _TOO_MUCH.search(said)):
            return TooHeavy(f"{where}: HTTP {status}: {said}", series=bool(_TOO_MANY_SERIES.search(said)))
        if status >= 500:
            return _Passing(f"HTTP {status}: {said}")
        return PrometheusError(f"{where}: HTTP {status}: {said or 'no reason given'}{_remedy(status, reply.headers)}")


def _remedy(status: int, headers: Mapping[str, str]) -> str:
    if 300 <= status < 400:
        target = {name.lower(): value for name, value in headers.items()}.get("location", "another address")
        return f"; it redirects to {target}: name the final address, with --token-file when it is a login page"
    if status == 401:
        return "; it wants to know who asks: give --token-file, --header or user:password in the address"
    if status == 403:
        return "; these credentials may not query: ask for the right to read metrics"
    if status == 404:
        return (
            "; there is no query API: add the path it is served under (Mimir: /prometheus, VictoriaMetrics cluster: "
            "/select/0/prometheus)"
        )
    return ""


def _unreachable(error: Exception, where: str) -> Exception:
    exceptions = urllib3.exceptions
    if isinstance(error, exceptions.SSLError):
        return PrometheusError(f"{where}: TLS failed: {error}; name the CA of the server with --ca-file")
    if isinstance(error, exceptions.LocationValueError):
        return PrometheusError(f"{where}: no address: {error}")
    if isinstance(error, exceptions.NewConnectionError):
        return _Passing(f"no connection: {str(error).rpartition(': ')[2] or error}")
    if isinstance(error, exceptions.ConnectTimeoutError):
        return _Passing("no connection in time; is the address right?")
    if isinstance(error, exceptions.ReadTimeoutError):
        return _Passing("no answer in time", slow=True)
    if isinstance(error, exceptions.DecodeError):
        return _Passing(f"the answer cannot be unpacked: {error}")
    return _Passing(f"the connection failed: {error}")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
