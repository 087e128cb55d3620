"""What is read of a pod beside its CPU: memory, I/O, tasks, pressure, freezer, cpuset, containers; on trees."""

from __future__ import annotations

import errno

import pytest

from agent.counters import MemoryEvents, PodPsi, PsiTotals
from agent.host import psi as psi_module
from agent.host.cgroup import CgroupLister
from agent.host.confines import cpu_list, read_cpuset, read_frozen
from agent.host.fds import ABSENT_SECONDS, FdBudget, GroupFiles
from agent.host.io import read_io
from agent.host.memory import read_memory
from agent.host.pids import read_pids
from agent.host.proc import Proc
from agent.host.psi import NodePsi, read_group
from agent.host.reader import HostReader
from slacktide.errors import Gone, Refused, Unsupported
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version
from tests.agent.trees import CID, CID2, UID_BE, UID_LS, Tree, proc_tree
from tests.agent.twins import FakeClock

IO = {Version.V1: "blkio", Version.V2: "io"}


def files(tree, controller, group="g"):
    return GroupFiles(str(tree.path(group, "", controller)), None, FdBudget(limit=1000))


@pytest.fixture(params=list(Version), ids=["v1", "v2"])
def tree(request, tmp_path):
    made = Tree(tmp_path / "cg", request.param)
    made.group("g")
    return made


class Rig:
    def __init__(self, base, tree, **options):
        self.tree, self.clock = tree, FakeClock()
        self.root = proc_tree(base / "proc")
        self.lister = CgroupLister(tree.hierarchy)
        self.proc = Proc(str(self.root), self.clock)
        self.reader = HostReader(tree.hierarchy, self.lister, self.proc, self.clock, **options)

    def reading(self, uid=UID_LS):
        sweep = self.reader.sweep()
        key = next((found.group, found.inode) for found in sweep.groups if found.uid == uid)
        return sweep.readings[key]


def test_memory_with_events_and_no_limit_as_none(tree):
    read = read_memory(files(tree, "memory"), tree.version, lambda: 3.0)
    assert (read.at, read.working_set_bytes, read.usage_bytes, read.limit_bytes) == (3.0, 700, 1000, None)
    assert (read.oom_kills, read.max_events) == (2, 4)
    if tree.version is Version.V2:
        assert (read.high_events, read.high_bytes) == (5, None)
        assert read.local == MemoryEvents(high=1, max=0, oom_kills=0)
    else:
        assert (read.high_events, read.local) == (None, None)


@pytest.mark.parametrize("text", ["9223372036854771712", "-1"])
def test_the_v1_number_for_no_limit_is_none_and_is_not_rounded(tmp_path, text):
    # kernel.md 6 #24, rubik 6f8d0d5: int64 through floats lost precision.
    tree = Tree(tmp_path, Version.V1)
    tree.group("g", memory__limit_in_bytes=text)
    assert read_memory(files(tree, "memory"), Version.V1, lambda: 1.0).limit_bytes is None
    tree.group("g", memory__limit_in_bytes=4611686018427387903)
    assert read_memory(files(tree, "memory"), Version.V1, lambda: 1.0).limit_bytes == 4611686018427387903


def test_a_v2_limit_and_high_are_numbers_where_they_are_set(tmp_path):
    tree = Tree(tmp_path, Version.V2)
    tree.group("g", memory__max=900, memory__high=800)
    read = read_memory(files(tree, "memory"), Version.V2, lambda: 1.0)
    assert (read.limit_bytes, read.high_bytes) == (900, 800)


def test_more_inactive_pages_than_use_is_no_negative_working_set(tree):
    name = "memory.stat"
    key = "inactive_file" if tree.version is Version.V2 else "total_inactive_file"
    tree.put("g", name, f"cache 1\n{key} 5000", "memory")
    assert read_memory(files(tree, "memory"), tree.version, lambda: 1.0).working_set_bytes == 0


