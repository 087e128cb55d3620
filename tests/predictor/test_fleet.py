"""The fleet's memory: complete slots and open ones, the pods behind them, and what moves with a pod."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.fleet import Fleet
from predictor.history import Window
from predictor.pods import PodUse, guess_group
from predictor.slots import SLOT_MILLIS
from tests.predictor.support import make_sample

SLOT = 5_666_676
"""The first slot of an hour of the epoch, and of a day."""
START = SLOT * SLOT_MILLIS
HOUR = SLOT // 12


class Stage:
    """Nodes that report every 100 s; `node` says what a node's pods use at the next report."""

    def __init__(self, **options):
        self.news = []
        self.fleet = Fleet(14.0, 15.0, lambda: self.news.append(1), **options)
        self.end = START
        self.sequence = 0
        self.reports = []

    def report(self, **nodes):
        self.end += 100_000
        self.sequence += 1
        for name, pods in nodes.items():
            self.say(name, pods, self.end)

    def say(self, name, pods, end, system=500, measured=None):
        used = [use(uid, *(value if isinstance(value, tuple) else (value,))) for uid, value in pods.items()]
        sample = make_sample(
            self.sequence,
            end,
            window_millis=100_000,
            ls_cpu_mean=sum(pod.cpu_mean for pod in used),
            ls_memory_max=sum(pod.memory_max for pod in used),
            system_cpu_mean=system,
            system_memory_max=0,
        )
        self.fleet.observe(name, sample, end / 1000 if measured is None else measured, "", used)

    def hours(self, count, **nodes):
        for _ in range(36 * count):
            self.report(**nodes)
            if self.end % SLOT_MILLIS == 0:
                self.view()
                self.reports.append(self.fleet.take_pods())

    def view(self, later=0.001):
        return self.fleet.view(self.end / 1000 + later)


def use(uid, cpu, memory=1000, name=None):
    return PodUse(uid, "shop", name or uid, cpu, memory, 2 * cpu, memory)


def rows(view, name):
    return view.cpu.usage[:, view.names.index(name)]


def member(view, uid, resource="cpu"):
    return getattr(view, resource).members.hourly_max[:, view.pods.uids.index(uid)]


def test_the_open_slot_is_apart_from_those_that_are_complete():
    stage = Stage()
    stage.report(n1={"a": 1000})
    view = stage.view()
    assert np.isnan(view.cpu.usage).all()
    assert list(view.open_cpu) == [1500]
    assert list(view.open_memory) == [1000]
    stage.report(n1={"a": 800})
    stage.report(n1={"a": 700})
    view = stage.view()
    assert view.cpu.at == stage.end / 1000
    assert rows(view, "n1")[-1] == 1500
    assert np.isnan(view.open_cpu[0])
    assert view.covered_seconds[0] == 300


def test_members_are_the_pods_behind_a_node_and_the_newest_row_is_the_last_hour():
    stage = Stage()
    stage.hours(1, n1={"a": 1000, "b": 100})
    stage.report(n1={"a": 300, "b": 400})
    stage.report(n1={"a": 300, "b": 400})
    stage.report(n1={"a": 300, "b": 400})
    view = stage.view()
    assert view.pods.uids == ["a", "b"]
    assert view.pods.keys == ["shop/a", "shop/b"]
    assert list(view.cpu.members.series) == [0, 0]
    assert list(view.cpu.members.requested) == [600, 800]
    # The hour that has just begun would hide what a was doing five minutes ago.
    assert list(view.cpu.members.hourly_max[-1]) == [1000, 400]
    assert list(view.cpu.members.hourly_max[-2]) == [1000, 100]
    assert view.cpu.members.hourly_mean[-1, 0] == pytest.approx((11 * 1000 + 300) / 12)
    assert stage.fleet.pod_use("b") == (400, 1000)
    assert stage.fleet.pod_use("x") is None


