from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Knob
from agent.counters import MemoryReading
from agent.eviction import Attempt, EvictorView, Outcome, Way
from agent.policy.base import Context
from agent.policy.memory import MIB, Memory, MemorySettings, MemoryState
from agent.reclaim import ReclaimView
from slacktide.tier import Tier
from tests.agent.nodes import ALL, CONTEXT, GIB, node, pod, turns

SETTINGS = MemorySettings()
"""high below 15 %, reclaim below 10 %; the node has 10 GiB."""


def decide(snapshot, state=None, settings=SETTINGS, context=CONTEXT):
    return Memory().decide(snapshot, state or MemoryState(), settings, context)


def at(percent, now=100.0, pods=None, **more):
    pods = pods or (pod("ls", Tier.LS, memory=GIB), pod("be", memory=2 * GIB), pod("small", memory=100 * MIB))
    return node(at=now, memory_available_bytes=int(10 * GIB * percent / 100), pods=pods, **more)


def highs(desired):
    return {request.group.rpartition("/")[2]: request.value for request in desired.requests}


def levels(snapshots, state=None, settings=SETTINGS):
    found = []
    state = state or MemoryState()
    for snapshot in snapshots:
        desired, state = decide(snapshot, state, settings)
        found.append(desired.rung.level)
    return found, state


def test_enough_memory_asks_for_nothing():
    desired, state = decide(at(50))
    assert (desired.requests, desired.reclaims, desired.rung.level) == ((), (), 0)
    assert state == MemoryState()


def test_less_than_enough_stops_the_growth_of_be_with_headroom():
    desired, _ = decide(at(12))
    assert highs(desired) == {"be": 2253 * MIB, "small": 164 * MIB}
    assert {request.knob for request in desired.requests} == {Knob.MEMORY_HIGH}
    assert desired.reclaims == ()
    assert (desired.rung.level, desired.rung.exhausted) == (1, False)
    assert "12.0 % of memory is available" in desired.reason


def test_the_mark_does_not_run_ahead_of_a_pod_that_grows_and_follows_one_that_shrinks():
    _, state = decide(at(12))
    grown = (pod("be", memory=3 * GIB),)
    desired, state = decide(at(12, 101.0, grown), state)
    assert highs(desired) == {"be": 2253 * MIB}
    desired, state = decide(at(12, 102.0, (pod("be", memory=GIB),)), state)
    assert highs(desired) == {"be": 1127 * MIB}
    desired, _ = decide(at(12, 103.0, (pod("be", memory=GIB - 10 * MIB),)), state)
    assert highs(desired) == {"be": 1127 * MIB}, "no write for every byte"


def test_a_pod_that_comes_meanwhile_has_its_own_mark_and_one_that_was_never_measured_none():
    _, state = decide(at(12))
    pods = (pod("be", memory=2 * GIB), pod("new", memory=10 * MIB), pod("odd", memory=None))
    desired, _ = decide(at(12, 101.0, pods), state)
    assert highs(desired) == {"be": 2253 * MIB, "new": 74 * MIB}
    desired, _ = decide(at(12, 101.0, (pod("be", memory=None),)), state)
    assert highs(desired) == {"be": 2253 * MIB}, "a reading that is missing lets go of nothing"


def test_reclaim_is_bounded_divided_and_asked_for_once_a_period():
    desired, state = decide(at(8))
    assert desired.rung.exhausted
    parts = {ask.group.rpartition("/")[2]: ask.bytes for ask in desired.reclaims}
    assert sum(parts.values()) <= SETTINGS.reclaim_step_bytes
    assert parts["be"] <= 2 * GIB // 10
    assert parts["small"] <= 10 * MIB
    assert all(ask.at == 100.0 for ask in desired.reclaims)
    again, state = decide(at(8, 101.0), state)
    assert again.reclaims == desired.reclaims, "the same act"
    later, _ = decide(at(8, 105.0), state)
    assert all(ask.at == 105.0 for ask in later.reclaims)


def test_no_new_ask_while_one_is_in_the_kernel():
    _, state = decide(at(8))
    desired, _ = decide(at(8, 200.0, reclaimer=ReclaimView(busy_since=101.0)), state)
    assert all(ask.at == 100.0 for ask in desired.reclaims)


def test_no_more_is_asked_back_than_is_missing():
    desired, _ = decide(at(9.99), settings=MemorySettings(hold_percent=0.1))
    assert sum(ask.bytes for ask in desired.reclaims) <= 10 * GIB * 0.0012
    assert desired.reclaims


def test_it_opens_a_level_at_a_time_with_a_hold_band():
    found, state = levels([at(8)])
    assert found == [2]
    found, state = levels(turns(at(14), 60, start=101.0), state)
    assert set(found) == {2}, "14 % is not 10 % and 5 % more"
    found, state = levels(turns(at(16), 60, start=200.0), state)
    assert found[:11] == [2] * 10 + [1]
    assert set(found[11:]) == {1}, "16 % is not 15 % and 5 % more"
    found, state = levels(turns(at(25), 60, start=300.0), state)
    assert found[:11] == [1] * 10 + [0]
    assert state.highs == {}


def test_what_is_not_known_lets_go_of_nothing():
    _, state = levels([at(8)])
    found, state = levels(turns(node(memory_available_bytes=None), 100, start=101.0), state)
    assert set(found) == {2}


