from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context, Desired, Request, arbitrate
from agent.policy.limit import LimitState, water_fill
from agent.policy.registry import POLICIES, build
from agent.policy.rung import RungState
from agent.policy.suppress import Suppress, SuppressSettings, SuppressState
from agent.policy.weight import Weight, WeightSettings
from agent.pressure import Pressure
from agent.settings import AgentSettings
from agent.snapshot import ContainerSnapshot
from slacktide.errors import SettingsError
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.nodes import ALL, CONTEXT, GIB, NEAR, SHORT, machine, node, pod, turns

SETTINGS = SuppressSettings()
CPUSET = SuppressSettings(mode="cpuset")


def at_limit(millis, **more):
    return SuppressState(limit=LimitState(limit_millis=millis, rung=RungState(level=1, reason="from before")), **more)


def decide(snapshot, state=None, settings=SETTINGS, context=CONTEXT):
    return Suppress().decide(snapshot, state or SuppressState(), settings, context)


def run(snapshots, state=None, settings=SETTINGS, context=CONTEXT):
    limits = []
    state = state or SuppressState()
    for snapshot in snapshots:
        _, state = decide(snapshot, state, settings, context)
        limits.append(state.limit.limit_millis)
    return limits, state


def test_weight_puts_be_pods_alone_into_the_idle_class():
    desired, _ = Weight().decide(node(), None, WeightSettings(), CONTEXT)
    classes = [(r.group, r.value) for r in desired.requests if r.knob is Knob.IDLE]
    assert classes == [("kubepods/be", 1)]
    assert "idle class" in desired.reason


@pytest.mark.parametrize(("version", "lowest"), [(1, 2), (2, 1)])
def test_weight_without_cpu_idle_takes_the_smallest_weight(version, lowest):
    capabilities = Capabilities(mode="v", cpu_version=version, writable=frozenset({Knob.WEIGHT}))
    desired, _ = Weight().decide(node(), None, WeightSettings(), Context(capabilities=capabilities))
    assert [(r.knob, r.value) for r in desired.requests] == [(Knob.WEIGHT, lowest)]


def test_weight_on_a_node_with_neither_says_so():
    nothing = Context(capabilities=Capabilities(mode="none", cpu_version=None))
    desired, _ = Weight().decide(node(), None, WeightSettings(), nothing)
    assert desired.requests == ()
    assert "neither" in desired.reason


def test_a_calm_node_has_no_limit():
    desired, state = decide(node())
    assert desired.requests == ()
    assert state.limit.limit_millis is None
    assert not desired.rung.engaged


@pytest.mark.parametrize("missing", [{"ls": None}, {"system": None}, {"capacity": None}])
def test_row_19_ls_that_is_not_measured_takes_be_to_its_floor(missing):
    desired, state = decide(node(**missing))
    assert state.limit.limit_millis == SETTINGS.be_min_millis
    assert "not known" in desired.reason
    assert desired.rung.exhausted


