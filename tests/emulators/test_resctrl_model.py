"""What single commands cannot show: budgets, limbo, overlap, inheritance, counters; the model without a mount.

Facts are those of the kernel reference, section 1; the number of the part stands before each group of tests.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.resctrl import PROFILES, Caller, Clock, FakeHost, Model, ResctrlError
from tests.emulators.resctrl.control import Commands
from tests.emulators.resctrl.hardware import Demand
from tests.emulators.resctrl.parsing import (
    format_list,
    format_mask,
    kernel_bool,
    kernel_int,
    kernel_number,
    parse_list,
    parse_mask,
)
from tests.emulators.resctrl.profiles import GIB, MIB
from tests.emulators.resctrl.schemata import first_run
from tests.emulators.resctrl.state import LastCommand


def model(profile="intel-2s", *tids, options=None):
    machine = PROFILES[profile] if isinstance(profile, str) else profile
    chosen = None if options is None else frozenset(options)
    return Model(machine, host=FakeHost(1, *tids), clock=Clock(frozen=0.0), options=chosen)


def fails(call, *arguments):
    """Name of the error of a call."""
    with pytest.raises(ResctrlError) as caught:
        call(*arguments)
    return caught.value.symbol


def status(there):
    return there.read("info/last_cmd_status")


def write(there, path, text, caller=None):
    there.write(path, text.encode(), caller or Caller(1))


def lines(there, path="schemata"):
    """Values by resource and domain, as a reader should parse them: by name."""
    found = {}
    for line in there.read(path).splitlines():
        name, _, rest = line.partition(":")
        found[name.strip()] = dict(cell.split("=") for cell in rest.split(";"))
    return found


# 1.1 mount, tree, files


@pytest.mark.parametrize(
    ("profile", "options", "error"),
    [
        ("intel-2s", {"cdp"}, None),
        ("intel-2s", {"cdp", "mba_MBps", "debug"}, None),
        ("intel-2s", {"cdpl2"}, "EINVAL"),
        ("intel-2s", {"nonsense"}, "EINVAL"),
        ("haswell", {"cdp"}, "EINVAL"),
        ("haswell", {"mba_MBps"}, "EINVAL"),
        ("alloc-only", {"mba_MBps"}, "EINVAL"),
        ("non-linear", {"mba_MBps"}, "EINVAL"),
        ("amd-rome", {"mba_MBps"}, "EINVAL"),
        ("snc", {"mba_MBps"}, "EINVAL"),
        ("l2", {"cdpl2"}, None),
    ],
)
def test_mount_options(profile, options, error):
    if error is None:
        there = model(profile, options=options)
        assert set(there.mount_options) == options
    else:
        assert fails(lambda: model(profile, options=options)) == error


def test_it_is_mounted_once():
    assert fails(model().mount_up, []) == "EBUSY"


def test_unmounting_wipes_groups_threads_cpus_and_masks():
    there = model("intel-2s", 5)
    there.mkdir("g")
    write(there, "schemata", "L3:0=f\nMB:1=20\n")
    write(there, "g/tasks", "5")
    write(there, "g/cpus_list", "3")
    inode = there.find("g").inode
    there.remount()
    assert fails(there.find, "g") == "ENOENT"
    assert lines(there) == {"MB": {"0": "100", "1": "100"}, "L3": {"0": "fffff", "1": "fffff"}}
    assert there.read("tasks") == "1\n5\n"
    assert there.read("cpus_list") == "0-15\n"
    there.mkdir("g")
    assert there.find("g").inode != inode
    there.unmount()
    assert fails(there.read, "schemata") == "ENODEV"


COMMON = {"cpus", "cpus_list", "tasks"}
CONTROL = COMMON | {"schemata", "mode", "size"}


@pytest.mark.parametrize(
    ("profile", "root", "group", "monitor"),
    [
        ("intel-2s", CONTROL | {"info", "mon_groups", "mon_data"}, CONTROL | {"mon_groups", "mon_data"}, COMMON),
        ("alloc-only", CONTROL | {"info"}, CONTROL, None),
        (
            "mbps",
            CONTROL | {"info", "mon_groups", "mon_data", "mba_MBps_event"},
            CONTROL | {"mon_groups", "mon_data", "mba_MBps_event"},
            COMMON,
        ),
        (
            "debug",
            CONTROL | {"info", "mon_groups", "mon_data", "mon_hw_id", "ctrl_hw_id"},
            CONTROL | {"mon_groups", "mon_data", "mon_hw_id", "ctrl_hw_id"},
            COMMON | {"mon_hw_id"},
        ),
        (
            "abmc",
            CONTROL | {"info", "mon_groups", "mon_data", "mbm_L3_assignments"},
            CONTROL | {"mon_groups", "mon_data", "mbm_L3_assignments"},
            COMMON | {"mbm_L3_assignments"},
        ),
    ],
)
def test_files_of_root_group_and_monitoring_group(profile, root, group, monitor):
    there = model(profile)
    there.mkdir("g")
    assert set(there.list("")) == root | {"g"}
    assert set(there.list("g")) == group
    if monitor is not None:
        there.mkdir("g/mon_groups/m")
        assert set(there.list("g/mon_groups/m")) == monitor | {"mon_data"}
    there.rmdir("g")


def test_old_kernels_choose_no_event_in_mbps_mode():
    assert "mba_MBps_event" not in model("old-kernel", options={"mba_MBps"}).list("")


def test_open_files_of_a_removed_group_are_gone():
    there = model()
    there.mkdir("g")
    opened, fresh = there.open("g/schemata"), there.open("g/tasks", write=True)
    assert opened.read(4) == b"    "
    there.rmdir("g")
    assert fails(opened.read, 4, 4) == "ENODEV"
    assert fails(fresh.write, b"1") == "ENODEV"
    there.gone_code = errno.ENOENT
    assert fails(opened.read) == "ENOENT"
    there.mkdir("g")
    assert fails(opened.read) == "ENOENT"


def test_a_reader_sees_one_text_until_it_starts_over():
    there = model()
    opened = there.open("schemata")
    first = opened.read(30)
    write(there, "schemata", "L3:0=f\n")
    assert first + opened.read(1000, 30) == b"    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n"
    assert opened.read() == b"    MB:0=100;1=100\n    L3:0=f;1=fffff\n"


# 1.2 info


@pytest.mark.parametrize(
    ("profile", "facts"),
    [
        (
            "intel-2s",
            {
                "L3/num_closids": "16",
                "L3/cbm_mask": "fffff",
                "L3/min_cbm_bits": "1",
                "L3/shareable_bits": "c0000",
                "L3/sparse_masks": "0",
                "L3/bit_usage": "0=XXSSSSSSSSSSSSSSSSSS;1=XXSSSSSSSSSSSSSSSSSS",
                "MB/num_closids": "8",
                "MB/min_bandwidth": "10",
                "MB/bandwidth_gran": "10",
                "MB/delay_linear": "1",
                "MB/thread_throttle_mode": "max",
                "L3_MON/num_rmids": "224",
                "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes",
                "L3_MON/max_threshold_occupancy": "131072",
            },
        ),
        ("cdp", {"L3CODE/num_closids": "8", "L3DATA/num_closids": "8", "L3DATA/cbm_mask": "fffff"}),
        ("per-thread", {"MB/thread_throttle_mode": "per-thread", "L3/sparse_masks": "1"}),
        ("haswell", {"L3/min_cbm_bits": "2", "L3/num_closids": "4", "L3_MON/mon_features": "llc_occupancy"}),
        ("amd-rome", {"MB/min_bandwidth": "0", "MB/delay_linear": "0", "L3/min_cbm_bits": "0", "L3/sparse_masks": "1"}),
        ("abmc", {"SMBA/num_closids": "16", "L3/io_alloc": "disabled", "L3_MON/num_mbm_cntrs": "0=32;1=32"}),
        (
            "bmec",
            {
                "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config"
                "\nmbm_local_bytes\nmbm_local_bytes_config",
            },
        ),
    ],
)
def test_info(profile, facts):
    there = model(profile)
    assert {path: there.read(f"info/{path}") for path in facts} == {path: f"{text}\n" for path, text in facts.items()}


@pytest.mark.parametrize(
    ("profile", "absent"),
    [
        ("cdp", {"L3"}),
        ("l2", {"L3", "MB", "L3_MON"}),
        ("mon-only", {"L3", "MB"}),
        ("alloc-only", {"L3_MON"}),
    ],
)
def test_info_has_only_what_is_supported(profile, absent):
    assert not absent & set(model(profile).list("info"))


def test_old_kernels_do_not_tell_sparse_masks():
    assert "sparse_masks" not in model("old-kernel").list("info/L3")
    assert "thread_throttle_mode" not in model("old-kernel").list("info/MB")
    assert "thread_throttle_mode" not in model("amd-rome").list("info/MB")


@pytest.mark.parametrize(
    ("profile", "groups"),
    [("intel-2s", 7), ("cdp", 7), ("no-mba", 15), ("haswell", 3), ("l2", 15), ("amd-rome", 15), ("mba-only", 7)],
)
def test_user_groups_are_the_least_of_all_resources_less_the_root(profile, groups):
    there = model(profile)
    for number in range(groups):
        there.mkdir(f"g{number}")
    assert fails(there.mkdir, "one-more") == "ENOSPC"
    assert status(there) == "Out of CLOSIDs\n"
    there.rmdir("g0")
    there.mkdir("one-more")


def test_bit_usage_letters():
    there = model("no-mba")
    there.mkdir("e")
    write(there, "schemata", "L3:0=ff00;1=ff00\n")
    write(there, "e/schemata", "L3:0=f;1=3\n")
    write(there, "e/mode", "exclusive\n")
    assert there.read("info/L3/bit_usage") == "0=HH00SSSSSSSS0000EEEE;1=HH00SSSSSSSS000000EE\n"
    write(there, "schemata", "L3:0=fff00\n")
    assert there.read("info/L3/bit_usage") == "0=XXSSSSSSSSSS0000EEEE;1=HH00SSSSSSSS000000EE\n"


def test_bit_usage_of_a_machine_that_shares_bits_at_both_ends():
    cache = replace(PROFILES["no-mba"].caches[0], shareable_bits=0xC0001)
    there = model(replace(PROFILES["no-mba"], caches=(cache,)))
    write(there, "schemata", "L3:1=ff00\n")
    assert there.read("info/L3/bit_usage") == "0=XXSSSSSSSSSSSSSSSSSX;1=HH00SSSSSSSS0000000H\n"


def test_last_command_status_holds_512_bytes():
    last = LastCommand()
    last.say("x" * 600)
    assert last.text == "x" * 511
    last.say("more")
    assert len(last.text) == 511
    last.clear()
    assert last.text == "ok\n"


# 1.3 schemata


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        ("intel-2s", "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n"),
        ("no-mba", "    L3:0=fffff;1=fffff\n"),
        ("haswell", "L3:0=fffff\n"),
        ("cdp", "    MB:0=100;1=100\nL3DATA:0=fffff;1=fffff\nL3CODE:0=fffff;1=fffff\n"),
        ("mbps", "    MB:0=4294967295;1=4294967295\n    L3:0=fffff;1=fffff\n"),
        ("old-kernel", "    L3:0=fffff;1=fffff\n    MB:0=  100;1=  100\n"),
        ("abmc", "  SMBA:0=2048;1=2048\n    MB:0=2048;1=2048\n    L3:0=ffff;1=ffff\n"),
        ("mon-only", ""),
    ],
)
def test_schemata_reads_differ_between_kernels_and_machines(profile, text):
    assert model(profile).read("schemata") == text


def test_old_kernels_pad_masks_with_zeros():
    there = model("old-kernel")
    write(there, "schemata", "L3:1=f\nMB:0=10\n")
    assert there.read("schemata") == "    L3:0=fffff;1=0000f\n    MB:0=   10;1=  100\n"
    write(there, "schemata", there.read("schemata"))
    assert lines(there)["L3"]["1"] == "0000f"


def test_domain_ids_with_gaps():
    """koordinator#1777: ids 0-7 and 16-23."""
    there = model("amd-rome")
    ids = [str(number) for number in (*range(8), *range(16, 24))]
    assert list(lines(there)["L3"]) == ids
    write(there, "schemata", "MB:16=16;23=32\nL3:23=0\n")
    assert {key: value for key, value in lines(there)["MB"].items() if value != "2048"} == {"16": "16", "23": "32"}
    assert fails(write, there, "schemata", "MB:8=16\n") == "EINVAL"
    assert sorted(there.list("mon_data"))[8] == "mon_L3_16"


