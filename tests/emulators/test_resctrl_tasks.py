"""Threads and CPUs: lists, inheritance, rights, masks. Kernel reference 1.5."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulators.machines import fails, model, status, write
from tests.emulators.resctrl import PROFILES, Caller
from tests.emulators.resctrl.control import Commands
from tests.emulators.resctrl.parsing import (
    format_list,
    format_mask,
    kernel_bool,
    kernel_int,
    kernel_number,
    parse_list,
    parse_mask,
)


def test_a_task_list_stops_at_the_first_that_fails():
    """What stands before it stays moved."""
    there = model("intel-2s", 5, 6, 7)
    there.mkdir("g")
    assert fails(write, there, "g/tasks", "5,99,6\n") == "ESRCH"
    assert status(there) == "No task 99\nError while processing task 99\n"
    assert there.read("g/tasks") == "5\n"
    assert fails(write, there, "g/tasks", "0x6,x\n") == "EINVAL"
    assert there.read("g/tasks") == "5\n6\n"
    write(there, "g/tasks", " 07 ,\n")
    assert there.read("g/tasks") == "5\n6\n7\n"


def test_zero_is_who_writes():
    there = model("intel-2s", 5)
    there.mkdir("g")
    write(there, "g/tasks", "0", Caller(5))
    assert there.read("g/tasks") == "5\n"


@pytest.mark.parametrize(("uid", "error"), [(0, None), (1000, None), (1001, None), (1002, "EPERM")])
def test_only_root_and_the_owner_move_a_task(uid, error):
    there = model("intel-2s", 5)
    there.host.users[5] = (1000, 1001)
    there.mkdir("g")
    if error is None:
        write(there, "g/tasks", "5", Caller(1, uid))
    else:
        assert fails(write, there, "g/tasks", "5", Caller(1, uid)) == error
        assert status(there) == "No permission to move task 5\nError while processing task 5\n"


def test_threads_move_alone_and_new_ones_inherit():
    there = model("intel-2s", 5)
    host = there.host
    host.add(51, tgid=5)
    there.mkdir("g")
    write(there, "g/tasks", "5")
    assert there.read("g/tasks") == "5\n"
    host.add(52, tgid=5)
    host.add(60, parent=5)
    host.add(61, tgid=60)
    host.add(70, parent=60)
    assert there.read("g/tasks") == "5\n52\n60\n61\n70\n"
    host.add(53, tgid=51)
    assert "53" not in there.read("g/tasks").split()


def test_children_go_their_own_way():
    there = model("intel-2s", 5)
    there.mkdir("g")
    there.mkdir("h")
    write(there, "g/tasks", "5")
    there.host.add(60, parent=5)
    write(there, "h/tasks", "5")
    assert (there.read("g/tasks"), there.read("h/tasks")) == ("60\n", "5\n")


def test_an_id_that_is_used_again_is_another_thread():
    there = model("intel-2s", 5)
    there.mkdir("g")
    write(there, "g/tasks", "5")
    there.host.end(5)
    there.host.add(5, start=99)
    assert there.read("g/tasks") == ""


def test_writing_a_thread_to_its_class_takes_it_out_of_its_monitoring_group():
    there = model("intel-2s", 5)
    there.mkdir("g")
    there.mkdir("g/mon_groups/m")
    write(there, "g/tasks", "5")
    write(there, "g/mon_groups/m/tasks", "5")
    assert (there.read("g/tasks"), there.read("g/mon_groups/m/tasks")) == ("5\n", "5\n")
    write(there, "g/tasks", "5")
    assert (there.read("g/tasks"), there.read("g/mon_groups/m/tasks")) == ("5\n", "")


def test_what_proc_says_of_a_thread():
    there = model("intel-2s", 5)
    commands = Commands(there)
    assert commands.proc_text(5) == "res:/\nmon:\n"
    there.mkdir("g")
    there.mkdir("g/mon_groups/m")
    write(there, "g/tasks", "5")
    assert commands.proc_text(5) == "res:g\nmon:\n"
    write(there, "g/mon_groups/m/tasks", "5")
    assert commands.proc_text(5) == "res:g\nmon:m\n"


def test_monitoring_only_groups_take_any_thread():
    there = model("mon-only", 5)
    there.mkdir("mon_groups/m")
    write(there, "mon_groups/m/tasks", "5")
    assert there.read("mon_groups/m/tasks") == "5\n"


def test_cpus_are_stolen_and_given_back():
    there = model()
    for name in ("a", "b"):
        there.mkdir(name)
        there.mkdir(f"{name}/mon_groups/m")
    write(there, "a/cpus_list", "0-3")
    write(there, "a/mon_groups/m/cpus", "3")
    assert there.read("a/mon_groups/m/cpus_list") == "0-1\n"
    write(there, "b/cpus_list", "1,3")
    assert [there.read(f"{name}cpus_list") for name in ("", "a/", "a/mon_groups/m/", "b/")] == [
        "4-15\n",
        "0,2\n",
        "0\n",
        "1,3\n",
    ]
    write(there, "b/cpus_list", "3")
    assert there.read("cpus_list") == "1,4-15\n"
    write(there, "a/cpus_list", "0,2")
    assert there.read("a/mon_groups/m/cpus_list") == "\n"


def test_cpus_that_are_offline_or_come_back():
    there = model(replace(PROFILES["intel-2s"], offline=frozenset({15})))
    there.mkdir("g")
    assert fails(write, there, "g/cpus_list", "15") == "EINVAL"
    assert status(there) == "Can only assign online CPUs\n"
    write(there, "g/cpus_list", "14")
    commands = Commands(there)
    commands.plug(14, False)
    commands.plug(14, True)
    assert (there.read("g/cpus_list"), there.read("cpus_list")) == ("\n", "0-14\n")


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("cpus_list", "16", "ERANGE"),
        ("cpus_list", "99999999999", "EOVERFLOW"),
        ("cpus_list", "a", "EINVAL"),
        ("cpus", "10000", "EOVERFLOW"),
        ("cpus", "0,1", "EOVERFLOW"),
        ("cpus", "000000001", "EOVERFLOW"),
        ("cpus", "0x1", "EINVAL"),
    ],
)
def test_bad_cpus(file, text, error):
    there = model()
    there.mkdir("g")
    assert fails(write, there, f"g/{file}", text) == error
    assert status(there) == "Bad CPU list/mask\n"


def test_masks_have_groups_of_32_bits():
    there = model("l2")
    assert there.read("cpus") == "ff,ffffffff\n"
    there.mkdir("g")
    assert there.read("g/cpus") == "00,00000000\n"
    write(there, "g/cpus", "80,00000001\n")
    assert there.read("g/cpus_list") == "0,39\n"


@given(st.integers(0, 2**70 - 1), st.integers(70, 130))
def test_masks_and_lists_are_read_as_they_are_written(mask, bits):
    assert parse_mask(format_mask(mask, bits), bits) == mask
    assert parse_list(format_list(mask), bits) == mask


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-6:1/2", [0, 2, 4, 6]),
        ("all", list(range(8))),
        ("N", [7]),
        ("1,,3", [1, 3]),
        ("", []),
        ("2\n5", [2]),
        ("ALL:1/4", [0, 4]),
        ("1-2:0/2", []),
    ],
)
def test_list_grammar(text, cpus):
    assert parse_list(text, 8) == sum(1 << cpu for cpu in cpus)


@pytest.mark.parametrize("text", ["3-1", "1-", "-1", "a", "1-2:1/0", "1-2:3/2", "1:1/2", "1;2"])
def test_lists_that_are_refused(text):
    assert fails(parse_list, text, 8) == "EINVAL"


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [("0x1F", 16, 31), ("1f", 16, 31), ("+7", 10, 7), ("010", 0, 8), ("0x10", 0, 16), ("12\n", 10, 12), ("00", 0, 0)],
)
def test_numbers(text, base, value):
    assert kernel_number(text, base, 1000) == value


@pytest.mark.parametrize(
    ("text", "base"), [("", 10), (" 1", 10), ("1 ", 10), ("0x", 16), ("1_0", 10), ("08", 0), ("-1", 10), ("\u0661", 10)]
)
def test_numbers_that_are_refused(text, base):
    assert fails(kernel_number, text, base, 1000) == "EINVAL"
    assert fails(kernel_number, "1001", 10, 1000) == "ERANGE"


@pytest.mark.parametrize(
    ("text", "mask"), [("", 0), ("\n", 0), ("f\n", 15), ("1,,2", 1 << 32 | 2), ("FF,00000000", 255 << 32), ("1\nzz", 1)]
)
def test_mask_grammar(text, mask):
    assert parse_mask(text, 40) == mask


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("on", True), ("off", False), ("0", False)])
def test_switches(text, value):
    assert kernel_bool(text) is value
    assert fails(kernel_bool, "o") == fails(kernel_bool, "") == fails(kernel_bool, "2") == "EINVAL"


def test_pids_are_signed():
    assert (kernel_int("-1"), kernel_int("0x7fffffff")) == (-1, 2**31 - 1)
    assert fails(kernel_int, "--1") == "EINVAL"
    assert fails(kernel_int, "2147483648") == "ERANGE"
