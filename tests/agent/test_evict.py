from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.counters import CpuKnobs
from agent.eviction import Attempt, DrillOrder, EvictorView, Outcome, Spent, Way
from agent.policy.base import Context
from agent.policy.evict import Evict, EvictSettings, EvictState
from agent.policy.gaps import be_limit
from agent.policy.rung import RungStatus
from agent.policy.victims import candidates, choose, memory_use, newest_first
from agent.pressure import Pressure, Shortage
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier

CONTEXT = Context(capabilities=Capabilities(mode="v2", cpu_version=2, writable=frozenset(Knob), psi=True))
SHORT = Shortage(short=True, calm=False, reason="LS waits for CPU")
CALM = Shortage(short=False, calm=True, reason="LS is calm")
AT_END = RungStatus(name="contention", level=5, top=5, since=0.0, reason="cut")
GIB = 1 << 30

PROMPT = EvictSettings(
    fresh_samples=1,
    memory_settle_seconds=0,
    memory_patience_seconds=0,
    satisfaction_seconds=0,
    pressure_settle_seconds=0,
    max_concurrent=100,
    max_per_hour=1000,
    large_percent=0,
    cooldown_seconds=0,
    large_cooldown_seconds=0,
)
"""No patience and no bounds: what is left is the choice itself."""


def pod(name, *, tier=Tier.BE, priority=5000, created=100.0, cpu=500, memory=GIB, asked=1000, **more):
    known = {"grace_seconds": 30.0, **{key: more.pop(key) for key in list(more) if key in _IDENTITY}}
    identity = PodIdentity(
        namespace="d",
        name=name,
        uid=name,
        tier=tier,
        priority=priority,
        created_at=created,
        requested=Amount(cpu_millis=asked, memory_bytes=0),
        **known,
    )
    return PodSnapshot(
        identity=identity,
        group=f"kubepods/{name}",
        usage=Usage(cpu_millis=cpu, memory_bytes=memory),
        knobs=more.pop("knobs", CpuKnobs()),
        **more,
    )


_IDENTITY = {"grace_seconds", "terminating", "evictable"}


def node(pods=(), at=100.0, ls=1000, system=0, be=None, available=50 * GIB, ladder=(), **more):
    """A node of 10 CPUs and 100 GiB."""
    used = sum(one.usage.cpu_millis or 0 for one in pods if one.tier is Tier.BE) if be is None else be
    return NodeSnapshot(
        at=at,
        window_seconds=1.0,
        capacity=Usage(cpu_millis=10_000, memory_bytes=100 * GIB),
        tiers={
            Tier.LS: Usage(cpu_millis=ls),
            Tier.BE: Usage(cpu_millis=used),
            Tier.SYSTEM: Usage(cpu_millis=system),
        },
        pods=tuple(pods),
        memory_available_bytes=available,
        ladder={status.name: status for status in ladder},
        **{"shortage": CALM, **more},
    )


def decide(snapshot, state=None, settings=PROMPT, seen=2):
    """Two looks and then this one: whether the first whole turns are over is tested by itself."""
    policy = Evict()
    state = replace(policy.start(CONTEXT), fresh=settings.fresh_samples) if state is None and seen else state
    return policy.decide(snapshot, state or policy.start(CONTEXT), settings, CONTEXT)


def names(desired):
    return [victim.name for victim in desired.victims]


def attempt(name, outcome, at=100.0, way=Way.EVICT, **more):
    return Attempt(uid=name, way=way, outcome=outcome, at=at, **more)


def test_a_node_without_a_gap_evicts_nobody():
    desired, _ = decide(node([pod("a"), pod("ls", tier=Tier.LS)]))
    assert (desired.victims, desired.reason, desired.rung.level) == ((), "nobody has to go", 0)


def test_koordinator_row_21_satisfaction_releases_requests_by_the_formula():
    """Requests 10 cores, limit 4, lower 60, upper 80, use 95 %: 4 cores' worth goes, lowest priority first."""
    pods = [pod(f"p{index}", priority=5000 + index, cpu=380) for index in range(10)]
    desired, _ = decide(node(pods, ls=6000, be=3800))
    assert names(desired) == ["p0", "p1", "p2", "p3"]
    first = desired.victims[0]
    assert ("satisfaction_percent", "40.0") in first.numbers
    assert ("gap", "satisfaction 4000") in first.numbers
    assert "BE may use 4000m of the 10000m" in first.reason
    assert (first.way, first.uid, first.namespace, first.group) == (Way.EVICT, "p0", "d", "kubepods/p0")