@pytest.mark.parametrize(
    ("written", "kept"),
    [("10", "10"), ("11", "20"), ("33", "40"), ("91", "100"), ("100", "100"), ("+20", "20")],
)
def test_bandwidth_rounds_up(written, kept):
    there = model()
    write(there, "schemata", f"MB:0={written}\n")
    assert lines(there)["MB"]["0"] == kept


def test_runc_1913():
    """T `L3:0=f3;1=ff` and `MB:0=0;1=110`."""
    there = model()
    assert fails(write, there, "schemata", "L3:0=f3;1=ff\n") == "EINVAL"
    assert status(there) == "The mask f3 has non-consecutive 1-bits\n"
    assert fails(write, there, "schemata", "MB:0=0;1=110\n") == "EINVAL"
    assert status(there) == "MB value 0 out of range [10,100]\n"


def test_sparse_masks_look_at_the_first_run_only():
    """min_cbm_bits 2: 0b101 has a first run of one bit, 0b1011 one of two."""
    cache = replace(PROFILES["per-thread"].caches[0], min_cbm_bits=2)
    there = model(replace(PROFILES["per-thread"], caches=(cache,)))
    assert fails(write, there, "schemata", "L3:0=5\n") == "EINVAL"
    assert status(there) == "Need at least 2 bits in the mask\n"
    write(there, "schemata", "L3:0=b\n")
    assert lines(there)["L3"]["0"] == "b"


