from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.cluster import errors
from slacktide.cluster.retry import Backoff, repeated


@settings(deadline=None)
@given(st.floats(0.01, 10), st.floats(10, 100), st.integers(1, 200), st.floats(0, 0.999))
def test_backoff_stays_between_half_and_whole_of_the_doubled_delay(base, cap, failures, random):
    backoff = Backoff(base, cap, lambda: random)
    delays = [backoff.next() for _ in range(failures)]
    for number, delay in enumerate(delays):
        whole = min(cap, base * 2.0**number)
        assert whole / 2 <= delay <= whole
    backoff.reset()
    assert backoff.next() <= base


class Calls:
    """Raises the given errors one after the other, then returns "done"."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.made = 0
        self.waits = []

    def __call__(self):
        self.made += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def wait(self, seconds):
        self.waits.append(seconds)
        return False

    def run(self, budget=10.0):
        return repeated(self, budget_seconds=budget, wait=self.wait, uniform=lambda: 0.0)


def busy(retry_after):
    return errors.TooManyRequests(429, "TooManyRequests", "busy", retry_after)


def test_429_waits_as_long_as_the_server_asks():
    calls = Calls(busy(3.0), busy(None))
    assert calls.run() == "done"
    assert calls.waits == [3.0, 1.0]


def test_5xx_is_repeated_only_where_the_server_names_a_time():
    calls = Calls(errors.ServerError(503, "", "starting", 2.0))
    assert calls.run() == "done"
    assert calls.waits == [2.0]
    with pytest.raises(errors.ServerError):
        Calls(errors.ServerError(500, "", "broken")).run()


def test_waits_never_add_up_to_more_than_the_budget():
    calls = Calls(*[busy(4.0)] * 10)
    with pytest.raises(errors.TooManyRequests):
        calls.run(budget=10.0)
    assert calls.waits == [4.0, 4.0]


def test_a_server_that_says_at_once_is_not_asked_for_ever():
    calls = Calls(*[busy(0.0)] * 100)
    with pytest.raises(errors.TooManyRequests):
        calls.run()
    assert calls.made == 5


def test_dropped_connection_is_tried_once_more_at_once():
    dropped = errors.Unreachable("reset", dropped=True)
    calls = Calls(dropped)
    assert calls.run() == "done"
    assert calls.waits == []
    calls = Calls(dropped, dropped)
    with pytest.raises(errors.Unreachable):
        calls.run()
    assert calls.made == 2


def test_timeouts_and_refusals_are_not_repeated():
    for error in (errors.Unreachable("silent"), errors.NotFound(404, "NotFound", "no")):
        calls = Calls(error)
        with pytest.raises(errors.ClusterError):
            calls.run()
        assert calls.made == 1


def test_closing_ends_a_wait():
    calls = Calls(busy(1.0))
    with pytest.raises(errors.TooManyRequests):
        repeated(calls, budget_seconds=10.0, wait=lambda _: True, uniform=lambda: 0.0)
    assert calls.made == 1
