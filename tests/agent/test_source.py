from __future__ import annotations

import queue
import threading
import time

import pytest

from agent.host.source import Source
from slacktide.errors import Unsupported
from tests.patience import PATIENCE

WAIT = 10.0 * PATIENCE


class Script:
    """A read whose each call waits for what it shall do, and says when it began."""

    def __init__(self):
        self.steps: queue.Queue = queue.Queue()
        self.begun: queue.Queue = queue.Queue()

    def read(self):
        self.begun.put(threading.current_thread())
        step = self.steps.get(timeout=WAIT)
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture
def script():
    return Script()


@pytest.fixture
def make(script):
    """Makes sources that are ended with the test, also where a read hangs."""
    made = []

    def build(period=0.001, timeout=5.0, **options):
        source = Source("cards", script.read, period, timeout_seconds=timeout, **options)
        made.append(source)
        return source

    yield build
    for source in made:
        script.steps.put("end")
        assert source.stop(WAIT)


def until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.001)


def test_nobody_waits_for_the_first_read(script, make):
    source = make()
    assert source.latest() is None
    assert source.why_not == "cards: not started"
    source.start()
    script.begun.get(timeout=WAIT)
    assert source.latest() is None
    assert source.why_not == "cards: the first read is under way"
    script.steps.put(1)
    until(lambda: source.latest() == 1)
    assert source.why_not == ""
    script.steps.put(2)
    until(lambda: source.latest() == 2)
    assert source.counters == {"reads": 2, "failures": 0, "hangs": 0}


def test_a_value_is_as_old_as_the_begin_of_its_read(script, make):
    now = [100.0]
    source = make(period=10.0, timeout=5.0, clock=lambda: now[0])
    source.start()
    script.begun.get(timeout=WAIT)
    now[0] = 103.0
    script.steps.put("value")
    until(lambda: source.counters["reads"] == 1)
    assert source.latest(3.0) == "value"
    assert source.latest(2.9) is None
    now[0] = 135.0
    assert source.latest() == "value"
    now[0] = 135.1
    assert source.latest() is None


def test_a_read_that_hangs_is_said_once_and_counted_once(script, make, caplog):
    now = [0.0]
    source = make(timeout=2.0, clock=lambda: now[0])
    source.start()
    script.begun.get(timeout=WAIT)
    now[0] = 2.0
    assert source.counters["hangs"] == 0
    now[0] = 9.0
    for _ in range(5):
        assert source.latest() is None
        assert source.why_not == "cards: hangs since 9 s"
    assert source.counters == {"reads": 0, "failures": 0, "hangs": 1}
    assert caplog.text.count("a source hangs") == 1
    script.steps.put("late")
    until(lambda: source.counters["reads"] == 1)
    assert source.latest(9.0) == "late"
    assert source.why_not == ""
    assert source.counters["hangs"] == 1


def test_a_source_that_hangs_has_one_thread_and_stop_does_not_wait_for_it(script, make):
    source = make(timeout=0.0)
    before = threading.active_count()
    source.start()
    script.begun.get(timeout=WAIT)
    until(lambda: source.counters["hangs"] == 1)
    assert threading.active_count() == before + 1
    assert not source.stop(0.0)
    assert source.why_not.startswith("cards: hangs since")


def test_all_reads_are_on_the_same_thread(script, make):
    source = make()
    source.start()
    for step in (1, ValueError("bug"), 2):
        script.steps.put(step)
    until(lambda: source.counters["reads"] == 2)
    threads = {script.begun.get(timeout=WAIT) for _ in range(3)}
    assert [thread.name for thread in threads] == ["source-cards"]


def test_a_failure_is_logged_once_per_change_of_text(script, make, caplog):
    source = make()
    source.start()
    absent = [Unsupported("libnvidia", None, "not installed") for _ in range(3)]
    for step in (*absent, RuntimeError("odd"), RuntimeError("odd"), absent[0]):
        script.steps.put(step)
    until(lambda: source.counters["failures"] == 6)
    assert source.why_not == "cards: failed with libnvidia: not installed"
    for _ in range(7):
        script.begun.get(timeout=WAIT)
    assert caplog.text.count("cannot be read") == 3
    assert caplog.text.count("'exc_info': True") == 1


def test_none_is_no_value_and_the_reader_says_why(script, make):
    why = ["no driver", None]
    source = make(absent=lambda: why.pop(0))
    source.start()
    script.steps.put(())
    until(lambda: source.latest() == ())
    script.steps.put(None)
    until(lambda: source.counters["failures"] == 1)
    assert source.why_not == "cards: failed with no driver"
    script.steps.put(None)
    until(lambda: source.counters["failures"] == 2)
    assert source.why_not == "cards: failed with no value"
    assert source.counters["reads"] == 1


def test_a_good_value_outlives_failures_until_it_is_too_old(script, make):
    now = [0.0]
    source = make(clock=lambda: now[0])
    source.start()
    script.steps.put("good")
    script.steps.put(ValueError("once"))
    until(lambda: source.counters["failures"] == 1)
    assert source.latest(1.0) == "good"
    assert source.why_not == "cards: failed with ValueError('once')"
    now[0] = 1.1
    assert source.latest(1.0) is None
    script.steps.put("better")
    until(lambda: source.latest(1.0) == "better")
    assert source.why_not == ""


class Waits(threading.Event):
    """An event that says how long it was waited for, and returns at once."""

    def __init__(self):
        super().__init__()
        self.pauses = queue.Queue()

    def wait(self, timeout=None):
        self.pauses.put(timeout)
        return self.is_set()


@pytest.mark.parametrize(
    ("longest", "pauses"), [(None, [3.0] * 7), (20.0, [3.0, 6.0, 12.0, 20.0, 20.0, 3.0, 3.0])], ids=["same", "rarer"]
)
def test_failures_in_a_row_are_tried_ever_less_often(script, make, longest, pauses):
    waits = Waits()
    source = make(period=3.0, clock=lambda: 0.0, longest_seconds=longest, stopping=waits)
    source.start()
    for step in (*[OSError("away")] * 5, "back", OSError("away")):
        script.steps.put(step)
    assert [waits.pauses.get(timeout=WAIT) for _ in pauses] == pauses


def test_the_time_that_a_read_took_is_part_of_the_period(script, make):
    now, waits = [0.0], Waits()
    source = make(period=3.0, clock=lambda: now[0], stopping=waits)
    source.start()
    script.begun.get(timeout=WAIT)
    now[0] = 1.0
    script.steps.put("in time")
    assert waits.pauses.get(timeout=WAIT) == 2.0
    script.begun.get(timeout=WAIT)
    now[0] = 9.0
    script.steps.put("late")
    assert waits.pauses.get(timeout=WAIT) == 0.0


def test_a_read_that_waits_ends_with_the_source():
    stopping, begun = threading.Event(), threading.Event()

    def read():
        begun.set()
        return stopping.wait(WAIT * 10)

    source = Source("window", read, 1.0, timeout_seconds=1.0, stopping=stopping)
    source.start()
    assert begun.wait(WAIT)
    assert source.stop(WAIT)
    assert source.why_not == "window: stopped"


def test_one_that_never_started_can_be_stopped():
    assert Source("none", lambda: 1, 1.0, timeout_seconds=1.0).stop(0.0)