def test_a_class_above_what_the_resource_has_does_not_know_it():
    there = model()
    there.mkdir("g")
    there.group("g").closid = 9
    assert fails(write, there, "g/schemata", "MB:0=50\n") == "EINVAL"
    assert status(there) == "Unknown or unsupported resource name 'MB'\n"
    assert "MB" not in lines(there, "g/schemata")
    write(there, "g/schemata", "L3:0=f\n")


def exclusive(profile, mask="f", code=False):
    """A machine with an exclusive group e and a shareable one s beside it."""
    there = model(profile)
    names = ("L3CODE", "L3DATA") if code else ("L3",)
    there.mkdir("e")
    there.mkdir("s")
    for name in names:
        write(there, "schemata", f"{name}:0=ff00;1=ff00\n")
        write(there, "s/schemata", f"{name}:0=f0;1=f0\n")
        write(there, "e/schemata", f"{name}:0={mask};1={mask}\n")
    write(there, "e/mode", "exclusive\n")
    return there


def test_exclusive_groups_keep_all_others_out():
    there = exclusive("intel-2s")
    assert there.read("e/mode") == "exclusive\n"
    assert fails(write, there, "s/schemata", "L3:0=1f\n") == "EINVAL"
    assert status(there) == "Overlaps with exclusive group\n"
    assert fails(write, there, "e/schemata", "L3:1=1f\n") == "EINVAL"
    assert status(there) == "Overlaps with other group\n"
    write(there, "s/schemata", "L3:0=ff0\n")
    write(there, "e/mode", "shareable\n")
    write(there, "s/schemata", "L3:0=1f\n")
    assert fails(write, there, "e/mode", "exclusive\n") == "EINVAL"
    assert status(there) == "Schemata overlaps\n"


