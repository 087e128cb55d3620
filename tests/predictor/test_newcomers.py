"""Young pods and roll-outs, by the pods of one node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.bound import LsPod
from predictor.newcomers import NOBODY, Crowd, Leaver, newcomers
from slacktide.forecast import Amount

NOW = 1_700_000_000.0
YOUNG = 3600.0
WEB = "Deployment/d/web"


def cpu(value):
    return Amount(cpu_millis=value, memory_bytes=0)


def pod(uid, request=4000, age=10.0, group="", leaving=False):
    started = None if age is None else NOW - age
    return LsPod(uid, group, cpu(request), started, leaving)


def judge(*pods, use=None, leavers=(), peaks=None, peak=None, bases=None):
    known, peaks, bases = use or {}, peaks or {}, bases or {}
    crowd = Crowd(
        bound=pods,
        leavers=leavers,
        use=lambda uid: cpu(known[uid]) if uid in known else None,
        group_peak=peaks.get,
        peak=cpu(peak),
        base=lambda uid: cpu(bases[uid]) if uid in bases else None,
    )
    found = newcomers(crowd, NOW, YOUNG)
    return found.count, found.beyond_peak.cpu_millis, found.beyond_now.cpu_millis


def test_nobody_is_new_on_a_node_of_known_pods():
    assert newcomers(Crowd(bound=[], leavers=[], use=lambda _: None, group_peak=lambda _: None), NOW, YOUNG) is NOBODY
    assert judge(pod("a", age=3600.0), use={"a": 100}) == (0, 0, 0)


@pytest.mark.parametrize(
    ("age", "use", "expected"),
    [
        # Just bound: no sample names it.
        (0.0, None, (1, 4000, 4000)),
        # It runs: what it uses is in the use of now, but says nothing about its peak.
        (60.0, 500, (1, 4000, 3500)),
        (3599.0, 500, (1, 4000, 3500)),
        (3600.0, 500, (0, 0, 0)),
        # More than it asked for: its use counts.
        (60.0, 6000, (1, 6000, 0)),
        # Old, but not measured (Katalyst issue 953, Koordinator 2.6.1): its request is substituted.
        (1e6, None, (1, 4000, 4000)),
        # Nobody says how old it is: then it is young.
        (None, 500, (1, 4000, 3500)),
    ],
)
def test_a_pod_counts_with_its_request_until_it_is_known(age, use, expected):
    assert judge(pod("a", age=age), use={} if use is None else {"a": use}) == expected


def test_a_pod_of_a_known_group_counts_with_the_peak_of_the_group_and_never_below_its_own_use():
    peaks = {WEB: cpu(1500)}
    assert judge(pod("a", group=WEB), peaks=peaks) == (1, 1500, 1500)
    assert judge(pod("a", group=WEB), use={"a": 1700}, peaks=peaks) == (1, 1700, 0)
    assert judge(pod("a", group="CronJob/d/nightly"), peaks={"CronJob/d/nightly": cpu(9000)}) == (1, 9000, 9000)


def test_a_part_of_the_group_that_is_not_known_is_its_request():
    assert judge(pod("a", group=WEB), peaks={WEB: Amount(memory_bytes=7)}) == (1, 4000, 4000)


def test_a_roll_out_counts_once_with_the_larger_of_old_and_new():
    # Koordinator issue 1906 and case 2: the old pod's use is still measured, its replacement counts by request.
    old = Leaver(WEB, in_now=cpu(3000), in_peak=cpu(3000))
    assert judge(pod("new", group=WEB), leavers=[old]) == (1, 1000, 1000)
    big = Leaver(WEB, in_now=cpu(9000), in_peak=cpu(9000))
    assert judge(pod("new", group=WEB), leavers=[big]) == (1, 0, 0)


def test_whoever_left_counts_only_where_it_still_is():
    assert judge(pod("new", group=WEB), leavers=[Leaver(WEB, cpu(0), cpu(3000))]) == (1, 1000, 4000)
    assert judge(pod("new", group=WEB), leavers=[Leaver(WEB, cpu(3000), cpu(0))]) == (1, 4000, 1000)


def test_a_leaver_makes_no_room_for_another_group_nor_for_pods_that_nothing_controls():
    other = Leaver("Deployment/d/db", cpu(3000), cpu(3000))
    assert judge(pod("new", group=WEB), leavers=[other]) == (1, 4000, 4000)
    assert judge(pod("new"), leavers=[Leaver("", cpu(3000), cpu(3000))]) == (1, 4000, 4000)


def test_a_pod_that_is_leaving_is_no_newcomer():
    assert judge(pod("a", leaving=True)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("peak", "bases", "beyond"),
    [
        # Just come: nothing of it is in the peak.
        (6000, {"a": 6000, "b": 6000}, 8000),
        # The peak has learned of some of it.
        (9000, {"a": 6000, "b": 6000}, 5000),
        (20000, {"a": 6000, "b": 6000}, 0),
        # What the first of them found counts: the second found the first in the peak.
        (9000, {"a": 6000, "b": 9000}, 5000),
        # An evening's peak that is over.
        (3000, {"a": 6000, "b": 6000}, 8000),
        # They were there before anybody looked.
        (9000, {}, 8000),
    ],
)
def test_what_the_peak_has_learned_of_newcomers_is_not_added_again(peak, bases, beyond):
    assert judge(pod("a"), pod("b"), peak=peak, bases=bases) == (2, beyond, 8000)


@given(st.integers(0, 20000), st.integers(0, 20000), st.integers(0, 20000))
def test_a_peak_that_rises_never_leaves_more_for_sale(base, peak, extra):
    def needed(value):
        return value + judge(pod("a"), peak=value, bases={"a": base})[1]

    assert needed(peak + extra) >= needed(peak)


AMOUNT = st.integers(0, 10_000)
PODS = st.lists(
    st.tuples(AMOUNT, st.sampled_from(["", WEB, "Job/d/x"]), st.floats(0, 7200), st.one_of(st.none(), AMOUNT)),
    min_size=1,
    max_size=6,
)
LEAVERS = st.lists(st.tuples(st.sampled_from([WEB, "Job/d/x"]), AMOUNT, AMOUNT), max_size=4)


@given(PODS, LEAVERS, st.one_of(st.none(), AMOUNT), st.data())
def test_more_use_of_a_pod_that_stays_never_leaves_more_for_sale(pods, leavers, peak, data):
    bound = [pod(str(i), request, age, group) for i, (request, group, age, _) in enumerate(pods)]
    use = {str(i): used for i, (*_, used) in enumerate(pods) if used is not None}
    going = [Leaver(group, cpu(now), cpu(then)) for group, now, then in leavers]
    peaks = {} if peak is None else {WEB: cpu(peak)}
    base_now = sum(use.values()) + sum(now for _, now, _ in leavers)
    _, beyond_peak, beyond_now = judge(*bound, use=use, leavers=going, peaks=peaks)
    assert beyond_peak >= 0
    assert beyond_now >= 0
    for uid in use:
        more = {**use, uid: use[uid] + data.draw(AMOUNT)}
        _, more_peak, more_now = judge(*bound, use=more, leavers=going, peaks=peaks)
        assert more_peak >= beyond_peak
        assert base_now - use[uid] + more[uid] + more_now >= base_now + beyond_now


@given(PODS, LEAVERS)
def test_a_pod_that_is_no_longer_measured_never_leaves_more_for_sale(pods, leavers):
    bound = [pod(str(i), request, age, group) for i, (request, group, age, _) in enumerate(pods)]
    use = {str(i): used for i, (*_, used) in enumerate(pods) if used is not None}
    going = [Leaver(group, cpu(now), cpu(then)) for group, now, then in leavers]
    _, beyond_peak, _ = judge(*bound, use=use, leavers=going)
    for uid in use:
        less = {other: used for other, used in use.items() if other != uid}
        # Its use of then is what the peak was made with; only the request can take its place.
        _, less_peak, _ = judge(*bound, use=less, leavers=going)
        asked = pods[int(uid)][0]
        assert less_peak >= beyond_peak or use[uid] > asked
