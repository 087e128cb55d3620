import io
import json
import signal
import time

import pytest

from cli import session
from cli.session import StopSignals
from slacktide.names import BATCH_CPU, BATCH_MEMORY


@pytest.fixture
def stop(app):
    stop = StopSignals()
    app.stop_signals = lambda: stop
    return stop


@pytest.fixture(autouse=True)
def _own_signals(stop):
    """No test of this file may touch the signals of pytest itself."""


def the_pod(twin):
    assert twin.created.wait(10)
    ((_, name),) = twin.pods
    return name


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_streams_output_apart_and_exits_with_the_code_of_the_command(start, twin, out, err):
    ran = start("run", "--tier", "be", "--", "make", "-j8")
    name = the_pod(twin)
    twin.started(name)
    twin.prints(name, b"one\n\xff raw\n")
    twin.prints(name, b"careful\n", "Stderr")
    until(lambda: "careful" in err.text and b"raw" in out.raw.getvalue())
    twin.prints(name, b"no newline at the end")
    twin.ended(name, 3)
    assert ran.wait() == 3
    assert out.raw.getvalue() == b"one\n\xff raw\nno newline at the end"
    assert err.text == "careful\n"
    assert twin.pods == {}


def test_the_pod_is_what_was_asked_for(start, twin, out, err):
    ran = start(
        "run",
        "--cpu",
        "1500m",
        "--memory",
        "1Gi",
        "--grace",
        "3",
        "--env",
        "SECRET",
        "--env",
        "A=b=c",
        "echo",
        "-n",
        "--x",
    )
    name = the_pod(twin)
    pod = twin.pods["default", name]
    (container,) = pod["spec"]["containers"]
    twin.started(name)
    twin.ended(name, 0)
    assert ran.wait() == 0
    assert name.startswith("echo-")
    assert container["command"] == ["echo", "-n", "--x"]
    assert container["resources"] == {"requests": {BATCH_CPU: "1500", BATCH_MEMORY: str(1 << 30)}}
    env = {item["name"]: item["value"] for item in container["env"]}
    assert env["SECRET"] == "hush"
    assert env["A"] == "b=c"
    assert env["LC_ALL"] == "C"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 3
    assert pod["metadata"]["labels"] == {"slacktide.io/tier": "be"}


def test_secrets_stay_here_unless_asked_for(start, twin, out, err):
    ran = start("run", "true")
    name = the_pod(twin)
    names = {item["name"] for item in twin.pods["default", name]["spec"]["containers"][0]["env"]}
    twin.ended(name, 0)
    assert ran.wait() == 0
    assert "PATH" in names
    assert "SECRET" not in names


def test_command_not_found_is_127_with_the_reason(start, twin, out, err):
    ran = start("run", "--", "no-such-thing")
    name = the_pod(twin)
    twin.ended(name, 127, "StartError", "no-such-thing: command not found")
    assert ran.wait() == 127
    assert f"{name} failed: StartError: no-such-thing: command not found" in err.text
    assert out.text == ""


def test_killed_for_memory_says_so(start, twin, out, err):
    ran = start("run", "hog")
    name = the_pod(twin)
    twin.started(name)
    twin.ended(name, 137, "OOMKilled")
    assert ran.wait() == 137
    assert "OOMKilled" in err.text


def test_a_plain_failure_needs_no_words(start, twin, out, err):
    ran = start("run", "false")
    name = the_pod(twin)
    twin.ended(name, 1, "Error")
    assert ran.wait() == 1
    assert err.text == ""


def test_evicted_pod_is_125_with_the_reason(start, twin, out, err):
    ran = start("run", "burn")
    name = the_pod(twin)
    twin.started(name)
    twin.failed(name, "Evicted", "LS needs the memory")
    twin.ended_output.add(name)
    twin.pods["default", name]["status"]["containerStatuses"] = []
    twin._update("default", name, lambda pod: None)
    assert ran.wait() == 125
    assert "Evicted: LS needs the memory" in err.text