def test_a_kernel_without_local_events_or_high(tmp_path):
    tree = Tree(tmp_path, Version.V2)
    tree.group("g", memory__high=None, memory__events__local=None)
    read = read_memory(files(tree, "memory"), Version.V2, lambda: 1.0)
    assert (read.high_bytes, read.local, read.working_set_bytes) == (None, None, 700)


def test_a_controller_missing_in_one_group_is_an_error_for_that_group_only(tmp_path):
    # kernel.md 6 #18, oomd#72: no memory.current crashed during a kill.
    tree = Tree(tmp_path / "cg", Version.V2)
    for uid in (UID_LS, UID_BE):
        tree.group(f"kubepods/pod{uid}")
    tree.path(f"kubepods/pod{UID_BE}", "memory.current").unlink()
    rig = Rig(tmp_path, tree)
    assert rig.reading(UID_BE).memory is None
    assert rig.reading(UID_BE).cpu is not None
    assert rig.reading(UID_LS).memory is not None


def test_io_is_summed_over_devices(tree):
    read = read_io(files(tree, IO[tree.version]), tree.version, lambda: 2.0)
    assert (read.at, read.read_bytes, read.write_bytes) == (2.0, 100, 20)
    assert (read.read_operations, read.write_operations) == (3, 2)


def test_v2_io_keys_in_any_order_unknown_ones_and_silent_devices(tmp_path):
    tree = Tree(tmp_path, Version.V2)
    tree.group("g", io__stat="8:16 cost.usage=9 wios=1 rbytes=7\n8:0 \n(unknown) rbytes=5\n7:1 rbytes=x wbytes=3\n")
    read = read_io(files(tree, "io"), Version.V2, lambda: 1.0)
    assert (read.read_bytes, read.write_bytes, read.write_operations) == (7, 3, 1)


def test_v1_io_of_the_pod_alone_where_nothing_is_counted_recursively(tmp_path):
    tree = Tree(tmp_path, Version.V1)
    tree.group("g")
    for name in ("io_service_bytes", "io_serviced"):
        tree.path("g", f"blkio.throttle.{name}_recursive", "blkio").unlink()
    assert read_io(files(tree, "blkio"), Version.V1, lambda: 1.0) is None
    tree.put("g", "blkio.throttle.io_service_bytes", "8:0 Read 5\nTotal 5", "blkio")
    tree.put("g", "blkio.throttle.io_serviced", "8:0 Read 1\nTotal 1", "blkio")
    fresh = GroupFiles(str(tree.path("g", "", "blkio")), None, FdBudget())
    assert read_io(fresh, Version.V1, lambda: 1.0).read_bytes == 5


@pytest.mark.parametrize(("limit", "expected"), [("max", None), ("512", 512)])
def test_tasks_and_their_limit(tree, limit, expected):
    tree.put("g", "pids.max", limit, "pids")
    read = read_pids(files(tree, "pids"))
    assert (read.current, read.limit) == (7, expected)


@pytest.mark.parametrize("text", ["", "-1", "seven", "7 8", "\x00"])
def test_a_count_of_tasks_that_is_none_is_unknown_not_zero(tree, text):
    # kernel.md 3, oomd 1a3beb5: controller off read as 0 tasks, so nothing was ever killed.
    tree.put("g", "pids.current", text, "pids")
    assert read_pids(files(tree, "pids")) is None


@pytest.mark.parametrize(
    ("version", "name", "text", "frozen"),
    [
        (Version.V1, "freezer.state", "FROZEN", True),
        (Version.V1, "freezer.state", "FREEZING", False),
        (Version.V1, "freezer.state", "THAWED", False),
        (Version.V1, "freezer.state", "SOMETHING", None),
        (Version.V2, "cgroup.events", "populated 1\nfrozen 1", True),
        (Version.V2, "cgroup.events", "populated 1", None),
    ],
)
def test_frozen_is_what_is_complete(tmp_path, version, name, text, frozen):
    tree = Tree(tmp_path, version)
    tree.group("g")
    tree.put("g", name, text, "freezer")
    assert read_frozen(files(tree, "freezer"), version) is frozen


