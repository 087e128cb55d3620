"""One HTTP/1.1 call on a kept connection: one write, one parse, a whole answer.

Connecting is somebody else's (`unix`, `wire`); what happens on a connection afterwards is plain HTTP/1.1, which costs
here a quarter of what urllib3 and http.client take. Source: RFC 9112. Not for streams, proxies and compressed bodies.
"""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from slacktide.cluster.errors import Unreachable

POOL_SIZE: Final = 32
"""Idle connections that are kept."""

_CHUNK_BYTES: Final = 64 * 1024
_MOST_HEAD_BYTES: Final = 64 * 1024
_MOST_LINE_BYTES: Final = 4096
_END_OF_HEAD: Final = b"\r\n\r\n"
_PRINTABLE: Final = re.compile(r"[!-~]*")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_STATUS: Final = re.compile(r"[1-9][0-9]{2}")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_HEADER: Final = re.compile(r"[ -~]*")


class NotConnected(OSError):
    """There is no connection. `late`: nobody took the call in the time that it may take."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        self.late = late
        super().__init__(message)


class TooLong(Exception):
    """The answer was not complete in the seconds that it may take."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the answer was not complete after {seconds:g} s")


class BadAnswer(Exception):
    """What came is no HTTP answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; names of headers are in lower case. A body of an error may be cut at the limit given."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds to connect, to wait for bytes each time (None: for ever) and for all, and bytes of an error's body."""

    connect_seconds: float
    read_seconds: float | None
    total_seconds: float
    error_bytes: int


