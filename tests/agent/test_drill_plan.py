"""What stands against a drill, whom it would evict, what is said of it, and the hours in which it may start."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drill import ForecastLook, Kind, Outside
from agent.drill_hours import parse, why_not_now
from agent.drill_plan import expectations, expected_victims, refusals
from agent.drill_settings import DrillSettings
from agent.drill_wire import memory_percent
from agent.policy.base import Plan
from agent.policy.rung import RungStatus
from agent.settings import AgentSettings
from slacktide.errors import SettingsError
from slacktide.settings import load
from slacktide.tier import Tier
from tests.agent.nodes import GIB, SHORT, node, pod
from tests.agent.test_drill import order
from tests.drill_twin import CALM

SETTINGS = AgentSettings()
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp()
"""A Monday."""

FRESH = ForecastLook(at=1.0, silent=False, shut=False, fresh=True, offered_millis=500, said="fresh, 2 s old")
HEARD = Outside(at=1.0, connected=True, waiting=0, forecast=FRESH)


def rungs(*names, level=1):
    return {name: RungStatus(name=name, level=level, top=2, since=0.0, reason=f"{name} says so") for name in names}


def stands(**changed):
    plan = Plan(rungs=rungs("contention", "memory", "close", "evict", "cache_bandwidth", level=0))
    return replace(CALM, plan=plan, outside=HEARD, **changed)


def why(kind=Kind.PRESSURE, settings=SETTINGS, now=NOW, **changed):
    return refusals(kind, replace(stands(), **changed), settings, now)


@pytest.mark.parametrize("kind", Kind)
def test_a_calm_node_refuses_nothing(kind):
    assert why(kind) == []


@pytest.mark.parametrize(
    "rung", ["suppress", "contention", "memory", "io", "close", "evict", "kill", "cache_bandwidth"]
)
def test_a_node_in_trouble_refuses_and_says_which(rung):
    (said,) = why(plan=Plan(rungs=rungs(rung)))
    assert f"rung {rung} is at level 1 of 2: {rung} says so" in said
    assert why(plan=Plan(rungs=rungs(rung)), settings=AgentSettings(drill=DrillSettings(refuse_in_trouble=False))) == []


def test_what_is_always_on_is_no_trouble():
    assert why(plan=Plan(rungs=rungs("burst", "pids", "weight"))) == []


def test_ls_that_waits_refuses():
    (said,) = why(snapshot=node(pressure=SHORT))
    assert said.startswith("the node is in trouble already: LS waits for CPU")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"snapshot": None}, "it has just started"),
        ({"held": "the API has not answered yet"}, "the API has not answered yet"),
        ({"watchdog": "the watchdog died with code -9"}, "died with code -9"),
    ],
)
def test_an_agent_that_is_not_whole_refuses(changed, word):
    (said,) = why(**changed)
    assert word in said


def test_an_observer_has_no_watchdog_and_loses_nothing_by_it():
    observes = AgentSettings(observe_only=True)
    assert why(settings=observes, watchdog="it was not started") == []
    assert why(Kind.AGENT_LOSS, settings=observes) == ["an agent that only observes has no watchdog"]


@pytest.mark.parametrize(
    ("kind", "changed", "word"),
    [
        (Kind.LOAD, {"load": "drill.load is off on this node"}, "drill.load is off"),
        (Kind.MEMORY, {"snapshot": node(memory_available_bytes=None)}, "not known"),
        (Kind.MEMORY, {"plan": Plan(rungs=rungs("contention", level=0))}, "no rung of this node answers to memory"),
        (
            Kind.BANDWIDTH,
            {"plan": Plan(reasons={"cache_bandwidth": "resctrl is not mounted"})},
            "cannot be limited here: resctrl is not mounted",
        ),
        (Kind.STALE, {"reports": False}, "reports to no predictor"),
        (Kind.PREDICTOR_LOSS, {"outside": None}, "no predictor answers"),
        (Kind.PREDICTOR_LOSS, {"outside": replace(HEARD, connected=False)}, "no predictor answers"),
        (Kind.STALE, {"outside": replace(HEARD, waiting=31)}, "31 samples wait already"),
        (Kind.STALE, {"outside": replace(HEARD, forecast=None)}, "has no forecast"),
        (Kind.STALE, {"outside": replace(HEARD, forecast=None, problem="get nodes is forbidden")}, "get nodes is forb"),
        (Kind.STALE, {"outside": replace(HEARD, forecast=replace(FRESH, fresh=False))}, "not fresh already"),
        (Kind.PREDICTOR_LOSS, {"outside": replace(HEARD, forecast=replace(FRESH, silent=True))}, "not fresh already"),
    ],
)
def test_what_a_kind_needs_and_others_do_not(kind, changed, word):
    (said,) = why(kind, **changed)
    assert word in said
    assert why(Kind.PRESSURE, **changed) == []


PODS = (
    pod("ls", Tier.LS),
    pod("low", cpu=100, memory=GIB, identity={"priority": 1, "created_at": 5.0}),
    pod("new", cpu=300, memory=2 * GIB, identity={"priority": 2, "created_at": 9.0}),
    pod("old", cpu=300, memory=2 * GIB, identity={"priority": 2, "created_at": 1.0}),
    pod("idle", cpu=0, memory=0, identity={"priority": 0, "created_at": 1.0}),
)


def test_the_expected_victims_are_those_that_the_policy_takes_first():
    snapshot = node(pods=PODS)

    def names(**changed):
        return [one.name for one in expected_victims(order(**changed), snapshot, SETTINGS)]

    assert names(victims_max=2) == ["low", "new"]
    assert names(victims_max=9, kind=Kind.MEMORY) == ["low", "new", "old"]
    assert names(victims_max=0) == []
    assert names(victims_max=2, kind=Kind.STALE) == []
    (first, *_) = expected_victims(order(victims_max=1), snapshot, SETTINGS)
    assert first.reason == "lowest priority (1), then newest; uses 100m"


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_says_what_will_happen(kind):
    said = expectations(order(kind=kind, memory_percent=4.0), stands(), SETTINGS)
    assert "after 10 s" in said[-1]
    assert ("evict: at most 2 pods are evicted" in " ".join(said)) is (kind in {Kind.PRESSURE, Kind.LOAD, Kind.MEMORY})


def test_it_is_said_that_nobody_is_here_to_be_throttled():
    (first, *_) = expectations(order(), replace(stands(), snapshot=node(pods=(pod("ls", Tier.LS),))), SETTINGS)
    assert "no best-effort pod is here" in first


@pytest.mark.parametrize("victims", [0, 1])
@pytest.mark.parametrize(("evict", "reclaim"), [(5.0, 10.0), (9.5, 10.0), (8.0, 6.0), (0.0, 10.0)])
def test_a_memory_drill_reports_just_enough(victims, evict, reclaim):
    settings = AgentSettings(
        evict=replace_with(SETTINGS.evict, memory_percent=evict, memory_target_percent=evict + 3),
        memory=replace_with(SETTINGS.memory, reclaim_percent=reclaim),
    )
    percent = memory_percent(victims, settings)
    assert percent <= reclaim
    if victims and evict:
        assert percent < evict
    if not victims and evict < reclaim:
        assert percent >= evict


def replace_with(settings, **changed):
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return type(settings)(**{**fields, **changed})


MONDAY = (2026, 11, 30)


def at(hour, minute=0, day=0, zone="UTC"):
    return datetime(2026, 11, 30 - 0, hour, minute, tzinfo=ZoneInfo(zone)).timestamp() + day * 86_400


@pytest.mark.parametrize(
    ("hours", "when", "may"),
    [
        ((), at(3), True),
        (("Mon-Fri 09:00-17:00",), at(9), True),
        (("Mon-Fri 09:00-17:00",), at(17), False),
        (("Mon-Fri 09:00-17:00",), at(12, day=5), False),
        (("Sat,Sun 10:00-12:00", "Mon 00:00-01:00"), at(0, 30), True),
        (("Fri-Mon 10:00-12:00",), at(11), True),
        (("Fri-Mon 10:00-12:00",), at(11, day=1), False),
        (("Mon 22:00-06:00",), at(23), True),
        (("Mon 22:00-06:00",), at(5, day=1), True),
        (("Mon 22:00-06:00",), at(5), False),
        (("00:00-24:00",), at(23, 59), True),
    ],
)
def test_hours(hours, when, may):
    assert (why_not_now(hours, "UTC", when) == "") is may


def test_hours_are_of_their_time_zone():
    settings = AgentSettings(drill=DrillSettings(hours=("Mon 09:00-10:00",), time_zone="Europe/Berlin"))
    assert why(now=at(9, 30, zone="Europe/Berlin"), settings=settings) == []
    (said,) = why(now=at(9, 30), settings=settings)
    assert said == "it is Mon 10:30 Europe/Berlin, and drills may start Mon 09:00-10:00 only (drill.hours)"


@pytest.mark.parametrize(
    "text", ["09:00", "Mon-Foo 09:00-10:00", "Mon 10:00-10:00", "Mon 25:00-26:00", "a b 1:00-2:00"]
)
def test_hours_that_make_no_sense_are_refused_when_settings_are_read(text):
    with pytest.raises(SettingsError, match="drill"):
        load(AgentSettings, "agent", ["--drill.hours", text], {})


def test_a_time_zone_that_is_not_known_is_refused_when_settings_are_read():
    with pytest.raises(SettingsError, match="Atlantis"):
        load(AgentSettings, "agent", ["--drill.hours", "Mon 9:00-10:00", "--drill.time-zone", "Atlantis"], {})


@given(st.integers(0, 1439), st.integers(0, 1439), st.sets(st.integers(0, 6), min_size=1), st.integers(0, 10_079))
def test_a_span_and_the_rest_of_its_days_never_hold_together(begin, end, days, minute):
    names = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    if begin == end:
        return
    clock = [f"{one // 60:02}:{one % 60:02}" for one in (begin, end)]
    span = parse(f"{','.join(names[day] for day in days)} {clock[0]}-{clock[1]}")
    day, of_day = divmod(minute, 1440)
    started = {day * 1440 + begin + step for day in days for step in range((end - begin) % 1440)}
    assert span.holds(day, of_day) is (minute in {one % 10_080 for one in started})