def test_koordinator_row_21_and_3137_what_is_terminating_counts_as_released():
    gone = [pod(f"t{index}", priority=4000, terminating=True, cpu=100) for index in range(2)]
    pods = gone + [pod(f"p{index}", cpu=380, created=index) for index in range(8)]
    desired, _ = decide(node(pods, ls=6000, be=3900))
    assert names(desired) == ["p7", "p6", "p5"], "8 cores asked, 4 to have: 2.4 cores' worth"


def test_koordinator_3_5_succeeded_and_failed_pods_do_not_make_be_starve():
    """kubelet's list keeps them; they count neither as asking nor as victims."""
    ended = [pod(f"e{index}", terminating=True, cpu=0, memory=0) for index in range(6)]
    desired, _ = decide(node([*ended, *[pod(f"p{index}", cpu=900) for index in range(4)]], ls=6000))
    assert desired.victims == ()


def test_be_that_does_not_use_what_it_gets_is_not_starved():
    pods = [pod(f"p{index}", cpu=350) for index in range(10)]
    assert decide(node(pods, ls=6000, be=3500))[0].victims == ()


@pytest.mark.parametrize("hole", [{"ls": None}, {"system": None}])
def test_what_is_not_measured_evicts_nobody(hole):
    pods = [pod(f"p{index}", cpu=380) for index in range(10)]
    desired, _ = decide(node(pods, **{"ls": 6000, "be": 3800, **hole}))
    assert desired.victims == ()


def test_koordinator_871_the_real_limit_is_the_tightest_of_room_quotas_and_cpusets():
    """Also 914, 1932: a limit that is not read never starves anybody."""
    quota = CpuKnobs(quota_us=50_000, period_us=100_000)
    plain = [pod("a"), pod("b")]
    assert be_limit(node(plain)) == 9000
    assert be_limit(node([pod("a", knobs=quota), pod("b", knobs=quota)])) == 1000
    assert be_limit(node([pod("a", knobs=quota), pod("b")])) == 9000, "one without a quota is not bounded by the sum"
    assert be_limit(node([pod("a", cpuset="0-1"), pod("b", cpuset="1-2")])) == 3000
    assert be_limit(node([pod("a", cpuset="0-1"), pod("b", cpuset="junk")])) == 9000
    assert be_limit(node([pod("a", cpuset="0-1"), pod("b", cpuset="")])) == 9000
    assert be_limit(node(plain, ls=None)) is None
    assert be_limit(node([])) == 9000


def test_quotas_of_pods_that_are_going_do_not_shrink_what_the_rest_can_get():
    quota = CpuKnobs(quota_us=40_000, period_us=100_000)
    pods = [pod(f"p{index}", cpu=390, knobs=quota, terminating=index < 5) for index in range(10)]
    assert decide(node(pods, ls=0, be=3900))[0].victims == ()


def test_satisfaction_takes_the_lesser_of_now_and_the_mean():
    settings = replace_settings(satisfaction_seconds=3)
    pods = [pod(f"p{index}", cpu=900) for index in range(10)]
    state = None
    for at, ls in enumerate([4500, 4500, 4500, 8000]):
        desired, state = decide(node(pods, at=float(at), ls=ls, be=10_000 - ls), state, settings)
    assert ("gap", "satisfaction 3375") in desired.victims[0].numbers, "6000 now, 3375 in the mean of four looks"
    state = None
    for at, ls in enumerate([8000, 8000, 8000, 5500]):
        desired, state = decide(node(pods, at=float(at), ls=ls, be=10_000 - ls), state, settings)
    assert ("gap", "satisfaction 3500") in desired.victims[0].numbers, "5375 in the mean, but only 3500 now"


def replace_settings(**more):
    return EvictSettings(**{**{name: getattr(PROMPT, name) for name in PROMPT.__struct_fields__}, **more})


def test_memory_frees_working_sets_until_the_target():
    pods = [pod("a", memory=2 * GIB), pod("b", memory=3 * GIB, created=200.0), pod("ls", tier=Tier.LS)]
    desired, _ = decide(node(pods, available=4 * GIB))
    assert names(desired) == ["b", "a"], "4 GiB are missing to 8 %"
    assert "4.0 % of memory is available, evicted below 5 %" in desired.victims[0].reason
    assert ("frees", str(3 * GIB)) in desired.victims[0].numbers
    assert ("freed_before", str(3 * GIB)) in desired.victims[1].numbers


