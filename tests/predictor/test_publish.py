from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.clock import Instant
from predictor.publish import RISE_NOTE, Cause, Rise, Standing, decide_publication
from slacktide.forecast import Amount, Forecast, Terms

CAPACITY = 10_000


@dataclasses.dataclass(frozen=True)
class Rules:
    rise_wait_seconds: float = 30.0
    rise_step_percent: float = 20.0
    dead_band_percent: float = 2.0


def both(value):
    return Amount(cpu_millis=value, memory_bytes=value)


def forecast(value, closed="", ttl=60.0, fading=None, mid=None, now=0):
    return Forecast(
        at=0.0,
        ttl_seconds=ttl,
        peak=both(0),
        reclaimable=both(None if closed else value),
        terms=Terms(capacity=both(CAPACITY), reserve=both(0), peak=both(0), now=both(now), sold=both(0), fading=fading),
        closed=closed,
        mid=both(mid),
    )


def at(seconds):
    return Instant(1000.0 + seconds, 1_700_000_000.0 + seconds)


class Node:
    """Applies decisions as the shell does, at times that the test names."""

    def __init__(self, rules=None, standing=None):
        self.rules = rules or Rules()
        self.standing = standing

    def __call__(self, seconds, value, sold=0, closed="", goes_out=True, **more):
        computed = forecast(value, closed, **more)
        decision = decide_publication(self.standing, computed, both(sold), at(seconds), self.rules)
        self.standing = decision.standing if goes_out else decision.held
        return decision.publication


def test_the_first_publication_goes_out_whole_and_at_once():
    published = Node()(0, 7000)
    assert published.cause is Cause.FIRST
    assert published.published == both(7000)
    assert published.forecast.reclaimable == both(7000)
    assert published.forecast.at == at(0).wall


def test_nothing_is_published_on_a_node_that_nobody_measures():
    assert Node()(0, None, closed="no sample from the agent yet", now=None) is None
    assert Node()(0, 7000, fading=0.5) is None


def test_a_node_that_is_closed_from_the_first_sample_on_says_why():
    published = Node()(0, None, closed="closed by the agent: LS is short of CPU")
    assert published.forecast.closed == "closed by the agent: LS is short of CPU"
    assert published.published == both(0)


@pytest.mark.parametrize("drop", [1, 90, 899, 9000])
def test_a_drop_of_any_size_goes_out_at_once(drop):
    # Koordinator hides a drop of up to 10 % for 300 s.
    node = Node()
    node(0, 9000)
    published = node(2, 9000 - drop)
    assert published.cause is Cause.DROP
    assert published.published == both(9000 - drop)


def test_a_rise_waits_and_then_goes_by_steps():
    node = Node()
    node(0, 1000)
    assert node(2, 9000) is None
    assert node(31.9, 9000).cause is Cause.REFRESH
    assert node.standing.offered == both(1000)
    first = node(32, 9000)
    assert (first.cause, first.published) == (Cause.RISE, both(3000))
    assert RISE_NOTE in first.forecast.terms.note
    assert node(34, 9000) is None
    assert node(62, 9000).published == both(5000)
    assert node(92, 9000).published == both(7000)
    last = node(122, 9000)
    assert last.published == both(9000)
    assert RISE_NOTE not in last.forecast.terms.note


def test_a_rise_is_no_larger_than_the_least_that_was_seen_while_it_waited():
    node = Node()
    node(0, 1000)
    node(2, 2800)
    node(10, 1300)
    node(15, 2900)
    assert node(32, 2900).published == both(1300)


def test_a_rise_that_is_interrupted_waits_anew():
    node = Node()
    node(0, 1000)
    node(2, 2500)
    node(20, 1000)
    node(25, 2500)
    assert node(40, 2500).cause is Cause.REFRESH
    assert node.standing.offered == both(1000)
    assert node(55, 2500).published == both(2500)


def test_a_rise_inside_the_dead_band_does_not_go_out():
    node = Node()
    node(0, 1000)
    assert all(node(t, 1199) is None for t in range(1, 20))
    node(100, 1199)
    assert node.standing.offered == both(1000)
    node(101, 1200)
    assert node(131, 1200).published == both(1200)


def test_the_status_is_never_below_what_is_sold():
    # crane #890: a peak of LS set the resource to 0 and a kubelet restart killed what ran.
    node = Node()
    node(0, 5000, sold=4000)
    published = node(2, 500, sold=4000)
    assert published.published == both(4000)
    assert published.forecast.reclaimable == both(500)


def test_more_sold_than_published_is_written_at_once():
    node = Node()
    node(0, 500)
    published = node(2, 500, sold=800)
    assert (published.cause, published.published) == (Cause.SOLD, both(800))
    assert node(4, 500, sold=300).published == both(500)


def test_what_is_sold_does_not_hide_a_jump_of_what_is_offered():
    node = Node()
    node(0, 4000, sold=4000)
    node(2, 1000, sold=4000)
    published = node(4, 9000, sold=0)
    assert published.published == both(1000)
    assert published.forecast.reclaimable == both(1000)


def test_a_closed_node_keeps_what_is_sold_and_reopens_by_steps():
    node = Node()
    node(0, 9000, sold=1500)
    closed = node(2, None, sold=1500, closed="no sample from the agent for over 15 s")
    assert (closed.cause, closed.published) == (Cause.CLOSED, both(1500))
    assert closed.forecast.reclaimable == Amount()
    assert closed.forecast.closed == "no sample from the agent for over 15 s"
    reopened = node(10, 9000, sold=1500)
    assert (reopened.cause, reopened.published) == (Cause.REOPENED, both(1500))
    assert reopened.forecast.closed == ""
    assert node(40, 9000, sold=1500).published == both(3500)


