from __future__ import annotations

import pytest

from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version, discover

HEAD = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
"""


def machine(tmp_path, mounts: str, controllers: str = ""):
    """A proc root with this mount table; ROOT in it stands for a directory that can hold a v2 mount."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(HEAD + mounts.replace("ROOT", str(tmp_path)))
    unified = tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").write_text(controllers)
    return discover(str(tmp_path / "proc"))


# Controllers each on a mount of its own beside an empty v2 mount, a named hierarchy and one that we do not use.
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / ROOT/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_hybrid(tmp_path):
    found = machine(tmp_path, HYBRID)
    assert found.mode == "hybrid"
    assert found.unified == str(tmp_path / "unified")
    names = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "freezer")
    assert found.controllers == {name: Mount(f"/sys/fs/cgroup/{name}", Version.V1) for name in names}
    assert len(found.mounts()) == len(names)
    assert found.path("cpu", "slacktide-1/kubepods") == "/sys/fs/cgroup/cpu/slacktide-1/kubepods"
    assert found.path("io", "slacktide-1") is None


def test_the_named_hierarchy_of_systemd_is_no_controller(tmp_path):
    found = machine(tmp_path, "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n")
    assert found.controllers == {}
    assert found.mode == "none"


def test_v1_with_joined_controllers_and_optional_fields(tmp_path):
    found = machine(
        tmp_path,
        "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:11 master:2 - cgroup cgroup rw,cpu,cpuacct\n"
        "31 23 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:12 - cgroup cgroup rw,memory\n",
    )
    assert found.mode == "v1"
    assert found.unified is None
    assert found.controllers["cpu"] == found.controllers["cpuacct"] == Mount("/sys/fs/cgroup/cpu,cpuacct", Version.V1)
    assert found.mounts() == (found.controllers["cpu"], found.controllers["memory"])


def test_v2(tmp_path):
    found = machine(
        tmp_path,
        "30 23 0:26 / ROOT/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
        "cpuset cpu io memory hugetlb pids rdma misc\n",
    )
    assert found.mode == "v2"
    assert set(found.controllers) == {"cpu", "cpuacct", "cpuset", "io", "memory", "pids", "freezer", "perf_event"}
    assert found.mounts() == (Mount(str(tmp_path / "unified"), Version.V2),)
    assert found.path("memory", "kubepods.slice") == f"{tmp_path}/unified/kubepods.slice"


def test_a_masked_v2_mount_offers_nothing(tmp_path):
    machine(tmp_path, "31 23 0:28 / ROOT/unified rw,relatime - cgroup2 cgroup2 rw\n", "cpu memory\n")
    (tmp_path / "unified" / "cgroup.controllers").unlink()
    hierarchy = discover(str(tmp_path / "proc"))
    assert (hierarchy.controllers, hierarchy.mode) == ({}, "none")


def test_a_controller_of_v1_stays_there_beside_those_of_v2(tmp_path):
    found = machine(
        tmp_path,
        "30 23 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "31 23 0:27 / ROOT/unified rw - cgroup2 cgroup2 rw\n",
        "cpu memory\n",
    )
    assert found.mode == "hybrid"
    assert found.controllers["cpuset"].version is Version.V1
    assert found.controllers["memory"].version is Version.V2


def test_no_cgroups_at_all(tmp_path):
    found = machine(tmp_path, "")
    assert (found.mode, found.controllers, found.unified, found.mounts()) == ("none", {}, None, ())


def test_escapes_in_the_mount_point(tmp_path):
    found = machine(tmp_path, "30 23 0:26 / /mnt/a\\040b\\011c\\134040\\043 rw - cgroup cgroup rw,cpu\n")
    assert found.controllers["cpu"].path == "/mnt/a b\tc\\040#"


def test_lines_that_make_no_sense_are_skipped(tmp_path):
    found = machine(tmp_path, "garbage\n1 2 3 4 5 - cgroup\n\n30 23 0:26 / /m rw - cgroup cgroup rw,cpu\n")
    assert set(found.controllers) == {"cpu"}


def test_a_missing_mount_table_is_an_error(tmp_path):
    with pytest.raises(KernelError):
        discover(str(tmp_path))


def test_path_refuses_a_group_that_leaves_its_root():
    found = Hierarchy({"cpu": Mount("/sys/fs/cgroup/cpu", Version.V1)}, None)
    with pytest.raises(ValueError, match="leaves its root"):
        found.path("cpu", "")


def test_this_machine_is_understood():
    found = discover()
    assert found.mode in {"v1", "v2", "hybrid", "none"}
    assert all(mount.path.startswith("/") for mount in found.mounts())
