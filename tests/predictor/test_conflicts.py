from __future__ import annotations

from predictor.budget import Budget
from predictor.conflicts import NO_CONFLICT, ConflictRules, changed, watched
from slacktide.forecast import Amount

RULES = ConflictRules(changes=3, quiet_seconds=600.0)
A, B = Amount(cpu_millis=1), Amount(cpu_millis=2)


def test_some_foreign_changes_are_set_right_and_too_many_stop_us():
    one = changed(NO_CONFLICT, A, 0.0, RULES)
    two = changed(one, A, 100.0, RULES)
    assert one.stopped is None
    assert two.stopped is None
    assert changed(two, A, 200.0, RULES).stopped == 200.0
    # Far apart they are single accidents.
    assert changed(two, A, 650.0, RULES).stopped is None


def test_publishing_goes_on_once_the_other_stands_still():
    stopped = changed(changed(changed(NO_CONFLICT, A, 0.0, RULES), A, 1.0, RULES), A, 2.0, RULES)
    stopped = watched(stopped, A, 500.0, RULES)
    stopped = watched(stopped, B, 501.0, RULES)
    stopped = watched(stopped, B, 1100.0, RULES)
    assert stopped.stopped is not None
    assert watched(stopped, B, 1101.0, RULES) is NO_CONFLICT


def test_a_budget_fills_with_time_up_to_its_burst():
    budget = Budget().refilled(0.0, 10.0, 2)
    budget = budget.spent().spent()
    assert budget.spent() is None
    assert budget.refilled(0.05, 10.0, 2).spent() is None
    assert budget.refilled(0.1, 10.0, 2).spent() is not None
    assert budget.refilled(1e6, 10.0, 2).tokens == 2.0
    # A clock that went back gives nothing, and takes nothing.
    assert budget.refilled(-5.0, 10.0, 2).tokens == budget.tokens
