"""A drill on cache and bandwidth, on an emulated machine: what the class of BE holds while it lasts and afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.drill import Kind, Phase
from agent.drill_board import DrillBoard
from agent.effects import Effects, Parts
from agent.host.resctrl.groups import BE_GROUP
from agent.policy.base import arbitrate
from agent.policy.cache_bandwidth import CacheBandwidth, CacheBandwidthSettings
from agent.pressure import Shortage
from agent.topology import flat
from tests.agent.nodes import CONTEXT, node
from tests.agent.rdt_node import BE, rdt_node
from tests.agent.test_drill import order
from tests.emulators.resctrl import missing

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

SETTINGS = CacheBandwidthSettings(settle_seconds=2, quiet_seconds=4, min_dwell_seconds=4)
CALM = Shortage(short=False, calm=True, reason="LS is calm")


class Agent:
    """One turn a call, of the one policy that answers, with all that a drill meets in the loop."""

    def __init__(self, machine, board):
        self.machine = machine
        self.policy = CacheBandwidth()
        self.state = self.policy.start(CONTEXT)
        self.effects = Effects(Parts(drills=board))
        machine.handle.control.freeze()

    def turn(self):
        machine = self.machine
        machine.handle.control.advance(seconds=2.0)
        machine.now += 2.0
        drill = self.effects.surround(node()).drill
        look = replace(node(at=machine.now, rdt=machine.writer.view(), topology=flat(2), drill=drill), shortage=CALM)
        desired, self.state = self.policy.decide(look, self.state, SETTINGS, CONTEXT)
        machine.writer.want(desired.schemata, machine.groups())
        machine.writer.look()
        self.effects.decided(arbitrate([(self.policy.name, desired)]), look, None)


@pytest.mark.parametrize("profile", ["cdp"])
@pytest.mark.parametrize("aborted", [False, True])
def test_the_class_of_be_is_stepped_down_and_opened_again_although_ls_was_calm_all_the_time(tmp_path, profile, aborted):
    with rdt_node(profile, tmp_path) as machine:
        machine.pod(BE, 1)
        before = set(machine.state())
        board = DrillBoard(lambda: machine.now)
        agent = Agent(machine, board)
        for _ in range(2):
            agent.turn()
        wide = machine.writer.view().held
        drill_id = board.start(
            lambda new: order(new, kind=Kind.BANDWIDTH, dead_man_seconds=1000.0, recover_seconds=300.0)
        )
        for _ in range(4):
            agent.turn()
        assert machine.rdt.schemata(BE_GROUP) != wide.values
        assert board.current().at("detected") == board.current().at("throttled") is not None
        if aborted:
            board.abort(drill_id, "enough")
        turns = 0
        while board.active() is not None or machine.writer.view().held != wide:
            agent.turn()
            turns += 1
            assert turns < 30
        assert board.current().phase is (Phase.ABORTED if aborted else Phase.RECOVERED)
        machine.writer.restore()
        assert set(machine.state()) == before
