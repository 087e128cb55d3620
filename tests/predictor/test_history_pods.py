"""Pods by the hour, states, and nodes that are made anew."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.history import Batch, open_history
from predictor.slots import SLOT_MILLIS
from predictor.store.columns import HOUR_MILLIS, SLOTS_PER_HOUR, Pod, PodHours, PodReport, no_hours
from predictor.store.combine import combined_hours, joined_hours
from tests.predictor.support import make_sample

HOUR = 472_000
NAN = float("nan")


def pod(uid, **values):
    known = {"namespace": "shop", "name": f"web-{uid}", "node": "n1", "group": "ReplicaSet/web", "tier": "ls"}
    return Pod(uid, **{**known, "requested_cpu": 500.0, "requested_memory": float(1 << 30), **values})


def hours(*rows):
    """Rows of (pod, hour, slots, cpu mean, cpu max); memory is a thousand times CPU."""
    if not rows:
        return no_hours()
    pods = list(dict.fromkeys(row[0] for row in rows))
    where = np.array([pods.index(row[0]) for row in rows])
    hour, slots = (np.array([row[k] for row in rows]) for k in (1, 2))
    mean, highest = (np.array([row[k] for row in rows], dtype=np.float64) for k in (3, 4))
    return PodHours(pods, where, hour, slots, mean, highest, mean * 1000, highest * 1000)


def read(history, since_hour=0):
    rows = {}
    for part in history.pod_hours(since_hour * HOUR_MILLIS):
        for p, h, n, mean, top, memory in zip(
            part.pod, part.hour, part.slots, part.cpu_mean, part.cpu_max, part.memory_max, strict=True
        ):
            key = (part.pods[p].uid, int(h))
            assert key not in rows
            rows[key] = (int(n), *(None if math.isnan(v) else v for v in (mean, top, memory)))
    return rows


@pytest.fixture
def history(tmp_path):
    store = open_history(str(tmp_path))
    yield store
    store.close()


def test_closed_hours_add_up_and_open_ones_are_replaced(history):
    a, b = pod("a"), pod("b")
    history.save_pods(PodReport(hours((a, HOUR, 12, 10, 20)), hours((a, HOUR + 1, 3, 5, 6), (b, HOUR + 1, 1, 7, 7))))
    history.save_pods(PodReport(no_hours(), hours((a, HOUR + 1, 4, 6, 9))))
    assert read(history) == {("a", HOUR): (12, 10, 20, 20_000), ("a", HOUR + 1): (4, 6, 9, 9000)}


def test_an_hour_that_came_in_two_pieces_is_one_row(history):
    a = pod("a")
    history.save_pods(PodReport(hours((a, HOUR, 8, 10, 20)), no_hours()))
    history.save_pods(PodReport(hours((a, HOUR, 4, 40, 15)), no_hours()))
    assert read(history) == {("a", HOUR): (12, 20, 20, 20_000)}


def test_what_was_not_measured_stays_so(history):
    history.save_pods(PodReport(hours((pod("a", requested_cpu=NAN), HOUR, 12, NAN, NAN)), no_hours()))
    assert read(history) == {("a", HOUR): (12, None, None, None)}
    (part, _) = history.pod_hours(0)
    assert math.isnan(part.pods[0].requested_cpu)
    assert part.pods[0].requested_memory == float(1 << 30)


def test_what_is_learned_of_a_pod_later_stands_and_is_not_unlearned(history, tmp_path):
    history.save_pods(PodReport(hours((pod("a", group="", requested_cpu=NAN), HOUR, 12, 1, 2)), no_hours()))
    history.save_pods(PodReport(hours((pod("a", requested_cpu=700.0), HOUR + 1, 12, 1, 2)), no_hours()))
    history.save_pods(PodReport(hours((pod("a", group="", requested_cpu=NAN), HOUR + 2, 12, 1, 2)), no_hours()))
    history.close()
    again = open_history(str(tmp_path))
    parts = list(again.pod_hours(0))
    assert parts[0].pods == [pod("a", requested_cpu=700.0)]
    assert all(part.pods is parts[0].pods for part in parts)
    assert len(read(again)) == 3
    again.close()


def test_only_pods_with_use_since_then_are_handed_on(history):
    history.save_pods(PodReport(hours((pod("old"), HOUR - 50, 12, 1, 2), (pod("new"), HOUR, 12, 1, 2)), no_hours()))
    (part, _) = history.pod_hours((HOUR - 1) * HOUR_MILLIS)
    assert [p.uid for p in part.pods] == ["new"]


def test_old_hours_go_and_pods_with_them(history):
    history.save_pods(PodReport(hours((pod("old"), HOUR - 50, 12, 1, 2), (pod("new"), HOUR, 12, 1, 2)), no_hours()))
    history.prune((HOUR - 10) * HOUR_MILLIS)
    history.forget_unused()
    assert read(history) == {("new", HOUR): (12, 1, 2, 2000)}
    assert history._connection.execute("SELECT uid FROM pods").fetchall() == [("new",)]
    history.save_pods(PodReport(hours((pod("old"), HOUR, 12, 1, 2)), no_hours()))
    assert ("old", HOUR) in read(history)


def test_a_pod_that_was_idle_for_days_is_not_forgotten(history):
    history.save_pods(PodReport(hours((pod("idle"), HOUR - 40, 12, 1, 2), (pod("new"), HOUR, 12, 1, 2)), no_hours()))
    history.forget_unused()
    assert set(read(history)) == {("idle", HOUR - 40), ("new", HOUR)}


def test_a_report_of_nothing(history):
    history.save_pods(PodReport(no_hours(), no_hours()))
    assert read(history) == {}


def test_hours_from_elsewhere_fill_gaps_only(history):
    a = pod("a")
    history.save_pods(PodReport(hours((a, HOUR, 12, 10, 20)), no_hours()))
    given_ = hours((a, HOUR, 12, 99, 99), (a, HOUR - 1, 12, 1, 2), (pod("b"), HOUR - 1, 6, 3, 4))
    assert history.import_pods(given_) == (2, 1)
    assert history.import_pods(given_) == (0, 3)
    assert history.import_pods(no_hours()) == (0, 0)
    assert read(history) == {
        ("a", HOUR): (12, 10, 20, 20_000),
        ("a", HOUR - 1): (12, 1, 2, 2000),
        ("b", HOUR - 1): (6, 3, 4, 4000),
    }


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, SLOTS_PER_HOUR), st.floats(0, 1e6)), max_size=20
    )
)
@settings(max_examples=60, deadline=None)
def test_combining_hours_keeps_the_highest_and_a_mean_below_it(rows):
    given_ = hours(*((pod(str(p)), HOUR + h, n, mean, mean * 2) for p, h, n, mean in rows))
    found = combined_hours(given_)
    keys = list(zip(found.pod.tolist(), found.hour.tolist(), strict=True))
    assert len(keys) == len(set(keys))
    assert set(keys) == set(zip(given_.pod.tolist(), given_.hour.tolist(), strict=True))
    for (p, h), mean, highest, slots in zip(keys, found.cpu_mean, found.cpu_max, found.slots, strict=True):
        same = (given_.pod == p) & (given_.hour == h)
        assert highest == given_.cpu_max[same].max()
        assert given_.cpu_mean[same].min() * (1 - 1e-9) <= mean <= given_.cpu_mean[same].max() * (1 + 1e-9)
        assert slots == min(given_.slots[same].sum(), SLOTS_PER_HOUR)


def test_joining_hours_keeps_whose_they_are():
    one, other = hours((pod("a"), HOUR, 1, 1, 1)), hours((pod("b"), HOUR, 2, 2, 2), (pod("a"), HOUR, 3, 3, 3))
    joined = joined_hours(one, other)
    assert [joined.pods[k].uid for k in joined.pod] == ["a", "b", "a"]
    assert joined.slots.tolist() == [1, 2, 3]
    assert joined_hours(no_hours(), other) is other


def test_states_are_kept_under_their_keys(history, tmp_path):
    assert history.load_state("engine") is None
    history.save_state("engine", b"\x00first")
    history.save_state("engine", b"second\xff" * 100_000)
    history.save_state("other", b"")
    history.close()
    again = open_history(str(tmp_path))
    assert again.load_state("engine") == b"second\xff" * 100_000
    assert again.states() == {"engine": b"second\xff" * 100_000, "other": b""}
    again.close()


START = 1_700_000_100_000 // SLOT_MILLIS * SLOT_MILLIS


def test_a_node_that_was_made_anew_begins_without_the_past_of_the_other(history, tmp_path):
    old = [make_sample(i, START + i * 1000, ls_cpu_mean=9000) for i in range(1, 301)]
    history.append([Batch("n1", "b", old), Batch("n2", "b", old)])
    history.fold(START + SLOT_MILLIS)
    history.retire("n1")
    history.retire("never heard of")
    new = [make_sample(i, START + SLOT_MILLIS + i * 1000, ls_cpu_mean=100) for i in range(301, 400)]
    assert history.append([Batch("n1", "c", new)]) == (99, 0)
    # The same boot may go on: only the Node object was made anew.
    assert history.append([Batch("n1", "b", [*old, make_sample(301, START + 301_000)])]) == (1, 300)
    history.close()
    again = open_history(str(tmp_path))
    window = again.window(0)
    mine = window.node == window.names.index("n1")
    assert window.cpu_millis[mine].max() < 9000
    assert window.cpu_millis[~mine].tolist() == [9500.0]
    assert sorted(window.names) == ["n1", "n2"]
    again.close()
