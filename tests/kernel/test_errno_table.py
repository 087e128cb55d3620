"""Each row of the table of errno (reference/kernel.md 2.1) on real cgroups, and the domain error that it becomes.

Rows of one cgroup version run where that version is: v1 on such a machine, v2 in the guest, and what cgroup v2 does
without controllers also beside v1 ones.
"""

from __future__ import annotations

import errno
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from slacktide.errors import Gone, KernelError, NotPermitted, Refused, Unsupported
from slacktide.kernel.files import parse_flat, read_int, read_text, translate, write_value
from slacktide.kernel.hierarchy import Version, discover
from tests.patience import PATIENCE

HIERARCHY = discover()

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SLEEP = "import time; print('ready', flush=True); time.sleep(100)"
HOG = "import time; block = bytearray(48 << 20); print('ready', flush=True); time.sleep(100)"
DEADLINE = 10.0 * PATIENCE


def needs(controller, version):
    """Skips where a controller is not of this version."""
    mount = HIERARCHY.controllers.get(controller)
    there = mount is not None and mount.version is version and os.access(mount.path, os.W_OK)
    return pytest.mark.skipif(not there, reason=f"no {controller} controller of cgroup v{version}")


needs_unified = pytest.mark.skipif(HIERARCHY.unified is None, reason="no cgroup v2 mount")


def wait_for(condition, what="it"):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in time"
        time.sleep(0.005)


class Cgroups:
    """Directories of one test under any mount, and processes in them; all go at its end."""

    def __init__(self):
        self.name = f"slacktide-errno-{secrets.token_hex(4)}"
        self.tops = []
        self.processes = []

    def top(self, mount, version=Version.V1):
        """A group of our own; on v2 with what controllers there are for its children."""
        path = Path(mount, self.name)
        if path not in self.tops:
            if version is Version.V2:
                enable(Path(mount))
            path.mkdir()
            self.tops.append(path)
        return path

    def of(self, controller):
        mount = HIERARCHY.controllers[controller]
        return self.top(mount.path, mount.version)

    def child(self, parent, name="child"):
        path = parent / name
        path.mkdir()
        return path

    def spawn(self, code=SLEEP, *groups):
        process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        self.processes.append(process)
        for group in groups:
            (group / "cgroup.procs").write_text(str(process.pid))
        assert process.stdout.readline() == b"ready\n"
        return process

    def close(self):
        for top in self.tops:
            for state in top.rglob("freezer.state"):
                state.write_text("THAWED")
            if (top / "freezer.state").exists():
                (top / "freezer.state").write_text("THAWED")
        for process in self.processes:
            process.kill()
            process.wait(DEADLINE)
            process.stdout.close()
        for top in self.tops:
            for path in (*sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True), top):
                wait_for(lambda path=path: removed(path), f"removal of {path}")


def enable(directory):
    for name in (directory / "cgroup.controllers").read_text().split():
        if name in {"cpu", "cpuset", "memory", "io", "pids"}:
            (directory / "cgroup.subtree_control").write_text(f"+{name}")


def removed(path):
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def cgroups():
    made = Cgroups()
    try:
        yield made
    finally:
        made.close()


def refused(code, path, value, kind=Refused):
    """The write fails with this errno, and as this domain error."""
    with pytest.raises(KernelError) as caught:
        write_value(str(path), value)
    assert (type(caught.value), caught.value.errno) == (kind, code)


@needs("cpu", Version.V1)
def test_v1_quota(cgroups):
    quota = cgroups.of("cpu") / "cpu.cfs_quota_us"
    for value in (999, 0, "text", "max"):
        refused(errno.EINVAL, quota, value)
    write_value(str(quota), 1000)
    assert read_int(str(quota)) == 1000
    for value in (-1, -77):
        write_value(str(quota), value)
        assert read_int(str(quota)) == -1


@needs("cpu", Version.V2)
def test_v2_quota(cgroups):
    quota = cgroups.of("cpu") / "cpu.max"
    for value in ("999", "text", "-1", "0"):
        refused(errno.EINVAL, quota, value)
    write_value(str(quota), "1000")
    assert read_text(str(quota)) == "1000 100000\n"
    write_value(str(quota), "max")
    assert read_text(str(quota)) == "max 100000\n"