def test_deleted_by_somebody_else(start, twin, out, err):
    ran = start("run", "burn")
    name = the_pod(twin)
    twin.started(name)
    twin.delete(None, name, "default", grace_period_seconds=0)
    twin.ended_output.add(name)
    assert ran.wait() == 125
    assert f"{name} was deleted" in err.text


def test_says_why_it_waits_and_says_it_once(start, twin, out, err, monkeypatch):
    monkeypatch.setattr(session, "QUIET_SECONDS", 0.0)
    ran = start("run", "--cpu", "900", "burn")
    name = the_pod(twin)
    twin.unschedulable(name, "0/1 nodes are available: not enough room")
    until(lambda: "not enough room" in err.text)
    twin.unschedulable(name, "0/1 nodes are available: not enough room")
    twin.started(name)
    twin.ended(name, 0)
    assert ran.wait() == 0
    assert err.text.count("not enough room") == 1


def test_first_ctrl_c_asks_second_kills(start, twin, stop, out, err):
    ran = start("run", "stubborn")
    name = the_pod(twin)
    twin.started(name)
    stop.note(signal.SIGINT)
    until(lambda: twin.deletions == [(name, None)])
    twin.prints(name, b"last words\n")
    until(lambda: "last words" in out.text)
    stop.note(signal.SIGINT)
    until(lambda: twin.deletions[:2] == [(name, None), (name, 0)])
    twin.ended_output.add(name)
    assert ran.wait() == 130
    assert "Ctrl-C" in err.text
    assert twin.pods == {}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_pod_that_obeys_a_signal(start, twin, stop, out, err, signum, code):
    ran = start("run", "server")
    name = the_pod(twin)
    twin.started(name)
    stop.note(signum)
    until(lambda: twin.deletions)
    twin.ended(name, 143)
    assert ran.wait() == code


def test_ctrl_c_before_it_was_placed_removes_it(start, twin, stop, out, err):
    ran = start("run", "burn")
    the_pod(twin)
    stop.note(signal.SIGINT)
    assert ran.wait() == 130
    assert twin.pods == {}


def test_lost_api_changes_nothing(start, twin, out, err, monkeypatch):
    monkeypatch.setattr(session, "SILENCE_SECONDS", 0.05)
    ran = start("run", "work")
    name = the_pod(twin)
    twin.started(name)
    twin.prints(name, b"before\n")
    until(lambda: "before" in out.text)
    twin.go_away()
    until(lambda: "does not answer" in err.text)
    twin.prints(name, b"meanwhile\n")
    twin.come_back()
    until(lambda: "is back" in err.text)
    twin.prints(name, b"after\n")
    twin.ended(name, 5)
    assert ran.wait() == 5
    assert out.text == "before\nmeanwhile\nafter\n"


def test_api_that_restarts_in_order_ends_streams_and_loses_no_output(start, twin, out, err):
    ran = start("run", "work")
    name = the_pod(twin)
    twin.started(name)
    twin.prints(name, b"one\n")
    until(lambda: "one" in out.text)
    twin.ended_output.add(name)
    time.sleep(0.1)
    twin.ended_output.discard(name)
    twin.prints(name, b"two\n")
    until(lambda: "two" in out.text)
    twin.ended(name, 0)
    assert ran.wait() == 0
    assert out.text == "one\ntwo\n"


def test_lost_answer_to_the_creation_makes_no_second_pod(start, twin, out, err):
    twin.lose_next_answer = True
    ran = start("run", "--name", "once", "true")
    name = the_pod(twin)
    twin.ended(name, 0)
    assert ran.wait() == 0
    assert name == "once"


def test_a_name_that_is_taken(command, twin, out, err):
    twin.put({"metadata": {"name": "web", "namespace": "default", "uid": "x"}, "spec": {}})
    assert command("run", "--name", "web", "true") == 2
    assert "there is a pod web already" in err.text
    assert list(twin.pods) == [("default", "web")]


