"""Every knob through the executor, freezing and killing, on the real cgroups of this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.act.executor import Executor
from agent.act.journal import Journal
from agent.act.kill import kill_all, place_to_kill
from agent.act.relax import relax
from agent.act.restore import restore
from agent.capabilities import Knob
from agent.host.cgroup import CgroupLister
from agent.host.knobs import ADAPTERS, mount_of
from agent.host.probe import probe
from agent.policy.base import Plan, Request
from agent.snapshot import PodIdentity
from slacktide.errors import Gone
from slacktide.kernel.files import read_text, write_value
from slacktide.kernel.hierarchy import Version, discover
from slacktide.tier import Tier
from tests.agent.trees import CID, CID2, UID_BE, UID_LS
from tests.patience import PATIENCE

HIERARCHY = discover()
CPU = HIERARCHY.controllers.get("cpu")
BOOT = read_text("/proc/sys/kernel/random/boot_id").strip()

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        CPU is None or os.geteuid() != 0 or not os.access(CPU.path, os.W_OK), reason="needs root and a cpu controller"
    ),
]

BE = f"kubepods/besteffort/pod{UID_BE}"
LS = f"kubepods/burstable/pod{UID_LS}"
CPUS = sorted(os.sched_getaffinity(0))
MIB = 1 << 20
DEADLINE = 15.0 * PATIENCE
SLEEP = "import time; print('ready', flush=True); time.sleep(100)"
FORKS = (
    "import os, time\n"
    "print('ready', flush=True)\n"
    "end = time.monotonic() + 60\n"
    "while time.monotonic() < end:\n"
    "    pid = os.fork()\n"
    "    if pid == 0:\n"
    "        time.sleep(0.05)\n"
    "        os._exit(0)\n"
    "    while os.waitpid(-1, os.WNOHANG)[0]: pass\n"
    "    time.sleep(0.002)\n"
)


def wait_for(condition, what="it", seconds=DEADLINE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in time"
        time.sleep(0.01)


class Pods:
    """A BE pod with two containers and an LS pod under every controller, below a root of its own."""

    def __init__(self, state):
        self.root = f"slacktide-test-{secrets.token_hex(4)}"
        self.state = state
        self.processes = []
        self.mounts = {
            HIERARCHY.controllers[name]
            for name in ("cpu", "cpuacct", "cpuset", "memory", "io", "blkio", "freezer", "pids")
            if name in HIERARCHY.controllers
        }
        self.lister = CgroupLister(HIERARCHY, self.root)
        self.be, self.ls = f"{self.root}/{BE}", f"{self.root}/{LS}"
        self.leaf, self.leaf2 = f"{self.be}/{CID}", f"{self.be}/{CID2}"

    def make(self):
        for group in (self.leaf, self.leaf2, f"{self.ls}/{CID}"):
            for mount in self.mounts:
                directory = Path(mount.path)
                for part in group.split("/"):
                    if mount.version is Version.V2:
                        enable(directory)
                    above, directory = directory, directory / part
                    directory.mkdir(exist_ok=True)
                    inherit(above, directory)
        self.start()

    def start(self):
        self.capabilities = probe(HIERARCHY, self.lister, "/proc")
        self.journal = Journal(str(self.state), BOOT)
        self.executor = Executor(self.lister, self.journal, self.capabilities)
        return self.executor.adopt()

    def spawn(self, group, code=SLEEP):
        # It begins once it is there: memory that it takes before is another group's.
        waiting = f"import os; os.read(0, 1)\n{code}"
        process = subprocess.Popen([sys.executable, "-S", "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.processes.append(process)
        for mount in self.mounts:
            Path(mount.path, group, "cgroup.procs").write_text(str(process.pid))
        process.stdin.close()
        assert process.stdout.readline() == b"ready\n"
        return process

    def apply(self, *wishes):
        plan = Plan(
            settings={
                (group, knob): Request(policy="suppress", group=group, knob=knob, value=value, reason="r")
                for group, knob, value in wishes
            }
        )
        groups = {pod.group: pod for pod in self.lister.pods()}
        identities = {
            self.be: PodIdentity(namespace="d", name="be", uid=UID_BE, tier=Tier.BE),
            self.ls: PodIdentity(namespace="d", name="ls", uid=UID_LS, tier=Tier.LS),
        }
        return self.executor.apply(plan, groups, identities)

    def held(self, group, knob):
        mount = mount_of(HIERARCHY, knob)
        descriptor = os.open(Path(mount.path, group), os.O_RDONLY | os.O_DIRECTORY)
        try:
            held = ADAPTERS[knob].read(descriptor, mount.version)
            # On v2 a list that was once set cannot be taken away: it is its parent's then.
            return held.value or held.within if knob is Knob.CPUSET else held.value
        finally:
            os.close(descriptor)

    def close(self):
        for process in self.processes:
            process.kill()
        freezer = mount_of(HIERARCHY, Knob.FREEZE)
        if freezer is not None:
            for name, text in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                for file in Path(freezer.path, self.root).rglob(name):
                    with contextlib.suppress(OSError):
                        file.write_text(text)
        for process in self.processes:
            process.wait(DEADLINE)
            process.stdout.close()
        for mount in self.mounts:
            top = Path(mount.path, self.root)
            for path in (*sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True), top):
                wait_for(lambda path=path: removed(path), f"removal of {path}")


def enable(directory):
    offered = (directory / "cgroup.controllers").read_text().split()
    for name in {"cpu", "cpuset", "memory", "io", "pids"} & set(offered):
        (directory / "cgroup.subtree_control").write_text(f"+{name}")


def inherit(above, directory):
    """What a v1 cpuset needs before it takes a task."""
    for name in ("cpuset.mems", "cpuset.cpus"):
        own = directory / name
        if (directory / "cpuset.effective_cpus").exists() and not own.read_text().strip():
            own.write_text((above / name).read_text().strip())


def removed(path):
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def pods(tmp_path):
    made = Pods(tmp_path)
    try:
        made.make()
        yield made
    finally:
        made.close()


def device():
    for line in Path("/proc/partitions").read_text().splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[0].isdigit() and not fields[3].startswith(("ram", "loop")):
            return f"{fields[0]}:{fields[1]}"
    return None


def wishes(pods, group):
    """A request for each knob that this machine has, with what the kernel is to hold."""
    rates = f"{device()} rbps=10485760 wbps=5242880"
    every = {
        Knob.WEIGHT: (7, 7),
        Knob.QUOTA: (300, 30000),
        Knob.CPUSET: (str(CPUS[-1]), str(CPUS[-1])),
        Knob.MEMORY_MAX: (64 * MIB + 5, 64 * MIB),
        Knob.MEMORY_HIGH: (48 * MIB, 48 * MIB),
        Knob.IO_WEIGHT: (50, 50),
        Knob.IO_MAX: (rates, rates),
        Knob.FREEZE: (1, 1),
    }
    return [(group, knob, *pair) for knob, pair in every.items() if knob in pods.capabilities.writable]


@pytest.mark.parametrize("where", ["be", "leaf"])
def test_every_knob_is_set_adopted_and_given_back(pods, where):
    group = getattr(pods, where)
    pods.spawn(pods.leaf)
    wanted = wishes(pods, group)
    assert {knob for _, knob, *_ in wanted} >= {Knob.WEIGHT, Knob.QUOTA, Knob.MEMORY_MAX, Knob.FREEZE}
    before = {knob: pods.held(group, knob) for _, knob, *_ in wanted}
    outcome = pods.apply(*[wish[:3] for wish in wanted])
    assert outcome.problems == ()
    assert {knob: pods.held(group, knob) for _, knob, *_ in wanted} == {knob: held for _, knob, _, held in wanted}
    assert pods.apply(*[wish[:3] for wish in wanted]).writes == 0
    pods.start()
    assert pods.apply(*[wish[:3] for wish in wanted]).writes == 0
    outcome = pods.executor.restore()
    assert outcome.problems == ()
    assert {knob: pods.held(group, knob) for _, knob, *_ in wanted} == before
    assert pods.journal.entries() == ()
    assert pods.executor.counters["refused"] == pods.executor.counters["mismatch"] == 0


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_lists_of_cpus_of_pod_and_containers_move_together(pods):
    if Knob.CPUSET not in pods.capabilities.writable:
        pytest.skip("no cpuset here")
    pods.spawn(pods.leaf)
    before = [pods.held(group, Knob.CPUSET) for group in (pods.be, pods.leaf, pods.leaf2)]
    first, second = str(CPUS[0]), str(CPUS[1])
    for here, there in ((first, second), (second, first)):
        outcome = pods.apply((pods.be, Knob.CPUSET, here), (pods.leaf, Knob.CPUSET, here))
        assert outcome.problems == ()
        outcome = pods.apply((pods.be, Knob.CPUSET, there), (pods.leaf, Knob.CPUSET, there))
        assert outcome.problems == ()
        assert pods.held(pods.be, Knob.CPUSET) == pods.held(pods.leaf, Knob.CPUSET) == there
    assert pods.apply().problems == ()
    assert [pods.held(group, Knob.CPUSET) for group in (pods.be, pods.leaf, pods.leaf2)] == before


def test_quotas_of_pod_and_containers_move_together(pods):
    for pod, leaf, leaf2 in ((500, 800, 200), (200, 150, 400), (900, 900, 100)):
        outcome = pods.apply((pods.be, Knob.QUOTA, pod), (pods.leaf, Knob.QUOTA, leaf), (pods.leaf2, Knob.QUOTA, leaf2))
        assert outcome.problems == ()
        assert pods.held(pods.be, Knob.QUOTA) == pod * 100
        bound = [min(pod, own) if CPU.version is Version.V1 else own for own in (leaf, leaf2)]
        assert [pods.held(group, Knob.QUOTA) for group in (pods.leaf, pods.leaf2)] == [own * 100 for own in bound]
    assert pods.apply().problems == ()
    assert [pods.held(group, Knob.QUOTA) for group in (pods.be, pods.leaf, pods.leaf2)] == [None] * 3


def test_ls_gets_burst_and_nothing_is_left_of_it(pods):
    if Knob.BURST not in pods.capabilities.writable:
        pytest.skip("no burst in this kernel")
    group = f"{pods.ls}/{CID}"
    name, value = ("cpu.cfs_quota_us", "40000") if CPU.version is Version.V1 else ("cpu.max", "40000")
    write_value(str(Path(CPU.path, group, name)), value)
    assert pods.apply((group, Knob.BURST, 90000)).problems == ()
    assert pods.held(group, Knob.BURST) == 40000
    pods.executor.restore()
    assert pods.held(group, Knob.BURST) == 0


def test_relaxing_lifts_what_is_hard_on_the_real_files(pods):
    pods.spawn(pods.leaf)
    wanted = [(pods.be, Knob.IDLE, 1, 1), *[wish for wish in wishes(pods, pods.be) if wish[1] is not Knob.WEIGHT]]
    before = {knob: pods.held(pods.be, knob) for _, knob, *_ in wanted}
    pods.apply(*[wish[:3] for wish in wanted])
    hard = [knob for _, knob, *_ in wanted if knob.hard]
    assert relax(HIERARCHY, pods.journal.entries()) >= len(hard)
    assert {knob: pods.held(pods.be, knob) for knob in hard} == {knob: before[knob] for knob in hard}
    assert (pods.held(pods.be, Knob.IDLE), pods.held(pods.be, Knob.MEMORY_MAX)) == (1, 64 * MIB)


def test_restore_on_demand(pods):
    pods.spawn(pods.leaf)
    wanted = wishes(pods, pods.leaf)
    before = {knob: pods.held(pods.leaf, knob) for _, knob, *_ in wanted}
    pods.apply(*[wish[:3] for wish in wanted])
    planned = restore(str(pods.state), pods.root, dry_run=True)
    assert {knob: pods.held(pods.leaf, knob) for _, knob, *_ in wanted} != before
    done = restore(str(pods.state), pods.root)
    assert done.complete
    assert [row.what for row in planned.rows] == [row.what for row in done.rows]
    assert {knob: pods.held(pods.leaf, knob) for _, knob, *_ in wanted} == before


def test_a_memory_limit_below_usage_is_told_and_not_forced_on_v1(pods):
    mount = HIERARCHY.controllers.get("memory")
    if mount is None or mount.version is not Version.V1:
        pytest.skip("v2 kills instead of refusing")
    # Not of zeros: those would be no pages of its own until they are written.
    hog = "block = b'x' * (40 << 20)\n" + SLEEP
    swappiness = Path(mount.path, pods.leaf, "memory.swappiness")
    if swappiness.exists():
        swappiness.write_text("0")
    process = pods.spawn(pods.leaf, hog)
    outcome = pods.apply((pods.leaf, Knob.MEMORY_MAX, 4 * MIB))
    assert any("busy" in problem for problem in outcome.problems)
    assert pods.held(pods.leaf, Knob.MEMORY_MAX) is None
    assert process.poll() is None
    assert pods.executor.restore().problems == ()


def frozen(pods):
    return pods.held(pods.be, Knob.FREEZE) == 1


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "frozen"])
def test_kill_all_ends_a_pod_that_forks_whatever_it_does(pods, stopped):
    forker = pods.spawn(pods.leaf, FORKS)
    sleeper = pods.spawn(pods.leaf2)
    other = pods.spawn(f"{pods.ls}/{CID}")
    place = place_to_kill(HIERARCHY, pods.be)
    if stopped:
        pods.apply((pods.be, Knob.FREEZE, 1))
        wait_for(lambda: frozen(pods), "the freeze")
    assert kill_all(place, DEADLINE) >= 2
    assert (forker.wait(DEADLINE), sleeper.wait(DEADLINE)) == (-9, -9)
    assert other.poll() is None
    assert not frozen(pods)
    assert kill_all(place, DEADLINE) == 0


def test_a_group_made_again_is_not_killed(pods):
    place = place_to_kill(HIERARCHY, pods.leaf2)
    path = Path(place.directory)
    path.rmdir()
    # The kernel may use the inode again at once if nothing else was made meanwhile.
    (path.parent / "between").mkdir()
    path.mkdir()
    (path.parent / "between").rmdir()
    inherit(path.parent, path)
    process = pods.spawn(pods.leaf2)
    with pytest.raises(Gone):
        kill_all(place, DEADLINE)
    assert process.poll() is None
    with pytest.raises(Gone):
        place_to_kill(HIERARCHY, f"{pods.be}/{'e' * 64}")
    with pytest.raises(ValueError, match="leaves its root"):
        place_to_kill(HIERARCHY, "../x")
