"""Values for a class of resctrl: whatever the machine, what we write is what the (emulated) kernel takes and holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.host.resctrl import parse
from agent.policy.rdt_shares import bandwidth_values, cache_values, no_larger, why_no_bandwidth
from agent.resctrl import BandwidthControl, BandwidthUnit, CacheControl, RdtInfo, Schemata
from agent.schemata import (
    BANDWIDTH,
    BLOCK_BYTES,
    as_held,
    blocks,
    completed,
    difference,
    low_ways,
    open_values,
    problems,
    runs,
)
from agent.topology import Cpu, Topology, flat
from tests.emulators.resctrl import FakeHost, Model, Profile
from tests.emulators.resctrl.profiles import MIB, Bandwidth, Cache

ids = st.sets(st.integers(0, 40), min_size=1, max_size=6).map(lambda found: tuple(sorted(found)))


def cache(bits=20, min_bits=1, shareable=0, sparse=False, domains=(0, 1), name="L3", exclusive=None):
    return CacheControl(
        name=name,
        full_mask=(1 << bits) - 1,
        min_bits=min_bits,
        sparse=sparse,
        shareable=shareable,
        closids=16,
        domains=frozenset(domains),
        exclusive=exclusive or {},
    )


def bandwidth(unit=BandwidthUnit.PERCENT, domains=(0, 1), **more):
    shape = {
        BandwidthUnit.PERCENT: (10, 100, 10),
        BandwidthUnit.MEBIBYTES: (1, (1 << 32) - 1, 1),
        BandwidthUnit.EIGHTH_GIGABYTES: (0, 2048, 1),
    }[unit]
    values = dict(zip(("minimum", "maximum", "granularity"), shape, strict=True))
    facts = {"unit": unit, "closids": 8, "per_thread": False, "domains": frozenset(domains), **values, **more}
    return BandwidthControl(**facts)


@st.composite
def machines(draw):
    """A machine, and what an agent reads of it."""
    domains, bits = draw(ids), draw(st.integers(1, 32))
    sparse = draw(st.booleans())
    min_bits = draw(st.integers(0 if sparse else 1, min(bits, 4)))
    shareable = ((1 << bits) - 1) & ~((1 << draw(st.integers(0, bits))) - 1)
    cdp = draw(st.booleans())
    unit = draw(st.sampled_from([BandwidthUnit.PERCENT, BandwidthUnit.EIGHTH_GIGABYTES]))
    step = draw(st.sampled_from([1, 5, 10, 20])) if unit is BandwidthUnit.PERCENT else 1
    control = bandwidth(unit, domains, granularity=step, minimum=step if unit is BandwidthUnit.PERCENT else 0)
    profile = Profile(
        "drawn",
        "",
        8,
        (Cache("L3", domains, bits, 16, MIB, min_bits, shareable, sparse, cdp_capable=True),),
        (
            Bandwidth(
                "MB",
                domains,
                8,
                control.minimum,
                control.maximum,
                step,
                unit is BandwidthUnit.EIGHTH_GIGABYTES,
                needs_linear=unit is BandwidthUnit.PERCENT,
            ),
        ),
        options=("cdp",) if cdp else (),
    )
    names = ("L3CODE", "L3DATA") if cdp else ("L3",)
    caches = tuple(cache(bits, min_bits, shareable, sparse, domains, name) for name in names)
    return profile, RdtInfo(caches=caches, bandwidth=control)


def written(model, schemata):
    """Write as the actuator does; what the class holds afterwards."""
    for block in blocks(schemata):
        model.write("slacktide-be/schemata", block.encode())
    return Schemata(values=parse.schemata(model.read("slacktide-be/schemata"), "schemata"))


def wanted(info, percent, highest):
    values = cache_values(info, percent)
    if info.bandwidth is not None:
        values[BANDWIDTH] = bandwidth_values(info.bandwidth, percent, highest)
    return Schemata(values=values)


@given(machines(), st.lists(st.floats(0, 100), min_size=1, max_size=4), st.floats(0, 1e12))
@settings(deadline=None, max_examples=150)
def test_any_share_on_any_machine_is_taken_and_held(machine, percents, most):
    profile, info = machine
    model = Model(profile, host=FakeHost())
    model.mkdir("slacktide-be")
    highest = dict.fromkeys(info.caches[0].domains, most)
    for percent in percents:
        target = completed(wanted(info, percent, highest), info)
        assert problems(target, info) == []
        held = written(model, target)
        assert difference(target, held, info).values == {}
        assert held == as_held(target, info)
        assert all(mask for name, masks in held.values.items() if name != BANDWIDTH for mask in masks.values())
    assert written(model, completed(None, info)) == open_values(info)


@given(machines(), st.data())
@settings(deadline=None, max_examples=100)
def test_bits_of_exclusive_groups_are_never_asked_for(machine, data):
    profile, info = machine
    one = info.caches[0]
    bits, shared = one.full_mask.bit_count(), one.shareable
    least = max(1, one.min_bits)
    widths = ((1 << width) - 1 for width in range(least, bits + 1))
    masks = (width << start for width in widths for start in range(bits - width.bit_count() + 1))
    choices = [
        (mask, rest)
        for mask in masks
        if not mask & shared and (rest := [run for run in runs(one.full_mask & ~mask) if run.bit_count() >= least])
    ]
    assume(choices)
    mask, rest = data.draw(st.sampled_from(choices))
    model = Model(profile, host=FakeHost())
    model.mkdir("theirs")
    model.mkdir("slacktide-be")
    for path, value in (("", rest[0]), ("slacktide-be", rest[0]), ("theirs", mask)):
        for name in (cache.name for cache in info.caches):
            line = ";".join(f"{domain}={value:x}" for domain in one.domains)
            model.write(f"{path}/schemata", f"{name}:{line}\n".encode())
    model.write("theirs/mode", b"exclusive\n")
    caches = tuple(
        replace(cache, exclusive=parse.exclusive_bits(model.read(f"info/{cache.name}/bit_usage"), "bit_usage"))
        for cache in info.caches
    )
    info = replace(info, caches=caches)
    assert caches[0].exclusive == dict.fromkeys(one.domains, mask)
    for percent in (100, data.draw(st.floats(0, 100)), 1):
        target = completed(wanted(info, percent, {}), info)
        assert problems(target, info) == []
        assert difference(target, written(model, target), info).values == {}


@given(machines(), st.floats(0, 100), st.floats(0, 100), st.floats(0, 1e12))
def test_a_smaller_share_is_never_more(machine, one, other, most):
    _, info = machine
    highest = dict.fromkeys(info.caches[0].domains, most)
    less, more = (wanted(info, percent, highest).values for percent in sorted((one, other)))
    for name, values in less.items():
        for domain, value in values.items():
            if name == BANDWIDTH:
                assert value <= more[name][domain]
            else:
                assert value.bit_count() <= more[name][domain].bit_count()


@given(st.integers(1, 20), st.floats(0, 100))
def test_row_26_a_narrow_range_never_gives_an_empty_mask(bits, percent):
    """peer-koordinator.md section 10, row 26 and 3.8: eleven ways from 91 to 95 % gave no bit at all."""
    for cache_ in (cache(bits), cache(bits, min_bits=min(2, bits)), cache(bits, min_bits=0, sparse=True)):
        values = cache_values(RdtInfo(caches=(cache_,)), percent)
        assert all(mask > 0 and len(runs(mask)) == 1 for mask in values["L3"].values())
        assert all(mask.bit_count() >= cache_.min_bits for mask in values["L3"].values())
    assert cache_values(RdtInfo(caches=(cache(11, domains=(0,)),)), 4)["L3"] == {0: 1}


def test_row_26_sparse_ids_two_bits_at_least_and_steps_of_ten():
    domains = (*range(8), *range(16, 24))
    info = RdtInfo(caches=(cache(16, min_bits=2, domains=domains),), bandwidth=bandwidth(domains=domains))
    target = wanted(info, 5, {})
    assert target.values["L3"] == dict.fromkeys(domains, 0x3)
    assert target.values["MB"] == dict.fromkeys(domains, 10)
    assert problems(target, info) == []


def test_ways_come_from_the_low_end_and_miss_what_devices_share():
    assert low_ways(cache(20, shareable=0xC0000), 0, 5) == 0x1F
    assert low_ways(cache(20, shareable=0x3), 0, 5) == 0x7C
    assert low_ways(cache(4, shareable=0x3), 0, 3) == 0x7
    assert low_ways(cache(8, exclusive={0: 0x0F}), 0, 2) == 0x30
    assert low_ways(cache(8, exclusive={0: 0x0F}), 1, 2) == 0x3
    assert low_ways(cache(8, exclusive={0: 0x18}), 0, 6) == 0x7
    assert low_ways(cache(8, min_bits=4, exclusive={0: 0x18}), 0, 1) is None
    assert low_ways(cache(8, exclusive={0: 0xFF}), 0, 1) is None


def test_with_cdp_code_and_data_are_cut_alike_and_an_l2_beside_an_l3_is_not():
    info = RdtInfo(caches=tuple(cache(name=name) for name in ("L3CODE", "L3DATA", "L2")))
    assert cache_values(info, 25) == {"L3CODE": {0: 0x1F, 1: 0x1F}, "L3DATA": {0: 0x1F, 1: 0x1F}}
    assert cache_values(RdtInfo(caches=(cache(8, name="L2"),)), 25) == {"L2": {0: 0x3, 1: 0x3}}


def test_absolute_limits_are_of_what_was_measured_in_that_domain():
    highest = {0: 40 * (1 << 30), 1: 8 * (1 << 30)}
    amd = bandwidth(BandwidthUnit.EIGHTH_GIGABYTES, domains=(0, 1, 16))
    assert bandwidth_values(amd, 20, highest) == {0: 64, 1: 12}
    assert bandwidth_values(bandwidth(BandwidthUnit.MEBIBYTES), 20, highest) == {0: 8192, 1: 1638}
    assert bandwidth_values(amd, 20, {0: 1.0}) == {0: 1}
    assert bandwidth_values(amd, 100, {0: 1e15}) == {0: 2048}
    assert bandwidth_values(bandwidth(), 20, {}) == {0: 20, 1: 20}


SMT = Topology((Cpu(0, 0, 0, 0), Cpu(1, 0, 0, 0)))


@pytest.mark.parametrize(
    ("control", "topology", "limited"),
    [
        (bandwidth(), SMT, False),
        (bandwidth(), None, False),
        (bandwidth(), flat(4), True),
        (bandwidth(per_thread=True), SMT, True),
        (None, flat(4), False),
    ],
)
def test_be_is_not_throttled_where_that_would_throttle_ls_beside_it(control, topology, limited):
    assert (why_no_bandwidth(RdtInfo(bandwidth=control), topology) == "") is limited


def test_values_are_compared_by_what_they_give():
    held = Schemata(values={"L3": {0: 0xFF00, 1: 0x3}, "MB": {0: 40, 1: 40}})
    assert no_larger(held, held)
    assert no_larger(Schemata(values={"L3": {0: 0xFF}, "MB": {1: 30}}), held)
    assert not no_larger(Schemata(values={"L3": {1: 0x7}}), held)
    assert not no_larger(Schemata(values={"MB": {0: 50}}), held)
    assert not no_larger(Schemata(values={"L3": {7: 0x1}}), held)


def test_a_difference_is_found_by_id_and_by_the_rounded_value():
    info = RdtInfo(caches=(cache(domains=(0, 23)),), bandwidth=bandwidth(domains=(0, 23)))
    target = Schemata(values={"L3": {0: 0xF, 23: 0xF}, "MB": {0: 33, 23: 33}})
    held = Schemata(values={"L3": {0: 0xF, 23: 0xFF}, "MB": {0: 40, 23: 33}})
    assert difference(target, held, info).values == {"L3": {23: 0xF}, "MB": {23: 33}}
    assert difference(target, as_held(target, info), info).values == {}


@given(st.sets(st.integers(0, 2000), min_size=1, max_size=1500), st.integers(60, BLOCK_BYTES))
def test_blocks_are_whole_lines_below_a_page_that_say_everything(domains, limit):
    schemata = Schemata(values={"L3CODE": dict.fromkeys(domains, 0xFFFFF), "MB": dict.fromkeys(domains, 2048)})
    found: dict[str, dict[int, int]] = {}
    for block in blocks(schemata, limit):
        assert block.endswith("\n")
        assert len(block) <= limit
        for line in block.splitlines():
            for name, values in parse.schemata(line, "block").items():
                found.setdefault(name, {}).update(values)
    assert found == schemata.values
