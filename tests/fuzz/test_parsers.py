"""Pure parsers: whatever they are given, they answer with what stands there, with nothing, or with a KernelError."""

from __future__ import annotations

import pytest
from hypothesis import given

from agent.counters import IoReading, PsiTotals
from agent.host import parse, psi
from agent.host.confines import cpu_list
from agent.host.io import parse_v1, parse_v2
from agent.host.podof import uid_in
from agent.host.resctrl import parse as resctrl
from agent.host.schedstat import _times
from agent.threads import parse_cpus
from slacktide.errors import KernelError
from slacktide.kernel.files import parse_flat
from slacktide.kernel.kubepods import container_id, pod_uid, stray
from tests.fuzz.inputs import CONTENT, FUZZ, TEXT, numbers_in


def answered(call, *arguments):
    """The answer, or None where it was refused in the way that is agreed."""
    try:
        return call(*arguments)
    except KernelError:
        return None


@FUZZ
@given(CONTENT)
def test_a_number_is_one_that_stands_there(data):
    for call in (parse.number, parse.limit):
        found = answered(call, data, "file")
        assert found is None or abs(found) in numbers_in(data)
        assert found is None or data.strip().lstrip(b"-").isdigit()


@FUZZ
@given(CONTENT)
def test_counts_by_key_stand_behind_their_key(data):
    for found in (parse.flat(data), parse.pairs(data.split())):
        assert all(value >= 0 and value in numbers_in(data) for value in found.values())
        assert len(found) <= len(data)


@FUZZ
@given(CONTENT)
def test_one_key_is_found_as_all_keys_are(data):
    for key in (b"total_inactive_file", b"oom_kill", b"nr_periods"):
        found = parse.count_of(data, key)
        assert found is None or found in numbers_in(data)
        lines = [line for line in data.split(b"\n") if line.startswith(key + b" ")]
        assert found is None or lines
        if lines and lines[0].count(b" ") == 1 and lines[0][len(key) + 1 :].isdigit() and len(lines[0]) < 40:
            assert found == int(lines[0][len(key) + 1 :])


@FUZZ
@given(TEXT)
def test_the_runners_parser_of_flat_files_knows_the_same(text):
    found = parse_flat(text)
    assert all(abs(value) in numbers_in(text.encode()) for value in found.values())


@FUZZ
@given(CONTENT)
def test_pressure_is_a_total_that_stands_there(data):
    found = psi.parse(data)
    assert found == psi.parse(data.decode("utf-8", "surrogateescape").encode("utf-8", "surrogateescape"))
    if found is not None:
        assert isinstance(found, PsiTotals)
        assert b"total=" in data
        assert found.some_us in numbers_in(data)
        assert found.full_us is None or found.full_us in numbers_in(data)


@FUZZ
@given(CONTENT, CONTENT)
def test_io_is_a_sum_of_what_stands_there(data, other):
    for found in (parse_v2(data, 1.0), parse_v1(data, other, 1.0)):
        if found is None:
            continue
        assert isinstance(found, IoReading)
        values = (found.read_bytes, found.write_bytes, found.read_operations, found.write_operations)
        most = sum(numbers_in(data) | {0}) * max(1, len(data)) + sum(numbers_in(other) | {0}) * max(1, len(other))
        assert all(0 <= value <= most for value in values)


@FUZZ
@given(CONTENT)
def test_a_cpu_list_in_canonical_form_or_none(data):
    found = cpu_list(data)
    if found is not None:
        assert parse_cpus(found)
        assert cpu_list(found.encode()) == found
        assert max(parse_cpus(found)) < 100_000


@FUZZ
@given(CONTENT)
def test_times_of_a_thread_are_two_numbers_or_none(data):
    found = _times(data)
    assert found is None or all(value in numbers_in(data) for value in found)


@FUZZ
@given(TEXT)
def test_names_give_a_pod_or_container_only_where_one_is_named(text):
    for name in (text, *text.split("/"), *text.split()):
        uid, leaf, outside = pod_uid(name), container_id(name), stray(name)
        assert uid is None or (len(uid) in {32, 36} and "/" not in uid)
        assert leaf is None or len(leaf) in {32, 64}
        assert outside is None or ":" in name
    found = uid_in(text)
    assert found is None or "pod" in text


@pytest.mark.parametrize("call", [resctrl.number, resctrl.mask, resctrl.schemata, resctrl.event, resctrl.tasks])
@FUZZ
@given(text=TEXT)
def test_resctrl_gives_numbers_of_64_bits_or_refuses(call, text):
    found = answered(call, text, "file")
    if isinstance(found, int):
        assert found >= 0
    if isinstance(found, frozenset):
        assert found <= numbers_in(text.encode())


@FUZZ
@given(TEXT)
def test_bits_that_are_somebodys_are_not_more_than_there_are_letters(text):
    for bits in (answered(resctrl.exclusive_bits, text, "file") or {}).values():
        assert 0 <= bits < 1 << len(text)
