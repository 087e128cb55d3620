"""Descriptors of monitoring: a budget, and monitoring that gives way to control when they run out."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host import fds
from agent.host.births import ANYWAY, Births
from agent.host.fds import LEAN_SECONDS, FdBudget, GroupFiles, raise_limit
from agent.host.schedstat import FEW_THREADS, IDLE_BEATS, RunDelayReader, SchedStats
from slacktide.errors import Gone, KernelError
from slacktide.kernel.hierarchy import Version
from tests.agent.trees import Tree
from tests.agent.twins import FakeClock


def held():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path, Version.V1)
    for name in ("a", "b", "c"):
        made.group(name)
    return made


def group(tree, name, budget, clock=None):
    path = str(tree.path(name, ""))
    return GroupFiles(path, os.stat(path).st_ino, budget, clock or FakeClock())


def test_hot_files_are_held_and_tell_what_is_new(tree):
    budget = FdBudget(limit=1000, reserve=10)
    files = group(tree, "a", budget)
    before = held()
    assert files.hot("cpu.shares") == b"1024\n"
    tree.put("a", "cpu.shares", 2048)
    assert files.hot("cpu.shares") == b"2048\n"
    assert (held() - before, budget.held) == (1, 1)
    files.release()
    assert (held() - before, budget.held, files.hot("cpu.shares")) == (0, 0, b"2048\n")
    files.release()


def test_cold_files_are_not_held(tree):
    budget = FdBudget(limit=1000)
    before = held()
    assert group(tree, "a", budget).cold("cpu.shares") == b"1024\n"
    assert (held() - before, budget.held) == (0, 0)


def test_beyond_the_budget_files_are_read_without_being_held(tree):
    budget = FdBudget(limit=12, reserve=10)
    groups = [group(tree, name, budget) for name in ("a", "b", "c")]
    before = held()
    assert [one.hot("cpu.shares") for one in groups] == [b"1024\n"] * 3
    assert (held() - before, budget.held) == (2, 2)
    groups[0].release()
    groups[2].hot("cpu.shares")
    assert (held() - before, budget.held) == (2, 2)
    for one in groups:
        one.release()


@pytest.mark.parametrize("limit", [0, 5, 10])
def test_a_limit_within_the_reserve_holds_nothing(limit):
    assert FdBudget(limit=limit, reserve=10).most == 0


def test_out_of_descriptors_all_that_is_held_is_given_up_and_the_read_goes_on(tree, monkeypatch):
    clock = FakeClock()
    budget = FdBudget(limit=1000, clock=clock)
    groups = [group(tree, name, budget, clock) for name in ("a", "b", "c")]
    for one in groups[:2]:
        one.hot("cpu.shares")
    real = fds.open_group

    def full_once(directory, inode):
        if budget.held:
            raise KernelError(directory, errno.EMFILE, "Too many open files")
        return real(directory, inode)

    monkeypatch.setattr(fds, "open_group", full_once)
    assert groups[2].hot("cpu.shares") == b"1024\n"
    assert (budget.held, budget.sheds) == (0, 1)
    monkeypatch.setattr(fds, "open_group", real)
    groups[0].hot("cpu.shares")
    assert budget.held == 0, "lean for a while"
    clock.pass_(LEAN_SECONDS)
    groups[0].hot("cpu.shares")
    assert budget.held == 1
    groups[0].release()


def test_a_group_that_was_made_again_is_another(tree):
    files = group(tree, "a", FdBudget())
    tree.remove("a")
    # The inode may be used again at once: hold the place of it.
    (tree.base / "cpu" / "other").mkdir()
    tree.group("a")
    if os.stat(tree.path("a", "")).st_ino == os.stat(tree.base / "cpu" / "other").st_ino:
        pytest.skip("this file system gave out the same inode twice")
    with pytest.raises(Gone):
        files.cold("cpu.shares")


def test_long_files_are_read_to_the_end(tree):
    text = "".join(f"key{number} {number}\n" for number in range(20_000))
    tree.path("a", "cpu.stat").write_text(text)
    assert group(tree, "a", FdBudget()).cold("cpu.stat").decode() == text


@given(st.lists(st.sampled_from(["hot a", "hot b", "release a", "release b", "shed"]), max_size=30))
def test_the_budget_knows_how_many_are_held(actions):
    clock = FakeClock()
    budget = FdBudget(limit=3, reserve=0, clock=clock)
    directory = "/proc/self"
    groups = {name: GroupFiles(directory, None, budget, clock) for name in "ab"}
    names = {"a": ("stat", "status", "comm"), "b": ("cmdline", "maps")}
    before = held()
    try:
        for action in actions:
            what, _, name = action.partition(" ")
            if what == "shed":
                budget.shed()
                clock.pass_(LEAN_SECONDS)
            elif what == "release":
                groups[name].release()
            else:
                for file in names[name]:
                    groups[name].hot(file)
            assert 0 <= budget.held == held() - before <= 3
    finally:
        for one in groups.values():
            one.release()
    assert (budget.held, held()) == (0, before)


LOWERED = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sys.path.insert(0, os.getcwd())
from agent.host.cgroup import CgroupLister
from agent.host.fds import FdBudget
from agent.host.proc import Proc
from agent.host.reader import HostReader
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version
base = sys.argv[1]
names = ("cpu", "cpuacct", "memory", "cpuset", "blkio", "pids", "freezer")
hierarchy = Hierarchy({name: Mount(f"{base}/{name}", Version.V1) for name in names}, None)
budget = FdBudget(reserve=int(sys.argv[2]))
reader = HostReader(hierarchy, CgroupLister(hierarchy), Proc("/proc", time.monotonic), time.monotonic, budget=budget)
reader.sweep()
taken = []
if sys.argv[3] == "leak":
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
sweep = reader.sweep()
free = 0
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
        free += 1
except OSError:
    pass
measured = sum(reading.cpu is not None and reading.memory is not None for reading in sweep.readings.values())
print(len(sweep.groups), measured, sweep.node is not None, budget.sheds, free >= 8)
"""


