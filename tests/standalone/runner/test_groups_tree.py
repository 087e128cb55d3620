"""Cgroup handling on directory trees that stand in for v1, v2 and mixed mounts: files appear with the directory."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from slacktide.errors import KernelError, NotPermitted, Refused
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version
from standalone.runner.groups import Groups
from standalone.runner.limits import Limits

UID = "3a1f3f9e-3c9d-4e0b-8a37-0f2f0f6f3d11"
CID = "a" * 64
V1_FILES = {
    "cpu": {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
    "memory": {"memory.limit_in_bytes": "9223372036854771712", "memory.oom_control": "oom_kill 0\n"},
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
    "freezer": {"freezer.state": "THAWED", "freezer.parent_freezing": "0"},
}
V2_FILES = {
    "cgroup.kill": "",
    "cgroup.subtree_control": "",
    "cgroup.controllers": "cpu memory pids cpuset",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "memory.max": "max",
    "memory.high": "max",
    "memory.oom.group": "0",
    "memory.events": "oom_kill 0\n",
}


class Kernel:
    """Makes directories with the files that a kernel would put there, and keeps the order in which they came."""

    def __init__(self, root):
        self.root = str(root)
        self.made = []
        self.parents = {}

    def files(self, path):
        name = os.path.relpath(path, self.root).split(os.sep)[0]
        return {"cgroup.procs": "", **(V2_FILES if name == "unified" else V1_FILES.get(name, {}))}

    def mkdir(self, path):
        os.mkdir(path)
        self.fill(path)
        self.made.append(os.path.relpath(path, self.root))
        control = os.path.join(os.path.dirname(path), "cgroup.subtree_control")
        self.parents[self.made[-1]] = Path(control).read_text() if os.path.exists(control) else None

    def fill(self, path):
        for name, value in self.files(path).items():
            with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                file.write(value)

    def rmdir(self, path):
        if any(entry.is_dir() for entry in os.scandir(path)):
            raise OSError(errno.EBUSY, "busy")
        if Path(path, "cgroup.procs").read_text().strip():
            raise OSError(errno.EBUSY, "busy")
        shutil.rmtree(path)

    def mount(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(path, exist_ok=True)
        self.fill(path)
        return path

    def read(self, *parts):
        with open(os.path.join(self.root, *parts), encoding="utf-8") as file:
            return file.read()


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


def v1(kernel):
    names = ("cpu", "cpuset", "memory", "freezer", "pids")
    mounts = {name: Mount(kernel.mount(name), Version.V1) for name in names}
    for name, value in (("cpuset.cpus", "0-3"), ("cpuset.mems", "0")):
        with open(os.path.join(kernel.root, "cpuset", name), "w", encoding="utf-8") as file:
            file.write(value)
    return Groups(Hierarchy(mounts, None), "slacktide-t", kernel.mkdir, kernel.rmdir)


def v2(kernel):
    path = kernel.mount("unified")
    names = ("cpu", "cpuacct", "memory", "pids", "cpuset", "freezer")
    mounts = {name: Mount(path, Version.V2) for name in names}
    return Groups(Hierarchy(mounts, path), "slacktide-t", kernel.mkdir, kernel.rmdir)


LIMITS = Limits(shares=512, quota_micros=50_000, memory_bytes=1 << 20, whole_group_oom=True)


def test_v1_layout_and_knobs(kernel):
    groups = v1(kernel)
    groups.prepare(4096)
    groups.make_pod("Burstable", UID, LIMITS)
    groups.make_container("Burstable", UID, CID, LIMITS)
    leaf = f"slacktide-t/kubepods/burstable/pod{UID}/{CID}"
    assert kernel.read("cpu", "slacktide-t/kubepods/cpu.shares") == "4096"
    assert kernel.read("cpu", "slacktide-t/kubepods/besteffort/cpu.shares") == "2"
    assert kernel.read("cpu", leaf, "cpu.shares") == "512"
    assert kernel.read("cpu", leaf, "cpu.cfs_quota_us") == "50000"
    assert kernel.read("memory", leaf, "memory.limit_in_bytes") == str(1 << 20)
    for level in (leaf, os.path.dirname(leaf), "slacktide-t"):
        assert kernel.read("cpuset", level, "cpuset.cpus") == "0-3"
        assert kernel.read("cpuset", level, "cpuset.mems") == "0"
    container = groups.container("Burstable", UID, CID)
    assert len(container.dirs) == 5
    assert container.freezer.endswith(f"/freezer/{leaf}")
    assert container.oom_file.endswith(f"/memory/{leaf}/memory.oom_control")
    assert container.kill_file == ""


def test_v2_enables_controllers_from_the_top_and_not_in_the_leaf(kernel):
    groups = v2(kernel)
    groups.prepare(4096)
    groups.make_pod("BestEffort", UID, LIMITS)
    groups.make_container("BestEffort", UID, CID, LIMITS)
    leaf = f"unified/slacktide-t/kubepods/besteffort/pod{UID}/{CID}"
    # The stand-in keeps only the last write; what counts is that each parent had one before its child was made.
    assert all(control for control in kernel.parents.values())
    assert kernel.read(leaf, "cgroup.subtree_control") == ""
    assert kernel.read(leaf, "cpu.weight") == "20"
    assert kernel.read(leaf, "cpu.max") == "50000 100000"
    assert kernel.read(leaf, "memory.max") == str(1 << 20)
    assert kernel.read(leaf, "memory.oom.group") == "1"
    assert kernel.read("unified/slacktide-t/kubepods/cpu.weight") == "157"
    container = groups.container("BestEffort", UID, CID)
    assert len(container.dirs) == 1
    assert container.kill_file.endswith(f"{CID}/cgroup.kill")
    assert container.oom_file.endswith("memory.events")
    assert container.freezer == ""


def test_v2_kill_lifts_what_holds_a_process_back_and_uses_cgroup_kill(kernel):
    groups = v2(kernel)
    groups.prepare(2)
    groups.make_pod("BestEffort", UID, LIMITS)
    groups.make_container("BestEffort", UID, CID, LIMITS)
    leaf = os.path.join(kernel.root, f"unified/slacktide-t/kubepods/besteffort/pod{UID}/{CID}")
    with open(f"{leaf}/cgroup.procs", "w", encoding="utf-8") as file:
        file.write("0\n4194304\n")
    assert groups.kill(UID, CID) == 1
    assert kernel.read(leaf, "cgroup.kill") == "1"
    assert kernel.read(leaf, "cpu.max").startswith("max")
    assert groups.remove_container(UID, CID) is False
    with open(f"{leaf}/cgroup.procs", "w", encoding="utf-8") as file:
        file.write("0\n")
    assert groups.remove_container(UID, CID) is False
    with open(f"{leaf}/cgroup.procs", "w", encoding="utf-8"):
        pass
    assert groups.remove_container(UID, CID) is True
    assert groups.remove_pod(UID) is True
    assert groups.listed() == {}


def test_hybrid_takes_each_controller_where_it_is(kernel):
    unified = kernel.mount("unified")
    mounts = {"cpu": Mount(kernel.mount("cpu"), Version.V1), "memory": Mount(unified, Version.V2)}
    groups = Groups(Hierarchy(mounts, unified), "slacktide-t", kernel.mkdir, kernel.rmdir)
    groups.prepare(2)
    groups.make_pod("Guaranteed", UID, LIMITS)
    pod = f"slacktide-t/kubepods/pod{UID}"
    assert kernel.read("cpu", pod, "cpu.shares") == "512"
    assert kernel.read("unified", pod, "memory.max") == str(1 << 20)


def test_listing_is_by_directory_and_ignores_what_is_no_container(kernel):
    groups = v1(kernel)
    assert groups.listed() == {}
    groups.prepare(2)
    groups.make_pod("BestEffort", UID, LIMITS)
    groups.make_container("BestEffort", UID, CID, LIMITS)
    os.mkdir(os.path.join(kernel.root, f"cpu/slacktide-t/kubepods/besteffort/pod{UID}/other"))
    assert groups.listed() == {UID: frozenset({CID})}


def test_knobs_are_written_once(kernel):
    groups = v1(kernel)
    groups.prepare(2)
    groups.make_pod("BestEffort", UID, LIMITS)
    path = os.path.join(kernel.root, f"cpu/slacktide-t/kubepods/besteffort/pod{UID}/cpu.cfs_quota_us")
    with open(path, "w", encoding="utf-8") as file:
        file.write("1000")
    groups.make_pod("BestEffort", UID, LIMITS)
    with open(path, encoding="utf-8") as file:
        assert file.read() == "1000"


def test_what_is_left_in_one_tree_only_is_still_found_and_removed(kernel):
    groups = v1(kernel)
    groups.prepare(2)
    groups.make_pod("BestEffort", UID, LIMITS)
    kernel.rmdir(os.path.join(kernel.root, f"cpu/slacktide-t/kubepods/besteffort/pod{UID}"))
    assert groups.listed() == {UID: frozenset()}
    assert groups.remove_pod(UID) is True
    assert groups.listed() == {}


def test_no_right_to_make_directories(kernel):
    def refuse(path):
        raise PermissionError(errno.EACCES, "no", path)

    groups = v1(kernel)
    groups._mkdir = refuse
    with pytest.raises(NotPermitted):
        groups.prepare(2)


def test_no_controller_at_all():
    with pytest.raises(KernelError, match="cpu controller"):
        Groups(Hierarchy({}, None), "slacktide-t").prepare(2)


@pytest.mark.parametrize("bad", ["", "..", "a/../b", "/abs"])
def test_paths_stay_below_the_root(kernel, bad):
    with pytest.raises(ValueError, match="cgroup path"):
        Groups(Hierarchy({}, None), bad)
    with pytest.raises(ValueError, match="cgroup path"):
        v1(kernel).container("BestEffort", UID, bad)


@pytest.mark.parametrize("uid", ["", "..", "x", f"{UID}/..", f"{UID}\n"])
def test_a_pod_uid_that_is_none_makes_no_path(kernel, uid):
    with pytest.raises(ValueError, match="UUID"):
        v1(kernel).make_pod("BestEffort", uid, LIMITS)


def test_a_refused_memory_limit_is_said(kernel):
    groups = v1(kernel)
    groups.prepare(2)
    path = os.path.join(kernel.root, f"memory/slacktide-t/kubepods/besteffort/pod{UID}/memory.limit_in_bytes")
    kernel_mkdir = groups._mkdir

    def mkdir(made):
        kernel_mkdir(made)
        if os.path.dirname(path) == made:
            os.unlink(path)
            os.mkdir(path)

    groups._mkdir = mkdir
    with pytest.raises(Refused):
        groups.make_pod("BestEffort", UID, LIMITS)
