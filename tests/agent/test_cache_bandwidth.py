"""Policy cache and bandwidth: when BE's share of cache and memory falls, when it comes back, and what never happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.policy.cache_bandwidth import CacheBandwidth, CacheBandwidthSettings, CacheBandwidthState, Usual
from agent.policy.rung import RungState
from agent.pressure import Shortage
from agent.resctrl import BandwidthControl, BandwidthUnit, CacheControl, RdtGroupReading, RdtInfo, RdtReading, Schemata
from agent.schemata import open_values, problems
from agent.topology import flat
from slacktide.tier import Tier
from tests.agent.nodes import CONTEXT, GIB, machine, node, pod

SETTINGS = CacheBandwidthSettings()
MONITORS = frozenset({"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"})
L3 = CacheControl(
    name="L3", full_mask=0xFFFFF, min_bits=2, sparse=False, shareable=0xC0000, closids=16, domains=frozenset({0, 1})
)
PERCENT = BandwidthControl(
    unit=BandwidthUnit.PERCENT,
    minimum=10,
    maximum=100,
    granularity=10,
    closids=8,
    per_thread=True,
    domains=frozenset({0, 1}),
)
INFO = RdtInfo(caches=(L3,), bandwidth=PERCENT, monitors=MONITORS)
AMD = replace(
    INFO, bandwidth=replace(PERCENT, unit=BandwidthUnit.EIGHTH_GIGABYTES, minimum=0, maximum=2048, granularity=1)
)
SHORT = Shortage(short=True, calm=False, reason="LS waits")
NEAR = Shortage(short=False, calm=False, reason="LS is near the cut")
CALM = Shortage(short=False, calm=True, reason="LS is calm")
UNKNOWN = Shortage(short=None, calm=False, reason="no LS pressure signal")
DISTURBED = Shortage(short=True, calm=False, reason="cycles an instruction are high", disturbed=True)


def group(rate, at, domains=(0, 1)):
    return RdtGroupReading(at=at, rates=dict.fromkeys(domains, rate))


def reading(at, *, ls=5.0, be=5.0, info=INFO, held=None, ls_cache=8 * GIB, be_cache=1 * GIB, **more):
    """Rates in GiB/s of each of two domains; None is unknown."""
    rates = [None if rate is None else rate * GIB for rate in (ls, be)]
    facts = {
        "info": info,
        "at": at,
        "ls": group(rates[0], at),
        "be": group(rates[1], at),
        "ls_bandwidth_rate": None if ls is None else 2 * ls * GIB,
        "be_bandwidth_rate": None if be is None else 2 * be * GIB,
        "ls_occupancy_bytes": ls_cache,
        "be_occupancy_bytes": be_cache,
        "held": held or open_values(info),
    }
    return RdtReading(**{**facts, **more})


def look(at, shortage=CALM, rdt=None, **more):
    return replace(node(at=at, rdt=rdt or reading(at), **more), shortage=shortage)


class Run:
    """Decisions one after the other."""

    def __init__(self, settings=SETTINGS):
        self.policy = CacheBandwidth()
        self.settings = settings
        self.state = self.policy.start(CONTEXT)
        self.levels = []

    def __call__(self, snapshot):
        desired, self.state = self.policy.decide(snapshot, self.state, self.settings, CONTEXT)
        self.levels.append(self.state.rung.level)
        return desired


def seen(run, count=3, at=100.0, **more):
    """Some calm looks, so that the memory's highest traffic is known."""
    for number in range(count):
        run(look(at + 2 * number, rdt=reading(at + 2 * number, **more)))
    return at + 2 * count


def test_calm_leaves_be_wide_open():
    run = Run()
    seen(run)
    desired = run(look(110))
    assert desired.schemata is None
    assert not desired.rung.engaged
    assert "all of the cache" in desired.reason