def test_koordinator_735_it_stops_when_enough_is_found():
    pods = [pod(f"p{index}", memory=5 * GIB) for index in range(6)]
    assert len(names(decide(node(pods, available=4 * GIB))[0])) == 1


def test_memory_goes_on_to_its_target_and_not_only_above_the_mark():
    pods = [pod("a"), pod("b"), pod("c")]
    _, state = decide(node(pods, available=4 * GIB))
    assert names(decide(node(pods, at=101.0, available=7 * GIB), state)[0]) == ["a"]
    assert decide(node(pods, available=7 * GIB))[0].victims == (), "from above nothing is missing"


def test_k8s_41032_and_43166_a_victim_that_is_not_gone_yet_counts_as_released():
    pods = [pod("a", memory=5 * GIB, terminating=True), pod("b", memory=5 * GIB)]
    desired, _ = decide(node(pods, available=4 * GIB))
    assert desired.victims == ()
    sent = EvictorView(attempts=(attempt("a", Outcome.SENT),))
    before_it_shows = [pod("a", memory=5 * GIB), pod("b", memory=5 * GIB)]
    assert decide(node(before_it_shows, available=4 * GIB, evictor=sent))[0].victims == ()


def test_a_terminating_ls_pod_counts_as_released_memory():
    pods = [pod("a", tier=Tier.LS, memory=5 * GIB, terminating=True), pod("b", memory=5 * GIB)]
    assert decide(node(pods, available=4 * GIB))[0].victims == ()


def test_k8s_122297_a_pod_that_outlives_its_grace_is_no_release_any_more_and_is_not_hit_again():
    pods = [pod("a", memory=5 * GIB, terminating=True, grace_seconds=20.0), pod("b", memory=5 * GIB)]
    _, state = decide(node(pods, at=100.0, available=4 * GIB))
    assert decide(node(pods, at=134.0, available=4 * GIB), state)[0].victims == ()
    assert names(decide(node(pods, at=135.0, available=4 * GIB), state)[0]) == ["b"]
    stuck = EvictorView(attempts=(attempt("a", Outcome.SENT, at=100.0),))
    late = [pod("a", memory=5 * GIB, grace_seconds=20.0), pod("b", memory=5 * GIB)]
    assert names(decide(node(late, at=500.0, available=4 * GIB, evictor=stuck))[0]) == ["b"]


def test_a_very_long_grace_period_holds_nobody_up_for_ever():
    pods = [pod("a", memory=5 * GIB, terminating=True, grace_seconds=86_400.0), pod("b", memory=5 * GIB)]
    _, state = decide(node(pods, at=100.0, available=4 * GIB))
    assert names(decide(node(pods, at=400.0, available=4 * GIB), state)[0]) == ["b"]


def test_it_waits_while_a_pod_of_unknown_size_is_going():
    pods = [pod("a", memory=None, terminating=True), pod("b", memory=5 * GIB)]
    desired, _ = decide(node(pods, available=4 * GIB))
    assert desired.victims == ()
    assert "unknown size" in desired.reason


def test_k8s_123591_a_pod_without_stats_is_ranked_after_those_with_them():
    pods = [pod("dark", memory=None, created=999.0), pod("known", memory=5 * GIB)]
    assert names(decide(node(pods, available=4 * GIB))[0]) == ["known"]
    lower = [pod("dark", memory=None, priority=10), pod("known", memory=5 * GIB)]
    assert names(decide(node(lower, available=4 * GIB))[0]) == ["dark"], "and what it freed is seen before the next"


def test_oomd_5d730e5_and_systemd_35270_a_pod_that_frees_nothing_is_spared():
    pods = [pod("idle", memory=0, priority=1), pod("big", memory=5 * GIB)]
    assert names(decide(node(pods, available=4 * GIB))[0]) == ["big"]
    assert decide(node([pod("idle", memory=0)], available=4 * GIB))[0].victims == ()