def test_a_view_is_not_changed_by_pods_and_nodes_that_come_and_go():
    stage = Stage()
    stage.hours(1, n1={"a": 1000, "b": 100}, n2={"c": 700})
    view = stage.view()
    kept = view.cpu.usage.copy(), view.cpu.members.hourly_max.copy()
    stage.fleet.forget("n1")
    stage.hours(2, n2={"d": 5, "e": 6}, n3={"f": 7})
    stage.view()
    np.testing.assert_array_equal(view.cpu.usage, kept[0])
    np.testing.assert_array_equal(view.cpu.members.hourly_max, kept[1])


def test_a_pod_that_moves_takes_its_use_along():
    stage = Stage()
    stage.hours(2, n1={"a": 1000, "b": 100}, n2={"c": 700})
    before = stage.view()
    assert before.settled.all()
    stage.report(n1={"b": 100}, n2={"c": 700, "a": 1000})
    view = stage.view()
    np.testing.assert_array_equal(rows(view, "n1"), 600)
    np.testing.assert_array_equal(rows(view, "n2"), 2200)
    assert not view.settled.any()
    stage.hours(1, n1={"b": 100}, n2={"c": 700, "a": 1000})
    view = stage.view()
    assert list(view.cpu.members.series[[view.pods.uids.index(uid) for uid in "abc"]]) == [1, 0, 1]
    np.testing.assert_array_equal(member(view, "a"), 1000)
    stage.report(n1={"b": 100}, n2={"c": 700, "a": 1000})
    stage.report(n1={"b": 100}, n2={"c": 700, "a": 1000})
    stage.report(n1={"b": 100}, n2={"c": 700, "a": 1000})
    assert stage.view().settled.all()


def test_a_pod_that_two_nodes_list_stays_with_the_first_until_that_one_stops():
    stage = Stage()
    stage.hours(1, n1={"a": 1000}, n2={"c": 700})
    for _ in range(20):
        stage.report(n1={"a": 1000}, n2={"c": 700, "a": 1000})
    view = stage.view()
    np.testing.assert_array_equal(rows(view, "n1"), 1500)
    np.testing.assert_array_equal(rows(view, "n2")[:12], 1200)
    for _ in range(4):
        stage.report(n1={"x": 1}, n2={"c": 700, "a": 1000})
    view = stage.view()
    assert view.cpu.members.series[view.pods.uids.index("a")] == 1
    assert rows(view, "n1")[0] == 500


def test_a_lasting_pod_that_is_gone_leaves_the_rows_of_its_node_after_a_whole_slot():
    stage = Stage()
    stage.hours(25, n1={"a": 1000, "b": 100})
    stage.report(n1={"b": 100})
    np.testing.assert_array_equal(rows(stage.view(), "n1"), 1600)
    for _ in range(5):
        stage.report(n1={"b": 100})
    view = stage.view()
    np.testing.assert_array_equal(rows(view, "n1")[:-2], 600)
    assert view.pods.uids == ["b"]
    assert not view.settled[0]


def test_a_short_job_stays_in_the_rows_because_it_comes_back():
    stage = Stage()
    stage.hours(2, n1={"a": 1000, "b": 100})
    stage.hours(1, n1={"b": 100})
    view = stage.view()
    assert rows(view, "n1")[0] == 1600
    assert view.pods.uids == ["b"]
    assert stage.fleet.group_peak("shop/a") == (1000, 1000)
    assert stage.fleet.group_peak("shop/unknown") == (None, None)


def test_a_replacement_on_the_same_node_takes_over_from_the_pod_before():
    stage = Stage()
    old, new = "web-7c9b5d8f6d-x2x4z", "web-6d4b9c7f5c-qq7wd"
    stage.hours(25, n1={"u1": (1000, 1000, old)})
    stage.hours(1, n1={"u2": (300, 1000, new)})
    view = stage.view()
    # koordinator #1906: counted once. The service is still there: what it used at its peak it may use again.
    np.testing.assert_array_equal(rows(view, "n1")[:200], 1500)
    assert view.pods.uids == ["u2"]
    assert member(view, "u2")[0] == 1000
    assert member(view, "u2")[-1] == 300
    assert view.settled[0]


