"""Names, numbers and delays that nobody honest makes: each costs its own part alone, never a turn."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from agent.act.check import wishes_by_group
from agent.act.eviction_log import EvictionLog
from agent.act.executor import Executor
from agent.act.journal import Journal
from agent.act.ledger import Ledger
from agent.act.masks import MaskWriter
from agent.capabilities import Capabilities, Knob
from agent.effects import Effects, Parts
from agent.eviction import Outcome, Victim, Way
from agent.host.affinity import Affinity
from agent.host.cgroup import ContainerGroup, PodGroup
from agent.host.knobs import ADAPTERS
from agent.host.proc import Proc
from agent.host.reader import HostReader
from agent.pods import PodBook
from agent.policy.base import Plan, Request
from agent.snapshot import NodeSnapshot, PodIdentity
from agent.threads import GroupKey, GroupMasks, MaskPlan, MaskWish, parse_cpus
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Version
from slacktide.settings import ResourceNames
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.trees import CID, UID_BE, UID_LS, Tree, proc_tree
from tests.agent.twins import FakePods
from tests.agent.twins import pod as api_pod
from tests.patience import PATIENCE

BOTH = pytest.mark.parametrize("version", [Version.V1, Version.V2])
STRAY = f"kubepods-besteffort-pod{UID_BE.replace('-', '_')}.slice:cri-containerd:{CID}"
LONG = "9" * 5000
CPUS = sorted(os.sched_getaffinity(0))


@BOTH
@pytest.mark.parametrize("name", ["ev\nil", "ev\x1bil", "ev\u202eil", os.fsdecode(b"ev\xffil")])
def test_a_cgroup_whose_name_cannot_be_printed_costs_nobody_else_a_turn(tmp_path, version, name):
    # Whoever was given a cgroup by systemd (user@.service) can make one called kubepods, and this below it.
    tree = Tree(tmp_path / "cg", version)
    tree.group(f"kubepods/pod{UID_LS}")
    tree.group(f"kubepods/{name}/pod{UID_BE}")
    reader = HostReader(
        tree.hierarchy, tree.lister(), Proc(str(proc_tree(tmp_path / "proc")), time.monotonic), time.monotonic
    )
    for _ in range(2):
        assert [found.uid for found in reader.sweep().groups] == [UID_LS]
    assert reader.threads(reader.last_groups) == []


KNOB_FILES = {
    Version.V1: {
        "cpu": ("cpu.shares", "cpu.idle", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"),
        "cpuset": ("cpuset.cpus",),
        "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        "blkio": ("blkio.bfq.weight", "blkio.throttle.read_bps_device"),
        "pids": ("pids.max",),
        "freezer": ("freezer.self_freezing",),
    },
    Version.V2: {
        "cpu": (
            *("cpu.weight", "cpu.idle", "cpu.max", "cpu.max.burst", "cpuset.cpus", "memory.max", "memory.high"),
            *("io.weight", "io.max", "pids.max", "cgroup.freeze"),
        )
    },
}
FILES = [
    (version, directory, name)
    for version, directories in KNOB_FILES.items()
    for directory, names in directories.items()
    for name in names
]
JUNK = ["\u00b2", "\u0663", "1_000", LONG, f"-{LONG}", f"max {LONG}", "\u00b2 100000", "8:0 \u00b2", f"8:0 rbps={LONG}",
        "8:0 rbps=\u00b2", f"0-{LONG[:12]}", "default \u00b2", f"default {LONG}", "\0", "max max max"]  # fmt: skip


def read_or_none(adapter, descriptor, version):
    try:
        return adapter.read(descriptor, version)
    except KernelError:
        return None


@pytest.mark.parametrize(("version", "directory", "name"), FILES, ids=[f"v{one[0]}-{one[2]}" for one in FILES])
def test_junk_in_the_file_of_a_knob_is_refused_or_as_if_it_were_not_there(tmp_path, version, directory, name):
    tree, group = Tree(tmp_path, version), f"kubepods/pod{UID_BE}"
    tree.group(group)
    where = tree.path(group, name, directory)
    assert where.exists()
    descriptor = os.open(where.parent, os.O_RDONLY)
    try:
        plain = {knob: read_or_none(adapter, descriptor, version) for knob, adapter in ADAPTERS.items()}
        for text in JUNK:
            where.write_text(text)
            for knob, adapter in ADAPTERS.items():
                held = read_or_none(adapter, descriptor, version)
                assert held in {None, plain[knob]}, f"{knob} takes {text[:20]!r} for {held}"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("text", ["0-999999999", "99999", "0-99999999999", "0-\u00b2", "\u0663", "3-x", "-1", "1_0"])
def test_a_list_of_cpus_that_no_kernel_has_is_refused_before_it_costs_memory(text):
    with pytest.raises(ValueError, match=r"beyond|is no CPU"):
        parse_cpus(text)


def stray_pod():
    """koordinator#661: containerd follows cgroupfs, the kubelet systemd; the container lies outside its pod."""
    pod = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_BE.replace('-', '_')}.slice"
    return pod, STRAY


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"],
                               stdout=subprocess.PIPE)  # fmt: skip
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@BOTH
def test_threads_of_a_container_outside_its_pod_are_pinned_and_given_back(tmp_path, version, sleeper):
    tree, (pod, leaf) = Tree(tmp_path / "cg", version), stray_pod()
    tree.group(pod)
    tree.group(leaf)
    tree.put(leaf, "tasks" if version is Version.V1 else "cgroup.threads", sleeper)
    inodes = {group: os.stat(tree.path(group, "x").parent).st_ino for group in (pod, leaf)}
    group = PodGroup(pod, inodes[pod], UID_BE, (ContainerGroup(leaf, inodes[leaf], CID),))
    affinity, journal = Affinity("/proc"), Journal(str(tmp_path), "boot")
    capabilities = Capabilities(mode="v1", cpu_version=1, affinity=True)
    executor = Executor(tree.lister(), journal, capabilities, affinity=affinity)
    wish = MaskWish(key=affinity.key_of(sleeper), group=GroupKey(leaf, inodes[leaf]), cpu=CPUS[0], original=None,
                    held=frozenset(CPUS))  # fmt: skip
    plan = MaskPlan(groups=(GroupMasks(group=leaf, inode=inodes[leaf]),), wishes=(wish,))
    be, ls = (PodIdentity(namespace="d", name="p", uid=UID_BE, tier=tier) for tier in (Tier.BE, Tier.LS))
    assert executor.place(plan, {pod: group}, {pod: be}).problems == ()
    assert os.sched_getaffinity(sleeper) == {CPUS[0]}
    assert executor.place(MaskPlan(), {pod: group}, {pod: be}).writes == 0
    executor.place(MaskPlan(), {pod: group}, {pod: ls})
    assert os.sched_getaffinity(sleeper) == set(CPUS)
    assert journal.masks() == ()