def test_the_effective_cpus_count_and_the_configured_stand_in(tree):
    assert read_cpuset(files(tree, "cpuset"), tree.version) == "0-1"
    effective = "cpuset.effective_cpus" if tree.version is Version.V1 else "cpuset.cpus.effective"
    tree.path("g", effective, "cpuset").unlink()
    assert read_cpuset(files(tree, "cpuset"), tree.version) == "0-3"
    tree.put("g", "cpuset.cpus", "", "cpuset")
    assert read_cpuset(GroupFiles(str(tree.path("g", "", "cpuset")), None, FdBudget()), tree.version) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0-3,8\n", "0-3,8"),
        (b"3,2,1\n", "1-3"),
        (b"\n", None),
        (b"all\n", None),
        (b"1-\n", None),
        (b"0-9999999999\n", None),
        (b"\xff\xfe", None),
    ],
)
def test_cpu_lists(text, expected):
    assert cpu_list(text) == expected


def test_pressure_of_a_group_by_resource(tmp_path):
    tree = Tree(tmp_path, Version.V2)
    tree.group("g", io__pressure=None)
    assert read_group(files(tree, "cpu"), lambda: 4.0) == PodPsi(
        at=4.0,
        cpu=PsiTotals(some_us=0, full_us=None),
        memory=PsiTotals(some_us=30, full_us=10),
        io=None,
    )


def test_a_group_without_pressure_has_none_and_is_not_asked_each_turn(tmp_path, monkeypatch):
    tree, clock = Tree(tmp_path, Version.V1), FakeClock()
    tree.group("g")
    group = GroupFiles(str(tree.path("g", "")), None, FdBudget(), clock)
    assert read_group(group, clock) is None
    tree.put("g", "cpu.pressure", "some total=5")
    assert read_group(group, clock) is None, "remembered as absent"
    clock.pass_(ABSENT_SECONDS)
    assert read_group(group, clock).cpu == PsiTotals(some_us=5, full_us=None)


def test_the_nodes_pressure_is_a_reading_by_resource(tmp_path):
    root = proc_tree(tmp_path / "proc")
    (root / "pressure").mkdir()
    (root / "pressure/memory").write_text("some avg10=0.00 total=7\nfull avg10=0.00 total=3\n")
    (root / "pressure/irq").write_text("full avg10=0.00 total=3\n")
    node, clock = NodePsi(str(root), FakeClock()), 100.0
    assert node.read() == PodPsi(at=clock, memory=PsiTotals(some_us=7, full_us=3))
    assert set(node.why_not) == {"cpu", "io"}


