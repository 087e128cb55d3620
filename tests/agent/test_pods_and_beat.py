from __future__ import annotations

import pytest

from agent.beat import Beat
from agent.capabilities import Capabilities
from agent.counters import PsiTotals, RunDelay
from agent.host.cgroup import PodGroup
from agent.pods import PodBook, identity_of, requested_of
from slacktide.forecast import Amount
from slacktide.objects import Container, PodSpec, ResourceRequirements
from slacktide.settings import ResourceNames
from slacktide.tier import Tier
from tests.agent.twins import FakePods, pod

NAMES = ResourceNames()
LS = PodGroup("kubepods/ls", 1, "ls")


def spec(requests, limits=None):
    return PodSpec(
        containers=[Container(name="c", resources=ResourceRequirements(requests=requests, limits=limits or {}))]
    )


def test_what_is_asked_for_is_plain_for_ls_and_batch_for_be():
    ls = identity_of(pod("a", "ls", spec=spec({"cpu": "1500m", "memory": "1Ki"}, {"cpu": "2"})), NAMES)
    assert (ls.tier, ls.requested, ls.cpu_limit_millis) == (Tier.LS, Amount(cpu_millis=1500, memory_bytes=1024), 2000)
    be = identity_of(pod("b", "be", spec=spec({NAMES.cpu: "1000", NAMES.memory: "2048"})), NAMES)
    assert (be.requested, be.cpu_request_millis) == (Amount(cpu_millis=1000, memory_bytes=2048), 0)


def test_an_unreadable_quantity_is_unknown_and_makes_the_sum_unknown():
    bad = identity_of(pod("a", "ls", spec=spec({"cpu": "1.5.2"})), NAMES)
    assert bad.requested == Amount()
    good = identity_of(pod("b", "ls", spec=spec({"cpu": "1"})), NAMES)
    assert requested_of([good], Tier.LS).cpu_millis == 1000
    assert requested_of([good, bad], Tier.LS).cpu_millis is None


def test_ended_pods_without_a_cgroup_count_for_nothing():
    source = FakePods(pod("done", "be", phase="Succeeded"), pod("dying", "be", phase="Failed"), pod("up", "be"))
    assert set(PodBook(source, NAMES).refresh(["dying"])) == {"dying", "up"}


def test_a_pod_that_changed_its_label_changes_its_tier():
    source = FakePods(pod("a", "be"))
    book = PodBook(source, NAMES)
    assert book.refresh(["a"])["a"].tier is Tier.BE
    source.pods[0] = pod("a", "ls")
    assert book.refresh(["a"])["a"].tier is Tier.LS


class Signals:
    def __init__(self):
        self.now = 0.0
        self.busy = 0.0
        self.psi: PsiTotals | None = None
        self.delay = RunDelay(at=0, times={}, threads=0)

    def cpu_psi(self, group):
        return self.psi

    def run_delay(self):
        return self.delay

    def follow(self, groups):
        return None

    def node_beat(self):
        return self.now, self.busy, None


def capable(*, psi=False, run_delay=True):
    return Capabilities(mode="x", cpu_version=2, psi=psi, run_delay=run_delay)


def test_with_nobody_to_be_short_pressure_is_truly_zero():
    reading = Beat(Signals(), capable(), 0.25, 2).take()
    assert reading.pressure is not None
    assert (reading.pressure.kind, reading.pressure.value) == ("no-ls", 0.0)


def test_psi_total_deltas_over_the_window():
    signals = Signals()
    beat = Beat(signals, capable(psi=True), 0.25, 2)
    beat.follow([LS], 0.6)
    signals.psi = PsiTotals(some_us=1000, full_us=None)
    assert beat.take().pressure is None
    signals.now, signals.psi = 0.05, PsiTotals(some_us=26_000, full_us=None)
    pressure = beat.take().pressure
    assert pressure is not None
    assert (pressure.kind, pressure.value) == ("psi", 0.5)
    signals.psi = None
    signals.now = 0.1
    assert beat.take().pressure is None


def test_psi_that_vanishes_is_unknown_not_zero_and_so_is_no_signal_at_all():
    signals = Signals()
    for capabilities in (capable(psi=True), capable(run_delay=False)):
        beat = Beat(signals, capabilities, 0.25, 2)
        beat.follow([LS], None)
        for step in range(3):
            signals.now += 0.05
            assert beat.take().pressure is None, step


class TwoPods(Signals):
    """One LS pod with PSI and one without."""

    def __init__(self):
        super().__init__()
        self.followed = ()
        self.share = 0.0
        self.delay_ns = 0
        self.looks = 0

    def cpu_psi(self, group):
        self.looks += 1
        return None if group == BARE else PsiTotals(some_us=int(self.now * self.share * 1e6), full_us=None)

    def follow(self, groups):
        self.followed = tuple(groups)

    def run_delay(self):
        return RunDelay(at=self.now, times={1: (int(self.now * 1e9), self.delay_ns)}, threads=1)


