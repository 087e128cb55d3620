"""Capabilities of an agent that shall only observe: found by looking, without any write."""

from __future__ import annotations

from agent.capabilities import Knob
from agent.host.cgroup import CgroupLister
from agent.host.probe import probe
from slacktide.kernel.files import write_value
from tests.kernel.test_agent_cgroups import BE, HIERARCHY, groups, pytestmark  # noqa: F401 - fixture and marks


def test_looking_finds_what_trying_finds_and_writes_nothing(groups):  # noqa: F811 - the fixture
    written = []

    def write(name, value, descriptor=None):
        written.append(name)
        write_value(name, value, descriptor)

    groups.mounts = sorted({mount.path for mount in HIERARCHY.controllers.values()})
    groups.make(BE)
    lister = CgroupLister(HIERARCHY, groups.root)
    seen = probe(HIERARCHY, lister, "/proc", write=write, try_writes=False)
    assert written == []
    tried = probe(HIERARCHY, lister, "/proc", write=write)
    assert written
    assert seen.writable == tried.writable
    assert Knob.QUOTA in seen.writable
    assert (seen.affinity, seen.reclaim, seen.kill) == (tried.affinity, tried.reclaim, tried.kill)