def test_psutil_1915_available_memory_of_zero_is_not_known():
    assert levels([at(0)])[0] == [0]


def pod_with_reading(*args, reading=None, memory=None, **more):
    made = pod(*args, memory=memory, **more)
    return replace(made, memory=reading)


@pytest.mark.parametrize(
    ("psi", "percent", "limit", "level"),
    [(0.3, 25, None, 1), (0.05, 25, None, 0), (None, 25, None, 0), (0.3, 60, None, 0), (0.3, 25, GIB, 0)],
)
def test_ls_that_waits_for_memory_engages_it_unless_it_waits_for_itself(psi, percent, limit, level):
    reading = MemoryReading(working_set_bytes=GIB, limit_bytes=limit)
    ls = pod_with_reading("ls", Tier.LS, memory=GIB, psi_memory=psi, reading=reading)
    desired, _ = decide(at(percent, pods=(ls, pod("be", memory=GIB))))
    assert desired.rung.level == level


def test_ls_that_still_waits_keeps_it_closed():
    _, state = levels([at(12)])
    ls = pod("ls", Tier.LS, memory=GIB, psi_memory=0.08)
    found, _ = levels(turns(at(25, pods=(ls, pod("be", memory=GIB))), 60, start=101.0), state)
    assert set(found) == {1}


def test_pods_that_end_or_were_sent_away_are_let_go_so_that_they_can_exit():
    pods = (
        pod("stays", memory=GIB),
        pod("ends", memory=GIB, identity={"terminating": True}),
        pod("sent", memory=GIB),
        pod("killed", memory=GIB),
        pod("tried", memory=GIB),
    )
    view = EvictorView(
        attempts=(
            Attempt(uid="sent", way=Way.EVICT, outcome=Outcome.SENT, at=99.0),
            Attempt(uid="killed", way=Way.KILL, outcome=Outcome.SENT, at=99.0),
            Attempt(uid="tried", way=Way.EVICT, outcome=Outcome.BLOCKED, at=99.0),
        )
    )
    _, state = decide(at(8, pods=pods))
    desired, _ = decide(at(8, 101.0, pods, evictor=view), state)
    assert set(highs(desired)) == {"stays", "tried"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"memory_version": 1}, "cgroup v1 has no memory.high"),
        ({"memory_version": None}, "cannot be set"),
        ({"kernel": (5, 8), "reclaim": False}, "not safe below kernel 5.9"),
        ({"kernel": None, "reclaim": False}, "not safe below kernel 5.9"),
        ({"writable": frozenset(), "reclaim": False}, "cannot be set"),
    ],
)
def test_kep_2570_where_it_cannot_or_must_not_be_there_is_no_rung_and_a_reason(changes, why):
    desired, _ = decide(at(1), context=Context(capabilities=replace(ALL, **changes)))
    assert (desired.requests, desired.reclaims, desired.rung) == ((), (), None)
    assert why in desired.reason


def test_without_memory_reclaim_the_first_level_is_the_last():
    desired, _ = decide(at(5), context=Context(capabilities=replace(ALL, reclaim=False)))
    assert (desired.rung.level, desired.rung.top, desired.rung.exhausted) == (1, 1, True)
    assert desired.reclaims == ()


def test_v_5333_page_cache_is_not_counted_as_used():
    cached = pod_with_reading(
        "be", memory=100 * MIB, reading=MemoryReading(working_set_bytes=100 * MIB, usage_bytes=GIB)
    )
    desired, _ = decide(at(12, pods=(cached,)))
    assert highs(desired) == {"be": 164 * MIB}


def test_settings_that_contradict_are_refused():
    with pytest.raises(ValueError, match=r"reclaim_percent 20\S* is above high_percent 15"):
        MemorySettings(reclaim_percent=20.0)


sizes = st.one_of(st.none(), st.integers(0, 4 * GIB))
looks = st.lists(
    st.tuples(
        st.floats(0.5, 20), st.one_of(st.none(), st.floats(0, 100)), sizes, st.one_of(st.none(), st.floats(0, 1))
    ),
    min_size=1,
    max_size=30,
)


@given(looks=looks)
def test_invariants_on_any_trace(looks):
    state, now, level, changed = MemoryState(), 0.0, 0, -1e9
    marks = {}
    for seconds, percent, size, psi in looks:
        now += seconds
        pods = (pod("ls", Tier.LS, memory=GIB, psi_memory=psi), pod("be", memory=size))
        available = None if percent is None else int(10 * GIB * percent / 100)
        desired, state = decide(node(at=now, memory_available_bytes=available, pods=pods), state)
        after = desired.rung.level
        assert {request.group for request in desired.requests} <= {"kubepods/be"}
        assert all(request.value >= SETTINGS.be_pod_min_bytes for request in desired.requests)
        assert sum(ask.bytes for ask in desired.reclaims) <= SETTINGS.reclaim_step_bytes
        if after < level:
            assert percent is not None
            assert percent >= 15
            assert after == level - 1
            assert now - changed >= SETTINGS.quiet_seconds
        if available and percent < 9.9:
            assert after == 2
        found = highs(desired)
        if marks and found:
            assert found["be"] <= marks["be"], "while it is engaged a mark only goes down"
        marks = found if after else {}
        if after != level:
            changed = now
        level = after
