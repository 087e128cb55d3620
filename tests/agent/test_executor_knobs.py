"""Every knob through the executor on trees that follow the kernel's rules; paths, tiers, fights, lost journals."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.act.backoff import AT_ONCE, CALM_SECONDS, LONGEST_SECONDS, Backoff
from agent.act.executor import Executor, PlanError
from agent.act.journal import FILE_NAME, Journal
from agent.act.relax import relax
from agent.capabilities import Capabilities, Knob
from agent.policy.base import Desired, Plan, Request, arbitrate
from agent.snapshot import PodIdentity
from agent.threads import format_cpus, parse_cpus
from slacktide.kernel.hierarchy import Version
from slacktide.tier import Tier
from tests.agent.trees import CID, CID2, UID_BE, UID_BE2, UID_LS, KernelWriter, Tree
from tests.agent.twins import FakeClock

BE = f"kubepods/besteffort/pod{UID_BE}"
LEAF = f"{BE}/{CID}"
LEAF2 = f"{BE}/{CID2}"
LS = f"kubepods/burstable/pod{UID_LS}"
LS_LEAF = f"{LS}/{CID}"
ALL = Capabilities(mode="v1", cpu_version=1, writable=frozenset(Knob))
MIB = 1 << 20

FILES = {
    Knob.WEIGHT: ("cpu.shares", "cpu.weight"),
    Knob.QUOTA: ("cpu.cfs_quota_us", "cpu.max"),
    Knob.CPUSET: ("cpuset.cpus", "cpuset.cpus"),
    Knob.MEMORY_MAX: ("memory.limit_in_bytes", "memory.max"),
    Knob.MEMORY_HIGH: (None, "memory.high"),
    Knob.IO_WEIGHT: ("blkio.bfq.weight", "io.weight"),
    Knob.PIDS_MAX: ("pids.max", "pids.max"),
    Knob.FREEZE: ("freezer.self_freezing", "cgroup.freeze"),
    Knob.IDLE: ("cpu.idle", "cpu.idle"),
}
V1_MOUNT = {"io": "blkio"}


class Rig:
    def __init__(self, tmp_path, version=Version.V1):
        self.version = version
        self.tree = Tree(tmp_path / "cg", version)
        self.state = tmp_path / "state"
        self.state.mkdir()
        self.writer = KernelWriter(version)
        self.clock = FakeClock()
        whole = {"cpuset__cpus": "0-3", "cpuset__cpus__effective": "0-3"}
        for group in ("kubepods", "kubepods/besteffort", "kubepods/burstable", BE, LEAF, LEAF2, LS, LS_LEAF):
            self.tree.group(group, **whole)
        self.relaxed = 0
        self.start()

    def start(self):
        self.journal = Journal(str(self.state), "boot")
        self.executor = Executor(
            self.tree.lister(),
            self.journal,
            ALL,
            self.writer,
            clock=self.clock,
            random=lambda: 1.0,
            relaxed=lambda: self.relaxed,
        )
        return self.executor.adopt()

    def identities(self, **changes):
        be = PodIdentity(namespace="d", name="be", uid=UID_BE, tier=Tier.BE, **changes)
        return {BE: be, LS: PodIdentity(namespace="d", name="ls", uid=UID_LS, tier=Tier.LS)}

    def apply(self, *wishes, policy="test", lasting=(), **changes):
        plan = Plan(
            settings={(group, knob): request(group, knob, value, policy) for group, knob, value in wishes},
            lasting={(group, knob): request(group, knob, value, "batch_limits") for group, knob, value in lasting},
        )
        groups = {pod.group: pod for pod in self.tree.lister().pods()}
        self.clock.pass_(1.0)
        return self.executor.apply(plan, groups, self.identities(**changes))

    def file(self, knob):
        return FILES[knob][self.version - 1]

    def controller(self, knob):
        return V1_MOUNT.get(knob.controller, knob.controller)

    def read(self, group, knob):
        return self.tree.read(group, self.file(knob), self.controller(knob))

    def put(self, group, knob, value):
        self.tree.put(group, self.file(knob), value, self.controller(knob))

    def names(self):
        return [(group[:4], name, value) for group, name, value in self.writer.writes]


def request(group, knob, value, policy="test"):
    return Request(policy=policy, group=group, knob=knob, value=value, reason="because")


@pytest.fixture(params=list(Version), ids=lambda version: version.name)
def rig(request, tmp_path):
    return Rig(tmp_path, request.param)


@pytest.fixture
def v1(tmp_path):
    return Rig(tmp_path, Version.V1)


WISHES = [
    (Knob.WEIGHT, 50, ("50", "50"), ("1024", "100")),
    (Knob.QUOTA, 500, ("50000", "50000 100000"), ("-1", "max 100000")),
    (Knob.CPUSET, "1-2", ("1-2", "1-2"), ("0-3", "0-3")),
    (Knob.MEMORY_MAX, 64 * MIB + 17, (str(64 * MIB),) * 2, ("9223372036854771712", "max")),
    (Knob.MEMORY_HIGH, 64 * MIB, (None, str(64 * MIB)), (None, "max")),
    (Knob.IO_WEIGHT, 10, ("10", "default 10"), ("100", "default 100")),
    (Knob.PIDS_MAX, 300, ("300", "300"), ("max", "max")),
    (Knob.FREEZE, 1, ("1", "1"), ("0", "0")),
    (Knob.IDLE, 1, ("1", "1"), ("0", "0")),
]


@pytest.mark.parametrize(("knob", "value", "ours", "before"), WISHES, ids=lambda value: getattr(value, "name", None))
@pytest.mark.parametrize("group", [BE, LEAF], ids=["pod", "container"])
def test_each_knob_is_set_kept_and_given_back(rig, knob, value, ours, before, group):
    if rig.file(knob) is None:
        pytest.skip("cgroup v1 has no memory.high")
    nth = rig.version - 1
    rig.apply((group, knob, value))
    assert rig.read(group, knob) == ours[nth]
    assert rig.executor.counters["mismatch"] == 0
    rig.writer.writes.clear()
    rig.apply((group, knob, value))
    assert rig.writer.writes == []
    entry = rig.journal.get(group, knob)
    directory = rig.tree.path(group, "", rig.controller(knob))
    assert (entry.policy, entry.inode) == ("test", os.stat(directory).st_ino)
    rig.start()
    outcome = rig.executor.restore()
    assert (rig.read(group, knob), rig.journal.entries()) == (before[nth], ())
    assert {(given.group, given.knob, given.why_not) for given in outcome.given} >= {(group, knob, "")}


@pytest.mark.parametrize(("knob", "value", "ours", "before"), WISHES, ids=lambda value: getattr(value, "name", None))
def test_a_value_that_someone_changed_is_put_back_in_the_very_next_round(rig, knob, value, ours, before):
    if rig.file(knob) is None:
        pytest.skip("cgroup v1 has no memory.high")
    nth = rig.version - 1
    for _ in range(4):
        rig.apply((LEAF, knob, value))
    for drifts in (1, 2):
        rig.put(LEAF, knob, before[nth])
        rig.apply((LEAF, knob, value))
        assert rig.read(LEAF, knob) == ours[nth]
        assert rig.executor.counters["drift"] == drifts
    for _ in range(4):
        assert rig.apply((LEAF, knob, value)).writes == 0
    if rig.version is Version.V1:
        (rig.tree.base / "cpu" / LEAF).rename(rig.tree.base / "elsewhere")
    else:
        (rig.tree.base / "unified" / LEAF).rename(rig.tree.base / "elsewhere")
    rig.tree.group(LEAF, cpuset__cpus="0-3")
    rig.apply((LEAF, knob, value))
    assert rig.read(LEAF, knob) == ours[nth] or knob.controller != "cpu"


def test_another_period_of_a_quota_is_noticed_after_some_rounds(v1):
    for _ in range(4):
        v1.apply((BE, Knob.QUOTA, 500))
    v1.tree.put(BE, "cpu.cfs_period_us", 50000)
    for _ in range(33):
        v1.apply((BE, Knob.QUOTA, 500))
    assert v1.read(BE, Knob.QUOTA) == "25000"


def test_who_asks_is_in_the_journal_also_when_the_value_stays(rig):
    for policy in ("suppress", "suppress", "contention"):
        rig.apply((BE, Knob.QUOTA, 500), policy=policy)
        assert rig.journal.get(BE, Knob.QUOTA).policy == policy
    rig.apply((BE, Knob.QUOTA, 500), policy="contention", lasting=[(BE, Knob.QUOTA, 700)])
    assert rig.journal.get(BE, Knob.QUOTA).lasting == 70000


def test_io_max_touches_only_the_devices_and_directions_it_names(rig):
    if rig.version is Version.V1:
        rig.tree.put(BE, "blkio.throttle.read_bps_device", "8:0 900", "blkio")
    else:
        rig.tree.put(BE, "io.max", "8:0 rbps=900 wbps=max riops=7 wiops=max", "io")
    rig.apply((BE, Knob.IO_MAX, "253:1 rbps=1000\n8:0 rbps=5000 wbps=200"))
    held = io_limits(rig)
    assert held == {("8:0", "rbps"): "900", ("8:0", "wbps"): "200", ("253:1", "rbps"): "1000"}
    rig.apply((BE, Knob.IO_MAX, "8:0 wbps=100"))
    assert io_limits(rig) == {("8:0", "rbps"): "900", ("8:0", "wbps"): "100"}
    rig.apply()
    assert io_limits(rig) == {("8:0", "rbps"): "900"}
    if rig.version is Version.V2:
        assert "riops=7" in rig.tree.read(BE, "io.max", "io")


def io_limits(rig):
    if rig.version is Version.V2:
        rows = [line.split() for line in rig.tree.read(BE, "io.max", "io").splitlines()]
        pairs = [(row[0], *pair.split("=")) for row in rows for pair in row[1:]]
        return {(device, name): rate for device, name, rate in pairs if rate != "max" and name.endswith("bps")}
    found = {}
    for direction, name in (("rbps", "read"), ("wbps", "write")):
        for line in rig.tree.read(BE, f"blkio.throttle.{name}_bps_device", "blkio").splitlines():
            device, rate = line.split()
            found[device, direction] = rate
    return found


def test_a_cpu_list_goes_by_way_of_the_union_on_v1(v1):
    # kernel.md 2.1: a child outside its parent is EACCES, a parent below its child EBUSY.
    v1.apply((BE, Knob.CPUSET, "0-1"))
    assert (v1.read(BE, Knob.CPUSET), v1.read(LEAF, Knob.CPUSET)) == ("0-1", "0-1")
    v1.writer.writes.clear()
    v1.apply((BE, Knob.CPUSET, "2-3"))
    values = [(name, value) for name, _, value in v1.names()]
    assert values == [
        ("pod2", "0-3"),
        ("cccc", "0-3"),
        ("dddd", "0-3"),
        ("cccc", "2-3"),
        ("dddd", "2-3"),
        ("pod2", "2-3"),
    ]
    v1.apply()
    assert {v1.read(group, Knob.CPUSET) for group in (BE, LEAF, LEAF2)} == {"0-3"}
    assert (v1.executor.counters["refused"], v1.journal.entries()) == (0, ())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.sets(st.integers(0, 3), min_size=1))] * 3), min_size=1, max_size=6))
def test_any_sequence_of_cpu_lists_is_accepted_by_the_kernel_and_undone(tmp_path_factory, rounds):
    for version in Version:
        rig = Rig(tmp_path_factory.mktemp("rig"), version)
        for lists in rounds:
            wishes = [
                (group, Knob.CPUSET, format_cpus(frozenset(cpus)))
                for group, cpus in zip((BE, LEAF, LEAF2), lists, strict=True)
                if cpus is not None
            ]
            rig.apply(*wishes)
            assert rig.executor.counters["refused"] == 0
            pod = parse_cpus(rig.read(BE, Knob.CPUSET))
            for group, _, wanted in wishes:
                in_effect = parse_cpus(rig.read(group, Knob.CPUSET)) & pod
                assert in_effect <= parse_cpus(wanted) or not parse_cpus(wanted) & pod
            assert all(rig.read(group, Knob.CPUSET) for group in (BE, LEAF, LEAF2))
        rig.executor.restore()
        assert {rig.read(group, Knob.CPUSET) for group in (BE, LEAF, LEAF2)} == {"0-3"}


def test_a_cpu_list_is_never_empty_nor_wider_than_the_parents_or_what_was_there(rig):
    # koordinator 1460: an empty list; 395, 546: a child wider than its parent.
    rig.tree.put("kubepods/besteffort", "cpuset.cpus", "0-1", "cpuset")
    if rig.version is Version.V2:
        rig.tree.put("kubepods/besteffort", "cpuset.cpus.effective", "0-1", "cpuset")
    for group in (LEAF, LEAF2, BE):
        rig.put(group, Knob.CPUSET, "0-1")
    rig.apply((BE, Knob.CPUSET, "1-3"))
    assert rig.read(BE, Knob.CPUSET) == "1"
    outcome = rig.apply((BE, Knob.CPUSET, "2-3"))
    assert rig.read(BE, Knob.CPUSET) == "1"
    assert any("nothing it may have" in problem for problem in outcome.problems)
    assert rig.apply((BE, Knob.CPUSET, "2-3")).problems == ()


def test_a_list_of_cpus_that_was_none_becomes_the_parents_on_v2(tmp_path):
    # Seen on 6.1: ENOSPC when the list of a group with tasks is to be taken away.
    rig = Rig(tmp_path, Version.V2)
    rig.put(BE, Knob.CPUSET, "")
    rig.apply((BE, Knob.CPUSET, "1"))
    assert rig.apply().problems == ()
    assert (rig.read(BE, Knob.CPUSET), rig.journal.entries()) == ("0-3", ())
    assert rig.executor.counters["refused"] == 0


def test_a_crash_between_union_and_final_list_keeps_the_original(v1):
    v1.apply((BE, Knob.CPUSET, "0-1"))
    v1.writer.fail = {}
    writes, real = [], v1.writer.__call__

    def dies(name, value, dir_fd=None):
        writes.append(value)
        if len(writes) == 4:
            raise KeyboardInterrupt
        real(name, value, dir_fd)

    v1.executor._write = dies
    with pytest.raises(KeyboardInterrupt):
        v1.apply((BE, Knob.CPUSET, "2-3"))
    v1.start()
    v1.apply((BE, Knob.CPUSET, "2-3"))
    assert v1.executor.counters["drift"] == 0
    v1.executor.restore()
    assert {v1.read(group, Knob.CPUSET) for group in (BE, LEAF, LEAF2)} == {"0-3"}


def test_containers_own_quotas_come_under_their_pods_on_v1(v1):
    v1.apply((BE, Knob.QUOTA, 500), (LEAF, Knob.QUOTA, 800), (LEAF2, Knob.QUOTA, 200))
    assert [v1.read(group, Knob.QUOTA) for group in (BE, LEAF, LEAF2)] == ["50000", "50000", "20000"]
    v1.apply((LEAF, Knob.QUOTA, 800), (LEAF2, Knob.QUOTA, 200))
    assert [v1.read(group, Knob.QUOTA) for group in (BE, LEAF, LEAF2)] == ["-1", "80000", "20000"]
    assert v1.executor.counters["refused"] == 0
    v1.apply()
    assert [v1.read(group, Knob.QUOTA) for group in (BE, LEAF, LEAF2)] == ["-1", "-1", "-1"]


def test_ours_never_loosens_memory_that_was_limited(rig):
    rig.put(BE, Knob.MEMORY_MAX, 32 * MIB)
    rig.apply((BE, Knob.MEMORY_MAX, 64 * MIB))
    assert rig.read(BE, Knob.MEMORY_MAX) == str(32 * MIB)
    assert rig.writer.writes == []


def test_memory_and_swap_make_way_for_a_higher_limit(v1):
    v1.apply((BE, Knob.MEMORY_MAX, 32 * MIB))
    v1.tree.put(BE, "memory.memsw.limit_in_bytes", 40 * MIB, "memory")
    v1.apply((BE, Knob.MEMORY_MAX, 64 * MIB))
    assert v1.read(BE, Knob.MEMORY_MAX) == str(64 * MIB)
    assert int(v1.tree.read(BE, "memory.memsw.limit_in_bytes", "memory")) >= 64 * MIB
    v1.executor.restore()
    assert v1.read(BE, Knob.MEMORY_MAX) == "9223372036854771712"


def test_a_memory_limit_below_what_is_used_is_told_once_and_retried_with_pauses(rig):
    # kernel.md 2.1: EBUSY below unreclaimable usage.
    rig.writer.fail[rig.file(Knob.MEMORY_MAX)] = errno.EBUSY
    tries, told = [], 0
    for _ in range(40):
        before = rig.executor.counters["refused"]
        told += len(rig.apply((BE, Knob.MEMORY_MAX, 32 * MIB)).problems)
        tries.append(rig.executor.counters["refused"] - before)
    assert tries[:2] == [1, 1]
    assert 5 <= sum(tries) <= 8
    assert told == 1
    # A stricter limit is tried at once.
    before = rig.executor.counters["refused"]
    rig.apply((BE, Knob.MEMORY_MAX, 16 * MIB))
    assert rig.executor.counters["refused"] == before + 1
    rig.writer.fail.clear()
    rig.apply((BE, Knob.MEMORY_MAX, 16 * MIB))
    assert rig.read(BE, Knob.MEMORY_MAX) == str(16 * MIB)


def test_weight_and_idle_on_one_group_come_back_whole(rig):
    rig.put(BE, Knob.WEIGHT, 300)
    rig.apply((BE, Knob.WEIGHT, 50))
    rig.apply((BE, Knob.WEIGHT, 50), (BE, Knob.IDLE, 1))
    rig.apply((BE, Knob.WEIGHT, 70), (BE, Knob.IDLE, 1))
    assert rig.executor.counters["refused"] == 0
    rig.apply((BE, Knob.WEIGHT, 70))
    rig.apply((BE, Knob.WEIGHT, 70))
    assert rig.read(BE, Knob.WEIGHT) == "70"
    rig.apply((BE, Knob.WEIGHT, 70), (BE, Knob.IDLE, 1))
    rig.start()
    rig.executor.restore()
    assert (rig.read(BE, Knob.WEIGHT), rig.read(BE, Knob.IDLE), rig.journal.entries()) == ("300", "0", ())


def test_a_group_taken_out_of_the_idle_class_gets_its_weight_from_us_not_from_the_kernels_default(rig):
    # kernel.md 2.1: idle 1 then 0 resets the weight to 1024 or 100.
    rig.put(BE, Knob.WEIGHT, 300)
    rig.apply((BE, Knob.WEIGHT, 50), (BE, Knob.IDLE, 1))
    rig.writer("cpu.idle", 0, os.open(rig.tree.path(BE, ""), os.O_RDONLY))
    rig.apply((BE, Knob.WEIGHT, 50), (BE, Knob.IDLE, 1))
    rig.apply()
    assert rig.read(BE, Knob.WEIGHT) == "300"


def test_ls_gets_burst_up_to_its_quota_and_never_less_than_it_had(rig):
    # koordinator 2326: mainline refuses a burst above the quota.
    burst = "cpu.cfs_burst_us" if rig.version is Version.V1 else "cpu.max.burst"
    rig.put(LS_LEAF, Knob.QUOTA, "50000" if rig.version is Version.V1 else "50000 100000")
    rig.tree.put(LS_LEAF, burst, 20000)
    rig.apply((LS_LEAF, Knob.BURST, 90000))
    assert rig.tree.read(LS_LEAF, burst) == "50000"
    rig.apply((LS_LEAF, Knob.BURST, 5000))
    assert rig.tree.read(LS_LEAF, burst) == "20000"
    rig.apply((LS_LEAF, Knob.BURST, 30000), (LS, Knob.BURST, 30000))
    assert rig.tree.read(LS, burst) == "0"
    rig.executor.restore()
    assert rig.tree.read(LS_LEAF, burst) == "20000"


VALUES = {Knob.CPUSET: "0", Knob.IO_MAX: "8:0 rbps=1", Knob.MEMORY_HIGH: MIB, Knob.MEMORY_MAX: MIB, Knob.QUOTA: 100}


@pytest.mark.parametrize("knob", sorted(set(Knob) - {Knob.BURST}))
@pytest.mark.parametrize("group", [LS, LS_LEAF], ids=["pod", "container"])
def test_nothing_is_taken_from_ls(rig, knob, group):
    value = -1 if knob is Knob.BVT else VALUES.get(knob, 1)
    with pytest.raises(PlanError, match="not BE"):
        rig.apply((BE, Knob.IDLE, 1), (group, knob, value))
    assert rig.writer.writes == []


def test_a_pod_whose_tier_nobody_knows_is_not_touched(rig):
    groups = {pod.group: pod for pod in rig.tree.lister().pods()}
    with pytest.raises(PlanError, match="not known"):
        rig.executor.apply(Plan(settings={(BE, Knob.IDLE): request(BE, Knob.IDLE, 1)}), groups, {})
    with pytest.raises(PlanError, match="not BE"):
        rig.apply((LS, Knob.IDLE, 1))
    with pytest.raises(PlanError, match="not LS"):
        rig.apply((BE, Knob.BURST, 5))


@pytest.mark.parametrize(
    "group",
    [
        "", "/", "..", ".", f"/{BE}", f"{BE}/", f"{BE}/..", f"{BE}/../..", f"kubepods/../{BE}", f"{BE}/./{CID}",
        f"{BE}//{CID}", f"{BE}\n", f"{BE}\0", f"{BE}\x1b[0m", f"{BE}/{CID}\r", "kubepods", "kubepods/besteffort",
        "system.slice/ssh.service", f"{BE}/{CID}/inner", f"{BE}/crio-conmon-{CID}.scope", f"{BE}/x",
    ],
)  # fmt: skip
def test_a_plan_that_names_anything_but_a_pod_or_container_is_refused_whole(v1, group):
    # koordinator 1467: an empty path made the agent write limits to the root cgroup.
    with pytest.raises(PlanError):
        v1.apply((BE, Knob.IDLE, 1), (group, Knob.QUOTA, 500))
    assert v1.writer.writes == []


@pytest.mark.parametrize(
    "group", [f"kubepods/besteffort/pod{UID_BE2}", f"kubepods/besteffort/pod{UID_BE2}/{CID}", f"{BE}/{'e' * 64}"]
)
def test_another_pod_or_a_container_that_left_is_skipped_and_counted(v1, group):
    v1.apply((group, Knob.QUOTA, 500), (BE, Knob.IDLE, 1))
    assert {name for name, _, _ in v1.names()} == {"pod2"}
    assert (v1.executor.counters["vanished"], v1.read(BE, Knob.QUOTA)) == (1, "-1")


@pytest.mark.parametrize("link", [BE, LEAF], ids=["pod", "container"])
@pytest.mark.parametrize("controller", ["cpu", "memory"])
def test_a_symbolic_link_in_the_path_is_never_followed(v1, link, controller):
    groups = {pod.group: pod for pod in v1.tree.lister().pods()}
    target = v1.tree.base / controller / LS
    path = v1.tree.base / controller / link
    os.rename(path, v1.tree.base / "elsewhere")
    path.symlink_to(target)
    wish = (LEAF, Knob.MEMORY_MAX, 32 * MIB) if controller == "memory" else (LEAF, Knob.QUOTA, 500)
    plan = Plan(settings={wish[:2]: request(*wish)})
    v1.executor.apply(plan, groups, v1.identities())
    assert v1.writer.writes == []
    assert v1.read(LS, wish[1]) in {"-1", "9223372036854771712"}


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (Knob.CPUSET, ""), (Knob.CPUSET, "\n"), (Knob.CPUSET, "3,1"), (Knob.CPUSET, "0-3\n"), (Knob.CPUSET, "a"),
        (Knob.CPUSET, 3), (Knob.MEMORY_MAX, 0), (Knob.MEMORY_MAX, -1), (Knob.MEMORY_HIGH, 4096), (Knob.WEIGHT, 0),
        (Knob.MEMORY_MAX, "max"), (Knob.IO_WEIGHT, 0), (Knob.IO_WEIGHT, 10_001), (Knob.FREEZE, 2), (Knob.BVT, 3),
        (Knob.IO_MAX, ""), (Knob.IO_MAX, "8:0 rbps=0"), (Knob.IO_MAX, "8:0 rbps=max"), (Knob.IO_MAX, "8:0 iops=5"),
        (Knob.IO_MAX, "8:0 wbps=1 rbps=1"), (Knob.IO_MAX, "sda rbps=1"), (Knob.IDLE, True), (Knob.QUOTA, 9),
        (Knob.PIDS_MAX, 0), (Knob.PIDS_MAX, "max"), (Knob.PIDS_MAX, (1 << 22) + 1),
    ],
)  # fmt: skip
def test_a_value_that_no_kernel_takes_refuses_the_plan(v1, knob, value):
    with pytest.raises(PlanError, match="wants"):
        v1.apply((BE, Knob.IDLE, 1), (LEAF, knob, value))
    assert v1.writer.writes == []


def test_a_group_without_a_controller_is_skipped_and_said_once(v1):
    # kernel.md 6 row 18, oomd 72: no memory.current in one slice crashed during a kill.
    (v1.tree.base / "memory" / LEAF).rename(v1.tree.base / "elsewhere")
    outcome = v1.apply((LEAF, Knob.MEMORY_MAX, 32 * MIB), (LEAF, Knob.IDLE, 1))
    assert v1.read(LEAF, Knob.IDLE) == "1"
    assert any("no cgroup under memory" in problem for problem in outcome.problems)
    assert v1.apply((LEAF, Knob.MEMORY_MAX, 32 * MIB), (LEAF, Knob.IDLE, 1)).problems == ()


def test_row_14_a_parent_of_200_and_a_child_of_400_are_never_asked_of_the_kernel(v1):
    # kernel.md 6 row 14, koordinator 2047, 2694.
    v1.put(LEAF, Knob.QUOTA, 400000)
    v1.apply((BE, Knob.QUOTA, 2000))
    assert (v1.read(BE, Knob.QUOTA), v1.read(LEAF, Knob.QUOTA)) == ("200000", "200000")
    v1.apply((BE, Knob.QUOTA, 4000))
    assert (v1.read(BE, Knob.QUOTA), v1.read(LEAF, Knob.QUOTA)) == ("400000", "400000")
    assert v1.executor.counters["refused"] == 0


def test_row_15_each_minute_minus_one_is_put_back_at_once_and_told_once(v1):
    # kernel.md 6 row 15, koordinator 1734 (quota 150000 -> -1 each 60 s), 2723 (no ramp from -1).
    v1.apply((BE, Knob.QUOTA, 1500))
    told = 0
    for _ in range(10):
        v1.clock.pass_(60.0)
        v1.apply((BE, Knob.QUOTA, 1500))
        v1.put(BE, Knob.QUOTA, -1)
        told += len(v1.apply((BE, Knob.QUOTA, 1500)).problems)
        assert v1.read(BE, Knob.QUOTA) == "150000"
    assert (v1.executor.counters["drift"], v1.executor.counters["fights"], v1.executor.fighting) == (10, 0, 0)
    assert told <= 2


def test_a_fight_is_counted_told_once_and_written_at_growing_pauses_but_a_cut_is_at_once(rig):
    lift = "-1" if rig.version is Version.V1 else "max 100000"
    rig.apply((BE, Knob.QUOTA, 500))
    put_back, told = [], []
    for _ in range(200):
        rig.put(BE, Knob.QUOTA, lift)
        told += rig.apply((BE, Knob.QUOTA, 500)).problems
        put_back.append(rig.read(BE, Knob.QUOTA) != lift)
    assert put_back[:AT_ONCE] == [True] * AT_ONCE
    assert AT_ONCE + 4 <= sum(put_back) <= AT_ONCE + 8
    assert [("fights" in sentence) for sentence in told] == [False, True]
    assert rig.executor.fighting == 1
    assert rig.executor.counters["fights"] >= AT_ONCE
    assert not put_back[-1]
    rig.apply((BE, Knob.QUOTA, 400))
    assert rig.read(BE, Knob.QUOTA).split()[0] == "40000"
    for _ in range(int(CALM_SECONDS) + 2):
        told += rig.apply((BE, Knob.QUOTA, 400)).problems
    assert "over" in told[-1]
    assert (len(told), rig.executor.fighting) == (3, 0)


@given(st.lists(st.tuples(st.floats(0.01, 20), st.booleans()), max_size=200), st.floats(0, 1))
def test_pauses_are_bounded_and_only_delay_the_same_value(events, chance):
    backoff, key, now = Backoff(lambda: chance), ("g", Knob.QUOTA), 0.0
    backoff.wrote(key, 5, now)
    waiting_since = None
    for seconds, foreign in events:
        now += seconds
        backoff.drifted(key, "x", now) if foreign else backoff.steady(key, now)
        assert backoff.ready(key, 4, now)
        if backoff.ready(key, 5, now):
            waiting_since = None
            backoff.wrote(key, 5, now)
        else:
            waiting_since = now if waiting_since is None else waiting_since
            assert now - waiting_since <= LONGEST_SECONDS + 20


LEFT = [
    (BE, Knob.QUOTA, 300), (LEAF, Knob.QUOTA, 200), (BE, Knob.CPUSET, "1"), (BE, Knob.MEMORY_MAX, 32 * MIB),
    (LEAF, Knob.MEMORY_MAX, 32 * MIB), (BE, Knob.FREEZE, 1), (LEAF, Knob.IO_MAX, "8:0 rbps=1000"), (BE, Knob.IDLE, 1),
]  # fmt: skip


@pytest.mark.parametrize("how", ["torn", "newer", "directory"])
def test_a_lost_journal_is_rebuilt_from_the_kernel_for_every_knob(rig, how):
    rig.apply(*LEFT, batch_only=True)
    path = rig.state / FILE_NAME
    if how == "torn":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "newer":
        path.write_bytes(path.read_bytes().replace(b'"format":2', b'"format":9'))
    else:
        path.unlink()
        path.mkdir()
        (path / "x").touch()
        (rig.state / f"{FILE_NAME}.bad").mkdir()
        (rig.state / f"{FILE_NAME}.bad" / "y").touch()
    rig.start()
    assert rig.journal.lost
    assert "set aside" in rig.journal.problem
    rig.apply((BE, Knob.IDLE, 1), (LEAF, Knob.QUOTA, 200), batch_only=True)
    rig.start()
    assert {(entry.group, entry.knob) for entry in rig.journal.entries()} == {(BE, Knob.IDLE), (LEAF, Knob.QUOTA)}
    rig.executor.restore()
    pristine = Rig(rig.state, rig.version)
    for group, knob, _ in LEFT:
        if knob is Knob.IO_MAX:
            assert io_limits(rig) == {}
        elif not (rig.version is Version.V2 and knob is Knob.CPUSET):
            assert rig.read(group, knob) == pristine.read(group, knob), knob


def test_a_limit_on_tasks_that_someone_else_set_is_kept_and_so_is_one_that_nobody_can_tell_from_it(rig):
    # The kubelet's podPidsLimit.
    rig.put(BE, Knob.PIDS_MAX, 100)
    rig.apply((BE, Knob.PIDS_MAX, 300))
    assert (rig.read(BE, Knob.PIDS_MAX), rig.writer.writes) == ("100", [])
    rig.put(BE, Knob.PIDS_MAX, "max")
    rig.apply((BE, Knob.PIDS_MAX, 300))
    (rig.state / FILE_NAME).write_text("{")
    rig.start()
    rig.apply((BE, Knob.PIDS_MAX, 400))
    assert rig.read(BE, Knob.PIDS_MAX) == "300"
    rig.executor.restore()
    assert rig.read(BE, Knob.PIDS_MAX) == "300"


def test_the_watchdog_lifts_limits_on_tasks(rig):
    rig.put(BE, Knob.PIDS_MAX, 900)
    rig.apply((BE, Knob.PIDS_MAX, 300), (LEAF, Knob.PIDS_MAX, 200))
    assert relax(rig.tree.hierarchy, rig.journal.entries(), rig.writer) == 2
    assert [rig.read(group, Knob.PIDS_MAX) for group in (BE, LEAF)] == ["900", "max"]


@pytest.mark.parametrize("junk", ["", "many", "-1", "3 4", "9" * 40, "\xb2"])
def test_a_limit_on_tasks_that_cannot_be_read_is_left_alone(rig, junk):
    rig.put(BE, Knob.PIDS_MAX, junk)
    outcome = rig.apply((BE, Knob.PIDS_MAX, 300), (LEAF, Knob.PIDS_MAX, 200))
    assert (rig.read(BE, Knob.PIDS_MAX), rig.read(LEAF, Knob.PIDS_MAX)) == (junk, "200")
    assert any("pids.max" in problem for problem in outcome.problems)


def test_adopting_counts_only_what_limits_be_as_a_whole(v1):
    v1.apply((BE, Knob.QUOTA, 500), policy="suppress")
    v1.apply((BE, Knob.QUOTA, 500), (LEAF, Knob.QUOTA, 300), policy="suppress")
    assert v1.start() == 500
    v1.apply((BE, Knob.QUOTA, 500), policy="batch_limits")
    v1.apply((BE, Knob.QUOTA, 500), (LEAF, Knob.QUOTA, 300), policy="batch_limits")
    assert v1.start() is None
    v1.apply((BE, Knob.QUOTA, 250), policy="contention")
    assert v1.start() == 250


def test_relaxing_lifts_hard_knobs_only_and_keeps_the_pods_own_limits(rig):
    wishes = [wish for wish in LEFT if wish[1] is not Knob.QUOTA]
    wishes += [(LEAF, Knob.QUOTA, 200), (LEAF2, Knob.QUOTA, 700)]
    rig.apply(*wishes, policy="suppress", lasting=[(LEAF, Knob.QUOTA, 600), (LEAF2, Knob.QUOTA, 700)])
    assert relax(rig.tree.hierarchy, rig.journal.entries(), rig.writer) >= 4
    quotas = [rig.read(group, Knob.QUOTA).split()[0] for group in (LEAF, LEAF2)]
    assert quotas == ["60000", "70000"]
    assert [rig.read(BE, knob) for knob in (Knob.FREEZE, Knob.IDLE, Knob.CPUSET)] == ["0", "1", "0-3"]
    assert io_limits(rig) == {}
    assert rig.read(BE, Knob.MEMORY_MAX) == str(32 * MIB)
    assert relax(rig.tree.hierarchy, rig.journal.entries(), rig.writer) == 0
    rig.relaxed = 1
    rig.apply(*wishes, policy="suppress")
    assert rig.read(LEAF, Knob.QUOTA).split()[0] == "20000"
    assert (rig.read(BE, Knob.FREEZE), rig.executor.counters["drift"]) == ("1", 0)


def test_arbitration_keeps_the_pods_own_limits_beside_the_strictest():
    own = request(LEAF, Knob.QUOTA, 700, "batch_limits")
    plan = arbitrate(
        [
            ("batch_limits", Desired(requests=(own,))),
            ("suppress", Desired(requests=(request(LEAF, Knob.QUOTA, 300, "suppress"),))),
        ]
    )
    assert plan.settings[LEAF, Knob.QUOTA].value == 300
    assert plan.lasting == {(LEAF, Knob.QUOTA): own}


def test_one_sync_a_round_and_all_entries_before_the_first_write(rig, monkeypatch):
    syncs, order = [], []
    real_sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (syncs.append(fd), real_sync(fd)))
    real = rig.writer.__call__

    def watch(name, value, dir_fd=None):
        order.append((len(syncs), len(Journal(str(rig.state), "boot", read_only=True).load())))
        real(name, value, dir_fd)

    rig.executor._write = watch
    rig.apply(*LEFT)
    # One of the file, one of its directory.
    assert len(syncs) == 2
    assert {synced for synced, _ in order} == {2}
    assert {entries for _, entries in order} == {len(rig.journal.entries())}
