"""Affinity, thread reader and mask writer: real own threads, listed in a tree that stands in for cgroups."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from agent.act.executor import Executor, PlanError
from agent.act.journal import Journal
from agent.act.masks import MaskWriter
from agent.capabilities import Capabilities
from agent.host.affinity import Affinity, stat_of, why_not
from agent.host.cgroup import PodGroup
from agent.host.threads import FRESH_SHARE, ThreadReader
from agent.snapshot import PodIdentity
from agent.threads import GroupKey, GroupMasks, MaskPlan, MaskWish, OwnMask, ThreadKey
from slacktide.errors import Gone, Refused
from slacktide.kernel.hierarchy import Hierarchy, Version, discover
from slacktide.tier import Tier
from tests.agent.trees import Tree

CPUS = sorted(os.sched_getaffinity(0))
ALL = frozenset(CPUS)
FIRST = frozenset(CPUS[:1])
GROUP = "kubepods/be"

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


class Rig:
    """Own sleeping processes that a tree lists as threads of one BE pod."""

    def __init__(self, base, version):
        self.processes = []
        self.tree = Tree(base / "cg", version)
        self.tree.group(GROUP)
        self.key = GroupKey(GROUP, os.stat(self.tree.path(GROUP, "x").parent).st_ino)
        self.pod = PodGroup(*self.key, uid="be")
        self.affinity = Affinity("/proc")
        self.lister = self.tree.lister()
        hierarchy = Hierarchy(self.tree.hierarchy.controllers, None)
        # A clock that stands: no look takes long here, so that none is followed by a pause.
        self.reader = ThreadReader(self.lister, hierarchy, "/proc", lambda: 100.0)
        self.base = str(base)
        self.journal = Journal(self.base, "boot")
        self.counters = Counter()
        self.writer = MaskWriter(self.lister, self.journal, self.affinity, self.counters)
        self.problems = []

    def spawn(self):
        process = subprocess.Popen([sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"],
                                   stdout=subprocess.PIPE)  # fmt: skip
        self.processes.append(process)
        process.stdout.readline()
        self.list_all()
        return process.pid

    def list_all(self, *more):
        name = "tasks" if self.tree.version is Version.V1 else "cgroup.threads"
        pids = [process.pid for process in self.processes if process.returncode is None]
        self.tree.put(GROUP, name, "\n".join(str(pid) for pid in (*pids, *more)))

    def end(self, pid):
        for process in self.processes:
            if process.pid == pid:
                process.kill()
                process.wait(10)

    def wish(self, pid, cpu, original=None, start=None):
        key = self.affinity.key_of(pid) if start is None else ThreadKey(pid, start)
        return MaskWish(key=key, group=self.key, cpu=cpu, original=original, held=ALL)

    def entry(self, original=None, own=()):
        return GroupMasks(group=self.key.group, inode=self.key.inode, original=original, own=own)

    def put(self, *wishes, groups=None):
        plan = MaskPlan(groups=(self.entry(),) if groups is None else groups, wishes=wishes)
        return self.writer.apply(plan, self.problems)

    def on_disk(self):
        journal = Journal(self.base, "boot")
        journal.load()
        return journal.masks()

    def restore(self):
        return self.writer.restore(self.problems)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(10)
            process.stdout.close()


@pytest.fixture(params=[Version.V1, Version.V2])
def rig(request, tmp_path):
    with contextlib.closing(Rig(tmp_path, request.param)) as made:
        yield made


def mask(pid):
    return frozenset(os.sched_getaffinity(pid))


def test_affinity_can_be_set_here_and_a_mask_outside_is_refused(rig):
    pid = rig.spawn()
    assert why_not() is None
    key = rig.affinity.key_of(pid)
    assert rig.affinity.write(key, FIRST) == FIRST == rig.affinity.read(pid) == mask(pid)
    with pytest.raises(Refused):
        rig.affinity.write(key, {os.sysconf("SC_NPROCESSORS_CONF") + 100})
    with pytest.raises(Gone, match="another thread"):
        rig.affinity.write(ThreadKey(pid, key.start + 1), ALL)
    assert mask(pid) == FIRST
    rig.end(pid)
    with pytest.raises(Gone):
        rig.affinity.read(pid)
    with pytest.raises(Gone):
        rig.affinity.write(key, ALL)


def test_stat_is_read_behind_any_command_name(tmp_path):
    (tmp_path / "7").mkdir()
    rest = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) R {rest}\n")
    assert stat_of(str(tmp_path), 7) == (22, 4, True, 39)
    (tmp_path / "7" / "stat").write_text("7 (short) S 1\n")
    with pytest.raises(Refused):
        stat_of(str(tmp_path), 7)


def test_a_sweep_has_every_thread_and_fresh_only_new_ones(rig):
    first = rig.spawn()
    sweep = rig.reader.sweep([rig.pod], 10)
    (reading,) = sweep.threads
    assert (reading.key, reading.process, reading.parent) == (rig.affinity.key_of(first), first, os.getpid())
    assert (reading.mask, reading.group) == (ALL, rig.key)
    assert reading.run_ns > 0
    assert set(sweep.busy_seconds) >= ALL
    assert sweep.cpusets[rig.key] >= ALL
    assert rig.reader.fresh(10) is None
    second = rig.spawn()
    fresh = rig.reader.fresh(10)
    assert fresh.fresh
    assert [one.key.tid for one in fresh.threads] == [second]
    assert rig.reader.fresh(10) is None
    rig.end(first)
    rig.list_all(first)
    later = rig.reader.sweep([rig.pod], 10)
    assert ([one.key.tid for one in later.threads], later.vanished) == ([second], 1)


def test_a_look_reads_a_bounded_number_of_new_threads_and_the_rest_follows(rig):
    tids = {rig.spawn() for _ in range(5)}
    sweep = rig.reader.sweep([rig.pod], 10, max_new=2)
    assert (len(sweep.threads), sweep.left_out, sweep.made) == (2, 0, {rig.key: 5})
    seen = {one.key.tid for one in sweep.threads}
    while (fresh := rig.reader.fresh(10, max_new=1)) is not None:
        assert len(fresh.threads) == 1
        seen |= {one.key.tid for one in fresh.threads}
    assert seen == tids
    assert rig.reader.sweep([rig.pod], 10).made == {}


def test_in_a_storm_those_that_last_go_first(rig):
    rig.reader.sweep([rig.pod], 10)
    stays, ends = rig.spawn(), rig.spawn()
    assert rig.reader.fresh(10, max_new=0) is None
    rig.end(ends)
    rig.list_all(1)
    fresh = rig.reader.fresh(10, max_new=1)
    assert [one.key.tid for one in fresh.threads] == [stays]
    assert rig.reader.sweep([rig.pod], 10).made == {rig.key: 3}


def test_looks_between_turns_take_a_bounded_share_of_a_cpu(rig, monkeypatch, tmp_path):
    now, looks, cost = [100.0], [], 0.01

    def slow(_directory, _version):
        looks.append(now[0])
        now[0] += cost
        return []

    # Without a loadavg something is always said to be born.
    reader = ThreadReader(rig.lister, rig.tree.hierarchy, str(tmp_path), lambda: now[0])
    reader.sweep([rig.pod], 10)
    monkeypatch.setattr("agent.host.threads.tids_in", slow)
    while now[0] < 110.0:
        reader.fresh(10)
        now[0] += 0.05
    assert 0.7 < len(looks) * cost / 10.0 / FRESH_SHARE <= 1.1


def test_what_ballast_burnt_is_no_use_by_others(rig):
    reader = ThreadReader(rig.lister, rig.tree.hierarchy, "/proc", time.monotonic, ballast=lambda: {CPUS[0]: 1e6})
    busy = reader.sweep([rig.pod], 10).busy_seconds
    assert busy[CPUS[0]] < 0 <= busy[CPUS[1]]


def test_threads_beyond_the_bound_are_left_out_and_counted(rig):
    for _ in range(3):
        rig.spawn()
    sweep = rig.reader.sweep([rig.pod], 2)
    assert (len(sweep.threads), sweep.left_out) == (2, 1)
    assert rig.reader.fresh(2) is None


def test_the_cpuset_is_that_of_the_group_or_of_the_nearest_above(rig, tmp_path):
    name = "cpuset.effective_cpus" if rig.tree.version is Version.V1 else "cpuset.cpus.effective"
    real = discover().controllers
    mount = type(next(iter(real.values())))(str(tmp_path / "set"), rig.tree.version)
    (tmp_path / "set" / GROUP).mkdir(parents=True)
    (tmp_path / "set" / "kubepods" / name).write_text("3-5\n")
    hierarchy = Hierarchy({**rig.tree.hierarchy.controllers, "cpuset": mount}, None)
    reader = ThreadReader(rig.lister, hierarchy, "/proc", time.monotonic)
    rig.spawn()
    assert reader.sweep([rig.pod], 9).cpusets == {rig.key: {3, 4, 5}}
    (tmp_path / "set" / GROUP / name).write_text("4\n")
    assert reader.sweep([rig.pod], 9).cpusets == {rig.key: {4}}


def test_masks_are_journaled_first_and_given_back_also_to_those_that_inherited(rig):
    one, two = rig.spawn(), rig.spawn()
    seen = []
    write = rig.affinity.write
    rig.affinity.write = lambda *wanted: seen.append(rig.on_disk()) or write(*wanted)
    assert rig.put(rig.wish(one, CPUS[0])) == 1
    assert seen == [(rig.entry(),)], "on disk before the first change"
    assert mask(one) == FIRST
    os.sched_setaffinity(two, FIRST)
    assert rig.restore() == 2
    assert (mask(one), mask(two)) == (ALL, ALL)
    assert rig.journal.masks() == ()
    assert rig.problems == []


def test_what_is_there_already_is_not_written(rig):
    pid = rig.spawn()
    wish = rig.wish(pid, CPUS[0])
    assert rig.put(wish) == 1
    assert rig.put(MaskWish(key=wish.key, group=wish.group, cpu=wish.cpu, original=None, held=FIRST)) == 0
    assert rig.put(rig.wish(pid, None)) == 1
    assert mask(pid) == ALL


def test_own_and_foreign_masks_are_not_given_back_to(rig):
    own, foreign, lone = rig.spawn(), rig.spawn(), rig.spawn()
    os.sched_setaffinity(own, FIRST)
    exception = OwnMask(tid=own, start=rig.affinity.key_of(own).start, original=tuple(FIRST))
    rig.put(rig.wish(foreign, CPUS[0]), groups=(rig.entry(own=(exception,)),))
    second = frozenset(CPUS[1:2])
    os.sched_setaffinity(foreign, second)
    assert rig.restore() == 0
    assert (mask(own), mask(foreign), mask(lone)) == (FIRST, second, ALL)


def test_a_restart_knows_the_journal_and_restores_by_it(rig, tmp_path):
    one, own = rig.spawn(), rig.spawn()
    os.sched_setaffinity(own, FIRST)
    exception = OwnMask(tid=own, start=rig.affinity.key_of(own).start, original=tuple(FIRST))
    rig.put(rig.wish(one, CPUS[0]), groups=(rig.entry(own=(exception,)),))
    journal = Journal(str(tmp_path), "boot")
    journal.load()
    assert journal.masks() == (rig.entry(own=(exception,)),)
    MaskWriter(rig.lister, journal, rig.affinity, rig.counters).restore(rig.problems)
    assert (mask(one), mask(own)) == (ALL, FIRST)
    later = Journal(str(tmp_path), "another boot")
    later.load()
    assert later.masks() == ()


def test_threads_that_ended_or_refuse_are_counted(rig):
    pid = rig.spawn()
    key = rig.affinity.key_of(pid)
    assert rig.put(rig.wish(pid, 5000)) == 0
    assert rig.counters["spread_refused"] == 1
    assert rig.writer.take_refused() == {key}
    assert rig.writer.take_refused() == frozenset()
    assert "5000" in rig.problems[0]
    assert rig.put(rig.wish(pid, CPUS[0], start=key.start + 1)) == 0
    assert rig.counters["spread_vanished"] == 1
    assert mask(pid) == ALL


def identity(tier):
    return PodIdentity(namespace="d", name="p", uid="be", tier=tier)


def test_the_executor_pins_only_be_and_gives_back_to_a_pod_that_is_be_no_more(rig):
    pid = rig.spawn()
    capabilities = Capabilities(mode="v1", cpu_version=1, affinity=True)
    executor = Executor(rig.lister, rig.journal, capabilities, affinity=rig.affinity)
    plan = MaskPlan(groups=(rig.entry(),), wishes=(rig.wish(pid, CPUS[0]),))
    for identities in ({GROUP: identity(Tier.LS)}, {}):
        with pytest.raises(PlanError, match="no BE pod"):
            executor.place(plan, {GROUP: rig.pod}, identities)
    assert mask(pid) == ALL
    executor.place(plan, {GROUP: rig.pod}, {GROUP: identity(Tier.BE)})
    assert mask(pid) == FIRST
    executor.place(MaskPlan(), {GROUP: rig.pod}, {GROUP: identity(Tier.LS)})
    assert mask(pid) == ALL
    assert rig.journal.masks() == ()


def test_cgroups_that_are_gone_leave_the_journal(rig):
    pid = rig.spawn()
    rig.put(rig.wish(pid, CPUS[0]))
    rig.tree.remove(GROUP)
    rig.writer.release_beside({}, {}, rig.problems)
    assert rig.journal.masks() == ()
