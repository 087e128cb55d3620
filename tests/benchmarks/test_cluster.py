"""The parts of the benchmark of a large cluster that need none; `tests/cluster/test_product_scale.py` runs others."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from benchmarks import cluster
from benchmarks.relay import relay
from tests.cluster.harness import free_ports


@pytest.fixture(params=["port", "unix"])
def echo(request, tmp_path):
    """Port or Unix socket of a server that answers each connection with what it was told, twice."""
    unix = request.param == "unix"
    made = (
        socket.create_server(str(tmp_path / "echo.sock"), family=socket.AF_UNIX)
        if unix
        else socket.create_server(("127.0.0.1", 0))
    )
    with contextlib.closing(made) as listening:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.sendall(2 * connection.recv(4096))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix:{listening.getsockname()}" if unix else listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def talk(port, text):
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.sendall(text)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
        return answer


def test_a_relay_counts_both_ways_and_changes_nothing(echo):
    with relay(echo) as counting:
        assert counting.total() == 0
        assert talk(counting.port, b"x" * 100) == b"x" * 200
        assert talk(counting.port, b"y") == b"yy"
        assert counting.total() == 303


def test_a_relay_outlives_a_server_that_is_away():
    (nobody,) = free_ports(1)
    with relay(nobody) as counting:
        # The connection ends in one way or the other, as one to the server itself would have.
        with contextlib.suppress(ConnectionError):
            assert talk(counting.port, b"x") == b""
        assert counting.total() == 0


def test_only_requests_that_write_count():
    text = (
        'apiserver_request_total{code="200",resource="nodes",subresource="status",verb="PATCH",version="v1"} 7\n'
        'apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT",version="v1"} 2\n'
        'apiserver_request_total{code="200",resource="nodes",subresource="",verb="WATCH",version="v1"} 100\n'
        'apiserver_request_total{code="200",resource="nodes",subresource="",verb="LIST",version="v1"} 1e+03\n'
    )
    assert [float(value) for value in cluster._WRITES.findall(text)] == [7, 2]
