"""The short way of a call: what servers may send, well and badly, cut anywhere."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.cluster.exchange import BadAnswer, Exchange, Limits, TooLong

LIMITS = Limits(connect_seconds=5.0, read_seconds=5.0, total_seconds=10.0, error_bytes=1000)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Dialled:
    def __init__(self, address: tuple[str, int], seconds: float) -> None:
        self.sock = socket.create_connection(address, seconds)

    def close(self) -> None:
        self.sock.close()


class Server:
    """Answers the n-th request of all with the n-th of `answers`, in the pieces given; None closes instead."""

    def __init__(self, *answers: list[bytes] | bytes | None, close: bool = False) -> None:
        self.answers = [[one] if isinstance(one, bytes) else one for one in answers]
        self.requests: list[bytes] = []
        self.connections = 0
        self._close = close
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self.answers:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                connection.settimeout(10)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(OSError):
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        while self.answers:
            data = b""
            while not _whole(data):
                more = connection.recv(65536)
                if not more:
                    return
                data += more
            self.requests.append(data)
            pieces = self.answers.pop(0)
            if pieces is None:
                return
            for piece in pieces:
                connection.sendall(piece)
            if self._close:
                return

    def exchange(self) -> Exchange:
        host, port = self._listening.getsockname()
        return Exchange(f"http://{host}:{port}/base", lambda seconds: Dialled((host, port), seconds), 4)

    def end(self) -> None:
        self.answers.clear()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(15)


def _whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0)
    return bool(end) and len(body) >= length


@contextlib.contextmanager
def serving(*answers: list[bytes] | bytes | None, close: bool = False) -> Iterator[tuple[Server, Exchange]]:
    server = Server(*answers, close=close)
    exchange = server.exchange()
    try:
        yield server, exchange
    finally:
        exchange.close()
        server.end()


def test_a_request_is_one_message_and_the_connection_is_kept() -> None:
    with serving(OK, OK) as (server, exchange):
        for body in (b'{"a":1}', None):
            assert exchange.call("POST", "/x?y=1", {"Accept": "a/b"}, body, LIMITS).body == b"ok"
    first, second = server.requests
    assert first.startswith(b"POST /base/x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert first.endswith(b'Accept: a/b\r\nContent-Length: 7\r\n\r\n{"a":1}')
    assert b"Content-Length" not in second
    assert server.connections == 1


FORMS = {
    "length": b"Content-Length: 5\r\n\r\nhello",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: z\r\n\r\n",
    "close": b"Connection: close\r\n\r\nhello",
}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.lists(st.integers(1, 90), max_size=6), st.booleans())
def test_any_form_of_body_cut_anywhere(form: str, cuts: list[int], early: bool) -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" * early + b"HTTP/1.1 200 OK\r\nX-One: 1\r\n" + FORMS[form]
    edges = [0, *sorted(cut for cut in set(cuts) if cut < len(answer)), len(answer)]
    pieces = [answer[a:b] for a, b in itertools.pairwise(edges)]
    with serving(pieces, close=form == "close") as (_, exchange):
        got = exchange.call("GET", "/", {}, None, LIMITS)
    assert (got.status, got.body, got.headers["x-one"]) == (200, b"hello", "1")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ],
)
def test_what_is_no_answer_is_refused_and_its_connection_is_not_used_again(answer: bytes) -> None:
    with serving(answer, OK) as (server, exchange):
        with pytest.raises(BadAnswer):
            exchange.call("GET", "/", {}, None, LIMITS)
        assert exchange.call("GET", "/", {}, None, LIMITS).body == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer", [None, b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_a_connection_that_ends_early_is_a_reset(answer: bytes | None) -> None:
    with serving(answer, close=True) as (_, exchange), pytest.raises(ConnectionResetError):
        exchange.call("GET", "/", {}, None, LIMITS)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    with serving(OK, OK, close=True) as (server, exchange):
        for _ in range(2):
            assert exchange.call("POST", "/", {}, b"{}", LIMITS).body == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_without_a_body(status: bytes) -> None:
    with serving(b"HTTP/1.1 " + status + b"\r\n\r\n", OK) as (server, exchange):
        assert exchange.call("GET", "/", {}, None, LIMITS).body == b""
        assert exchange.call("GET", "/", {}, None, LIMITS).body == b"ok"
        assert server.connections == 1


def test_the_page_of_an_error_is_cut() -> None:
    page = b"HTTP/1.1 500 Oh\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000
    with serving(page, OK) as (server, exchange):
        assert len(exchange.call("GET", "/", {}, None, LIMITS).body) == 1000
        assert exchange.call("GET", "/", {}, None, LIMITS).body == b"ok"
        assert server.connections == 2


def test_an_answer_may_take_so_long_in_all() -> None:
    times = iter(range(1000))
    with serving([b"HTTP/1.1 200 OK\r\n", b"Content-Length: 2\r\n\r\n", b"ok"]) as (_, exchange):
        exchange._clock = lambda: float(next(times))
        with pytest.raises(TooLong):
            exchange.call("GET", "/", {}, None, Limits(5.0, 5.0, 0.5, 1000))


def test_what_must_be_quoted_or_checked_is_left_to_others() -> None:
    assert Exchange.can("/api/v1/pods?x=%20", {"Authorization": "Bearer abc"})
    assert not Exchange.can("/a b", {})
    assert not Exchange.can("/a\r\nX: y", {})
    assert not Exchange.can("/ü", {})
    assert not Exchange.can("/", {"Authorization": "Bearer a\r\nX: y"})
