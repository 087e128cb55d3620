"""Slow collectors together: what they give from the first moment on, and disks."""

from __future__ import annotations

import os
import threading
import time

import pytest

from agent.collect import CollectSettings
from agent.collectors import Collectors
from agent.host.disks import read_disks
from slacktide.kernel.hierarchy import discover
from tests.patience import PATIENCE


def disk(root, name, device):
    directory = root / "block" / name
    directory.mkdir(parents=True)
    (directory / "dev").write_text(device)


def test_whole_disks_alone(tmp_path):
    for name, device in {
        "sda": "8:0\n",
        "nvme0n1": "259:0\n",
        "loop0": "7:0\n",
        "dm-0": "253:0\n",
        "zram0": "252:0\n",
    }.items():
        disk(tmp_path, name, device)
    disk(tmp_path, "vda", "254:0\n")
    assert read_disks(str(tmp_path)) == ("254:0", "259:0", "8:0")


@pytest.mark.parametrize("junk", ["", "8", "8:0:1", "a:b", "8:-1", "8:0 rbps=1"])
def test_a_number_that_is_none_is_left_out(tmp_path, junk):
    disk(tmp_path, "sda", junk)
    disk(tmp_path, "sdb", "8:16\n")
    assert read_disks(str(tmp_path)) == ("8:16",)


def test_a_sysfs_that_hides_its_disks_says_so(tmp_path):
    assert read_disks(str(tmp_path)) is None


def test_the_topology_is_there_before_any_thread_and_the_rest_when_it_was_read():
    collectors = Collectors(lambda: CollectSettings(perf=False, gpu=False), discover(), "/proc", "/sys")
    assert len(collectors.topology().cpus) >= len(os.sched_getaffinity(0)) > 0
    assert collectors.disks() is None
    assert collectors.cpi() == {}
    collectors.start()
    try:
        deadline = time.monotonic() + 10 * PATIENCE
        while "disks" in collectors.why_not() and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert collectors.disks() == read_disks("/sys")
        assert collectors.gpus() is None
        assert collectors.counters()["source_reads"] >= 1
    finally:
        collectors.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("source-")]