def test_katalyst_ede6cfcd_the_order_is_lowest_priority_then_newest():
    pods = [
        pod("high-new", priority=9000, created=900.0),
        pod("low-old", priority=10, created=100.0),
        pod("low-new", priority=10, created=500.0),
        pod("low-ageless", priority=10, created=None),
        pod("negative", priority=-5, created=1.0),
    ]
    ranked = newest_first(pods, memory_use)
    assert [one.identity.name for one in ranked] == ["negative", "low-new", "low-old", "low-ageless", "high-new"]


def test_opt_outs_ls_and_system_are_never_chosen():
    pods = [
        pod("spared", evictable=False),
        pod("ls", tier=Tier.LS),
        pod("system", tier=Tier.SYSTEM),
        replace(pod("x"), identity=replace(pod("x").identity, uid="")),
    ]
    desired, _ = decide(node(pods, available=4 * GIB))
    assert desired.victims == ()
    assert "no BE pod is left that may go" in desired.reason
    assert (desired.rung.level, desired.rung.exhausted) == (2, True)


def test_psutil_1915_no_available_memory_at_all_is_not_known_and_no_emergency():
    for available in (0, None):
        desired, _ = decide(node([pod("a")], available=available))
        assert desired.victims == ()


def pressed(pods, at=100.0, **more):
    return node(pods, at=at, shortage=SHORT, ladder=[AT_END], **more)


def test_pressure_that_stays_takes_one_pod_and_looks_again():
    pods = [pod("a"), pod("b", created=200.0), pod("idle", cpu=0, created=300.0)]
    desired, state = decide(pressed(pods))
    assert names(desired) == ["b"]
    assert "LS is short although contention was cut to the end for 100 s: LS waits" in desired.victims[0].reason
    going = EvictorView(attempts=(attempt("b", Outcome.SENT),))
    assert decide(pressed(pods, at=103.0, evictor=going), state)[0].victims == ()
    assert names(decide(pressed(pods[:1], at=103.0, evictor=going), state)[0]) == ["a"]


@pytest.mark.parametrize(
    "more",
    [
        {"shortage": CALM},
        {"shortage": None},
        {"shortage": Shortage(short=None, calm=False, reason="?")},
        {"ladder": {"contention": replace(AT_END, level=4)}},
    ],
)
def test_pressure_acts_only_while_ls_is_short_and_milder_means_are_at_their_end(more):
    assert decide(replace(pressed([pod("a")]), **more))[0].victims == ()


def test_nothing_is_done_before_the_settle_time():
    settings = replace_settings(pressure_settle_seconds=30)
    state, seen = None, []
    for at in range(32):
        desired, state = decide(pressed([pod("a")], at=float(at)), state, settings)
        seen.append(bool(desired.victims))
    assert seen == [False] * 30 + [True] * 2
    assert decide(node([pod("a")], at=33.0), state, settings)[0].victims == ()
    desired, _ = decide(pressed([pod("a")], at=34.0), decide(node([pod("a")], at=33.0), state, settings)[1], settings)
    assert desired.victims == (), "LS was calm in between"


def test_memory_has_patience_while_the_memory_rung_still_can():
    settings = replace_settings(memory_settle_seconds=5, memory_patience_seconds=20)
    rung = RungStatus(name="memory", level=1, top=3, since=0.0, reason="")
    for status, patience in ((rung, 20), (replace(rung, level=3), 5), (None, 5)):
        state, first = None, None
        for at in range(30):
            look = node([pod("a")], at=float(at), available=4 * GIB, ladder=[status] if status else [])
            desired, state = decide(look, state, settings)
            if desired.victims and first is None:
                first = at
        assert first == patience


def test_k8s_31362_after_a_restart_nobody_goes_before_enough_whole_turns():
    settings = replace_settings(fresh_samples=3)
    state, seen = None, []
    looks = [node([pod("a")], at=float(at), available=4 * GIB, ls=None if at == 1 else 100) for at in range(6)]
    for look in looks:
        desired, state = decide(look, state, settings, seen=0)
        seen.append(bool(desired.victims))
    assert seen == [False, False, False, False, True, True], "a turn without LS use is not whole"


def test_k8s_31362_the_hour_counts_over_a_restart():
    spent = tuple(Spent(uid=f"x{index}", at=50.0, way=Way.EVICT) for index in range(4))
    settings = replace_settings(max_per_hour=5)
    pods = [pod(f"p{index}") for index in range(5)]
    look = node(pods, available=4 * GIB, evictor=EvictorView(spent=spent))
    assert len(decide(look, settings=settings)[0].victims) == 1
    full = replace(look, evictor=EvictorView(spent=(*spent, Spent(uid="y", at=50.0, way=Way.EVICT))))
    desired, _ = decide(full, settings=settings)
    assert desired.victims == ()
    assert "victim budget of this node is used up" in desired.reason
    assert desired.rung.exhausted
    assert len(decide(replace(full, at=3650.0), settings=settings)[0].victims) == 4


