"""Spread on the real threads of this machine: own processes in own cgroups, pinned, moved, given back."""

from __future__ import annotations

import functools
import os
import signal

import pytest

from agent.policy.spread import SpreadSettings
from agent.settings import AgentSettings
from agent.threads import parse_cpus
from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.kernel import test_agent_cgroups
from tests.kernel.test_agent_cgroups import BE, BUSY, LS, Process, Rig, groups, pytestmark  # noqa: F401 - fixture and marks

wait_for = functools.partial(test_agent_cgroups.wait_for, seconds=40.0)
"""Nine busy processes and whatever else this machine does share few CPUs."""

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = [*pytestmark, pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")]

ALL = frozenset(CPUS)
FORKER = (
    "import os\n"
    "parent = os.getpid()\n"
    "def fork(count):\n"
    "    for _ in range(count):\n"
    "        if os.fork() == 0:\n"
    "            while os.getppid() == parent: pass\n"
    "            os._exit(0)\n"
    "fork({first})\n"
    "while not os.path.exists({until!r}): pass\n"
    "fork({then})\n"
    "os.wait()\n"
)
"""Children end with their parent, whatever becomes of the test."""


def mask(pid):
    return frozenset(os.sched_getaffinity(pid))


def tids(forks):
    name = "tasks" if forks.v1 else "cgroup.threads"
    return [int(tid) for tid in forks.read(f"{BE}/{CID}", name).split()]


def counts(pids):
    """Threads on each CPU; None while one is not pinned."""
    held = [mask(pid) for pid in pids]
    if any(len(one) != 1 for one in held):
        return None
    return sorted(sum(cpu in one for one in held) for cpu in CPUS)


def even(pids):
    found = counts(pids)
    return found is not None and found[-1] - found[0] <= 1


@pytest.fixture
def forks(groups):  # noqa: F811 - the fixture
    """Pods that run also while this machine is busy with other things: idle only among themselves."""
    groups.write("kubepods/besteffort", groups.weight, "100000" if groups.v1 else "10000")
    return groups


SPREAD = ("weight", "spread")


def test_busy_processes_are_spread_evenly_and_get_their_masks_back(forks, tmp_path):
    be = [forks.spawn(f"{BE}/{CID}", BUSY).pid for _ in range(2 * len(CPUS))]
    ls = [forks.spawn(LS, BUSY).pid for _ in range(2)]
    with Rig(forks, tmp_path, policies=SPREAD) as rig:
        wait_for(lambda: even(be), "spread")
        wait_for(lambda: "busy BE threads pinned, 2 on each" in rig.turns[-1].line, "the reason")
        held = [mask(pid) for pid in be]
        begin = rig.turns[-1].number
        wait_for(lambda: rig.turns[-1].number > begin + 5, "turns")
        assert [mask(pid) for pid in be] == held, "stable"
        assert {mask(pid) for pid in ls} == {ALL}
    rig.executor.restore()
    assert {mask(pid) for pid in be} == {ALL}
    assert rig.journal.masks() == ()


def test_children_of_a_pinned_process_are_spread_between_turns(forks, tmp_path):
    forks.spawn(f"{BE}/{CID}", FORKER.format(first=0, until=str(tmp_path / "go"), then=8))
    settings = AgentSettings(turn_seconds=60.0, policies=SPREAD)
    with Rig(forks, tmp_path, policies=SPREAD) as rig:
        wait_for(lambda: counts(tids(forks)) is not None, "the parent pinned")
        wait_for(lambda: rig.loop.counters["turns"] > 2, "turns")
        rig.settings = settings
        (tmp_path / "go").touch()
        wait_for(lambda: len(tids(forks)) == 9 and even(tids(forks)), "nine threads, spread")
    rig.executor.restore()
    assert {mask(tid) for tid in tids(forks)} == {ALL}


def test_a_mask_of_the_workload_is_kept(forks, tmp_path):
    pinned, free = (forks.spawn(f"{BE}/{CID}", BUSY).pid for _ in range(2))
    own = frozenset(CPUS[:1])
    os.sched_setaffinity(pinned, own)
    with Rig(forks, tmp_path, policies=SPREAD) as rig:
        wait_for(lambda: mask(free) == frozenset(CPUS[1:2]), "the free one beside the pinned")
        assert mask(pinned) == own
        os.sched_setaffinity(free, own)
        wait_for(lambda: rig.loop.counters["spread_foreign"] == 1, "the change seen")
        begin = rig.turns[-1].number
        wait_for(lambda: rig.turns[-1].number > begin + 2, "turns")
        assert mask(free) == own
    rig.executor.restore()
    assert (mask(pinned), mask(free)) == (own, own)


def test_a_killed_agent_leaves_masks_the_next_adopts_and_a_stop_restores(forks, tmp_path):
    forks.spawn(f"{BE}/{CID}", FORKER.format(first=3, until="/", then=0))
    own = forks.spawn(f"{BE}/{CID}", BUSY).pid
    os.sched_setaffinity(own, CPUS[:1])
    ls = forks.spawn(LS, BUSY).pid
    wait_for(lambda: len(tids(forks)) == 5, "processes")
    busy = [tid for tid in tids(forks) if tid not in (own, min(set(tids(forks)) - {own}))]
    socket, state, started = str(tmp_path / "api.sock"), tmp_path / "state", []
    flags = ("--shortage.run-delay-cut", "100", "--suppress.engage-percent", "98")
    with ApiTwin(socket, [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be")]):
        try:
            started.append(Process(forks, state, socket, *flags))
            wait_for(lambda: counts(busy) is not None, "pinned")
            started[0].end(signal.SIGKILL)
            held = [mask(pid) for pid in busy]
            assert all(len(one) == 1 for one in held)
            forks.write(BE, "cpu.idle", "0")
            started.append(Process(forks, state, socket, *flags))
            wait_for(lambda: forks.read(BE, "cpu.idle") == "1", "a turn of the second")
            assert [mask(pid) for pid in busy] == held
            code, log = started[1].end(signal.SIGTERM)
        finally:
            for one in started:
                if one.process.poll() is None:
                    one.end(signal.SIGKILL)
    assert code == 0
    assert [mask(pid) for pid in busy] == [ALL] * 3, log
    assert (mask(own), mask(ls)) == (frozenset(CPUS[:1]), ALL)


STORM = (
    "import os, time\n"
    "while not os.path.exists({until!r}):\n"
    "    for _ in range(8):\n"
    "        if os.fork() == 0:\n"
    "            time.sleep(0.02)\n"
    "            os._exit(0)\n"
    "    for _ in range(8): os.wait()\n"
    "while True: pass\n"
)
"""A few hundred short processes a second, until told to work in peace."""


def test_a_fork_storm_is_left_wide_and_pinned_again_when_it_is_over(forks, tmp_path):
    storm = forks.spawn(f"{BE}/{CID}", STORM.format(until=str(tmp_path / "calm"))).pid
    with Rig(forks, tmp_path, policies=SPREAD) as rig:
        rig.settings = AgentSettings(
            turn_seconds=0.2, policies=SPREAD, spread=SpreadSettings(storm_threads=1, release_turns=2)
        )
        wait_for(lambda: any("make threads too fast" in turn.line for turn in rig.turns[-1:]), "the storm seen")
        wait_for(lambda: all(one == ALL for one in map(mask_or_none, tids(forks)) if one), "all of it left wide")
        (tmp_path / "calm").touch()
        wait_for(lambda: len(mask(storm)) == 1, "its maker pinned, now that it works")
    rig.executor.restore()
    assert mask(storm) == ALL


def mask_or_none(tid):
    try:
        return mask(tid)
    except ProcessLookupError:
        return None


def test_the_kernels_own_lists_are_understood():
    with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
        assert parse_cpus(file.read()) >= ALL