def test_groups_that_the_cluster_names_go_before_guesses():
    stage = Stage()
    stage.hours(25, n1={"u1": (1000, 1000, "one")})
    stage.fleet.set_groups({"u1": "Deployment/shop/web"})
    stage.report(n1={"u2": (300, 1000, "other")})
    stage.fleet.set_groups({"u1": "Deployment/shop/web", "u2": "Deployment/shop/web"})
    stage.hours(1, n1={"u2": (300, 1000, "other")})
    assert rows(stage.view(), "n1")[0] == 1500
    assert stage.fleet.group_peak("Deployment/shop/web") == (1000, 1000)


def test_an_agent_that_cannot_list_its_pods_takes_none_away():
    stage = Stage()
    stage.hours(25, n1={"a": 1000})
    for _ in range(9):
        stage.end += 100_000
        sample = make_sample(1, stage.end, ls_cpu_mean=1000, system_cpu_mean=500)
        stage.fleet.observe("n1", sample, stage.end / 1000)
    view = stage.view()
    assert rows(view, "n1")[0] == 1500
    assert view.pods.uids == ["a"]


def test_old_samples_do_not_say_which_pods_there_are():
    stage = Stage()
    stage.hours(1, n1={"a": 1000})
    stage.say("n1", {"b": 900}, stage.end - 600_000)
    view = stage.view()
    assert view.pods.uids == ["a"]
    assert view.settled[0]


def test_a_pod_of_a_group_that_was_there_before_unsettles_nothing():
    stage = Stage()
    for run in ("q2x4z", "xw9kd", "7hh2p"):
        stage.hours(1, n1={"a": 1000, run: (300, 1000, f"job-28391820-{run}")})
        stage.hours(1, n1={"a": 1000})
    assert stage.view().settled[0]
    stage.report(n1={"a": 1000, "new": 10})
    assert not stage.view().settled[0]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("web-7c9b5d8f6d-x2x4z", "s/web"),
        ("node-exporter-x2x4z", "s/node-exporter"),
        ("backup-28391820-k4x8z", "s/backup"),
        ("postgres-0", "s/postgres"),
        ("redis-cache", "s/redis-cache"),
        ("static-web-api", "s/static-web-api"),
    ],
)
def test_groups_are_guessed_from_names(name, group):
    assert guess_group("s", name) == group


def test_a_spool_replayed_hours_later_fills_the_hours_of_pods():
    stage = Stage()
    stage.report(n1={"a": 100})
    stage.end += 5 * 3_600_000
    stage.hours(1, n1={"a": 100})
    for tenth in range(1, 361):
        stage.say("n1", {"a": 500 if tenth % 30 else 900}, START + 3_600_000 + tenth * 10_000)
    stage.report(n1={"a": 100})
    stage.say("n1", {"a": 500}, START + 2 * 3_600_000 + 10_000)
    stage.say("n1", {"a": 500}, START + 2 * 3_600_000 + 310_000)
    found = told(stage.fleet.take_pods().closed)
    assert found["a", HOUR + 1] == (12, 500, 500)


def told(hours):
    """What stands for the CPU of a pod in an hour: slots, highest, mean."""
    rows = zip(hours.pod, hours.hour, hours.slots, hours.cpu_max, hours.cpu_mean, strict=True)
    return {(hours.pods[pod].uid, hour): (slots, high, mean) for pod, hour, slots, high, mean in rows}


def test_each_hour_of_a_pod_is_told_once_when_it_is_over_and_anew_while_it_goes_on():
    stage = Stage()
    stage.hours(1, n1={"a": 1000, "b": 100}, n2={"c": 700})
    assert not any(told(report.closed) for report in stage.reports)
    assert told(stage.reports[-1].open)["a", HOUR] == (12, 1000, 1000)
    stage.hours(1, n1={"a": 500, "b": 100}, n2={"c": 700})
    closed = [told(report.closed) for report in stage.reports if len(report.closed.pod)]
    assert closed == [{(uid, HOUR): (12, use, use) for uid, use in (("a", 1000), ("b", 100), ("c", 700))}]
    report = stage.reports[-1]
    assert told(report.open)["a", HOUR + 1] == (12, 500, 500)
    assert [pod.node for pod in report.open.pods] == ["n1", "n1", "n2"]


