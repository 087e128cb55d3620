"""One agent a node and a state directory: who else comes is told whom it meets. Directories stand in for cgroups."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agent.act.owner import Ownership
from slacktide.errors import StateError
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version
from tests.patience import PATIENCE


class Node:
    def __init__(self, base):
        self.base = base
        (base / "cpu").mkdir()
        self.hierarchy = Hierarchy({"cpu": Mount(str(base / "cpu"), Version.V1)}, None)
        self.taken = []
        self.pauses = []

    def agent(self, name, root="", **more):
        state = self.base / name
        state.mkdir(exist_ok=True)
        self.taken.append(Ownership(str(state), self.hierarchy, root, pause=self.pauses.append, **more))
        return self.taken[-1]

    def close(self):
        for owner in self.taken:
            owner.close()


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("first", "second"), [("", ""), ("a", "a"), ("", "a"), ("a", ""), ("a", "a/b"), ("a/b", "a")])
def test_two_agents_on_one_part_of_a_node_refuse_each_other_and_name_the_owner(node, first, second):
    for part in ("a", "a/b"):
        (node.base / "cpu" / part).mkdir()
    one = node.agent("one", first)
    with pytest.raises(StateError, match=f"pid {os.getpid()}: .*looks after"):
        node.agent("two", second)
    one.close()
    node.agent("two", second)


def test_two_parts_of_a_node_have_an_agent_each(node):
    for part in ("a", "b"):
        (node.base / "cpu" / part).mkdir()
        node.agent(part, part)


def test_an_agent_that_only_observes_is_in_nobodys_way(node):
    node.agent("one")
    node.agent("two", node=False)


def test_one_state_directory_has_one_agent_and_a_moment_of_a_watchdog_is_waited_for(node):
    first = node.agent("one", node=False)
    with pytest.raises(StateError, match=f"pid {os.getpid()}: .*uses"):
        node.agent("one", node=False)
    assert sum(node.pauses) == pytest.approx(2.0)
    node.pauses.clear()

    def gone_meanwhile(_seconds):
        node.pauses.append(1)
        first.close()

    state = str(node.base / "one")
    node.taken.append(Ownership(state, node.hierarchy, "", node=False, pause=gone_meanwhile))
    assert len(node.pauses) == 1


def test_a_root_that_nobody_has_made_yet_is_made_and_goes_again(node):
    owner = node.agent("one", "slacktide-x")
    assert (node.base / "cpu/slacktide-x").is_dir()
    with pytest.raises(StateError):
        node.agent("two", "slacktide-x")
    owner.close()
    assert not (node.base / "cpu/slacktide-x").exists()


def test_a_root_in_use_by_others_stays(node):
    owner = node.agent("one", "slacktide-x")
    (node.base / "cpu/slacktide-x/kubepods").mkdir()
    owner.close()
    assert (node.base / "cpu/slacktide-x").is_dir()


def test_a_refused_agent_lets_go_of_what_it_had(node):
    node.agent("one")
    with pytest.raises(StateError):
        node.agent("two")
    node.taken[0].close()
    node.agent("two")


def test_the_kernel_lets_go_when_the_owner_is_killed(node):
    code = (
        "import sys, time\n"
        "from agent.act.owner import Ownership\n"
        "from slacktide.kernel.hierarchy import Hierarchy, Mount, Version\n"
        "owner = Ownership(sys.argv[1], Hierarchy({'cpu': Mount(sys.argv[2], Version.V1)}, None), '')\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    state = node.base / "one"
    state.mkdir()
    command = [sys.executable, "-c", code, str(state), str(node.base / "cpu")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"ready\n"
            for name in ("one", "two"):
                with pytest.raises(StateError, match=f"pid {other.pid}: "):
                    node.agent(name)
        finally:
            other.kill()
            other.wait(10 * PATIENCE)
    node.agent("one")