class _Reader:
    """Bytes of one answer."""

    def __init__(self, sock: socket.socket, seconds: float, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._seconds = seconds
        self._deadline = clock() + seconds
        self._clock = clock
        self._data = b""

    def _more(self) -> None:
        if self._clock() > self._deadline:
            raise TooLong(self._seconds)
        data = self._sock.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection before the answer was complete")
        self._data += data

    def until(self, end: bytes, most: int) -> bytes:
        """What comes before `end`, which is taken, too."""
        while (at := self._data.find(end)) < 0:
            if len(self._data) > most:
                raise BadAnswer(f"no end of a line or head after {len(self._data)} bytes")
            self._more()
        found, self._data = self._data[:at], self._data[at + len(end) :]
        return found

    def exactly(self, count: int) -> bytes:
        """So many bytes."""
        parts, size = [self._data], len(self._data)
        while size < count:
            self._data = b""
            self._more()
            parts.append(self._data)
            size += len(self._data)
        whole = b"".join(parts) if len(parts) > 1 else parts[0]
        self._data = whole[count:]
        return whole[:count] if len(whole) > count else whole

    def rest(self, most: int | None) -> bytes:
        """All until the server closes the connection, or until there are `most` bytes."""
        parts, size = [self._data], len(self._data)
        while most is None or size < most:
            self._data = b""
            try:
                self._more()
            except ConnectionResetError:
                break
            parts.append(self._data)
            size += len(self._data)
        return b"".join(parts)

    def chunked(self, most: int | None) -> tuple[bytes, bool]:
        """(the body, whether it was read to its end)."""
        parts: list[bytes] = []
        size = 0
        while True:
            line = self.until(b"\r\n", _MOST_LINE_BYTES).split(b";", 1)[0].strip()
            if not _SIZE.fullmatch(line):
                raise BadAnswer(f"a chunk begins with {line[:40]!r}, not with its size")
            count = int(line, 16)
            if count == 0:
                while self.until(b"\r\n", _MOST_HEAD_BYTES):
                    pass
                return b"".join(parts), True
            parts.append(self.exactly(count))
            if self.exactly(2) != b"\r\n":
                raise BadAnswer("a chunk is longer than its size")
            size += count
            if most is not None and size >= most:
                return b"".join(parts), False


class Connection(Protocol):
    """A connection to the server."""

    @property
    def sock(self) -> socket.socket:
        """Its socket, with TLS where the server wants it."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Exchange:
    """Calls one server over connections that are kept; any thread may call.

    `url` is the server's with what stands before every path; `dial` makes a connection within so many seconds. Raises
    what `dial` and sockets raise, TooLong and BadAnswer.
    """

    def __init__(
        self,
        url: str,
        dial: Callable[[float], Connection],
        most_idle: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        self._dial = dial
        self._prefix = parts.path.rstrip("/")
        self._host_line = f"Host: {parts.netloc.rpartition('@')[2]}\r\n"
        self._clock = clock
        self._idle: deque[Connection] = deque()
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._closed = False

    @staticmethod
    def can(url: str, headers: Mapping[str, str]) -> bool:
        """Whether a call can be made here; one with odd characters is for a library that quotes and checks them."""
        return bool(_PRINTABLE.fullmatch(url)) and all(_HEADER.fullmatch(value) for value in headers.values())

    def call(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limits: Limits) -> Answer:
        """Send one request and read its answer. Errors are answers, too."""
        data = self._request(method, url, headers, body)
        connection = self._connection(limits.connect_seconds)
        sock = connection.sock
        keep = False
        try:
            if sock.gettimeout() != limits.read_seconds:
                sock.settimeout(limits.read_seconds)
            sock.sendall(data)
            reader = _Reader(sock, limits.total_seconds, self._clock)
            answer, keep = _answer(reader, method, limits.error_bytes)
            return answer
        finally:
            self._give_back(connection, keep=keep)

    def close(self) -> None:
        """Close idle connections; those in use are closed when their calls end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def _request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {self._prefix}{url} HTTP/1.1\r\n", self._host_line]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}\r\n")
        head = ("".join(lines) + "\r\n").encode("ascii")
        # In one write, so that it is one record of TLS and the server wakes up once.
        return head + body if body else head

    def _connection(self, connect_seconds: float) -> Connection:
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if not _readable(connection.sock):
                return connection
            # The server has closed it meanwhile.
            connection.close()
        return self._dial(connect_seconds)

    def _give_back(self, connection: Connection, *, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed and len(self._idle) < self._most_idle:
                self._idle.append(connection)
                return
        connection.close()


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _answer(reader: _Reader, method: str, error_bytes: int) -> tuple[Answer, bool]:
    """(the answer, whether the connection can be used again)."""
    status, headers, keep = _head(reader)
    while 100 <= status < 200:
        status, headers, keep = _head(reader)
    most = error_bytes if status >= 300 else None
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if method == "HEAD" or status in (204, 304):
        body = b""
    elif coding is not None:
        if coding.lower() != "chunked":
            raise BadAnswer(f"Transfer-Encoding is {coding[:40]!r}")
        body, ended = reader.chunked(most)
        keep = keep and ended
    elif length is not None:
        if not _LENGTH.fullmatch(length):
            raise BadAnswer(f"Content-Length is {length[:40]!r}")
        wanted = int(length) if most is None else min(int(length), most)
        body, keep = reader.exactly(wanted), keep and wanted == int(length)
    else:
        body, keep = reader.rest(most), False
    return Answer(status, headers, body), keep


def _head(reader: _Reader) -> tuple[int, dict[str, str], bool]:
    """(status, headers, whether the connection stays open)."""
    first, *lines = reader.until(_END_OF_HEAD, _MOST_HEAD_BYTES).decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not _STATUS.fullmatch(code):
        raise BadAnswer(f"an answer begins with {first[:80]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"a header is {line[:80]!r}")
        headers[name.lower()] = value.strip()
    return int(code), headers, version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()


ERRORS: Final = (OSError, TooLong, BadAnswer)
"""What `Exchange.call` raises when there was no answer, and connecting raises nothing else; ssl's are OSErrors."""


def unreachable(describe: str, error: Exception) -> Unreachable:
    """What a person reads when there was no answer."""
    if isinstance(error, NotConnected):
        if error.late:
            return Unreachable(f"{describe}: no connection within the timeout; is the address right?")
        return Unreachable(f"{describe}: no connection: {error}; is the API server running?")
    if isinstance(error, TooLong):
        return Unreachable(f"{describe}: {error}")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{describe}: the server was silent for longer than the timeout", silent=True)
    dropped = isinstance(error, (ConnectionResetError, BrokenPipeError, ConnectionAbortedError))
    return Unreachable(f"{describe}: the connection broke: {error}", dropped=dropped)