def test_pressure_that_is_disabled_is_said_once_and_left_in_peace(tmp_path, monkeypatch, caplog):
    # kernel.md 6 #9, node_exporter#1961: reads gave errno 95, each scrape logged an error.
    asked, clock = [], FakeClock()

    def disabled(path, dir_fd=None):
        asked.append(path)
        raise Unsupported(path, errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(psi_module, "read_text", disabled)
    node = NodePsi("/proc", clock)
    for _ in range(30):
        assert node.read() is None
        clock.pass_(1.0)
    assert "psi=1" in node.why_not["cpu"]
    first = len(asked)
    clock.pass_(60.0)
    node.read()
    assert (first, len(asked)) == (6, 12)


def test_a_pod_is_read_at_once_and_its_slow_parts_by_turns(tmp_path):
    tree = Tree(tmp_path / "cg", Version.V1)
    group = f"kubepods/pod{UID_LS}"
    tree.group(group, cpuacct__usage=1)
    rig = Rig(tmp_path, tree, slow_turns=3)
    first = rig.reading()
    assert (first.memory.usage_bytes, first.pids.current, first.frozen, first.cpuset) == (1000, 7, False, "0-1")
    tree.put(group, "memory.usage_in_bytes", 2000, "memory")
    seen = []
    for turn in range(2, 8):
        tree.put(group, "cpuacct.usage", turn, "cpuacct")
        reading = rig.reading()
        assert reading.cpu.usage_ns == turn, "CPU is read each turn"
        seen.append(reading.memory.usage_bytes)
    assert seen[0] in (1000, 2000)
    assert seen[2:] == [2000] * 4, "within three turns"


def test_memory_is_read_each_turn_where_the_node_has_little_left(tmp_path):
    tree = Tree(tmp_path / "cg", Version.V1)
    group = f"kubepods/pod{UID_LS}"
    tree.group(group)
    rig = Rig(tmp_path, tree, slow_turns=50)
    low = "MemTotal: 1048576 kB\nMemFree: 9 kB\nMemAvailable: 99 kB\nBuffers: 0 kB\nCached: 0 kB\nActive: 1 kB\n"
    (rig.root / "meminfo").write_text(f"{low}Inactive: 1 kB\nShmem: 0 kB\nSlab: 0 kB\nSReclaimable: 0 kB\n")
    for usage in (3000, 4000, 5000):
        tree.put(group, "memory.usage_in_bytes", usage, "memory")
        rig.clock.pass_(1.0)
        assert rig.reading().memory.usage_bytes == usage


def test_what_was_read_before_is_handed_on_for_rates(tmp_path):
    tree = Tree(tmp_path / "cg", Version.V2)
    group = f"kubepods/pod{UID_LS}"
    tree.group(group)
    rig = Rig(tmp_path, tree, slow_turns=2)
    rig.reader.sweep()
    tree.put(group, "memory.events", "high 9\n")
    sweeps = []
    for _ in range(4):
        rig.clock.pass_(1.0)
        sweeps.append(rig.reader.sweep())
    (key,) = sweeps[-1].readings
    now, earlier = sweeps[-1].readings[key].memory, sweeps[-1].earlier[key].memory
    assert now.high_events == 9
    assert now.at - earlier.at == 2.0
    assert sweeps[-1].slow_turns == 2


def test_containers_with_their_quota_throttling_and_cpus(tmp_path):
    tree = Tree(tmp_path / "cg", Version.V1)
    pod = f"kubepods/pod{UID_LS}"
    tree.group(pod)
    tree.group(f"{pod}/{CID}", cpu__cfs_quota_us=50000, cpu__stat="nr_periods 10\nnr_throttled 1\nthrottled_time 1\n")
    tree.group(f"{pod}/{CID2}")
    rig = Rig(tmp_path, tree, slow_turns=1)
    rig.reader.sweep()
    tree.put(f"{pod}/{CID}", "cpu.stat", "nr_periods 20\nnr_throttled 6\nthrottled_time 2")
    (found,) = rig.reader.sweep().groups
    limited, free = found.containers
    assert (limited.id, limited.knobs.quota_us, limited.throttled_ratio, limited.cpuset) == (CID, 50000, 0.5, "0-1")
    assert (free.id, free.knobs.quota_us, free.throttled_ratio) == (CID2, None, None)


def test_groups_are_listed_when_something_is_said_to_have_changed(tmp_path):
    tree = Tree(tmp_path / "cg", Version.V1)
    tree.group(f"kubepods/pod{UID_LS}")
    changed = [True]
    rig = Rig(tmp_path, tree, changed=lambda: changed[0])
    assert len(rig.reader.sweep().groups) == 1
    changed[0] = False
    tree.group(f"kubepods/pod{UID_BE}")
    assert len(rig.reader.sweep().groups) == 1
    changed[0] = True
    assert len(rig.reader.sweep().groups) == 2
    changed[0] = False
    tree.remove(f"kubepods/pod{UID_BE}")
    for _ in range(12):
        sweep = rig.reader.sweep()
    assert [found.uid for found in sweep.groups] == [UID_LS], "now and then in any case"


def test_swap_and_its_absence(tmp_path):
    root = proc_tree(tmp_path / "proc")
    proc = Proc(str(root), lambda: 1.0)
    assert (proc.counters().swap_total_bytes, proc.counters().swap_free_bytes) == (None, None)
    text = (root / "meminfo").read_text()
    (root / "meminfo").write_text(f"{text}SwapTotal:       2048 kB\nSwapFree:512 kB\n")
    assert (proc.counters().swap_total_bytes, proc.counters().swap_free_bytes) == (2 << 20, 512 << 10)


STRAY = f"kubepods-besteffort-pod{UID_BE.replace('-', '_')}.slice:cri-containerd:{CID}"


@pytest.mark.parametrize("parent", ["", "system.slice/containerd.service/"])
def test_a_container_outside_its_pod_belongs_to_it(tmp_path, parent):
    # kernel.md 2.3, koordinator#661: kubelet with the systemd driver, containerd without SystemdCgroup.
    tree = Tree(tmp_path / "cg", Version.V1)
    pod = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_BE.replace('-', '_')}.slice"
    tree.group(pod, cpuacct__usage=5)
    tree.group(f"{parent}{STRAY}", cpuacct__usage=70)
    rig = Rig(tmp_path, tree)
    sweep = rig.reader.sweep()
    (found,) = sweep.groups
    assert [(one.group, one.id) for one in found.containers] == [(f"{parent}{STRAY}", CID)]
    reading = sweep.readings[(found.group, found.inode)]
    assert (reading.cpu.usage_ns, reading.memory.working_set_bytes) == (75, 1400)