@needs("cpu", Version.V1)
def test_v1_period(cgroups):
    period = cgroups.of("cpu") / "cpu.cfs_period_us"
    for value in (999, 1_000_001):
        refused(errno.EINVAL, period, value)
    write_value(str(period), 1000)


@needs("cpu", Version.V1)
def test_v1_burst_above_the_quota_and_quota_below_the_burst(cgroups):
    group = cgroups.of("cpu")
    if not (group / "cpu.cfs_burst_us").exists():
        pytest.skip("no burst in this kernel")
    write_value(str(group / "cpu.cfs_quota_us"), 50000)
    refused(errno.EINVAL, group / "cpu.cfs_burst_us", 50001)
    write_value(str(group / "cpu.cfs_burst_us"), 40000)
    refused(errno.EINVAL, group / "cpu.cfs_quota_us", 30000)
    for name, value in (("cpu.cfs_burst_us", 0), ("cpu.cfs_quota_us", 30000), ("cpu.cfs_burst_us", 30000)):
        write_value(str(group / name), value)


@needs("cpu", Version.V2)
def test_v2_burst_above_the_quota_and_quota_below_the_burst(cgroups):
    group = cgroups.of("cpu")
    write_value(str(group / "cpu.max"), "50000")
    refused(errno.EINVAL, group / "cpu.max.burst", 50001)
    write_value(str(group / "cpu.max.burst"), 40000)
    refused(errno.EINVAL, group / "cpu.max", "30000")


@needs("cpu", Version.V1)
def test_v1_no_child_may_have_more_than_its_parent(cgroups):
    parent = cgroups.of("cpu")
    child = cgroups.child(parent)
    write_value(str(parent / "cpu.cfs_quota_us"), 200000)
    refused(errno.EINVAL, child / "cpu.cfs_quota_us", 400000)
    write_value(str(child / "cpu.cfs_quota_us"), 150000)
    refused(errno.EINVAL, parent / "cpu.cfs_quota_us", 100000)
    write_value(str(child / "cpu.cfs_quota_us"), -1)
    assert read_int(str(child / "cpu.cfs_quota_us")) == -1


@needs("cpu", Version.V2)
def test_v2_a_child_may_ask_for_more_than_its_parent(cgroups):
    parent = cgroups.of("cpu")
    enable(parent)
    child = cgroups.child(parent)
    write_value(str(parent / "cpu.max"), "200000")
    write_value(str(child / "cpu.max"), "400000")
    write_value(str(parent / "cpu.max"), "100000")


@needs("cpu", Version.V1)
def test_v1_shares_are_clamped_silently(cgroups):
    shares = cgroups.of("cpu") / "cpu.shares"
    for value, held in ((0, 2), (1, 2), (262_145, 262_144), (1 << 40, 262_144)):
        write_value(str(shares), value)
        assert read_int(str(shares)) == held


@needs("cpu", Version.V2)
def test_v2_weight_has_a_range(cgroups):
    weight = cgroups.of("cpu") / "cpu.weight"
    for value in (0, 10_001):
        refused(errno.ERANGE, weight, value)


@pytest.mark.skipif("cpu" not in HIERARCHY.controllers, reason="no cpu controller")
def test_idle_hides_the_weight_refuses_another_and_forgets_it(cgroups):
    group = cgroups.of("cpu")
    v1 = HIERARCHY.controllers["cpu"].version is Version.V1
    weight, default, hidden = ("cpu.shares", 1024, 3) if v1 else ("cpu.weight", 100, 0)
    if not (group / "cpu.idle").exists():
        pytest.skip("no cpu.idle in this kernel")
    if not v1:
        enable(group)
    child = cgroups.child(group)
    write_value(str(group / weight), 500)
    for value in (2, -1):
        refused(errno.EINVAL, group / "cpu.idle", value)
    write_value(str(group / "cpu.idle"), 1)
    assert read_int(str(group / weight)) == hidden
    refused(errno.EINVAL, group / weight, 500)
    write_value(str(child / weight), 300)
    write_value(str(group / "cpu.idle"), 0)
    assert read_int(str(group / weight)) == default


