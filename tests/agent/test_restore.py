"""`agent restore`: what a dead agent left goes back, on trees that follow the kernel's rules."""

from __future__ import annotations

import errno
import json
import os

import pytest

from agent import restore as command
from agent.act import restore as act
from agent.act.executor import Executor
from agent.act.journal import FILE_NAME, Journal
from agent.act.owner import Ownership
from agent.capabilities import Capabilities, Knob
from agent.host.affinity import Affinity
from agent.main import main
from agent.policy.base import Plan, Request
from agent.snapshot import PodIdentity
from agent.threads import GroupMasks
from slacktide.errors import SettingsError, StateError
from slacktide.kernel.files import read_text, translate
from slacktide.kernel.hierarchy import Version
from slacktide.tier import Tier
from tests.agent.trees import CID, UID_BE, KernelWriter, Tree

BE = f"kubepods/besteffort/pod{UID_BE}"
LEAF = f"{BE}/{CID}"
MIB = 1 << 20
BOOT = read_text("/proc/sys/kernel/random/boot_id").strip()
ALL = Capabilities(mode="v1", cpu_version=1, writable=frozenset(Knob))


class Node:
    """A dead agent's journal and cgroups."""

    def __init__(self, base, version=Version.V1):
        self.tree = Tree(base / "cg", version)
        self.state = base / "state"
        self.state.mkdir()
        self.writer = KernelWriter(version)
        self.tree.group("kubepods/besteffort", cpuset__cpus__effective="0-3")
        self.tree.group(BE, cpu__shares=2, cpu__weight=1)
        self.tree.group(LEAF)
        journal = Journal(str(self.state), BOOT)
        executor = Executor(self.tree.lister(), journal, ALL, self.writer)
        wishes = [(BE, Knob.IDLE, 1), (BE, Knob.QUOTA, 500), (LEAF, Knob.MEMORY_MAX, 32 * MIB), (BE, Knob.CPUSET, "1")]
        plan = Plan(
            settings={
                (group, knob): Request(policy="p", group=group, knob=knob, value=value, reason="r")
                for group, knob, value in wishes
            }
        )
        groups = {pod.group: pod for pod in self.tree.lister().pods()}
        be = PodIdentity(namespace="d", name="be", uid=UID_BE, tier=Tier.BE)
        executor.apply(plan, groups, {BE: be})
        self.before = self.files()

    def files(self):
        return {path: path.read_text() for path in self.tree.base.rglob("*") if path.is_file()}

    def restore(self, **more):
        return act.restore(str(self.state), "", hierarchy=self.tree.hierarchy, pause=lambda _: None, **more)


@pytest.fixture(params=list(Version), ids=lambda version: version.name)
def node(request, tmp_path, monkeypatch):
    made = Node(tmp_path, request.param)
    monkeypatch.setattr(act, "write_value", made.writer)
    monkeypatch.setattr(act, "discover", lambda _: made.tree.hierarchy)
    monkeypatch.setattr(act, "remove_all", lambda _: [])
    return made


def test_everything_goes_back_and_each_thing_is_named(node):
    done = node.restore()
    assert done.complete
    assert {(row.cgroup, row.what, row.result) for row in done.rows} >= {
        (BE, "cpu.idle", "given back"),
        (BE, "cpu.quota", "given back"),
        (BE, "cpuset.cpus", "given back"),
        (LEAF, "memory.max", "given back"),
    }
    quota = next(row for row in done.rows if (row.cgroup, row.what) == (BE, "cpu.quota"))
    assert (quota.held, quota.original) == (50000, None)
    assert node.tree.read(BE, "cpu.idle") == "0"
    assert node.tree.read(BE, "cpuset.cpus", "cpuset") == "0-3"
    assert node.restore().rows == []


def test_a_dry_run_says_the_same_and_writes_nothing(node):
    journal = (node.state / FILE_NAME).read_bytes()
    planned = node.restore(dry_run=True)
    assert node.files() == node.before
    assert (node.state / FILE_NAME).read_bytes() == journal
    done = node.restore()
    assert [(row.cgroup, row.what, row.held, row.original) for row in planned.rows] == [
        (row.cgroup, row.what, row.held, row.original) for row in done.rows
    ]
    assert {row.result for row in planned.rows} == {"would be given back"}