def test_bits_that_the_hardware_shares_are_never_exclusive():
    there = exclusive("intel-2s")
    assert fails(write, there, "e/schemata", "L3:0=c0000\n") == "EINVAL"
    assert status(there) == "Overlaps with other group\n"
    write(there, "e/mode", "shareable\n")
    write(there, "e/schemata", "L3:0=c0000\n")
    assert fails(write, there, "e/mode", "exclusive\n") == "EINVAL"


def test_with_cdp_overlap_looks_at_code_and_data():
    there = exclusive("cdp", code=True)
    assert fails(write, there, "s/schemata", "L3CODE:0=1f\n") == "EINVAL"
    write(there, "e/mode", "shareable\n")
    write(there, "e/schemata", "L3CODE:0=3;1=3\nL3DATA:0=c;1=c\n")
    write(there, "e/mode", "exclusive\n")
    assert fails(write, there, "s/schemata", "L3CODE:0=c\n") == "EINVAL"
    assert status(there) == "Overlaps with exclusive group\n"


def test_pseudo_locking():
    there = model("pseudo-lock", 7)
    there.mkdir("p")
    there.mkdir("s")
    write(there, "schemata", "L3:0=ff00;1=ff00\n")
    write(there, "s/schemata", "L3:0=f0;1=f0\n")
    write(there, "p/mode", "pseudo-locksetup\n")
    assert there.read("p/schemata") == "MB:uninitialized\nL3:uninitialized\n"
    assert there.read("p/size") == "    MB:0=0;1=0\n    L3:0=0;1=0\n"
    assert fails(there.open, "p/tasks", True) == "EACCES"
    assert fails(there.mkdir, "p/mon_groups/m") == "EINVAL"
    assert fails(write, there, "p/schemata", "MB:0=50\n") == "EINVAL"
    assert status(there) == "Cannot pseudo-lock MBA resource\n"
    assert fails(write, there, "p/schemata", "L3:0=f0\n") == "EINVAL"
    assert status(there) == "Overlaps with other group\n"
    write(there, "p/schemata", "L3:0=f\n")
    assert there.read("p/mode") == "pseudo-locked\n"
    assert there.read("p/schemata") == "L3:0=f\n"
    assert there.read("p/size") == "    L3:0=8388608\n"
    assert there.read("p/cpus_list") == "0-7\n"
    assert there.read("info/L3/bit_usage") == "0=HH00SSSSSSSSSSSSPPPP;1=HH00SSSSSSSSSSSS0000\n"
    assert fails(write, there, "p/schemata", "L3:0=f\n") == "EINVAL"
    assert status(there) == "Resource group is pseudo-locked\n"
    assert fails(write, there, "s/schemata", "L3:0=1f\n") == "EINVAL"
    assert status(there) == "CBM overlaps with pseudo-locked region\n"
    assert fails(write, there, "p/mode", "shareable\n") == "EINVAL"
    there.take_domain(0)
    for file in ("cpus", "schemata", "size"):
        assert fails(there.read, f"p/{file}") == "ENODEV"
        assert status(there) == "Cache domain offline\n"
    there.rmdir("p")
    there.mkdir("new")


