from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context
from agent.policy.contention import Contention, ContentionSettings, ContentionState
from agent.policy.limit import LimitState
from agent.policy.shortage import Baseline, ShortageSettings, learned, shortage
from agent.pressure import Pressure
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.nodes import ALL, CONTEXT, DRILL, NEAR, SHORT, judged, node, pod, turns

SETTINGS = ContentionSettings()


GROWN = {"present": frozenset({"kubepods/be"}), "grown": frozenset({"kubepods/be"})}
"""The pod of `node` was there in the turns before."""


def at_limit(millis, cut_at=0.0, **more):
    return ContentionState(limit=LimitState(limit_millis=millis, cut_at=cut_at), **GROWN, **more)


def decide(snapshot, state=None, settings=SETTINGS, context=CONTEXT):
    return Contention().decide(snapshot, state or ContentionState(**GROWN), settings, context)


def run(snapshots, state=None, settings=SETTINGS, context=CONTEXT):
    limits = []
    state = state or ContentionState(**GROWN)
    for snapshot in snapshots:
        _, state = decide(snapshot, state, settings, context)
        limits.append(state.limit.limit_millis)
    return limits, state


def test_a_calm_node_has_no_quota():
    desired, state = decide(node())
    assert desired.requests == ()
    assert desired.rung.level == 0
    assert not desired.rung.engaged
    assert state.limit.limit_millis is None
    assert desired.reason == "LS is calm"


def test_a_shortage_cuts_at_once_then_halves_to_the_floor_and_is_exhausted_there():
    first = node(pressure=SHORT, at=10.0, urgent=True)
    limits, _ = run([first, replace(first, at=10.05), replace(first, at=10.3), replace(first, at=10.6)])
    assert limits == [300, 300, 150, 100]
    _, state = decide(first)
    engaged = decide(replace(first, at=10.3), state)[0].rung
    assert engaged.engaged
    assert not engaged.exhausted
    _, state = run([replace(first, at=10.3), replace(first, at=10.6)], state)
    desired, _ = decide(replace(first, at=10.65), state)
    assert desired.rung.exhausted
    assert desired.rung.since == 10.6
    assert "LS waits for CPU: run-delay 3.00" in desired.reason


def test_the_first_cut_leaves_ls_the_pressed_target():
    desired, _ = decide(node(ls=1500, system=0, be=450, pressure=SHORT))
    assert desired.be_limit_millis == 100
    desired, _ = decide(node(ls=1200, system=50, be=2000, pressure=SHORT))
    assert desired.be_limit_millis == 2000 * 80 // 100 - 1250


def test_a_limit_far_above_what_be_uses_is_cut_to_half_of_its_use():
    state = at_limit(1900)
    desired, _ = decide(node(ls=300, be=600, pressure=SHORT, at=50.0), state)
    assert desired.be_limit_millis == 300


def test_pressure_on_a_node_with_idle_cpus_is_not_bes_doing():
    assert decide(node(pressure=SHORT, busy=0.5))[1].limit.limit_millis is None
    assert decide(node(pressure=SHORT, busy=None))[1].limit.limit_millis is not None


def test_pressure_without_a_be_pod_is_not_bes_doing():
    desired, state = decide(node(pressure=SHORT, pods=(pod("ls", Tier.LS),)))
    assert state.limit.limit_millis is None
    assert desired.reason == "no BE pod is here"


def test_what_ls_waits_for_itself_is_no_reason_to_cut():
    alone = Pressure(kind="run-delay", value=1.4, natural=0.5, window_seconds=0.25)
    assert decide(node(pressure=alone))[1].limit.limit_millis is None


def test_the_use_of_a_pod_that_just_came_is_no_measure():
    alone = node(ls=300, system=50, be=0, pods=(pod("ls", Tier.LS),))
    with_be = replace(node(ls=300, system=50, be=40), at=alone.at + 1)
    _, state = decide(alone, ContentionState())
    arrived = replace(with_be, urgent=True, pressure=SHORT, tiers=alone.tiers)
    assert decide(judged(arrived), state)[0].be_limit_millis == 1600 - 350, "what the tiers use is of before it came"
    _, state = decide(with_be, state)
    again = replace(with_be, urgent=True, pressure=SHORT)
    assert decide(judged(again), state)[0].be_limit_millis == 1600 - 350, "a part of a turn"
    _, state = decide(replace(with_be, at=alone.at + 2), state)
    assert decide(judged(replace(again, at=alone.at + 2.1)), state)[0].be_limit_millis == 100, (
        "half of 40, or the floor"
    )


