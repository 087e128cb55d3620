"""Drills of a real agent on the real cgroup files of this machine: what they do, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from pathlib import Path

import grpc
import pytest

from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc
from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.kernel.test_agent_cgroups import BE, BUSY, HALF, LS, Process, groups, pytestmark, wait_for  # noqa: F401 - fixture and marks
from tests.patience import PATIENCE

DEADLINE = 30.0 * PATIENCE
WATCHDOG = 2.0
ABORTS = 50

FLAGS = {
    # Only a drill makes LS short: whatever else this machine does must not, so *suppress* is left out.
    "policies": "weight,contention,memory,close,evict",
    "shortage.run-delay-cut": "100",
    "shortage.psi-cut": "1",
    "contention.step-percent": "100",
    "contention.quiet-seconds": "0",
    "contention.min-dwell-seconds": "0",
    "contention.settle-seconds": "0.1",
    "close.short-seconds": "0",
    "close.quiet-seconds": "0",
    "close.min-dwell-seconds": "0",
    "evict.fresh-samples": "1",
    "evict.pressure-settle-seconds": "0",
    "evict.memory-settle-seconds": "0",
    "evict.quiet-seconds": "0",
    "evict.min-dwell-seconds": "0",
    "watchdog-seconds": str(WATCHDOG),
}
HELD = (
    *("cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.max", "cpu.idle", "cpu.shares", "cpu.weight"),
    *("memory.limit_in_bytes", "memory.max", "memory.high", "freezer.state", "cgroup.freeze"),
)
"""Everything that the agent could write for these pods."""

KINDS = {
    "pressure": pb.PRESSURE_KIND_SIGNAL,
    "memory": pb.PRESSURE_KIND_MEMORY,
    "agent-loss": pb.PRESSURE_KIND_AGENT_LOSS,
}


class Node:
    """An agent with a busy BE pod and an LS pod."""

    def __init__(self, made, directory):
        self.groups = made
        self.state = directory / "state"
        self.listen = f"unix:{directory}/drill.sock"
        self.agents = []
        self._api = str(directory / "api.sock")

    def start(self, **more):
        """One agent, once it limits nothing but weight; `contention__quiet_seconds=1` is a flag beside the usual."""
        named = {name.replace("__", ".").replace("_", "-"): str(value) for name, value in more.items()}
        flags = [word for name, value in {**FLAGS, **named}.items() for word in (f"--{name}", value)]
        self.agents.append(Process(self.groups, self.state, self._api, *flags, "--drill.listen", self.listen))
        wait_for(lambda: self.groups.read(BE, "cpu.idle") == "1", "weight", DEADLINE)
        return self.agents[-1]

    def held(self, *names):
        """What the kernel has for these pods, by file."""
        found = {}
        for mount in self.groups.mounts:
            for name in names:
                for group in Path(mount, self.groups.root, name).rglob("*"):
                    if group.name in HELD:
                        found[str(group)] = group.read_text()
                for file in Path(mount, self.groups.root, name).iterdir():
                    if file.name in HELD:
                        found[str(file)] = file.read_text()
        return found

    def close(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.end(signal.SIGKILL)


@pytest.fixture
def node(groups, tmp_path):  # noqa: F811 - the fixture
    made = Node(groups, tmp_path)
    groups.spawn(f"{BE}/{CID}", BUSY)
    groups.spawn(LS, HALF)
    with ApiTwin(str(tmp_path / "api.sock"), [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be")]):
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def stub_of(node):
    with grpc.insecure_channel(node.listen) as channel:
        yield drill_pb2_grpc.DrillServiceStub(channel)


def request(kind, seconds, **more):
    return pb.StartDrillRequest(
        node="n1", pressure=KINDS[kind], duration_millis=int(1000 * seconds), reason="test", **more
    )


def begun(stub, *asked, **more):
    """A drill that has begun; what stands in its way at first (the agent sees nothing yet) goes away."""

    def start():
        try:
            return stub.StartDrill(request(*asked, **more), timeout=DEADLINE, wait_for_ready=True).drill_id
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return ""

    found = []
    wait_for(lambda: found.append(start()) or found[-1], "the start of a drill", DEADLINE)
    return found[-1]


def watched(stub, drill_id):
    """All messages to the end."""
    return list(stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), timeout=2 * DEADLINE))


def steps(result):
    return [moment.step for moment in result.timeline]


def test_pressure_throttles_in_the_kernel_and_gives_all_back(node):
    node.start()
    before, ls = node.held("kubepods"), node.held(LS)
    with stub_of(node) as stub:
        drill_id = begun(stub, "pressure", 1.5)
        wait_for(lambda: node.groups.quota() == "10000", "the floor", DEADLINE)
        assert node.held(LS) == ls
        heard = watched(stub, drill_id)
    last = heard[-1]
    assert last.phase == pb.DRILL_PHASE_RECOVERED, last
    seen = steps(last.result)
    order = ["raised", "rung:contention", "detected", "throttled", "lowered", "open:contention", "recovered"]
    assert [step for step in dict.fromkeys(seen) if step in order] == order
    assert "rung:close" in seen
    times = [moment.elapsed_millis for moment in last.result.timeline]
    assert times == sorted(times)
    assert {target.step for target in last.result.targets} == {"detected", "throttled", "recovered"}
    assert [moment for message in heard for moment in message.moments] == list(last.result.timeline)
    wait_for(lambda: node.held("kubepods") == before, "the state before", DEADLINE)


def test_memory_is_rehearsed_without_being_short(node):
    node.start()
    before = node.held("kubepods")
    with stub_of(node) as stub:
        drill_id = begun(stub, "memory", 2, victim_budget=1, dry_run=True)
        last = watched(stub, drill_id)[-1]
    assert last.phase == pb.DRILL_PHASE_RECOVERED, last
    assert {"rung:close", "rung:evict", "detected", "named"} <= set(steps(last.result))
    (victim,) = last.result.victims
    assert (victim.uid, victim.evicted) == (UID_BE, False)
    assert "4.0 % of memory is available" in victim.reason
    assert victim.reason.endswith("; not evicted: a dry run evicts nobody")
    wait_for(lambda: node.held("kubepods") == before, "the state before", DEADLINE)


def test_a_lost_agent_is_replaced_by_the_watchdog_and_takes_everything_back(node):
    # A limit that is back stays for a while, so that it can be seen.
    agent = node.start(contention__quiet_seconds=3 * PATIENCE)
    with stub_of(node) as stub:
        before = node.held("kubepods")
        drill_id = begun(stub, "agent-loss", 2.5 * WATCHDOG)
        wait_for(lambda: node.groups.quota() != node.groups.unlimited, "a limit", DEADLINE)
        wait_for(lambda: node.groups.quota() == node.groups.unlimited, "the watchdog", DEADLINE)
        wait_for(lambda: node.groups.quota() != node.groups.unlimited, "the limit again", DEADLINE)
        last = watched(stub, drill_id)[-1]
    assert last.phase == pb.DRILL_PHASE_RECOVERED, last
    seen = [step for step in steps(last.result) if step in {"throttled", "silent", "relaxed", "lowered", "retaken"}]
    assert seen == ["throttled", "silent", "relaxed", "lowered", "retaken"]
    at = {moment.step: moment.elapsed_millis for moment in last.result.timeline}
    assert at["relaxed"] - at["silent"] > 1000 * (WATCHDOG - 0.5)
    wait_for(lambda: node.held("kubepods") == before, "the state before", DEADLINE)
    code, log = agent.end(signal.SIGTERM)
    assert code == 0
    assert "the control loop was silent: hard limits of BE were lifted" in log
    assert "by someone else" not in log


def test_fifty_aborts_at_random_moments_restore_everything(node):
    node.start()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    before, ls = node.held("kubepods"), node.held(LS)
    reached = set()
    with stub_of(node) as stub:
        for number in range(ABORTS):
            kind = chance.choice(list(KINDS))
            drill_id = begun(stub, kind, 30, victim_budget=chance.randrange(2), dry_run=True)
            # A part of them is aborted before the first beat, a part long after the last limit.
            time.sleep(chance.choice((0.0, 0.05, 0.3, 0.8)) * chance.random())
            stub.AbortDrill(pb.AbortDrillRequest(drill_id=drill_id), timeout=DEADLINE)
            last = watched(stub, drill_id)[-1]
            assert last.phase == pb.DRILL_PHASE_ABORTED, (number, kind, last)
            reached |= set(steps(last.result))
            wait_for(lambda: node.held("kubepods") == before, f"the state before abort {number} ({kind})", DEADLINE)
            assert node.held(LS) == ls
        kept = stub.ListDrills(pb.ListDrillsRequest(), timeout=DEADLINE).drills
    assert {"raised", "throttled", "aborted"} <= reached
    assert [drill.phase for drill in kept] == [pb.DRILL_PHASE_ABORTED] * 20


def test_a_drill_of_an_agent_that_was_killed_is_a_failed_one_for_the_next(node):
    agent = node.start()
    with stub_of(node) as stub:
        first = begun(stub, "pressure", 60)
        wait_for(lambda: node.groups.quota() != node.groups.unlimited, "a limit", DEADLINE)
        agent.end(signal.SIGKILL)
    # What a drill held is held by the journal like any other limit: the next agent gives it back.
    second = node.start()
    wait_for(lambda: node.groups.quota() == node.groups.unlimited, "the release", DEADLINE)
    with stub_of(node) as stub:
        (drill,) = stub.ListDrills(pb.ListDrillsRequest(), timeout=DEADLINE, wait_for_ready=True).drills
        assert (drill.drill_id, drill.phase, drill.message) == (first, pb.DRILL_PHASE_FAILED, "the agent ended")
        again = begun(stub, "pressure", 0.5)
        watched(stub, again)
        found = stub.ListDrills(pb.ListDrillsRequest(), timeout=DEADLINE).drills
    assert [one.drill_id for one in found] == [again, first]
    assert second.end(signal.SIGTERM)[0] == 0
    assert json.loads((node.state / "drills.json").read_text())["version"] == 1
