from __future__ import annotations

import time

import pytest

from agent.act.check import PlanError
from agent.beat import Beat
from agent.capabilities import Capabilities, Knob
from agent.effects import Effects
from agent.eviction import Victim, Way
from agent.loop import Loop
from agent.pods import PodBook
from agent.policy.base import Context, Desired, Request
from agent.policy.registry import POLICIES, build
from agent.policy.suppress import SuppressSettings
from agent.settings import AgentSettings, ReportSettings
from agent.threads import MaskPlan
from slacktide.settings import ResourceNames
from slacktide.tier import Tier
from tests.agent.twins import CAPABLE, FakeClock, FakeExecutor, FakeHost, FakePods, pod
from tests.patience import PATIENCE


class Rig:
    """A loop on twins; `run(turns)` does turns with twenty beats in between, as the real rhythm has."""

    def __init__(
        self,
        *,
        pods=None,
        capabilities=CAPABLE,
        adopted=None,
        settings=None,
        clock=None,
        policies=None,
        executor=None,
        effects=None,
    ):
        self.clock = clock or FakeClock()
        self.host = FakeHost(self.clock, {"ls": 1.2, "be": 0.7})
        self.pods = pods or FakePods(pod("ls", "ls"), pod("be", "be"))
        self.executor = executor or FakeExecutor()
        self.settings = settings or AgentSettings(report=ReportSettings(window_seconds=5.0))
        self.turns = []
        self.samples = []
        self.loop = Loop(
            lambda: self.settings,
            self.host,
            Beat(self.host, capabilities, self.settings.pressure_window_seconds, 2),
            PodBook(self.pods, ResourceNames()),
            policies or build(self.settings.policies),
            Context(capabilities=capabilities, adopted_be_limit_millis=adopted),
            self.executor,
            on_turn=self.turns.append,
            on_sample=self.samples.append,
            effects=effects,
            clock=self.clock,
            wall=lambda: 1e9 + self.clock(),
        )

    def run(self, turns=1, beats=20):
        for _ in range(turns):
            self.loop.turn()
            for _ in range(beats):
                self.host.move(1.0 / beats)
                self.loop.beat()

    @property
    def limit(self):
        return self.executor.plans[-1].be_limit_millis

    def line(self):
        return self.turns[-1].line


def test_the_first_turn_only_looks_and_the_second_decides():
    rig = Rig()
    rig.run(1)
    assert rig.executor.plans == []
    assert "first look" in rig.line()
    rig.run(1)
    plan = rig.executor.plans[-1]
    assert {(group, knob): wish.value for (group, knob), wish in plan.settings.items()} == {
        ("kubepods/be", Knob.IDLE): 1
    }
    assert rig.executor.groups[-1] == {"kubepods/ls", "kubepods/be"}
    assert "1 LS and 1 BE pods; CPU LS 1200m, BE 700m, SYSTEM 50m of 2000m" in rig.line()
    assert "BE has no limit" in rig.line()


def test_a_beat_cuts_at_once_and_only_turns_release():
    rig = Rig()
    rig.run(3)
    before = len(rig.executor.plans)
    rig.host.delay_rate = 12.0
    for _ in range(2):
        rig.host.move(0.05)
        rig.loop.beat()
    assert len(rig.executor.plans) == before + 1, "the shortage shows within two beats"
    assert rig.limit == 350
    assert "LS waits for CPU" in rig.executor.plans[-1].reasons["contention"]
    assert rig.executor.plans[-1].be_limit_reason == rig.executor.plans[-1].reasons["contention"]
    rig.run(2)
    assert rig.limit == 100
    rig.host.delay_rate = 0.0
    plans = len(rig.executor.plans)
    rig.run(1)
    assert len(rig.executor.plans) == plans + 1
    rig.run(26)
    assert rig.limit is None
    assert rig.loop.counters["cuts"] >= 2


class Ceiling:
    """A policy that is not *suppress* and limits all the same."""

    name = "weight"
    urgent = True

    def start(self, context):
        return None

    def decide(self, snapshot, state, settings, context):
        limit = 200 if snapshot.urgent else 300
        return Desired(reason="a ceiling", be_limit_millis=limit), state


def test_the_reason_told_is_that_of_the_policy_that_limits(caplog):
    caplog.set_level("INFO")
    rig = Rig(policies=(Ceiling(), *build(["suppress"])))
    rig.run(3)
    assert rig.line().endswith("BE is limited to 300m: a ceiling")
    assert rig.loop.counters["cuts"] > 0
    cut = next(record.msg for record in caplog.records if record.msg["event"] == "cut")
    assert cut["reason"] == "a ceiling"


def test_without_the_api_nothing_is_decided_and_nothing_undone():
    rig = Rig(pods=FakePods(synced=False), adopted=300)
    rig.host.delay_rate = 12.0
    rig.run(3)
    assert rig.executor.plans == []
    assert rig.samples == []
    assert "API has not answered" in rig.line()


