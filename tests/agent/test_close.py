from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.eviction import Attempt, EvictorView, Outcome, Way
from agent.policy.base import Context, arbitrate
from agent.policy.close import Close, CloseSettings
from agent.policy.rung import RungStatus
from agent.pressure import Shortage
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.status import Usage
from slacktide.tier import Tier

CONTEXT = Context(
    capabilities=Capabilities(mode="v2", cpu_version=2, writable=frozenset(Knob), psi=True, run_delay=True)
)
SETTINGS = CloseSettings()
CALM = Shortage(short=False, calm=True, reason="LS is calm")
SHORT = Shortage(short=True, calm=False, reason="LS waits")
HELD = Shortage(short=False, calm=False, reason="near the cut")
UNKNOWN = Shortage(short=None, calm=False, reason="no LS pressure signal")


def rung(name, level=2, top=2):
    return RungStatus(name=name, level=level, top=top, since=0.0, reason=f"{name} says so")


def node(at=0.0, shortage=CALM, available=500, ls=1000, ladder=(), pods=(), attempts=()):
    return NodeSnapshot(
        at=at,
        window_seconds=1.0,
        capacity=Usage(cpu_millis=4000, memory_bytes=1000),
        tiers={Tier.LS: Usage(cpu_millis=ls), Tier.SYSTEM: Usage(cpu_millis=10), Tier.BE: Usage(cpu_millis=10)},
        memory_available_bytes=available,
        shortage=shortage,
        ladder={status.name: status for status in ladder},
        pods=pods,
        evictor=EvictorView(attempts=attempts),
    )


def run(looks, state=None, settings=SETTINGS, context=CONTEXT):
    """Decide once a second; the answers."""
    policy = Close()
    state = policy.start(context) if state is None else state
    answers = []
    for at, look in enumerate(looks):
        desired, state = policy.decide(replace(look, at=float(at)), state, settings, context)
        answers.append(desired)
    return answers, state


def closed(looks, **more):
    return [bool(one.closed) for one in run(looks, **more)[0]]


def test_a_quiet_node_is_open():
    answers, _ = run([node()])
    assert (answers[0].closed, answers[0].reason, answers[0].rung.level) == ("", "open", 0)


@pytest.mark.parametrize(
    ("look", "patience", "words"),
    [
        (node(shortage=SHORT), SETTINGS.short_seconds, "LS is short of CPU: LS waits"),
        (
            node(ladder=[rung("contention")]),
            SETTINGS.exhausted_seconds,
            "contention can do no more: contention says so",
        ),
        (node(ladder=[rung("suppress")]), SETTINGS.exhausted_seconds, "suppress can do no more"),
        (node(available=99), 0, "9.9 % of memory is available, closed below 10 %"),
        (node(ladder=[rung("evict", level=1)]), 0, "evict is on"),
        (node(ladder=[rung("kill", level=1)]), 0, "kill is on"),
        (node(ls=None), SETTINGS.blind_seconds, "not measured: use of LS"),
        (node(available=None), SETTINGS.blind_seconds, "not measured: available memory"),
    ],
)
def test_each_cause_closes_when_its_time_is_over(look, patience, words):
    answers, _ = run([look] * (int(patience) + 1))
    assert [bool(one.closed) for one in answers] == [False] * int(patience) + [True]
    assert words in answers[-1].closed
    assert answers[-1].rung.reason == answers[-1].closed
    assert words in arbitrate([("close", answers[-1])]).closed


def test_a_cause_that_comes_and_goes_does_not_close():
    assert not any(closed([node(shortage=SHORT), node()] * 20))


def test_what_is_engaged_but_not_at_its_end_does_not_close():
    assert not any(closed([node(ladder=[rung("contention", level=1)])] * 30))


def test_it_names_every_cause_and_follows_them():
    answers, _ = run([node(available=50, ladder=[rung("kill")]), node(available=50)])
    assert "5.0 % of memory" in answers[0].closed
    assert "kill is on" in answers[0].closed
    assert "kill" not in answers[1].closed


def test_it_opens_after_the_quiet_time_and_not_before_the_dwell():
    settings = CloseSettings(quiet_seconds=5, min_dwell_seconds=20)
    answers = closed([node(available=50)] + [node()] * 25, settings=settings)
    assert answers == [True] * 20 + [False] * 6


