"""Every panel of every dashboard has an answer from a real Prometheus that scrapes the running product."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socketserver
import subprocess
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler

import pytest
import yaml

from deploy.grafana.__main__ import BOARDS
from deploy.grafana.panels import Query
from standalone.probe import get
from tests.cluster.harness import free_ports
from tests.patience import PATIENCE
from tests.whole.drills import drill
from tests.whole.support import started, wait_until
from tests.whole.test_kills import start_be

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian's package)"),
]

SETTINGS = {
    "SLACKTIDE_PREDICTOR_PUBLISH_SECONDS": "0.5",
    "SLACKTIDE_PREDICTOR_RISE_WAIT_SECONDS": "0",
    "SLACKTIDE_PREDICTOR_FORECAST__GRACE_SECONDS": "0",
}
AGENT = """
turn_seconds: 0.5
policies: [batch_limits, weight, spread, burst, contention]
shortage: {run_delay_cut: 100, psi_cut: 1}
drill: {dead_man_seconds: 5, recover_seconds: 1}
"""
"""Whatever else this machine does must not keep BE from running: only a drill makes LS short, and nothing closes."""

STANDS_FOR = {"$__rate_interval": "30s", "$__range_s": "60", "$__range": "1m", "$node": "whole"}
JOBS = {"agent": {"node": "whole"}, "predictor": {}, "scheduler": {}, "extender": {}}


class Relay(socketserver.ThreadingTCPServer):
    """/metrics of a daemon's Unix socket on a loopback port: Prometheus asks no Unix sockets."""

    daemon_threads = True

    def __init__(self, path):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                try:
                    code, body = get(path, "/metrics", timeout=5.0)
                except (OSError, http.client.HTTPException):
                    code, body = 503, b""
                self.send_response(code)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                # A scraper that has waited for long enough has gone.
                with contextlib.suppress(BrokenPipeError):
                    self.wfile.write(body)

            def log_message(self, *_):
                return

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


@contextlib.contextmanager
def process(command, log):
    with open(log, "wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(15 * PATIENCE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


class Prometheus:
    """A real one on a loopback port."""

    def __init__(self, port):
        self.port = port

    def ask(self, path, **query):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", f"{path}?{urllib.parse.urlencode(query)}")
            answer = connection.getresponse()
            return answer.status, answer.read()

    def query(self, expr):
        """The series of an expression."""
        status, body = self.ask("/api/v1/query", query=expr)
        assert status == 200, (expr, body)
        return json.loads(body)["data"]["result"]

    def ready(self):
        try:
            return self.ask("/-/ready")[0] == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """The product under a little work, an extender beside it, and a Prometheus that scrapes all of it."""
    folder = tmp_path_factory.mktemp("prometheus")
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(started(SETTINGS, config={"agent": AGENT}))
        observe, (port, own) = f"{up.root}/x.sock", free_ports(2)
        command = [
            *(sys.executable, "-m", "scheduler_plugins.extender_main"),
            *("--cluster.server", f"unix:{up.state.api_socket}"),
            *("--listen", f"127.0.0.1:{port}", "--observe.listen", f"unix:{observe}"),
        ]
        stack.enter_context(process(command, folder / "extender.log"))
        paths = {**{name: up.state.observe_socket(name) for name in JOBS}, "extender": observe}
        jobs = []
        for name, labels in JOBS.items():
            relay = Relay(paths[name])
            stack.callback(relay.close)
            target = {"targets": [f"127.0.0.1:{relay.server_address[1]}"], "labels": labels}
            jobs.append({"job_name": f"slacktide-{name}", "static_configs": [target]})
        config = {"global": {"scrape_interval": "2s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        prometheus = Prometheus(own)
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus.port}",
        ]
        stack.enter_context(process(command, folder / "prometheus.log"))
        wait_until(prometheus.ready, up)
        yield up, prometheus, port


def ask_extender(port, pod):
    """Filter and prioritize, as the stock scheduler asks."""
    for verb in ("filter", "prioritize"):
        body = json.dumps({"Pod": pod, "NodeNames": ["whole"]})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
            connection.getresponse().read()


BE_POD = {
    "metadata": {"name": "asked", "namespace": "default", "uid": "asked"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {
                    "requests": {"kubernetes.io/batch-cpu": "1"},
                    "limits": {"kubernetes.io/batch-cpu": "1"},
                },
            }
        ]
    },
}


def meant(query: Query) -> str:
    expr = query.expr
    for name, value in STANDS_FOR.items():
        expr = expr.replace(name, value)
    return expr


def test_every_query_of_every_panel_has_an_answer(scene):
    up, prometheus, port = scene
    assert up.ls("--detach", "--name", "server", "--", "sh", "-c", "while sleep 0.05; do :; done").returncode == 0
    for index in range(12):
        start_be(up, f"job-{index}", "sleep 600")
    asked = [
        (board.title, question.title, meant(query))
        for board in BOARDS
        for question in board.questions
        for query in question.queries
    ]
    with drill(up, 2.0):
        deadline = time.monotonic() + 120 * PATIENCE
        silent = asked
        while silent and time.monotonic() < deadline:
            ask_extender(port, BE_POD)
            silent = [one for one in silent if not prometheus.query(one[2])]
            time.sleep(0.5)
    assert silent == []


def test_savings_and_history_are_told_from_the_same_prometheus(scene, tmp_path):
    up, prometheus, _ = scene
    address = ("--prometheus", f"http://127.0.0.1:{prometheus.port}")
    start_be(up, "spin", "while :; do :; done")

    def savings():
        done = up.run("savings", *address, "--days", "0.01", "--output", "json")
        found = json.loads(done.stdout) if done.returncode == 0 else None
        return found if found and found["total"]["core_hours"] else None

    found = wait_until(savings, up, seconds=90.0 * PATIENCE)
    assert [row["who"] for row in found["rows"]] == ["default"]
    picture = tmp_path / "whole.png"
    done = up.run("forecast", "whole", "--plot", "--hours", "0.5", "--png", str(picture), *address)
    assert done.returncode == 0, done.stderr
    assert "expected peak" in done.stdout
    assert picture.stat().st_size > 1000
