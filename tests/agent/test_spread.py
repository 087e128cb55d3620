"""The spread policy over a twin of the kernel's threads: masks are inherited, cut by the cpuset, set by anybody."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.capabilities import Capabilities
from agent.policy.base import Context
from agent.policy.origin import PATIENCE
from agent.policy.spread import Spread, SpreadSettings
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from agent.threads import GroupKey, ThreadKey, ThreadReading, ThreadSweep, parse_cpus
from agent.topology import Cpu, Topology
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.twins import CAPABLE

BE = GroupKey("kubepods/be", 7)
LS = PodSnapshot(identity=PodIdentity(namespace="d", name="ls", uid="l", tier=Tier.LS), group="kubepods/ls")


@dataclass
class Task:
    """A thread as the kernel has it; `rate` and `waits` are shares of a CPU."""

    key: ThreadKey
    process: int
    parent: int
    mask: frozenset[int]
    rate: float = 0.4
    waits: float = 0.4
    stuck: bool = False
    ran: float = 0.0
    waited: float = 0.0


class Kernel:
    """`cpus` CPUs, one BE cgroup, and the policy's loop over it."""

    def __init__(self, cpus=2, adopted=(), **more):
        self.online = frozenset(range(cpus))
        self.cpuset = self.online
        self.tasks: dict[int, Task] = {}
        self.others = 0.0
        self.busy = dict.fromkeys(range(cpus), 0.0)
        self.ls = dict.fromkeys(range(cpus), 0.0)
        self.at = 100.0
        self.refuse = False
        self.refused: set[ThreadKey] = set()
        self.settings = SpreadSettings(**more)
        self.pods: tuple[PodSnapshot, ...] = ()
        self.topology: Topology | None = None
        self.made = 0
        self.seen: set[ThreadKey] = set()
        self.counted: Counter[str] = Counter()
        self.writes = 0
        self.start(adopted)

    def start(self, adopted=(), lost=False, capabilities=CAPABLE):
        self.policy = Spread()
        self.context = Context(capabilities=capabilities, adopted_masks=tuple(adopted), journal_lost=lost)
        self.state = self.policy.start(self.context)

    def spawn(self, tid, mask=None, parent=1, process=None, start=None, **more):
        maker = self.tasks.get(parent if process is None else process)
        inherited = maker.mask if maker else self.cpuset
        mask = inherited if mask is None else frozenset(mask)
        key = ThreadKey(tid, tid if start is None else start)
        self.made += 1
        self.tasks[tid] = Task(key, tid if process is None else process, parent, mask, **more)
        return self.tasks[tid]

    def set_cpuset(self, *cpus):
        self.cpuset = frozenset(cpus)
        for task in self.tasks.values():
            task.mask = task.mask & self.cpuset or self.cpuset

    def run(self, seconds=1.0):
        self.at += seconds
        for task in self.tasks.values():
            if not task.stuck:
                task.ran += task.rate * seconds
                task.waited += task.waits * seconds
                self.busy[min(task.mask)] += task.rate * seconds
        for cpu, share in self.ls.items():
            self.busy[cpu] += share * seconds

    def sweep(self, fresh=False):
        chosen = [task for task in self.tasks.values() if not fresh or task.key not in self.seen]
        self.seen |= {task.key for task in chosen}
        readings = tuple(
            ThreadReading(
                key=task.key,
                group=BE,
                process=task.process,
                parent=task.parent,
                mask=task.mask,
                run_ns=int(task.ran * 1e9),
                delay_ns=int(task.waited * 1e9),
                waiting=task.stuck,
            )
            for task in chosen
        )
        refused = frozenset() if fresh else frozenset(self.refused)
        self.refused -= refused
        made, self.made = ({}, self.made) if fresh else ({BE: self.made}, 0)
        return ThreadSweep(
            at=self.at,
            refused=refused,
            threads=readings,
            cpusets={BE: self.cpuset},
            busy_seconds={} if fresh else dict(self.busy),
            fresh=fresh,
            made=made,
        )

    def decide(self, threads):
        snapshot = NodeSnapshot(
            at=self.at, window_seconds=1.0, capacity=Usage(), threads=threads, pods=self.pods, topology=self.topology
        )
        desired, self.state = self.policy.decide(snapshot, self.state, self.settings, self.context)
        self.counted.update(desired.counted)
        return desired

    def beat(self):
        return self._act(self.decide(self.sweep(fresh=True)))

    def turn(self, times=1):
        for _ in range(times):
            self.run()
            desired = self._act(self.decide(self.sweep()))
        return desired

    def _act(self, desired):
        for wish in desired.masks.wishes if desired.masks else ():
            task = self.tasks[wish.key.tid]
            assert task.key == wish.key
            allowed = self.cpuset if wish.original is None else (wish.original & self.cpuset or self.cpuset)
            target = allowed if wish.cpu is None else frozenset((wish.cpu,))
            assert target <= allowed
            if task.mask != target and self.refuse:
                self.refused.add(task.key)
            elif task.mask != target:
                self.writes += 1
                task.mask = target
        self.journal = desired.masks.groups if desired.masks else ()
        return desired

    def cpus(self):
        return [min(task.mask) if len(task.mask) == 1 else None for task in self.tasks.values()]