@pytest.mark.parametrize(
    ("prepare", "line"),
    [
        (lambda there: there.mkdir("g/mon_groups/m"), "Monitoring in progress"),
        (lambda there: write(there, "g/tasks", "7"), "Tasks assigned to resource group"),
        (lambda there: write(there, "g/cpus_list", "1"), "CPUs assigned to resource group"),
    ],
)
def test_pseudo_locking_needs_an_empty_group(prepare, line):
    there = model("pseudo-lock", 7)
    there.mkdir("g")
    prepare(there)
    assert fails(write, there, "g/mode", "pseudo-locksetup\n") == "EINVAL"
    assert status(there) == f"{line}\n"


def test_servers_cannot_pseudo_lock():
    there = model()
    there.mkdir("g")
    assert fails(write, there, "g/mode", "pseudo-locksetup\n") == "EINVAL"
    assert status(there) == "Pseudo-locking not supported\n"


def test_leaving_lock_setup_takes_an_id_again():
    there = model("pseudo-lock")
    there.mkdir("g")
    write(there, "g/mode", "pseudo-locksetup\n")
    write(there, "g/mode", "shareable\n")
    assert there.read("g/mode") == "shareable\n"
    write(there, "g/tasks", "1")
    assert there.read("g/tasks") == "1\n"


# 1.4 groups


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


# 1.5 tasks and cpus


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


# 1.6 monitoring


def test_a_group_counts_what_a_script_says():
    there = model()
    there.mkdir("g")
    Commands(there).rates("g", 100 * MIB, 4 * MIB, 0.5, domain=1)
    Commands(there).advance(10)
    read = {
        path: int(there.read(f"g/mon_data/{path}"))
        for path in ("mon_L3_00/mbm_total_bytes", "mon_L3_01/mbm_total_bytes", "mon_L3_01/mbm_local_bytes")
    }
    assert read["mon_L3_00/mbm_total_bytes"] == 0
    assert read["mon_L3_01/mbm_total_bytes"] == pytest.approx(1000 * MIB, abs=70000)
    assert read["mon_L3_01/mbm_local_bytes"] == pytest.approx(500 * MIB, abs=70000)
    assert there.read("g/mon_data/mon_L3_01/llc_occupancy") == f"{4 * MIB}\n"


def total(there, path, domain="00"):
    return int(there.read(f"{path}/mon_data/mon_L3_{domain}/mbm_total_bytes"))


