"""`slacktide agent restore` on an instance whose cgroups are directories."""

import json
import os

import pytest

from agent.act import restore as act
from agent.act.journal import Entry, Journal
from agent.act.owner import Ownership
from agent.capabilities import Knob
from agent.host.knobs import Original
from slacktide.kernel.files import read_text
from standalone.state import find
from tests.agent.trees import UID_BE, Tree


@pytest.fixture
def instance(root, tmp_path, monkeypatch):
    """(tree, cgroup, state directory of the agent) with one quota that a dead agent left."""
    state = find(root)
    tree = Tree(tmp_path / "cg")
    cgroup = f"{state.cgroup_root}/kubepods/pod{UID_BE}"
    tree.group(cgroup, cpu__cfs_quota_us=5000)
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    inode = os.stat(tree.path(cgroup, "")).st_ino
    entry = Entry(group=cgroup, inode=inode, knob=Knob.QUOTA, original=Original(), applied=5000, policy="suppress")
    Journal(state.folder("agent"), boot).record([entry])
    monkeypatch.setattr(act, "discover", lambda _: tree.hierarchy)
    monkeypatch.setattr(act, "remove_all", lambda _: [])
    return tree, cgroup, state


def test_restore_gives_back_what_the_agent_of_this_instance_left(command, instance, out):
    tree, cgroup, _ = instance
    assert command("agent", "restore", "--dry-run", "-o", "json") == 0
    document = json.loads(out.text)
    assert document["dry_run"]
    assert [(row["cgroup"], row["what"], row["held"], row["original"]) for row in document["rows"]] == [
        (cgroup, "cpu.quota", 5000, None)
    ]
    assert tree.read(cgroup, "cpu.cfs_quota_us") == "5000"
    assert command("agent", "restore") == 0
    assert "given back" in out.text
    assert tree.read(cgroup, "cpu.cfs_quota_us") == "-1"


def test_restore_of_a_directory_that_is_named(command, instance, tmp_path, err):
    _, _, state = instance
    assert command("agent", "restore", "--state-dir", state.folder("agent"), "--cgroup-root", state.cgroup_root) == 0
    assert command("agent", "restore", "--state-dir", state.folder("agent"), "--cgroup-root", state.cgroup_root) == 0
    assert "nothing to give back" in err.text
    assert command("agent", "restore", "--state-dir", str(tmp_path / "none")) == 2
    assert "does not exist" in err.text


def test_restore_is_refused_while_the_agent_runs(command, instance, err):
    tree, cgroup, state = instance
    owner = Ownership(state.folder("agent"), tree.hierarchy, state.cgroup_root)
    try:
        assert command("agent", "restore") == 2
    finally:
        owner.close()
    assert f"another agent (pid {os.getpid()}" in err.text
    assert tree.read(cgroup, "cpu.cfs_quota_us") == "5000"


def test_without_an_instance_the_directory_must_be_named(command, app, tmp_path, err):
    app.state_option = str(tmp_path / "nowhere")
    assert command("agent", "restore") == 2
    assert "--state-dir" in err.text


def test_a_limit_that_cannot_be_given_back_is_the_exit_code(command, instance, out):
    tree, cgroup, _ = instance
    tree.put(cgroup, "cpu.cfs_quota_us", "junk")
    assert command("agent", "restore") == 1
    assert "failed" in out.text
