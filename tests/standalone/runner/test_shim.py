"""The shim as a real process, without cgroups."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from standalone.runner import shim
from standalone.runner.shim import logfile
from standalone.runner.shim.proc import CONTAINER_VARIABLE, descendants, marked
from tests.standalone.runner.twin import alive, wait_for

SHIM = os.path.dirname(shim.__file__)


class Made:
    """One container directory and its shim."""

    def __init__(self, directory):
        self.directory = directory
        self.log_path = directory / "logs" / "0.log"
        self.id = f"test-{os.getpid()}-{directory.name}"
        self.process = None

    def start(self, script="exit 0", argv=None, **options):
        home = self.directory / "c"
        home.mkdir()
        config = {
            "id": self.id,
            "argv": argv or ["sh", "-c", script],
            "env": {"PATH": os.environ["PATH"], CONTAINER_VARIABLE: self.id},
            "cwd": "",
            "dirs": [],
            "kill_file": "",
            "freezer": "",
            "oom_file": "",
            "oom_score_adj": 500,
            "log_path": str(self.log_path),
            "log_max_bytes": 1 << 20,
            "log_keep": 3,
            "wake": str(self.directory / "wake"),
        }
        preexec = options.pop("preexec", None)
        (home / "config.json").write_text(json.dumps({**config, **options}))
        command = [sys.executable, "-I", "-S", SHIM, str(home)]
        self.process = subprocess.Popen(command, start_new_session=True, preexec_fn=preexec)
        return self

    def read(self, name):
        return json.loads((self.directory / "c" / name).read_text())

    def started(self):
        wait_for(lambda: (self.directory / "c" / "started.json").exists())
        return self.read("started.json")

    def ended(self):
        assert self.process.wait(15) == 0
        return self.read("exit.json")

    def lines(self, path=None):
        return (path or self.log_path).read_bytes().decode().splitlines()

    def texts(self):
        return [line.split(" ", 3)[3] for line in self.lines()]


@pytest.fixture
def made(tmp_path):
    one = Made(tmp_path)
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait(10)
        wait_for(lambda: not [os.kill(pid, signal.SIGKILL) for pid in marked(one.id) if alive(pid)])


def test_exit_record(made):
    record = made.start("exit 3").ended()
    assert (record["exit_code"], record["signal"], record["left"], record["lost_lines"]) == (3, None, 0, 0)
    assert record["finished_monotonic"] >= record["started_monotonic"]


def test_the_shims_own_death_kills_the_payload(made):
    pid = made.start(argv=["sleep", "1000"]).started()["pid"]
    made.process.kill()
    wait_for(lambda: not alive(pid))


def test_sigterm_is_passed_to_the_payload_only(made, tmp_path):
    script = f"trap 'exit 9' TERM; (trap '' TERM; sleep 1000) & touch {tmp_path}/up; wait"
    made.start(script)
    wait_for((tmp_path / "up").exists)
    made.process.terminate()
    assert made.ended()["exit_code"] == 9


def test_sigterm_before_the_payload_is_up_is_not_lost(made):
    made.start(argv=["sleep", "1000"])
    wait_for(lambda: (made.directory / "c" / "shim.json").exists())
    made.process.terminate()
    assert made.ended()["exit_code"] == 143


def test_strays_are_killed_and_reaped(made, tmp_path):
    script = f"setsid sh -c 'trap \"\" TERM; (sleep 1000 &); sleep 1001' & sleep 0.1; echo up > {tmp_path}/up; wait"
    made.start(script)
    wait_for((tmp_path / "up").exists)
    pids = descendants(made.process.pid)
    assert len(pids) >= 3
    os.kill(made.process.pid, signal.SIGUSR1)
    assert made.ended()["exit_code"] == 137
    assert not any(alive(pid) for pid in pids)


def test_the_payload_starts_clean(made):
    script = "cat /proc/self/oom_score_adj; "
    script += "grep -E 'SigIgn|SigBlk' /proc/self/status; ls /proc/self/fd | wc -l; umask; ps -o sid= -p $$; echo $$"
    made.start(script).ended()
    score, blocked, ignored, descriptors, mask, session, pid = [text.strip() for text in made.texts()]
    # The C library keeps two signals for itself; some parents (GNU make) pass them on ignored, and nobody can reset
    # them.
    ours = sum(1 << (number - 1) for number in signal.valid_signals())
    assert int(blocked.split()[-1], 16) == 0
    assert int(ignored.split()[-1], 16) & ours == 0
    assert int(descriptors) == 4
    assert score == "500"
    assert mask == "0022"
    assert session == pid


def test_log_format_and_partial_lines(made):
    script = "printf 'a\\n\\nb'; printf 'x%.0s' $(seq 1 20000); printf '\\nlast'; echo e >&2"
    made.start(script).ended()
    out = [line.split(" ", 3)[1:] for line in made.lines() if " stdout " in line]
    assert out[:2] == [["stdout", "F", "a"], ["stdout", "F", ""]]
    assert [tag for _, tag, _ in out[2:]] == ["P", "F", "F"]
    assert "".join(text for _, _, text in out[2:4]) == "b" + "x" * 20000
    assert out[-1] == ["stdout", "F", "last"]
    assert any(line.endswith("stderr F e") for line in made.lines())


def test_rotation_keeps_every_newest_line_whole(made):
    made.start(
        "i=0; while [ $i -lt 2000 ]; do echo line-$i; i=$((i+1)); done", log_max_bytes=20_000, log_keep=3
    ).ended()
    files = [made.log_path, *(made.log_path.with_name(f"0.log.{number}") for number in (1, 2))]
    assert sorted(made.log_path.parent.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 20_000 for file in files)
    numbers = [int(line.rpartition("-")[2]) for file in reversed(files) for line in made.lines(file)]
    assert numbers == list(range(numbers[0], 2000))


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_no_space_for_logs_loses_lines_and_not_the_payload(made):
    script = "i=0; while [ $i -lt 5000 ]; do echo a-line-of-some-length-$i; i=$((i+1)); done; exit 4"
    record = made.start(script, preexec=small_files).ended()
    assert record["exit_code"] == 4
    assert record["lost_lines"] > 0
    kept = made.lines()
    assert all(line.split(" ")[2] == "F" for line in kept)
    assert len(kept) + record["lost_lines"] >= 5000


def test_a_log_directory_that_cannot_be_made_does_not_stop_the_payload(made, tmp_path):
    (tmp_path / "file").write_text("")
    record = made.start("echo x; exit 2", log_path=str(tmp_path / "file" / "0.log")).ended()
    assert (record["exit_code"], record["lost_lines"]) == (2, 1)


def test_lost_lines_are_said_in_the_log_once_there_is_room(tmp_path):
    blocker = tmp_path / "logs"
    blocker.write_text("")
    log = logfile.LogFile(str(blocker / "0.log"), 1 << 20, 2, retry_seconds=0.0)
    entries = logfile.Lines("stdout").feed(b"one\ntwo\n", "T")
    log.write(entries)
    assert log.lost == 2
    blocker.unlink()
    log.write(logfile.Lines("stdout").feed(b"three\n", "T"))
    log.close()
    said, three = (blocker / "0.log").read_text().splitlines()
    assert said.split(" ", 1)[1].startswith("stderr F slacktide: 2 log lines lost: ")
    assert three == "T stdout F three"


def test_cgroup_that_cannot_be_joined(made, tmp_path):
    record = made.start("exit 0", dirs=[str(tmp_path / "nowhere")]).ended()
    assert (record["exit_code"], record["reason"]) == (128, "ContainerCannotRun")
    assert "nowhere/cgroup.procs" in record["message"]
    assert not (made.directory / "c" / "started.json").exists()


def test_a_listening_runner_is_woken(made):
    os.mkfifo(made.directory / "wake")
    reader = os.open(made.directory / "wake", os.O_RDONLY | os.O_NONBLOCK)
    try:
        made.start("exit 0").ended()
        assert os.read(reader, 100) == b".."
    finally:
        os.close(reader)


def test_usage():
    found = subprocess.run([sys.executable, "-I", "-S", SHIM], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "usage" in found.stderr
