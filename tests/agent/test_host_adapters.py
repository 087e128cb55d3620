from __future__ import annotations

import os

import psutil
import pytest

from agent.capabilities import Knob
from agent.host import cpu, fds, podfiles, psi
from agent.host.cgroup import CgroupLister, open_group, threads_of
from agent.host.fds import FdBudget, GroupFiles
from agent.host.memory import read_memory
from agent.host.probe import probe
from agent.host.proc import Proc
from agent.host.reader import HostReader
from agent.host.schedstat import RunDelayReader
from agent.host.usage import UsageReader
from slacktide.errors import Gone, NotPermitted, Refused, Unsupported
from slacktide.kernel.hierarchy import Hierarchy, Version
from tests.agent.trees import CID, CID2, UID_BE, UID_LS, KernelWriter, Tree, proc_tree


def under(value: str) -> str:
    return value.replace("-", "_")


LAYOUTS = {
    "cgroupfs": (f"kubepods/burstable/pod{UID_LS}", f"kubepods/besteffort/pod{UID_BE}", CID),
    "systemd": (
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under(UID_LS)}.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under(UID_BE)}.slice",
        f"cri-containerd-{CID}.scope",
    ),
    "nested": (
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{under(UID_LS)}.slice",
        f"kubelet.slice/kubelet-kubepods.slice/x.slice/kubelet-kubepods-besteffort-pod{under(UID_BE)}.slice",
        f"crio-{CID}.scope",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", list(Version))
def test_pods_and_containers_are_found_by_listing(tmp_path, layout, version):
    ls, be, leaf = LAYOUTS[layout]
    tree = Tree(tmp_path, version)
    tree.group(ls)
    tree.group(f"{be}/{leaf}")
    tree.group(f"{be}/crio-conmon-{CID2}.scope")
    tree.group("system.slice/other")
    pods = tree.lister().pods()
    assert {(pod.uid, pod.group) for pod in pods} == {(UID_LS, ls), (UID_BE, be)}
    containers = next(pod for pod in pods if pod.uid == UID_BE).containers
    assert [container.id for container in containers] == [CID]
    assert all(
        pod.inode == os.stat(tree.path(pod.group, "").parent / os.path.basename(pod.group)).st_ino for pod in pods
    )


def test_a_root_limits_the_search_and_a_missing_one_is_empty(tmp_path):
    tree = Tree(tmp_path)
    tree.group(f"slacktide-1/kubepods/pod{UID_LS}")
    tree.group(f"kubepods/pod{UID_BE}")
    assert [pod.uid for pod in tree.lister("slacktide-1").pods()] == [UID_LS]
    assert tree.lister("slacktide-2").pods() == ()


@pytest.mark.parametrize("root", ["..", "/abs", "a/../b", "a//b", "x\ny"])
def test_a_root_that_leaves_the_mount_is_refused(tmp_path, root):
    with pytest.raises(ValueError, match="root"):
        Tree(tmp_path).lister(root)


def test_a_symlink_is_no_cgroup(tmp_path):
    tree = Tree(tmp_path / "t")
    outside = tmp_path / "outside"
    outside.mkdir()
    tree.group("kubepods")
    os.symlink(outside, tree.path("kubepods", f"pod{UID_LS}"))
    assert tree.lister().pods() == ()


def test_a_group_made_again_is_another_group(tmp_path):
    tree = Tree(tmp_path)
    group = f"kubepods/pod{UID_LS}"
    tree.group(group)
    path = str(tree.path(group, ""))
    with pytest.raises(Gone):
        open_group(path, os.stat(path).st_ino + 1)


@pytest.mark.parametrize(
    ("version", "stat", "expected"),
    [
        (Version.V1, "nr_periods 10\nnr_throttled 4\nthrottled_time 5000\n", (7_000, 10, 4, 5_000)),
        (
            Version.V2,
            "usage_usec 7\nnr_periods 10\nnr_throttled 4\nthrottled_usec 5\nnr_bursts 0\n",
            (7_000, 10, 4, 5_000),
        ),
        (Version.V2, "usage_usec 7\nuser_usec 3\n", (7_000, None, None, None)),
    ],
)
def test_cpu_counters_are_nanoseconds_on_both_versions(tmp_path, version, stat, expected):
    tree = Tree(tmp_path, version)
    tree.group("g", cpu__stat=stat, cpuacct__usage=7_000)
    budget = FdBudget(limit=1000)
    files, acct = (GroupFiles(str(tree.path("g", "", name)), None, budget) for name in ("cpu", "cpuacct"))
    try:
        read = UsageReader(version, lambda: 1.0).read(files, acct)
    finally:
        files.release()
        acct.release()
    assert read is not None
    assert (read.usage_ns, read.periods, read.throttled_periods, read.throttled_ns) == expected


@pytest.mark.parametrize(
    ("version", "files", "quota", "millis"),
    [
        (Version.V1, {"cpu__cfs_quota_us": -1}, None, None),
        (Version.V1, {"cpu__cfs_quota_us": 50000}, 50000, 500),
        (Version.V2, {"cpu__max": "max 100000"}, None, None),
        (Version.V2, {"cpu__max": "25000 50000"}, 25000, 500),
    ],
)
def test_no_limit_is_none_and_not_a_number(tmp_path, version, files, quota, millis):
    tree = Tree(tmp_path, version)
    tree.group("g", **files)
    fd = os.open(tree.path("g", ""), os.O_RDONLY)
    try:
        held = cpu.read_knobs(fd, version)
    finally:
        os.close(fd)
    assert (held.quota_us, held.quota_millis) == (quota, millis)


def test_a_kernel_without_idle_gives_none_and_junk_is_refused(tmp_path):
    tree = Tree(tmp_path)
    tree.group("old", cpu__idle=None, cpu__cfs_burst_us=None)
    tree.group("junk", cpu__shares="binary\x00")
    old, junk = (os.open(tree.path(name, ""), os.O_RDONLY) for name in ("old", "junk"))
    try:
        held = cpu.read_knobs(old, Version.V1)
        assert held.idle is None
        assert held.burst_us is None
        with pytest.raises(Refused, match="expected one number"):
            cpu.read_knobs(junk, Version.V1)
    finally:
        os.close(old)
        os.close(junk)


@pytest.mark.parametrize("version", list(Version))
def test_working_set_limit_and_oom_kills(tmp_path, version):
    tree = Tree(tmp_path, version)
    tree.group("g")
    read = read_memory(GroupFiles(str(tree.path("g", "", "memory")), None, FdBudget()), version, lambda: 1.0)
    assert read is not None
    assert (read.working_set_bytes, read.limit_bytes, read.oom_kills) == (700, None, 2)


@pytest.mark.parametrize(
    ("text", "some", "full"),
    [
        (
            "some avg10=1.00 avg60=0.50 avg300=0.10 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n",
            123,
            45,
        ),
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", 7, None),
        ("some total=7 newkey=1 avg10=0.00\n", 7, None),
    ],
)
def test_psi_formats_by_key(text, some, full):
    totals = psi.parse(text)
    assert totals is not None
    assert (totals.some_us, totals.full_us) == (some, full)


@pytest.mark.parametrize(
    "text",
    [
        "aggr 128544748770\nsome 1.11 2.22 3.33\nfull 4.44 5.55 6.66\n0 0 0\n",
        "some 0.00 0.03 0.05\n",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        "",
        "some total=abc\n",
    ],
)
def test_psi_without_a_total_is_unknown_never_zero(text):
    assert psi.parse(text) is None


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Unsupported("p", 95, "Operation not supported"), "disabled"),
        (Gone("p", 2, "No such file"), "no PSI"),
        (NotPermitted("p", 13, "Permission denied"), "cannot be read"),
    ],
)
def test_psi_that_cannot_be_read_is_missing_with_a_reason(monkeypatch, error, word):
    # A directory tree cannot answer with these errors, so the one reading function does.
    def fail(*_args):
        raise error

    monkeypatch.setattr(psi, "read_text", fail)
    assert psi.read("p") is None
    assert word in (psi.why_missing("p") or "")