def test_psi_has_its_own_cut():
    psi = Pressure(kind="psi", value=0.35, window_seconds=0.25)
    assert decide(node(pressure=psi))[1].limit.limit_millis is not None
    assert decide(node(pressure=replace(psi, value=0.25)))[1].limit.limit_millis is None


def test_a_drill_cuts_whatever_the_node_does_and_is_released_afterwards():
    desired, state = decide(node(pressure=DRILL, busy=0.1, ls=0, at=10.0, urgent=True))
    assert desired.be_limit_millis == 300
    assert "drill" in desired.reason
    limits, _ = run(turns(node(), 30, start=11.0), state)
    assert limits[-1] is None


def test_a_drill_on_a_node_that_never_shows_pressure_ends_too():
    blind = Context(capabilities=replace(ALL, run_delay=False, psi=False))
    _, state = decide(node(pressure=DRILL, at=10.0), context=blind)
    limits, _ = run(turns(node(pressure=None), 30, start=11.0), state, context=blind)
    assert limits[-1] is None


def test_a_signal_that_went_away_holds():
    _, state = run([node(at=9.0), node(pressure=SHORT, at=10.0)])
    held = state.limit.limit_millis
    limits, _ = run(turns(node(pressure=None), 50, start=11.0), state)
    assert limits == [held] * 50


def test_ls_use_that_is_not_known_holds_and_cuts_to_the_floor_when_ls_is_short():
    limits, _ = run(turns(node(ls=None), 10), at_limit(500))
    assert limits == [500] * 10
    assert decide(node(ls=None, pressure=SHORT))[0].be_limit_millis == SETTINGS.be_min_millis


def test_release_is_slow_and_ends_without_a_limit():
    limits, state = run(turns(node(), 26), at_limit(100))
    assert limits[:8] == [100, 100, 300, 300, 700, 700, 1500, 1500]
    assert limits[8:] == [None] * 18
    assert state.limit.reason == ""


def test_after_a_new_cut_release_begins_with_one_step():
    _, state = run(turns(node(), 4), at_limit(300))
    assert state.limit.releases == 1
    cut, state = decide(node(at=105.0, pressure=SHORT), state)
    limits, _ = run(turns(node(), 7, start=106.0), state)
    assert [limit - cut.be_limit_millis for limit in limits] == [0, 0, 200, 200, 600, 600, 1400]


def test_a_late_turn_does_not_make_release_faster():
    limits, _ = run(turns(node(), 10, seconds=30.0), at_limit(100))
    assert limits == [100, 300, 700, 1500, *[None] * 6]


def test_the_hold_band_moves_nothing():
    for snapshot in (node(pressure=NEAR), node(pressure=SHORT, busy=0.5)):
        limits, _ = run(turns(snapshot, 10), at_limit(300))
        assert limits == [300] * 10


def test_a_beat_never_releases_and_a_short_beat_ends_the_calm():
    limits, state = run(turns(node(urgent=True), 100, seconds=0.05), at_limit(300))
    assert limits == [300] * 100
    _, state = run([node(at=200.0), node(at=201.0)], at_limit(100))
    _, state = decide(node(at=201.5, urgent=True, pressure=SHORT), state)
    limits, _ = run([node(at=202.0), node(at=203.0), node(at=204.0)], state)
    assert limits == [100, 100, 300]


def test_a_pod_that_comes_while_be_is_limited_gets_its_share_on_arrival():
    _, state = decide(node(pressure=SHORT))
    more = node(pressure=SHORT, urgent=True, at=100.1, pods=(pod("ls", Tier.LS), pod("be"), pod("new", cpu=None)))
    desired, _ = decide(more, state)
    assert {request.group for request in desired.requests} == {"kubepods/be", "kubepods/new"}
    assert sum(request.value for request in desired.requests) <= desired.be_limit_millis
    assert Contention.prompt


def test_a_throttled_pod_wants_more_than_it_used_and_small_demands_are_met():
    pods = (pod("ls", Tier.LS), pod("small", cpu=30), pod("big", cpu=50, throttled_ratio=0.9))
    desired, _ = decide(node(pods=pods, pressure=SHORT))
    parts = {request.group: request.value for request in desired.requests}
    assert parts["kubepods/big"] > parts["kubepods/small"] >= 30


