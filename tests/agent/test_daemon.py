"""The agent as a process: what it exports about its own client of the API."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tests.agent.api_twin import ApiTwin


def metrics(path):
    """Text of /metrics; "" while nobody answers."""
    connection = http.client.HTTPConnection("unix")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(path)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def test_calls_and_cache_of_the_client_are_counted():
    with tempfile.TemporaryDirectory(prefix="st") as directory, ApiTwin(f"{directory}/api.sock", []):
        command = [
            *(sys.executable, "-m", "agent", "--node", "n1", "--cluster.server", f"unix:{directory}/api.sock"),
            *("--state-dir", f"{directory}/state", "--observe.listen", f"unix:{directory}/o.sock", "--observe-only"),
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=os.getcwd()) as agent:
            try:
                deadline = time.monotonic() + 30
                while 'slacktide_informer_lists_total{informer="pods"} 1.0' not in (
                    text := metrics(f"{directory}/o.sock")
                ):
                    assert time.monotonic() < deadline, text
                    time.sleep(0.05)
                assert 'slacktide_api_requests_total{code="2xx",verb="GET"}' in text
                agent.send_signal(signal.SIGTERM)
                assert agent.wait(15) == 0
            finally:
                agent.kill()
