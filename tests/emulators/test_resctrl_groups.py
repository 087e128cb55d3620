"""Life of groups: start values, ids and limbo, removal, moves. Kernel reference 1.4."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.machines import exclusive, fails, lines, model, status, write
from tests.emulators.resctrl import PROFILES, ResctrlError
from tests.emulators.resctrl.control import Commands
from tests.emulators.resctrl.hardware import Demand
from tests.emulators.resctrl.profiles import GIB, MIB


def test_a_new_group_gets_the_lowest_run_of_what_is_shareable_or_unused():
    there = exclusive("no-mba", mask="f")
    there.mkdir("n")
    assert lines(there, "n/schemata")["L3"] == {"0": "ffff0", "1": "ffff0"}
    write(there, "e/mode", "shareable\n")
    write(there, "s/schemata", "L3:0=f;1=f\n")
    write(there, "e/schemata", "L3:0=f0;1=f0\n")
    write(there, "e/mode", "shareable\n")
    for name in ("n", "s"):
        there.rmdir(name)
    write(there, "e/mode", "exclusive\n")
    there.mkdir("n")
    assert lines(there, "n/schemata")["L3"] == {"0": "f", "1": "f"}


def test_no_group_where_every_bit_is_exclusive():
    profile = replace(PROFILES["no-mba"], caches=(replace(PROFILES["no-mba"].caches[0], shareable_bits=0),))
    there = model(profile)
    there.mkdir("a")
    there.mkdir("b")
    write(there, "schemata", "L3:0=1;1=1\n")
    write(there, "b/schemata", "L3:0=2;1=2\n")
    write(there, "a/schemata", "L3:0=ffffc;1=ffffc\n")
    for name in ("a/", "b/", ""):
        write(there, f"{name}mode", "exclusive\n")
    assert fails(there.mkdir, "c") == "ENOSPC"
    assert status(there) == "No space on L3:0\n"
    there.rmdir("b")
    there.mkdir("c")
    assert lines(there, "c/schemata")["L3"]["0"] == "2"


def test_monitoring_ids_run_out_and_wait_in_limbo():
    there = model("few-rmids")
    for name in "abc":
        there.mkdir(name)
    assert fails(there.mkdir, "d") == "ENOSPC"
    assert status(there) == "Out of RMIDs\n"
    assert fails(there.mkdir, "a/mon_groups/m") == "ENOSPC"
    there.demand("a", Demand(GIB, 30 * MIB))
    Commands(there).advance(5)
    there.rmdir("a")
    assert fails(there.mkdir, "d") == "EBUSY"
    assert status(there) == "Out of RMIDs\n"
    there.clock.advance(1.5)
    assert fails(there.mkdir, "d") == "EBUSY"
    Commands(there).advance(20)
    there.mkdir("d")
    assert there.read("d/mon_data/mon_L3_00/mbm_total_bytes") == "0\n"


def test_a_failed_mkdir_keeps_its_class_free():
    there = model("few-rmids")
    for name in "abc":
        there.mkdir(name)
    for _ in range(20):
        assert fails(there.mkdir, "d") == "ENOSPC"
        assert status(there) == "Out of RMIDs\n"


def test_an_unused_id_leaves_limbo_at_the_next_check():
    there = model("few-rmids")
    for name in "abc":
        there.mkdir(name)
    there.rmdir("a")
    assert fails(there.mkdir, "d") == "EBUSY"
    there.clock.advance(1.0)
    there.mkdir("d")


def test_limbo_ends_below_the_threshold():
    there = model("few-rmids")
    for name in "abc":
        there.mkdir(name)
    there.demand("a", Demand(GIB, 8 * MIB, exact=True))
    Commands(there).advance(1)
    there.rmdir("a")
    write(there, "info/L3_MON/max_threshold_occupancy", str(16 * MIB))
    there.clock.advance(1.0)
    there.mkdir("d")


def test_there_is_no_limbo_without_occupancy():
    facts = replace(PROFILES["few-rmids"].monitoring, events=("mbm_total_bytes", "mbm_local_bytes"))
    there = model(replace(PROFILES["few-rmids"], monitoring=facts))
    for name in "abc":
        there.mkdir(name)
    there.rmdir("a")
    there.mkdir("d")
    assert "max_threshold_occupancy" not in there.list("info/L3_MON")


def test_threshold_rounds_to_the_unit_and_leaves_the_status_alone():
    there = model()
    assert fails(write, there, "mode", "x\n") == "EINVAL"
    write(there, "info/L3_MON/max_threshold_occupancy", "100000")
    assert there.read("info/L3_MON/max_threshold_occupancy") == "65536\n"
    assert fails(write, there, "info/L3_MON/max_threshold_occupancy", str(40 * MIB + 1)) == "EINVAL"
    assert status(there) == "Unknown or unsupported mode\n"


def test_removing_a_group_gives_threads_and_cpus_to_the_default_group():
    there = model("intel-2s", 5, 6)
    there.mkdir("a")
    there.mkdir("a/mon_groups/m")
    there.mkdir("b")
    write(there, "a/tasks", "5,6")
    write(there, "a/mon_groups/m/tasks", "6")
    write(there, "a/cpus_list", "2-3")
    write(there, "a/mon_groups/m/cpus_list", "3")
    child = there.open("a/mon_groups/m/tasks")
    there.rmdir("a")
    assert there.read("tasks") == "1\n5\n6\n"
    assert there.read("b/tasks") == ""
    assert there.read("cpus_list") == "0-15\n"
    assert fails(child.read) == "ENODEV"


def test_removing_a_monitoring_group_gives_threads_to_its_parent():
    there = model("intel-2s", 5)
    there.mkdir("a")
    there.mkdir("a/mon_groups/m")
    write(there, "a/tasks", "5")
    write(there, "a/mon_groups/m/tasks", "5")
    there.rmdir("a/mon_groups/m")
    assert there.read("a/tasks") == "5\n"


def test_moving_a_monitoring_group_keeps_data_and_threads_and_switches_the_class():
    there = model("debug", 5)
    there.mkdir("be")
    there.mkdir("mon_groups/pod")
    write(there, "mon_groups/pod/tasks", "5")
    there.count("mon_groups/pod", 0, "mbm_total_bytes", 10 * MIB)
    inode, rmid = there.find("mon_groups/pod").inode, there.read("mon_groups/pod/mon_hw_id")
    opened = there.open("mon_groups/pod/tasks")
    there.rename("mon_groups/pod", "be/mon_groups/pod")
    assert opened.read() == b"5\n"
    assert there.find("be/mon_groups/pod").inode == inode
    assert there.read("be/mon_groups/pod/mon_hw_id") == rmid
    assert there.read("be/mon_groups/pod/mon_data/mon_L3_00/mbm_total_bytes") == f"{10 * MIB}\n"
    assert there.read("be/tasks") == "5\n"
    assert there.read("tasks") == "1\n"


def test_foreign_groups_are_there_first():
    there = model("foreign")
    assert {"COS1", "COS2", "qemu-3-vm-vcpus_0-3"} <= set(there.list(""))
    assert lines(there, "COS1/schemata")["L3"] == {"0": "3", "1": "3"}
    assert set(there.list("mon_groups")) == {"7b0ffb6c"}
    for number in range(4):
        there.mkdir(f"mine{number}")
    assert fails(there.mkdir, "one-more") == "ENOSPC"


def test_size_counts_bits():
    there = model()
    write(there, "schemata", "L3:0=f\nMB:1=50\n")
    assert there.read("size") == f"    MB:0=100;1=50\n    L3:0={8 * MIB};1={40 * MIB}\n"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["mkdir", "rmdir", "rename"]), st.integers(0, 5), st.integers(0, 5))))
def test_no_id_is_lost_or_given_twice(steps):
    there = model("few-rmids")
    places = ["a", "b", "mon_groups/x", "a/mon_groups/y", "b/mon_groups/z", "mon_groups/w"]
    for operation, one, other in steps:
        arguments = [places[one], places[other]] if operation == "rename" else [places[one]]
        try:
            getattr(there, operation)(*arguments)
        except ResctrlError:
            continue
        there.clock.advance(0.4)
        groups = list(there.mounted.groups())
        held = [group.rmid for group in groups] + list(there.mounted.rmids.waiting) + list(there.mounted.rmids.free_ids)
        assert sorted(held) == list(range(PROFILES["few-rmids"].monitoring.num_rmids))
        closids = [group.closid for group in groups if group.control]
        assert sorted(closids) == there.mounted.closids.taken()
        assert all(group.closid == group.parent.closid for group in groups if group.parent)
