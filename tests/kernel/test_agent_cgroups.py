"""The agent on the real cgroup files of this machine, below a directory of its own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent.act.executor import Executor
from agent.act.journal import Journal
from agent.beat import Beat
from agent.capabilities import Knob
from agent.host.cgroup import CgroupLister
from agent.host.probe import probe
from agent.host.proc import Proc
from agent.host.reader import HostReader
from agent.host.schedstat import RunDelayReader
from agent.host.signals import HostSignals
from agent.host.threads import ThreadReader
from agent.loop import Loop
from agent.pods import PodBook
from agent.policy.base import Context
from agent.policy.registry import build
from agent.policy.suppress import SuppressSettings
from agent.settings import AgentSettings
from slacktide.kernel.hierarchy import Version, discover
from slacktide.settings import ResourceNames
from slacktide.tier import Tier
from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.agent.twins import FakePods, pod
from tests.patience import PATIENCE

HIERARCHY = discover()
CPU = HIERARCHY.controllers.get("cpu")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        CPU is None or os.geteuid() != 0 or not os.access(CPU.path, os.W_OK), reason="needs root and a cpu controller"
    ),
]

LS = f"kubepods/burstable/pod{UID_LS}"
BE = f"kubepods/besteffort/pod{UID_BE}"
DEADLINE = 15.0 * PATIENCE
TIGHT = SuppressSettings(engage_percent=1.0, target_percent=1.0, hold_percent=0.0)
"""Any use at all engages the cap, and it is the floor: 100 millicores."""


def wait_for(condition, what="it", seconds=DEADLINE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in time"
        time.sleep(0.01)


class Groups:
    """Cgroups of one test below a root of its own, and the processes in them."""

    def __init__(self, controllers=("cpu", "cpuacct", "memory")):
        self.root = f"slacktide-test-{secrets.token_hex(4)}"
        self.mounts = sorted(
            {HIERARCHY.controllers[name].path for name in controllers if name in HIERARCHY.controllers}
        )
        self.enabled = " ".join(f"+{name}" for name in controllers if name != "cpuacct")
        self.processes = []
        for group in (LS, BE, f"{BE}/{CID}"):
            self.make(group)
        self.write("kubepods/besteffort", self.weight, self.lowest)
        self.write(BE, self.weight, self.lowest)

    @property
    def v1(self):
        return CPU.version is Version.V1

    @property
    def weight(self):
        return "cpu.shares" if self.v1 else "cpu.weight"

    @property
    def lowest(self):
        return "2" if self.v1 else "1"

    def make(self, group):
        for mount in self.mounts:
            directory = Path(mount)
            for part in (self.root, *group.split("/")):
                if not self.v1:
                    (directory / "cgroup.subtree_control").write_text(self.enabled)
                directory /= part
                directory.mkdir(exist_ok=True)

    def path(self, group, name, mount=None):
        return Path(mount or CPU.path, self.root, group, name)

    def read(self, group, name):
        return self.path(group, name).read_text().strip()

    def write(self, group, name, value):
        self.path(group, name).write_text(value)

    def quota(self):
        return self.read(BE, "cpu.cfs_quota_us" if self.v1 else "cpu.max").split()[0]

    def lift_quota(self):
        self.write(BE, *(("cpu.cfs_quota_us", "-1") if self.v1 else ("cpu.max", "max")))

    @property
    def unlimited(self):
        return "-1" if self.v1 else "max"

    def spawn(self, group, code):
        """A process in `group`. It begins once it is there: what it forks before would stay outside."""
        waiting = f"import os; os.read(0, 1)\n{code}"
        process = subprocess.Popen([sys.executable, "-S", "-c", waiting], stdin=subprocess.PIPE)
        self.processes.append(process)
        for mount in self.mounts:
            self.path(group, "cgroup.procs", mount).write_text(str(process.pid))
        process.stdin.close()
        return process

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(10 * PATIENCE)
        for mount in self.mounts:
            top = Path(mount, self.root)
            for directory in (*sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True), top):
                wait_for(lambda directory=directory: remove(directory), f"removal of {directory}")


def remove(directory):
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def groups():
    made = Groups()
    try:
        yield made
    finally:
        made.close()


BUSY = "while True: pass"
HALF = (
    "import time\n"
    "while True:\n"
    "    end = time.monotonic() + 0.01\n"
    "    while time.monotonic() < end: pass\n"
    "    time.sleep(0.01)"
)


class Rig:
    """The loop with real host and executor; pods from a twin."""

    def __init__(self, groups, state, suppress=None, policies=("weight", "suppress"), **more):
        suppress = suppress or SuppressSettings()
        self.settings = AgentSettings(turn_seconds=0.2, suppress=suppress, policies=policies, **more)
        lister = CgroupLister(HIERARCHY, groups.root)
        proc = Proc("/proc", time.monotonic)
        self.capabilities = probe(HIERARCHY, lister, "/proc")
        self.reader = HostReader(HIERARCHY, lister, proc, time.monotonic)
        self.delays = RunDelayReader("/proc", time.monotonic, 64)
        self.journal = Journal(str(state), proc.boot_id())
        self.executor = Executor(lister, self.journal, self.capabilities)
        self.adopted = self.executor.adopt()
        self.turns = []
        self.loop = Loop(
            lambda: self.settings,
            self.reader,
            Beat(HostSignals(self.reader, self.delays, proc), self.capabilities, 0.25, os.cpu_count() or 1),
            PodBook(FakePods(pod(UID_LS, "ls"), pod(UID_BE, "be")), ResourceNames()),
            build(self.settings.policies),
            Context(
                capabilities=self.capabilities,
                adopted_be_limit_millis=self.adopted,
                adopted_masks=self.journal.masks(),
                journal_lost=self.journal.lost,
            ),
            self.executor,
            on_turn=self.turns.append,
            on_sample=lambda _sample: None,
            threads=ThreadReader(lister, HIERARCHY, "/proc", time.monotonic) if "spread" in policies else None,
        )

    def __enter__(self):
        self.loop.start()
        return self

    def __exit__(self, *_args):
        stopped = self.loop.stop(5 * PATIENCE)
        self.delays.close()
        assert stopped
        assert self.loop.counters["errors"] == 0


def test_probe_finds_the_knobs_and_leaves_nothing_behind(groups):
    found = probe(HIERARCHY, CgroupLister(HIERARCHY, groups.root), "/proc")
    assert found.writable >= {Knob.IDLE, Knob.WEIGHT, Knob.QUOTA, Knob.BURST, Knob.MEMORY_MAX, Knob.FREEZE}
    assert (Knob.MEMORY_HIGH in found.writable) == (not groups.v1)
    for knob in set(Knob) - found.writable:
        assert found.skipped[knob.value]
    assert found.run_delay
    assert found.kernel == tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert (found.kill, found.reclaim) == (not groups.v1, not groups.v1 and found.kernel >= (5, 19))
    left = [path for mount in HIERARCHY.mounts() for path in Path(mount.path).rglob(f"slacktide-probe-{os.getpid()}")]
    assert left == []


def test_be_is_idle_and_measured_and_gets_everything_back(groups, tmp_path):
    groups.spawn(f"{BE}/{CID}", BUSY)
    groups.spawn(LS, HALF)
    with Rig(groups, tmp_path) as rig:
        wait_for(lambda: groups.read(BE, "cpu.idle") == "1", "idle")
        # On a full machine idle BE gets next to nothing: that it is seen at all is what counts.
        wait_for(lambda: (rig.turns[-1].snapshot.of(Tier.BE).cpu_millis or 0) > 0, "a measured BE")
        wait_for(lambda: (rig.turns[-1].snapshot.of(Tier.LS).cpu_millis or 0) > 0, "a measured LS")
        wait_for(lambda: rig.turns[-1].snapshot.pressure is not None, "a pressure")
        snapshot = rig.turns[-1].snapshot
        assert snapshot.of(Tier.BE).memory_bytes
        assert groups.read(LS, "cpu.idle") == "0"
        assert groups.read("kubepods/besteffort", "cpu.idle") == "0"
    rig.executor.restore()
    assert (groups.read(BE, "cpu.idle"), groups.read(BE, groups.weight)) == ("0", groups.lowest)


def test_a_quota_is_set_put_back_within_a_turn_and_lifted(groups, tmp_path):
    groups.spawn(f"{BE}/{CID}", BUSY)
    with Rig(groups, tmp_path, TIGHT) as rig:
        wait_for(lambda: groups.quota() == "10000", "the quota")
        wait_for(lambda: (rig.turns[-1].snapshot.pods_of(Tier.BE)[0].throttled_ratio or 0) > 0.5, "throttling")
        for times in range(1, 4):
            groups.lift_quota()
            turn = rig.turns[-1].number
            wait_for(lambda: groups.quota() == "10000", "the quota after a reset")
            wait_for(lambda times=times: rig.executor.counters["drift"] >= times, "the count")
            assert rig.turns[-1].number - turn <= 2
    rig.executor.restore()
    assert groups.quota() == groups.unlimited


def test_an_ls_that_waits_for_cpu_is_seen_by_the_beat_and_be_is_cut(groups, tmp_path):
    groups.write("kubepods/besteffort", groups.weight, "100000" if groups.v1 else "10000")
    for group in (LS, LS, *[f"{BE}/{CID}"] * 4):
        groups.spawn(group, BUSY)
    by_pressure_alone = SuppressSettings(engage_percent=100.0, target_percent=100.0)
    with Rig(groups, tmp_path, by_pressure_alone, policies=("suppress", "contention")) as rig:
        wait_for(lambda: groups.quota() != groups.unlimited, "a cut")
        wait_for(lambda: any("LS waits for CPU" in turn.line for turn in rig.turns), "its reason")
    rig.executor.restore()
    assert groups.quota() == groups.unlimited


def test_a_quota_reaches_a_pod_whose_container_has_one(groups, tmp_path):
    if not groups.v1:
        pytest.skip("only v1 refuses a parent below its child")
    groups.write(f"{BE}/{CID}", "cpu.cfs_quota_us", "80000")
    groups.spawn(f"{BE}/{CID}", BUSY)
    with Rig(groups, tmp_path, TIGHT) as rig:
        wait_for(lambda: groups.quota() == "10000", "the quota")
        assert groups.read(f"{BE}/{CID}", "cpu.cfs_quota_us") == "10000"
    outcome = rig.executor.restore()
    assert outcome.problems == ()
    assert rig.executor.counters["refused"] == 0
    assert (groups.quota(), groups.read(f"{BE}/{CID}", "cpu.cfs_quota_us")) == ("-1", "80000")


def test_burst_and_a_lower_quota(groups, tmp_path):
    if not groups.path(BE, "cpu.cfs_burst_us").exists():
        pytest.skip("no v1 burst here")
    groups.write(BE, "cpu.cfs_quota_us", "50000")
    groups.write(BE, "cpu.cfs_burst_us", "40000")
    groups.spawn(f"{BE}/{CID}", BUSY)
    with Rig(groups, tmp_path, TIGHT) as rig:
        wait_for(lambda: groups.quota() == "10000", "the quota")
    rig.executor.restore()
    assert (groups.quota(), groups.read(BE, "cpu.cfs_burst_us")) == ("50000", "40000")


def test_pods_that_come_and_go_while_they_are_read(groups, tmp_path):
    done = threading.Event()

    def churn():
        number = 0
        while not done.is_set():
            number += 1
            name = f"kubepods/besteffort/pod{number:08x}-0000-4000-8000-000000000000"
            groups.make(name)
            for mount in groups.mounts:
                Path(mount, groups.root, name).rmdir()

    lister = CgroupLister(HIERARCHY, groups.root)
    reader = HostReader(HIERARCHY, lister, Proc("/proc", time.monotonic), time.monotonic)
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        sweeps = [reader.sweep() for _ in range(300)]
    finally:
        done.set()
        thread.join(10 * PATIENCE)
    assert all({found.uid for found in sweep.groups} >= {UID_LS, UID_BE} for sweep in sweeps)
    assert all(len(sweep.groups) == len(sweep.readings) for sweep in sweeps)


class Process:
    """`python -m agent` on these groups."""

    def __init__(self, groups, state, socket, *flags):
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "agent", "--node", "n1", "--cluster.server", f"unix:{socket}",
                "--state-dir", str(state), "--cgroup-root", groups.root, "--turn-seconds", "0.2",
                "--predictor", f"unix:{state}/nobody.sock", "--watchdog-seconds", "600", *flags,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def end(self, number):
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=20 * PATIENCE)
        return self.process.returncode, log


TIGHT_FLAGS = ("--suppress.engage-percent", "1", "--suppress.target-percent", "1", "--suppress.hold-percent", "0")
LOOSE_FLAGS = (
    *("--suppress.engage-percent", "100", "--suppress.target-percent", "100", "--suppress.hold-percent", "0"),
    *("--shortage.run-delay-cut", "100", "--suppress.quiet-seconds", "0", "--suppress.step-percent", "100"),
)
"""Other work on this machine must not keep BE from its release."""


def test_killed_agent_leaves_limits_the_next_adopts_them_and_a_stop_restores(groups, tmp_path):
    groups.spawn(f"{BE}/{CID}", BUSY)
    groups.spawn(LS, HALF)
    socket = str(tmp_path / "api.sock")
    state = tmp_path / "state"
    started = []
    with ApiTwin(socket, [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be")]):
        try:
            started.append(Process(groups, state, socket, *TIGHT_FLAGS))
            wait_for(lambda: groups.quota() == "10000" and groups.read(BE, "cpu.idle") == "1", "limits")
            started[0].end(signal.SIGKILL)
            assert (groups.quota(), groups.read(BE, "cpu.idle")) == ("10000", "1")
            started.append(Process(groups, state, socket, *LOOSE_FLAGS))
            wait_for(lambda: groups.quota() == groups.unlimited, "the slow release")
            assert groups.read(BE, "cpu.idle") == "1"
            code, log = started[1].end(signal.SIGTERM)
        finally:
            for one in started:
                if one.process.poll() is None:
                    one.end(signal.SIGKILL)
    assert code == 0
    assert '"be_limit_millis": 100' in log
    assert (groups.read(BE, "cpu.idle"), groups.read(BE, groups.weight)) == ("0", groups.lowest)
    assert groups.quota() == groups.unlimited


def test_without_api_and_predictor_the_agent_waits_keeps_limits_and_stops_in_time(groups, tmp_path):
    groups.spawn(f"{BE}/{CID}", BUSY)
    state = tmp_path / "state"
    agent = Process(groups, state, tmp_path / "nobody.sock")
    try:
        wait_for(lambda: (state / "spool.sqlite").exists(), "the start")
        second = Process(groups, state, tmp_path / "nobody.sock")
        _, log = second.process.communicate(timeout=20 * PATIENCE)
        assert second.process.returncode == 1
        assert f"pid {agent.process.pid}" in log
        begin = time.monotonic()
        code, _ = agent.end(signal.SIGTERM)
        assert code == 0
        assert time.monotonic() - begin < 10 * PATIENCE
    finally:
        if agent.process.poll() is None:
            agent.end(signal.SIGKILL)
