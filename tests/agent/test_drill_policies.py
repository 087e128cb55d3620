"""What policies make of a drill: they answer what it reports, and what is really there stays what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.eviction import DrillOrder, EvictorView, Way
from agent.policy.close import Close, CloseSettings, CloseState
from agent.policy.gaps import available_bytes, measured_bytes
from agent.policy.memory import Memory, MemorySettings, MemoryState
from tests.agent import test_cache_bandwidth as bandwidth
from tests.agent import test_evict as evict
from tests.agent import test_kill as kill
from tests.agent.nodes import CONTEXT, GIB, node, pod

SHORT = DrillOrder(id="d1", victims_left=1, presses_ls=False, memory_percent=4.0)
"""Memory is reported as short."""

LOST = DrillOrder(id="d1", presses_ls=False, takes_bandwidth=True)
"""LS is reported to lose cache and bandwidth."""


@given(st.none() | st.integers(0, 10 * GIB), st.floats(0, 100))
def test_a_drill_only_ever_makes_memory_less(measured, percent):
    snapshot = node(memory_available_bytes=measured, drill=replace(SHORT, memory_percent=percent))
    counts = available_bytes(snapshot)
    assert measured_bytes(snapshot) == (measured or None)
    assert (counts is None) == (not measured)
    assert counts is None or counts <= min(measured, int(10 * GIB * percent / 100))


def test_the_memory_rung_holds_be_while_a_drill_reports_memory_as_short_and_opens_by_what_is_there():
    pods = (pod("be", memory=2 * GIB),)
    policy, settings, state = Memory(), MemorySettings(), MemoryState()
    desired, state = policy.decide(node(pods=pods, drill=SHORT), state, settings, CONTEXT)
    assert (desired.rung.level, len(desired.requests), len(desired.reclaims)) == (2, 1, 1)
    assert "4.0 % of memory is available" in desired.reason
    for at in range(30):
        desired, state = policy.decide(node(pods=pods, at=101.0 + at), state, settings, CONTEXT)
    assert (desired.rung.level, desired.requests) == (0, ())


def test_a_node_that_is_reported_to_be_short_of_memory_closes():
    desired, _ = Close().decide(node(drill=SHORT), CloseState(), CloseSettings(), CONTEXT)
    assert "4.0 % of memory is available, closed below 10 %" in desired.closed


def test_nobody_is_killed_for_a_drill_but_for_what_is_there_during_one():
    order = replace(SHORT, memory_percent=1.0)
    lower = [replace(order, memory_percent=1.9 - 0.1 * index) for index in range(8)]
    calm = [replace(kill.node(kill.PODS), drill=one, node_psi_memory_full=0.9) for one in lower]
    assert not any(kill.killed(kill.run(calm)[0]))
    real = [replace(look, drill=order) for look in kill.falling(6, begin=1.9)]
    assert kill.killed(kill.run(real)[0])[-1] == ["big"]


def test_victims_of_memory_that_is_reported_as_short_are_the_drills():
    pods = [evict.pod("a", memory=9 * GIB), evict.pod("b", memory=9 * GIB, created=1.0)]
    desired, _ = evict.decide(evict.node(pods, drill=SHORT))
    assert [(one.name, one.drill, one.way) for one in desired.victims] == [("a", "d1", Way.EVICT)]
    used_up, _ = evict.decide(evict.node(pods, drill=replace(SHORT, victims_left=0)))
    assert used_up.victims == ()
    assert "drill d1 is used up" in used_up.reason


def test_memory_that_is_really_short_is_in_earnest_whatever_the_drill_may_take():
    pods = [evict.pod("a", memory=5 * GIB)]
    desired, _ = evict.decide(evict.node(pods, available=4 * GIB, drill=replace(SHORT, victims_left=0)))
    assert [(one.name, one.drill) for one in desired.victims] == [("a", "")]


def test_a_drill_on_memory_does_not_pay_for_ls_pressure():
    desired, _ = evict.decide(evict.pressed([evict.pod("a")], drill=replace(SHORT, memory_percent=60.0)))
    assert [(one.name, one.drill) for one in desired.victims] == [("a", "")]


@pytest.mark.parametrize("shortage", [bandwidth.CALM, bandwidth.SHORT])
def test_a_drill_on_bandwidth_steps_be_down_to_the_floor_and_calm_gives_it_back(shortage):
    run = bandwidth.Run()
    at = bandwidth.seen(run)
    for number in range(4):
        desired = run(bandwidth.look(at + 4 * number, shortage, drill=LOST))
    assert desired.rung.exhausted
    assert "a drill says that LS loses cache and bandwidth" in desired.rung.reason
    assert desired.schemata is not None
    for number in range(80):
        desired = run(bandwidth.look(at + 16 + 2 * number))
    assert (desired.rung.level, desired.schemata) == (0, None)


def test_a_drill_on_bandwidth_steps_nobody_down_by_a_reading_that_is_old_or_where_no_be_is():
    run = bandwidth.Run()
    at = bandwidth.seen(run)
    old = bandwidth.reading(at - 60)
    assert run(bandwidth.look(at, drill=LOST, rdt=old)).rung.level == 0
    assert run(bandwidth.look(at + 1, drill=LOST, pods=())).rung.level == 0


@pytest.mark.parametrize(("presses", "frozen"), [(True, False), (False, True)])
def test_a_drill_that_does_not_press_ls_keeps_nobody_from_being_frozen_in_earnest(presses, frozen):
    view = EvictorView(api_away_seconds=60.0)
    look = kill.node(kill.PODS, shortage=kill.SHORT, evictor=view, drill=DrillOrder(id="d1", presses_ls=presses))
    answers, _ = kill.run([look] * 15)
    assert any(answer.requests for answer in answers) is frozen