def test_detached_prints_the_name_and_leaves_the_pod(command, twin, out, err):
    assert command("run", "--detach", "--name", "nightly", "--", "sleep", "9") == 0
    assert out.text == "nightly\n"
    assert ("default", "nightly") in twin.pods


def test_detached_json(command, twin, out, err):
    assert command("run", "-d", "--name", "n", "-o", "json", "true") == 0
    assert json.loads(out.text) == {"namespace": "default", "name": "n", "uid": "uid-n"}


def test_json_lines_of_a_run(start, twin, out, err):
    ran = start("run", "--output", "json", "--", "work")
    name = the_pod(twin)
    twin.started(name)
    twin.prints(name, b"a\nb")
    twin.prints(name, b"bad\n", "Stderr")
    until(lambda: '"bad"' in out.text and '"a"' in out.text)
    twin.ended(name, 4, "Error")
    assert ran.wait() == 4
    lines = [json.loads(line) for line in out.text.splitlines()]
    assert {"stream": "stdout", "text": "a"} in lines
    assert {"stream": "stdout", "text": "b"} in lines
    assert {"stream": "stderr", "text": "bad"} in lines
    assert lines[-1] == {"pod": name, "namespace": "default", "exit_code": 4, "detail": ""}


def test_keep_leaves_the_ended_pod(start, twin, out, err):
    ran = start("run", "--keep", "true")
    name = the_pod(twin)
    twin.ended(name, 0)
    assert ran.wait() == 0
    assert ("default", name) in twin.pods


def test_start_timeout_removes_the_pod_and_is_4(command, twin, out, err):
    assert command("run", "--start-timeout", "0.1", "burn") == 4
    assert "did not start within 0.1 s" in err.text
    assert twin.pods == {}


def test_nobody_reads_the_output_any_more(start, twin, out, err):
    class Closed(io.BytesIO):
        def write(self, data):
            raise BrokenPipeError

    out.stream = io.TextIOWrapper(Closed())
    ran = start("run", "chatter")
    name = the_pod(twin)
    twin.started(name)
    twin.prints(name, b"hello\n")
    until(lambda: twin.deletions)
    twin.ended(name, 143)
    assert ran.wait() == 141
    assert "nobody reads its output" in err.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpu", "1.5.2"], "--cpu"),
        (["--cpu", "1e"], "--cpu"),
        (["--cpu", "-1"], "--cpu '-1' is too little"),
        (["--cpu", "0"], "500m for half a CPU"),
        (["--memory", "lots"], "--memory"),
        (["--memory", "512"], "such as 512Mi"),
        (["--memory", "512m"], "such as 512Mi"),
        (["--name", "Not_A_Label"], "no DNS label"),
        (["--name", "x" * 64], "no DNS label"),
        (["--namespace", "a.b"], "--namespace"),
        (["--limit-memory", "1Mi"], "--limit-memory 1Mi is below --memory 256Mi"),
        (["--limit-cpu", "100m"], "--cpu is 1"),
        (["--env", "1x=2"], "no variable name"),
        (["--env", "NO_SUCH"], "NO_SUCH=VALUE"),
        (["--workdir", "/no/such/dir"], "is no directory"),
        (["--tier", "gold"], "gold"),
        (["--grace", "soon"], "soon"),
    ],
)
def test_bad_input_is_2_says_what_and_makes_no_pod(command, twin, out, err, arguments, words):
    assert command("run", *arguments, "--", "true") == 2
    assert words in err.text
    assert twin.pods == {}


def test_no_command_is_2(command, out, err):
    assert command("run", "--tier", "be") == 2


def test_nothing_is_up(command, app, out, err):
    app.is_up = lambda _: False
    assert command("run", "true") == 3
    assert "start it with `slacktide up`" in err.text


def test_api_away_for_long_starts_nothing(command, twin, out, err, monkeypatch):
    monkeypatch.setattr("cli.commands.run.CREATE_SECONDS", 0.1)
    twin.go_away()
    assert command("run", "true") == 125
    assert "cannot take the pod" in err.text
