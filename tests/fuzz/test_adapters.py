"""Adapters on trees whose files hold anything: a sweep ends, and what it says is a reading or nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.births import Births
from agent.host.cgroup import CgroupLister, tids_in
from agent.host.fds import FdBudget
from agent.host.knobs import ADAPTERS, mount_of
from agent.host.proc import Proc
from agent.host.psi import NodePsi
from agent.host.reader import HostReader
from agent.host.schedstat import RunDelayReader
from agent.host.threads import ThreadReader
from agent.host.topology import TopologyReader
from agent.snapshot import PodIdentity, build
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Hierarchy, Version, discover
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.trees import _V1, _V2, CID, UID_LS, Tree, proc_tree
from tests.fuzz.inputs import CONTENT, SLOW, TEXT

POD = f"kubepods/pod{UID_LS}"
CAPACITY = Usage(cpu_millis=2000, memory_bytes=1 << 30)


@pytest.fixture(scope="module", params=list(Version), ids=["v1", "v2"])
def tree(request, tmp_path_factory):
    made = Tree(tmp_path_factory.mktemp("fuzz"), request.param)
    made.group(POD)
    made.group(f"{POD}/{CID}")
    return made


@contextlib.contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="slacktide-fuzz-") as directory:
        yield Path(directory)


def files(version):
    return [(controller, name) for controller, own in (_V1 if version is Version.V1 else _V2).items() for name in own]


def scribble(tree, data, group=POD):
    """Put drawn contents into some files of a group."""
    for controller, name in data.draw(st.lists(st.sampled_from(files(tree.version)), min_size=1, max_size=6)):
        tree.path(group, name, controller).write_bytes(data.draw(CONTENT))


@SLOW
@given(data=st.data())
def test_a_sweep_of_pods_with_any_content(tree, data):
    tree.group(POD)
    scribble(tree, data)
    scribble(tree, data, f"{POD}/{CID}")
    proc = Proc("/proc", time.monotonic)
    budget = FdBudget(limit=1000)
    reader = HostReader(tree.hierarchy, CgroupLister(tree.hierarchy), proc, time.monotonic, budget=budget, slow_turns=1)
    try:
        before, after = reader.sweep(), reader.sweep()
    finally:
        reader.release()
        proc.close()
    assert budget.held == 0
    identity = PodIdentity(namespace="d", name="p", uid=UID_LS, tier=Tier.BE)
    snapshot = build(before, after, {UID_LS: identity}, period_seconds=1.0, capacity=CAPACITY)
    (pod,) = snapshot.pods
    known = (
        pod.usage.cpu_millis,
        pod.usage.memory_bytes,
        pod.throttled_ratio,
        pod.pids,
        pod.io_rate,
        pod.memory_high_rate,
    )
    assert all(value is None or value >= 0 for value in known)
    assert all(share is None or 0 <= share <= 1 for share in (pod.psi_cpu, pod.psi_memory, pod.psi_io))


@SLOW
@given(data=st.data())
def test_knobs_with_any_content_are_read_or_refused(tree, data):
    tree.group(POD)
    scribble(tree, data)
    for knob, adapter in ADAPTERS.items():
        mount = mount_of(tree.hierarchy, knob)
        if mount is None:
            continue
        descriptor = os.open(os.path.join(mount.path, POD), os.O_RDONLY)
        try:
            held = adapter.read(descriptor, mount.version)
        except KernelError:
            continue
        finally:
            os.close(descriptor)
        assert held.value is None or isinstance(held.value, int | str)


@SLOW
@given(CONTENT)
def test_lists_of_threads(content):
    with scratch() as directory:
        (directory / "tasks").write_bytes(content)
        assert all(tid > 0 for tid in tids_in(str(directory), Version.V1))


@SLOW
@given(CONTENT, CONTENT, CONTENT)
def test_threads_of_any_content(stat, schedstat, status):
    with scratch() as base:
        tree, proc = Tree(base / "cg", Version.V1), base / "proc"
        tree.group(POD, tasks="1\n")
        (proc / "1").mkdir(parents=True)
        for name, content in (("stat", stat), ("schedstat", schedstat), ("status", status)):
            (proc / "1" / name).write_bytes(content)
        (proc / "stat").write_bytes(stat)
        reader = ThreadReader(tree.lister(), tree.hierarchy, str(proc), time.monotonic, budget=FdBudget(limit=0))
        sweep = reader.sweep(tree.lister().pods(), 10)
        assert len(sweep.threads) + sweep.vanished == 1
        delays = RunDelayReader(str(proc), time.monotonic, 4)
        delays.refresh([1])
        assert all(value >= 0 for times in delays.read().times.values() for value in times)
        delays.close()


@SLOW
@given(CONTENT, CONTENT, CONTENT)
def test_a_node_of_any_content(stat, meminfo, pressure):
    with scratch() as base:
        root = proc_tree(base / "proc")
        (root / "stat").write_bytes(stat)
        (root / "meminfo").write_bytes(meminfo)
        (root / "pressure").mkdir()
        (root / "pressure/memory").write_bytes(pressure)
        (root / "loadavg").write_bytes(pressure)
        proc = Proc(str(root), lambda: 1.0)
        tree = Tree(root / "cg", Version.V1)
        node = HostReader(tree.hierarchy, tree.lister(), proc, lambda: 1.0).sweep().node
        if node is not None:
            assert node.capacity_memory_bytes >= 0
            assert node.busy_seconds >= 0
        try:
            _, busy, available = proc.beat()
        except KernelError:
            busy = available = None
        assert busy is None or busy >= 0
        assert available is None or available > 0
        NodePsi(str(root), lambda: 1.0).read()
        births = Births(str(root))
        births.looked()
        births.close()
        proc.close()


@SLOW
@given(TEXT, TEXT, TEXT)
def test_a_topology_of_any_content_has_every_online_cpu(online, siblings, cache):
    with scratch() as root:
        cpu = root / "devices/system/cpu"
        for path, text in (
            (cpu / "online", online),
            (cpu / "cpu0/topology/core_cpus_list", siblings),
            (cpu / "cpu0/cache/index0/level", cache),
            (cpu / "cpu0/cache/index0/shared_cpu_list", siblings),
            (root / "devices/system/node/node0/cpulist", online),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, errors="replace")
        found = TopologyReader(str(root)).read()
        assert found.cpus
        assert len(found.ids) == len(found.cpus)


@SLOW
@given(CONTENT)
def test_a_mount_table_of_any_content(content):
    with scratch() as root:
        (root / "self").mkdir()
        (root / "self/mountinfo").write_bytes(content)
        try:
            found = discover(str(root))
        except KernelError:
            return
        assert isinstance(found, Hierarchy)