def test_short_with_busy_memory_cuts_half_at_once_then_a_level_each_settle_time_to_the_floor():
    run = Run()
    at = seen(run)
    desired = run(look(at, SHORT))
    assert desired.rung.level == 2
    assert desired.schemata == Schemata(values={"L3": {0: 0x7FF, 1: 0x7FF}, "MB": {0: 60, 1: 60}})
    assert "LS waits" in desired.reason
    assert "MiB/s" in desired.reason
    run(look(at + 1, SHORT))
    assert run.levels[-1] == 2
    run(look(at + 4, SHORT))
    assert run.levels[-1] == 3
    desired = run(look(at + 8, SHORT))
    assert desired.rung.exhausted
    assert desired.schemata == Schemata(values={"L3": {0: 0x3, 1: 0x3}, "MB": {0: 20, 1: 20}})
    run(look(at + 12, SHORT))
    assert run.levels[-1] == 4


@pytest.mark.parametrize(
    "quiet",
    [
        {"ls": 0.5, "be": 0.5},
        {"ls": 5.0, "be": 0.2},
    ],
)
def test_short_for_other_reasons_is_held_and_cuts_nothing(quiet):
    run = Run()
    at = seen(run)
    desired = run(look(at, SHORT, reading(at, **quiet)))
    assert desired.rung.level == 0
    assert "not of memory" in desired.reason


def test_a_domain_alone_can_be_busy():
    run = Run()
    at = seen(run)
    rdt = replace(
        reading(at),
        ls=RdtGroupReading(at=at, rates={0: 0.1 * GIB, 1: 4.0 * GIB}),
        be=RdtGroupReading(at=at, rates={0: 0.1 * GIB, 1: 5.0 * GIB}),
    )
    assert "domain 1" in run(look(at, SHORT, rdt)).reason
    assert run.levels[-1] == 2


def test_high_cycles_per_instruction_cut_also_where_the_bus_is_not_busy():
    run = Run()
    at = seen(run)
    run(look(at, DISTURBED, reading(at, ls=0.2, be=0.2)))
    assert run.levels[-1] == 2
    run = Run()
    at = seen(run)
    run(look(at, DISTURBED, reading(at, ls=2.0, be=0.1)))
    assert run.levels[-1] == 0


def test_ls_that_loses_cache_and_fetches_more_cuts_be_after_some_looks_in_a_row():
    run = Run()
    at = seen(run, ls=2.0)
    for number in range(3):
        moment = at + 2 * number
        run(look(moment, NEAR, reading(moment, ls=4.0, ls_cache=2 * GIB, be_cache=7 * GIB)))
    assert run.levels[-3:] == [0, 0, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"ls": 1.0, "ls_cache": 2 * GIB, "be_cache": 7 * GIB},
        {"ls": 4.0, "ls_cache": 2 * GIB, "be_cache": 1 * GIB},
        {"ls": 4.0, "ls_cache": 7 * GIB, "be_cache": 7 * GIB},
    ],
)
def test_ls_that_rests_or_loses_to_others_is_no_reason(other):
    run = Run()
    at = seen(run, ls=2.0)
    for number in range(5):
        run(look(at + 2 * number, NEAR, reading(at + 2 * number, **other)))
    assert set(run.levels) == {0}


def test_one_level_back_after_each_quiet_time():
    run = Run()
    at = seen(run)
    run(look(at, SHORT))
    for second in range(1, 100):
        run(look(at + second))
    changes = [(at, one, other) for at, (one, other) in enumerate(pairwise(run.levels[4:])) if one != other]
    assert [(one, other) for _, one, other in changes] == [(2, 1), (1, 0)]
    assert changes[1][0] - changes[0][0] >= SETTINGS.quiet_seconds


def test_short_again_after_a_release_goes_up_at_once():
    run = Run()
    at = seen(run)
    run(look(at, SHORT))
    second = 0
    while run.levels[-1] == 2:
        second += 1
        run(look(at + second))
    run(look(at + second + 1, SHORT))
    assert run.levels[-1] == 2