@pytest.mark.parametrize(("reserve", "leak", "sheds"), [(20, "none", "0"), (20, "leak", "1")])
def test_a_process_with_few_descriptors_reads_all_pods_and_leaves_some_to_control(tmp_path, reserve, leak, sheds):
    # kernel.md 5, fd exhaustion: koordinator#782, #1828; on EMFILE monitoring is shed first.
    tree = Tree(tmp_path, Version.V1)
    for number in range(40):
        tree.group(f"kubepods/pod{number:08x}-0000-4000-8000-000000000000")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOWERED), str(tmp_path), str(reserve), leak],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["40", "40", "True", sheds, "True"], done.stderr


def test_the_soft_limit_is_raised_within_the_hard_one():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500));"
        "from agent.host.fds import raise_limit;"
        "print(raise_limit(300), raise_limit(9000), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "300 500 (500, 500)"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_limit(1) in {soft, fds.WANTED_LIMIT, 1}
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft


def test_times_of_threads_through_held_descriptors(tmp_path):
    for tid in (7, 8):
        (tmp_path / str(tid)).mkdir()
        (tmp_path / str(tid) / "schedstat").write_text(f"{tid}00 {tid} 1\n")
    budget = FdBudget(limit=1, reserve=0)
    stats = SchedStats(str(tmp_path), budget)
    assert (stats.read(7), stats.read(8), stats.read(9)) == ((700, 7), (800, 8), None)
    assert (stats.bound(7), stats.bound(8), budget.held) == (True, False, 1)
    (tmp_path / "7" / "schedstat").write_text("junk\n")
    assert stats.read(7) is None
    stats.keep({8})
    assert (stats.holds, budget.held) == (False, 0)


def test_of_many_threads_those_that_sleep_are_read_in_turn_and_none_is_forgotten(tmp_path):
    def put(tid, run, delay):
        (tmp_path / str(tid) / "schedstat").write_text(f"{run} {delay} 1\n")

    tids = range(1, 2 * FEW_THREADS)
    for tid in tids:
        (tmp_path / str(tid)).mkdir()
        put(tid, 10, 1)
    reader = RunDelayReader(str(tmp_path), lambda: 1.0, max_threads=1000)
    try:
        reader.refresh(tids)
        assert len(reader.read().times) == len(tids), "all at first"
        for _ in range(2):
            reader.refresh(tids)
        put(7, 10, 99)
        seen = [reader.read().times for _ in range(IDLE_BEATS)]
        assert all(len(times) == len(tids) for times in seen)
        assert seen[-1][7] == (10, 99), "within a few beats"
        put(7, 11, 99)
        assert reader.read().times[7] == (11, 99), "it is awake now: in every beat"
        (tmp_path / "8" / "schedstat").write_text("junk")
        for _ in range(IDLE_BEATS):
            times = reader.read().times
        assert 8 not in times
    finally:
        reader.close()


def test_a_birth_is_seen_with_its_aftermath_and_a_look_is_due_now_and_then(tmp_path):
    def last(number):
        (tmp_path / "loadavg").write_text(f"0.00 0.00 0.00 1/99 {number}\n")

    last(100)
    births = Births(str(tmp_path), aftermath=2)
    try:
        assert [births.looked() for _ in range(4)] == [True, True, True, False]
        last(101)
        assert [births.looked() for _ in range(4)] == [True, True, True, False]
        assert sum(births.looked() for _ in range(4 * ANYWAY)) in {3, 4}
    finally:
        births.close()


@pytest.mark.parametrize("text", ["", "1 2 3\n", "0.00 0.00 0.00 1/99 x\n", "\x00"])
def test_without_a_last_id_something_is_always_said_to_be_born(tmp_path, text):
    (tmp_path / "loadavg").write_text(text)
    births = Births(str(tmp_path))
    assert all(births.looked() for _ in range(ANYWAY))
    births.close()
