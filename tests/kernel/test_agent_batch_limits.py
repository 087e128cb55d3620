"""Batch limits on real cgroups: on arrival, after rewrites by others, and in what they do to processes."""

from __future__ import annotations

import os
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
from agent.host.watch import CgroupWatch
from agent.loop import Loop
from agent.pods import PodBook
from agent.policy.base import Context
from agent.policy.batch_limits import BatchLimits
from agent.policy.weight import Weight
from agent.settings import AgentSettings
from slacktide.objects import Container, ContainerStatus, PodSpec, PodStatus, ResourceRequirements
from slacktide.settings import ResourceNames
from slacktide.weights import kernel_weight
from tests.agent.trees import CID, CID2, UID_BE, UID_BE2, UID_LS
from tests.agent.twins import FakePods, pod
from tests.kernel.test_agent_cgroups import (
    BE,
    BUSY,
    CPU,
    DEADLINE,
    HIERARCHY,
    groups,  # noqa: F401 - the fixture
    pytestmark,  # noqa: F401 - marks
    remove,
    wait_for,
)
from tests.patience import PATIENCE

NAMES = ResourceNames()
MIB = 1 << 20
NEW = f"kubepods/besteffort/pod{UID_BE2}"
SWAP = "SwapTotal:             0 kB" not in Path("/proc/meminfo").read_text()


def be(uid, cpu="500", memory=64 * MIB, request="250", ids=(CID,)):
    """A BE pod with a container for each id; an empty id is one that no status tells of."""
    limits, requests = {NAMES.cpu: cpu, NAMES.memory: str(memory)}, {NAMES.cpu: request}
    containers = [
        Container(name=f"c{number}", resources=ResourceRequirements(requests=requests, limits=limits))
        for number, _ in enumerate(ids)
    ]
    statuses = [
        ContainerStatus(name=f"c{number}", container_id=f"containerd://{one}") for number, one in enumerate(ids) if one
    ]
    made = pod(uid, "be", spec=PodSpec(containers=containers))
    return type(made)(
        metadata=made.metadata, spec=made.spec, status=PodStatus(phase="Running", container_statuses=statuses)
    )


@pytest.fixture
def node(groups):  # noqa: F811 - the fixture
    return groups


class Rig:
    """The loop with host, watch and executor; pods from a twin."""

    def __init__(self, node, state, *pods, turn_seconds=0.2):
        self.node = node
        self.settings = AgentSettings(turn_seconds=turn_seconds)
        lister = CgroupLister(HIERARCHY, node.root)
        proc = Proc("/proc", time.monotonic)
        capabilities = probe(HIERARCHY, lister, "/proc")
        self.reader = HostReader(HIERARCHY, lister, proc, time.monotonic)
        self.delays = RunDelayReader("/proc", time.monotonic, 64)
        self.journal = Journal(str(state), proc.boot_id())
        self.executor = Executor(lister, self.journal, capabilities)
        self.watch = CgroupWatch(lister, time.monotonic)
        self.pods = FakePods(pod(UID_LS, "ls"), *pods)
        self.took = []
        self.turns = []
        self.loop = Loop(
            lambda: self.settings,
            self.reader,
            Beat(HostSignals(self.reader, self.delays, proc), capabilities, 0.25, os.cpu_count() or 1),
            PodBook(self.pods, NAMES),
            (BatchLimits(), Weight()),
            Context(capabilities=capabilities),
            self.executor,
            on_turn=self.turns.append,
            on_sample=lambda _sample: None,
            on_arrival=self.took.append,
            watch=self.watch,
        )

    def __enter__(self):
        self.loop.start()
        wait_for(
            lambda: self.turns and not self.turns[-1].held, "a decision", DEADLINE + 2 * self.settings.turn_seconds
        )
        return self

    def __exit__(self, *_args):
        stopped = self.loop.stop(5 * PATIENCE)
        self.delays.close()
        self.watch.close()
        assert stopped
        assert self.loop.counters["errors"] == 0

    def quota(self, group):
        return self.node.read(group, "cpu.cfs_quota_us" if self.node.v1 else "cpu.max").split()[0]

    def weight(self, group):
        return int(self.node.read(group, self.node.weight))

    def memory_path(self, group):
        name = "memory.limit_in_bytes" if self.node.v1 else "memory.max"
        return self.node.path(group, name, HIERARCHY.controllers["memory"].path)

    def memory(self, group):
        text = self.memory_path(group).read_text().strip()
        return None if text == "max" or int(text) > 1 << 62 else int(text)

    def held(self, group):
        """(quota, memory limit) as the kernel has them."""
        return self.quota(group), self.memory(group)

    def lift(self, group):
        """What a runtime, a kubelet or systemd's daemon-reload does behind the agent's back."""
        self.node.write(group, *(("cpu.cfs_quota_us", "-1") if self.node.v1 else ("cpu.max", "max")))
        self.memory_path(group).write_text("-1" if self.node.v1 else "max")

    @property
    def free(self):
        return self.node.unlimited, None