def test_a_class_counts_its_monitoring_groups_too_and_falls_when_one_goes():
    there = model()
    there.mkdir("g")
    for name, size in (("a", 3), ("b", 5)):
        there.mkdir(f"g/mon_groups/{name}")
        there.count(f"g/mon_groups/{name}", 0, "mbm_total_bytes", size * MIB)
    there.count("g", 0, "mbm_total_bytes", MIB)
    assert total(there, "g") == 9 * MIB
    there.rmdir("g/mon_groups/b")
    assert total(there, "g") == 4 * MIB
    there.rename("g/mon_groups/a", "mon_groups/a")
    assert total(there, "g") == MIB
    assert total(there, "mon_groups/a") == 3 * MIB


def test_texts_in_place_of_numbers():
    there = model()
    there.mkdir("g")
    there.mkdir("g/mon_groups/m")
    for text in ("Unavailable", "Error", "Unassigned"):
        there.say("g/mon_groups/m", 0, "mbm_total_bytes", text, times=1)
        assert there.read("g/mon_groups/m/mon_data/mon_L3_00/mbm_total_bytes") == f"{text}\n"
    assert total(there, "g/mon_groups/m") == 0
    there.count("g", 0, "mbm_total_bytes", MIB)
    there.say("g/mon_groups/m", 0, "mbm_total_bytes", "Unavailable")
    assert total(there, "g") == MIB
    there.say("g", 0, "mbm_total_bytes", "Error")
    assert there.read("g/mon_data/mon_L3_00/mbm_total_bytes") == "Error\n"


def test_amd_has_no_data_at_the_first_read_of_a_new_id():
    there = model("amd-rome")
    there.mkdir("g")
    path = "g/mon_data/mon_L3_16/mbm_local_bytes"
    assert [there.read(path), there.read(path)] == ["Unavailable\n", "0\n"]


def test_a_used_id_starts_at_zero():
    there = model("few-rmids")
    for _ in range(5):
        there.mkdir("g")
        assert total(there, "g") == 0
        there.count("g", 0, "mbm_total_bytes", 5 * MIB)
        assert total(there, "g") == 5 * MIB
        there.rmdir("g")
        there.clock.advance(1.0)


def test_event_configuration_zeroes_the_domain():
    there = model("bmec")
    there.mkdir("g")
    there.count("g", 0, "mbm_total_bytes", MIB)
    there.count("g", 16, "mbm_total_bytes", MIB)
    for domain in ("00", "16"):
        there.read(f"g/mon_data/mon_L3_{domain}/mbm_total_bytes")
    write(there, "info/L3_MON/mbm_local_bytes_config", "0=0x7f\n")
    assert there.read("info/L3_MON/mbm_local_bytes_config").startswith("0=0x7f;1=0x15;")
    path = "g/mon_data/mon_L3_00/mbm_total_bytes"
    assert [there.read(path), there.read(path)] == ["Unavailable\n", "0\n"]
    assert total(there, "g", "16") == MIB
    write(there, "info/L3_MON/mbm_local_bytes_config", "0=0x7f\n")
    assert there.read(path) == "0\n"


def test_snc_sums_its_parts():
    there = model("snc")
    assert set(there.list("mon_data/mon_L3_01")) == {
        "llc_occupancy",
        "mbm_total_bytes",
        "mbm_local_bytes",
        "mon_sub_L3_02",
        "mon_sub_L3_03",
    }
    there.count("", 2, "mbm_total_bytes", MIB)
    there.count("", 3, "mbm_total_bytes", 2 * MIB)
    assert total(there, "", "01") == 3 * MIB
    assert there.read("mon_data/mon_L3_01/mon_sub_L3_03/mbm_total_bytes") == f"{2 * MIB}\n"


def test_files_and_directories_that_no_one_knows():
    there = model("new-events")
    assert there.read("mon_data/mon_L3_00/xxx_new_metric") == "1234\n"
    assert there.read("mon_data/mon_PERF_PKG_00/core_energy") == "21.478363\n"


def test_a_domain_goes_away():
    there = model()
    opened = there.open("mon_data/mon_L3_01/llc_occupancy")
    there.take_domain(1)
    assert set(there.list("mon_data")) == {"mon_L3_00"}
    assert fails(opened.read) == "ENOENT"
    assert there.read("schemata") == "    MB:0=100\n    L3:0=fffff\n"


