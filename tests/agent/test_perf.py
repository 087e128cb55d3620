from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent.collect import CollectSettings
from agent.cpi import GroupCount
from agent.host.fds import MOST, RESERVE
from agent.host.perf import PerfReader, PerfTarget
from agent.host.perf_event import CYCLES, INSTRUCTIONS, Event, PerfEvents
from agent.host.source import Source
from slacktide.errors import Gone, KernelError, NotPermitted, Refused, Unsupported
from slacktide.kernel.files import translate
from slacktide.kernel.hierarchy import Mount, Version, discover
from tests.patience import PATIENCE

SECOND = 1_000_000_000
TASK_CLOCK, CPU_CLOCK = Event(1, 1), Event(1, 0)


class Hardware:
    """Counters that are real descriptors of /dev/null. `fail` is (number of the opening, errno); all count from 1."""

    def __init__(self):
        self.opened: list[tuple[str, int]] = []
        self.readings: dict[int, int] = {}
        self.place: dict[int, tuple[str, int]] = {}
        self.fail: dict[int, int] = {}
        self.fail_read: set[int] = set()
        self.own: int | None = None
        self.cpi = {}

    def open_own(self):
        if self.own is not None:
            raise translate("own", OSError(self.own, os.strerror(self.own)))
        return self._null(), self._null()

    def open_group(self, cgroup_fd, cpu):
        group = os.path.basename(os.readlink(f"/proc/self/fd/{cgroup_fd}"))
        self.opened.append((group, cpu))
        code = self.fail.get(len(self.opened))
        if code is not None:
            raise translate(f"CPU {cpu}", OSError(code, os.strerror(code)))
        leader = self._null()
        self.place[leader] = (group, cpu)
        self.readings[leader] = 0
        return leader, self._null()

    def read_group(self, leader):
        os.fstat(leader)
        self.readings[leader] += 1
        turn = self.readings[leader]
        if turn in self.fail_read:
            raise Refused("counters", None, "a short reading")
        group, _ = self.place[leader]
        instructions = 1_000_000_000 * turn
        return GroupCount(int(instructions * self.cpi.get(group, 2.0)), instructions, SECOND * turn, SECOND * turn)

    @staticmethod
    def _null():
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def descriptors():
    names = os.listdir("/proc/self/fd")
    return {name for name in names if os.path.lexists(f"/proc/self/fd/{name}")}


class Rig:
    def __init__(self, base: Path, cpus=(0, 1), limit=100_000, **settings):
        self.base = base
        self.hardware = Hardware()
        self.waits = []
        self.settings = CollectSettings(**settings)
        self.reader = PerfReader(
            Mount(str(base), Version.V2),
            lambda: cpus,
            lambda: self.settings,
            wait=self.waits.append,
            events=self.hardware,
            limit=limit,
        )

    def pods(self, *names):
        for name in names:
            (self.base / name).mkdir(exist_ok=True)
        self.reader.want([PerfTarget(name, name) for name in names])


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


@pytest.fixture(autouse=True)
def _no_leak():
    # koordinator#1828: descriptors of counters leaked.
    before = descriptors()
    yield
    assert descriptors() == before


def test_a_figure_a_pod_over_the_window(rig):
    rig.pods("a", "b")
    rig.hardware.cpi = {"a": 0.5, "b": 3.0}
    assert rig.reader.read() == {"a": 0.5, "b": 3.0}
    assert rig.waits == [10.0]
    assert rig.hardware.opened == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert rig.reader.counters["counted"] == 2


def test_without_pods_nothing_is_opened_and_nothing_waited_for(rig):
    assert rig.reader.read() == {}
    assert (rig.hardware.opened, rig.waits) == ([], [0.0])


def test_more_pods_than_fit_take_turns_and_keep_their_figures(tmp_path):
    rig = Rig(tmp_path, perf_pods=2)
    rig.pods("a", "b", "c", "d", "e")
    turns = []
    for _ in range(5):
        rig.hardware.opened.clear()
        figures = rig.reader.read()
        turns.append("".join(sorted({group for group, _ in rig.hardware.opened})))
    assert turns == ["ab", "cd", "ae", "bc", "de"]
    assert set(figures) == set("abcde")


def test_a_pod_that_is_wanted_no_more_has_no_figure(rig):
    rig.pods("a", "b")
    rig.reader.read()
    rig.pods("b", "c")
    assert set(rig.reader.read()) == {"b", "c"}