def test_a_container_is_limited_before_the_next_turn_and_so_is_one_that_restarts(node, tmp_path):
    # koordinator 972, 2055: a restarted container was unlimited until the reconciler came.
    with Rig(node, tmp_path, be(UID_BE, ids=("",)), be(UID_BE2, ids=("",)), turn_seconds=4.0) as rig:
        for leaf in (f"{NEW}/{CID}", f"{NEW}/{CID2}"):
            turn = len(rig.turns)
            wait_for(lambda turn=turn: len(rig.turns) > turn, "a turn", 4.0 + DEADLINE)
            turn = len(rig.turns)
            begin = time.monotonic()
            node.make(leaf)
            wait_for(lambda leaf=leaf: rig.held(leaf) == ("50000", 64 * MIB), "the limits")
            print(f"limited {1000 * (time.monotonic() - begin):.1f} ms after mkdir began")
            assert len(rig.turns) == turn, "the arrival did it, no turn"
            assert rig.held(NEW) == ("50000", 64 * MIB)
            assert rig.weight(leaf) == kernel_weight(250, v2=int(CPU.version) == 2)
            for mount in node.mounts:
                remove(Path(mount, node.root, leaf))
        assert rig.loop.counters["arrivals"] >= 2
        assert len(rig.took) >= 2


def test_what_a_runtime_writes_after_the_cgroup_was_made_is_put_back_before_the_next_turn(node, tmp_path):
    with Rig(node, tmp_path, be(UID_BE), be(UID_BE2), turn_seconds=4.0) as rig:
        turn = len(rig.turns)
        wait_for(lambda: len(rig.turns) > turn, "a turn", 4.0 + DEADLINE)
        turn = len(rig.turns)
        node.make(f"{NEW}/{CID}")
        wait_for(lambda: rig.held(f"{NEW}/{CID}") == ("50000", 64 * MIB), "the limits")
        rig.lift(f"{NEW}/{CID}")
        wait_for(lambda: rig.held(f"{NEW}/{CID}") == ("50000", 64 * MIB), "the limits again")
        assert len(rig.turns) == turn, "a later look did it, no turn"


def test_a_pod_that_the_api_tells_of_later_is_limited_then(node, tmp_path):
    with Rig(node, tmp_path, be(UID_BE)) as rig:
        node.make(f"{NEW}/{CID}")
        wait_for(lambda: rig.loop.counters["arrivals_unknown"] == 1, "the arrival")
        assert rig.held(f"{NEW}/{CID}") == rig.free
        rig.pods.pods.append(be(UID_BE2))
        rig.loop.wake()
        wait_for(lambda: rig.held(f"{NEW}/{CID}") == ("50000", 64 * MIB), "the limits")