def test_one_look_in_the_hold_band_begins_the_quiet_time_anew():
    settings = CloseSettings(quiet_seconds=5, min_dwell_seconds=0)
    looks = [node(available=50), *[node()] * 4, node(available=110), *[node()] * 6]
    assert closed(looks, settings=settings) == [True] * 11 + [False]
    near = [node(available=50), *[node(available=110)] * 60]
    assert all(closed(near, settings=settings)), "memory inside the hold band does not open"


def test_unknown_pressure_never_opens_and_never_closes():
    settings = CloseSettings(quiet_seconds=2, min_dwell_seconds=0)
    assert not any(closed([node(shortage=UNKNOWN)] * 100, settings=settings))
    assert all(closed([node(available=50)] + [node(shortage=UNKNOWN)] * 100, settings=settings))


def test_a_node_that_has_no_pressure_signal_opens_again():
    bare = Context(capabilities=Capabilities(mode="v1", cpu_version=1))
    settings = CloseSettings(quiet_seconds=2, min_dwell_seconds=0)
    assert not closed([node(available=50)] + [node(shortage=UNKNOWN)] * 5, settings=settings, context=bare)[-1]


def test_an_evicted_pod_that_is_still_here_keeps_the_node_closed():
    pod = PodSnapshot(identity=PodIdentity(namespace="d", name="be", uid="u", tier=Tier.BE), group="kubepods/u")
    sent = Attempt(uid="u", way=Way.EVICT, outcome=Outcome.SENT, at=0.0)
    answers, _ = run([node(pods=(pod,), attempts=(sent,))])
    assert answers[0].closed == "evicted and not gone yet: d/be"
    assert not any(closed([node(attempts=(sent,))]))
    frozen = Attempt(uid="u", way=Way.FREEZE, outcome=Outcome.SENT, at=0.0)
    assert not any(closed([node(pods=(pod,), attempts=(frozen,))]))


def test_a_restart_that_finds_be_limited_begins_closed():
    """caelus e8f0bda: closed was sent once and lost with a restart."""
    limited = replace(CONTEXT, adopted_be_limit_millis=500)
    settings = CloseSettings(quiet_seconds=3, min_dwell_seconds=0)
    answers, _ = run([node()] * 5, settings=settings, context=limited)
    assert [bool(one.closed) for one in answers] == [True] * 3 + [False] * 2
    assert "before the agent started again" in answers[0].closed


def test_a_closed_node_says_so_in_every_answer():
    answers, _ = run([node(available=50)] * 10)
    assert all("memory" in one.closed for one in answers)


LOOKS = st.builds(
    node,
    shortage=st.sampled_from([CALM, SHORT, HELD, UNKNOWN, None]),
    available=st.sampled_from([None, 10, 99, 110, 500]),
    ls=st.sampled_from([None, 100]),
    ladder=st.lists(
        st.builds(rung, st.sampled_from(["suppress", "contention", "evict", "kill"]), st.integers(0, 2)), max_size=3
    ),
)


@given(st.lists(LOOKS, max_size=60))
def test_never_opens_while_a_cause_shows_and_never_flaps_faster_than_the_dwell(looks):
    settings = CloseSettings(quiet_seconds=4, min_dwell_seconds=6)
    answers, _ = run(looks, settings=settings)
    states = [bool(one.closed) for one in answers]
    changes = [at for at in range(1, len(states)) if states[at] != states[at - 1]]
    for at in changes:
        if not states[at]:
            quiet = looks[at - 4 : at + 1]
            assert all(look.shortage is CALM and look.memory_available_bytes == 500 for look in quiet)
    opened = [at for at in changes if not states[at]]
    for at in opened:
        assert all(states[max(0, at - 6) : at]) or at < 6
    quiet = run(looks + [node()] * 20, settings=settings)[0]
    assert not quiet[-1].closed


@given(st.lists(LOOKS, max_size=20))
def test_it_is_deterministic(looks):
    assert run(looks) == run(looks)


def test_the_same_causes_keep_their_reason_whatever_their_numbers_are_by_now():
    # Each change of the reason goes out to the cluster: one with a figure in it would, every turn.
    looks = [node(available=50 + turn) for turn in range(5)]
    answers, state = run(looks)
    assert {one.closed for one in answers} == {answers[0].closed}
    assert "5.0 % of memory is available" in answers[0].closed
    (another,), _ = run([node(available=60, ladder=[rung("evict")])], state)
    assert "evict is on" in another.closed
    assert "6.0 % of memory is available" in another.closed
