from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.eviction import Attempt, DrillOrder, EvictorView, Outcome, Spent, Way
from agent.policy.base import Context
from agent.policy.kill import Kill, KillSettings
from agent.policy.rung import RungStatus
from agent.pressure import Shortage
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.status import Usage
from slacktide.tier import Tier

CONTEXT = Context(capabilities=Capabilities(mode="v2", cpu_version=2, writable=frozenset(Knob), psi=True))
SETTINGS = KillSettings()
SHORT = Shortage(short=True, calm=False, reason="LS waits for CPU")
HELD = Shortage(short=False, calm=False, reason="near the cut")
CALM = Shortage(short=False, calm=True, reason="LS is calm")
AT_END = RungStatus(name="contention", level=5, top=5, since=0.0, reason="cut")
GIB = 1 << 30


def pod(name, *, tier=Tier.BE, priority=5000, created=100.0, cpu=500, memory=GIB, terminating=False, evictable=True):
    identity = PodIdentity(
        namespace="d",
        name=name,
        uid=name,
        tier=tier,
        priority=priority,
        created_at=created,
        terminating=terminating,
        evictable=evictable,
    )
    return PodSnapshot(identity=identity, group=f"k/{name}", usage=Usage(cpu_millis=cpu, memory_bytes=memory))


def node(pods=(), available=50 * GIB, **more):
    return NodeSnapshot(
        window_seconds=1.0,
        capacity=Usage(cpu_millis=10_000, memory_bytes=100 * GIB),
        pods=tuple(pods),
        memory_available_bytes=available,
        **{"at": 0.0, "shortage": CALM, "ladder": {"contention": AT_END}, **more},
    )


def run(looks, *, every=1.0, settings=SETTINGS, context=CONTEXT, state=None, begin=100.0):
    policy = Kill()
    state = policy.start(context) if state is None else state
    answers = []
    for index, look in enumerate(looks):
        desired, state = policy.decide(replace(look, at=begin + index * every), state, settings, context)
        answers.append(desired)
    return answers, state


def killed(answers):
    return [[one.name for one in answer.victims if one.way is Way.KILL] for answer in answers]


def frozen(answers):
    return [[request.group for request in answer.requests] for answer in answers]


PODS = (pod("small", memory=GIB), pod("big", memory=3 * GIB), pod("dear", memory=9 * GIB, priority=9000))


def falling(count, begin=2.0, step=0.1, pods=PODS, **more):
    return [node(pods, available=int((begin - step * index) * GIB), **more) for index in range(count)]


def test_a_quiet_node_kills_and_freezes_nobody():
    answers, _ = run([node(PODS)] * 5)
    assert [(one.victims, one.requests, one.rung.level) for one in answers] == [((), (), 0)] * 5


def test_memory_that_is_nearly_gone_and_falls_kills_the_lowest_priority_then_the_largest():
    answers, _ = run(falling(6, begin=1.9))
    assert killed(answers) == [[], [], ["big"], ["big"], ["big"], ["big"]]
    victim = answers[2].victims[0]
    assert "1.7 % of memory is available, below 2 %, and falls" in victim.reason
    assert ("memory_bytes", str(3 * GIB)) in victim.numbers
    assert (answers[2].rung.level, answers[2].rung.top) == (2, 2)
    assert [one.rung.level for one in answers[:2]] == [0, 0], "not before there were enough looks"


def test_memory_that_stays_low_or_rises_is_no_emergency():
    assert not any(killed(run([node(PODS, available=GIB)] * 20)[0]))
    rising = list(reversed(falling(15, begin=1.9)))
    assert not any(killed(run(rising)[0]))


def test_memory_that_stalls_everybody_is_an_emergency_also_when_it_cannot_fall_further():
    assert killed(run([node(PODS, available=GIB, node_psi_memory_full=0.6)] * 5)[0])[-1] == ["big"]
    assert not any(killed(run([node(PODS, available=4 * GIB, node_psi_memory_full=0.6)] * 5)[0]))
    stalled = falling(6, begin=4.5, node_psi_memory_full=0.6)
    assert killed(run(stalled)[0])[-1] == ["big"]
    assert "all wait for it 60 % of the time" in run(stalled)[0][-1].reason
    assert not any(killed(run(falling(6, begin=4.5, node_psi_memory_full=0.1))[0]))
    assert not any(killed(run(falling(6, begin=40.0, node_psi_memory_full=0.9))[0]))


@pytest.mark.parametrize("available", [None, 0])
def test_psutil_1915_memory_that_is_not_known_is_no_emergency(available):
    looks = falling(4, begin=1.9) + [node(PODS, available=available, node_psi_memory_full=0.9)] * 5
    assert not any(killed(run(looks)[0])[4:])


def test_beats_see_an_emergency_within_half_a_second():
    quiet = [node(PODS)] * 3
    _, state = run(quiet, every=1.0)
    beats = falling(40, begin=1.9, step=0.01, urgent=True)
    answers, _ = run(beats, every=0.05, state=state, begin=102.05)
    first = next(index for index, names in enumerate(killed(answers)) if names)
    assert 0.5 <= first * 0.05 <= 0.61


