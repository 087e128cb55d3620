"""The agent's own cgroup: made, limited, joined; what cannot be had is said."""

from __future__ import annotations

import os
import subprocess

import pytest

from agent.host.own import checked_name, join
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version, discover


@pytest.mark.parametrize(
    "name", ["", "x", "slacktide-", "slacktide-a/b", "slacktide-../x", "slacktide-a\n", "/slacktide-a"]
)
def test_only_names_of_ours(name):
    with pytest.raises(ValueError, match="no name for a cgroup"):
        checked_name(name)


def tree(tmp_path, version):
    mounts = {
        name: Mount(str(tmp_path / (name if version is Version.V1 else "all")), version) for name in ("cpu", "memory")
    }
    for mount in mounts.values():
        directory = os.path.join(mount.path, "slacktide-x")
        os.makedirs(directory, exist_ok=True)
        for file in ("cpu.shares", "cpu.weight", "memory.limit_in_bytes", "memory.max", "cgroup.procs"):
            open(os.path.join(directory, file), "w").close()
    return Hierarchy(mounts, None)


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (Version.V1, {"cpu/slacktide-x/cpu.shares": "256", "memory/slacktide-x/memory.limit_in_bytes": "1000"}),
        (Version.V2, {"all/slacktide-x/cpu.weight": "25", "all/slacktide-x/memory.max": "1000"}),
    ],
)
def test_weight_limit_and_membership(tmp_path, version, files):
    assert join(tree(tmp_path, version), "slacktide-x", 1000, 42) == []
    for name, text in files.items():
        assert (tmp_path / name).read_text() == text
        assert (tmp_path / name).with_name("cgroup.procs").read_text() == "42"


def test_what_is_missing_is_said_and_the_rest_is_done(tmp_path):
    whole = tree(tmp_path, Version.V1)
    part = Hierarchy({"cpu": whole.controllers["cpu"]}, None)
    (problem,) = join(part, "slacktide-x", 1000, 42)
    assert "no memory controller" in problem
    assert (tmp_path / "cpu/slacktide-x/cgroup.procs").read_text() == "42"


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make cgroups")
def test_on_real_cgroups():
    hierarchy = discover()
    if "memory" not in hierarchy.controllers:
        pytest.skip("no memory controller")
    name = f"slacktide-own-{os.getpid()}"
    directories = {hierarchy.path(controller, name) for controller in ("cpu", "memory")}
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert join(hierarchy, name, 64 << 20, child.pid) == []
        for directory in directories:
            with open(os.path.join(directory, "cgroup.procs")) as file:
                assert file.read().split() == [str(child.pid)]
    finally:
        child.kill()
        child.wait()
        for directory in directories:
            if os.path.isdir(directory):
                os.rmdir(directory)
