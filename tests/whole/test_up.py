"""The whole product on this machine: `slacktide up`, pods, killed daemons, `slacktide down`."""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from slacktide.cluster import PODS
from slacktide.kernel.hierarchy import discover
from standalone.process import alive
from standalone.state import Lock, create, holder, prepare
from standalone.supervisor import read_report
from standalone.sweep import directories
from tests.whole.support import DAEMONS, SLACKTIDE, Up, started, wait_until

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]


def test_output_and_exit_code_are_those_of_the_command(up):
    done = up.ls("--", "sh", "-c", "echo out; echo err >&2; pwd; exit 7", cwd="/usr")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n/usr\n", "err\n")
    assert up.run("ps").stdout == ""


def test_much_output_arrives_whole(up):
    done = up.ls("--", sys.executable, "-c", "for i in range(50_000): print(i)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(i) for i in range(50_000)]


def test_command_not_found_is_127_and_the_pod_says_why(up):
    done = up.ls("--keep", "--name", "ghost", "--", "no-such-command-anywhere")
    assert done.returncode == 127
    assert "no-such-command-anywhere" in done.stderr
    (pod,) = up.json("ps")["pods"]
    assert (pod["status"], pod["exit_code"]) == ("Failed", 127)
    assert "StartError" in pod["reason"]
    assert up.run("rm", "ghost").returncode == 0


def test_a_file_that_cannot_be_executed_is_126(up, tmp_path):
    path = tmp_path / "data"
    path.write_text("no program")
    path.chmod(0o644)
    done = up.ls("--", str(path))
    assert done.returncode == 126, done.stderr


def test_killed_by_a_signal(up):
    done = up.ls("--", "sh", "-c", "echo $$; kill -9 $$")
    assert done.returncode == 137, done.stderr
    assert done.stdout.strip().isdigit()


def test_best_effort_command_goes_the_whole_path(up):
    words = ["run", "--cpu", "10m", "--memory", "16Mi", "--start-timeout", "20", "--", "sh", "-c"]
    done = up.run(*words, "cat /proc/self/cgroup; exit 3", timeout=90)
    if done.returncode == 4:
        assert "room" in done.stderr or "closed for batch work" in done.stderr, done.stderr
        pytest.skip("this machine has no idle CPU to give to best-effort work")
    assert done.returncode == 3, done.stderr
    if directories(discover(), up.state.cgroup_root):
        assert f"/{up.state.cgroup_root}/kubepods/" in done.stdout


def test_more_than_the_machine_waits_with_the_reason(up):
    with subprocess.Popen(
        [*SLACKTIDE, "--state", up.root, "run", "--name", "giant", "--cpu", "100000", "--", "true"],
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            never = "1 node(s) that can never have so much kubernetes.io/batch-cpu (asks for 100000"
            wait_until(lambda: up.pod("giant") is not None and never in up.condition("giant"), up)
            (event,) = wait_until(lambda: up.events("giant", "FailedScheduling"), up)
            assert (never in event.message, event.type) == (True, "Warning")
            said = run.stderr.readline()
            assert "giant waits: Unschedulable" in said
            assert never in said
            run.send_signal(signal.SIGINT)
            assert run.wait(20) == 130
        finally:
            run.kill()


def test_a_start_that_takes_too_long_is_given_up_with_4(up):
    done = up.run("run", "--cpu", "100000", "--start-timeout", "0.5", "--", "true")
    assert done.returncode == 4
    assert "did not start within 0.5 s" in done.stderr
    assert up.client.list(PODS).items == ()


def test_ctrl_c_on_a_terminal_stops_the_pod(up):
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["run", "--tier", "ls", "--cpu", "10m", "--name", "typed", "--", "sh", "-c", "echo ready; sleep 60"]
        os.execv(sys.executable, [*SLACKTIDE, "--state", up.root, *words])
    try:
        seen = read_until(terminal, rb"ready")
        os.write(terminal, b"\x03")
        seen = read_until(terminal, rb"was stopped: Ctrl-C", seen)
        _, status = os.waitpid(pid, 0)
        pid = 0
    finally:
        os.close(terminal)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    wait_until(lambda: up.pod("typed") is None, up)


def test_logs_top_and_doctor(up):
    assert up.ls("--detach", "--name", "talker", "--", "sh", "-c", "echo one; echo two; sleep 60").stdout == "talker\n"
    wait_until(lambda: up.output("talker") == "one\ntwo\n", up)
    assert up.run("logs", "--tail", "1", "talker").stdout == "two\n"
    assert "talker" in up.run("ps").stdout
    picture = wait_until(lambda: (p := up.json("top", "--once")) and p["agent"] and p["room"] and p, up)
    assert picture["supervisor"]["phase"] == "ready"
    assert picture["node"] == "whole"
    assert up.json("doctor")["problems"] == 0
    assert up.run("rm", "--force", "talker").stdout == "talker\n"


def test_a_second_up_is_refused(up):
    for words in (["up", "--detach"], ["up"]):
        done = up.run(*words)
        assert done.returncode == 2
        assert f"pid {holder(up.root).pid}" in done.stderr
    assert up.client.list(PODS).items == ()


@pytest.mark.parametrize("name", ["api", "runner"])
def test_a_killed_daemon_comes_back_and_pods_do_not_notice(up, name):
    script = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done"
    assert up.ls("--detach", "--name", "steady", "--", "sh", "-c", script).returncode == 0
    wait_until(lambda: up.output("steady"), up)
    command = [*SLACKTIDE, "--state", up.root, "logs", "-f", "steady"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout.readline() == "0\n"
            before, pod = up.processes(), up.pod("steady")
            os.kill(before[name].pid, signal.SIGKILL)

            def back():
                report = read_report(up.state)
                one = next(c for c in report.components if c.name == name)
                return one.pid not in {None, before[name].pid} and report.phase == "ready"

            wait_until(back, up)
            assert {n for n, p in before.items() if not alive(p)} == {name}
            seen = len(up.output("steady").split())
            wait_until(lambda: len(up.output("steady").split()) > seen + 3, up)
            assert up.pod("steady").status.container_statuses == pod.status.container_statuses
            assert up.ls("--", "sh", "-c", "exit 5").returncode == 5
            assert up.run("rm", "--force", "steady").returncode == 0
            # Followed over the kill: every number once, in order, none left out.
            assert follower.wait(30) == 0
            numbers = [0, *map(int, follower.stdout.read().split())]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) > seen
        finally:
            follower.kill()


@pytest.mark.parametrize("name", ["api", "runner"])
def test_a_run_in_the_foreground_outlives_what_it_stands_on(up, name):
    script = "for i in $(seq 60); do echo $i; sleep 0.1; done; exit 9"
    words = ["run", "--tier", "ls", "--cpu", "10m", "--memory", "16Mi", "--", "sh", "-c", script]
    with subprocess.Popen([*SLACKTIDE, "--state", up.root, *words], stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout.readline() == "1\n"
            os.kill(up.processes()[name].pid, signal.SIGKILL)
            assert run.wait(60) == 9, up.logs()
            assert run.stdout.read().split() == [str(i) for i in range(2, 61)]
        finally:
            run.kill()
    wait_until(lambda: read_report(up.state).phase == "ready", up)


@pytest.fixture
def fresh():
    """A state directory in which nothing has run yet."""
    with tempfile.TemporaryDirectory(prefix="st") as root:
        create(root)
        with Lock(root):
            state = prepare(root)
        yield state


def refused(state):
    command = [*SLACKTIDE, "--state", state.root, "up", "--detach", "--node", "whole"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    left = Up(state.root).left_behind()
    assert (done.returncode, left, holder(state.root)) == (1, [], None), done.stderr
    return done.stderr


def test_bad_settings_are_all_told_by_file_and_line(fresh):
    file = fresh.config_file("api")
    with open(file, "w") as settings:
        settings.write("databse: x\ndatabase_limit_bytes: 5s\nobserve: {log_level: loud}\n")
    said = refused(fresh)
    assert f"file {file} line 1: unknown key databse; nearest known: database" in said
    assert f"file {file} line 2: database_limit_bytes" in said
    assert "'5s'" in said
    assert f"file {file} line 3: observe.log_level" in said


def test_down_ends_pods_and_leaves_nothing():
    with started() as up:
        script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
        assert up.ls("--detach", "--name", "a", "--", "sh", "-c", script).returncode == 0
        assert up.ls("--keep", "--name", "b", "--", "true").returncode == 0
        wait_until(lambda: up.output("a") == "up\n", up)
        processes = up.processes()
        assert len(processes) == 6
        done = up.run("down", timeout=120)
        assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
        assert not any(alive(process) for process in processes.values())
        assert up.left_behind() == []
        assert up.run("ps").returncode == 3
        again = up.run("down")
        assert (again.returncode, again.stdout) == (0, "nothing was running\n")


def test_pods_outlive_a_killed_supervisor_and_down_cleans_up():
    with started() as up:
        assert up.ls("--detach", "--name", "a", "--", "sh", "-c", "echo $$; sleep 600").returncode == 0
        pid = int(wait_until(lambda: up.output("a").strip(), up))
        processes = up.processes()
        os.kill(processes["supervisor"].pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(process) for process in processes.values()), up)
        os.kill(pid, 0)
        again = subprocess.run(
            [*SLACKTIDE, "--state", up.root, "up", "--detach", "--node", "whole"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert again.returncode == 0, again.stderr
        assert up.pod("a").status.phase == "Running"
        os.kill(pid, 0)
        os.kill(up.processes()["supervisor"].pid, signal.SIGKILL)
        done = up.run("down", timeout=120)
        assert done.returncode == 0, done.stderr
        assert up.left_behind() == []
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_foreground_on_a_terminal_shows_live_and_ends_with_ctrl_c():
    with tempfile.TemporaryDirectory(prefix="st") as root:
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["COLUMNS"], os.environ["LINES"], os.environ["TERM"] = "140", "50", "xterm"
            os.execv(sys.executable, [*SLACKTIDE, "--state", root, "up", "--node", "front"])
        try:
            seen = read_until(terminal, rb"front\S*\s+ready", seconds=90)
            for name in DAEMONS:
                assert name.encode() in seen
            os.write(terminal, b"\x03")
            while chunk := read_some(terminal):
                seen += chunk
            _, status = os.waitpid(pid, 0)
            pid = 0
        finally:
            os.close(terminal)
            if pid:
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, seen[-3000:]
        assert Up(root).left_behind() == []


def read_some(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""  # Linux says EIO when the other side has closed


def read_until(terminal, pattern, seen=b"", seconds=60.0):
    deadline = time.monotonic() + seconds
    while not re.search(pattern, re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)):
        chunk = read_some(terminal)
        assert chunk, seen[-3000:]
        assert time.monotonic() < deadline, seen[-3000:]
        seen += chunk
    return seen