def test_node_totals_from_an_injected_proc(tmp_path):
    root = proc_tree(tmp_path / "proc", busy_ticks=400)
    before = psutil.PROCFS_PATH
    proc = Proc(str(root), lambda: 5.0)
    read = proc.counters()
    assert (read.at, read.capacity_cpu_millis, read.busy_seconds) == (5.0, 2000, 4.0)
    assert read.steal_seconds == pytest.approx(0.14)
    assert (read.capacity_memory_bytes, read.memory_available_bytes) == (1 << 30, 768 << 20)
    assert proc.beat() == (5.0, pytest.approx(4.14), 768 << 20), "a CPU that the hypervisor holds is not idle"
    assert proc.boot_id() == "b00t-1"
    assert before == psutil.PROCFS_PATH


def test_memavailable_zero_on_a_healthy_host_is_estimated_not_an_emergency(tmp_path):
    meminfo = (
        "MemTotal: 1048576 kB\nMemFree: 524288 kB\nMemAvailable: 0 kB\nBuffers: 0 kB\nCached: 262144 kB\n"
        "Active: 1 kB\nInactive: 1 kB\nActive(file): 100000 kB\nInactive(file): 100000 kB\n"
        "SReclaimable: 9 kB\nShmem: 0 kB\n"
    )
    proc = Proc(str(proc_tree(tmp_path / "proc", meminfo=meminfo)), lambda: 5.0)
    available = proc.counters().memory_available_bytes
    assert available is not None
    assert available > 500 << 20
    assert proc.beat()[2] is None


