"""Reclaim on a real memory controller of version 2: what a kernel does with an ask that it can and cannot meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.act.reclaim import Reclaimer
from agent.host.cgroup import PodGroup
from agent.host.reclaim import ReclaimFile
from agent.policy.base import Reclaim
from agent.reclaim import Result
from slacktide.kernel.hierarchy import Version
from tests.kernel.test_agent_cgroups import BE, CID, HIERARCHY, groups, wait_for
from tests.patience import PATIENCE

__all__ = ["groups"]

MIB = 1 << 20
MEMORY = HIERARCHY.controllers.get("memory")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(MEMORY is None or MEMORY.version is not Version.V2, reason="no memory controller of version 2"),
]

HOLDS = "import mmap, time\nheld = mmap.mmap(-1, 32 << 20)\nheld.write(b'x' * (32 << 20))\ntime.sleep(600)\n"


def test_memory_that_cannot_be_taken_back_is_short_and_a_group_that_is_another_is_gone(groups):
    if not groups.path(BE, "memory.reclaim").exists():
        pytest.skip("this kernel has no memory.reclaim")
    groups.spawn(f"{BE}/{CID}", HOLDS)
    wait_for(lambda: int(groups.read(BE, "memory.current")) > 32 * MIB, "memory in use")
    group = f"{groups.root}/{BE}"
    inode = groups.path(BE, "").stat().st_ino
    reclaimer = Reclaimer(ReclaimFile(HIERARCHY).reclaim)
    reclaimer.start()
    try:
        reclaimer.want([Reclaim(group=group, bytes=28 * MIB, reason="a test", at=1.0)], [PodGroup(group, inode, "be")])
        wait_for(lambda: group in reclaimer.view().last, "an answer")
        swap = Path("/proc/swaps").exists() and Path("/proc/swaps").read_text().count("\n") > 1
        assert reclaimer.view().last[group].result is (Result.DONE if swap else Result.SHORT)
        reclaimer.want([Reclaim(group=group, bytes=MIB, reason="a test", at=2.0)], [PodGroup(group, inode + 1, "be")])
        wait_for(lambda: reclaimer.view().last[group].asked_at == 2.0, "the next answer")
        assert reclaimer.view().last[group].result is Result.GONE
    finally:
        assert reclaimer.stop(10 * PATIENCE)