def test_an_empty_or_partial_pod_list_is_not_no_pods():
    rig = Rig()
    rig.run(2)
    rig.pods.pods.clear()
    rig.run(2)
    assert rig.executor.groups[-1] == {"kubepods/ls", "kubepods/be"}
    assert ("kubepods/be", Knob.IDLE) in rig.executor.plans[-1].settings
    del rig.host.rates["be"]
    rig.run(2)
    assert rig.executor.groups[-1] == {"kubepods/ls"}


def test_the_last_use_of_a_pod_that_ended_is_not_system():
    # koordinator 1427: it was, and the sold amount swung.
    rig = Rig()
    rig.run(2)
    rig.pods.pods.pop()
    rig.run(2)
    assert rig.turns[-1].snapshot.of(Tier.BE).cpu_millis == pytest.approx(700, abs=1)
    assert rig.turns[-1].snapshot.of(Tier.SYSTEM).cpu_millis == pytest.approx(50, abs=1)


def test_cgroups_that_cannot_be_listed_hold_everything():
    rig = Rig()
    rig.run(2)
    plans = len(rig.executor.plans)
    rig.host.blind = True
    rig.run(2)
    assert len(rig.executor.plans) == plans
    assert "cannot be listed" in rig.line()
    assert rig.loop.counters["errors"] == 0


def test_a_suspend_gives_no_rate_and_takes_be_to_its_floor_then_back():
    rig = Rig()
    rig.run(2)
    rig.host.move(60.0)
    rig.run(1)
    assert rig.limit == SuppressSettings().be_min_millis
    rig.run(22)
    assert rig.limit is None


def test_an_ls_pod_that_starts_does_not_cut_be():
    rig = Rig(pods=FakePods(pod("be", "be")))
    rig.host.rates = {"be": 1.5}
    rig.run(3)
    rig.pods.pods.append(pod("ls", "ls"))
    rig.host.rates["ls"] = 0.3
    rig.run(4)
    assert rig.turns[-1].snapshot.pressure.kind == "run-delay"
    assert all(plan.be_limit_millis is None for plan in rig.executor.plans)


def test_samples_have_mean_and_maximum_of_their_window():
    rig = Rig()
    rig.run(3)
    rig.host.rates["ls"] = 1.6
    rig.run(4)
    (first,) = rig.samples
    ls = first.tiers[Tier.LS]
    assert first.window_seconds == pytest.approx(5.0)
    assert ls.cpu_millis_max == 1600
    assert 1200 < ls.cpu_millis_mean < 1600
    assert {window.identity.name for window in first.pods} == {"ls", "be"}
    assert first.be_limit_millis is None
    assert first.ls_pressure is not None


def test_observe_only_decides_and_writes_nothing():
    nothing = Capabilities(mode="v1", cpu_version=1, run_delay=True)
    rig = Rig(capabilities=nothing)
    rig.run(3)
    assert rig.executor.plans == []
    assert "observe only" in rig.line()
    asked = Rig(settings=AgentSettings(observe_only=True))
    asked.run(3)
    assert asked.executor.plans == []


class Pinning:
    """A policy that wants masks in every turn."""

    name = "weight"
    urgent = False

    def start(self, context):
        return None

    def decide(self, snapshot, state, settings, context):
        return Desired(reason="pins", masks=MaskPlan()), state


def test_a_node_on_which_no_cgroup_can_be_written_has_no_thread_pinned_either():
    nothing = Capabilities(mode="v1", cpu_version=1, run_delay=True, affinity=True)
    rig, free = Rig(capabilities=nothing, policies=(Pinning(),)), Rig(policies=(Pinning(),))
    for one in (rig, free):
        one.run(3)
    assert rig.executor.masks == []
    assert len(free.executor.masks) == 2


def test_settings_are_read_anew_each_turn():
    rig = Rig()
    rig.run(2)
    rig.settings = AgentSettings(suppress=SuppressSettings(engage_percent=50.0))
    rig.run(1)
    assert rig.limit == 2000 * 98 // 100 - 1250


def test_a_turn_that_fails_does_not_end_the_loop():
    clock = time.monotonic
    rig = Rig(settings=AgentSettings(turn_seconds=0.1, beat_seconds=0.02))
    rig.loop._clock = clock
    rig.executor.fail = RuntimeError("broken")
    rig.host.clock.now = clock()
    rig.loop.start()
    try:
        end = clock() + 10
        while rig.loop.counters["errors"] < 2:
            assert clock() < end
            rig.host.move(0.01)
            time.sleep(0.01)
    finally:
        assert rig.loop.stop(5)
    assert rig.loop.counters["turns"] >= 2
    assert rig.loop.last_sign < clock() - 0.05, "a turn that fails is no sign of life"


def test_missed_periods_are_skipped_and_counted_once():
    rig = Rig()
    loop = rig.loop
    assert loop._advance(10.0, 1.0, 10.2, "late_turns") == 11.0
    assert loop.counters["late_turns"] == 0
    assert loop._advance(10.0, 1.0, 17.5, "late_turns") == 18.5
    assert loop.counters["late_turns"] == 1