@pytest.mark.parametrize(
    ("cpus", "limit", "settings", "pods"),
    [
        (2, 100_000, {}, 32),
        (2, 100_000, {"perf_descriptors": 12}, 3),
        (104, 100_000, {}, 19),
        (2, RESERVE + MOST + 8, {}, 32),
        (2, 1024, {}, 32),
        (16, 1024, {}, 4),
    ],
    ids=["as set", "by descriptors", "many CPUs", "no spare", "small limit", "small limit, more CPUs"],
)
def test_descriptors_are_bounded_and_those_of_control_left_alone(tmp_path, cpus, limit, settings, pods):
    rig = Rig(tmp_path, range(cpus), limit, **settings)
    rig.pods(*(f"p{number:02}" for number in range(40)))
    rig.reader.read()
    assert len(rig.hardware.opened) == pods * cpus
    assert pods * cpus * 2 <= max(RESERVE // 2, min(rig.settings.perf_descriptors, limit - RESERVE - MOST))


def test_one_pod_that_does_not_fit_is_said(tmp_path):
    rig = Rig(tmp_path, range(104), 1024)
    rig.pods("a")
    with pytest.raises(Unsupported, match="needs 208 descriptors on 104 CPUs, and there are 128"):
        rig.reader.read()


def test_a_pod_that_went_away_is_skipped_and_counted(rig):
    rig.pods("a", "b")
    (rig.base / "a").rmdir()
    assert rig.reader.read() == {"b": 2.0}
    assert rig.reader.counters["vanished"] == 1


def test_a_pod_that_goes_away_while_it_is_opened(rig):
    rig.pods("a", "b")
    opening = rig.hardware.open_group

    def open_group(cgroup_fd, cpu):
        if len(rig.hardware.opened) == 1:
            (rig.base / "a").rmdir()
            rig.hardware.fail = {2: errno.ENOENT}
        return opening(cgroup_fd, cpu)

    rig.hardware.open_group = open_group
    assert rig.reader.read() == {"b": 2.0}
    assert rig.reader.counters["vanished"] == 1


def test_pods_that_have_no_cgroup_where_perf_events_are(rig):
    rig.reader.want([PerfTarget("a", "kubepods/a")])
    with pytest.raises(Gone, match=f"no pod to be counted has a cgroup under {rig.base}"):
        rig.reader.read()


@pytest.mark.parametrize("group", ["../etc", "", "/etc", "a\nb"])
def test_a_path_that_is_none_is_refused(rig, group):
    rig.reader.want([PerfTarget("a", group)])
    with pytest.raises(Unsupported, match="cgroup path"):
        rig.reader.read()
    assert rig.hardware.opened == []


def test_no_symbolic_link_is_followed(rig):
    (rig.base / "real").mkdir()
    (rig.base / "a").symlink_to(rig.base / "real")
    rig.reader.want([PerfTarget("a", "a")])
    with pytest.raises(KernelError):
        rig.reader.read()


def test_a_cpu_that_went_off_line_is_left_out(rig):
    rig.pods("a")
    rig.hardware.fail = {2: errno.ENODEV}
    assert rig.reader.read() == {"a": 2.0}


def test_a_cpu_of_another_kind_is_said(rig):
    rig.pods("a")
    rig.hardware.fail = {2: errno.ENOENT}
    with pytest.raises(Unsupported, match="CPU 1: this CPU cannot count what others count"):
        rig.reader.read()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EINVAL, errno.EACCES, errno.EBUSY, errno.EBADF, errno.ENOENT])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_whichever_opening_fails_nothing_stays_open(rig, number, code):
    rig.pods("a", "b")
    rig.hardware.fail = {number: code}
    if number > 2 or code != errno.EMFILE:
        assert set(rig.reader.read()) == ({"b"} if number <= 2 else {"a"})
        assert rig.reader.counters["refused"] == 1
    else:
        with pytest.raises(KernelError, match="no descriptors left"):
            rig.reader.read()


@pytest.mark.parametrize("turn", [1, 2])
def test_whichever_reading_fails_nothing_stays_open(rig, turn):
    rig.pods("a")
    rig.hardware.fail_read = {turn}
    if turn == 1:
        with pytest.raises(Refused, match="a short reading"):
            rig.reader.read()
    else:
        assert rig.reader.read() == {}
    assert rig.reader.counters["refused"] == 1


def test_a_window_that_is_broken_off_leaves_nothing_open(rig):
    rig.pods("a")
    rig.reader._wait = lambda _seconds: 1 / 0
    with pytest.raises(ZeroDivisionError):
        rig.reader.read()


def test_a_pod_of_which_too_little_ran_loses_its_figure(rig):
    rig.pods("a")
    assert rig.reader.read() == {"a": 2.0}
    rig.hardware.cpi = {"a": 0.0}
    assert rig.reader.read() == {}
    assert rig.reader.counters["too_little"] == 1


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (errno.ENOENT, Unsupported, "no hardware counters"),
        (errno.EOPNOTSUPP, Unsupported, "no hardware counters"),
        (errno.EACCES, NotPermitted, "perf_event_paranoid"),
        (errno.EPERM, NotPermitted, "seccomp"),
        (errno.EMFILE, KernelError, "no descriptors left"),
        (errno.ENOSYS, Unsupported, "not implemented"),
    ],
)
def test_a_machine_that_cannot_count_says_why(rig, code, kind, text):
    rig.pods("a")
    rig.hardware.own = code
    with pytest.raises(kind, match=text):
        rig.reader.read()
    assert rig.hardware.opened == []