def test_oomd_e9e97ae_after_a_kill_it_waits_to_see_what_came_back():
    """Also oomd 1651104: a kill takes effect late, and the next victim would be innocent."""
    view = EvictorView(
        spent=(Spent(uid="big", at=102.0, way=Way.KILL),),
        attempts=(Attempt(uid="big", way=Way.KILL, outcome=Outcome.SENT, at=102.0),),
    )
    answers, _ = run(falling(12, begin=1.9, step=0.05, evictor=view))
    assert killed(answers)[:7] == [[]] * 7, "until 5 s after the kill at 102"
    assert killed(answers)[7] == ["small"], "and then another one, since memory still falls"
    assert "what the last kill freed" in answers[4].reason


def test_oomd_0973320_a_pod_that_does_not_die_is_not_chosen_again():
    view = EvictorView(attempts=(Attempt(uid="big", way=Way.KILL, outcome=Outcome.SENT, at=0.0),))
    assert killed(run(falling(5, begin=1.9, evictor=view))[0])[-1] == ["small"]


def test_the_hour_bounds_kills():
    view = EvictorView(spent=tuple(Spent(uid=f"x{index}", at=10.0, way=Way.KILL) for index in range(6)))
    answers, _ = run(falling(5, begin=1.9, evictor=view))
    assert not any(killed(answers))
    assert "used up" in answers[-1].reason
    evictions = EvictorView(spent=tuple(Spent(uid=f"x{index}", at=10.0, way=Way.EVICT) for index in range(60)))
    assert killed(run(falling(5, begin=1.9, evictor=evictions))[0])[-1]


def test_whom_it_never_kills():
    pods = (
        pod("ls", tier=Tier.LS, memory=50 * GIB),
        pod("system", tier=Tier.SYSTEM, memory=50 * GIB),
        pod("spared", evictable=False, memory=50 * GIB),
        pod("going", terminating=True, memory=50 * GIB),
        pod("empty", memory=0, priority=0),
        pod("dark", memory=None, priority=10),
        pod("known", memory=GIB, priority=10),
    )
    assert killed(run(falling(5, begin=1.9, pods=pods))[0])[-1] == ["known"], "k8s#123591: unknown after known"
    answers, _ = run(falling(5, begin=1.9, pods=pods[:5]))
    assert not any(killed(answers))
    assert "no BE pod is left" in answers[-1].reason


def away(pods=PODS, seconds=60.0, **more):
    return node(pods, **{"shortage": SHORT, "evictor": EvictorView(api_away_seconds=seconds), **more})


def test_while_the_api_is_away_and_ls_is_short_pods_are_frozen_one_by_one():
    pods = (
        pod("old"),
        pod("new", created=900.0),
        pod("idle", cpu=0),
        pod("dear", priority=9000),
        pod("dark", cpu=None),
    )
    answers, _ = run([away(pods)] * 40)
    seen = frozen(answers)
    assert seen[:10] == [[]] * 10, "LS must be short for 10 s"
    assert seen[10:15] == [["k/new"]] * 5
    assert seen[15] == ["k/new", "k/old"]
    assert seen[-1] == ["k/new", "k/old", "k/dark", "k/dear"], "the idle one would help nobody"
    request = answers[10].requests[0]
    assert (request.knob, request.value, request.policy) == (Knob.FREEZE, 1, "kill")
    assert [(one.way, one.name) for one in answers[10].victims] == [(Way.FREEZE, "new")]
    assert "the API is away for 60 s: LS waits for CPU" in answers[10].reason
    assert answers[10].rung.level == 1


@pytest.mark.parametrize(
    "more",
    [
        {"evictor": EvictorView()},
        {"evictor": None},
        {"seconds": 9.0},
        {"shortage": HELD},
        {"shortage": None},
        {"ladder": {"contention": replace(AT_END, level=4)}},
        {"drill": DrillOrder(id="d", victims_left=9)},
        {"pods": (pod("spared", evictable=False), pod("ls", tier=Tier.LS), pod("going", terminating=True))},
    ],
)
def test_when_nobody_is_frozen(more):
    assert not any(frozen(run([away(**more)] * 40)[0]))


def test_nobody_is_frozen_where_the_node_has_no_freezer():
    bare = replace(CONTEXT, capabilities=replace(CONTEXT.capabilities, writable=frozenset({Knob.IDLE})))
    assert not any(frozen(run([away()] * 40, context=bare)[0]))


def test_calm_thaws_one_by_one_the_last_frozen_first():
    answers, state = run([away()] * 16)
    assert frozen(answers)[-1] == ["k/big", "k/small"]
    held, state = run([away(shortage=HELD)] * 60, state=state, begin=116.0)
    assert frozen(held)[-1] == ["k/big", "k/small"], "the hold band thaws nobody"
    calm, _ = run([away(shortage=CALM)] * 70, state=state, begin=176.0)
    seen = frozen(calm)
    assert seen[29] == ["k/big", "k/small"]
    assert seen[30] == ["k/big"]
    assert seen[59] == ["k/big"]
    assert seen[60] == []