def test_assignable_counters_run_out():
    there = model("abmc")
    mode = "info/L3_MON/mbm_assign_mode"
    assert there.read(mode) == "[mbm_event]\ndefault\n"
    assert there.read("mbm_L3_assignments") == "mbm_total_bytes:0=e;1=e\nmbm_local_bytes:0=e;1=e\n"
    assert there.read("info/L3_MON/available_mbm_cntrs") == "0=30;1=30\n"
    for number in range(16):
        there.mkdir(f"mon_groups/m{number}")
    assert there.read("info/L3_MON/available_mbm_cntrs") == "0=0;1=0\n"
    assert there.read("mon_groups/m15/mon_data/mon_L3_00/mbm_total_bytes") == "Unassigned\n"
    assert there.read("mon_groups/m15/mon_data/mon_L3_00/llc_occupancy") == "0\n"
    assert fails(write, there, "mon_groups/m15/mbm_L3_assignments", "mbm_total_bytes:0=e\n") == "ENOSPC"
    write(there, "mon_groups/m0/mbm_L3_assignments", "mbm_total_bytes:0=_\n")
    write(there, "mon_groups/m15/mbm_L3_assignments", "mbm_total_bytes:0=e\n")
    assert there.read("mon_groups/m15/mbm_L3_assignments") == "mbm_total_bytes:0=e;1=_\nmbm_local_bytes:0=_;1=_\n"
    assert there.read("mon_groups/m15/mon_data/mon_L3_00/mbm_total_bytes") == "0\n"
    assert there.read("mon_groups/m0/mon_data/mon_L3_00/mbm_total_bytes") == "Unassigned\n"
    write(there, "mon_groups/m1/mbm_L3_assignments", "mbm_total_bytes:*=_\nmbm_local_bytes:*=_\n")
    assert there.read("info/L3_MON/available_mbm_cntrs") == "0=2;1=2\n"
    there.rmdir("mon_groups/m2")
    assert there.read("info/L3_MON/available_mbm_cntrs") == "0=4;1=4\n"


def test_without_the_mode_counter_files_fail_on_read():
    there = model("abmc")
    assert "mbm_total_bytes_config" not in there.list("info/L3_MON")
    write(there, "info/L3_MON/mbm_assign_mode", "default\n")
    assert there.read("info/L3_MON/mbm_assign_mode") == "mbm_event\n[default]\n"
    for path in ("available_mbm_cntrs", "event_configs/mbm_total_bytes/event_filter", "mbm_assign_on_mkdir"):
        assert fails(there.read, f"info/L3_MON/{path}") == "EINVAL"
    assert status(there) == "mbm_event counter assignment mode is not enabled\n"
    assert "mbm_total_bytes_config" in there.list("info/L3_MON")
    assert there.read("mon_data/mon_L3_00/mbm_total_bytes") == "Unavailable\n"


def test_event_filters_and_assignment_at_mkdir():
    there = model("abmc")
    path = "info/L3_MON/event_configs/mbm_local_bytes/event_filter"
    assert there.read(path) == "local_reads,local_non_temporal_writes,local_reads_slow_memory\n"
    write(there, path, "local_reads,remote_reads\n")
    assert there.read(path) == "local_reads,remote_reads\n"
    assert fails(write, there, path, "all\n") == "EINVAL"
    assert status(there) == "Invalid memory transaction type all\n"
    write(there, "info/L3_MON/mbm_assign_on_mkdir", "0")
    there.mkdir("g")
    assert there.read("g/mbm_L3_assignments") == "mbm_total_bytes:0=_;1=_\nmbm_local_bytes:0=_;1=_\n"
    assert fails(write, there, "g/mbm_L3_assignments", "llc_occupancy:0=e\n") == "ENOENT"
    assert fails(write, there, "g/mbm_L3_assignments", "mbm_total_bytes:7=e\n") == "EINVAL"
    assert fails(write, there, "g/mbm_L3_assignments", "mbm_total_bytes:0=x\n") == "EINVAL"


def test_reading_a_counter_file_clears_the_status():
    there = model("abmc")
    assert fails(write, there, "mode", "x\n") == "EINVAL"
    there.read("info/L3_MON/available_mbm_cntrs")
    assert status(there) == "ok\n"


