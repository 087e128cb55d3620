"""What each kind of drill goes through, its timeline, and the times that it is held against."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drill import EVICTS, KEEPS_SAMPLES, Drill, ForecastLook, Hold, Kind, Outside, Phase, Target, abort
from agent.drill_steps import SETTLE_SECONDS, advance
from agent.drill_targets import misses, recover_seconds, targets_of
from agent.settings import AgentSettings
from tests.agent.test_drill import order, run, rung, seen, sent, victim

SETTINGS = AgentSettings()


def drilled(kind, **more):
    return Drill(order=order(kind=kind, **more))


def steps(drill):
    return [moment.step for moment in drill.timeline]


def test_memory_is_answered_by_its_rung_close_or_evict_and_held_by_memory():
    drill = run(
        drilled(Kind.MEMORY, memory_percent=4.0),
        seen(0.0),
        seen(1.0, rung("contention")),
        seen(2.0, rung("memory"), rung("close")),
        replace(seen(3.0, rung("memory"), rung("close")), memory_held=True),
        seen(10.0, rung("memory"), rung("close")),
        replace(seen(11.0, rung("memory", 0), rung("close", 0)), memory_held=True),
    )
    assert (drill.detected_at, drill.throttled_at, drill.lowered_at) == (2.0, 3.0, 10.0)
    assert drill.phase is Phase.THROTTLED
    assert advance(drill, seen(12.0)).phase is Phase.RECOVERED
    assert next(m.detail for m in drill.timeline if m.step == "detected") == "memory holds"


def test_policies_are_told_what_to_take_for_real():
    told = {kind: run(drilled(kind, memory_percent=4.0), seen(0.0)).for_policies for kind in Kind}
    assert {kind for kind in Kind if told[kind].presses_ls} == {Kind.PRESSURE, Kind.LOAD, Kind.AGENT_LOSS}
    assert {kind for kind in Kind if told[kind].takes_bandwidth} == {Kind.BANDWIDTH}
    assert {kind for kind in Kind if told[kind].victims_left} == EVICTS
    assert told[Kind.MEMORY].memory_percent == 4.0


def test_bandwidth_is_over_when_the_class_is_open_whatever_limits_cpu():
    held = replace(seen(1.0, rung("cache_bandwidth")), class_held=True)
    drill = run(drilled(Kind.BANDWIDTH), seen(0.0), held, replace(held, at=10.0), replace(held, at=20.0))
    assert (drill.detected_at, drill.throttled_at, drill.phase) == (1.0, 1.0, Phase.THROTTLED)
    assert advance(drill, seen(21.0, limit=500)).phase is Phase.RECOVERED


def lost(drill, *looks):
    return run(drilled(Kind.AGENT_LOSS, duration_seconds=8.0), seen(0.0), *looks)


def test_a_lost_agent_is_silent_once_be_is_throttled_and_the_watchdog_and_the_next_turn_are_seen():
    held = rung("contention")
    drill = lost(None, seen(0.05, held), seen(0.1, held, limit=500))
    assert (drill.silences, drill.silent_at) == (True, 0.1)
    drill = run(drill, seen(5.2, held, limit=500), replace(seen(5.3, held), lifted=1))
    assert drill.at("relaxed") == 5.3
    drill = run(drill, replace(seen(8.0, held), lifted=1))
    assert drill.silences
    drill = run(drill, replace(seen(8.1, held), lifted=1))
    assert (drill.silences, drill.lowered_at) == (False, 8.1)
    drill = run(drill, replace(seen(8.3, held, limit=500), lifted=1), seen(12.0, rung("contention", 0)))
    assert drill.phase is Phase.RECOVERED
    wanted = ["raised", "detected", "throttled", "silent", "unlimited", "relaxed", "lowered", "retaken", "recovered"]
    assert [step for step in steps(drill) if step in wanted and step != "unlimited"] == [
        step for step in wanted if step != "unlimited"
    ]


@pytest.mark.parametrize("be_here", [True, False])
def test_without_anything_to_throttle_it_is_silent_all_the_same(be_here):
    first = replace(seen(0.0), be_here=be_here)
    drill = run(drilled(Kind.AGENT_LOSS), first, replace(first, at=0.05))
    assert drill.silences is not be_here
    assert run(drill, replace(first, at=SETTLE_SECONDS)).silences


def test_an_abort_ends_the_silence():
    assert not abort(lost(None, seen(0.1, rung("contention"), limit=500)), "stop", 0.2).silences


def look(at=100.0, *, silent=False, shut=False, fresh=True, offered=1000):
    return ForecastLook(at=at, silent=silent, shut=shut, fresh=fresh, offered_millis=offered, said=f"made at {at}")


def beyond(at, *, connected=True, waiting=0, forecast=None):
    return replace(seen(at), outside=Outside(at=at, connected=connected, waiting=waiting, forecast=forecast))


@pytest.mark.parametrize(
    ("kind", "hold", "own"),
    [
        (Kind.PREDICTOR_LOSS, Hold.CUT, ["cut", "spooled", "ageing", "closed", "connected", "delivered", "fresh"]),
        (Kind.STALE, Hold.WITHHELD, ["spooled", "ageing", "closed", "delivered", "fresh"]),
    ],
)
def test_samples_are_kept_the_forecast_ages_and_closes_and_all_comes_back(kind, hold, own):
    there = kind is Kind.STALE
    drill = run(drilled(kind), beyond(-0.1, waiting=1, forecast=look()), beyond(0.0, forecast=look()))
    assert drill.hold is hold
    drill = run(
        drill,
        beyond(1.0, connected=there, forecast=look()),
        beyond(2.0, connected=there, waiting=2, forecast=look()),
        beyond(4.0, connected=there, waiting=4, forecast=look(104.0, silent=True, offered=600)),
        beyond(6.0, connected=there, waiting=6, forecast=look(106.0, silent=True, shut=True, offered=None)),
        beyond(10.0, connected=there, waiting=9, forecast=look(110.0, silent=True, shut=True, offered=None)),
    )
    assert (drill.hold, drill.lowered_at) == (Hold.NOTHING, 10.0)
    drill = run(
        drill,
        beyond(11.0, connected=True, waiting=9, forecast=look(110.0, silent=True, shut=True, offered=None)),
        beyond(12.0, connected=True, waiting=0, forecast=look(110.0)),
    )
    assert drill.phase is Phase.RAISED
    drill = run(drill, beyond(13.0, connected=True, forecast=look(113.0)))
    assert drill.phase is Phase.RECOVERED
    assert [step for step in steps(drill) if step in own] == own
    assert next(m.detail for m in drill.timeline if m.step == "delivered").startswith("9 samples")


def test_a_forecast_that_only_becomes_old_ages_too():
    drill = run(drilled(Kind.STALE), beyond(0.0, forecast=look()), beyond(1.0, forecast=look(fresh=False)))
    assert "ageing" in steps(drill)


def test_an_offer_that_rises_while_nothing_is_heard_is_a_miss():
    drill = run(
        drilled(Kind.STALE),
        beyond(0.0, forecast=look()),
        beyond(1.0, waiting=1, forecast=look(101.0, silent=True, offered=600)),
        beyond(2.0, waiting=2, forecast=look(102.0, silent=True, offered=700)),
        beyond(10.0, waiting=2, forecast=look(102.0, silent=True, offered=700)),
        beyond(12.0, forecast=look(112.0)),
    )
    assert (drill.phase, drill.passed) == (Phase.RECOVERED, False)
    assert drill.misses == ("offers 700m although nothing is heard of the node",)


def test_a_node_without_a_forecast_is_done_when_its_samples_are_delivered():
    drill = run(drilled(Kind.STALE), beyond(0.0), beyond(1.0, waiting=3), beyond(10.0, waiting=3), beyond(11.0))
    assert drill.phase is Phase.RECOVERED


def test_samples_that_stay_are_a_failure_that_says_so():
    stuck = [beyond(10.0 + n, waiting=3, forecast=look()) for n in range(32)]
    drill = run(drilled(Kind.STALE), beyond(0.0, forecast=look()), *stuck)
    assert drill.phase is Phase.FAILED
    assert "samples still wait, no fresh forecast was seen" in drill.message


def test_the_timeline_has_rungs_limits_evictions_and_pods_that_went():
    held, floor = rung("contention"), replace(rung("contention", 3), reason="at its floor")
    here = frozenset({"a"})
    drill = run(
        Drill(order=order()),
        replace(seen(0.0, rung("weight")), present=here),
        replace(seen(0.1, held, limit=900), present=here),
        replace(seen(0.3, rung("contention", 2), limit=450), present=here),
        replace(seen(0.6, floor, limit=100, victims=(victim("a"),)), present=here),
        replace(seen(0.7, floor, limit=100, victims=(victim("a"),), attempts=(sent("a"),)), present=here),
        replace(seen(1.0, floor, limit=100), present=frozenset()),
        replace(seen(10.0, floor, limit=100), present=frozenset()),
        replace(seen(11.0, rung("contention", 0)), present=frozenset()),
    )
    assert steps(drill) == [
        *("raised", "rung:contention", "detected", "throttled", "limit", "rung:contention", "limit"),
        *("named", "evicted", "gone", "lowered", "open:contention", "unlimited", "recovered"),
    ]
    assert [m.detail for m in drill.timeline if m.step == "rung:contention"] == [
        "level 1 of 3: contention holds",
        "level 3 of 3: at its floor",
    ]
    assert [m.detail for m in drill.timeline if m.step == "limit"] == ["BE is limited to 450m", "BE is limited to 100m"]


def test_a_pod_that_was_kept_is_in_the_timeline_with_what_kept_it():
    kept = replace(sent("a"), outcome="blocked", detail="blocked by a disruption budget")
    drill = run(Drill(order=order()), seen(0.0), seen(1.0, victims=(victim("a"),)), seen(2.0, attempts=(kept,)))
    assert drill.timeline[-1].step == "kept"
    assert drill.timeline[-1].detail == "n/a: blocked by a disruption budget"


def test_the_highest_pressure_that_was_measured_is_kept_and_the_missing_is_none():
    looks = [replace(seen(n * 1.0), pressure=value) for n, value in enumerate((0.2, 0.9, None, 0.4))]
    assert run(Drill(order=order()), *looks).pressure_max == 0.9
    assert run(Drill(order=order()), seen(0.0), seen(1.0)).pressure_max is None


TARGETS = (
    Target(step="detected", within_seconds=0.5),
    Target(step="throttled", within_seconds=1.0),
    Target(step="evicted", within_seconds=9.0),
    Target(step="recovered", within_seconds=5.0, after_lowered=True),
)


def whole(*, detected=0.1, evicted=3.0, recovered=12.0, be_here=True, **changed):
    first = replace(seen(0.0), be_here=be_here)
    held = rung("contention")
    looks = [
        first,
        *([replace(seen(detected, held, limit=500), be_here=be_here)] if be_here else []),
        *([seen(evicted, held, limit=100, victims=(victim("a"),), attempts=(sent("a"),))] if evicted else []),
        seen(10.0, rung("contention", 0)),
        seen(recovered, rung("contention", 0)),
    ]
    return run(Drill(order=order(targets=TARGETS, **changed)), *looks)


def test_a_drill_within_its_targets_passes():
    assert whole().passed


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"detected": 0.7}, ["detected within 0.5 s: took 0.70 s"]),
        ({"evicted": None}, ["evicted within 9 s: did not happen"]),
        ({"recovered": 16.0}, ["recovered within 5 s: took 6.00 s"]),
        ({"evicted": None, "dry_run": True}, []),
        ({"evicted": None, "be_here": False}, []),
    ],
)
def test_what_missed_its_target_is_said_and_nobody_is_missed_who_could_not_come(changed, missed):
    drill = whole(**changed)
    assert drill.phase is Phase.RECOVERED
    assert (list(drill.misses), drill.passed) == (missed, not missed)


def test_targets_by_kind():
    steps_of = {kind: [one.step for one in targets_of(kind, 120.0, 1, SETTINGS)] for kind in Kind}
    assert steps_of[Kind.PRESSURE] == ["detected", "throttled", "evicted", "recovered"]
    assert steps_of[Kind.LOAD] == ["recovered"]
    assert steps_of[Kind.AGENT_LOSS] == ["detected", "throttled", "relaxed", "retaken", "recovered"]
    assert steps_of[Kind.STALE] == ["spooled", "ageing", "delivered", "fresh", "recovered"]
    assert [one.step for one in targets_of(Kind.PRESSURE, 10.0, 1, SETTINGS)] == ["detected", "throttled", "recovered"]
    (relaxed,) = [one for one in targets_of(Kind.AGENT_LOSS, 8.0, 0, SETTINGS) if one.step == "relaxed"]
    assert relaxed.within_seconds == SETTINGS.watchdog_limit_seconds + 3.0


def test_cache_and_bandwidth_may_take_as_long_as_their_levels_do():
    own = SETTINGS.cache_bandwidth
    longest = own.steps * own.quiet_seconds + SETTINGS.close.quiet_seconds
    assert recover_seconds(Kind.BANDWIDTH, SETTINGS) > longest
    (recovered,) = [one for one in targets_of(Kind.BANDWIDTH, 60.0, 0, SETTINGS) if one.step == "recovered"]
    assert longest < recovered.within_seconds < recover_seconds(Kind.BANDWIDTH, SETTINGS)
    assert recover_seconds(Kind.PRESSURE, SETTINGS) == SETTINGS.drill.recover_seconds


RUNGS = ("contention", "memory", "close", "evict", "cache_bandwidth")
LOOKS = st.lists(
    st.tuples(
        st.floats(0.01, 4.0),
        st.dictionaries(st.sampled_from(RUNGS), st.integers(0, 3)),
        st.none() | st.integers(10, 4000),
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=40,
)


@given(st.sampled_from(Kind), LOOKS)
def test_whatever_is_seen_times_go_on_trouble_is_bounded_and_the_end_is_final(kind, looks):
    now, drill = 0.0, run(drilled(kind, duration_seconds=5.0, memory_percent=4.0), seen(0.0))
    for gap, levels, limit, held, lifted, waiting, connected in looks:
        now += gap
        before = drill
        one = replace(
            seen(now, *(rung(name, level) for name, level in levels.items()), limit=limit),
            memory_held=held,
            class_held=held,
            lifted=lifted,
            outside=Outside(at=now, connected=connected, waiting=waiting),
        )
        drill = advance(drill, one)
        assert drill.timeline[: len(before.timeline)] == before.timeline
        if before.phase.ended:
            assert drill is before
        most = 5.0 + (SETTLE_SECONDS + 4.0 if kind is Kind.AGENT_LOSS else 0.0)
        assert not (drill.pressing and now >= most)
        assert drill.silences <= (kind is Kind.AGENT_LOSS)
        assert (drill.hold is Hold.NOTHING) or kind in KEEPS_SAMPLES
    times = [moment.at for moment in drill.timeline]
    assert times == sorted(times)
    assert len([step for step in steps(drill) if step in set(Phase)]) == len({*steps(drill)} & set(Phase))
    assert drill.phase.ended or not misses(replace(drill, order=replace(drill.order, targets=())))


def test_a_timeline_is_bounded_and_keeps_its_phases():
    drill = run(Drill(order=order(duration_seconds=1000.0, recover_seconds=1.0)), seen(0.0))
    for number in range(400):
        drill = advance(drill, seen(1.0 + number, rung("contention", number % 2), limit=500))
    drill = run(drill, seen(1001.0, rung("contention")), seen(1003.0, rung("contention")))
    assert len(drill.timeline) <= 256 + 9
    assert steps(drill)[-2:] == ["lowered", "failed"]