def busy(count, **more):
    kernel = Kernel(**more)
    for tid in range(10, 10 + count):
        kernel.spawn(tid)
    kernel.turn(2)
    return kernel


def test_busy_threads_are_spread_and_then_nothing_moves():
    kernel = busy(4)
    assert Counter(kernel.cpus()) == {0: 2, 1: 2}
    writes = kernel.writes
    desired = kernel.turn(20)
    assert kernel.writes == writes == 4
    assert desired.reason == "4 busy BE threads pinned, 2 on each of 2 CPUs"
    assert kernel.counted["spread_new"] == 4
    assert kernel.counted["spread_moves"] == kernel.counted["spread_foreign"] == 0


def test_a_beat_without_new_threads_repeats_the_reason_and_wants_nothing():
    kernel = busy(4)
    desired = kernel.decide(None)
    assert desired.masks is None
    assert "4 busy" in desired.reason


def test_children_inherit_a_mask_and_are_placed_by_the_beat_with_their_parents_original():
    kernel = busy(1)
    for tid in range(20, 28):
        kernel.spawn(tid, parent=10)
    assert len({task.mask for task in kernel.tasks.values()}) == 1
    kernel.beat()
    assert sorted(Counter(kernel.cpus()).values()) == [4, 5]
    assert kernel.journal[0].own == ()
    assert kernel.journal[0].original is None
    kernel.turn(3)
    assert kernel.counted["spread_foreign"] == 0


def test_grandchildren_whose_parent_is_gone_still_count_as_inherited():
    kernel = busy(1)
    kernel.spawn(20, parent=10)
    kernel.spawn(30, parent=20)
    del kernel.tasks[20]
    kernel.tasks[30].parent = 1
    kernel.turn()
    kernel.spawn(40, mask=kernel.tasks[10].mask, parent=1)
    kernel.beat()
    assert kernel.journal[0].own == ()


@pytest.mark.parametrize("own", [{0}, {1}])
def test_a_single_cpu_of_the_workload_is_left_alone_and_counted(own):
    kernel = Kernel()
    kernel.spawn(10, mask=own)
    kernel.spawn(11, mask={0, 1})
    kernel.spawn(12, mask=own)
    kernel.tasks[10].key = ThreadKey(10, 50)
    kernel.turn(3)
    assert [task.mask for task in kernel.tasks.values()] == [own, {0, 1} - own, own]
    (entry,) = kernel.journal
    assert entry.original is None
    assert {(one.tid, one.original) for one in entry.own} == {(10, tuple(own)), (12, tuple(own))}


def test_a_mask_of_the_workload_is_the_bound():
    kernel = Kernel(cpus=4)
    for tid in range(10, 16):
        kernel.spawn(tid, mask={2, 3})
    kernel.turn(3)
    assert Counter(kernel.cpus()) == {2: 3, 3: 3}
    assert kernel.journal[0].original == (2, 3)
    kernel.spawn(30, parent=10)
    kernel.beat()
    assert kernel.cpus()[-1] in (2, 3)


def test_a_foreign_change_is_the_new_original_and_is_not_fought():
    kernel = busy(2, cpus=4)
    kernel.tasks[10].mask = frozenset({2, 3})
    kernel.turn()
    assert kernel.counted["spread_foreign"] == 1
    assert kernel.tasks[10].mask <= {2, 3}
    kernel.tasks[10].mask = frozenset({1})
    kernel.turn(3)
    assert kernel.tasks[10].mask == {1}
    for _ in range(PATIENCE):
        kernel.tasks[11].mask = kernel.cpuset
        kernel.turn()
    kernel.turn(2)
    assert kernel.tasks[11].mask == kernel.cpuset, "three times is a no"
    assert kernel.counted["spread_foreign"] == 2 + PATIENCE


def test_a_change_of_the_cpuset_is_no_foreign_change():
    kernel = busy(4)
    kernel.set_cpuset(1)
    kernel.turn(2)
    assert set(kernel.cpus()) == {1}
    kernel.set_cpuset(0, 1)
    for task in kernel.tasks.values():
        task.mask = kernel.cpuset
    kernel.turn(3)
    assert Counter(kernel.cpus()) == {0: 2, 1: 2}
    assert kernel.counted["spread_foreign"] == 0


