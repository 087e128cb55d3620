from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.policy.rung import RungRules, RungState, RungStatus, Verdict, advance

RULES = RungRules(top=3, quiet_seconds=10.0, min_dwell_seconds=20.0)
CALM = Verdict(needed=0, calm=True, reason="calm")
HELD = Verdict(needed=0, calm=False, reason="near")
UNKNOWN = Verdict(needed=None, calm=False, reason="not known")


def need(level, *, calm=False):
    return Verdict(needed=level, calm=calm, reason=f"needs {level}")


def run(looks, state=None, rules=RULES):
    state = state or RungState()
    levels = []
    for at, verdict in looks:
        state = advance(state, verdict, at, rules)
        levels.append(state.level)
    return levels, state


def test_it_rises_to_the_level_that_is_needed_at_once():
    state = advance(RungState(), need(2), 5.0, RULES)
    assert state == RungState(level=2, since=5.0, quiet_since=None, reason="needs 2")


def test_it_falls_one_level_at_a_time():
    levels, _ = run([(0.0, need(3)), *[(float(at), CALM) for at in range(1, 60)]])
    falls = [at for at in range(1, 60) if levels[at] < levels[at - 1]]
    assert [levels[at] for at in falls] == [2, 1]
    assert falls == [20, 40], "min_dwell is longer than quiet here"


def test_quiet_begins_anew_after_each_level():
    rules = replace(RULES, min_dwell_seconds=0.0)
    levels, _ = run([(0.0, need(2)), *[(float(at), CALM) for at in range(1, 40)]], rules=rules)
    assert [at for at in range(1, 40) if levels[at] < levels[at - 1]] == [11, 21]


@pytest.mark.parametrize("broken", [HELD, UNKNOWN, need(1)])
def test_what_is_not_calm_ends_the_quiet(broken):
    looks = [(0.0, need(1)), *[(float(at), CALM) for at in range(1, 20)], (20.0, broken)]
    levels, state = run([*looks, (21.0, CALM), (30.0, CALM)])
    assert levels[-1] == 1
    levels, _ = run([(31.0, CALM)], state)
    assert levels == [0]


def test_a_level_that_is_needed_is_held_even_by_a_verdict_that_says_calm():
    levels, _ = run([(0.0, need(3)), *[(float(at), need(7, calm=True)) for at in range(1, 100)]])
    assert set(levels) == {3}


def test_a_lower_need_that_is_calm_lets_go_down_to_it_and_no_further():
    levels, _ = run([(0.0, need(3)), *[(float(at), need(1, calm=True)) for at in range(1, 200)]])
    assert levels[-1] == 1


def test_what_is_not_known_changes_nothing_for_ever():
    levels, state = run([(0.0, need(2)), *[(float(at), UNKNOWN) for at in range(1, 1000)]])
    assert set(levels) == {2}
    assert state.since == 0.0


def test_a_clock_that_steps_back_does_not_release():
    levels, _ = run([(100.0, need(1)), (101.0, CALM), (50.0, CALM), (60.0, CALM)])
    assert set(levels) == {1}


def test_status_says_engaged_and_exhausted():
    status = RungStatus(name="x", level=0, top=2, since=None, reason="")
    assert (status.engaged, status.exhausted) == (False, False)
    assert replace(status, level=1).engaged
    assert replace(status, level=2).exhausted


verdicts = st.builds(
    Verdict,
    needed=st.one_of(st.none(), st.integers(0, 5)),
    calm=st.booleans(),
    reason=st.just("because"),
)
looks = st.lists(st.tuples(st.floats(0.01, 30), verdicts), min_size=1, max_size=60)
rules = st.builds(RungRules, top=st.integers(1, 5), quiet_seconds=st.floats(0, 40), min_dwell_seconds=st.floats(0, 40))


@given(looks=looks, rules=rules)
def test_invariants_on_any_trace(looks, rules):
    state, now, changed_at = RungState(), 0.0, None
    for seconds, verdict in looks:
        now += seconds
        after = advance(state, verdict, now, rules)
        assert 0 <= after.level <= rules.top
        if after.level > state.level:
            assert verdict.needed is not None
            assert after.level == min(verdict.needed, rules.top)
        if after.level < state.level:
            assert after.level == state.level - 1
            assert verdict.calm
            assert verdict.needed is not None
            assert verdict.needed < state.level
            assert now - changed_at >= max(rules.quiet_seconds, rules.min_dwell_seconds) - 1e-9
        if verdict.needed is not None and min(verdict.needed, rules.top) > state.level:
            assert after.level > state.level
        if after.level != state.level:
            assert after.since == now
            changed_at = now
        assert bool(after.reason) == (after.level > 0)
        state = after


@given(looks=looks, rules=rules)
def test_from_any_state_a_quiet_node_opens_it(looks, rules):
    _, state = run([(sum(seconds for seconds, _ in looks[: n + 1]), verdict) for n, (_, verdict) in enumerate(looks)])
    state = replace(state, level=min(state.level, rules.top))
    now = 10_000.0
    for _ in range(2 * rules.top + 2):
        state = advance(state, CALM, now, rules)
        now += max(rules.quiet_seconds, rules.min_dwell_seconds) + 0.01
    assert state.level == 0
    assert state.reason == ""
