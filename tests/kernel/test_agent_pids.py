"""Limits on tasks on real cgroups: a fork storm of BE is bounded, and what runs goes on."""

from __future__ import annotations

import pytest

from agent.capabilities import Knob
from agent.host.node_tasks import read_tasks_max
from agent.policy.pids import PidsSettings
from tests.agent.trees import CID
from tests.kernel.test_agent_cgroups import BE, HIERARCHY, LS, Groups, Rig, wait_for
from tests.kernel.test_agent_cgroups import pytestmark as needs_root

PIDS = HIERARCHY.controllers.get("pids")

pytestmark = [*needs_root, pytest.mark.skipif(PIDS is None, reason="no pids controller is mounted")]

SETTINGS = PidsSettings(pod_max=30, pod_min=16, headroom=5)

FORKS = (
    "import os, time\n"
    "reading, writing = os.pipe()\n"
    "made = 0\n"
    "while not os.path.exists({go!r}): time.sleep(0.01)\n"
    "while made < {most}:\n"
    "    try: child = os.fork()\n"
    "    except BlockingIOError: break\n"
    "    if not child:\n"
    "        os.close(writing)\n"
    "        os.read(reading, 1)\n"
    "        os._exit(0)\n"
    "    made += 1\n"
    "with open({told!r} + '.new', 'w') as file: file.write(str(made))\n"
    "os.rename({told!r} + '.new', {told!r})\n"
    "time.sleep(600)"
)
"""Forks when told to, until it has enough or may not; its children end with it."""


@pytest.fixture
def node():
    made = Groups(("cpu", "cpuacct", "memory", "pids"))
    try:
        yield made
    finally:
        made.close()


class Storm:
    """A process in a group that forks once `begin` is called."""

    def __init__(self, node, group, folder, most):
        self.go, self.told = folder / "go", folder / "made"
        folder.mkdir()
        code = FORKS.format(go=str(self.go), told=str(self.told), most=most)
        self.process = node.spawn(group, code)

    def begin(self):
        self.go.touch()
        wait_for(self.told.exists, "the end of the forks")
        return int(self.told.read_text())


def limit(node, group=BE):
    return node.path(group, "pids.max", PIDS.path).read_text().strip()


def tasks(node, group=BE):
    return int(node.path(group, "pids.current", PIDS.path).read_text())


def set_limit(node, value, group=BE):
    node.path(group, "pids.max", PIDS.path).write_text(value)


def test_a_fork_storm_is_bounded_while_ls_makes_what_it_wants(node, tmp_path):
    storm, service = Storm(node, f"{BE}/{CID}", tmp_path / "be", 200), Storm(node, LS, tmp_path / "ls", 60)
    state = tmp_path / "state"
    state.mkdir()
    with Rig(node, state, policies=("pids",), pids=SETTINGS) as rig:
        assert Knob.PIDS_MAX in rig.capabilities.writable
        wait_for(lambda: limit(node) == "30", "the limit")
        assert storm.begin() == 29
        assert service.begin() == 60
        assert (tasks(node), limit(node, LS)) == (30, "max")
        assert storm.process.poll() is None
        assert "may have 30 tasks" in rig.turns[-1].plan.reasons["pids"]
    assert rig.executor.restore().problems == ()
    assert (limit(node), rig.journal.entries()) == ("max", ())


def test_a_pod_that_has_more_than_its_limit_goes_on_and_gets_a_little_more(node, tmp_path):
    storm = Storm(node, f"{BE}/{CID}", tmp_path / "be", 40)
    assert storm.begin() == 40
    again = Storm(node, f"{BE}/{CID}", tmp_path / "again", 40)
    had = tasks(node)
    with Rig(node, tmp_path, policies=("pids",), pids=SETTINGS):
        wait_for(lambda: limit(node) == str(had + 5), "the limit")
        assert again.begin() == 5
        assert tasks(node) == had + 5
        assert (storm.process.poll(), again.process.poll()) == (None, None)


def test_a_limit_of_the_kubelet_is_kept_and_given_back(node, tmp_path):
    set_limit(node, "20")
    with Rig(node, tmp_path, policies=("pids",), pids=SETTINGS) as rig:
        wait_for(lambda: len(rig.turns) > 3, "turns")
        assert limit(node) == "20"
        set_limit(node, "25")
        turn = len(rig.turns)
        wait_for(lambda: len(rig.turns) > turn + 1, "turns")
        assert limit(node) == "25"
        set_limit(node, "1000")
        wait_for(lambda: limit(node) == "30", "our limit")
    rig.executor.restore()
    assert limit(node) == "1000"


def test_near_its_share_be_keeps_what_it_has_until_some_of_it_ends(node, tmp_path):
    percent = 100 * 100 / read_tasks_max("/proc")
    own = PidsSettings(
        pod_max=4096,
        pod_min=16,
        headroom=5,
        be_percent=percent,
        tighten_percent=50.0,
        node_percent=100.0,
        quiet_seconds=0.0,
        min_dwell_seconds=0.0,
    )
    storm = Storm(node, f"{BE}/{CID}", tmp_path / "be", 59)
    with Rig(node, tmp_path, policies=("pids",), pids=own) as rig:
        wait_for(lambda: limit(node) in {"99", "100"}, "the share as the limit")
        assert storm.begin() == 59
        wait_for(lambda: rig.turns[-1].plan.rungs["pids"].engaged, "the rung")
        assert 60 <= tasks(node) < int(limit(node)) <= 100
        storm.process.kill()
        wait_for(lambda: not rig.turns[-1].plan.rungs["pids"].engaged, "its end")
