"""The watchdog: its rule, its process, and the agent's side of it. On cgroups that are directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.act.guard import Guard
from agent.act.heartbeat import Heartbeat
from agent.act.journal import Journal
from agent.act.watchdog import LOCK_NAME, Report, Watchdog
from slacktide.disk import try_lock
from tests.agent.twins import FakeClock
from tests.patience import PATIENCE

MIB = 1 << 20


def wait_for(condition, what="it", seconds=15.0 * PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in time"
        time.sleep(0.01)


class Watched:
    """A watchdog on a clock of its own; `run` lets time pass in its looks."""

    def __init__(self, limit=5.0):
        self.clock = FakeClock()
        self.sign = self.clock.now
        self.lifted = 0
        self.dog = Watchdog(lambda: self.sign, self.lift, limit, self.clock)

    def lift(self):
        self.lifted += 1
        return 1

    def run(self, seconds, *, alive):
        for _ in range(round(seconds / self.dog.period_seconds)):
            self.clock.pass_(self.dog.period_seconds)
            if alive:
                self.sign = self.clock.now
            self.dog.check()


def test_it_lifts_once_for_each_silence():
    watched = Watched()
    watched.run(60, alive=True)
    watched.run(4.5, alive=False)
    assert watched.lifted == 0
    watched.run(60, alive=False)
    assert watched.lifted == 1
    watched.run(3, alive=True)
    watched.run(10, alive=False)
    assert (watched.lifted, watched.dog.fired) == (2, 2)


def test_time_in_which_it_did_not_run_itself_is_no_silence_of_the_loop():
    # kernel.md 5, clock jump: a suspended or stalled machine stops both.
    watched = Watched()
    watched.run(10, alive=True)
    watched.clock.pass_(3600)
    assert not watched.dog.check()
    watched.run(2, alive=True)
    assert watched.lifted == 0
    watched.clock.pass_(3600)
    watched.dog.check()
    watched.run(5.5, alive=False)
    assert watched.lifted == 1


@given(st.lists(st.tuples(st.floats(0.01, 1.5), st.booleans()), max_size=300))
def test_it_never_lifts_before_the_limit_and_never_twice_for_one_sign(steps):
    watched = Watched()
    signs = []
    watched.dog._relax = lambda: signs.append((watched.sign, watched.clock.now))
    for seconds, alive in steps:
        watched.clock.pass_(seconds)
        if alive:
            watched.sign = watched.clock.now
        watched.dog.check()
    assert all(now - sign >= 5.0 for sign, now in signs)
    assert len({sign for sign, _ in signs}) == len(signs)


def test_a_relax_that_fails_is_tried_again():
    watched = Watched()
    calls = []

    def fails():
        calls.append(1)
        raise OSError("no descriptors")

    watched.dog._relax = fails
    watched.clock.pass_(2)
    watched.dog.check()
    watched.clock.pass_(2)
    watched.dog.check()
    for _ in range(2):
        watched.clock.pass_(2)
        with pytest.raises(OSError, match="no descriptors"):
            watched.dog.check()
    assert len(calls) == 2


def test_the_heartbeat_is_shared_memory():
    beat = Heartbeat.create(1.5)
    other = Heartbeat(os.dup(beat.descriptor))
    assert (other.sign, other.fired) == (1.5, 0)
    beat.sign = 7.25
    other.count()
    assert (other.sign, beat.fired) == (7.25, 1)
    other.close()
    beat.close()


@pytest.fixture
def guard(tmp_path):
    made = Guard(str(tmp_path), "/proc", 0.5)
    try:
        yield made
    finally:
        if made.living:
            made.stop()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_process_is_small_and_ends_with_the_agent_and_lifts_nothing_then(tmp_path, guard):
    guard.watch(time.monotonic)
    wait_for(lambda: ignored(guard.pid) >= {signal.SIGTERM}, "the start")
    loaded = Path(f"/proc/{guard.pid}/maps").read_text()
    assert not any(name in loaded for name in ("grpc", "psutil", "libcrypto"))
    time_of_life = time.monotonic() + 1.0
    wait_for(lambda: time.monotonic() > time_of_life)
    assert resident(guard.pid) < 24 * MIB
    pid = guard.pid
    guard.stop()
    assert not alive(pid)
    assert not (tmp_path / "watchdog.json").exists()


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def test_a_silent_loop_is_seen_counted_and_told_once(tmp_path, guard, caplog):
    sign = time.monotonic()
    guard.watch(lambda: sign)
    wait_for(lambda: guard.fired == 1, "the watchdog")
    wait_for(lambda: not (tmp_path / "watchdog.json").exists() and guard._told == 1, "the report")
    again = time.monotonic() + 1.5
    wait_for(lambda: time.monotonic() > again)
    assert guard.fired == 1


def test_a_watchdog_that_dies_is_started_anew(guard):
    guard.watch(time.monotonic)
    pid = guard.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: guard.restarts == 1 and guard.pid != pid and alive(guard.pid), "the restart")


def test_signals_meant_for_the_agent_do_not_end_it(tmp_path, guard):
    guard.watch(time.monotonic)
    wait_for(lambda: resident(guard.pid) > 8 * MIB, "the start")
    wait_for(lambda: ignored(guard.pid) >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}, "its handlers")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guard.pid, number)
    pid = guard.pid
    guard.stop()
    assert guard.restarts == 0
    assert not alive(pid)


def ignored(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn"))
    return {number for number in signal.Signals if mask >> (number - 1) & 1}


AGENT = """
import sys, time
from agent.act.guard import Guard
from agent.act.owner import Ownership
from slacktide.kernel.hierarchy import Hierarchy
owner = Ownership(sys.argv[1], Hierarchy({}, None), "")
guard = Guard(sys.argv[1], "/proc", float(sys.argv[2]))
guard.watch(time.monotonic)
print(guard.pid, flush=True)
time.sleep(60)
"""


def start_agent(state, seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(state), str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return process, int(process.stdout.readline())


def end(process):
    process.kill()
    process.wait(10 * PATIENCE)
    process.stdout.close()


def test_of_a_dead_agent_it_lifts_once_reports_and_ends(tmp_path):
    Journal(str(tmp_path), "b").record([])
    process, pid = start_agent(tmp_path, 0.5)
    end(process)
    wait_for(lambda: not alive(pid), "the end of the watchdog")
    follower = Guard(str(tmp_path), "/proc", 60.0)
    try:
        report = follower.earlier()
        assert isinstance(report, Report)
        assert report.lifted == 0
        assert report.silent_seconds >= 0.5
        assert follower.earlier() is None
    finally:
        follower.stop()


def test_a_dead_agents_limits_are_left_to_the_next_agent(tmp_path):
    process, pid = start_agent(tmp_path, 20 * PATIENCE)
    end(process)
    lock = try_lock(str(tmp_path / LOCK_NAME))
    try:
        wait_for(lambda: not alive(pid), "the end of the watchdog", 19 * PATIENCE)
        assert not (tmp_path / "watchdog.json").exists()
    finally:
        os.close(lock)


def test_without_its_directory_it_just_ends(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    process, pid = start_agent(state, 0.5)
    end(process)
    (state / LOCK_NAME).unlink()
    state.rmdir()
    wait_for(lambda: not alive(pid), "the end of the watchdog")
