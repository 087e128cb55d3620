"""Real load for drills: it burns what was asked, and nothing outlives anybody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from agent.act.drill_load import DrillLoad
from tests.patience import PATIENCE


def eventually(what, seconds=10.0):
    stop = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < stop:
        if what():
            return True
        threading.Event().wait(0.02)
    return False


@pytest.fixture
def load():
    made = DrillLoad()
    yield made
    made.close()


def burners(pid):
    return psutil.Process(pid).children()


def test_it_burns_on_as_many_processes_as_needed_until_told_to_stop(load):
    load.start(1500, 60)
    assert eventually(lambda: len(burners(load.pid)) == 2)
    assert eventually(lambda: all(sum(child.cpu_times()[:2]) > 0.05 for child in burners(load.pid)))
    load.stop()
    assert eventually(lambda: not burners(load.pid))
    used = load.used_seconds()
    assert used >= 0.1
    assert load.used_seconds() >= used


def test_it_ends_by_its_own_clock(load):
    load.start(1000, 0.2)
    assert eventually(lambda: len(burners(load.pid)) == 1)
    assert eventually(lambda: not burners(load.pid))
    assert load.why_not() == ""


def test_a_second_order_replaces_the_first(load):
    load.start(2000, 60)
    assert eventually(lambda: len(burners(load.pid)) == 2)
    load.start(500, 60)
    assert eventually(lambda: len(burners(load.pid)) == 1)


def test_a_helper_that_died_is_said_and_harms_nobody(load):
    psutil.Process(load.pid).kill()
    assert eventually(lambda: load.why_not() != "")
    load.start(1000, 1)
    load.stop()


def test_nothing_outlives_an_agent_that_was_killed():
    script = (
        "import time; from agent.act.drill_load import DrillLoad; load = DrillLoad(); load.start(1000, 60);"
        "print(load.pid, flush=True); time.sleep(60)"
    )
    agent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        helper = psutil.Process(int(agent.stdout.readline()))
        assert eventually(lambda: len(helper.children()) == 1)
        family = [helper, *helper.children()]
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
    assert eventually(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family))
    assert os.getpid() not in [one.pid for one in family]
