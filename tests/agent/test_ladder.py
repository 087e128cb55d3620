"""All rungs together on a small simulated node: limits act on use, and pressure follows from use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.capabilities import Knob
from agent.host.knobs import ADAPTERS
from agent.policy.base import Glimpse, Plan, arbitrate
from agent.policy.burst import Burst, BurstSettings
from agent.policy.contention import Contention, ContentionSettings
from agent.policy.io import Io, IoSettings
from agent.policy.memory import Memory, MemorySettings
from agent.policy.suppress import Suppress, SuppressSettings
from agent.policy.weight import Weight, WeightSettings
from agent.pressure import Pressure
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.nodes import CONTEXT, GIB, judged, machine, node, pod

CAPACITY = 4000
SYSTEM = 100
BEATS = 3
FLOOR = 100
CORE = 2000
CPU = ("suppress", "contention")
GRADED = {"memory": (10.0, 10.0), "io": (10.0, 10.0), "burst": (10.0, 10.0)}
"""Quiet and dwell of the rungs with levels, in seconds."""

LADDER = (
    (Weight(), WeightSettings()),
    (Burst(), BurstSettings()),
    (Suppress(), SuppressSettings()),
    (Contention(), ContentionSettings()),
    (Memory(), MemorySettings()),
    (Io(), IoSettings()),
)


@dataclass(frozen=True)
class Weather:
    """What happens to the node for `turns` seconds. BE use beyond `tolerated` makes LS wait."""

    turns: int
    ls: int
    be: int
    tolerated: int
    ls_memory: float = 2.0
    be_memory: float = 1.0
    ls_io: float = 0.0
    sees_pressure: bool = True
    sees_use: bool = True
    sees_memory: bool = True
    drill: bool = False


QUIET = Weather(turns=110, ls=400, be=4000, tolerated=4000)


@dataclass
class Rig:
    """The node and the ladder, as the loop runs it: a turn a second, beats in between."""

    pods: int = 2
    mode: str = "quota"
    now: float = 100.0
    plan: Plan = field(default_factory=Plan)
    be_use: list[int] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.be_use, self.memory = [0] * self.pods, [0.2] * self.pods
        self.ladder = [(policy, replace_mode(own, self.mode), policy.start(CONTEXT)) for policy, own in LADDER]
        self.desired = {}
        self.snapshot = None

    def value(self, index, knob):
        request = self.plan.settings.get((f"kubepods/be{index}", knob))
        return None if request is None else request.value

    def live(self, weather, seconds):
        """Time passes: BE takes what it wants, may and finds."""
        left = max(0, CAPACITY - weather.ls - SYSTEM)
        for index in range(self.pods):
            quota = self.value(index, Knob.QUOTA)
            use = min(weather.be // self.pods, left, CAPACITY if quota is None else quota)
            cpus = self.value(index, Knob.CPUSET)
            if cpus is not None:
                use = min(use, 1000 * (len(cpus.split(",")) + 1))
            self.be_use[index] = use
            left -= use
            high = self.value(index, Knob.MEMORY_HIGH)
            grown = min(weather.be_memory / self.pods, self.memory[index] + 0.05 * seconds)
            self.memory[index] = min(grown, self.memory[index] if high is None else high / GIB) if high else grown
        for ask in self.plan.reclaims:
            index = int(ask.group[-1])
            self.memory[index] = max(0.05, self.memory[index] - ask.bytes / GIB * seconds / 5)
        self.now += seconds

    def look(self, weather, urgent):
        excess = 3.0 * max(0, sum(self.be_use) - weather.tolerated) / 500
        pressure = Pressure(kind="run-delay", value=0.3 + excess, natural=0.3, window_seconds=0.25)
        if weather.drill:
            pressure = Pressure(kind="drill", value=10.0, window_seconds=0.25)
        available = 10 - weather.ls_memory - sum(self.memory)
        if urgent:
            fresh = replace(self.snapshot, urgent=True, at=self.now)
        else:
            be = tuple(
                pod(f"be{index}", cpu=self.be_use[index], memory=int(self.memory[index] * GIB), io_rate=50e6)
                for index in range(self.pods)
            )
            bound = self.value(0, Knob.IO_MAX)
            waits = weather.ls_io if bound is None else weather.ls_io / 2
            fresh = node(
                at=self.now,
                ls=weather.ls if weather.sees_use else None,
                system=SYSTEM,
                be=sum(self.be_use),
                capacity=CAPACITY,
                pods=(pod("ls", Tier.LS, cpu=weather.ls, psi_io=waits, throttled_ratio=0.1), *be),
                topology=machine(cores=2, threads=2),
                disks=("8:0",),
                ladder=self.plan.rungs,
            )
        return judged(
            replace(
                fresh,
                pressure=pressure if weather.sees_pressure or weather.drill else None,
                node_busy_ratio=min(1.0, (weather.ls + SYSTEM + sum(self.be_use)) / CAPACITY),
                memory_available_bytes=int(max(0.0, available) * GIB) if weather.sees_memory else None,
            )
        )

    def decide(self, weather, urgent):
        self.snapshot = self.look(weather, urgent)
        for index, (policy, own, state) in enumerate(self.ladder):
            if urgent and not policy.urgent:
                continue
            desired, after = policy.decide(self.snapshot, state, own, CONTEXT)
            if urgent and not policy.alarmed(glimpse(self.snapshot), state, own):
                before = self.desired[policy.name]
                assert wishes(desired) == wishes(before), "a beat that alarms nobody has nothing to say"
                continue
            self.desired[policy.name], self.ladder[index] = desired, (policy, own, after)
        self.plan = arbitrate(self.desired.items())

    def steps(self, weather, beats=BEATS):
        """Decide and let time pass; yields (plan before, snapshot, plan after) of each decision."""
        for _ in range(weather.turns):
            for beat in range(beats):
                before = self.plan
                self.decide(weather, urgent=beat > 0)
                yield before, self.snapshot, self.plan
                self.live(weather, 1.0 / beats)


def glimpse(snapshot):
    return Glimpse(
        shortage=snapshot.shortage,
        memory_available_bytes=snapshot.memory_available_bytes,
        memory_capacity_bytes=snapshot.capacity.memory_bytes,
        new_threads=snapshot.threads is not None,
    )


def wishes(desired):
    return (
        desired.be_limit_millis,
        desired.victims,
        {(request.group, request.knob, request.value) for request in desired.requests},
    )


def replace_mode(own, mode):
    return SuppressSettings(mode=mode) if isinstance(own, SuppressSettings) else own


def room(plan):
    return CAPACITY if plan.be_limit_millis is None else plan.be_limit_millis


weathers = st.builds(
    Weather,
    turns=st.integers(1, 6),
    ls=st.integers(0, 4200),
    be=st.integers(0, 4000),
    tolerated=st.sampled_from([0, 300, 1000, 4000]),
    ls_memory=st.sampled_from([2.0, 7.0, 8.5, 9.8]),
    be_memory=st.sampled_from([0.5, 2.0]),
    ls_io=st.sampled_from([0.0, 0.15, 0.6]),
    sees_pressure=st.sampled_from([True, True, True, False]),
    sees_use=st.sampled_from([True, True, True, False]),
    sees_memory=st.sampled_from([True, True, True, False]),
    drill=st.sampled_from([False, False, False, True]),
)
traces = st.lists(weathers, min_size=1, max_size=5)
rigs = st.builds(Rig, pods=st.integers(1, 2), mode=st.sampled_from(["quota", "quota", "cpuset"]))
several_hundred = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Watch:
    """Checks each decision against what must always hold."""

    def __init__(self):
        self.seen_signal = False
        self.cut_at = -1e9
        self.steps = 4
        self.limits_seen = []
        self.rungs = {}

    def check(self, before, snapshot, plan):
        self.seen_signal |= snapshot.pressure is not None and snapshot.pressure.kind == "run-delay"
        self.limits(before, snapshot, plan)
        self.levels(snapshot.at, plan)
        self.requests(snapshot, plan)

    def limits(self, before, snapshot, plan):
        old, new = room(before), room(plan)
        assert FLOOR <= new <= CAPACITY, "BE keeps its floor, and no more than the node is cut"
        if new > old:
            assert not snapshot.urgent, "a beat gives nothing"
            assert snapshot.shortage.short is not True, "nothing is given while LS is short"
            unseen = snapshot.shortage.short is None and not self.seen_signal
            assert snapshot.shortage.calm or unseen, "nothing is given without knowing that LS is calm"
            assert snapshot.of(Tier.LS).cpu_millis is not None
            assert snapshot.at - self.cut_at >= ContentionSettings().min_dwell_seconds
            step = self.steps * (CAPACITY // 10) + (
                CORE if any(knob is Knob.CPUSET for _, knob in before.settings) else 0
            )
            lately = [limit for at, limit in self.limits_seen if snapshot.at - at < ContentionSettings().quiet_seconds]
            assert new <= min(lately, default=new) + step or new == CAPACITY, "one, two or four steps in a quiet time"
            self.steps = min(4, 2 * self.steps)
        if new < old:
            self.cut_at, self.steps = snapshot.at, 1
        self.limits_seen.append((snapshot.at, new))

    def levels(self, at, plan):
        for name, (quiet, dwell) in GRADED.items():
            level = plan.rungs[name].level
            old, changed = self.rungs.get(name, (0, -1e9))
            if level < old:
                assert level == old - 1
                assert at - changed >= max(quiet, dwell)
            if level != old:
                self.rungs[name] = (level, at)

    def requests(self, snapshot, plan):
        tiers = {one.group: one.tier for one in snapshot.pods}
        for (group, knob), request in plan.settings.items():
            assert tiers[group] in knob.tiers, "LS is never limited"
            assert ADAPTERS[knob].problem(request.value) is None, "one such wish would refuse the whole plan"
            assert request.reason
        quotas = [int(request.value) for (_, knob), request in plan.settings.items() if knob is Knob.QUOTA]
        if quotas:
            by_cpus = any(knob is Knob.CPUSET for _, knob in plan.settings)
            assert sum(quotas) <= room(plan) or by_cpus
            assert min(quotas) >= 20


@several_hundred
@given(rig=rigs, trace=traces)
def test_whatever_happens_the_ladder_keeps_its_promises_and_opens_when_the_node_is_quiet(rig, trace):
    watch = Watch()
    for weather in trace:
        for before, snapshot, plan in rig.steps(weather):
            watch.check(before, snapshot, plan)
    for before, snapshot, plan in rig.steps(QUIET, beats=1):
        watch.check(before, snapshot, plan)
        if plan.be_limit_millis is None and not any(status.engaged for status in plan.rungs.values()):
            break
    assert {name: status.level for name, status in rig.plan.rungs.items()} == dict.fromkeys(rig.plan.rungs, 0)
    kept = {knob for _, knob in rig.plan.settings}
    assert kept <= {Knob.IDLE, Knob.WEIGHT, Knob.BVT, Knob.IO_WEIGHT, Knob.BURST}, "weight only"
    assert rig.plan.be_limit_millis is None
    assert rig.plan.reclaims == ()


@settings(several_hundred, max_examples=60)
@given(rig=rigs, tolerated=st.integers(FLOOR, 2000), ls=st.integers(500, 2000), be=st.integers(2500, 4000))
def test_be_is_cut_until_ls_does_not_wait_and_then_held(rig, tolerated, ls, be):
    storm = Weather(turns=3, ls=ls, be=be, tolerated=tolerated)
    list(rig.steps(storm))
    watch, waits = Watch(), 0
    for before, snapshot, plan in rig.steps(replace(storm, turns=30)):
        watch.check(before, snapshot, plan)
        waits += bool(snapshot.shortage.short) and room(plan) > FLOOR
    assert waits <= 30 / ContentionSettings().min_dwell_seconds, "no more than a try a step"


@given(rig=rigs)
def test_the_first_beat_that_sees_a_shortage_cuts(rig):
    calm = Weather(turns=3, ls=1000, be=4000, tolerated=4000)
    list(rig.steps(calm))
    assert rig.plan.be_limit_millis is None
    rig.decide(replace(calm, tolerated=0), urgent=True)
    assert rig.plan.be_limit_millis <= sum(rig.be_use) // 2
    assert rig.plan.rungs["contention"].engaged
    assert "LS waits" in rig.plan.be_limit_reason


def test_rungs_engage_from_the_mildest_and_each_alone():
    rig = Rig()
    list(rig.steps(Weather(turns=3, ls=400, be=4000, tolerated=4000, ls_memory=8.6, be_memory=2.0)))
    assert [name for name, status in rig.plan.rungs.items() if status.engaged] == ["memory"]
    rig = Rig()
    list(rig.steps(Weather(turns=3, ls=400, be=4000, tolerated=4000, ls_io=0.9)))
    assert [name for name, status in rig.plan.rungs.items() if status.engaged] == ["io"]
    rig = Rig()
    list(rig.steps(Weather(turns=3, ls=3900, be=4000, tolerated=4000)))
    assert [name for name, status in rig.plan.rungs.items() if status.engaged] == ["burst", "suppress"]


def test_a_node_that_is_never_measured_stays_at_the_floor():
    rig = Rig()
    for before, snapshot, plan in rig.steps(Weather(turns=60, ls=100, be=4000, tolerated=4000, sees_use=False)):
        assert room(plan) == FLOOR
        assert room(before) >= room(plan)
        assert snapshot.of(Tier.LS) == Usage()
