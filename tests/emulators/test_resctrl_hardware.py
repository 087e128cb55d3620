"""The hardware behind the counters, and what a test may script."""

from __future__ import annotations

import errno

import pytest

from tests.emulators.machines import fails, model, total, write
from tests.emulators.resctrl.control import Commands
from tests.emulators.resctrl.profiles import GIB, MIB


def test_bandwidth_is_held_by_the_control_and_by_the_memory():
    there = model()
    commands = Commands(there)
    for name in ("a", "b"):
        there.mkdir(name)
        commands.demand(name, 80 * GIB, 0, domain=0)
    commands.advance(1)
    assert total(there, "a") == pytest.approx(50 * GIB, rel=0.01)
    write(there, "b/schemata", "MB:0=10\n")
    before = total(there, "a"), total(there, "b")
    commands.advance(1)
    assert total(there, "a") - before[0] == pytest.approx(80 * GIB, rel=0.01)
    assert total(there, "b") - before[1] == pytest.approx(10 * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("profile", "value", "limit"),
    [("amd-rome", 16, 2e9), ("mbps", 1000, 1000 * MIB), ("intel-2s", 20, 20 * GIB)],
)
def test_every_kind_of_bandwidth_control_holds(profile, value, limit):
    there = model(profile)
    there.mkdir("g")
    Commands(there).demand("g", 24 * GIB, 0, domain=0)
    write(there, "g/schemata", f"MB:0={value}\n")
    there.read("g/mon_data/mon_L3_00/mbm_total_bytes")
    Commands(there).advance(1)
    assert total(there, "g") == pytest.approx(limit, rel=0.01)


def occupancy(there, path):
    return int(there.read(f"{path}/mon_data/mon_L3_00/llc_occupancy"))


def test_occupancy_fills_the_mask_and_leaves_slowly():
    there = model()
    commands = Commands(there)
    there.mkdir("g")
    commands.demand("g", GIB, 30 * MIB)
    commands.advance(5)
    assert occupancy(there, "g") == pytest.approx(30 * MIB, rel=0.02)
    write(there, "g/schemata", "L3:0=f\n")
    commands.advance(1)
    assert 8 * MIB < occupancy(there, "g") < 30 * MIB
    commands.advance(30)
    assert occupancy(there, "g") == pytest.approx(8 * MIB, rel=0.02)


def test_groups_share_a_cache_by_demand_unless_masks_part_them():
    there = model()
    commands = Commands(there)
    for name, rate in (("ls", 1), ("be", 3)):
        there.mkdir(name)
        commands.demand(name, rate * GIB, 40 * MIB)
    commands.advance(30)
    assert occupancy(there, "ls") == pytest.approx(10 * MIB, rel=0.05)
    assert total(there, "ls") > 30 * GIB
    write(there, "be/schemata", "L3:0=3\n")
    commands.advance(60)
    assert occupancy(there, "ls") == pytest.approx(37 * MIB, rel=0.05)


def test_without_a_script_traffic_follows_cpu_time():
    there = model("intel-2s", 5)
    there.mkdir("g")
    write(there, "g/tasks", "5")
    write(there, "g/cpus_list", "9")
    there.host.run(5, 1.0, cpu=2)
    there.host.cpus[9] = 0.0
    Commands(there).advance(1)
    there.host.cpus[9] = 0.5
    Commands(there).advance(1)
    assert total(there, "g") >= GIB
    assert total(there, "g", "01") >= GIB / 2
    assert total(there, "") == total(there, "", "01") == 0
    there.host.end(5)
    before = total(there, "g")
    Commands(there).advance(1)
    assert total(there, "g") == before


# scripts


def test_operations_that_fail_on_purpose():
    there = model()
    commands = Commands(there)
    commands.fail("schemata", "write", errno.EIO, times=1)
    assert fails(write, there, "schemata", "L3:0=f\n") == "EIO"
    write(there, "schemata", "L3:0=f\n")
    commands.fail("tasks", "read", errno.ENODEV)
    assert fails(there.read, "tasks") == "ENODEV"
    commands.heal()
    assert there.read("tasks") == "1\n"
    with pytest.raises(ValueError, match="no command"):
        commands.run("nothing", {})


def test_a_group_vanishes_during_a_read():
    there = model()
    there.mkdir("g")
    Commands(there).vanish_during_read("g/schemata", 6)
    opened = there.open("g/schemata")
    assert opened.read(100) == b"    MB"
    assert fails(opened.read, 100, 6) == "ENODEV"
    assert fails(there.open, "g/schemata") == "ENOENT"