def test_unknown_sold_holds_the_status():
    node = Node()
    node(0, 5000)
    decision = decide_publication(
        node.standing, forecast(None, "what is sold here is not known"), Amount(), at(2), Rules()
    )
    assert decision.publication.published == both(5000)
    assert decision.publication.forecast.reclaimable == Amount()


def test_unchanged_numbers_are_written_again_every_third_of_the_ttl_only():
    node = Node()
    node(0, 5000)
    written = [t for t in range(1, 62) if node(t, 5000)]
    assert written == [20, 40, 60]


def test_zero_stays_zero_without_a_write():
    node = Node()
    node(0, 0)
    assert node(1, 0) is None
    assert node.standing.published == both(0)


def test_a_restart_takes_up_what_stands_and_does_not_jump():
    standing = Standing(offered=both(1000), published=both(1000))
    node = Node(standing=standing)
    assert node(0, 9000).cause is Cause.REFRESH
    assert node.standing.offered == both(1000)
    assert node(30, 9000).published == both(3000)


def test_a_restart_beside_a_closed_node_reopens_from_what_is_sold():
    standing = Standing(offered=Amount(), published=both(700), closed="no sample")
    node = Node(standing=standing)
    assert node(0, 9000, sold=700).published == both(700)
    assert node(30, 9000, sold=700).published == both(2700)


def test_a_silent_node_only_falls():
    node = Node()
    node(0, 5000)
    for seconds in range(2, 200, 2):
        node(seconds, 9000, fading=0.9)
        assert node.standing.offered == both(5000)
    assert node(200, 4000, fading=0.5).cause is Cause.DROP
    # It speaks again: the rise waits from now on.
    assert node(202, 9000) is None
    assert node(231, 9000).cause is Cause.REFRESH
    assert node(232, 9000).published == both(6000)


def test_a_node_that_is_silent_from_the_start_is_left_alone():
    assert Node()(0, 5000, fading=0.9) is None


def test_a_mid_tier_that_shrinks_goes_out_at_once():
    node = Node()
    node(0, 5000, mid=700)
    published = node(2, 5000, mid=699)
    assert (published.cause, published.forecast.mid) == (Cause.DROP, both(699))
    assert node(4, 5000, mid=900) is None


def test_a_rise_that_did_not_go_out_stays_due_and_never_grows_beyond_what_was_seen():
    node = Node()
    node(0, 1000)
    node(2, 2800)
    assert node(32, 2800, goes_out=False).cause is Cause.RISE
    assert node.standing.offered == both(1000)
    assert node(34, 2300, goes_out=False).published == both(2300)
    assert node(36, 2900).published == both(2300)


def test_a_drop_that_did_not_go_out_is_judged_anew():
    node = Node()
    node(0, 5000)
    assert node(2, 4000, goes_out=False).cause is Cause.DROP
    assert node.standing.offered == both(5000)
    assert node(4, 3000).published == both(3000)


def test_what_matters_most_goes_first():
    def urgency(standing, seconds, value, sold=0, closed=""):
        node = Node(standing=standing)
        return node(seconds, value, sold, closed).urgency

    written = Standing(offered=both(5000), published=both(5000), written=at(0).monotonic)
    waited = dataclasses.replace(written, cpu_rise=Rise(at(0).monotonic, 9000), memory_rise=Rise(at(0).monotonic, 9000))
    order = [
        urgency(written, 5, None, closed="LS is short of CPU"),
        urgency(written, 5, 1000),
        urgency(written, 5, 4999),
        urgency(written, 5, 5000, sold=7000),
        # Readers are about to take these numbers for old ones.
        urgency(written, 50, 5000),
        urgency(None, 5, 5000),
        urgency(waited, 35, 9000),
        urgency(written, 30, 5000),
        urgency(written, 20, 5000),
    ]
    assert order == sorted(order)
    assert len(set(order)) == len(order)


TURNS = st.lists(
    st.tuples(st.floats(0.5, 60), st.one_of(st.none(), st.integers(0, CAPACITY)), st.integers(0, CAPACITY)), max_size=40
)


@given(TURNS)
def test_whatever_happens_the_rules_hold(turns):
    rules = Rules()
    node = Node(rules)
    seconds, offered, last_rise = 0.0, None, -1e9
    opened = False
    for step, value, sold in turns:
        seconds += step
        before = node.standing
        node(seconds, value, sold, "" if value is not None else "closed")
        after = node.standing
        if after is None:
            continue
        new = after.offered.cpu_millis
        assert after.published.cpu_millis >= sold
        assert after.published.cpu_millis == max(new or 0, sold)
        if value is None:
            assert new is None
        else:
            assert new <= value
            if opened and offered is not None and value < offered:
                assert new == value
            base = offered if offered is not None else min(sold, value)
            if before is not None and new > base:
                assert new - base <= CAPACITY * rules.rise_step_percent / 100
                assert seconds - last_rise >= rules.rise_wait_seconds
                last_rise = seconds
        opened, offered = True, new


@given(st.lists(st.floats(0.1, 100), max_size=20), st.integers(0, CAPACITY), st.integers(0, CAPACITY))
def test_time_alone_never_raises_a_silent_node(steps, value, sold):
    node = Node()
    node(0, value, sold)
    seconds, offered, published = 0.0, value, max(value, sold)
    for step in steps:
        seconds += step
        node(seconds, None, sold, "no sample from the agent for over 15 s")
        assert node.standing.offered.cpu_millis is None
        assert sold <= node.standing.published.cpu_millis <= published
        published = node.standing.published.cpu_millis
    assert offered == value