def test_a_container_outside_its_pod_that_went_away_does_not_refuse_the_plan():
    wish = Request(policy="suppress", group=STRAY, knob=Knob.QUOTA, value=500, reason="r")
    assert wishes_by_group(Plan(settings={(STRAY, Knob.QUOTA): wish}), {}, {}, frozenset(Knob)) == ({}, 1)


def test_masks_of_very_many_groups_are_found_by_name_and_not_one_by_one(tmp_path):
    class Counting(dict):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    tree = Tree(tmp_path / "cg", Version.V1)
    journal = Journal(str(tmp_path), "boot")
    pods = Counting(
        {f"kubepods/pod{number}": PodGroup(f"kubepods/pod{number}", 1, str(number)) for number in range(50)}
    )
    journal.record_masks(GroupMasks(group=f"{pod}/{CID}", inode=1) for pod in dict(pods))
    writer = MaskWriter(tree.lister(), journal, Affinity("/proc"), {})
    pods.looks = 0
    assert writer.release_beside(dict(pods), pods, []) == 0
    assert pods.looks <= 1
    assert len(journal.masks()) == 50


class SilentDisk:
    """An audit file on a disk that does not answer until told."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()

    def append(self, _line):
        self.entered.set()
        assert self.go.wait(60 * PATIENCE)
        return True


def test_the_control_thread_sees_what_was_evicted_while_the_disk_does_not_answer(tmp_path):
    disk = SilentDisk()
    ledger = Ledger(str(tmp_path), "boot", time.monotonic, time.time)
    log = EvictionLog(None, disk, ledger, "boot", clock=time.monotonic, wall=time.time)
    victim = Victim(namespace="d", name="a", uid="u", group="kubepods/poda", way=Way.EVICT, reason="r")
    log.reserve(victim, dry=False)
    writing = threading.Thread(target=log.attempted, args=(victim, Outcome.GONE))
    writing.start()
    seen = []
    try:
        assert disk.entered.wait(20 * PATIENCE)
        looking = threading.Thread(target=lambda: seen.append(log.view((), dry=False)), daemon=True)
        looking.start()
        looking.join(20 * PATIENCE)
        assert len(seen) == 1, "the look waited for the disk"
    finally:
        disk.go.set()
        writing.join(20 * PATIENCE)
    assert [(one.uid, one.outcome) for one in seen[0].attempts] == [("u", Outcome.GONE)]
    assert [one.uid for one in seen[0].spent] == ["u"]
    assert seen[0].serial == 1


def test_a_uid_in_capitals_is_matched_with_its_cgroup_and_named_to_the_api_as_it_is():
    upper = UID_BE.upper().replace("2", "A")
    book = PodBook(FakePods(api_pod(upper, "be")), ResourceNames())
    known = book.refresh([upper.lower()])
    assert known[upper.lower()].uid == upper

    class Evictor:
        def want(self, victims, pods, view):
            self.pods = pods

        def view(self):
            return None

    evictor = Evictor()
    snapshot = NodeSnapshot(at=1.0, window_seconds=1.0, capacity=Usage())
    victim = Victim(namespace="d", name="a", uid=upper, group="kubepods/poda", way=Way.EVICT, reason="r")
    Effects(Parts(evictor=evictor)).evict((victim,), snapshot, known)
    assert victim.uid in evictor.pods
