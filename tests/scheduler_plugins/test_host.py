"""The parts of the process: timers of the queue, and the threads that bind."""

from __future__ import annotations

import threading

from scheduler_plugins.host import every
from scheduler_plugins.workers import Workers
from tests.scheduler_plugins.build import Clock


class Ticks:
    """A stop event that lets time pass at each wait, and is set after that many."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock, self.left = clock, count

    def wait(self, seconds: float) -> bool:
        self.clock.forward(seconds)
        self.left -= 1
        return self.left < 0


class Flushed:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.backoff: list[float] = []
        self.unschedulable: list[float] = []

    def flush_backoff(self) -> None:
        self.backoff.append(self.clock.now)

    def flush_unschedulable(self) -> None:
        self.unschedulable.append(self.clock.now)


def test_backoff_is_flushed_each_second_and_sleepers_each_half_minute() -> None:
    clock = Clock(0.0)
    queue = Flushed(clock)
    every(Ticks(clock, 65), 1.0, 30.0, queue, clock)
    assert len(queue.backoff) == 65
    assert queue.unschedulable == [30.0, 60.0]


def test_workers_survive_a_task_that_fails_and_never_hold_up_the_process() -> None:
    done = threading.Event()
    kind: list[bool] = []

    def fail() -> None:
        raise RuntimeError("task")

    def last() -> None:
        kind.append(threading.current_thread().daemon)
        done.set()

    workers = Workers(1, "test")
    workers.submit(fail)
    workers.submit(last)
    workers.start()
    assert done.wait(20)
    assert kind == [True]
