"""Ballast as real processes in a real cgroup: harmless, steered, paid for, and gone with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.act.ballast import GROUP, Ballast, remove_stale
from agent.host.cgroup import CgroupLister
from slacktide.kernel.hierarchy import Hierarchy
from tests.kernel.test_agent_cgroups import CPU, HIERARCHY, groups, pytestmark, wait_for  # noqa: F401 - fixture and marks

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def lister(groups):  # noqa: F811 - the fixture
    return CgroupLister(HIERARCHY, groups.root)


@pytest.fixture
def ballast(lister):
    made = Ballast(HIERARCHY, lister, "/proc", clock=lambda: 100.0)
    assert made.start(CPUS), made.why_not
    try:
        yield made
    finally:
        made.stop()


def directory(lister):
    return Path(CPU.path, lister.root, GROUP)


def pids(lister):
    return [int(line) for line in (directory(lister) / "cgroup.procs").read_text().split()]


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_each_cpu_has_a_stopped_idle_child_in_a_cgroup_that_yields_to_all(ballast, lister):
    found = pids(lister)
    assert (directory(lister) / "cpu.idle").read_text().strip() == "1"
    assert {frozenset(os.sched_getaffinity(pid)) for pid in found} == {frozenset({cpu}) for cpu in CPUS}
    assert {os.sched_getscheduler(pid) for pid in found} == {os.SCHED_IDLE}
    assert {state(pid) for pid in found} == {"T"}
    view = ballast.view()
    assert view.running == frozenset()
    assert 0 < view.resident_bytes < (len(CPUS) + 1) * 8 << 20


def test_it_runs_where_it_is_wanted_and_counts_what_it_burns(ballast, lister):
    first = frozenset(CPUS[:1])
    ballast.want(first)
    wait_for(lambda: ballast.used().get(CPUS[0], 0.0) > 0.1, "ballast on the first CPU")
    assert ballast.used().keys() == {CPUS[0]}, "what never ran is not read"
    assert ballast.view().running == first
    rest = CPUS[1:]
    before = ballast.used()
    ballast.want(frozenset(rest))
    wait_for(lambda: all(ballast.used().get(cpu, 0.0) > before.get(cpu, 0.0) for cpu in rest), "the others")
    ballast.want(frozenset())
    wait_for(lambda: {state(pid) for pid in pids(lister)} == {"T"}, "all stopped")
    kernel = {min(os.sched_getaffinity(pid)): pid for pid in pids(lister)}
    times = {cpu: int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for cpu, pid in kernel.items()}
    assert ballast.used() == times, "nothing that was burnt is missed"
    assert ballast.view().cpu_seconds == sum(times.values())


def test_stopping_leaves_nothing_behind(ballast, lister):
    ballast.want(frozenset(CPUS))
    found = pids(lister)
    ballast.stop()
    assert not directory(lister).exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    ballast.want(frozenset(CPUS))
    assert ballast.view().running == frozenset()


STARTER = (
    "import sys, time\n"
    "from agent.act.ballast import Ballast\n"
    "from agent.host.cgroup import CgroupLister\n"
    "from slacktide.kernel.hierarchy import discover\n"
    "found = discover()\n"
    "ballast = Ballast(found, CgroupLister(found, sys.argv[1]), '/proc')\n"
    "assert ballast.start([0]), ballast.why_not\n"
    "ballast.want(frozenset([0]))\n"
    "time.sleep(600)\n"
)


def test_a_killed_agent_takes_its_ballast_with_it(lister):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, lister.root], cwd=Path(__file__).parents[2])
    try:
        wait_for(lambda: directory(lister).exists() and [state(pid) for pid in pids(lister)] == ["R"], "ballast")
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)
    wait_for(lambda: not directory(lister).exists(), "the end of the helper and of its cgroup")


def test_a_killed_helper_leaves_children_to_the_kernel_and_the_cgroup_to_the_next_start(lister):
    ballast = Ballast(HIERARCHY, lister, "/proc")
    assert ballast.start(CPUS[:1])
    (child,) = pids(lister)
    parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the child's end")
    wait_for(lambda: _ended(ballast), "the notice")
    assert directory(lister).exists()
    assert remove_stale(HIERARCHY, lister)
    assert not directory(lister).exists()
    ballast.stop()


def _ended(ballast):
    ballast.want(frozenset() if ballast.view().running else frozenset(CPUS))
    return "ended" in ballast.why_not


def test_without_a_cpu_controller_it_says_why():
    nothing = Hierarchy({}, None)
    ballast = Ballast(nothing, CgroupLister(nothing), "/proc")
    assert not ballast.start([0])
    assert ballast.why_not == "no ballast: cpu: no cpu controller is mounted"
    assert remove_stale(nothing, CgroupLister(nothing))
    ballast.stop()


def test_where_no_cgroup_can_be_made_it_says_why(lister):
    ballast = Ballast(HIERARCHY, CgroupLister(HIERARCHY, f"{lister.root}/nowhere"), "/proc")
    assert not ballast.start(CPUS[:1])
    assert "No such file" in ballast.why_not
    assert ballast.view().cpu_seconds is None