@needs("cpuset", Version.V1)
def test_v1_cpuset_without_cpus_takes_no_task_and_is_not_emptied_under_one(cgroups):
    group = cgroups.of("cpuset")
    process = cgroups.spawn()
    refused(errno.ENOSPC, group / "cgroup.procs", process.pid)
    fill(group)
    write_value(str(group / "cgroup.procs"), process.pid)
    refused(errno.ENOSPC, group / "cpuset.cpus", "\n")
    before = read_text(str(group / "cpuset.cpus"))
    descriptor = os.open(group / "cpuset.cpus", os.O_WRONLY)
    try:
        assert os.write(descriptor, b"") == 0
    finally:
        os.close(descriptor)
    assert read_text(str(group / "cpuset.cpus")) == before
    with pytest.raises(Refused, match="an empty value"):
        write_value(str(group / "cpuset.cpus"), "")


def fill(group, cpus=None):
    """CPUs and memory nodes of the parent, or these CPUs."""
    for name in ("cpuset.mems", "cpuset.cpus"):
        text = read_text(str(group.parent / name)).strip()
        write_value(str(group / name), cpus if cpus and name == "cpuset.cpus" else text)


@needs("cpuset", Version.V1)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_v1_cpuset_of_parent_and_child(cgroups):
    first, second, *_ = sorted(os.sched_getaffinity(0))
    group = cgroups.of("cpuset")
    fill(group, str(first))
    child = cgroups.child(group)
    refused(errno.EACCES, child / "cpuset.cpus", str(second), Refused)
    possible = read_text("/sys/devices/system/cpu/possible").strip().rpartition("-")[2]
    refused(errno.ERANGE if int(possible) < 8000 else errno.EACCES, child / "cpuset.cpus", "8190")
    write_value(str(group / "cpuset.cpus"), f"{first},{second}")
    write_value(str(child / "cpuset.cpus"), str(second))
    refused(errno.EBUSY, group / "cpuset.cpus", str(first))
    refused(errno.EACCES, child / "cpuset.cpu_exclusive", 1, Refused)


@needs("cpuset", Version.V1)
def test_v1_exclusive_cpusets_do_not_overlap(cgroups):
    group = cgroups.of("cpuset")
    fill(group)
    beside = group.with_name(f"{group.name}-beside")
    beside.mkdir()
    cgroups.tops.append(beside)
    fill(beside)
    refused(errno.EINVAL, group / "cpuset.cpu_exclusive", 1)
    assert read_int(str(group / "cpuset.cpu_exclusive")) == 0


@needs("cpuset", Version.V1)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_v1_cpuset_goes_from_one_list_to_another_by_way_of_both(cgroups):
    first, second, *_ = sorted(os.sched_getaffinity(0))
    group = cgroups.of("cpuset")
    fill(group, str(first))
    child = cgroups.child(group)
    fill(child, str(first))
    both = f"{first},{second}"
    for path, value in ((group, both), (child, both), (child, str(second)), (group, str(second))):
        write_value(str(path / "cpuset.cpus"), value)


@needs("cpuset", Version.V2)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_v2_cpuset_outside_the_parent_is_taken_and_narrowed(cgroups):
    first, second, *_ = sorted(os.sched_getaffinity(0))
    group = cgroups.of("cpuset")
    enable(group)
    child = cgroups.child(group)
    write_value(str(group / "cpuset.cpus"), str(first))
    write_value(str(child / "cpuset.cpus"), f"{first},{second}")
    assert read_text(str(child / "cpuset.cpus.effective")).strip() == str(first)


@needs("cpuset", Version.V2)
def test_v2_a_list_of_cpus_is_not_taken_away_from_a_task(cgroups):
    group = cgroups.of("cpuset")
    first = min(os.sched_getaffinity(0))
    write_value(str(group / "cpuset.cpus"), str(first))
    write_value(str(group / "cpuset.cpus"), "\n")
    cgroups.spawn(SLEEP, group)
    write_value(str(group / "cpuset.cpus"), str(first))
    refused(errno.ENOSPC, group / "cpuset.cpus", "\n")