def test_a_thread_that_no_turn_has_seen_yet_moves_when_its_cpuset_shrinks():
    kernel = busy(1, cpus=4)
    for tid in (20, 21, 22):
        kernel.spawn(tid, parent=10)
    kernel.beat()
    kernel.set_cpuset(0, 1)
    kernel.spawn(30, parent=10)
    kernel.beat()
    kernel.turn(2)
    assert sorted(Counter(kernel.cpus()).items()) in ([(0, 2), (1, 3)], [(0, 3), (1, 2)])


def test_a_refused_mask_is_tried_again_and_given_up():
    kernel = Kernel()
    kernel.refuse = True
    kernel.spawn(10)
    desired = kernel.turn(10)
    assert kernel.tasks[10].mask == {0, 1}
    assert desired.masks.wishes == ()
    assert kernel.counted["spread_foreign"] == 0


def test_a_thread_that_sleeps_gets_its_mask_back_and_is_pinned_when_it_wakes():
    kernel = busy(2)
    sleeper = kernel.tasks[10]
    sleeper.rate = sleeper.waits = 0.0
    kernel.turn(20)
    assert sleeper.mask == kernel.cpuset
    assert len(kernel.tasks[11].mask) == 1
    sleeper.rate = 0.5
    kernel.turn(3)
    assert len(sleeper.mask) == 1
    assert sleeper.mask != kernel.tasks[11].mask
    assert kernel.counted["spread_foreign"] == 0


def test_a_thread_that_waits_for_seconds_is_no_sleeper():
    kernel = busy(4)
    for task in kernel.tasks.values():
        task.stuck = True
    writes = kernel.writes
    kernel.turn(30)
    assert kernel.writes == writes


def test_threads_behind_a_full_cpu_move_away_and_stay_away():
    kernel = busy(4)
    kernel.ls = {0: 1.0, 1: 0.1}
    for _ in range(60):
        for task in kernel.tasks.values():
            here = sum(task.mask == other.mask for other in kernel.tasks.values())
            free = 0.02 if task.mask == {0} else 0.9
            task.rate, task.waits = free / here, 1.0 - free / here
        kernel.turn()
    assert Counter(kernel.cpus())[1] >= 3
    assert kernel.counted["spread_moves"] <= 4


def test_a_restart_adopts_and_knows_what_was_before():
    kernel = Kernel(cpus=4)
    for tid in range(10, 16):
        kernel.spawn(tid, mask={0, 1, 2} if tid < 14 else {3} if tid == 14 else {1, 2})
    kernel.turn(3)
    before, journal = kernel.cpus(), kernel.journal
    kernel.start(journal)
    kernel.spawn(20, parent=10)
    kernel.seen.clear()
    kernel.turn(3)
    assert kernel.cpus()[:6] == before
    assert kernel.journal == journal, "nobody's original changed"
    assert kernel.tasks[20].mask < {0, 1, 2}
    assert kernel.counted["spread_foreign"] == 0


def test_after_a_lost_journal_single_cpus_are_taken_for_ours():
    kernel = busy(4)
    kernel.start(lost=True)
    for tid in range(30, 34):
        kernel.spawn(tid, parent=10)
    kernel.turn(5)
    assert sorted(Counter(kernel.cpus()).values()) == [4, 4]
    assert kernel.journal[0].original is None
    assert kernel.journal[0].own == ()


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Kernel(cpus=1), "one CPU"),
        (Kernel(cpus=2), "no busy BE thread"),
    ],
)
def test_where_there_is_nothing_to_do_it_says_so(kernel, words):
    if "one" in words:
        kernel.spawn(10)
    desired = kernel.turn(2)
    assert words in desired.reason
    assert kernel.writes == 0


def test_without_affinity_it_says_why():
    kernel = Kernel()
    kernel.start(capabilities=Capabilities(mode="v2", cpu_version=2, skipped={"affinity": "seccomp says no"}))
    kernel.spawn(10)
    assert kernel.turn().reason == "seccomp says no"
    assert kernel.writes == 0


def test_threads_beyond_the_bound_are_told():
    kernel = busy(2)
    desired = kernel.decide(replace(kernel.sweep(), left_out=5))
    assert "5 beyond max_threads are left alone" in desired.reason


def storm(kernel, turns, each=200):
    """Children of thread 10 that are gone by the next turn, save one."""
    for turn in range(turns):
        born = range(1000 * (turn + 1), 1000 * (turn + 1) + each)
        for tid in born:
            kernel.spawn(tid, parent=10)
        for tid in born[1:]:
            del kernel.tasks[tid]
        desired = kernel.turn()
        del kernel.tasks[born[0]]
    return desired