def test_meminfo_line_without_a_space(tmp_path):
    meminfo = (
        "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 786432 kB\nShadowCallStack:10373888 kB\nCached: 1 kB\n"
    )
    proc = Proc(
        str(
            proc_tree(tmp_path / "proc", meminfo=meminfo + "Active: 1 kB\nInactive: 1 kB\nBuffers: 0 kB\nShmem: 0 kB\n")
        ),
        lambda: 1.0,
    )
    assert proc.counters().memory_available_bytes == 768 << 20
    assert proc.beat()[2] == 768 << 20


def test_a_sweep_reads_every_pod_and_counts_the_vanished(tmp_path):
    tree = Tree(tmp_path / "cg")
    tree.group(f"kubepods/pod{UID_LS}", cpuacct__usage=42)
    tree.group(f"kubepods/pod{UID_BE}")

    class Vanishing(CgroupLister):
        def pods(self):
            found = super().pods()
            tree.remove(f"kubepods/pod{UID_BE}")
            return found

    lister = Vanishing(tree.hierarchy)
    reader = HostReader(tree.hierarchy, lister, Proc(str(proc_tree(tmp_path / "proc")), lambda: 1.0), lambda: 1.0)
    sweep = reader.sweep()
    assert [found.uid for found in sweep.groups] == [UID_LS]
    assert sweep.vanished == 1
    reading = next(iter(sweep.readings.values()))
    assert reading.cpu is not None
    assert reading.cpu.usage_ns == 42
    assert reading.memory is not None
    assert reading.memory.working_set_bytes == 700


def test_a_missing_controller_is_a_missing_part_not_an_error(tmp_path):
    tree = Tree(tmp_path / "cg")
    group = f"kubepods/pod{UID_LS}"
    tree.group(group)
    for name in ("memory.usage_in_bytes", "memory.stat"):
        tree.path(group, name, "memory").unlink()
    tree.path(group, "cpuacct.usage", "cpuacct").unlink()
    reader = HostReader(
        tree.hierarchy, tree.lister(), Proc(str(proc_tree(tmp_path / "proc")), lambda: 1.0), lambda: 1.0
    )
    reading = next(iter(reader.sweep().readings.values()))
    assert reading.memory is None
    assert reading.cpu is None
    assert reading.knobs is not None


def test_threads_of_pod_and_containers_without_the_foreign_zero(tmp_path):
    tree = Tree(tmp_path)
    tree.group("p", tasks="11\n12\n")
    tree.group("p/c", tasks="0\n13\n")
    assert threads_of(str(tree.path("p", "")), Version.V1, (str(tree.path("p/c", "")), "/gone")) == [11, 12, 13]


def test_run_delay_of_a_bounded_moving_set_of_threads(tmp_path):
    for tid in range(1, 7):
        (tmp_path / str(tid)).mkdir()
        (tmp_path / str(tid) / "schedstat").write_text(f"{tid}00 {tid}0 1\n")
    reader = RunDelayReader(str(tmp_path), lambda: 1.0, max_threads=4)
    try:
        reader.refresh(range(1, 7))
        first = reader.read()
        assert (len(first.times), first.threads, first.times[1]) == (4, 6, (100, 10))
        reader.refresh(range(1, 7))
        assert set(reader.read().times) != set(first.times)
        (tmp_path / "3" / "schedstat").write_text("")
        assert 3 not in reader.read().times
        reader.refresh([99])
        assert reader.read().times == {}
    finally:
        reader.close()