def test_a_pod_that_is_gone_is_told_of_still():
    stage = Stage()
    stage.hours(1, n1={"a": 1000, "b": 100})
    stage.fleet.take_pods()
    for _ in range(9):
        stage.report(n1={"a": 1000, "job": 300})
    for _ in range(9):
        stage.report(n1={"a": 1000})
    stage.view()
    report = stage.fleet.take_pods()
    assert told(report.closed)["b", HOUR] == (12, 100, 100)
    assert told(report.closed)["job", HOUR + 1] == (3, 300, 300)
    assert [pod.uid for pod in report.open.pods] == ["a"]


def window_of(stage):
    view = stage.view()
    count, nodes = view.cpu.usage.shape
    last = int(view.cpu.at * 1000) // SLOT_MILLIS - 1
    node, slot = np.tile(np.arange(nodes), count), np.repeat(np.arange(last - count + 1, last + 1), nodes)
    return Window(view.names, node, slot, view.cpu.usage.ravel(), view.memory.usage.ravel())


def restart(stage, later_seconds=0):
    """The reports that the history of `stage` would have been given, and a fleet that reads all of it back."""
    again = Stage()
    again.end = stage.end + later_seconds * 1000
    again.fleet.restore(window_of(stage))
    for report in stage.reports:
        again.fleet.restore_pods(report.closed)
    again.fleet.restore_pods(stage.fleet.take_pods().open)
    return again


def test_a_restart_brings_back_nodes_and_pods():
    stage = Stage()
    stage.hours(3, n1={"a": 1000, "b": 100}, n2={"c": 700})
    again = restart(stage)
    one, other = stage.view(), again.view()
    np.testing.assert_array_equal(one.cpu.usage, other.cpu.usage)
    order = [other.pods.uids.index(uid) for uid in one.pods.uids]
    for resource in ("cpu", "memory"):
        left, right = getattr(one, resource).members, getattr(other, resource).members
        np.testing.assert_array_equal(left.hourly_max, right.hourly_max[:, order])
        np.testing.assert_allclose(left.hourly_mean, right.hourly_mean[:, order])
        np.testing.assert_array_equal(left.series, right.series[order])
    again.hours(1, n1={"a": 1000, "b": 100}, n2={"c": 700})
    view = again.view()
    assert view.settled.all()
    np.testing.assert_array_equal(rows(view, "n1"), 1600)


def test_pods_that_left_while_nobody_looked_leave_after_the_restart():
    # koordinator #1749: what is known of a pod must outlive a restart, also before the pod was seen again.
    stage = Stage()
    stage.hours(25, n1={"a": 1000, "b": 100})
    again = restart(stage, 1800)
    assert sorted(again.view().pods.uids) == ["a", "b"]
    again.hours(1, n1={"b": 100})
    view = again.view()
    assert view.pods.uids == ["b"]
    np.testing.assert_array_equal(rows(view, "n1")[:200], 600)


def test_a_node_that_is_forgotten_takes_its_pods_along():
    stage = Stage()
    stage.hours(1, n1={"a": 1000}, n2={"b": 100}, n3={"c": 5})
    stage.fleet.forget("n1")
    view = stage.view()
    assert view.names == ["n2", "n3"]
    assert view.pods.uids == ["b", "c"]
    assert list(view.cpu.members.series) == [0, 1]
    assert rows(view, "n3")[0] == 505
    stage.hours(1, n1={"a": 1000}, n2={"b": 100}, n3={"c": 5})
    view = stage.view()
    assert view.names == ["n2", "n3", "n1"]
    assert np.isnan(rows(view, "n1")[0])
    assert rows(view, "n1")[-1] == 1500


def test_nodes_of_any_number_of_pods_close_a_slot_together():
    stage = Stage()
    nodes = {
        f"n{number}": {f"{number}-{pod}": 100 * number + 10 * pod + 1 for pod in range(number)}
        for number in range(1, 8)
    }
    stage.report(**nodes)
    stage.report(**{name: {uid: use + 5 for uid, use in pods.items()} for name, pods in nodes.items()})
    stage.report(n2=nodes["n2"])
    view = stage.view()
    for pods in nodes.values():
        for uid, used in pods.items():
            assert member(view, uid)[-1] == used + 5
            assert member(view, uid, "memory")[-1] == 1000
