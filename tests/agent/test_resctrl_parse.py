"""Texts of resctrl: what they say, and that junk is an error and never a wrong number. Rows of kernel.md section 6."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.resctrl import parse
from slacktide.errors import Refused

SPARSE = [*range(8), *range(16, 24)]


def test_row_1_domain_ids_with_a_hole_are_all_there():
    cache = ";".join(f"{domain}=ffff" for domain in SPARSE)
    bandwidth = ";".join(f"{domain}=2048" for domain in SPARSE)
    values = parse.schemata(f"L3:{cache}\nMB:{bandwidth}\n", "schemata")
    assert list(values["L3"]) == SPARSE
    assert set(values["L3"].values()) == {0xFFFF}
    assert list(values["MB"]) == SPARSE
    assert set(values["MB"].values()) == {2048}


def test_row_2_a_name_is_split_at_the_colon_and_l3_does_not_eat_l3code():
    values = parse.schemata("L3CODE:0=fffff;1=ffff0\nL3DATA:0=fffff;1=fffff\n", "schemata")
    assert values == {"L3CODE": {0: 0xFFFFF, 1: 0xFFFF0}, "L3DATA": {0: 0xFFFFF, 1: 0xFFFFF}}


def test_row_4_padded_names_and_values_and_mbps_without_a_limit():
    values = parse.schemata("    MB:0=  100;1=  100\n    L2:0=0ffff;1=0ffff\n", "schemata")
    assert values == {"MB": {0: 100, 1: 100}, "L2": {0: 0xFFFF, 1: 0xFFFF}}
    assert parse.schemata("MB:0=4294967295\n", "schemata") == {"MB": {0: 4294967295}}


def test_the_order_of_lines_means_nothing():
    assert parse.schemata("MB:0=10\nL3:0=f\n", "x") == parse.schemata("L3:0=f\nMB:0=10\n", "x")


def test_a_cache_value_is_hexadecimal_and_a_bandwidth_is_decimal():
    assert parse.schemata("L3:0=10\nMB:0=10\nSMBA:0=16\n", "x") == {"L3": {0: 16}, "MB": {0: 10}, "SMBA": {0: 16}}


def test_resources_of_later_kernels_and_groups_to_be_locked_are_left_out():
    assert parse.schemata("L4:0=whatever it is\nL3:uninitialized\nMB:0=20;\n", "x") == {"MB": {0: 20}}


def test_a_resource_whose_domains_are_all_gone_has_none():
    assert parse.schemata("L3:\nMB:0=10\n", "x") == {"L3": {}, "MB": {0: 10}}


@pytest.mark.parametrize(
    "text",
    [
        "L3",
        "L3:0",
        "L3: 0=f\nL3:0=f",
        "L3:0=f;0=f",
        "L3:x=f",
        "L3:0=zz",
        "L3:0=-1",
        "L3:0=1f ff",
        "L3:0=f;;1=f",
        "MB:0=abc",
        "MB:0=1e2",
        "MB:0=0x10",
        "MB:0=99999999999999999999",
        "MB:0=\u0661",
        "\0\0\0",
        "=",
    ],
)
def test_junk_in_schemata_is_refused(text):
    with pytest.raises(Refused):
        parse.schemata(text, "/sys/fs/resctrl/schemata")


@given(st.text(max_size=200))
def test_any_text_is_numbers_or_an_error(text):
    for read in (parse.schemata, parse.mask, parse.number, parse.event, parse.exclusive_bits, parse.tasks):
        try:
            read(text, "x")
        except Refused:
            continue


@given(st.dictionaries(st.integers(0, 300), st.integers(0, (1 << 32) - 1), min_size=1))
def test_what_is_printed_is_read_back(values):
    line = ";".join(f"{domain}={value:>5x}" for domain, value in values.items())
    assert parse.schemata(f"  L3:{line}\n", "x") == {"L3": values}


def test_masks_with_groups_are_compared_as_numbers():
    assert parse.mask("00000000,0000000f\n", "cpus") == parse.mask("f", "cpus") == parse.mask("0xF", "cpus") == 15
    assert parse.mask("1,00000000", "cpus") == 1 << 32


@pytest.mark.parametrize("text", ["", "1,0", "1,,00000000", "1 00000000", "g", "0x", ",f"])
def test_a_mask_of_another_form_is_refused(text):
    with pytest.raises(Refused):
        parse.mask(text, "cpus")


@pytest.mark.parametrize("word", ["Unavailable", "Error", "Unassigned"])
def test_row_6_words_in_place_of_a_number_are_no_number_and_say_why(word):
    value, why = parse.event(f"{word}\n", "mbm_total_bytes")
    assert value is None
    assert word in why


def test_counters_are_whole_numbers_of_64_bits():
    assert parse.event("18446744073709551615\n", "x") == (18446744073709551615, "")
    for text in ("18446744073709551616", "21.478363", "-1", "", "unavailable", "1\n2"):
        with pytest.raises(Refused):
            parse.event(text, "x")


def test_bit_usage_prints_the_highest_bit_first():
    assert parse.exclusive_bits("0=XXSSSSSSSSSSSSSSSSSX;1=HH00SSSSSSSS0000000H\n", "x") == {0: 0, 1: 0}
    assert parse.exclusive_bits("0=EE00;16=SSPE\n", "x") == {0: 0b1100, 16: 0b0011}
    with pytest.raises(Refused):
        parse.exclusive_bits("0=SSQS", "x")


def test_tasks_never_hold_the_zero_of_a_foreign_pid_namespace():
    assert parse.tasks("0\n17\n0\n4\n", "tasks") == {4, 17}
