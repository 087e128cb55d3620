"""Values: reads of every machine, rounding, overlap, pseudo-locking. Kernel reference 1.3; lines: golden.json."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.machines import exclusive, fails, lines, model, status, write
from tests.emulators.resctrl import PROFILES, ResctrlError
from tests.emulators.resctrl.schemata import first_run


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


TEXTS = st.text(alphabet="0123456789abcdefx ;=:\nL3MB", max_size=40)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from(["intel-2s", "amd-rome", "haswell", "cdp"]))
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