BARE = PodGroup("kubepods/bare", 9, "bare")


@pytest.mark.parametrize(("share", "delay", "kind"), [(0.9, 0.0, "psi"), (0.0, 5.0, "run-delay")])
def test_run_delay_stands_in_for_the_one_cgroup_without_psi(share, delay, kind):
    signals = TwoPods()
    signals.share = share
    beat = Beat(signals, capable(psi=True), 0.25, 2)
    beat.follow([LS, BARE], 0.6)
    assert signals.followed == ()
    beat.take()
    beat.follow([LS, BARE], 0.6)
    assert signals.followed == (BARE,)
    for step in range(1, 6):
        signals.now, signals.delay_ns = 0.05 * step, int(0.05 * step * delay * 1e9)
        pressure = beat.take().pressure
    assert pressure is not None
    assert pressure.kind == kind
    assert pressure.value == pytest.approx(share or delay, rel=0.01)
    assert pressure.natural > 0.1, "all of LS makes LS wait"


def test_run_delay_over_the_window_with_threads_that_come_and_go():
    signals = Signals()
    beat = Beat(signals, capable(), 0.1, 2)
    beat.follow([LS], None)
    second = 1_000_000_000
    steps = [
        {1: (0, 0)},
        {1: (second // 20, second // 10), 2: (5 * second, 9 * second)},
        {2: (5 * second + second // 20, 9 * second + second // 10)},
    ]
    values = []
    for step, times in enumerate(steps):
        signals.now = 0.05 * step
        signals.delay = RunDelay(at=signals.now, times=times, threads=len(times))
        pressure = beat.take().pressure
        values.append(pressure.value if pressure else None)
    assert values[0] is None
    assert values[1] == 2.0 * 2 / 2
    assert values[2] is not None
    assert 1.9 < values[2] < 2.1


def test_an_ls_without_threads_waits_for_nothing_and_unreadable_threads_are_unknown():
    signals = Signals()
    beat = Beat(signals, capable(), 0.1, 2)
    beat.follow([LS], None)
    beat.take()
    signals.now = 0.05
    pressure = beat.take().pressure
    assert pressure is not None
    assert pressure.value == 0.0
    signals.now, signals.delay = 0.1, RunDelay(at=0.1, times={}, threads=4)
    assert beat.take().pressure is None


def test_pressure_of_a_calm_node_is_read_less_often_and_a_surge_ends_that_at_once():
    signals = TwoPods()
    beat = Beat(signals, capable(psi=True), 0.25, 2, busy_ratio=lambda: 0.75)
    beat.follow([LS], 0.3)
    beat.take()
    signals.now, signals.busy = 0.05, 0.02
    assert beat.take(whole=False).pressure == beat.take().pressure, "the first window is not known yet"

    def step(seconds, busy_cpus, share):
        signals.now += seconds
        signals.busy += seconds * busy_cpus
        signals.looks = 0
        signals.share = share
        return beat.take(whole=False)

    looked = []
    for _ in range(12):
        reading = step(0.05, 0.4, 0.1)
        looked.append(signals.looks > 0)
        assert reading.pressure is not None
        assert reading.node_busy_ratio == pytest.approx(0.2, abs=0.01)
    assert looked.count(True) == 3, "every 0.2 s"
    assert step(0.05, 2.0, 0.9).node_busy_ratio > 0.2
    assert step(0.05, 2.0, 0.9).pressure.value > 0.5, "in the beat in which the CPUs are busy LS is looked at"
    assert beat.take(whole=True).at == signals.now


def test_a_node_on_which_ls_may_always_be_short_is_looked_at_in_each_beat():
    signals = TwoPods()
    beat = Beat(signals, capable(psi=True), 0.25, 2, busy_ratio=lambda: 0.0)
    beat.follow([LS], 0.3)
    for number in range(6):
        signals.now, signals.looks = 0.05 * number, 0
        beat.take(whole=False)
        assert signals.looks == 1


def test_node_busy_over_the_window():
    signals = Signals()
    beat = Beat(signals, capable(), 0.1, 2)
    assert beat.take().node_busy_ratio is None
    signals.now, signals.busy = 0.1, 0.15
    ratio = beat.take().node_busy_ratio
    assert ratio is not None
    assert abs(ratio - 0.75) < 1e-9


def test_cpus_that_went_off_line_do_not_make_a_node_look_idle():
    signals = Signals()
    beat = Beat(signals, capable(), 0.1, 4)
    beat.follow([], None, 2)
    beat.take()
    signals.now, signals.busy = 0.1, 0.2
    assert beat.take().node_busy_ratio == 1.0
    beat.follow([], None, None)
    signals.now, signals.busy = 0.2, 0.3
    assert abs(beat.take().node_busy_ratio - 0.5) < 1e-9, "what is not known stays as it was"
