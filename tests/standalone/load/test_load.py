"""The load kit: percentiles, lost requests, and the two commands as real processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standalone.load.burn import KINDS
from standalone.load.colocation import cpu_seconds, plan_for
from standalone.load.driver import DRAIN_SECONDS, Driver, LoadError, percentile, summary

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def command(*arguments: str):
    process = subprocess.Popen([sys.executable, "-m", "standalone.load", *arguments], cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([1.0], 0.99, 1.0), ([1.0, 2.0], 0.5, 2.0), (list(map(float, range(100))), 0.99, 99.0), ([3.0, 4.0], 1.0, 4.0)],
)
def test_percentile_is_the_nearest_rank(values, share, expected):
    assert percentile(values, share) == expected


def test_percentile_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200), st.integers(0, 50))
def test_percentiles_are_ordered_and_lost_requests_never_improve_them(seconds, lost):
    clean, worse = summary(seconds, 0), summary(seconds, lost)
    assert worse.p50_millis <= worse.p99_millis <= worse.p999_millis
    assert worse.p99_millis >= clean.p99_millis
    assert (worse.count, worse.lost) == (len(seconds) + lost, lost)


def test_a_lost_request_counts_as_the_slowest():
    assert summary([0.001], 99).p99_millis == DRAIN_SECONDS * 1000


@pytest.mark.parametrize("cpus", [1, 2, 8, 64, 256])
def test_one_client_can_keep_up_with_any_machine(cpus):
    plan = plan_for(cpus, 0.6, 5.0)
    assert plan.rate <= 1500.0 + 1e-6
    assert plan.service_seconds >= 0.001
    assert plan.rate * plan.service_seconds == pytest.approx(cpus * 0.6)


def test_server_answers_every_request_and_leaves_no_worker(tmp_path):
    with command("serve", "--directory", str(tmp_path), "--workers", "2", "--service-millis", "1") as process:
        driver = Driver(str(tmp_path), random.Random(1))
        try:
            driver.wait_ready(20)
            found = driver.run(rate=200, seconds=0.5)
        finally:
            driver.close()
        workers = [int(line) for line in (tmp_path / "workers.pid").read_text().split()]
        assert len(workers) == 2
        assert found.lost == 0
        assert found.count > 50
        assert found.p50_millis >= 0.2
        assert cpu_seconds(workers) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]


def test_a_server_that_is_not_there_is_said(tmp_path):
    driver = Driver(str(tmp_path), random.Random(1))
    try:
        with pytest.raises(LoadError, match="no answer within"):
            driver.wait_ready(0.05)
    finally:
        driver.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_burners_of_each_kind_use_cpu_and_end_with_their_parent(tmp_path, kind):
    pid_file, work = tmp_path / "pids", tmp_path / "work"
    work.mkdir()
    flags = ("--processes", "2", "--pid-file", str(pid_file), "--kind", kind, "--directory", str(work))
    with command("burn", *flags) as process:
        wait_for(pid_file.exists)
        pids = [int(line) for line in pid_file.read_text().split()]
        wait_for(lambda: cpu_seconds(pids) > 0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert list(work.iterdir()) == []


def test_a_worker_that_dies_ends_the_group_with_an_error(tmp_path):
    pid_file = tmp_path / "pids"
    with command("burn", "--processes", "2", "--pid-file", str(pid_file)) as process:
        wait_for(pid_file.exists)
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        assert process.wait(10) == 1


def test_cpu_time_of_an_ended_process_is_left_out():
    assert cpu_seconds([2**22 + 1]) == 0.0