def test_drivers_that_differ_by_controller(tmp_path):
    # kernel.md 2.3: a pod is found under memory by its UID where its path there is another.
    tree = Tree(tmp_path / "cg", Version.V1)
    group = f"kubepods/burstable/pod{UID_LS}"
    tree.group(group)
    other = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_LS.replace('-', '_')}.slice"
    tree.group(other, memory__usage_in_bytes=9300)
    for name in tree.names:
        gone = other if name != "memory" else group
        for file in (tree.base / name / gone).iterdir():
            file.unlink()
        (tree.base / name / gone).rmdir()
    rig = Rig(tmp_path, tree)
    assert rig.reading().memory.working_set_bytes == 9000


LEAVES = {
    "containerd, systemd": (f"cri-containerd-{CID}.scope", CID),
    "containerd, cgroupfs": (CID, CID),
    "CRI-O, systemd": (f"crio-{CID}.scope", CID),
    "CRI-O, cgroupfs": (f"crio-{CID}", CID),
    "docker, systemd": (f"docker-{CID}.scope", CID),
    "docker, cgroupfs": (CID, CID),
    "podman": (f"libpod-{CID}.scope", CID),
    "colons": (f"kubepods-burstable-podx.slice:cri-containerd:{CID}", CID),
    "CRI-O's monitor": (f"crio-conmon-{CID}.scope", None),
    "systemd's": ("init.scope", None),
    "a short id": (CID[:12], None),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_names_of_container_leaves(tmp_path, leaf):
    # kernel.md 2.3, peers.md V #4912: quota not applied with systemd and containerd.
    name, expected = LEAVES[leaf]
    tree = Tree(tmp_path, Version.V2)
    tree.group(f"kubepods/pod{UID_LS}/{name}")
    (pod,) = tree.lister().pods()
    assert [container.id for container in pod.containers] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "path",
    [
        "system.slice/docker-{cid}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{uid}.slice",
        "docker/{cid}/kubelet/kubepods/burstable/pod{uid}",
        "docker/{cid}/kubepods/pod{uid}",
    ],
)
def test_kubepods_of_kind_below_a_container(tmp_path, path):
    tree = Tree(tmp_path, Version.V2)
    group = path.format(cid=CID, uid=UID_LS.replace("-", "_"))
    tree.group(f"{group}/cri-containerd-{CID2}.scope")
    (pod,) = tree.lister().pods()
    assert (pod.uid, pod.group, [one.id for one in pod.containers]) == (UID_LS, group, [CID2])