def test_it_refuses_while_an_agent_runs_and_names_it(node):
    owner = Ownership(str(node.state), node.tree.hierarchy, "", pause=lambda _: None)
    with pytest.raises(StateError, match=f"pid {os.getpid()}"):
        node.restore()
    with pytest.raises(StateError, match=f"pid {os.getpid()}"):
        node.restore(dry_run=True)
    owner.close()
    assert node.files() == node.before
    assert node.restore().complete


def test_what_the_kernel_refuses_is_named_and_stays_in_the_journal(node):
    name = "memory.limit_in_bytes" if node.tree.version is Version.V1 else "memory.max"
    node.writer.fail[name] = errno.EBUSY
    done = node.restore()
    assert not done.complete
    failed = [row for row in done.rows if row.result == "failed"]
    assert [(row.cgroup, row.what) for row in failed] == [(LEAF, "memory.max")]
    assert "busy" in failed[0].reason
    node.writer.fail.clear()
    assert [row.what for row in node.restore().rows] == ["memory.max"]


def test_what_cannot_be_read_is_named_too(node):
    name = "memory.limit_in_bytes" if node.tree.version is Version.V1 else "memory.max"
    node.tree.put(LEAF, name, "junk", "memory")
    done = node.restore()
    assert [row.what for row in done.rows if row.result == "failed"] == ["memory.max"]


def test_a_group_that_is_gone_or_set_by_someone_else_is_nothing_to_do(node):
    node.tree.put(BE, "cpuset.cpus", "2", "cpuset")
    node.tree.remove(LEAF)
    done = node.restore()
    assert done.complete
    nothing = {row.what for row in done.rows if row.result == "nothing to do"}
    assert nothing >= {"memory.max", "cpuset.cpus"}
    assert node.tree.read(BE, "cpuset.cpus", "cpuset") == "2"


def test_an_unusable_journal_is_said_and_fails(node):
    (node.state / FILE_NAME).write_text("{torn")
    done = node.restore(dry_run=True)
    assert not done.complete
    assert "what it held is not known" in done.problems[0]
    assert (node.state / FILE_NAME).read_text() == "{torn"


def test_masks_of_threads_go_back(node):
    affinity = Affinity("/proc")
    journal = Journal(str(node.state), BOOT)
    journal.load()
    inode = os.stat(node.tree.path(LEAF, "")).st_ino
    journal.record_masks([GroupMasks(group=LEAF, inode=inode, original=None)])
    before = affinity.read(os.getpid())
    done = node.restore()
    assert (LEAF, act.AFFINITY, "given back") in [(row.cgroup, row.what, row.result) for row in done.rows]
    assert affinity.read(os.getpid()) == before
    assert node.restore().rows == []


def test_a_root_that_leaves_the_mount_and_a_directory_that_is_not_there_are_refused(node, tmp_path):
    with pytest.raises(SettingsError, match="leaves its root"):
        act.restore(str(node.state), "../x", hierarchy=node.tree.hierarchy)
    with pytest.raises(StateError, match="does not exist"):
        act.restore(str(tmp_path / "none"), "", hierarchy=node.tree.hierarchy)


def test_the_command_prints_a_table_or_json_and_exits_by_the_outcome(node, capsys):
    arguments = ["--state-dir", str(node.state), "--cgroup-root", ""]
    assert command.main([*arguments, "--dry-run", "--output", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"]
    assert {row["what"] for row in document["rows"]} >= {"cpu.idle", "memory.max"}
    name = "memory.limit_in_bytes" if node.tree.version is Version.V1 else "memory.max"
    node.writer.fail[name] = errno.EBUSY
    assert command.main(arguments) == 1
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == list(command.COLUMNS)
    assert any("memory.max" in line and "failed" in line for line in table.splitlines())
    node.writer.fail.clear()
    assert command.main(arguments) == 0
    capsys.readouterr()
    assert command.main(arguments) == 0
    assert "nothing to give back" in capsys.readouterr().err
    assert command.main(["--state-dir", f"{node.state}/none"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_groups_of_resctrl_that_stay_make_it_incomplete(node, monkeypatch):
    def refuses(_places):
        raise translate("/sys/fs/resctrl/slacktide", OSError(errno.EBUSY, "Device or resource busy"))

    monkeypatch.setattr(act, "remove_all", refuses)
    done = node.restore()
    assert not done.complete
    assert "resctrl" in done.problems[0]


def test_it_is_a_command_of_the_agent(tmp_path, capsys):
    assert main(["restore", "--state-dir", str(tmp_path / "none")]) == command.EXIT_REFUSED
    assert "does not exist" in capsys.readouterr().err
