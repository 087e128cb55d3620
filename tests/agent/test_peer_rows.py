"""Rows of the references that fit nowhere else: what went wrong elsewhere, with what is right here."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from agent.act import journal
from agent.act.executor import Executor
from agent.act.journal import Journal
from agent.capabilities import Capabilities, Knob
from agent.host import psi
from agent.host.fds import FdBudget, GroupFiles
from agent.host.lists import ThreadLists
from agent.host.proc import Proc
from agent.host.reader import HostReader
from agent.policy.base import Plan, Request
from agent.policy.contention import Contention, ContentionSettings
from agent.policy.evict import Evict, EvictSettings
from agent.policy.rdt_shares import cache_values
from agent.resctrl import RdtInfo
from agent.snapshot import PodIdentity, build
from slacktide.cluster.evict import eviction_body
from slacktide.kernel.hierarchy import Version
from slacktide.objects import ObjectMeta, Pod
from slacktide.status import Usage
from slacktide.tier import Tier
from slacktide.weights import kernel_weight
from tests.agent.nodes import CONTEXT, GIB, SHORT, node, pod
from tests.agent.test_loop import Rig
from tests.agent.test_resctrl_values import cache
from tests.agent.trees import CID, UID_BE, UID_LS, KernelWriter, Tree, proc_tree
from tests.agent.twins import FakeClock, FakePods

BOTH = pytest.mark.parametrize("version", [Version.V1, Version.V2])
ALL = Capabilities(mode="v1", cpu_version=1, writable=frozenset(Knob))


def identity(uid, tier):
    return PodIdentity(namespace="d", name=uid[:4], uid=uid, tier=tier)


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(2, 1), (10, 1), (102, 4), (512, 20), (1024, 39), (2048, 79), (4096, 157), (262_144, 10_000)],
)
def test_koordinator_1521_shares_become_weights_by_one_formula_only(shares, weight):
    """The newer map would give 4, 17, 59, 100, 174 and 303: two of them on one node would part CPU wrongly."""
    millis = -(-shares * 1000 // 1024)
    assert (kernel_weight(millis, v2=False), kernel_weight(millis, v2=True)) == (shares, weight)


@pytest.mark.parametrize("bits", [20, 28, 32])
def test_rubik_masks_of_twenty_ways_and_more_have_all_their_bits(bits):
    info = RdtInfo(caches=(cache(bits, domains=(0,)),))
    assert cache_values(info, 100)["L3"] == {0: (1 << bits) - 1}
    assert cache_values(info, 50)["L3"] == {0: (1 << bits // 2) - 1}


def test_bun_34018_pressure_files_are_only_read_and_never_armed(tmp_path, monkeypatch):
    """A trigger without terminator is cut by the kernel; totals over our own clock need none."""
    tree = Tree(tmp_path / "cg", Version.V2)
    tree.group(f"kubepods/pod{UID_LS}")
    pressure = proc_tree(tmp_path / "proc") / "pressure"
    pressure.mkdir()
    for name in psi.RESOURCES:
        (pressure / name).write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
    opened, real = [], os.open

    def noting(path, flags, *args, **more):
        if "pressure" in str(path):
            opened.append(flags & os.O_ACCMODE)
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", noting)
    proc = Proc(str(tmp_path / "proc"), time.monotonic)
    reader = HostReader(tree.hierarchy, tree.lister(), proc, time.monotonic)
    found = reader.sweep()
    reader.cpu_psi(reader.last_groups[0])
    assert found.node.psi.cpu.some_us == 7
    assert next(iter(found.readings.values())).psi.memory.full_us == 10
    assert len(opened) >= 6
    assert set(opened) == {os.O_RDONLY}


@BOTH
def test_a_cgroup_whose_pressure_is_switched_off_is_not_known_and_not_asked_each_turn(tmp_path, version):
    tree, group = Tree(tmp_path, version), f"kubepods/pod{UID_LS}"
    tree.group(group)
    where = tree.path(group, "cpu.pressure").parent
    for name in psi.RESOURCES:
        (where / f"{name}.pressure").unlink(missing_ok=True)
    clock, tries = FakeClock(), []

    class Counting(GroupFiles):
        def _try_open(self, path, name):
            tries.append(name)
            return super()._try_open(path, name)

    files = Counting(str(where), os.stat(where).st_ino, FdBudget(100), clock)
    for _ in range(10):
        assert psi.read_group(files, clock) is None
        clock.pass_(1.0)
    assert len(tries) == 3
    clock.pass_(60.0)
    psi.read_group(files, clock)
    assert len(tries) == 6


UNLIMITED = 9223372036854771712
LARGE = (1 << 53) + 4096
"""A float would make 2^53 of the first page beyond it, and 2^63 of what v1 prints for no limit."""


@pytest.mark.parametrize("original", [LARGE + 4096, (1 << 59) + 12_288, UNLIMITED])
def test_rubik_6f8d0d5_limits_of_64_bits_come_back_to_the_byte(tmp_path, original):
    tree, group = Tree(tmp_path / "cg", Version.V1), f"kubepods/besteffort/pod{UID_BE}"
    tree.group(group, memory__limit_in_bytes=original, memory__memsw__limit_in_bytes=UNLIMITED)
    wish = Request(policy="batch_limits", group=group, knob=Knob.MEMORY_MAX, value=LARGE, reason="r")
    groups = {one.group: one for one in tree.lister().pods()}
    for start in range(2):
        kept = Journal(str(tmp_path), "boot")
        executor = Executor(tree.lister(), kept, ALL, KernelWriter(Version.V1))
        executor.adopt()
        if start == 0:
            executor.apply(Plan(settings={(group, Knob.MEMORY_MAX): wish}), groups, {group: identity(UID_BE, Tier.BE)})
            assert tree.read(group, "memory.limit_in_bytes", "memory") == str(LARGE)
            expected = None if original == UNLIMITED else original
            assert kept.get(group, Knob.MEMORY_MAX).original.value == expected
    executor.restore()
    assert tree.read(group, "memory.limit_in_bytes", "memory") == str(original)


def test_katalyst_77ab8d1e_an_eviction_names_the_uid_and_leaves_the_pod_its_own_grace_period():
    body = eviction_body(Pod(metadata=ObjectMeta(name="a", namespace="d", uid="u")), None, dry_run=False)
    assert body["deleteOptions"] == {"preconditions": {"uid": "u"}}


def test_katalyst_b5af66d9_evictions_that_are_switched_off_midway_stop_at_once():
    policy = Evict()
    low = replace(node(pods=(pod("ls", Tier.LS), pod("be", memory=GIB))), memory_available_bytes=GIB // 10)
    state, found = policy.start(CONTEXT), []
    for second in range(90):
        on = EvictSettings(fresh_samples=1, max_per_hour=12 if second < 80 else 0)
        desired, state = policy.decide(replace(low, at=100.0 + second), state, on, CONTEXT)
        found.append([victim.name for victim in desired.victims])
    assert found[79] == ["be"]
    assert found[80:] == [[]] * 10
    assert "victim budget" in desired.reason


def test_a_drained_node_evicts_nobody_itself_and_goes_on_to_protect_ls():
    """All BE pods are on their way out by somebody else's doing, and LS is short meanwhile."""
    going = tuple(pod(f"be{number}", memory=GIB, identity={"terminating": True}) for number in range(3))
    snapshot = node(pods=(pod("ls", Tier.LS), *going), pressure=SHORT, be=900, memory_available_bytes=GIB // 10)
    evict, contention = Evict(), Contention()
    state, cut = evict.start(CONTEXT), contention.start(CONTEXT)
    for second in range(90):
        now = replace(snapshot, at=100.0 + second)
        desired, state = evict.decide(now, state, EvictSettings(fresh_samples=1), CONTEXT)
        assert desired.victims == ()
        limited, cut = contention.decide(now, cut, ContentionSettings(), CONTEXT)
    assert limited.be_limit_millis == 100
    assert {request.group for request in limited.requests} == {f"kubepods/be{number}" for number in range(3)}


@pytest.mark.parametrize("synced", [False, True], ids=["no API", "an API without pods"])
def test_koordinator_row_27_nothing_is_known_at_the_start(synced):
    rig = Rig(pods=FakePods(synced=synced))
    rig.host.rates.clear()
    rig.host.node = lambda: None
    rig.host.node_beat = lambda: (rig.clock.now, None, None)
    rig.run(4)
    assert rig.loop.counters["errors"] == 0
    assert all(not plan.settings and not plan.victims for plan in rig.executor.plans)
    assert rig.turns[-1].snapshot.capacity == Usage()
    assert "unknown" in rig.line() or "not answered" in rig.line() or "?" in rig.line()


def test_koordinator_row_27_the_topology_of_the_node_is_not_known_and_be_runs():
    rig = Rig()
    real = rig.host.node
    rig.host.node = lambda: None
    rig.run(3)
    assert rig.limit == 100, "what LS uses is not known, so BE has its floor"
    rig.host.node = real
    rig.run(30)
    assert rig.limit is None
    assert rig.loop.counters["errors"] == 0


def populated(tmp_path, version, count):
    tree = Tree(tmp_path / "cg", version)
    for number in range(count):
        uid = f"{number:08x}-1111-4111-8111-111111111111"
        tree.group(f"kubepods/besteffort/pod{uid}/{number:064x}")
        tree.group(f"kubepods/besteffort/pod{uid}")
    return tree


@BOTH
def test_crane_708_a_turn_on_250_pods_opens_few_files_of_each(tmp_path, monkeypatch, version):
    """The agent took two cores at 217 pods, as it looked at every file of every pod in every turn."""
    tree = populated(tmp_path, version, 250)
    proc = Proc(str(proc_tree(tmp_path / "proc")), time.monotonic)
    changes = iter([True] + [False] * 99)
    reader = HostReader(
        tree.hierarchy, tree.lister(), proc, time.monotonic, budget=FdBudget(4096), changed=lambda: next(changes)
    )
    for _ in range(20):
        reader.sweep()
    opened, real = [0], os.open

    def counting(path, flags, *args, **more):
        opened[0] += 1
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", counting)
    for _ in range(30):
        assert len(reader.sweep().readings) == 250
    reader.release()
    assert opened[0] / 30 / 250 < 3, "a turn opens less than three files a pod, of the thirty that there are"


def weight_in_entries(*roots):
    """Entries of all containers that these objects hold, themselves and through others of this project."""
    seen, waiting, entries = set(), list(roots), 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            entries += len(one)
            waiting.extend([*one.keys(), *one.values()])
        elif isinstance(one, (list, tuple, set, frozenset)):
            entries += len(one)
            waiting.extend(one)
        elif type(one).__module__.startswith("agent."):
            slots = (name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()))
            waiting.extend(getattr(one, name, None) for name in slots)
            waiting.extend(vars(one).values() if hasattr(one, "__dict__") else ())
    return entries