def test_unknown_shortage_old_readings_and_unknown_traffic_hold():
    for snapshot in (
        look(131, UNKNOWN),
        replace(look(131), shortage=None),
        look(131, CALM, reading(100)),
        look(131, CALM, replace(reading(131), at=None)),
        look(131, SHORT, reading(131, be=None)),
    ):
        for level in (0, 2):
            run = Run()
            seen(run)
            run.state = replace(run.state, rung=RungState(level=level, since=0.0, quiet_since=0.0))
            desired = run(snapshot)
            assert run.levels[-1] == level
            assert "held" in desired.reason


def test_without_a_reading_what_was_wanted_stays_wanted():
    run = Run()
    at = seen(run)
    wanted = run(look(at, SHORT)).schemata
    assert wanted is not None
    gone = RdtReading(info=RdtInfo(), problem="resctrl is not mounted", at=at + 1)
    for snapshot in (look(at + 1, CALM, gone), replace(look(at + 1), rdt=None)):
        desired = run(snapshot)
        assert desired.schemata == wanted
        assert desired.rung is None
    assert "not mounted" in run(look(at + 1, CALM, gone)).reason


def test_no_class_for_be_is_no_rung_and_told():
    rdt = replace(reading(100), held=None, problem="no class for BE: all ids are in use")
    desired = Run()(look(100, SHORT, rdt))
    assert desired.rung is None
    assert "all ids are in use" in desired.reason


def test_no_be_pod_lets_go_slowly():
    run = Run()
    at = seen(run)
    run(look(at, SHORT))
    for second in range(1, 100):
        run(look(at + second, CALM, pods=(pod("ls", Tier.LS),)))
    assert run.levels[-1] == 0


def test_a_node_that_measures_no_traffic_is_taken_for_busy():
    blind = replace(INFO, monitors=frozenset())
    rdt = RdtReading(info=blind, at=100, held=open_values(blind))
    desired = Run()(look(100, SHORT, rdt))
    assert desired.rung.level == 2
    assert "taken for busy" in desired.reason


def test_absolute_limits_wait_for_a_measure_and_one_wrong_count_is_none():
    run = Run()
    desired = run(look(100, SHORT, reading(100, info=AMD)))
    assert desired.schemata.values["MB"] == {}
    assert desired.schemata.values["L3"] == {0: 0x7FF, 1: 0x7FF}
    assert "not measured yet" in desired.reason
    run = Run()
    at = seen(run, info=AMD)
    run(look(at, CALM, reading(at, info=AMD, be=5000.0)))
    at += 2
    desired = run(look(at, SHORT, reading(at, info=AMD)))
    assert desired.schemata.values["MB"] == {0: 48, 1: 48}


def test_bandwidth_is_left_alone_where_it_would_slow_the_thread_beside():
    info = replace(INFO, bandwidth=replace(PERCENT, per_thread=False))
    for topology, limited in ((machine(threads=2), False), (None, False), (flat(2), True)):
        run = Run()
        at = seen(run, info=info)
        desired = run(look(at, SHORT, reading(at, info=info), topology=topology))
        assert ("MB" in desired.schemata.values) is limited
        assert ("hyperthread" in desired.reason) is not limited


def test_settings_switch_parts_off_and_nothing_left_is_no_rung():
    run = Run(CacheBandwidthSettings(cache=False))
    at = seen(run)
    assert set(run(look(at, SHORT)).schemata.values) == {"MB"}
    run = Run(CacheBandwidthSettings(bandwidth=False))
    at = seen(run)
    assert set(run(look(at, SHORT)).schemata.values) == {"L3"}
    run = Run(CacheBandwidthSettings(cache=False, bandwidth=False))
    at = seen(run)
    desired = run(look(at, SHORT))
    assert desired.rung is None
    assert "settings" in desired.reason


def test_a_restarted_agent_goes_on_at_the_level_that_is_held():
    run = Run()
    at = seen(run)
    run(look(at, SHORT))
    held = run(look(at + 4, SHORT)).schemata
    again = Run()
    desired = again(look(at + 5, NEAR, reading(at + 5, held=held)))
    assert again.levels == [3]
    assert desired.schemata == held
    for second in range(6, 120):
        again(look(at + second, CALM, reading(at + second, held=held)))
    assert again.levels[-1] == 0
    assert again.levels[28] == 3