@needs("memory", Version.V1)
def test_v1_memory_limit(cgroups):
    group = cgroups.of("memory")
    limit = group / "memory.limit_in_bytes"
    assert read_int(str(limit)) == 9223372036854771712
    write_value(str(limit), (64 << 20) + 1000)
    assert read_int(str(limit)) == 64 << 20
    write_value(str(limit), -1)
    swappiness = group / "memory.swappiness"
    if swappiness.exists():
        write_value(str(swappiness), 0)
    cgroups.spawn(HOG, group)
    refused(errno.EBUSY, limit, 4 << 20)
    assert read_int(str(limit)) == 9223372036854771712


@pytest.mark.skipif("cpu" not in HIERARCHY.controllers, reason="no cpu controller")
def test_a_group_with_children_or_tasks_is_not_removed(cgroups):
    group = cgroups.of("cpu")
    child = cgroups.child(group)
    for path in (group, child):
        if path is child:
            cgroups.spawn(SLEEP, child)
        with pytest.raises(OSError, match="busy") as caught:
            os.rmdir(path)
        assert type(translate(str(path), caught.value)) is Refused
        assert caught.value.errno == errno.EBUSY


@pytest.mark.skipif("cpu" not in HIERARCHY.controllers, reason="no cpu controller")
def test_a_dead_pid_and_junk_in_procs(cgroups):
    procs = cgroups.of("cpu") / "cgroup.procs"
    process = cgroups.spawn()
    process.kill()
    process.wait(DEADLINE)
    refused(errno.ESRCH, procs, process.pid, Gone)
    for value in ("junk", "-5"):
        refused(errno.EINVAL, procs, value)


@pytest.mark.skipif("cpu" not in HIERARCHY.controllers, reason="no cpu controller")
def test_a_held_descriptor_of_a_group_that_is_gone(cgroups):
    group = cgroups.child(cgroups.of("cpu"))
    directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(group / "cgroup.procs", os.O_RDWR)
    try:
        group.rmdir()
        for act in (lambda: os.read(file, 10), lambda: os.write(file, b"1")):
            with pytest.raises(OSError, match="No such device") as caught:
                act()
            assert (caught.value.errno, type(translate("x", caught.value))) == (errno.ENODEV, Gone)
        with pytest.raises(Gone) as gone:
            read_text("cgroup.procs", directory)
        assert gone.value.errno == errno.ENOENT
        assert os.listdir(directory) == []
        with pytest.raises(Gone):
            read_text(str(group / "cgroup.procs"))
    finally:
        os.close(directory)
        os.close(file)


@pytest.mark.skipif("cpu" not in HIERARCHY.controllers, reason="no cpu controller")
def test_an_unknown_file_is_never_made_and_a_long_write_is_too_big(cgroups):
    group = cgroups.of("cpu")
    with pytest.raises(OSError, match="denied") as caught:
        os.open(group / "cpu.unknown", os.O_WRONLY | os.O_CREAT)
    assert (caught.value.errno, type(translate("x", caught.value))) == (errno.EACCES, NotPermitted)
    with pytest.raises(Gone):
        write_value(str(group / "cpu.unknown"), 1)
    name = "cpu.shares" if HIERARCHY.controllers["cpu"].version is Version.V1 else "cpu.weight"
    refused(errno.E2BIG, group / name, "1" * 5000)


@needs_unified
def test_v2_freeze(cgroups):
    group = cgroups.top(HIERARCHY.unified)
    refused(errno.ERANGE, group / "cgroup.freeze", 2)
    refused(errno.EINVAL, group / "cgroup.freeze", "text")
    process = cgroups.spawn(SLEEP, group)
    write_value(str(group / "cgroup.freeze"), 1)
    wait_for(lambda: parse_flat(read_text(str(group / "cgroup.events")))["frozen"] == 1, "the freeze")
    process.send_signal(signal.SIGKILL)
    assert process.wait(DEADLINE) == -signal.SIGKILL