@BOTH
def test_koordinator_1981_pods_that_come_and_go_leave_nothing_in_memory(tmp_path, monkeypatch, version):
    monkeypatch.setattr(journal, "_SYNCED_BEYOND", 10)
    tree, clock = Tree(tmp_path / "cg", version), FakeClock()
    proc = Proc(str(proc_tree(tmp_path / "proc")), clock)
    lister = tree.lister()
    reader = HostReader(tree.hierarchy, lister, proc, clock, budget=FdBudget(4096, clock=clock))
    lists = ThreadLists(lister, str(tmp_path / "proc"))
    executor = Executor(lister, Journal(str(tmp_path), "boot"), ALL, KernelWriter(version), clock=clock)
    stays = f"kubepods/besteffort/pod{UID_BE}"
    tree.group(stays)
    before = None

    def turn(after):
        clock.pass_(1.0)
        sweep = reader.sweep()
        known = {one.uid: identity(one.uid, Tier.BE) for one in sweep.groups}
        build(after, sweep, known, period_seconds=1.0, capacity=Usage(cpu_millis=2000))
        groups = {one.group: one for one in reader.last_groups}
        wishes = {
            (group, knob): Request(policy="suppress", group=group, knob=knob, value=value, reason="r")
            for group in groups
            for knob, value in ((Knob.QUOTA, 500), (Knob.IDLE, 1))
        }
        executor.apply(Plan(settings=wishes), groups, {one.group: known[one.uid] for one in groups.values()})
        lists.of(list(groups.values()))
        return sweep

    sizes = []
    for generation in range(24):
        uid = f"{generation:08x}-2222-4222-8222-222222222222"
        passing = f"kubepods/besteffort/pod{uid}"
        tree.group(passing)
        tree.group(f"{passing}/{CID}")
        before = turn(before)
        before = turn(before)
        for name in (f"{passing}/{CID}", passing):
            tree.remove(name)
        for _ in range(8):
            before = turn(before)
        sizes.append(weight_in_entries(reader, lister, executor, lists))
    assert executor.counters["writes"] >= 2 * 24
    assert max(sizes[12:]) <= max(sizes[4:12]), sizes
