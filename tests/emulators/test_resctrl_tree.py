"""What is there: mount options, files of every directory, info, budgets of classes. Kernel reference 1.1 and 1.2."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.emulators.machines import fails, lines, model, status, write
from tests.emulators.resctrl import PROFILES
from tests.emulators.resctrl.state import LastCommand


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