def test_a_fork_storm_is_left_wide_until_it_is_over():
    kernel = busy(2)
    assert None not in kernel.cpus()
    desired = storm(kernel, 3)
    assert "1 cgroups make threads too fast" in desired.reason
    assert {task.mask for task in kernel.tasks.values()} == {kernel.cpuset}
    kernel.spawn(5000, mask={0}, parent=10)
    kernel.turn()
    assert kernel.tasks[5000].mask == kernel.cpuset, "what it had inherited is widened"
    kernel.turn(kernel.settings.release_turns)
    assert None not in kernel.cpus()
    assert kernel.counted["spread_foreign"] == 0


def test_a_job_that_starts_its_threads_at_once_is_no_storm():
    kernel = busy(1, cpus=4)
    for tid in range(100, 600):
        kernel.spawn(tid, parent=10)
    desired = kernel.turn(3)
    assert "too fast" not in desired.reason
    assert sorted(Counter(kernel.cpus()).values()) == [125, 125, 125, 126]


@pytest.mark.parametrize(
    ("threads", "wanted"),
    [pytest.param(0, set(), id="BE is quiet"), pytest.param(1, {1}, id="one"), pytest.param(2, set(), id="both")],
)
def test_ballast_fills_cpus_that_be_leaves_empty_beside_ls(threads, wanted):
    kernel = Kernel(ballast=True)
    kernel.pods = (LS,)
    for tid in range(10, 10 + threads):
        kernel.spawn(tid)
    assert kernel.turn(3).ballast == wanted
    assert kernel.decide(None).ballast == wanted, "a beat keeps it"
    assert ("ballast on CPUs 1" in kernel.turn().reason) is bool(wanted)


def test_ballast_is_off_unless_asked_for_and_without_ls_or_once_be_sleeps():
    kernel = busy(1)
    kernel.pods = (LS,)
    assert kernel.turn().ballast == frozenset()
    kernel = busy(1, ballast=True)
    assert kernel.turn().ballast == frozenset(), "nobody to protect"
    kernel.pods = (LS,)
    assert kernel.turn().ballast == {1}
    kernel.tasks[10].rate = kernel.tasks[10].waits = 0.0
    assert kernel.turn(4).ballast == frozenset()


def test_ballast_counts_a_thread_that_the_workload_pinned():
    kernel = Kernel(ballast=True)
    kernel.pods = (LS,)
    kernel.spawn(10, mask={1})
    assert kernel.turn(2).ballast == {0}


def test_threads_get_a_core_each_before_they_share_one():
    kernel = Kernel(cpus=4)
    kernel.topology = Topology(tuple(Cpu(cpu, cpu // 2, 0, 0) for cpu in range(4)))
    for tid in (10, 11):
        kernel.spawn(tid)
    kernel.turn(2)
    assert sorted(kernel.cpus()) == [0, 2]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("spawn"), st.integers(0, 5), st.none() | st.frozensets(st.integers(0, 3), min_size=1)),
        st.tuples(st.just("end"), st.integers(0, 5), st.none()),
        st.tuples(st.just("set"), st.integers(0, 5), st.frozensets(st.integers(0, 3), min_size=1)),
        st.tuples(st.just("rate"), st.integers(0, 5), st.floats(0, 1)),
        st.tuples(st.just("cpuset"), st.just(0), st.frozensets(st.integers(0, 3), min_size=1)),
        st.tuples(st.just("beat"), st.just(0), st.none()),
        st.tuples(st.just("turn"), st.just(0), st.none()),
    ),
    max_size=30,
)


def do(kernel, what, which, value, tid):
    victims = sorted(kernel.tasks)
    victim = kernel.tasks[victims[which % len(victims)]] if victims else None
    if what == "spawn":
        kernel.spawn(tid, parent=victim.process if victim else 1)
        if value is not None and value & kernel.cpuset:
            kernel.tasks[tid].mask = value & kernel.cpuset
    elif what == "end" and victim:
        del kernel.tasks[victim.key.tid]
    elif what == "set" and victim and value & kernel.cpuset:
        victim.mask = value & kernel.cpuset
    elif what == "rate" and victim:
        victim.rate, victim.waits = value, 0.0
    elif what == "cpuset":
        kernel.set_cpuset(*value)
    elif what in ("beat", "turn"):
        getattr(kernel, what)()


@settings(max_examples=150, deadline=None)
@given(steps)
def test_whatever_happens_masks_stay_inside_and_it_comes_to_rest(happenings):
    # Kernel.decide asserts with each wish that it is inside the original and the cpuset.
    kernel = Kernel(cpus=4)
    kernel.turn()
    for number, (what, which, value) in enumerate(happenings):
        do(kernel, what, which, value, 100 + number)
    kernel.turn(30)
    writes = kernel.writes
    kernel.turn(10)
    assert kernel.writes == writes


def test_lists_of_cpus():
    assert parse_cpus("0-2,5\n") == {0, 1, 2, 5}
    assert parse_cpus("\n") == frozenset()
    with pytest.raises(ValueError, match="x"):
        parse_cpus("x")