def test_without_the_controller_the_reason_is_said():
    reader = PerfReader(None, lambda: (0,), CollectSettings)
    with pytest.raises(Unsupported, match="perf_event controller is not mounted"):
        reader.read()


def test_a_source_ends_a_window_at_once(rig):
    stopping, waiting = threading.Event(), threading.Event()

    def wait(seconds):
        waiting.set()
        return stopping.wait(seconds * 60)

    rig.pods("a")
    rig.reader._wait = wait
    source = Source("perf", rig.reader.read, 30.0, timeout_seconds=1000.0, stopping=stopping)
    source.start()
    assert waiting.wait(10 * PATIENCE)
    assert source.stop(10 * PATIENCE)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="longer than perf_seconds"):
        CollectSettings(perf_seconds=5, perf_window_seconds=6)


def test_what_the_kernel_is_asked_for(monkeypatch):
    # koordinator#1470: reference cycles (config 9) tick at one rate whatever the clock does.
    calls = []

    def syscall(number, attr, *rest):
        calls.append((number.value, ctypes.string_at(attr, 64), *(one.value for one in rest)))
        return 90 + len(calls)

    events = PerfEvents()
    monkeypatch.setattr(events, "_number", 298)
    monkeypatch.setattr(events, "_syscall", syscall)
    assert events.open_group(7, 3) == (91, 92)
    cgroup_and_cloexec = 4 | 8
    enabled_running_group = 1 | 2 | 8
    assert [(number, *rest) for number, _, *rest in calls] == [
        (298, 7, 3, -1, cgroup_and_cloexec),
        (298, 7, 3, 91, cgroup_and_cloexec),
    ]
    attrs = [struct.unpack("=IIQQQQQIIQ", attr) for _, attr, *_ in calls]
    assert [attr[:3] for attr in attrs] == [(0, 64, 0), (0, 64, 1)]
    assert {attr[5] for attr in attrs} == {enabled_running_group}
    assert {attr[6] for attr in attrs} == {0}
    assert (CYCLES, INSTRUCTIONS) == ((0, 0), (0, 1))


@pytest.mark.parametrize("data", [b"", b"\0" * 39, struct.pack("=QQQQQ", 1, 2, 3, 4, 5)])
def test_a_reading_that_is_none(tmp_path, data):
    path = tmp_path / "counter"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(Refused, match="a group"):
            PerfEvents().read_group(descriptor)
    finally:
        os.close(descriptor)


def test_a_machine_whose_system_call_is_not_known(monkeypatch):
    events = PerfEvents()
    monkeypatch.setattr(events, "_number", None)
    with pytest.raises(Unsupported, match="system call is not known"):
        events.open_own()


def software():
    """Counters of software, which every kernel has; skips where they cannot be opened."""
    events = PerfEvents(TASK_CLOCK, CPU_CLOCK)
    try:
        leader, other = events.open_own()
    except KernelError as error:
        pytest.skip(f"no perf events here: {error}")
    os.close(other)
    os.close(leader)
    return events


def test_counting_this_thread_in_software():
    events = software()
    leader, other = events.open_own()
    try:
        before = events.read_group(leader)
        deadline = time.monotonic() + 10 * PATIENCE
        while (after := events.read_group(leader)).cycles - before.cycles < 5_000_000:
            assert time.monotonic() < deadline
        assert after.running_ns >= before.running_ns
        assert not os.get_inheritable(leader)
        assert not os.get_inheritable(other)
    finally:
        os.close(other)
        os.close(leader)


def test_hardware_counts_or_says_why_not():
    reader = PerfReader(Mount("/nowhere", Version.V2), lambda: (0,), CollectSettings)
    try:
        figures = reader.read()
    except KernelError as error:
        pytest.skip(f"no hardware counters here: {error}")
    assert figures == {}


@pytest.fixture
def busy_group():
    """A cgroup of our own on v2 with a process that burns CPU."""
    unified = discover().unified
    if unified is None or not os.access(unified, os.W_OK):
        pytest.skip("no cgroup v2 mount that can be written")
    group = f"slacktide-perf-{os.getpid()}"
    path = Path(unified, group)
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error.strerror}")
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (path / "cgroup.procs").write_text(str(process.pid))
        yield Mount(unified, Version.V2), group
    finally:
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10 * PATIENCE
        while True:
            try:
                path.rmdir()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)


@pytest.mark.kernel
def test_a_real_cgroup_is_counted_in_software(busy_group):
    events = software()
    mount, group = busy_group
    settings = CollectSettings(perf_window_seconds=0.3)
    reader = PerfReader(mount, lambda: os.sched_getaffinity(0), lambda: settings, events=events)
    reader.want([PerfTarget("busy", group)])
    deadline = time.monotonic() + 30 * PATIENCE
    # Both clocks count nanoseconds on a CPU, so there is one "cycle" an "instruction". They are started one after
    # the other, so a window in which the machine stood still between the two is off: a later one is not.
    while (found := reader.read().get("busy")) is None or abs(found - 1.0) > 0.2:
        assert time.monotonic() < deadline, (found, reader.counters)
