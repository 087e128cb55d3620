"""Policy and writer together on an emulated machine whose cache and memory follow what the class of BE holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.host.resctrl.groups import BE_GROUP
from agent.policy.cache_bandwidth import CacheBandwidth, CacheBandwidthSettings
from agent.pressure import Shortage
from agent.topology import flat
from tests.agent.nodes import CONTEXT, GIB, node
from tests.agent.rdt_node import BE, rdt_node
from tests.emulators.resctrl import missing

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

MIB = 1 << 20
SETTINGS = CacheBandwidthSettings(settle_seconds=2, quiet_seconds=4, min_dwell_seconds=4)


class Agent:
    """One turn a call: the hardware's time and ours go on together."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.policy = CacheBandwidth()
        self.state = self.policy.start(CONTEXT)
        machine.handle.control.freeze()

    def turn(self, *, short: bool):
        machine = self.machine
        machine.handle.control.advance(seconds=2.0)
        machine.now += 2.0
        verdict = Shortage(short=short, calm=not short, reason="LS waits" if short else "LS is calm")
        snapshot = replace(node(at=machine.now, rdt=machine.writer.view(), topology=flat(2)), shortage=verdict)
        desired, self.state = self.policy.decide(snapshot, self.state, SETTINGS, CONTEXT)
        machine.writer.want(desired.schemata, machine.groups())
        machine.writer.look()
        return desired


@pytest.mark.parametrize("profile", ["cdp", "mbps", "abmc", "no-mba"])
def test_a_hog_is_cut_down_and_let_go_and_nothing_is_left(tmp_path, profile):
    with rdt_node(profile, tmp_path) as machine:
        machine.pod(BE, 1)
        before = set(machine.state())
        control, agent = machine.handle.control, Agent(machine)
        agent.turn(short=False)
        agent.turn(short=False)
        control.demand(group=BE_GROUP, bytes_per_second=40 * GIB, footprint_bytes=200 * MIB)
        control.demand(group="", bytes_per_second=5 * GIB, footprint_bytes=10 * MIB)
        for _ in range(4):
            agent.turn(short=False)
        wide = machine.writer.view()
        assert agent.state.rung.level == 0
        for _ in range(6):
            desired = agent.turn(short=True)
        narrow = machine.writer.view()
        assert desired.rung.exhausted
        assert narrow.held != wide.held
        if profile == "no-mba":
            assert narrow.be_occupancy_bytes < wide.be_occupancy_bytes
        else:
            assert narrow.be_bandwidth_rate < 0.6 * wide.be_bandwidth_rate
        for _ in range(16):
            desired = agent.turn(short=False)
        assert desired.schemata is None
        assert machine.writer.view().held == wide.held
        machine.writer.restore()
        assert set(machine.state()) == before


def test_a_new_agent_goes_on_where_the_old_one_was_killed(tmp_path):
    with rdt_node("intel-2s", tmp_path) as machine:
        tids = machine.pod(BE, 2)
        control, agent = machine.handle.control, Agent(machine)
        agent.turn(short=False)
        agent.turn(short=False)
        control.demand(group=BE_GROUP, bytes_per_second=40 * GIB, footprint_bytes=200 * MIB)
        control.demand(group="", bytes_per_second=5 * GIB, footprint_bytes=10 * MIB)
        for short in (False, False, False, True, True, True):
            agent.turn(short=short)
        held, level = machine.rdt.schemata(BE_GROUP), agent.state.rung.level
        assert level > 0
        machine.writer = machine.new_writer()
        again = Agent(machine)
        seen = []
        for _ in range(4):
            again.turn(short=False)
            seen.append(machine.rdt.schemata(BE_GROUP))
        assert seen == [held] * 4
        assert again.state.rung.level == level
        assert machine.rdt.tasks(BE_GROUP) == set(tids)
