"""What becomes of BE's limits when the agent is killed or stopped, on the real cgroup files of this machine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.kernel.test_agent_cgroups import BE, BUSY, TIGHT_FLAGS, Process, groups, pytestmark, wait_for  # noqa: F401 - fixture and marks
from tests.patience import PATIENCE

LIMIT = 5.0
LATEST = 7.0 * PATIENCE


def watchdogs(state):
    """Pids of watchdog processes of this state directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"agent.act.watchdog" in words and str(state).encode() in words:
            found.append(int(entry.name))
    return found


class Node:
    """An agent that throttles a busy BE pod."""

    def __init__(self, cgroups, directory):
        self.groups = cgroups
        self.state = directory / "state"
        self.socket = str(directory / "api.sock")
        self.agents = []
        cgroups.spawn(f"{BE}/{CID}", BUSY)

    def agent(self, *flags, state=None):
        flags = (*TIGHT_FLAGS, "--watchdog-seconds", str(LIMIT), *flags)
        self.agents.append(Process(self.groups, state or self.state, self.socket, *flags))
        return self.agents[-1]

    @property
    def limited(self):
        return self.groups.quota() == "10000" and self.groups.read(BE, "cpu.idle") == "1"

    @property
    def free(self):
        return self.groups.quota() == self.groups.unlimited

    def close(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGCONT)
                agent.end(signal.SIGKILL)
        wait_for(lambda: watchdogs(self.state) == [], "the end of the watchdog")


@pytest.fixture
def node(groups, tmp_path):  # noqa: F811 - the fixture
    made = Node(groups, tmp_path)
    with ApiTwin(made.socket, [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be")]):
        try:
            yield made
        finally:
            made.close()


def test_a_killed_agents_limits_are_lifted_in_time_once_and_nothing_is_left(node):
    agent = node.agent()
    wait_for(lambda: node.limited, "limits")
    assert len(watchdogs(node.state)) == 1
    begin = time.monotonic()
    agent.end(signal.SIGKILL)
    wait_for(lambda: node.free, "the release", LATEST)
    assert time.monotonic() - begin > LIMIT - 1.0
    assert node.groups.read(BE, "cpu.idle") == "1"
    wait_for(lambda: watchdogs(node.state) == [], "the end of the watchdog")
    # The next agent knows what is its own, tells what happened, and gives everything back in the end.
    second = node.agent()
    wait_for(lambda: node.limited, "limits of the second agent")
    code, log = second.end(signal.SIGTERM)
    assert code == 0
    assert "the watchdog of an earlier agent lifted limits" in log
    assert (node.groups.read(BE, "cpu.idle"), node.groups.read(BE, node.groups.weight)) == ("0", node.groups.lowest)
    assert node.free
    assert watchdogs(node.state) == []


def test_a_stopped_agents_limits_are_lifted_and_come_back_with_it(node):
    agent = node.agent()
    wait_for(lambda: node.limited, "limits")
    begin = time.monotonic()
    agent.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: node.free, "the release", LATEST)
    assert time.monotonic() - begin > LIMIT - 1.0
    assert len(watchdogs(node.state)) == 1
    agent.process.send_signal(signal.SIGCONT)
    wait_for(lambda: node.limited, "limits again")
    code, log = agent.end(signal.SIGTERM)
    assert code == 0
    assert "the control loop was silent: hard limits of BE were lifted" in log
    assert "by someone else" not in log
    assert node.free
    assert watchdogs(node.state) == []


def test_a_killed_watchdog_comes_back_and_still_guards(node):
    agent = node.agent()
    wait_for(lambda: node.limited, "limits")
    (first,) = watchdogs(node.state)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: set(watchdogs(node.state)) - {first}, "another watchdog")
    agent.end(signal.SIGKILL)
    wait_for(lambda: node.free, "the release", LATEST + 5.0)


def test_a_second_agent_on_the_same_cgroups_is_refused_and_told_by_whom(node, tmp_path):
    first = node.agent()
    wait_for(lambda: node.limited, "limits")
    second = node.agent(state=tmp_path / "other")
    _, log = second.process.communicate(timeout=20 * PATIENCE)
    assert second.process.returncode == 1
    assert f"another agent (pid {first.process.pid}: " in log
    assert node.groups.root in log
    # On a slow machine the start of another agent can silence the first for so long that its watchdog acts.
    wait_for(lambda: node.limited, "limits of the first")
    assert watchdogs(tmp_path / "other") == []