def test_memory_nearly_gone_takes_be_to_its_floor_between_turns_too():
    desired, state = decide(node(memory_available_bytes=GIB // 5, urgent=True))
    assert state.limit.limit_millis == SETTINGS.be_min_millis
    assert "memory" in desired.reason


def test_psutil_1915_available_memory_of_zero_on_a_living_node_is_no_emergency():
    assert decide(node(memory_available_bytes=0))[1].limit.limit_millis is None


def test_a_busy_ls_caps_be_by_the_formula():
    _, state = decide(node(ls=1850, system=50))
    assert state.limit.limit_millis == 100
    _, state = decide(node(ls=1800, system=100), settings=SuppressSettings(be_min_millis=20))
    assert state.limit.limit_millis == 2000 * 98 // 100 - 1900
    assert decide(node(ls=1750, system=100))[1].limit.limit_millis is None


def test_the_cap_is_judged_by_the_recent_peak_of_ls():
    lower = SuppressSettings(be_min_millis=20, engage_percent=80.0, peak_seconds=5.0)
    peak = node(ls=1800, system=0, at=100.0)
    limits, state = run([peak, node(ls=1650, system=0, at=103.0)], settings=lower)
    assert limits == [160, 160]
    limits, _ = run([node(ls=1650, system=0, at=100.0)], settings=lower)
    assert limits == [310]
    limits, _ = run(turns(node(ls=1000, system=0), 8, start=104.0), state, settings=lower)
    assert limits == [160] * 7 + [360], "a peak counts for five seconds, and calm begins after them"


def test_system_use_is_never_negative():
    odd = node(ls=1900, system=-500)
    assert decide(odd, settings=SuppressSettings(be_min_millis=20))[1].limit.limit_millis == 60


def test_volcano_be_use_is_not_part_of_what_is_protected():
    few, many = (decide(node(ls=1900, system=0, be=be))[1].limit.limit_millis for be in (0, 2000))
    assert few == many


def test_ls_pressure_alone_is_not_for_this_rung():
    assert decide(node(pressure=SHORT))[1].limit.limit_millis is None


def test_without_a_pressure_signal_the_formula_always_holds():
    _, state = decide(node(pressure=None))
    assert state.limit.limit_millis == 2000 * 85 // 100 - 1250


def test_a_beat_without_a_reading_is_no_evidence():
    _, state = decide(node(pressure=None, urgent=True))
    assert state.limit.limit_millis is None


def test_on_a_node_that_never_shows_pressure_be_comes_back_to_the_blind_cap():
    limits, _ = run(turns(node(pressure=None), 10), at_limit(100))
    assert limits[-1] == 450


def test_a_signal_that_went_away_gives_nothing_back():
    _, state = run([node(at=99.0)], at_limit(200))
    limits, _ = run(turns(node(pressure=None), 30), state)
    assert limits == [200] * 30


def test_release_is_slow_and_ends_without_a_limit():
    limits, state = run(turns(node(), 26), at_limit(100))
    assert limits[:7] == [100, 100, 300, 300, 700, 700, 1500]
    assert limits[-1] is None
    assert state.limit.reason == ""


@pytest.mark.parametrize("held", [node(pressure=NEAR), node(ls=1800, system=50), node(pressure=SHORT)])
def test_the_hold_band_moves_nothing(held):
    limits, _ = run(turns(held, 10), at_limit(100))
    assert limits == [100] * 10


def test_a_beat_never_releases():
    limits, _ = run(turns(node(urgent=True), 100, seconds=0.05), at_limit(300))
    assert limits == [300] * 100


def test_an_adopted_limit_is_released_in_steps():
    state = Suppress().start(Context(capabilities=ALL, adopted_be_limit_millis=200))
    desired, _ = decide(node(), state)
    assert desired.rung.engaged
    assert "adopted" in desired.reason
    limits, _ = run(turns(node(), 4), state)
    assert limits == [200, 200, 400, 400]


def test_koordinator_2723_row_12_the_first_cut_from_no_limit_is_immediate_whatever_the_node_size():
    # With -1 read as a number, 104 CPUs and a small target were passed over as "no change".
    _, state = decide(node(ls=103_000, system=500, capacity=104_000))
    assert state.limit.limit_millis == SETTINGS.be_min_millis


def test_koordinator_1734_row_16_a_quota_that_is_taken_away_is_asked_for_again_and_release_does_not_start_anew():
    # The slice was rewritten to -1 each minute, and BE climbed 10 % a tick from there.
    limits, state = run([node(ls=1900), node(ls=1900, at=101.0)])
    desired, _ = decide(node(ls=1900, at=102.0), state)
    assert limits == [100, 100]
    assert [request.value for request in desired.requests] == [100]


def test_row_20_a_quota_is_never_below_a_millisecond():
    pods = tuple(pod(f"p{number}", cpu=0) for number in range(50))
    desired, _ = decide(node(ls=None, pods=pods))
    assert all(request.value >= 10 for request in desired.requests)


def test_crane_missing_use_of_one_pod_does_not_make_the_gap_infinite():
    pods = (pod("ls", Tier.LS), pod("a", cpu=None), pod("b", cpu=300))
    desired, _ = decide(node(ls=1800, system=100, pods=pods))
    assert sum(request.value for request in desired.requests) <= 100


def test_without_a_knob_nothing_is_asked_for():
    context = Context(capabilities=Capabilities(mode="v1", cpu_version=1, writable=frozenset({Knob.IDLE})))
    desired, _ = decide(node(ls=None), context=context)
    assert desired.requests == ()
    assert desired.rung is None
    assert "can be set on this node" in desired.reason


# --- by CPUs ---


def asked(desired):
    return {request.group: request.value for request in desired.requests if request.knob is Knob.CPUSET}


def many(ls=3000, at=100.0, pods=None, topology=None, **more):
    pods = pods or (pod("ls", Tier.LS, cpuset="0-7"), pod("be", cpuset="0-7"))
    return node(ls=ls, system=0, at=at, capacity=8000, topology=topology or machine(cores=4), pods=pods, **more)


def test_the_limit_as_cpus_is_rounded_down_to_whole_cores():
    desired, state = decide(many(ls=None, at=99.0), at_limit(5900), CPUSET)
    assert asked(desired) == {"kubepods/be": "3,7"}, "at least one core"
    assert [r.value for r in desired.requests if r.knob is Knob.QUOTA] == [100], "and no more time than the floor"
    desired, _ = decide(many(ls=3000, pressure=NEAR), at_limit(5900), CPUSET)
    assert asked(desired) == {"kubepods/be": "2-3,6-7"}
    assert desired.be_limit_millis == 4000
    assert "CPUs 2-3,6-7" in desired.reason
    assert state.cpusets.chosen == {3, 7}


def test_row_2306_each_mode_asks_for_its_own_knob_and_leaves_the_other_to_be_restored():
    held = many(pressure=NEAR)
    desired, state = decide(held, at_limit(4000), CPUSET)
    assert {request.knob for request in desired.requests} == {Knob.CPUSET}
    desired, state = decide(held, state, SETTINGS)
    assert {request.knob for request in desired.requests} == {Knob.QUOTA}
    desired, _ = decide(held, state, CPUSET)
    assert {request.knob for request in desired.requests} == {Knob.CPUSET}


def test_the_loop_hands_on_one_knob_after_a_change_of_mode():
    held = many(pressure=NEAR)
    plans, state = [], at_limit(4000)
    for settings in (SETTINGS, CPUSET):
        desired, state = decide(held, state, settings)
        plans.append({knob for _, knob in arbitrate([("suppress", desired)]).settings})
    assert plans == [{Knob.QUOTA}, {Knob.CPUSET}]


def test_a_node_without_the_chosen_knob_gets_the_other():
    for mode, has in (("cpuset", Knob.QUOTA), ("quota", Knob.CPUSET)):
        context = Context(capabilities=replace(ALL, writable=frozenset({has})))
        desired, _ = decide(many(pressure=NEAR), at_limit(4000), SuppressSettings(mode=mode), context)
        assert {request.knob for request in desired.requests} == {has}


def test_cpus_that_are_not_known_fall_back_to_a_quota():
    pods = (pod("ls", Tier.LS), pod("be"))
    desired, _ = decide(node(pods=pods, pressure=NEAR, topology=None), at_limit(1000), CPUSET)
    assert {request.knob for request in desired.requests} == {Knob.QUOTA}
    assert "not known, so by quota" in desired.reason


def test_a_pod_whose_list_cannot_be_read_is_taken_to_be_allowed_every_cpu():
    pods = (pod("ls", Tier.LS), pod("be"))
    desired, _ = decide(many(pressure=NEAR, pods=pods), at_limit(4000), CPUSET)
    assert asked(desired) == {"kubepods/be": "2-3,6-7"}


def test_what_a_pod_may_use_is_remembered_while_the_kernel_shows_our_list():
    snapshot = many(ls=None)
    desired, state = decide(snapshot, at_limit(8000), CPUSET)
    ours = asked(desired)["kubepods/be"]
    confined = (pod("ls", Tier.LS, cpuset="0-7"), pod("be", cpuset=ours))
    _, state = run(turns(many(ls=0, pods=confined), 40, start=200.0), state, CPUSET)
    assert state.limit.limit_millis is None
    desired, _ = decide(many(ls=0, pods=confined, pressure=NEAR), replace(state, limit=LimitState(limit_millis=6000)))
    state = at_limit(100)
    for number in range(6):
        desired, state = decide(many(ls=0, at=300.0 + number, pods=confined), state, CPUSET)
        if asked(desired):
            confined = (confined[0], pod("be", cpuset=asked(desired)["kubepods/be"]))
    assert state.cpusets.allowed["kubepods/be"] <= set(range(8))


def test_growth_by_cpus_is_bounded_and_shrinking_is_not():
    state, confined, seen = at_limit(100), "0-7", []
    for number in range(24):
        pods = (pod("ls", Tier.LS, cpuset="0-7"), pod("be", cpuset=confined))
        desired, state = decide(many(ls=0, at=100.0 + number, pods=pods), state, CPUSET)
        confined = asked(desired).get("kubepods/be", "0-7")
        seen.append(len(state.cpusets.chosen) or 8)
    assert seen == sorted(seen)
    assert max(after - before for before, after in pairwise(seen)) == 4
    assert seen[-1] == 8
    desired, _ = decide(many(ls=None, at=200.0, pods=pods), state, CPUSET)
    assert len(asked(desired)["kubepods/be"].split(",")) == 2


def test_a_list_by_somebody_else_is_a_new_choice():
    _, state = decide(many(pressure=NEAR), at_limit(6000), CPUSET)
    narrowed = (pod("ls", Tier.LS, cpuset="0-7"), pod("be", cpuset="0,4"))
    desired, _ = decide(many(pressure=NEAR, pods=narrowed), state, CPUSET)
    assert asked(desired) == {"kubepods/be": "0,4"}


def container(group, cpuset):
    return ContainerSnapshot(group=group, id="c", cpuset=cpuset)


def test_koordinator_411_234_cpus_that_ls_has_for_itself_are_left_out():
    by_hand = (pod("ls", Tier.LS, cpuset="3,7"), pod("be", cpuset="0-7"))
    desired, _ = decide(many(pressure=NEAR, pods=by_hand), at_limit(4000), CPUSET)
    assert asked(desired) == {"kubepods/be": "1-2,5-6"}
    static = (
        pod("ls", Tier.LS, cpuset="0-7", containers=(container("kubepods/ls/c", "3,7"),)),
        pod("be", cpuset="0-7", containers=(container("kubepods/be/c", "0-7"),)),
    )
    desired, state = decide(many(pressure=NEAR, pods=static), at_limit(4000), CPUSET)
    assert asked(desired) == {"kubepods/be/c": "1-2,5-6"}
    assert state.cpusets.chosen == {1, 2, 5, 6}


def test_koordinator_1214_395_546_556_with_the_static_cpu_manager_only_containers_are_confined():
    shared = (
        pod("gu", Tier.LS, cpuset="0-7", containers=(container("kubepods/gu/c", "0,4"),)),
        pod("bu", Tier.LS, cpuset="0-7", containers=(container("kubepods/bu/c", "1-3,5-7"),)),
        pod("be", cpuset="0-7", containers=(container("kubepods/be/c", "1-3,5-7"),)),
    )
    desired, state = decide(many(pressure=NEAR, pods=shared), at_limit(6000), CPUSET)
    assert asked(desired) == {"kubepods/be/c": "1-3,5-7"}, "a pool that BE shares with LS is not pinned"
    desired, _ = decide(many(pressure=NEAR, pods=shared), at_limit(2000), CPUSET)
    assert asked(desired) == {"kubepods/be/c": "3,7"}
    assert state.cpusets.chosen == {1, 2, 3, 5, 6, 7}


def test_koordinator_395_without_static_policy_a_pod_holds_the_list_of_its_containers():
    pods = (
        pod("ls", Tier.LS, cpuset="0-7"),
        pod("be", cpuset="0-7", containers=(container("kubepods/be/c", "0-7"), container("kubepods/be/d", None))),
    )
    desired, _ = decide(many(pressure=NEAR, pods=pods), at_limit(4000), CPUSET)
    assert asked(desired) == dict.fromkeys(("kubepods/be", "kubepods/be/c", "kubepods/be/d"), "2-3,6-7")


def test_koordinator_1460_no_list_is_empty_even_when_ls_has_every_cpu():
    pods = (
        pod("a", Tier.LS, cpuset="0-7", containers=(container("kubepods/a/c", "0-3"),)),
        pod("b", Tier.LS, cpuset="0-7", containers=(container("kubepods/b/c", "4-7"),)),
        pod("be", cpuset="0-7", containers=(container("kubepods/be/c", "0-7"),)),
    )
    desired, _ = decide(many(pressure=NEAR, pods=pods), at_limit(4000), CPUSET)
    assert asked(desired) == {"kubepods/be/c": "2-3,6-7"}
    assert "LS has every CPU for itself" in desired.reason


def test_a_container_that_may_use_none_of_the_chosen_cpus_gets_some_of_its_own():
    pods = (
        pod("ls", Tier.LS, cpuset="0-7"),
        pod("be", cpuset="0-7", containers=(container("kubepods/be/c", "0-7"),)),
        pod("numa", cpuset="0-7", containers=(container("kubepods/numa/c", "0,4"),)),
    )
    desired, _ = decide(many(pressure=NEAR, pods=pods), at_limit(2000), CPUSET)
    assert asked(desired)["kubepods/numa/c"] == "0,4"


# --- invariants ---

amounts = st.one_of(st.none(), st.integers(0, 3000))
pressures = st.one_of(
    st.none(),
    st.builds(
        Pressure,
        kind=st.sampled_from(["run-delay", "psi"]),
        value=st.floats(0, 10),
        natural=st.floats(0, 3),
        window_seconds=st.just(0.25),
    ),
)
states = st.builds(at_limit, st.one_of(st.none(), st.integers(-5, 4000)), signalled=st.booleans())
snapshots = st.builds(
    node,
    ls=amounts,
    system=amounts,
    be=amounts,
    pressure=pressures,
    busy=st.one_of(st.none(), st.floats(0, 1)),
    urgent=st.booleans(),
    memory_available_bytes=st.one_of(st.none(), st.integers(0, 10 * GIB)),
    pods=st.lists(
        st.builds(pod, st.sampled_from(["a", "b", "c", "d"]), st.just(Tier.BE), amounts), unique_by=lambda p: p.group
    ).map(tuple),
)


def effective(limit):
    return 2000 if limit is None else limit


@given(snapshot=snapshots, state=states)
def test_the_limit_stays_between_floor_and_capacity(snapshot, state):
    desired, after = decide(snapshot, state)
    limit = after.limit.limit_millis
    floor = max(SETTINGS.be_min_millis, len(snapshot.pods) * SETTINGS.be_pod_min_millis)
    if limit is not None:
        assert floor <= limit <= 2000
        assert sum(request.value for request in desired.requests) <= max(limit, floor)
    assert all(request.value >= SETTINGS.be_pod_min_millis for request in desired.requests)
    assert all(request.reason for request in desired.requests)


@given(snapshot=snapshots, state=states, more=st.integers(0, 2000))
def test_more_ls_use_never_gives_be_more(snapshot, state, more):
    ls = snapshot.of(Tier.LS)
    if ls.cpu_millis is None:
        return
    heavier = replace(snapshot, tiers={**snapshot.tiers, Tier.LS: Usage(cpu_millis=ls.cpu_millis + more)})
    heavy, light = (effective(decide(one, state)[1].limit.limit_millis) for one in (heavier, snapshot))
    assert heavy <= light


@given(snapshot=snapshots, state=states)
def test_no_data_never_gives_be_more(snapshot, state):
    known = effective(decide(snapshot, state)[1].limit.limit_millis)
    blind = replace(snapshot, tiers={**snapshot.tiers, Tier.LS: Usage()})
    assert effective(decide(blind, state)[1].limit.limit_millis) <= known


@given(snapshot=snapshots, state=states)
def test_a_beat_only_cuts(snapshot, state):
    urgent = replace(snapshot, urgent=True)
    floor = max(SETTINGS.be_min_millis, len(snapshot.pods) * SETTINGS.be_pod_min_millis)
    after = decide(urgent, state)[1].limit.limit_millis
    assert effective(after) <= max(floor, effective(state.limit.limit_millis))


@given(limit=st.integers(100, 2000))
def test_a_quiet_node_always_comes_back_to_no_limit(limit):
    limits, _ = run(turns(node(), 30), at_limit(limit))
    assert limits[-1] is None


@given(
    total=st.integers(0, 100_000),
    demands=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 50_000), max_size=8),
    minimum=st.sampled_from([10, 20, 50]),
)
def test_water_filling(total, demands, minimum):
    parts = water_fill(total, demands, minimum)
    assert parts.keys() == demands.keys()
    assert all(part >= minimum for part in parts.values())
    assert sum(parts.values()) <= max(total, len(demands) * minimum) + len(demands) * minimum
    for one in demands:
        for other in demands:
            if demands[one] <= demands[other]:
                assert parts[one] <= parts[other]