def test_a_restarted_agent_keeps_absolute_limits_until_it_has_seen_the_node_without():
    held = Schemata(values={"L3": {0: 0x3, 1: 0x3}, "MB": {0: 12, 1: 12}})
    run = Run()
    for number in range(5):
        desired = run(look(100 + 2 * number, NEAR, reading(100 + 2 * number, info=AMD, held=held, ls=0.1, be=0.5)))
        assert desired.schemata.values["MB"] == {0: 12, 1: 12}


def test_what_is_usual_follows_a_change_that_stays():
    run = Run()
    at = seen(run, ls=2.0)
    for number in range(400):
        moment = at + 2 * number
        shortage = CALM if number > 150 else NEAR
        run(look(moment, shortage, reading(moment, ls=4.0, ls_cache=2 * GIB, be_cache=7 * GIB)))
    assert max(run.levels) == SETTINGS.steps
    assert run.levels[-1] == 0
    assert isinstance(run.state.usual, Usual)


def test_it_begins_with_nothing():
    assert CacheBandwidth().start(CONTEXT) == CacheBandwidthState()


rates = st.none() | st.floats(0, 50)
shortages = st.sampled_from([SHORT, NEAR, CALM, UNKNOWN, DISTURBED, None])
infos = st.sampled_from([INFO, AMD, replace(INFO, bandwidth=None), replace(INFO, monitors=frozenset()), RdtInfo()])


@st.composite
def stories(draw):
    """Snapshots with anything in them, in the order of time."""
    at, found = 100.0, []
    for _ in range(draw(st.integers(1, 15))):
        at += draw(st.floats(0.05, 40))
        info = draw(infos)
        age = draw(st.sampled_from([0.0, 0.0, 0.0, 20.0]))
        rdt = draw(
            st.none()
            | st.just(RdtReading(info=info, at=at, problem="not mounted"))
            | st.builds(
                reading,
                st.just(at - age),
                ls=rates,
                be=rates,
                info=st.just(info),
                ls_cache=st.none() | st.integers(0, 9 * GIB),
                be_cache=st.none() | st.integers(0, 9 * GIB),
            )
        )
        pods = draw(st.sampled_from([None, (pod("ls", Tier.LS),)]))
        found.append(replace(node(at=at, rdt=rdt, pods=pods, topology=flat(2)), rdt=rdt, shortage=draw(shortages)))
    return found


def bits(schemata):
    return {} if schemata is None else {d: m.bit_count() for d, m in schemata.values.get("L3", {}).items()}


@given(stories())
@settings(deadline=None)
def test_whatever_happens_it_never_lets_go_in_need_or_blindness_nor_faster_than_its_dwell(story):
    run = Run()
    changed = None
    for snapshot in story:
        before, held = run.state.rung.level, run.state.wanted
        desired = run(snapshot)
        level = run.state.rung.level
        if level < before:
            assert snapshot.shortage == CALM
            assert snapshot.rdt is not None
            assert snapshot.at - snapshot.rdt.at <= SETTINGS.max_age_seconds
            assert level == before - 1
            assert changed is None or snapshot.at - changed >= SETTINGS.min_dwell_seconds
        if level != before:
            changed = snapshot.at
        if snapshot.rdt is None or snapshot.shortage is None:
            assert level == before
        if desired.rung is None:
            assert desired.schemata == held
        elif desired.schemata is not None:
            assert problems(desired.schemata, snapshot.rdt.info) == []
        assert level <= SETTINGS.steps


@given(stories())
@settings(deadline=None, max_examples=30)
def test_from_any_state_a_quiet_node_reaches_wide_open(story):
    run = Run()
    for snapshot in story:
        run(snapshot)
    at = story[-1].at + 1
    for second in range(0, SETTINGS.steps * 40 + 400, 2):
        desired = run(look(at + second, CALM, reading(at + second)))
    assert run.levels[-1] == 0
    assert desired.schemata is None