def test_without_the_quota_knob_nothing_is_asked_for_and_there_is_no_rung():
    context = Context(capabilities=Capabilities(mode="v1", cpu_version=1, writable=frozenset({Knob.IDLE})))
    desired, _ = decide(node(pressure=SHORT), context=context)
    assert (desired.requests, desired.rung, desired.be_limit_millis) == ((), None, None)
    assert "cannot be set" in desired.reason


def test_koordinator_2723_row_12_no_limit_is_no_number():
    # With -1 read as a number, a step from "unlimited" was a tiny quota, or on 104 CPUs "no change".
    big = node(ls=60_000, system=500, be=40_000, pressure=SHORT, capacity=104_000)
    assert decide(big)[0].be_limit_millis == 20_000


def test_crane_min_ratio_and_volcano_stuck_below_10m():
    # crane: minCPURatio without /100 made the floor 100 times too high; volcano: +10 % of less than 10m is nothing.
    limits, _ = run(turns(node(), 26), at_limit(10, 0.0), ContentionSettings(be_min_millis=10, be_pod_min_millis=10))
    assert limits[2] == 210
    assert limits[-1] is None


def test_koordinator_489_no_quota_for_anything_but_be():
    pods = (pod("ls", Tier.LS), pod("sys", Tier.SYSTEM), pod("be"))
    desired, _ = decide(node(pods=pods, pressure=SHORT))
    assert {request.group for request in desired.requests} == {"kubepods/be"}


# --- the judgement ---


def readings(values, uid="ls", start=0.0, step=10.0, cpu=1000, settings=None):
    baselines = {}
    for number, value in enumerate(values):
        snapshot = node(at=start + step * number, pods=(pod(uid, Tier.LS, cpu=cpu, cpi=value),))
        baselines = learned(baselines, snapshot, settings or ShortageSettings())
    return baselines, start + step * (len(values) - 1)


USUAL = [1.0, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.0, 1.02, 0.98, 1.01, 0.99]


@pytest.mark.parametrize(("high", "short"), [(2, False), (3, True)])
def test_cpi_deviates_only_after_several_readings(high, short):
    baselines, at = readings([*USUAL, *[1.6 + 0.01 * number for number in range(high)]])
    verdict = shortage(node(at=at, pods=(pod("ls", Tier.LS),)), ShortageSettings(), baselines)
    assert verdict.short is short
    assert not verdict.calm
    if short:
        assert "d/ls needs 1.62 cycles an instruction, usually 1.01, 3 readings in a row" in verdict.reason


def test_cpi_is_judged_against_the_pods_own_past_only():
    # Koordinator 1470: a high CPI is no sign by itself, some programs are like that.
    baselines, at = readings([value * 4 for value in USUAL])
    verdict = shortage(node(at=at, pods=(pod("ls", Tier.LS),)), ShortageSettings(), baselines)
    assert verdict.calm


def test_a_reading_that_still_stands_is_counted_once():
    baselines, at = readings([*USUAL, 1.6, 1.6, 1.6, 1.6])
    assert not shortage(node(at=at, pods=(pod("ls", Tier.LS),)), ShortageSettings(), baselines).short


def test_an_old_cpi_says_nothing_and_a_pod_that_is_gone_is_forgotten():
    baselines, at = readings([*USUAL, 1.6, 1.61, 1.62])
    late = node(at=at + 121.0, pods=(pod("ls", Tier.LS),))
    assert shortage(late, ShortageSettings(), baselines).calm
    assert learned(baselines, node(pods=(pod("other", Tier.LS),)), ShortageSettings()) == {}


def test_koordinator_1482_noise_of_a_pod_that_hardly_runs_is_left_out():
    baselines, _ = readings([*USUAL, 9.0, 8.0, 7.0], cpu=100)
    assert baselines == {}


def test_a_pod_with_a_wide_spread_needs_a_wider_deviation():
    wild = [1.0, 3.0, 1.2, 2.8, 0.9, 3.1, 1.1, 2.9, 1.0, 3.0, 1.2, 2.8]
    baselines, at = readings([*wild, 3.3, 3.31, 3.32])
    assert not shortage(node(at=at, pods=(pod("ls", Tier.LS),)), ShortageSettings(), baselines).short


def test_a_program_that_changed_for_good_becomes_the_usual():
    settings = ShortageSettings(cpi_window_readings=20)
    baselines, at = readings([*USUAL, *[2.0 + 0.001 * number for number in range(20)]], settings=settings)
    assert shortage(node(at=at, pods=(pod("ls", Tier.LS),)), settings, baselines).calm