def test_each_container_gets_its_own_once_the_api_knows_its_id(node, tmp_path):
    def two(*ids):
        made = be(UID_BE, ids=ids)
        big = ResourceRequirements(limits={NAMES.cpu: "900", NAMES.memory: str(96 * MIB)})
        containers = [made.spec.containers[0], Container(name="c1", resources=big)]
        return type(made)(metadata=made.metadata, spec=PodSpec(containers=containers), status=made.status)

    node.make(f"{BE}/{CID2}")
    with Rig(node, tmp_path, two("", "")) as rig:
        wait_for(lambda: rig.held(f"{BE}/{CID}") == ("90000", 96 * MIB), "the larger limits")
        assert rig.held(BE) == ("140000", 160 * MIB)
        rig.pods.pods[1] = two(CID, CID2)
        wait_for(lambda: rig.held(f"{BE}/{CID}") == ("50000", 64 * MIB), "its own limits")
        assert rig.held(f"{BE}/{CID2}") == ("90000", 96 * MIB)
        assert [rig.weight(f"{BE}/{one}") for one in (CID, CID2)] == [
            kernel_weight(250, v2=int(CPU.version) == 2),
            kernel_weight(900, v2=int(CPU.version) == 2),
        ]


def test_rewrites_are_put_back_within_a_turn_and_a_fight_is_counted_and_told(node, tmp_path, caplog):
    # peer-koordinator.md section 10, row 16; test-control-plane.md: daemon-reload resets pod and container.
    with Rig(node, tmp_path, be(UID_BE)) as rig:
        for times in range(1, 4):
            wait_for(lambda: rig.held(BE) == rig.held(f"{BE}/{CID}") == ("50000", 64 * MIB), "the limits")
            turn = len(rig.turns)
            rig.lift(BE)
            rig.lift(f"{BE}/{CID}")
            wait_for(lambda: rig.held(BE) == rig.held(f"{BE}/{CID}") == ("50000", 64 * MIB), "the limits again")
            wait_for(lambda times=times: rig.executor.counters["drift"] >= 4 * times, "the count")
            assert len(rig.turns) - turn <= 2
        assert rig.executor.counters["fights"] >= 8
        rig.lift(BE)
        wait_for(lambda: rig.executor.fighting >= 1, "the fight")
    assert any("someone fights over it" in str(record.msg) for record in caplog.records)


def test_pods_that_come_all_at_once_and_go_leave_nothing(node, tmp_path):
    uids = [f"{number:08x}-1111-4111-8111-111111111111" for number in range(40)]
    names = [f"kubepods/besteffort/pod{uid}" for uid in uids]
    with Rig(node, tmp_path, *(be(uid, ids=("",)) for uid in uids)) as rig:
        watches = rig.watch.watches
        begin = time.monotonic()
        for name in names:
            node.make(f"{name}/{CID}")
        wait_for(lambda: all(rig.held(f"{name}/{CID}") == ("50000", 64 * MIB) for name in names), "all limits")
        print(f"40 pods limited {1000 * (time.monotonic() - begin):.0f} ms after the first mkdir began")
        print(f"from wake to write: {1000 * min(rig.took):.1f} to {1000 * max(rig.took):.1f} ms")
        wait_for(lambda: len(rig.journal.entries()) >= 6 * len(names), "the journal")
        assert rig.watch.watches == watches + len(names)
        for name in names:
            for mount in node.mounts:
                for group in (f"{name}/{CID}", name):
                    wait_for(lambda group=group, mount=mount: remove(Path(mount, node.root, group)), "removal")
        wait_for(lambda: not rig.journal.entries(), "an empty journal")
        wait_for(lambda: rig.watch.watches == watches, "the end of their watches")
        assert rig.executor.counters["refused"] == 0


