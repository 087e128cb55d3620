from __future__ import annotations

import http.client
import io
import json
import logging
import os
import platform
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from slacktide import __version__
from slacktide.errors import SettingsError
from slacktide.observe import (
    Health,
    ObserveServer,
    Queried,
    StopSignals,
    build_info,
    get_logger,
    server,
    setup_logging,
)
from slacktide.settings import ObserveSettings


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


# --- logs


@pytest.fixture
def logs():
    """Sets logging up on a buffer and puts everything back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()

    def arrange(registry=None, **settings) -> io.StringIO:
        setup_logging("agent", ObserveSettings(**settings), registry, stream)
        return stream

    yield arrange
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_time_level_component_logger_event_and_fields(logs):
    stream = logs()
    get_logger("agent.loop").info("throttled", pod="a/b", reason="LS pressure", quota=None)
    (line,) = lines(stream)
    assert list(line)[:5] == ["time", "level", "component", "logger", "event"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"])
    assert (line["level"], line["component"], line["logger"], line["event"]) == (
        "info",
        "agent",
        "agent.loop",
        "throttled",
    )
    assert (line["pod"], line["reason"], line["quota"]) == ("a/b", "LS pressure", None)


def test_loggers_of_libraries_come_out_the_same_way(logs):
    stream = logs()
    logging.getLogger("somelib").warning("slow by %d s", 3, extra={"peer": "x"})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"], line["peer"]) == ("slow by 3 s", "warning", "somelib", "x")
    assert line["component"] == "agent"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_exceptions_are_rendered(logs, log_format):
    stream = logs(log_format=log_format)
    try:
        int("broken \N{SNOWMAN}")
    except ValueError:
        get_logger("x").exception("failed")
        logging.getLogger("lib").exception("failed too")
    text = stream.getvalue()
    assert text.count("Traceback") == 2
    assert "ValueError: invalid literal" in text
    if log_format == "json":
        assert all("broken \N{SNOWMAN}" in line["exception"] for line in lines(stream))


def test_values_that_json_has_no_form_for_are_shown_and_never_raise(logs):
    stream = logs()
    get_logger("x").info("odd", thing=object(), path=b"\xff", names={"a"}, broken="\udcff")
    (line,) = lines(stream)
    assert "object" in line["thing"]


def test_the_level_holds_for_both_and_can_be_changed(logs):
    stream = logs(log_level="warning")
    get_logger("x").info("no")
    logging.getLogger("y").info("no")
    get_logger("x").warning("yes")
    logs(log_level="debug")
    get_logger("x").debug("yes too")
    logging.getLogger("y").debug("and this")
    assert [line["event"] for line in lines(stream)] == ["yes", "yes too", "and this"]


def test_libraries_that_would_write_tokens_stay_quiet_at_debug(logs):
    stream = logs(log_level="debug")
    logging.getLogger("kubernetes.client.rest").debug("response body: token")
    logging.getLogger("urllib3.connectionpool").debug("GET")
    assert stream.getvalue() == ""


def test_setting_up_again_does_not_write_twice(logs):
    logs()
    stream = logs()
    get_logger("x").info("once")
    assert len(lines(stream)) == 1


def test_console_is_for_people(logs):
    stream = logs(log_format="console")
    get_logger("agent.loop").info("throttled", pod="a/b")
    assert re.search(r"\[info +\] throttled +\[agent\.loop\].* pod=a/b", stream.getvalue())
    assert "\x1b" not in stream.getvalue()


def test_warnings_and_worse_are_counted(logs):
    registry = CollectorRegistry()
    logs(registry)
    logs(registry)
    log = get_logger("x")
    log.info("one")
    log.warning("two")
    logging.getLogger("lib").error("three")
    log.error("four")
    counts = {
        level: registry.get_sample_value("slacktide_log_events_total", {"component": "agent", "level": level})
        for level in ("info", "warning", "error", "critical")
    }
    assert counts == {"info": None, "warning": 1, "error": 2, "critical": 0}


def test_context_variables_are_bound(logs):
    stream = logs()
    with structlog.contextvars.bound_contextvars(turn=7):
        get_logger("x").info("inside")
    get_logger("x").info("outside")
    inside, outside = lines(stream)
    assert inside["turn"] == 7
    assert "turn" not in outside


# --- health


def test_health_names_what_is_wrong():
    health = Health()
    assert health.not_live() == {}
    assert health.not_ready() == {"start": "still starting"}, "a daemon answers before its parts exist"
    health.add_ready("stopping", lambda: None, part=False)
    assert health.not_ready() == {"start": "still starting"}, "the daemon's own check is no part"
    health.add_live("loop", lambda: None)
    health.add_ready("api", lambda: "not synced")
    health.add_ready("predictor", lambda: 1 / 0)
    assert health.not_live() == {}
    failing = health.not_ready()
    assert failing["api"] == "not synced"
    assert "the check itself failed: ZeroDivisionError" in failing["predictor"]
    health.add_ready("api", lambda: None)
    assert set(health.not_ready()) == {"predictor"}


# --- server


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self.path)


def connection(address: str) -> http.client.HTTPConnection:
    if address.startswith("unix:"):
        return UnixConnection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=10)


def ask(address: str, path: str, method: str = "GET", **headers):
    with closing(connection(address)) as client:
        client.request(method, path, headers=headers)
        response = client.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()


@pytest.fixture
def served():
    """Starts observe servers and stops them at the end."""
    started = []

    def start(listen="127.0.0.1:0", *, registry=None, health=None, routes=None) -> ObserveServer:
        observed = ObserveServer(listen, registry or CollectorRegistry(), health or Health(), routes)
        started.append(observed)
        observed.start()
        return observed

    yield start
    for observed in started:
        observed.stop()


@pytest.fixture(params=["tcp", "unix"])
def listen(request, tmp_path):
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/observe.sock"


def test_a_route_may_look_at_what_is_asked_for(served):
    address = served(routes={"/asked": Queried(lambda query: json.dumps(dict(query)).encode())}).address
    assert json.loads(ask(address, "/asked?node=a%2Fb&uid=1&uid=2")[2]) == {"node": "a/b", "uid": "2"}
    assert json.loads(ask(address, "/asked")[2]) == {}


def test_metrics_health_and_routes(served, listen):
    registry, health = CollectorRegistry(), Health()
    Counter("slacktide_turns", "Turns.", registry=registry).inc(3)
    build_info(registry, "agent")
    routes = {"/status": lambda: b'{"node": "a"}'}
    address = served(listen, registry=registry, health=health, routes=routes).address
    status, headers, text = ask(address, "/metrics?name=x")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert "slacktide_turns_total 3.0" in text
    assert "_created" not in text
    info = {"component": "agent", "version": __version__, "python": platform.python_version()}
    assert registry.get_sample_value("slacktide_build_info", info) == 1
    assert "slacktide_process_resident_memory_bytes" in text
    assert all(line.startswith(("slacktide_", "# ")) for line in text.splitlines())
    assert ask(address, "/metrics", Accept="application/openmetrics-text")[2].endswith("# EOF\n")
    assert ask(address, "/healthz")[::2] == (200, "ok\n")
    assert ask(address, "/readyz")[::2] == (503, "start: still starting\n"), "no part has said anything yet"
    health.add_ready("turn", lambda: None)
    assert ask(address, "/readyz")[::2] == (200, "ok\n")
    health.add_ready("api", lambda: "not synced")
    assert ask(address, "/readyz")[::2] == (503, "api: not synced\n")
    assert ask(address, "/healthz")[0] == 200
    status, headers, text = ask(address, "/status")
    assert (status, headers["Content-Type"], json.loads(text)) == (200, "application/json", {"node": "a"})
    routes["/later"] = lambda: b"[]"
    assert ask(address, "/later")[2] == "[]"


def test_metrics_by_name_are_those_only_and_one_that_nobody_has_is_nothing(served):
    registry = CollectorRegistry()
    Counter("slacktide_turns", "Turns.", registry=registry).inc(3)
    Gauge("slacktide_depth", "Depth.", ["node"], registry=registry).labels("a").set(2)
    Gauge("slacktide_height", "Height.", registry=registry).set(1)
    address = served(registry=registry).address

    def told(query):
        status, _, text = ask(address, f"/metrics?{query}")
        return status, [line for line in text.splitlines() if not line.startswith("#")]

    assert told("name[]=slacktide_turns_total") == (200, ["slacktide_turns_total 3.0"])
    both = (200, ['slacktide_depth{node="a"} 2.0', "slacktide_turns_total 3.0"])
    asked = "name[]=slacktide_turns_total&name%5B%5D=slacktide_depth&name[]=nobody"
    assert (told(asked)[0], sorted(told(asked)[1])) == both
    assert told("name[]=nobody") == (200, [])
    assert told("name[]=") == (200, [])
    assert len(told("other=slacktide_turns_total")[1]) == 3


def test_head_has_no_body(served):
    status, headers, text = ask(served().address, "/healthz", "HEAD")
    assert (status, headers["Content-Length"], text) == (200, "3", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(served, method):
    status, headers, _ = ask(served().address, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_path_lists_the_known(served):
    status, _, text = ask(served(routes={"/status": lambda: b"{}"}).address, "/metric")
    assert status == 404
    assert text == "nothing at this path; known: /metrics /healthz /readyz /status\n"


def test_a_failing_route_or_collector_answers_500_and_the_server_goes_on(served):
    class Broken:
        def collect(self):
            raise OSError("no disk")

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Broken())
    address = served(registry=registry, routes={"/status": lambda: 1 / 0}).address
    assert ask(address, "/status")[::2] == (500, "ZeroDivisionError: division by zero\n")
    assert ask(address, "/metrics")[::2] == (500, "OSError: no disk\n")
    assert ask(address, "/healthz")[0] == 200


def test_a_unix_socket_is_for_its_owner_only_and_goes_away(served, tmp_path):
    path = str(tmp_path / "o.sock")
    observed = served(f"unix:{path}")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert observed.address == f"unix:{path}"
    observed.stop()
    assert not os.path.exists(path)
    assert observed.address == ""
    observed.stop()


def test_a_stale_socket_of_a_killed_process_is_replaced(served, tmp_path):
    path = str(tmp_path / "o.sock")
    with closing(socket.socket(socket.AF_UNIX)) as old:
        old.bind(path)
    assert ask(served(f"unix:{path}").address, "/healthz")[0] == 200


def test_an_address_in_use_is_an_error_that_names_it(served, tmp_path):
    first = served()
    with pytest.raises(
        SettingsError, match=rf"observe\.listen: cannot listen at {re.escape(first.address)}: Address already"
    ):
        served(first.address)
    second = served(f"unix:{tmp_path}/o.sock")
    with pytest.raises(SettingsError, match="another process listens there"):
        served(second.address)
    assert ask(second.address, "/healthz")[0] == 200


def test_a_socket_path_that_is_too_long_is_an_error_that_says_so(tmp_path):
    with pytest.raises(SettingsError, match="a socket path holds 107"):
        ObserveServer(f"unix:{tmp_path}/{'a' * 108}", CollectorRegistry(), Health())


def test_a_directory_that_is_missing_is_an_error_that_names_the_path(served, tmp_path):
    with pytest.raises(SettingsError, match=r"cannot listen at unix:.*No such file"):
        served(f"unix:{tmp_path}/no/o.sock")


def test_nowhere_is_nothing(served):
    observed = served("")
    assert observed.address == ""
    observed.stop()


def test_a_request_that_trickles_in_is_cut_at_its_deadline(served, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    host, _, port = served().address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        # Each byte would renew a timeout that is set for every read.
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            wait_until(lambda: slow.send(b"a") == 0)


def test_too_many_at_once_are_turned_away_and_the_server_recovers(served, monkeypatch):
    monkeypatch.setattr(server, "MAX_REQUESTS", 2)
    release = threading.Event()
    waiting = threading.Semaphore(0)

    def slow() -> bytes:
        waiting.release()
        release.wait(10)
        return b"{}"

    address = served(routes={"/slow": slow}).address
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(address, "/slow")[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert waiting.acquire(timeout=10)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(address, "/healthz")
    finally:
        release.set()
        for thread in threads:
            thread.join(10)
    assert answers == [200, 200]

    def answers_again() -> bool:
        try:
            return ask(address, "/healthz")[0] == 200
        except (http.client.HTTPException, OSError):
            return False

    wait_until(answers_again)


# --- signals


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stop():
    """Signals taken over by the test, with a hard exit that only notes its code."""
    codes: list[int] = []
    clock = FakeClock()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    with StopSignals(deadline_seconds=60, hard_exit=codes.append, clock=clock) as stopping:
        stopping.codes, stopping.clock = codes, clock
        yield stopping
    assert {number: signal.getsignal(number) for number in before} == before
    assert not any(thread.name == "signals" for thread in threading.enumerate())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_and_wakes_the_main_loop(stop, number):
    assert not stop.wait(0)
    os.kill(os.getpid(), number)
    assert stop.wait(10)
    assert stop.is_set()
    assert stop.event.is_set()
    assert stop.reason == f"signal {number.name}"
    assert stop.codes == []


def test_a_second_signal_leaves_at_once_unless_it_is_the_same_wish(stop):
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.wait(10)
    stop.clock.now += 0.9
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
    wait_until(lambda: stop._reload_asked)
    assert stop.codes == []
    stop.clock.now += 0.1
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: stop.codes)
    assert stop.codes == [128 + signal.SIGTERM]


def test_a_reload_runs_in_the_loop_that_waits(stop):
    ran_on = []
    stop.on_reload(lambda: ran_on.append(threading.current_thread()))
    os.kill(os.getpid(), signal.SIGHUP)
    wait_until(lambda: stop.wait(0.01) or ran_on)
    assert ran_on == [threading.current_thread()]
    assert not stop.wait(0)
    assert len(ran_on) == 1


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_reload_never_ends_the_wait_even_one_that_fails(stop, timeout):
    ran = []

    def reload():
        ran.append(1)
        if len(ran) == 1:
            os.kill(os.getpid(), signal.SIGHUP)
            raise RuntimeError("bug in a callback")
        os.kill(os.getpid(), signal.SIGTERM)

    stop.on_reload(reload)
    os.kill(os.getpid(), signal.SIGHUP)
    assert stop.wait(timeout)
    assert len(ran) == 2
    assert stop.reason == "signal SIGTERM"


def test_a_loop_of_its_own_asks_for_pending_reloads(stop):
    ran = []
    stop.on_reload(lambda: ran.append(1))
    os.kill(os.getpid(), signal.SIGHUP)
    wait_until(lambda: stop.run_pending() or ran)
    assert ran == [1]


def test_stopping_from_within_and_callbacks(stop):
    called = []
    stop.on_stop(lambda: called.append("early"))
    stop.on_stop(lambda: 1 / 0)
    stop.on_stop(lambda: called.append("after one that fails"))
    stop.set("lost the lease")
    stop.set("again")
    stop.on_stop(lambda: called.append("late"))
    assert stop.wait()
    assert (stop.reason, called) == ("lost the lease", ["early", "after one that fails", "late"])


def test_a_body_that_does_not_end_is_left_at_the_deadline(capfd):
    codes: list[int] = []
    with StopSignals(deadline_seconds=0.05, hard_exit=codes.append) as stopping:
        stopping.set("test")
        wait_until(lambda: codes)
    assert codes == [70]
    assert "test_a_body_that_does_not_end" in capfd.readouterr().err


def test_ending_in_time_calls_the_deadline_off():
    codes: list[int] = []
    with StopSignals(deadline_seconds=0.2, hard_exit=codes.append) as stopping:
        stopping.set("test")
        watchdog = stopping._watchdog
    watchdog.join(10)
    assert codes == []


# --- the frame of a daemon

DAEMON = """
import sys, threading
from typing import Annotated
from msgspec import Meta
from slacktide.observe import get_logger, run_daemon
from slacktide.errors import StateError
from slacktide.settings import DaemonSettings