def request(policy, knob, value):
    return Request(policy=policy, group="g", knob=knob, value=value, reason=policy)


@pytest.mark.parametrize(
    ("knob", "values", "winner"), [(Knob.QUOTA, (500, 300), 300), (Knob.WEIGHT, (2, 5), 2), (Knob.IDLE, (0, 1), 1)]
)
def test_the_strictest_request_on_a_knob_wins_in_any_order(knob, values, winner):
    wishes = [(str(value), Desired(requests=(request(str(value), knob, value),))) for value in values]
    for order in (wishes, wishes[::-1]):
        plan = arbitrate(order)
        assert plan.settings[("g", knob)].value == winner
        assert plan.settings[("g", knob)].reason == str(winner)


@pytest.mark.parametrize("order", [1, -1])
def test_the_strictest_limit_brings_its_own_reason(order):
    wishes = [
        ("calm", Desired(reason="nothing to do")),
        ("ceiling", Desired(reason="a fixed share", be_limit_millis=400)),
        ("suppress", Desired(reason="LS waits", be_limit_millis=900)),
    ]
    plan = arbitrate(wishes[::order])
    assert (plan.be_limit_millis, plan.be_limit_reason) == (400, "a fixed share")
    assert arbitrate(wishes[:1]).be_limit_reason == ""


def test_an_unknown_policy_lists_the_known():
    with pytest.raises(SettingsError, match=f"wieght.*known: {', '.join(POLICIES)}$"):
        build(["wieght"])
    assert [policy.name for policy in build(["suppress", "weight"])] == ["weight", "suppress"]


def test_every_policy_has_its_group_of_settings():
    settings = AgentSettings()
    for policy in build(settings.policies):
        assert hasattr(settings, policy.name)
