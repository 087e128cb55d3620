"""What a mount of resctrl offers, read from plain directories: every part can be missing, wrong or somebody else's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.act.resctrl import RdtWriter
from agent.host.resctrl import monitor
from agent.host.resctrl.groups import RdtTree, is_ours
from agent.host.resctrl.monitor import Sample, less, read_group, summed, with_rates
from agent.host.resctrl.mount import RdtMount, RdtPlaces, find_mount, read_offer
from agent.resctrl import BandwidthUnit, RdtGroupReading
from slacktide.errors import Gone, KernelError, Refused

EVENTS = frozenset({"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"})


def tree(base, files):
    for name, text in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return RdtMount(str(base), frozenset({"rw"}))


INTEL = {
    "schemata": "    L3:0=fffff;1=fffff\n    MB:0=  100;1=  100\n",
    "info/last_cmd_status": "ok\n",
    "info/L3/cbm_mask": "fffff\n",
    "info/L3/min_cbm_bits": "1\n",
    "info/L3/num_closids": "16\n",
    "info/L3/shareable_bits": "c0000\n",
    "info/L3/bit_usage": "0=XXSSSSSSSSSSSSSSSSSS;1=XXSSSSSSSSSSSSSSSSSS\n",
    "info/MB/min_bandwidth": "10\n",
    "info/MB/bandwidth_gran": "10\n",
    "info/MB/delay_linear": "1\n",
    "info/MB/num_closids": "8\n",
    "info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
    "info/L3_MON/num_rmids": "224\n",
}


def test_a_mount_is_found_by_its_type_and_place(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "resctrl /not/it tmpfs rw 0 0\nresctrl /sys/fs/res\\040ctrl resctrl rw,cdp,mba_MBps 0 0\n"
        "resctrl /host/resctrl resctrl ro 0 0\n\0\njunk\n"
    )
    assert find_mount(RdtPlaces(mounts=str(mounts))) == RdtMount(
        "/sys/fs/res ctrl", frozenset({"rw", "cdp", "mba_MBps"})
    )
    found = find_mount(RdtPlaces(mounts=str(mounts), path="/host/resctrl/"))
    assert found is not None
    assert found.options == {"ro"}
    assert find_mount(RdtPlaces(mounts=str(mounts), path="/elsewhere")) is None


def test_the_whole_offer(tmp_path):
    offer = read_offer(tree(tmp_path, INTEL))
    assert offer.notes == ()
    (cache,) = offer.info.caches
    assert (cache.full_mask, cache.min_bits, cache.sparse, cache.shareable) == (0xFFFFF, 1, False, 0xC0000)
    assert cache.domains == {0, 1}
    assert offer.info.bandwidth is not None
    assert offer.info.bandwidth.unit is BandwidthUnit.PERCENT
    assert offer.info.monitors == EVENTS
    assert offer.info.closids == 7


@pytest.mark.parametrize(
    ("name", "text", "lost"),
    [
        ("info/L3/cbm_mask", "0\n", "L3"),
        ("info/L3/cbm_mask", "f0\n", "L3"),
        ("info/L3/cbm_mask", b"\xff\x00\x01", "L3"),
        ("info/L3/cbm_mask", "", "L3"),
        ("info/L3/min_cbm_bits", "21\n", "L3"),
        ("info/L3/min_cbm_bits", "many\n", "L3"),
        ("info/L3/num_closids", "9" * 5000, "L3"),
        ("info/L3/bit_usage", "0=??????\n", "L3"),
        ("info/MB/bandwidth_gran", "0\n", "MB"),
        ("info/MB/min_bandwidth", "101\n", "MB"),
        ("info/MB/num_closids", "-1\n", "MB"),
        ("info/MB/delay_linear", "0\n", "MB"),
    ],
)
def test_a_part_that_reads_wrong_is_left_alone_with_a_reason_and_the_rest_is_offered(tmp_path, name, text, lost):
    offer = read_offer(tree(tmp_path, {**INTEL, name: text}))
    assert [note for note in offer.notes if note.startswith(f"{lost} is left alone")]
    assert ([cache.name for cache in offer.info.caches] == []) is (lost == "L3")
    assert (offer.info.bandwidth is None) is (lost == "MB")


@pytest.mark.parametrize("name", [name for name in INTEL if name != "info/last_cmd_status"])
@pytest.mark.parametrize("text", [b"", b"\x00\xff\xfe" * 100, b"x" * 100_000, b"1" * 30, b"-1\n", b"\n\n\n"])
def test_junk_anywhere_is_no_crash_and_no_number(tmp_path, name, text):
    mount = tree(tmp_path, {**INTEL, name: text})
    try:
        offer = read_offer(mount)
    except KernelError:
        return
    for cache in offer.info.caches:
        assert cache.full_mask > 0
        assert cache.min_bits <= cache.full_mask.bit_count()
    if offer.info.bandwidth is not None:
        assert 0 < offer.info.bandwidth.granularity <= offer.info.bandwidth.maximum


def test_mbps_shows_in_the_options_and_absolute_units_in_the_values(tmp_path):
    mount = tree(tmp_path, {**INTEL, "schemata": "L3:0=fffff\nMB:0=4294967295\n"})
    mbps = read_offer(RdtMount(mount.path, frozenset({"mba_MBps"}))).info.bandwidth
    assert mbps is not None
    assert (mbps.unit, mbps.maximum, mbps.granularity) == (BandwidthUnit.MEBIBYTES, 4294967295, 1)
    amd = {"info/MB/min_bandwidth": "0", "info/MB/bandwidth_gran": "1", "info/MB/delay_linear": "0"}
    for line, most in (("MB:0=2048", 2048), ("MB:0=64", 2048), ("MB:0=4096;1=16", 4096)):
        found = read_offer(tree(tmp_path, {**INTEL, **amd, "schemata": f"L3:0=f\n{line}\n"})).info.bandwidth
        assert found is not None
        assert (found.unit, found.maximum, found.per_thread) == (BandwidthUnit.EIGHTH_GIGABYTES, most, True)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("slacktide", True),
        ("slacktide-be", True),
        ("slacktide-old", True),
        ("slacktidex", False),
        ("slacktide_be", False),
        ("Slacktide-be", False),
        ("x-slacktide-be", False),
        ("", False),
    ],
)
def test_only_names_of_our_own_are_ours(name, ours):
    assert is_ours(name) is ours


@pytest.mark.parametrize(
    "group", ["", "COS1", "slacktidex", "../slacktide-be", "slacktide-be/../COS1", "slacktide-be/mon_groups/x", "info"]
)
def test_groups_that_are_not_ours_are_refused_before_any_call(tmp_path, group):
    rdt = RdtTree(str(tmp_path))
    for act in (rdt.make, rdt.remove, lambda name: rdt.write_schemata(name, "L3:0=f\n"), rdt.drop_cpus):
        with pytest.raises(Refused):
            act(group)
    if group:
        with pytest.raises(Refused):
            rdt.attach(group, [1])
    assert list(tmp_path.iterdir()) == []


def test_zero_is_never_written_since_it_is_the_writer_itself(tmp_path):
    tree(tmp_path, {"slacktide-be/tasks": ""})
    attached = RdtTree(str(tmp_path)).attach("slacktide-be", [0, -1])
    assert attached.moved == 0
    assert len(attached.refused) == 2
    assert (tmp_path / "slacktide-be/tasks").read_text() == ""


def test_a_link_in_place_of_a_group_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/schemata").write_text("")
    (tmp_path / "slacktide-be").symlink_to(tmp_path / "elsewhere")
    rdt = RdtTree(str(tmp_path))
    assert rdt.groups().classes == {"elsewhere"}
    assert not rdt.has("slacktide-be")
    with pytest.raises(KernelError):
        rdt.write_schemata("slacktide-be", "L3:0=f\n")
    assert (tmp_path / "elsewhere/schemata").read_text() == ""


def test_counters_are_read_by_domain_and_unknown_events_and_directories_skipped(tmp_path):
    tree(
        tmp_path,
        {
            "mon_data/mon_L3_00/llc_occupancy": "1000\n",
            "mon_data/mon_L3_00/mbm_total_bytes": "Unavailable\n",
            "mon_data/mon_L3_00/xxx_new_metric": "1.5\n",
            "mon_data/mon_L3_00/mon_sub_L3_01/llc_occupancy": "500\n",
            "mon_data/mon_L3_16/llc_occupancy": "2000\n",
            "mon_data/mon_L3_16/mbm_total_bytes": "12junk\n",
            "mon_data/mon_PERF_PKG_00/core_energy": "21.478363\n",
        },
    )
    reading = read_group(str(tmp_path), EVENTS, 5.0)
    assert reading.occupancy_bytes == {0: 1000, 16: 2000}
    assert reading.total_bytes == {0: None, 16: None}
    assert reading.local_bytes == {}
    assert "no data" in reading.missing["mbm_total_bytes of domain 0"]
    assert "12junk" in reading.missing["mbm_total_bytes of domain 16"]
    with pytest.raises(Gone):
        read_group(str(tmp_path / "gone"), EVENTS, 5.0)


def sample(at, total, children=()):
    return Sample(reading=RdtGroupReading(at=at, total_bytes=total), children=frozenset(children))


@given(
    st.floats(0, 100),
    st.floats(0, 100),
    st.dictionaries(st.integers(0, 3), st.none() | st.integers(0, 1 << 64)),
    st.dictionaries(st.integers(0, 3), st.none() | st.integers(0, 1 << 64)),
)
def test_a_rate_is_never_negative_nor_over_a_gap(one, other, before, after):
    found = with_rates(sample(one, before), sample(other, after), 6.0).reading.rates
    assert set(found) == set(after)
    for domain, rate in found.items():
        old, new = before.get(domain), after[domain]
        if rate is None:
            assert old is None or new is None or new < old or not 0 < other - one <= 6
        else:
            assert rate >= 0


def test_a_sum_with_a_hole_is_not_known():
    assert summed({0: 1, 1: 2}) == 3
    assert summed({0: 1, 1: None}) is None
    assert summed({}) is None


def test_a_part_is_taken_out_of_the_whole_and_never_below_nothing():
    whole = RdtGroupReading(at=1, occupancy_bytes={0: 10, 1: 5, 2: None}, rates={0: 4.0, 1: 1.0})
    part = RdtGroupReading(at=1, occupancy_bytes={0: 4, 1: 6, 2: 1}, rates={0: 1.0, 1: None})
    left = less(whole, part)
    assert left.occupancy_bytes == {0: 6, 1: 0, 2: None}
    assert left.rates == {0: 3.0, 1: None}


def test_where_only_local_traffic_is_counted_it_stands_for_the_total():
    local = RdtGroupReading(at=1, local_bytes={0: 7})
    assert monitor.traffic(local) == {0: 7}


def test_a_mount_without_anything_is_told_and_not_touched(tmp_path):
    base = tmp_path / "empty"
    base.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"resctrl {base} resctrl rw 0 0\n")
    writer = RdtWriter(RdtPlaces(mounts=str(mounts)), None)
    assert "info" in writer.look().problem
    assert list(base.iterdir()) == []