class Breaking(Ceiling):
    """A policy that limits in its first decision, and then has a bug."""

    name = "weight"
    decisions = 0

    def decide(self, snapshot, state, settings, context):
        self.decisions += 1
        if self.decisions > 1:
            raise KeyError("a bug")
        victim = Victim(namespace="d", name="be", uid="be", group="kubepods/be", way=Way.EVICT, reason="r")
        return Desired(reason="a ceiling", be_limit_millis=300, victims=(victim,)), state


def test_crane_614_a_policy_that_fails_keeps_its_limit_and_stops_no_other(caplog):
    rig = Rig(policies=(Breaking(), *build(["suppress", "contention"])))
    rig.run(1)
    rig.loop.turn()
    assert rig.limit == 300
    assert len(rig.executor.plans[-1].victims) == 1
    rig.host.move(1.0)
    rig.run(3)
    assert rig.limit == 300, "what it wanted is held"
    assert rig.executor.plans[-1].victims == (), "but nobody is sent away for a reason of long ago"
    assert "it failed: KeyError('a bug')" in rig.executor.plans[-1].reasons["weight"]
    assert rig.loop.counters["errors"] > 3
    assert sum("a policy failed" in str(record.msg) for record in caplog.records) == 1, "told once"
    rig.host.delay_rate = 12.0
    rig.run(1)
    assert rig.limit < 300, "contention still cuts"


def test_every_urgent_policy_says_what_alarms_it():
    for name in POLICIES:
        (policy,) = build([name])
        assert policy.urgent == hasattr(policy, "alarmed"), name


class Startled(Ceiling):
    """Cannot say whether it is alarmed."""

    def alarmed(self, glimpse, state, settings):
        raise ZeroDivisionError


def test_a_policy_that_cannot_say_whether_it_is_alarmed_is_asked(caplog):
    rig = Rig(policies=(Startled(),))
    rig.run(3)
    assert rig.loop.counters["cuts"] > 0
    assert rig.loop.counters["errors"] == 0
    assert sum("cannot say what alarms it" in str(record.msg) for record in caplog.records) == 1, "told once"


class Wrong:
    """A policy whose wish no executor takes, from its third decision on."""

    name = "weight"
    urgent = False

    def start(self, context):
        return 0

    def decide(self, snapshot, state, settings, context):
        value = 2 if state < 2 else 10**9
        requests = [
            Request(policy=self.name, group=pod.group, knob=Knob.WEIGHT, value=value, reason="wrong")
            for pod in snapshot.pods_of(Tier.BE)
        ]
        return Desired(requests=tuple(requests)), state + 1


class Refusing(FakeExecutor):
    """Refuses weights that no kernel takes, as the real one does."""

    def apply(self, plan, groups, identities, *, whole=True):
        for request in plan.settings.values():
            if request.knob is Knob.WEIGHT and request.value > 10_000:
                raise PlanError(request.policy, f"wants {request.value}")
        return super().apply(plan, groups, identities, whole=whole)


def test_a_wish_that_is_refused_takes_no_other_policy_with_it(caplog):
    rig = Rig(policies=(Wrong(), *build(["suppress", "contention"])), executor=Refusing())
    rig.run(2)
    assert rig.executor.plans[-1].settings["kubepods/be", Knob.WEIGHT].value == 2
    rig.run(3)
    assert rig.executor.plans[-1].settings["kubepods/be", Knob.WEIGHT].value == 2, "what was accepted last is held"
    assert "set aside" in rig.executor.plans[-1].reasons["weight"]
    assert rig.loop.counters["errors"] >= 2
    assert sum("policy is set aside" in str(record.msg) for record in caplog.records) == 1, "told once"
    rig.host.delay_rate = 12.0
    rig.run(2)
    assert rig.limit is not None, "contention still cuts"


class RealClock:
    """For a loop that runs by itself."""

    @property
    def now(self):
        return time.monotonic()

    __call__ = staticmethod(time.monotonic)


class Silencing(Effects):
    """Silent from the third turn on, for some steps; `seen` is what the loop had counted at each."""

    def __init__(self, steps):
        super().__init__()
        self.rig = None
        self.left = steps
        self.seen = []

    @property
    def silenced(self):
        return len(self.rig.turns) >= 3 and self.left > 0

    def keep_silent(self, now):
        self.left -= 1
        self.seen.append((self.rig.loop.counters["beats"], self.rig.loop.counters["turns"], self.rig.loop.last_sign))
        assert now >= self.rig.loop.last_sign


def test_a_drill_silences_beats_turns_and_signs_of_life():
    effects = Silencing(5)
    settings = AgentSettings(turn_seconds=0.1, beat_seconds=0.05)
    effects.rig = rig = Rig(settings=settings, clock=RealClock(), effects=effects)
    rig.loop.start()
    try:
        deadline = time.monotonic() + 20 * PATIENCE
        while len(rig.turns) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        assert rig.loop.stop(5 * PATIENCE)
    assert len(effects.seen) == 5
    assert len(set(effects.seen)) == 1, "no beat, no turn and no sign of life while it is silent"
    assert rig.loop.last_sign > effects.seen[0][2]
    assert rig.loop.counters["errors"] == 0