@needs_unified
def test_v2_kill(cgroups):
    group = cgroups.top(HIERARCHY.unified)
    kill = group / "cgroup.kill"
    if not kill.exists():
        pytest.skip("no cgroup.kill in this kernel")
    for value in (0, 2):
        refused(errno.ERANGE, kill, value)
    refused(errno.EINVAL, kill, "text")
    with pytest.raises(KernelError) as caught:
        read_text(str(kill))
    assert caught.value.errno == errno.EINVAL
    process = cgroups.spawn(SLEEP, group)
    write_value(str(group / "cgroup.freeze"), 1)
    write_value(str(kill), 1)
    assert process.wait(DEADLINE) == -signal.SIGKILL


@needs_unified
def test_v2_a_threaded_group_is_not_killed(cgroups):
    group = cgroups.child(cgroups.top(HIERARCHY.unified))
    if not (group / "cgroup.kill").exists():
        pytest.skip("no cgroup.kill in this kernel")
    write_value(str(group / "cgroup.type"), "threaded")
    refused(errno.EOPNOTSUPP, group / "cgroup.kill", 1, Unsupported)


@needs("freezer", Version.V1)
def test_v1_a_frozen_task_dies_when_it_is_thawed(cgroups):
    group = cgroups.of("freezer")
    process = cgroups.spawn(SLEEP, group)
    write_value(str(group / "freezer.state"), "FROZEN")
    wait_for(lambda: read_text(str(group / "freezer.state")) == "FROZEN\n", "the freeze")
    process.send_signal(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    write_value(str(group / "freezer.state"), "THAWED")
    assert process.wait(DEADLINE) == -signal.SIGKILL
    refused(errno.EINVAL, group / "freezer.state", "ICE")


@needs("freezer", Version.V1)
def test_v1_tasks_moves_a_thread_and_procs_the_process(cgroups):
    group = cgroups.of("freezer")
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    home = Path(HIERARCHY.controllers["freezer"].path, own_group("freezer"))
    try:
        write_value(str(group / "tasks"), thread.native_id)
        assert read_text(str(group / "tasks")).split() == [str(thread.native_id)]
        write_value(str(group / "cgroup.procs"), thread.native_id)
        assert {str(os.getpid()), str(thread.native_id)} <= set(read_text(str(group / "tasks")).split())
    finally:
        write_value(str(home / "cgroup.procs"), os.getpid())
        done.set()
        thread.join()


def own_group(controller):
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.lstrip("/")
    raise AssertionError(controller)


@needs_unified
def test_v2_controllers_that_are_not_there(cgroups):
    control = cgroups.top(HIERARCHY.unified) / "cgroup.subtree_control"
    offered = read_text(str(control.parent / "cgroup.controllers")).split()
    missing = next(name for name in ("hugetlb", "rdma", "misc", "perf_event", "cpu") if name not in offered)
    with pytest.raises(KernelError) as caught:
        write_value(str(control), f"+{missing}")
    # A controller that this kernel was built without is as unknown as a typing error.
    assert caught.value.errno in {errno.ENOENT, errno.EINVAL}
    refused(errno.EINVAL, control, "+unknown")


@needs("cpu", Version.V1)
@needs_unified
def test_v1_has_a_controller_so_v2_does_not_offer_it(cgroups):
    refused(errno.ENOENT, cgroups.top(HIERARCHY.unified) / "cgroup.subtree_control", "+cpu", Gone)


@needs("memory", Version.V2)
def test_v2_a_domain_controller_is_not_enabled_above_tasks(cgroups):
    group = cgroups.of("memory")
    cgroups.spawn(SLEEP, group)
    refused(errno.EBUSY, group / "cgroup.subtree_control", "+memory")


@needs_unified
def test_v2_pressure_can_be_switched_off(cgroups):
    group = cgroups.top(HIERARCHY.unified)
    if not (group / "cgroup.pressure").exists() or not (group / "cpu.pressure").exists():
        pytest.skip("no PSI per cgroup in this kernel")
    refused(errno.ERANGE, group / "cgroup.pressure", 2)
    write_value(str(group / "cgroup.pressure"), 0)
    with pytest.raises(Gone):
        read_text(str(group / "cpu.pressure"))