def test_a_user_who_may_make_cgroups_cannot_make_pods(tmp_path):
    tree = Tree(tmp_path, Version.V2)
    tree.group(f"user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID_LS}")
    tree.group(f"kubepods/pod{UID_BE}")
    assert [pod.uid for pod in tree.lister().pods()] == [UID_BE]


def test_a_container_in_place_of_another_is_seen_within_a_few_listings(tmp_path):
    # kernel.md 5, koordinator#972: a restarted container has a new id.
    tree = Tree(tmp_path, Version.V1)
    pod = f"kubepods/pod{UID_BE}"
    tree.group(f"{pod}/{CID}")
    lister = tree.lister()
    lister.pods()
    tree.remove(f"{pod}/{CID}")
    tree.group(f"{pod}/{CID2}")
    for _ in range(6):
        (found,) = lister.pods()
    assert [one.id for one in found.containers] == [CID2]


def test_an_unchanged_pod_is_the_same_object(tmp_path):
    tree = Tree(tmp_path, Version.V1)
    tree.group(f"kubepods/pod{UID_BE}/{CID}")
    lister = tree.lister()
    first = lister.pods()
    assert all(lister.pods()[0] is first[0] for _ in range(8))
    tree.group(f"kubepods/pod{UID_BE}/{CID2}")
    assert len(lister.pods()[0].containers) == 2


def test_a_mount_without_cpu_has_no_pods(tmp_path):
    hierarchy = Hierarchy({"memory": Mount(str(tmp_path), Version.V1)}, None)
    reader = HostReader(
        hierarchy, CgroupLister(hierarchy), Proc(str(proc_tree(tmp_path / "p")), lambda: 1.0), lambda: 1.0
    )
    assert reader.sweep().groups == ()


def test_a_file_of_a_group_that_went_away_is_gone_and_of_a_living_one_unsupported(tmp_path):
    tree = Tree(tmp_path, Version.V1)
    tree.group("g")
    group = files(tree, "cpu")
    with pytest.raises(Unsupported, match="no such file"):
        group.cold("cpu.nothing")
    tree.remove("g")
    with pytest.raises(Gone):
        group.cold("cpu.stat")


@pytest.mark.parametrize("text", ["max", "", "1 2", "0x10", "1e3", "9" * 31, "\x00" * 9, "1\n2"])
def test_junk_in_place_of_a_number_is_refused(tree, text):
    name = "memory.current" if tree.version is Version.V2 else "memory.usage_in_bytes"
    tree.path("g", name, "memory").write_text(text)
    with pytest.raises(Refused, match="expected one number"):
        read_memory(files(tree, "memory"), tree.version, lambda: 1.0)


@pytest.mark.parametrize("line", ["cpu0", "cpu0 1 2", "cpu0 a b c d e f g h i j", "cpu0 nan 0 0 0 0 0 0 0 0 0"])
def test_a_cpu_without_sane_times_is_refused_and_the_turn_goes_on_without_node_totals(tmp_path, line):
    root = proc_tree(tmp_path / "proc")
    (root / "stat").write_text(f"cpu  1 0 0 1 0 0 0 0 0 0\n{line}\n")
    proc, tree = Proc(str(root), lambda: 1.0), Tree(tmp_path / "cg", Version.V1)
    with pytest.raises(Refused, match="stat"):
        proc.counters()
    assert HostReader(tree.hierarchy, tree.lister(), proc, lambda: 1.0).sweep().node is None
