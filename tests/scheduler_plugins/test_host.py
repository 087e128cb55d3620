"""The parts of the process: timers of the queue, and the threads that bind."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry

from scheduler_plugins.config.load import load
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.host import SchedulerHost, every
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.workers import Workers
from slacktide.cluster import connect
from slacktide.observe import Health
from slacktide.settings import ClusterSettings
from tests.scheduler_plugins.build import Clock


class Ticks:
    """A stop event that lets time pass at each wait, and is set after that many."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock, self.left = clock, count

    def wait(self, seconds: float) -> bool:
        self.clock.forward(seconds)
        self.left -= 1
        return self.left < 0


def test_timers_with_a_period_of_their_own_run_beside_the_one_of_each_second() -> None:
    clock = Clock(0.0)
    backoff: list[float] = []
    sleepers: list[float] = []
    kept_out: list[float] = []
    others = {lambda: sleepers.append(clock.now): 30.0, lambda: kept_out.append(clock.now): 10.0}
    every(Ticks(clock, 65), 1.0, lambda: backoff.append(clock.now), others, clock)
    assert len(backoff) == 65
    assert sleepers == [30.0, 60.0]
    assert kept_out == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


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


def test_plugin_that_hangs_makes_the_process_not_live_and_unlisted_kinds_make_it_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, health, plugins, stop = SchedulerSettings(), Health(), default_registry(), threading.Event()
    client = connect(ClusterSettings(server="unix:/nonexistent/api.sock"), user_agent="test")
    try:
        SchedulerHost(settings, load(settings, plugins), client, plugins, CollectorRegistry(), health, stop)
        assert health.not_live() == {}
        assert health.not_ready()["informers"].startswith("not listed yet: pods, nodes, ")
        said = "plugin P has not answered in Filter for 61 s"
        monkeypatch.setattr(Framework, "hung", lambda self: [said])
        assert health.not_live() == {"plugins": said}
    finally:
        client.close()


@pytest.mark.parametrize(("lost", "attempts"), [(False, [0]), (True, [])])
def test_a_pod_that_comes_once_the_lead_is_lost_is_left_to_the_next_leader(
    monkeypatch: pytest.MonkeyPatch, *, lost: bool, attempts: list[int]
) -> None:
    settings, plugins, stop = SchedulerSettings(), default_registry(), threading.Event()
    client = connect(ClusterSettings(server="unix:/nonexistent/api.sock"), user_agent="test")
    tried: list[int] = []
    try:
        host = SchedulerHost(settings, load(settings, plugins), client, plugins, CollectorRegistry(), Health(), stop)
        host._all_listed, host._elector = True, None
        host._leads.set()

        def comes(_timeout: float) -> bool:
            if lost:
                host._leads.clear()
            stop.set()
            return True

        monkeypatch.setattr(host._queue, "wait", comes)
        monkeypatch.setattr(host._scheduler, "attempt", tried.append)
        host._loop()
        assert tried == attempts
    finally:
        client.close()