def test_a_cpi_deviation_cuts_also_without_a_pressure_signal_and_with_idle_cpus():
    baselines, at = readings([*USUAL, 1.6, 1.61, 1.62])
    snapshot = judged(node(at=at, pressure=None, busy=0.3), baselines=baselines)
    assert decide(snapshot)[0].be_limit_millis is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_cpi_that_is_no_number_is_no_reading(value):
    baselines, _ = readings([value, value])
    assert baselines == {}


def test_a_pressure_that_is_no_number_is_not_known():
    odd = Pressure(kind="run-delay", value=float("nan"), window_seconds=0.25)
    verdict = shortage(node(pressure=odd), ShortageSettings())
    assert verdict.short is None
    assert not verdict.calm


pressures = st.one_of(
    st.none(),
    st.builds(
        Pressure,
        kind=st.sampled_from(["run-delay", "psi", "no-ls", "drill"]),
        value=st.floats(0, 10),
        natural=st.floats(0, 3),
        window_seconds=st.just(0.25),
    ),
)
baseline_maps = st.dictionaries(
    st.sampled_from(["ls", "x"]),
    st.builds(
        Baseline,
        readings=st.just((1.0, 2.0)),
        at=st.floats(0, 100),
        above=st.integers(0, 5),
        usual=st.just(1.0),
        bar=st.just(1.5),
    ),
)


@given(pressure=pressures, busy=st.one_of(st.none(), st.floats(0, 1)), baselines=baseline_maps)
def test_never_short_and_calm_at_once_and_never_calm_without_data(pressure, busy, baselines):
    verdict = shortage(node(pressure=pressure, busy=busy), ShortageSettings(), baselines)
    assert not (verdict.short and verdict.calm)
    if verdict.calm:
        assert pressure is not None
    if pressure is None:
        assert verdict.short is not False
    assert verdict.reason


@given(
    pressure=pressures,
    limit=st.one_of(st.none(), st.integers(-5, 4000)),
    cut_at=st.one_of(st.none(), st.floats(90, 100)),
    ls=st.one_of(st.none(), st.integers(0, 3000)),
    be=st.one_of(st.none(), st.integers(0, 3000)),
    busy=st.one_of(st.none(), st.floats(0, 1)),
    urgent=st.booleans(),
    count=st.integers(0, 8),
)
def test_one_decision_stays_in_bounds(pressure, limit, cut_at, ls, be, busy, urgent, count):
    pods = tuple(pod(f"p{number}", cpu=None if number % 3 == 0 else 100) for number in range(count))
    snapshot = node(ls=ls, be=be, pressure=pressure, busy=busy, urgent=urgent, pods=pods)
    state = ContentionState() if limit is None else at_limit(limit, cut_at)
    desired, after = decide(snapshot, state)
    floor = max(SETTINGS.be_min_millis, count * SETTINGS.be_pod_min_millis)
    new = after.limit.limit_millis
    old = 2000 if limit is None else max(floor, min(2000, limit))
    if new is not None:
        assert floor <= new <= 2000
        assert sum(request.value for request in desired.requests) <= new
        assert desired.rung.engaged
        assert desired.rung.exhausted == (new == floor)
    if urgent or snapshot.shortage.short or not snapshot.shortage.calm:
        seen_never = snapshot.shortage.short is None
        assert (2000 if new is None else new) <= old or (seen_never and not urgent)


@given(limit=st.integers(100, 2000))
def test_a_quiet_node_always_comes_back_to_no_limit(limit):
    limits, _ = run(turns(node(), 30), at_limit(limit))
    assert limits[-1] is None
    assert [x for x in limits if x is not None] == sorted(x for x in limits if x is not None)


@given(more=st.integers(0, 2000), ls=st.integers(0, 1500), limit=st.one_of(st.none(), st.integers(100, 2000)))
def test_more_ls_use_never_gives_be_more(more, ls, limit):
    state = ContentionState() if limit is None else at_limit(limit)
    light, heavy = (decide(node(ls=use, pressure=SHORT), state)[0].be_limit_millis for use in (ls, ls + more))
    assert heavy <= light


def test_the_node_capacity_not_known_leaves_the_floor():
    snapshot = judged(replace(node(pressure=SHORT), capacity=Usage()))
    assert decide(snapshot)[0].be_limit_millis == SETTINGS.be_min_millis