def test_io_alloc_takes_the_highest_class():
    there = model("abmc")
    assert fails(there.read, "info/L3/io_alloc_cbm") == "EINVAL"
    assert status(there) == "io_alloc is not enabled on L3\n"
    write(there, "info/L3/io_alloc", "1")
    assert there.read("info/L3/io_alloc") == "enabled\n"
    write(there, "info/L3/io_alloc_cbm", "0=f\n")
    assert there.read("info/L3/io_alloc_cbm") == "0=f;1=ffff\n"
    for number in range(14):
        there.mkdir(f"g{number}")
    assert fails(there.mkdir, "one-more") == "ENOSPC"
    write(there, "info/L3/io_alloc", "0")
    there.mkdir("one-more")
    assert fails(write, there, "info/L3/io_alloc", "1") == "ENOSPC"
    assert status(there) == "CLOSID (ctrl_hw_id) 15 for io_alloc is used by one-more group\n"


@pytest.mark.parametrize(
    ("change", "error", "line"),
    [
        ({"io_alloc": False}, "ENODEV", "io_alloc is not supported on L3"),
        ({"num_closids": 32}, "EINVAL", "io_alloc CLOSID (ctrl_hw_id) 31 is not available"),
    ],
)
def test_io_alloc_that_cannot_be(change, error, line):
    profile = PROFILES["abmc"]
    there = model(replace(profile, caches=(replace(profile.caches[0], **change),)))
    assert fails(write, there, "info/L3/io_alloc", "1") == error
    assert status(there) == f"{line}\n"
    assert fails(write, there, "info/L3/io_alloc", "maybe") == "EINVAL"
    assert status(there) == f"{line}\n"


def test_io_alloc_keeps_code_and_data_equal():
    there = model("abmc", options={"cdp"})
    write(there, "info/L3CODE/io_alloc", "1")
    write(there, "info/L3CODE/io_alloc_cbm", "0=3c\n")
    assert there.read("info/L3DATA/io_alloc_cbm") == "0=3c;1=ffff\n"


# hardware


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


masks = st.text(alphabet="0123456789abcdefx ;=:\nL3MB", max_size=40)


@settings(max_examples=150, deadline=None)
@given(masks, st.sampled_from(["intel-2s", "amd-rome", "haswell", "cdp"]))
def test_any_text_is_taken_or_refused_and_never_half_applied(text, profile):
    there = model(profile)
    there.mkdir("g")
    before = there.read("g/schemata")
    refused = None
    try:
        write(there, "g/schemata", text)
    except ResctrlError as error:
        refused = error.symbol
    assert refused in {None, "EINVAL"}
    assert refused is None or there.read("g/schemata") == before


@given(st.integers(0, 2**20 - 1))
def test_the_first_run_is_the_lowest_contiguous_part(mask):
    run = first_run(mask)
    assert run & ~mask == 0
    digits = f"{mask:b}".rstrip("0")
    assert run.bit_count() == len(digits) - len(digits.rstrip("1"))


@given(st.lists(st.sampled_from(["make a", "make b", "remove a", "remove b", "exclusive a", "share a", "small b"])))
def test_exclusive_groups_are_never_overlapped(steps):
    there = model("no-mba")
    write(there, "schemata", "L3:0=3f000;1=3f000\n")
    actions = {
        "make": lambda name: (there.mkdir(name), write(there, f"{name}/schemata", "L3:0=ff;1=ff\n")),
        "remove": there.rmdir,
        "exclusive": lambda name: write(there, f"{name}/mode", "exclusive\n"),
        "share": lambda name: write(there, f"{name}/mode", "shareable\n"),
        "small": lambda name: write(there, f"{name}/schemata", "L3:0=f00;1=f00\n"),
    }
    for step in steps:
        action, name = step.split()
        try:
            actions[action](name)
        except ResctrlError:
            continue
        groups = {"": int(lines(there)["L3"]["0"], 16)}
        groups |= {
            name: int(lines(there, f"{name}/schemata")["L3"]["0"], 16) for name in ("a", "b") if name in there.list("")
        }
        for name in groups.keys() - {""}:
            if there.read(f"{name}/mode") == "exclusive\n":
                assert all(groups[name] & mask == 0 for other, mask in groups.items() if other != name)


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