def test_a_pod_with_ten_containers_and_everything_is_given_back(node, tmp_path):
    ids = [f"{number:x}{'e' * 63}" for number in range(10)]
    with Rig(node, tmp_path, be(UID_BE), be(UID_BE2, ids=ids)) as rig:
        originals = {}
        for one in ids:
            node.make(f"{NEW}/{one}")
        for one in ids:
            wait_for(lambda one=one: rig.held(f"{NEW}/{one}") == ("50000", 64 * MIB), "the limits")
            originals[one] = "1024" if node.v1 else "100"
        wait_for(lambda: rig.held(NEW) == ("500000", 640 * MIB), "the pod's limits")
    outcome = rig.executor.restore()
    assert outcome.problems == ()
    for group in (NEW, *(f"{NEW}/{one}" for one in ids)):
        assert rig.held(group) == rig.free
    assert {one: node.read(f"{NEW}/{one}", node.weight) for one in ids} == originals
    assert rig.journal.entries() == ()


def test_a_busy_container_is_throttled_at_its_limit(node, tmp_path):
    with Rig(node, tmp_path, be(UID_BE, cpu="100")) as rig:
        wait_for(lambda: rig.quota(f"{BE}/{CID}") == "10000", "the quota")
        node.spawn(f"{BE}/{CID}", BUSY)
        wait_for(lambda: "nr_throttled 0\n" not in node.read(f"{BE}/{CID}", "cpu.stat") + "\n", "throttling")
        wait_for(lambda: "held to a batch-cpu limit" in rig.turns[-1].plan.reasons["batch_limits"], "the reason")


GREEDY = (
    "import time\n"
    "def inside():\n"
    "    lines = open('/proc/self/cgroup').read().splitlines()\n"
    "    return any('/{leaf}' in line and ('memory' in line or line.startswith('0::')) for line in lines)\n"
    "while not inside(): time.sleep(0.01)\n"
    "held = bytearray(b'x') * ({mib} << 20)\n"
    "time.sleep(600)"
)
"""Memory is charged to the cgroup in which it is first touched."""


@pytest.mark.skipif(SWAP, reason="with swap a memory limit makes processes swap instead of ending them")
def test_a_container_beyond_its_memory_limit_is_killed_and_the_other_lives(node, tmp_path):
    node.make(f"{BE}/{CID2}")
    with Rig(node, tmp_path, be(UID_BE, memory=48 * MIB, ids=(CID, CID2))) as rig:
        wait_for(lambda: rig.memory(f"{BE}/{CID}") == rig.memory(f"{BE}/{CID2}") == 48 * MIB, "the limits")
        modest = node.spawn(f"{BE}/{CID2}", GREEDY.format(leaf=CID2, mib=8))
        greedy = node.spawn(f"{BE}/{CID}", GREEDY.format(leaf=CID, mib=96))
        wait_for(lambda: greedy.poll() == -9, "the kill")
        assert modest.poll() is None


@pytest.mark.skipif(SWAP, reason="with swap a memory limit below the use makes processes swap")
def test_a_memory_limit_below_what_is_in_use_is_refused_told_and_tried_again(node, tmp_path):
    if not node.v1:
        pytest.skip("only v1 refuses a memory limit below what is in use")
    process = node.spawn(f"{BE}/{CID}", GREEDY.format(leaf=CID, mib=64))
    usage = node.path(f"{BE}/{CID}", "memory.usage_in_bytes", HIERARCHY.controllers["memory"].path)
    wait_for(lambda: int(usage.read_text()) > 64 * MIB, "its memory")
    with Rig(node, tmp_path, be(UID_BE, memory=16 * MIB)) as rig:
        wait_for(lambda: rig.executor.counters["refused"] >= 1, "the refusal")
        assert rig.quota(f"{BE}/{CID}") == "50000", "the other limits hold"
        assert process.poll() is None
        process.kill()
        wait_for(lambda: rig.held(f"{BE}/{CID}") == ("50000", 16 * MIB), "the limit")
        entry = rig.journal.get(f"{node.root}/{BE}/{CID}", Knob.MEMORY_MAX)
        assert entry is not None
        assert entry.original.value is None
