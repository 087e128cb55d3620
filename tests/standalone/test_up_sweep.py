import os
import subprocess
import sys
import uuid

import pytest

from slacktide.kernel.hierarchy import Hierarchy, Mount, Version, discover
from standalone.sweep import directories, sweep


def tree(tmp_path, *paths):
    for path in paths:
        os.makedirs(tmp_path / path)
    mounts = {name: Mount(str(tmp_path / name), Version.V1) for name in ("cpu", "memory")}
    return Hierarchy(mounts, str(tmp_path / "unified"))


def test_only_our_own_directories_go_and_from_every_mount(tmp_path):
    hierarchy = tree(
        tmp_path,
        "cpu/slacktide-aaaaaaaa/kubepods/burstable/podx",
        "memory/slacktide-aaaaaaaa",
        "unified/slacktide-aaaaaaaa/kubepods",
        "cpu/slacktide-bbbbbbbb/kubepods",
        "cpu/system.slice",
    )
    assert len(directories(hierarchy, "slacktide-aaaaaaaa")) == 3
    assert sweep(hierarchy, "slacktide-aaaaaaaa", kill=False) == []
    assert sorted(os.listdir(tmp_path / "cpu")) == ["slacktide-bbbbbbbb", "system.slice"]
    assert os.listdir(tmp_path / "memory") == os.listdir(tmp_path / "unified") == []


def test_nothing_there_is_done_already(tmp_path):
    assert sweep(tree(tmp_path), "slacktide-aaaaaaaa", kill=True) == []


@pytest.mark.parametrize("group", ["", "kubepods", "slacktide-a/../b", "slacktide", "/", "../slacktide-a"])
def test_no_other_group_can_be_named(tmp_path, group):
    with pytest.raises(ValueError, match="no cgroup root of an instance"):
        sweep(tree(tmp_path), group, kill=True)


def test_what_stays_is_named_after_the_deadline(tmp_path):
    hierarchy = tree(tmp_path, "cpu/slacktide-aaaaaaaa")
    (tmp_path / "cpu/slacktide-aaaaaaaa/not-a-cgroup").write_text("")
    now = iter(range(100))
    left = sweep(hierarchy, "slacktide-aaaaaaaa", kill=True, clock=lambda: next(now), sleep=lambda _: None)
    assert left == [str(tmp_path / "cpu/slacktide-aaaaaaaa")]


@pytest.mark.kernel
def test_real_groups_with_frozen_processes_are_emptied_and_removed():
    hierarchy = discover()
    group = f"slacktide-{uuid.uuid4().hex[:8]}"
    made = []
    child = None
    try:
        for mount in hierarchy.mounts():
            try:
                os.makedirs(os.path.join(mount.path, group, "kubepods", "podx"))
            except OSError as error:
                pytest.skip(f"cgroups cannot be made here: {error.strerror}")
            made.append(os.path.join(mount.path, group))
        if not made:
            pytest.skip("no cgroup controller is mounted")
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        for top in made:
            if os.path.basename(os.path.dirname(top)) == "cpuset":
                continue  # takes no process before cpus and mems are set
            with open(os.path.join(top, "kubepods", "podx", "cgroup.procs"), "w") as file:
                file.write(str(child.pid))
        freezer = hierarchy.path("freezer", f"{group}/kubepods/podx/freezer.state")
        if freezer and os.path.exists(freezer):
            with open(freezer, "w") as file:
                file.write("FROZEN")
        assert set(sweep(hierarchy, group, kill=False)) == set(directories(hierarchy, group)) != set()
        assert child.poll() is None
        assert sweep(hierarchy, group, kill=True) == []
        assert child.wait(5) == -9
        assert directories(hierarchy, group) == []
    finally:
        if child is not None:
            child.kill()
            child.wait()
        for top in made:
            for directory, _, _ in os.walk(top, topdown=False):
                os.rmdir(directory)