def test_kills_and_drills_do_not_use_up_the_hour():
    spent = (Spent(uid="k", at=50.0, way=Way.KILL), Spent(uid="d", at=50.0, way=Way.EVICT, drill="d1"))
    look = node([pod("a")], available=4 * GIB, evictor=EvictorView(spent=spent))
    assert decide(look, settings=replace_settings(max_per_hour=1))[0].victims


def test_one_at_a_time_with_a_pause_unless_the_gap_is_large():
    settings = replace_settings(large_percent=10, cooldown_seconds=20, large_cooldown_seconds=3, max_concurrent=3)
    pods = [pod(f"p{index}", created=index, memory=GIB // 2) for index in range(9)]
    small = node(pods, available=5 * GIB - 1)
    assert names(decide(small, settings=settings)[0]) == ["p8"]
    last = EvictorView(attempts=(attempt("gone", Outcome.SENT, at=100.0),))
    assert decide(replace(small, at=119.0, evictor=last), settings=settings)[0].victims == ()
    assert names(decide(replace(small, at=120.0, evictor=last), settings=settings)[0]) == ["p8"]
    large = replace_settings(
        memory_target_percent=20, large_percent=10, cooldown_seconds=20, large_cooldown_seconds=3, max_concurrent=3
    )
    assert names(decide(small, settings=large)[0]) == ["p8", "p7", "p6"]
    assert decide(replace(small, at=102.0, evictor=last), settings=large)[0].victims == ()
    assert len(names(decide(replace(small, at=103.0, evictor=last), settings=large)[0])) == 3


def test_rubik_a_pause_is_not_armed_by_what_did_nothing():
    settings = replace_settings(cooldown_seconds=20)
    for outcome in (Outcome.BLOCKED, Outcome.REFUSED, Outcome.RETRY, Outcome.UNREACHABLE, Outcome.GONE):
        view = EvictorView(attempts=(attempt("other", outcome),))
        look = node([pod("a")], at=101.0, available=4 * GIB, evictor=view)
        assert names(decide(look, settings=settings)[0]) == ["a"], outcome


def test_not_more_at_a_time_than_allowed():
    settings = replace_settings(max_concurrent=2)
    view = EvictorView(attempts=(attempt("p0", Outcome.SENT, at=90.0), attempt("p1", Outcome.SENT, at=90.0)))
    pods = [pod(f"p{index}", memory=GIB // 4) for index in range(5)]
    desired, _ = decide(node(pods, available=4 * GIB, evictor=view), settings=settings)
    assert desired.victims == ()
    assert "2 evicted pods have not gone yet" in desired.reason
    assert names(decide(node(pods, at=200.0, available=4 * GIB, evictor=view), settings=settings)[0]) == ["p2", "p3"]


def test_koordinator_row_22_a_pod_that_its_budget_protects_is_passed_over_for_a_while():
    pods = [pod("a", memory=5 * GIB, created=200.0), pod("b", memory=5 * GIB)]
    look = node(pods, available=4 * GIB, evictor=EvictorView(attempts=(attempt("a", Outcome.BLOCKED),)))
    assert names(decide(look)[0]) == ["b"]
    assert names(decide(replace(look, at=159.0))[0]) == ["b"]
    assert names(decide(replace(look, at=160.0))[0]) == ["a"]
    asked = EvictorView(attempts=(attempt("a", Outcome.BLOCKED, retry_after_seconds=90.0),))
    assert names(decide(replace(look, at=160.0, evictor=asked))[0]) == ["b"]


def test_a_refused_pod_is_left_alone_longer_and_one_to_retry_stays_wanted():
    pods = [pod("a", memory=5 * GIB, created=200.0), pod("b", memory=5 * GIB)]
    for outcome, first in ((Outcome.REFUSED, "b"), (Outcome.RETRY, "a"), (Outcome.UNREACHABLE, "a")):
        look = node(pods, at=600.0, available=4 * GIB, evictor=EvictorView(attempts=(attempt("a", outcome),)))
        assert names(decide(look)[0]) == [first]
    late = EvictorView(attempts=(attempt("a", Outcome.REFUSED),))
    assert names(decide(node(pods, at=700.0, available=4 * GIB, evictor=late))[0]) == ["a"]


def test_a_victim_is_asked_for_as_long_as_the_gap_is_there_and_no_longer():
    pods = [pod("a", memory=5 * GIB)]
    first, state = decide(node(pods, available=4 * GIB))
    again, state = decide(node(pods, at=101.0, available=4 * GIB), state)
    assert names(first) == names(again) == ["a"]
    assert decide(node(pods, at=102.0, available=9 * GIB), state)[0].victims == ()


def test_one_victim_serves_every_gap():
    pods = [pod(f"p{index}", cpu=300, memory=2 * GIB, asked=2000, created=index) for index in range(3)]
    both = node(pods, ls=7000, be=3000, available=7 * GIB - 1, shortage=SHORT, ladder=[AT_END])
    settings = replace_settings(memory_percent=7)
    assert names(decide(both, settings=settings)[0]) == ["p2"], "frees the memory and the requests at once"


def test_the_rung_opens_when_it_is_quiet():
    settings = replace_settings(quiet_seconds=3, min_dwell_seconds=0)
    desired, state = decide(node([pod("a")], available=4 * GIB), settings=settings)
    assert (desired.rung.name, desired.rung.level, desired.rung.since) == ("evict", 1, 100.0)
    levels = []
    for at in range(101, 107):
        desired, state = decide(node([pod("a")], at=float(at)), state, settings)
        levels.append(desired.rung.level)
    assert levels == [1, 1, 1, 0, 0, 0]
    blind, _ = decide(node([pod("a")], at=200.0, ls=None), replace(state, rung=replace(state.rung, level=1)), settings)
    assert blind.rung.level == 1, "no data never opens"


def drill(left=1, dry=False):
    return DrillOrder(id="d1", victims_left=left, dry_run=dry)


def test_a_drill_has_its_own_account():
    full = EvictorView(spent=tuple(Spent(uid=f"x{i}", at=50.0, way=Way.EVICT) for i in range(12)))
    look = pressed(
        [pod("a")],
        drill=drill(),
        evictor=full,
        pressure=Pressure(kind="drill", value=10.0, window_seconds=1.0),
    )
    settings = replace_settings(max_per_hour=12)
    desired, _ = decide(look, settings=settings)
    assert [(victim.name, victim.drill) for victim in desired.victims] == [("a", "d1")]
    desired, _ = decide(replace(look, drill=drill(left=0)), settings=settings)
    assert desired.victims == ()
    assert "drill d1 is used up" in desired.reason


def test_memory_is_in_earnest_also_while_a_drill_runs():
    desired, _ = decide(node([pod("a", memory=5 * GIB)], available=4 * GIB, drill=drill(left=0)))
    assert [(victim.name, victim.drill) for victim in desired.victims] == [("a", "")]


def test_a_dry_drill_names_the_pods_that_one_in_earnest_would_evict():
    pods = [pod(f"p{index}", created=index) for index in range(4)]

    def named(dry):
        here, state, order = list(pods), None, []
        attempts = ()
        for turn in range(400):
            at = 1000.0 + turn
            look = pressed(
                here,
                at=at,
                drill=drill(left=3 - len(order), dry=dry),
                evictor=EvictorView(attempts=attempts),
            )
            desired, state = decide(look, state, replace_settings(cooldown_seconds=5))
            for victim in desired.victims:
                if victim.name not in order:
                    order.append(victim.name)
                    if not dry:
                        attempts = (*attempts, attempt(victim.name, Outcome.SENT, at=at, drill="d1"))
            if not dry and turn % 45 == 44:
                here = [one for one in here if one.identity.name not in order]
        return order

    assert named(dry=True) == named(dry=False) == ["p3", "p2", "p1"]


def test_observing_only_says_the_same_list_as_in_earnest():
    """koordinator row 24: what became of a pod in a dry run counts as if it had gone."""
    pods = [pod(f"p{index}", memory=GIB, created=index) for index in range(6)]
    settings = replace_settings(cooldown_seconds=5)

    def victims(outcome):
        state, attempts, order = None, (), []
        for turn in range(40):
            at = 1000.0 + turn
            here = [
                replace(one, identity=replace(one.identity, terminating=True))
                if outcome is Outcome.SENT and any(tried.uid == one.identity.uid for tried in attempts)
                else one
                for one in pods
            ]
            look = node(here, at=at, available=4 * GIB, evictor=EvictorView(attempts=attempts))
            desired, state = decide(look, state, settings)
            for victim in desired.victims:
                order.append(victim.name)
                attempts = (*attempts, attempt(victim.name, outcome, at=at))
        return order

    assert victims(Outcome.SENT) == victims(Outcome.DRY) == ["p5", "p4", "p3", "p2"]


PODS = st.lists(
    st.builds(
        pod,
        st.uuids().map(str),
        tier=st.sampled_from([Tier.BE, Tier.BE, Tier.BE, Tier.LS, Tier.SYSTEM]),
        priority=st.integers(-2, 3),
        created=st.one_of(st.none(), st.integers(0, 5).map(float)),
        cpu=st.one_of(st.none(), st.integers(0, 2000)),
        memory=st.one_of(st.none(), st.integers(0, 6).map(lambda count: count * GIB)),
        asked=st.one_of(st.none(), st.integers(0, 3000)),
        terminating=st.sampled_from([False, False, False, True]),
        evictable=st.sampled_from([True, True, True, False]),
    ),
    max_size=12,
    unique_by=lambda one: one.identity.uid,
)
NODES = st.builds(
    node,
    PODS,
    ls=st.one_of(st.none(), st.integers(0, 10_000)),
    be=st.integers(0, 10_000),
    available=st.one_of(st.none(), st.integers(0, 12).map(lambda count: count * GIB)),
    shortage=st.sampled_from([SHORT, CALM, None]),
    ladder=st.sampled_from([(), (AT_END,), (replace(AT_END, level=1),)]),
)


@given(NODES)
def test_never_ls_never_system_never_an_opt_out_never_one_that_is_going(look):
    desired, _ = decide(look)
    by_uid = {one.identity.uid: one for one in look.pods}
    assert len({victim.uid for victim in desired.victims}) == len(desired.victims)
    for victim in desired.victims:
        chosen = by_uid[victim.uid]
        assert chosen.tier is Tier.BE
        assert chosen.identity.evictable
        assert not chosen.identity.terminating


@given(NODES)
def test_it_is_deterministic_and_does_not_depend_on_the_order_of_pods(look):
    turned = replace(look, pods=tuple(reversed(look.pods)))
    assert decide(look)[0].victims == decide(look)[0].victims
    assert names(decide(look)[0]) == names(decide(turned)[0])


@given(PODS, st.integers(1, 30).map(lambda count: count * GIB))
def test_the_choice_covers_the_gap_and_its_last_pod_was_needed(pods, gap):
    ranked = newest_first(candidates(node(pods)), memory_use)
    picks = choose(ranked, gap, frees=memory_use, use=memory_use, most=100)
    freed = sum(pick.frees or 0 for pick in picks)
    useful = [one for one in ranked if memory_use(one) != 0]
    unknown_last = bool(picks) and picks[-1].frees is None
    assert freed >= gap or unknown_last or len(picks) == len(useful)
    if picks:
        assert picks[-1].before < gap, "without the last one a gap is left"
        assert [pick.pod for pick in picks] == useful[: len(picks)]
        assert picks[-1].before == sum(pick.frees or 0 for pick in picks[:-1])
    assert all(pick.frees is not None for pick in picks[:-1])


@given(NODES, st.integers(0, 3), st.integers(1, 3), st.integers(0, 4))
def test_budgets_bound_every_single_decision(look, hour, concurrent, spent):
    settings = replace_settings(max_per_hour=hour, max_concurrent=concurrent)
    entries = tuple(Spent(uid=f"x{index}", at=99.0, way=Way.EVICT) for index in range(spent))
    desired, _ = decide(replace(look, evictor=EvictorView(spent=entries)), settings=settings)
    assert len(desired.victims) <= max(0, min(concurrent, hour - spent))


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"memory_target_percent 2\.0 is below memory_percent 5\.0"):
        EvictSettings(memory_target_percent=2.0)
    with pytest.raises(ValueError, match=r"satisfaction_upper_percent 50\.0 is below"):
        EvictSettings(satisfaction_upper_percent=50.0)


def test_a_fresh_state_is_empty():
    assert Evict().start(CONTEXT) == EvictState()
