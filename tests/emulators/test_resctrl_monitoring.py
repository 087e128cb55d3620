"""Counters: sums, texts in place of numbers, event configuration, assignable counters, io_alloc. Kernel part 1.6."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.emulators.machines import fails, model, status, total, write
from tests.emulators.resctrl import PROFILES
from tests.emulators.resctrl.control import Commands
from tests.emulators.resctrl.profiles import MIB


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