def test_containerd_8102_a_pod_that_is_being_deleted_is_thawed_so_that_it_can_exit():
    answers, state = run([away()] * 16)
    going = (replace(PODS[0]), replace(PODS[1], identity=replace(PODS[1].identity, terminating=True)), PODS[2])
    after, _ = run([away(going)], state=state, begin=116.0)
    assert frozen(answers)[-1] == ["k/big", "k/small"]
    assert frozen(after) == [["k/small"]]


def test_when_the_api_is_back_frozen_pods_are_evicted_and_thawed_with_that():
    _, state = run([away()] * 16)
    back = node(PODS, shortage=CALM, evictor=EvictorView())
    answers, state = run([back], state=state, begin=116.0)
    asked = [(one.way, one.name) for one in answers[0].victims]
    assert asked == [(Way.EVICT, "big"), (Way.EVICT, "small"), (Way.FREEZE, "big"), (Way.FREEZE, "small")]
    assert frozen(answers) == [["k/big", "k/small"]]
    sent = EvictorView(
        attempts=(
            Attempt(uid="big", way=Way.EVICT, outcome=Outcome.SENT, at=116.5),
            Attempt(uid="small", way=Way.EVICT, outcome=Outcome.BLOCKED, at=116.5),
        )
    )
    answers, _ = run([replace(back, evictor=sent)], state=state, begin=117.0)
    assert frozen(answers) == [[]], "one goes, the other one may not be evicted"
    late, _ = run([back] * 61, state=state, begin=117.0)
    assert frozen(late)[-1] == []


def test_nobody_is_frozen_for_ever():
    settings = KillSettings(freeze_max_seconds=20, hurt_seconds=1)
    seen = frozen(run([away((pod("a"),))] * 60, settings=settings)[0])
    longest = run_length = 0
    for groups in seen:
        run_length = run_length + 1 if groups else 0
        longest = max(longest, run_length)
    assert longest == 20
    assert seen[1:52] == [["k/a"]] * 20 + [[]] * 30 + [["k/a"]], "and it runs for thaw_seconds then"


def test_a_pod_that_went_away_is_not_asked_for():
    _, state = run([away()] * 16)
    assert frozen(run([away(())], state=state, begin=116.0)[0]) == [[]]


def test_a_restart_asks_for_nobody_so_that_the_executor_thaws():
    assert frozen(run([away()])[0]) == [[]]


LOOKS = st.builds(
    away,
    pods=st.lists(
        st.builds(
            pod,
            st.sampled_from("abcdef"),
            tier=st.sampled_from([Tier.BE, Tier.BE, Tier.LS, Tier.SYSTEM]),
            priority=st.integers(0, 2),
            memory=st.sampled_from([None, 0, GIB, 5 * GIB]),
            cpu=st.sampled_from([None, 0, 500]),
            terminating=st.booleans(),
            evictable=st.booleans(),
        ),
        max_size=6,
        unique_by=lambda one: one.identity.uid,
    ).map(tuple),
    seconds=st.sampled_from([None, 5.0, 60.0]),
    shortage=st.sampled_from([SHORT, CALM, HELD, None]),
    available=st.sampled_from([None, 0, GIB // 2, GIB, 3 * GIB, 50 * GIB]),
    node_psi_memory_full=st.sampled_from([None, 0.0, 0.9]),
    urgent=st.booleans(),
)


@given(st.lists(LOOKS, max_size=40))
def test_only_be_pods_that_may_go_are_ever_killed_or_frozen(looks):
    settings = KillSettings(hurt_seconds=0, step_seconds=0.1, emergency_seconds=0)
    answers, _ = run(looks, settings=settings)
    for look, answer in zip(looks, answers, strict=True):
        by_uid = {one.identity.uid: one for one in look.pods}
        assert len([one for one in answer.victims if one.way is Way.KILL]) <= 1
        for victim in answer.victims:
            if victim.way is Way.KILL:
                assert by_uid[victim.uid].tier is Tier.BE
                assert by_uid[victim.uid].identity.evictable
                assert not by_uid[victim.uid].identity.terminating
                assert by_uid[victim.uid].usage.memory_bytes != 0
                assert look.memory_available_bytes
        assert {request.knob for request in answer.requests} <= {Knob.FREEZE}


@given(st.lists(LOOKS, max_size=30))
def test_from_any_state_a_quiet_node_gets_everything_back(looks):
    settings = KillSettings(hurt_seconds=0, step_seconds=0.1, thaw_seconds=2)
    quiet = [node(tuple(pod(name) for name in "abcdef"), evictor=EvictorView(api_away_seconds=9.0))] * 20
    answers, _ = run(looks + quiet, settings=settings)
    assert (answers[-1].victims, answers[-1].requests, answers[-1].rung.level) == ((), (), 0)
