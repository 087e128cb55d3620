"""What a plan leads to beside knobs, and what snapshots know of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.capabilities import Knob
from agent.counters import NodeCounters
from agent.drill import Kind, Order, Phase
from agent.drill_board import DrillBoard
from agent.effects import Effects, Parts
from agent.eviction import EvictorView, Victim, Way
from agent.host.cgroup import PodGroup
from agent.policy.base import Plan, Reclaim, Request
from agent.policy.rung import RungStatus
from agent.pressure import Pressure
from agent.resctrl import Schemata
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from agent.topology import flat
from slacktide.status import Usage
from slacktide.tier import Tier


class Told:
    """Any part: keeps what it was left."""

    def __init__(self):
        self.wishes = []
        self.seen = EvictorView()
        self.burnt = {0: 1.5, 1: 0.5}
        self.seconds = 0.0

    def want(self, *wish):
        self.wishes.append(wish)

    def view(self):
        return self.seen

    def start(self, *wish):
        self.wishes.append(wish)

    def stop(self):
        self.wishes.append("stop")

    def used_seconds(self):
        return self.seconds


class Readings:
    def topology(self):
        return flat(2)

    def disks(self):
        return ("8:0",)

    def rivals(self):
        return {}

    def gpus(self):
        return None

    def cpi(self):
        return {"uid-ls": 1.25, "uid-x": 9.0}

    def count(self, pods):
        self.counted = [one.identity.name for one in pods]


class Ballast(Told):
    def used(self):
        return self.burnt


def pod(name, tier):
    identity = PodIdentity(namespace="n", name=name, uid=f"uid-{name}", tier=tier)
    return PodSnapshot(identity=identity, group=f"kubepods/pod{name}")


def group(name):
    return PodGroup(f"kubepods/pod{name}", 7, f"uid-{name}")


def snapshot(at=10.0, system=200):
    return NodeSnapshot(
        at=at,
        window_seconds=1.0,
        capacity=Usage(cpu_millis=4000),
        tiers={Tier.LS: Usage(cpu_millis=1000), Tier.SYSTEM: Usage(cpu_millis=system)},
        pods=(pod("ls", Tier.LS), pod("be", Tier.BE)),
    )


GROUPS = {f"kubepods/pod{name}": group(name) for name in ("ls", "be")}


IDENTITIES = {one.identity.uid: one.identity for one in snapshot().pods}


def order(drill_id, **changed):
    values = {
        "kind": Kind.PRESSURE,
        "duration_seconds": 5.0,
        "dry_run": False,
        "victims_max": 1,
        "reason": "",
        "caller": "me",
        "dead_man_seconds": 1000.0,
        "recover_seconds": 60.0,
    }
    return Order(id=drill_id, **{**values, **changed})


@pytest.fixture
def board():
    return DrillBoard(lambda: 0.0, new_id=lambda: "d1")


def victim(drill=""):
    return Victim(
        namespace="n", name="be", uid="uid-be", group="kubepods/podbe", way=Way.EVICT, reason="r", drill=drill
    )


def test_each_part_is_left_its_wish_and_be_pods_alone():
    rdt, reclaimer, evictor, ballast = Told(), Told(), Told(), Ballast()
    effects = Effects(Parts(rdt=rdt, reclaimer=reclaimer, evictor=evictor, ballast=ballast))
    schemata, reclaims = Schemata(values={"L3": {0: 1}}), (Reclaim(group="kubepods/podbe", bytes=1, reason="r"),)
    plan = Plan(schemata=schemata, reclaims=reclaims, ballast=frozenset({1}), victims=(victim(),))
    effects.carry_out(plan, snapshot(), GROUPS, IDENTITIES)
    assert rdt.wishes == [(schemata, [group("be")])]
    assert reclaimer.wishes == [(reclaims, [group("be")])]
    assert ballast.wishes == [(frozenset({1}),)]
    assert evictor.wishes == [((victim(),), IDENTITIES, None)]


def test_ballast_runs_only_while_it_is_asked_for():
    ballast = Ballast()
    Effects(Parts(ballast=ballast)).carry_out(Plan(), snapshot(), GROUPS, IDENTITIES)
    assert ballast.wishes == [(frozenset(),)]


def test_a_node_that_has_nothing_is_fine():
    effects = Effects()
    effects.carry_out(Plan(victims=(victim(),)), snapshot(), GROUPS, IDENTITIES)
    effects.decided(Plan(), snapshot(), None)
    assert effects.surround(snapshot()).evictor is None
    assert effects.without_ballast(None) is None
    assert effects.for_sample(snapshot()) == snapshot()


def test_what_ballast_burns_is_nobodys_use():
    effects = Effects(Parts(ballast=Ballast()))
    node = NodeCounters(
        at=1.0,
        capacity_cpu_millis=4000,
        busy_seconds=10.0,
        steal_seconds=0.0,
        capacity_memory_bytes=1,
        memory_available_bytes=None,
    )
    assert effects.without_ballast(node).busy_seconds == 8.0


def test_each_tier_gets_its_cookie_from_threads_that_are_only_read_when_asked_for():
    asked = []

    class Cookies:
        def want(self, on, threads):
            asked.append((on, {tier: list(tids) for tier, tids in threads().items()} if on else None))
            return []

    effects = Effects(Parts(cookies=Cookies(), tids=lambda pods: [len(pods)]))
    effects.carry_out(Plan(), snapshot(), GROUPS, IDENTITIES)
    effects.carry_out(Plan(cookies=True), snapshot(), GROUPS, IDENTITIES)
    assert asked == [(False, None), (True, {Tier.LS: [1], Tier.BE: [1]})]


def test_cycles_per_instruction_go_to_their_pods():
    readings = Readings()
    seen = Effects(Parts(collectors=readings)).surround(snapshot())
    assert [one.cpi for one in seen.pods] == [1.25, None]
    assert (seen.topology, seen.disks, seen.gpus) == (flat(2), ("8:0",), None)
    assert readings.counted == ["ls"]


def test_a_signal_replaces_the_pressure_only_while_it_presses(board):
    effects = Effects(Parts(drills=board))
    measured = Pressure(kind="run-delay", value=0.1, window_seconds=0.25)
    board.start(order)
    assert effects.pressure(measured) is measured
    effects.decided(Plan(), snapshot(10.0), None)
    assert effects.pressure(measured).kind == "drill"
    assert effects.pressure(None).kind == "drill"
    assert effects.surround(snapshot()).drill.id == "d1"
    effects.decided(Plan(), snapshot(15.0), None)
    assert effects.pressure(measured) is measured
    assert effects.surround(snapshot()).drill is None


def test_a_drill_sees_the_answer_and_its_victims(board):
    evictor = Told()
    effects = Effects(Parts(drills=board, evictor=evictor))
    board.start(order)
    rung = RungStatus(name="contention", level=1, top=3, since=0.0, reason="drill")
    effects.decided(Plan(), snapshot(10.0), None)
    effects.decided(Plan(rungs={"contention": rung}, victims=(victim("d1"),)), snapshot(10.5), 700)
    drill = board.current()
    assert (drill.detected_at, drill.throttled_at) == (10.5, 10.5)
    assert [one.victim.uid for one in drill.victims] == ["uid-be"]
    effects.carry_out(Plan(victims=(victim("d1"), victim("another"))), snapshot(10.6), GROUPS, IDENTITIES)
    assert evictor.wishes[-1][0] == (victim("d1"), victim("another"))


def test_a_dry_run_sends_nobody(board):
    evictor = Told()
    effects = Effects(Parts(drills=board, evictor=evictor))
    board.start(lambda new: order(new, dry_run=True))
    effects.decided(Plan(), snapshot(10.0), None)
    effects.carry_out(Plan(victims=(victim("d1"), victim())), snapshot(10.1), GROUPS, IDENTITIES)
    assert evictor.wishes == [((victim(),), IDENTITIES, None)]


def test_a_drill_with_load_burns_what_ls_and_system_leave_and_no_longer(board):
    load = Told()
    effects = Effects(Parts(drills=board, load=load))
    board.start(lambda new: order(new, kind=Kind.LOAD, intensity_percent=50))
    effects.decided(Plan(), snapshot(10.0), None)
    effects.decided(Plan(), snapshot(10.1), None)
    assert load.wishes == [(1400, 5.0)]
    board.abort("d1", "enough")
    effects.decided(Plan(), snapshot(10.2), None)
    assert load.wishes == [(1400, 5.0), "stop"]
    assert board.current().phase is Phase.ABORTED
    measured = Pressure(kind="psi", value=0.1, window_seconds=0.25)
    assert effects.pressure(measured) is measured


def test_what_a_drill_burns_is_not_sold_as_need(board):
    load = Told()
    effects = Effects(Parts(drills=board, load=load))
    board.start(lambda new: order(new, kind=Kind.LOAD))
    effects.decided(Plan(), snapshot(10.0), None)
    assert effects.for_sample(snapshot(10.0, system=2000)).of(Tier.SYSTEM).cpu_millis is None
    load.seconds = 1.5
    assert effects.for_sample(snapshot(11.0, system=2000)).of(Tier.SYSTEM).cpu_millis == 500
    board.abort("d1", "enough")
    effects.decided(Plan(), snapshot(11.1), None)
    load.seconds = 1.6
    assert effects.for_sample(snapshot(12.0, system=300)).of(Tier.SYSTEM).cpu_millis == 200
    assert effects.for_sample(snapshot(13.0, system=300)).of(Tier.SYSTEM).cpu_millis == 300


def test_a_drill_that_silences_the_loop_sees_the_watchdog_and_ends_by_its_time(board):
    lifted = [0]
    effects = Effects(Parts(drills=board, lifted=lambda: lifted[0]))
    board.start(lambda new: order(new, kind=Kind.AGENT_LOSS))
    measured = Pressure(kind="psi", value=0.1, window_seconds=0.25)
    rung = RungStatus(name="contention", level=1, top=3, since=0.0, reason="drill")
    effects.decided(Plan(), snapshot(10.0), None)
    assert effects.pressure(measured).kind == "drill"
    effects.decided(Plan(rungs={"contention": rung}), snapshot(10.1), 700)
    assert effects.silenced
    effects.keep_silent(14.0)
    lifted[0] = 1
    effects.keep_silent(14.5)
    assert board.current().at("relaxed") == 14.5
    assert effects.silenced
    effects.keep_silent(15.1)
    assert not effects.silenced
    assert effects.pressure(measured) is measured
    effects.decided(Plan(rungs={"contention": rung}), snapshot(15.2), 700)
    assert board.current().at("retaken") == 15.2


def test_the_drill_sees_what_is_measured_beside_what_it_raises(board):
    effects = Effects(Parts(drills=board))
    board.start(order)
    effects.pressure(Pressure(kind="psi", value=0.4, window_seconds=0.25))
    effects.decided(Plan(), snapshot(10.0), None)
    effects.pressure(None)
    effects.decided(Plan(), snapshot(10.1), None)
    assert (board.current().pressure, board.current().pressure_max) == (None, 0.4)


def test_memory_and_class_that_are_held_are_seen(board):
    effects = Effects(Parts(drills=board))
    board.start(lambda new: order(new, kind=Kind.MEMORY, memory_percent=4.0))
    effects.decided(Plan(), snapshot(10.0), None)
    assert effects.surround(snapshot()).drill.memory_percent == 4.0
    rung = RungStatus(name="memory", level=1, top=2, since=0.0, reason="short")
    wish = Request(policy="memory", group="kubepods/podbe", knob=Knob.MEMORY_HIGH, value=1, reason="short")
    effects.decided(Plan(rungs={"memory": rung}, settings={(wish.group, wish.knob): wish}), snapshot(11.0), None)
    assert board.current().throttled_at == 11.0
    assert board.current().message == "memory of BE pods is held"


def test_the_pressure_that_a_drill_raises_is_in_no_sample(board):
    effects = Effects(Parts(drills=board))
    board.start(order)
    effects.decided(Plan(), snapshot(10.0), None)
    measured = Pressure(kind="psi", value=0.1, window_seconds=0.25)
    for one in (measured, None):
        raised = replace(snapshot(11.0), pressure=effects.pressure(one))
        assert raised.pressure.kind == "drill"
        assert effects.for_sample(raised).pressure is one
