from __future__ import annotations

import http.server
import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.objects import ExecAction, HTTPGetAction, Probe, TCPSocketAction
from standalone.runner.probes import Prober, ProbeTarget, Readiness, check
from tests.standalone.runner.twin import wait_for


def target(probe):
    return ProbeTarget(probe=probe, dirs=(), env={"PATH": os.environ["PATH"]}, cwd="/", address="127.0.0.1")


@pytest.mark.parametrize(
    ("results", "ready"),
    [("", False), ("1", False), ("11", True), ("110", True), ("11000", False), ("1100100", True), ("110000", False)],
)
def test_thresholds(results, ready):
    probe, state = Probe(success_threshold=2, failure_threshold=3), Readiness()
    for result in results:
        state = state.after(result == "1", probe)
    assert state.ready is ready


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_a_change_needs_its_whole_threshold(results, successes, failures):
    probe, state = Probe(success_threshold=successes, failure_threshold=failures), Readiness()
    for index, result in enumerate(results):
        before, state = state, state.after(result, probe)
        if state.ready != before.ready:
            needed = max(1, successes if state.ready else failures)
            assert results[index + 1 - needed : index + 1] == [state.ready] * needed


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(int(self.path.strip("/")))
            self.end_headers()

        def log_message(self, *_):
            pass

    made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made.server_port
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize(("code", "passes"), [(200, True), (302, True), (400, False), (503, False)])
def test_http(server, code, passes):
    found = check(target(Probe(http_get=HTTPGetAction(port=server, path=f"/{code}"))))
    assert (found is None) is passes
    assert passes or str(code) in found


def test_tcp(server):
    assert check(target(Probe(tcp_socket=TCPSocketAction(port=str(server))))) is None


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert "refused" in check(target(Probe(tcp_socket=TCPSocketAction(port=port)))).lower()
        assert "refused" in check(target(Probe(http_get=HTTPGetAction(port=port)))).lower()


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (Probe(tcp_socket=TCPSocketAction(port="web")), "is a name"),
        (Probe(http_get=HTTPGetAction(port=1, scheme="HTTPS")), "HTTPS"),
        (Probe(exec=ExecAction(command=["sh", "-c", "echo why >&2; exit 3"])), "command ended with 3: why"),
        (Probe(exec=ExecAction(command=["no-such-command"])), "no-such-command"),
        (Probe(exec=ExecAction(command=["sleep", "100"]), timeout_seconds=1), "did not end within 1 s"),
    ],
)
def test_failures_say_why(probe, words):
    assert words in check(target(probe))


def test_exec():
    assert check(target(Probe(exec=ExecAction(command=["true"])))) is None


def test_workers_follow_the_targets():
    changed, built = threading.Event(), []

    def build():
        built.append(1)
        return target(Probe())

    prober = Prober(changed.set, run=lambda _: None)
    try:
        prober.sync({"a": build})
        assert changed.wait(5)
        wait_for(lambda: prober.ready() == {"a": True})
        prober.sync({"a": build})
        assert built == [1]
        prober.sync({})
        assert prober.ready() == {}
    finally:
        prober.stop()