def test_probe_without_a_right_to_make_groups_tries_a_living_pod(tmp_path, monkeypatch):
    tree = Tree(tmp_path / "cg")
    tree.group(f"kubepods/pod{UID_LS}")
    root = str(proc_tree(tmp_path / "proc"))

    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    writer = KernelWriter(Version.V1)
    found = probe(tree.hierarchy, tree.lister(), root, write=writer)
    assert found.writable == set(Knob) - {Knob.BVT, Knob.MEMORY_HIGH, Knob.IO_MAX}
    assert "no block device" in found.skipped["io.max"]
    assert tree.read(f"kubepods/pod{UID_LS}", "cpuset.cpus", "cpuset") == "0-3"
    assert {"cpu.idle", "cpu.shares", "cpu.cfs_quota_us", "freezer.state"} <= {name for _, name, _ in writer.writes}


def test_probe_on_a_read_only_mount_observes_only_and_leaves_nothing(tmp_path, monkeypatch):
    tree = Tree(tmp_path / "cg")
    tree.group(f"kubepods/pod{UID_LS}")
    root = str(proc_tree(tmp_path / "proc"))

    def read_only_directory(*_args, **_kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", read_only_directory)

    def read_only(name, value, dir_fd=None):
        raise NotPermitted(name, 30, "Read-only file system")

    found = probe(tree.hierarchy, tree.lister(), root, write=read_only)
    assert found.observe_only
    assert set(found.skipped) >= {"cpu.idle", "cpu.weight", "cpu.quota", "psi"}
    assert not list(tree.base.rglob("slacktide-probe-*"))


def test_probe_without_a_cpu_controller(tmp_path):
    hierarchy = Hierarchy({}, None)
    found = probe(hierarchy, CgroupLister(hierarchy), str(proc_tree(tmp_path / "proc")))
    assert found.observe_only
    assert "no cpu controller" in found.skipped["cpu"]
    assert all("controller is mounted" in found.skipped[knob.value] for knob in Knob)
    assert CgroupLister(hierarchy).pods() == ()


def test_a_group_that_is_only_half_made_waits_one_sweep(tmp_path):
    tree = Tree(tmp_path / "cg")
    tree.group(f"kubepods/pod{UID_LS}")
    (tree.base / "cpu/kubepods" / f"pod{UID_BE}").mkdir()
    reader = HostReader(
        tree.hierarchy, tree.lister(), Proc(str(proc_tree(tmp_path / "proc")), lambda: 1.0), lambda: 1.0
    )
    assert [found.uid for found in reader.sweep().groups] == [UID_LS]
    tree.path(f"kubepods/pod{UID_BE}", "cgroup.procs").write_text("")
    second = reader.sweep()
    assert [found.uid for found in second.groups] == [UID_LS, UID_BE]
    assert second.vanished == 0


def test_kubepods_that_appears_later_and_goes_away_again(tmp_path):
    tree = Tree(tmp_path)
    lister = tree.lister()
    assert lister.pods() == ()
    tree.group(f"a/b/kubepods/pod{UID_LS}")
    assert [pod.uid for pod in lister.pods()] == [UID_LS]
    tree.remove("a/b/kubepods")
    assert lister.pods() == ()


def test_a_pod_that_cannot_be_opened_is_unknown_and_the_others_are_read(tmp_path, monkeypatch):
    tree = Tree(tmp_path / "cg")
    tree.group(f"kubepods/pod{UID_LS}")
    tree.group(f"kubepods/pod{UID_BE}")
    real = fds.open_group

    def out_of_descriptors(directory, inode):
        if UID_LS in directory:
            raise Refused(directory, 24, "Too many open files")
        return real(directory, inode)

    monkeypatch.setattr(fds, "open_group", out_of_descriptors)
    monkeypatch.setattr(podfiles, "open_group", out_of_descriptors)
    reader = HostReader(
        tree.hierarchy, tree.lister(), Proc(str(proc_tree(tmp_path / "proc")), lambda: 1.0), lambda: 1.0
    )
    readings = {group.split("pod")[-1]: reading for (group, _), reading in reader.sweep().readings.items()}
    assert readings[UID_LS].cpu is None
    assert readings[UID_BE].cpu is not None
