"""The agent, and everything, killed with -9 while BE is limited: who lifts what, who takes over, what is left."""

import contextlib
import json
import os
import signal
import subprocess

import psutil
import pytest

from standalone.process import alive
from tests.patience import PATIENCE
from tests.whole.node import Group, bound, writable
from tests.whole.support import SLACKTIDE, started, wait_until
from tests.whole.test_agent import BUSY, MIB, reported, settled
from tests.whole.test_kills import phase

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]

AGENT = """
turn_seconds: 0.25
suppress: {engage_percent: 1, target_percent: 1, hold_percent: 0}
watchdog_seconds: 2
drill: {load: true}
"""
"""BE gets its floor as soon as anything else uses CPU."""


def naming(root):
    """Processes whose command names this state directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(root in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def up():
    with started(config={"agent": AGENT}) as running:
        if not writable(running):
            pytest.skip("cgroups of this machine cannot be written, so there are no limits")
        yield running


@pytest.fixture(scope="module")
def before(up):
    """What pods held before an agent saw them: pod name -> knobs."""
    with up.without("agent"):
        bound(up, "busy", BUSY)
        bound(up, "capped", BUSY, cpu=150, memory=64 * MIB)
        bound(up, "protected", "while sleep 0.05; do :; done", tier="ls")
        held = {name: settled(Group(up, name).held()) for name in ("busy", "capped", "protected")}
    wait_until(lambda: limited(up), up)
    return held


def limited(up):
    """Whether the agent holds BE at its floor, and both pods at most at what they asked for."""
    groups = [Group(up, name) for name in ("busy", "capped")]
    return all((group.quota() or 1000) < 150 and group.idle() for group in groups)


def test_of_a_killed_agent_the_watchdog_lifts_what_would_starve_be_and_the_next_cuts_again(up, before):
    busy, capped = Group(up, "busy"), Group(up, "capped")
    with up.without("agent"):
        wait_until(lambda: busy.quota() is None and capped.quota() == 150, up)
        # What cannot starve anybody stays: BE is in the idle class, and its own limits are its own.
        assert (busy.idle(), capped.idle(), capped.memory()) == (True, True, 64 * MIB)
        assert settled(Group(up, "protected").held()) == before["protected"]
    wait_until(lambda: limited(up), up)
    with open(up.state.log_file("agent")) as log:
        assert "the watchdog of an earlier agent lifted limits" in log.read()
    assert [phase(up, name) for name in before] == ["Running"] * 3


def test_of_everything_killed_restore_gives_back_every_knob_and_down_leaves_nothing(up, before):
    wait_until(lambda: limited(up) and reported(up, "busy"), up)
    groups = {name: Group(up, name) for name in before}
    daemons = up.processes()
    agent = psutil.Process(daemons["agent"].pid)
    helpers = agent.children(recursive=True)
    assert len(helpers) == 2, "the watchdog, and the load helper of drills"
    # The supervisor is stopped first, so that it starts nothing anew, and dies last: who loses it ends in good order.
    os.kill(daemons["supervisor"].pid, signal.SIGSTOP)
    for pid in (*[helper.pid for helper in helpers], *reversed([daemon.pid for daemon in daemons.values()])):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(daemon) for daemon in daemons.values()), up)
    assert groups["busy"].quota() < 150, "nobody lifts anything"
    dry = restored(up, "--dry-run")
    assert {row["what"] for row in dry["rows"]} >= {"cpu.quota", "cpu.idle", "memory.max", "cpu affinity"}
    assert groups["busy"].quota() < 150, "a dry run writes nothing"
    assert {row["result"] for row in restored(up)["rows"]} == {"given back"}
    assert {name: settled(group.held()) for name, group in groups.items()} == before
    assert restored(up)["rows"] == []
    done = up.run("down", timeout=120)
    assert done.returncode == 0, done.stderr
    assert up.left_behind() == []
    wait_until(lambda: naming(up.root) == [], up)


def restored(up, *words):
    """What `slacktide agent restore` says, which must succeed."""
    command = [*SLACKTIDE, "--state", up.root, "agent", "restore", "--output", "json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