class Settings(DaemonSettings, frozen=True):
    turn_seconds: Annotated[float, Meta(ge=0.1, le=60, extra={"reloadable": True})] = 1.0
    node: str = "a"

def body(daemon):
    log = get_logger("test.body")
    daemon.on_reload(lambda settings: log.info("told", turn=settings.turn_seconds))
    daemon.routes["/status"] = lambda: daemon.settings.node.encode()
    daemon.health.add_ready("main", lambda: None)
    if daemon.settings.node == "fails":
        raise StateError("directory is locked")
    if daemon.settings.node == "breaks":
        raise RuntimeError("bug")
    if daemon.settings.node == "ends":
        return 3
    log.info("running", address=daemon.address, main=threading.current_thread() is threading.main_thread())
    daemon.stop.wait()
    return None

sys.exit(run_daemon("test", Settings, body, about="A test."))
"""


@pytest.fixture
def daemon(tmp_path):
    """Starts the daemon above as a process; kills what is left at the end."""
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    log = tmp_path / "log"
    started = []

    def start(*argv) -> subprocess.Popen:
        with log.open("wb") as output:
            command = [sys.executable, str(script), *argv]
            process = subprocess.Popen(
                command, stderr=output, cwd=os.getcwd(), env={**os.environ, "PYTHONPATH": os.getcwd()}
            )
        process.log = log
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def events(process) -> list[dict]:
    return [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]


def event(process, name: str) -> dict:
    def seen() -> bool:
        if any(line["event"] == name for line in events(process)):
            return True
        ended = process.poll() is not None and not any(line["event"] == name for line in events(process))
        assert not ended, process.log.read_text()
        return False

    wait_until(seen, 30)
    return next(line for line in events(process) if line["event"] == name)


def test_a_daemon_serves_reloads_and_stops_on_sigterm(daemon, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("turn_seconds: 2\n")
    process = daemon("--config", str(config), "--observe.listen", f"unix:{tmp_path}/o.sock")
    assert event(process, "running")["main"] is True
    address = f"unix:{tmp_path}/o.sock"
    assert ask(address, "/status")[2] == "a"
    assert ask(address, "/readyz")[0] == 200

    config.write_text("turn_seconds: 3\nnode: b\n")
    process.send_signal(signal.SIGHUP)
    assert event(process, "told")["turn"] == 3.0
    assert event(process, "settings changed that need a restart")["keys"] == ["node"]
    config.write_text("turn_seconds: 300\n")
    process.send_signal(signal.SIGHUP)
    refused = event(process, "settings not reloaded: the old ones stay in force")
    assert refused["level"] == "warning"
    assert "0.1 to 60 seconds" in refused["problem"]
    metrics = ask(address, "/metrics")[2]
    assert 'slacktide_settings_reloads_total{result="refused"} 1.0' in metrics
    assert 'slacktide_settings_reloads_total{result="restart_needed"} 1.0' in metrics

    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert event(process, "stopping")["reason"] == "signal SIGTERM"
    assert event(process, "stopped")["code"] == 0
    assert not os.path.exists(f"{tmp_path}/o.sock")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--node", "ends"], 3, '"event": "stopped"'),
        (["--node", "fails"], 1, '"error": "directory is locked"'),
        (["--node", "breaks"], 1, "RuntimeError: bug"),
        (
            ["--nod", "x", "--turn-seconds", "0"],
            2,
            "slacktide test: flag --turn-seconds: turn_seconds must be 0.1 to 60 seconds",
        ),
        (["--observe.listen", "unix:/" + "a" * 120], 2, "slacktide test: observe.listen"),
    ],
)
def test_exit_codes(daemon, argv, code, said):
    process = daemon(*argv)
    assert process.wait(30) == code
    assert said in process.log.read_text()
    if code == 2:
        assert "Traceback" not in process.log.read_text()
