from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.topology import REFRESH_SECONDS, TopologyReader, read_topology
from agent.topology import Cpu, Topology


class Sys:
    """A /sys with CPUs; each part can be left out."""

    def __init__(self, base: Path, online: str) -> None:
        self.base = base
        self.cpus = base / "devices/system/cpu"
        self.nodes = base / "devices/system/node"
        self.put(self.cpus / "online", online)

    @staticmethod
    def put(path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def siblings(self, cpus: str, *ids: int, name: str = "core_cpus_list") -> None:
        for cpu in ids:
            self.put(self.cpus / f"cpu{cpu}/topology/{name}", cpus)

    def cache(
        self, index: int, level: int, cpus: str, *ids: int, kind: str = "Unified", number: int | None = None
    ) -> None:
        for cpu in ids:
            directory = self.cpus / f"cpu{cpu}/cache/index{index}"
            self.put(directory / "level", level)
            self.put(directory / "type", kind)
            self.put(directory / "shared_cpu_list", cpus)
            if number is not None:
                self.put(directory / "id", number)

    def node(self, number: int, cpus: str) -> None:
        self.put(self.nodes / f"node{number}/cpulist", cpus)

    def read(self) -> tuple[Topology, str]:
        return read_topology(str(self.base))


def two_sockets(base: Path, online: str = "0-7") -> Sys:
    """2 sockets x 2 cores x 2 threads, numbered as Intel does: CPU n and n+4 are siblings."""
    sys = Sys(base, online)
    for cpu in range(4):
        sys.siblings(f"{cpu},{cpu + 4}", cpu, cpu + 4)
        sys.cache(0, 1, f"{cpu},{cpu + 4}", cpu, cpu + 4, kind="Data", number=cpu)
        sys.cache(1, 1, f"{cpu},{cpu + 4}", cpu, cpu + 4, kind="Instruction", number=cpu)
        sys.cache(2, 2, f"{cpu},{cpu + 4}", cpu, cpu + 4, number=cpu)
    sys.cache(3, 3, "0-1,4-5", 0, 1, 4, 5, number=0)
    sys.cache(3, 3, "2-3,6-7", 2, 3, 6, 7, number=1)
    sys.node(0, "0-1,4-5")
    sys.node(1, "2-3,6-7")
    return sys


def test_two_sockets_two_cores_two_threads(tmp_path):
    topology, why_not = two_sockets(tmp_path).read()
    assert why_not == ""
    assert topology.cpus == tuple(Cpu(cpu, cpu % 4, int(cpu % 4 >= 2), int(cpu % 4 >= 2)) for cpu in range(8))
    assert topology.smt
    assert topology.siblings(6) == {2, 6}


def test_amd_has_several_last_level_caches_a_node_with_sparse_ids(tmp_path):
    sys = Sys(tmp_path, "0-7")
    for cpu in range(8):
        sys.siblings(f"{cpu}", cpu)
        sys.cache(3, 3, "0-3" if cpu < 4 else "4-7", cpu, number=0 if cpu < 4 else 8)
    sys.node(0, "0-7")
    topology, why_not = sys.read()
    assert why_not == ""
    assert not topology.smt
    assert [cpu.llc for cpu in topology.cpus] == [0, 0, 0, 0, 8, 8, 8, 8]
    assert {cpu.numa for cpu in topology.cpus} == {0}


def test_a_cpu_off_line_is_in_no_core_and_its_sibling_has_one_of_its_own(tmp_path):
    sys = two_sockets(tmp_path, "1-7")
    topology, why_not = sys.read()
    assert why_not == ""
    assert topology.ids == set(range(1, 8))
    assert topology.siblings(4) == {4}
    assert next(cpu.core for cpu in topology.cpus if cpu.id == 4) == 4
    with pytest.raises(KeyError):
        topology.siblings(0)


def test_ids_with_holes(tmp_path):
    sys = Sys(tmp_path, "0,2,9-10")
    for cpu in (0, 2, 9, 10):
        sys.siblings("9-10" if cpu > 8 else str(cpu), cpu)
        sys.cache(2, 3, "0-10", cpu, number=3)
    sys.node(0, "0,2")
    sys.node(7, "9-10")
    topology, why_not = sys.read()
    assert why_not == ""
    assert topology.cpus == (Cpu(0, 0, 0, 3), Cpu(2, 2, 0, 3), Cpu(9, 9, 7, 3), Cpu(10, 9, 7, 3))


def test_older_kernels_name_the_siblings_differently_and_give_caches_no_id(tmp_path):
    sys = Sys(tmp_path, "0-3")
    for cpu in range(4):
        sys.siblings("0-1" if cpu < 2 else "2-3", cpu, name="thread_siblings_list")
        sys.cache(2, 2, "0-1" if cpu < 2 else "2-3", cpu)
    sys.node(0, "0-3")
    topology, why_not = sys.read()
    assert why_not == ""
    assert [(cpu.core, cpu.llc) for cpu in topology.cpus] == [(0, 0), (0, 0), (2, 2), (2, 2)]


def test_cores_without_l3_share_their_l2_and_no_two_caches_have_one_number(tmp_path):
    sys = Sys(tmp_path, "0-3")
    for cpu in range(4):
        sys.siblings(str(cpu), cpu)
    for cpu in (0, 1):
        sys.cache(2, 2, str(cpu), cpu, number=cpu)
        sys.cache(3, 3, "0-1", cpu, number=0)
    sys.cache(2, 2, "2-3", 2, 3, number=0)
    sys.node(0, "0-3")
    topology, why_not = sys.read()
    assert why_not == ""
    assert [cpu.llc for cpu in topology.cpus] == [0, 0, 2, 2]


def test_two_caches_with_the_same_id_stay_two(tmp_path):
    sys = Sys(tmp_path, "0-3")
    for cpu in range(4):
        sys.siblings(str(cpu), cpu)
        sys.cache(3, 3, "0-1" if cpu < 2 else "2-3", cpu, number=0)
    sys.node(0, "0-3")
    assert [cpu.llc for cpu in sys.read()[0].cpus] == [0, 0, 2, 2]


def test_a_machine_that_hides_everything_but_its_cpus(tmp_path):
    topology, why_not = Sys(tmp_path, "0-3").read()
    assert topology.cpus == tuple(Cpu(cpu, cpu, 0, 0) for cpu in range(4))
    assert "SMT siblings of 4 CPUs are hidden" in why_not
    assert "NUMA node of 4 CPUs is hidden" in why_not
    assert "caches of 4 CPUs are hidden" in why_not


def test_no_cache_directories(tmp_path):
    sys = Sys(tmp_path, "0-3")
    for cpu in range(4):
        sys.siblings("0-1" if cpu < 2 else "2-3", cpu)
    sys.node(0, "0-3")
    topology, why_not = sys.read()
    assert topology.smt
    assert {cpu.llc for cpu in topology.cpus} == {0}
    assert why_not == "the caches of 4 CPUs are hidden: one cache is assumed for them"


def test_cpus_whose_cache_is_hidden_share_one_that_no_other_has(tmp_path):
    sys = Sys(tmp_path, "0-3")
    for cpu in range(4):
        sys.siblings(str(cpu), cpu)
    sys.cache(3, 3, "0-1", 0, 1, number=2)
    sys.node(0, "0-3")
    assert [cpu.llc for cpu in sys.read()[0].cpus] == [0, 0, 2, 2]


def test_a_node_with_memory_alone_and_one_that_hides_its_cpus(tmp_path):
    sys = two_sockets(tmp_path)
    sys.node(2, "")
    (sys.nodes / "node3").mkdir()
    sys.put(sys.nodes / "online", "0-3")
    topology, why_not = sys.read()
    assert why_not == ""
    assert {cpu.numa for cpu in topology.cpus} == {0, 1}


BROKEN = {
    "siblings without the CPU itself": lambda sys: sys.siblings("1,5", 0),
    "siblings of two cores": lambda sys: sys.siblings("1-2", 1),
    "siblings in words": lambda sys: sys.siblings("a few", 0),
    "a range that runs backwards": lambda sys: sys.siblings("4-0", 0),
    "a range without end": lambda sys: sys.siblings("0-999999", 0),
    "a CPU in two nodes": lambda sys: sys.node(1, "0-7"),
    "a node in binary": lambda sys: sys.put(sys.nodes / "node0/cpulist", b"\xff\x00\x01"),
    "a cache level in words": lambda sys: sys.put(sys.cpus / "cpu0/cache/index3/level", "top"),
    "a cache of others": lambda sys: sys.cache(3, 3, "1", 0, number=0),
    "a directory in place of a file": lambda sys: (
        (sys.cpus / "cpu0/topology/core_cpus_list").unlink() or (sys.cpus / "cpu0/topology/core_cpus_list").mkdir()
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_content_that_makes_no_sense_gives_a_flat_machine_and_the_reason(tmp_path, case):
    sys = two_sockets(tmp_path)
    BROKEN[case](sys)
    topology, why_not = sys.read()
    assert topology.cpus == tuple(Cpu(cpu, cpu, 0, 0) for cpu in range(8))
    assert "sysfs cannot be believed" in why_not
    assert str(tmp_path) in why_not


@pytest.mark.parametrize("online", ["", "all", "7-0", "0-99999999999999", "-1", "0,,1", b"\xff\xfe"])
def test_a_list_of_online_cpus_that_cannot_be_used(tmp_path, online):
    sys = two_sockets(tmp_path)
    sys.put(sys.cpus / "online", online)
    topology, why_not = sys.read()
    assert len(topology.cpus) == os.cpu_count()
    assert "online CPUs cannot be used" in why_not


def test_no_sysfs_at_all(tmp_path):
    topology, why_not = read_topology(str(tmp_path / "none"))
    assert len(topology.cpus) == os.cpu_count()
    assert "online CPUs cannot be used" in why_not


@pytest.fixture(scope="module")
def sockets(tmp_path_factory):
    return two_sockets(tmp_path_factory.mktemp("sys"))


@given(data=st.data())
def test_whatever_the_files_hold_each_online_cpu_is_there_once(sockets, data):
    files = sorted(path for path in sockets.base.rglob("*") if path.is_file() and path.name != "online")
    before = {path: path.read_bytes() for path in data.draw(st.lists(st.sampled_from(files), max_size=4))}
    try:
        for path in before:
            path.write_bytes(data.draw(st.binary(max_size=12) | st.from_regex(rb"\A[0-9,-]{0,8}\n\Z")))
        topology, _ = sockets.read()
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    assert [cpu.id for cpu in topology.cpus] == list(range(8))
    for cpu in topology.cpus:
        assert cpu.core == min(topology.siblings(cpu.id))


def test_the_reader_reads_anew_after_a_minute_or_when_a_cpu_came_or_went(tmp_path):
    sys, now = two_sockets(tmp_path), [0.0]
    reader = TopologyReader(str(tmp_path), lambda: now[0])
    first = reader.read()
    sys.node(1, "2-3")
    assert reader.read() is first
    assert reader.why_not == ""
    now[0] = REFRESH_SECONDS
    assert reader.read() is not first
    assert "NUMA node of 2 CPUs is hidden" in reader.why_not
    sys.put(sys.cpus / "online", "0-6")
    assert reader.read().ids == set(range(7))
    (sys.cpus / "online").unlink()
    assert len(reader.read().cpus) == os.cpu_count()


def test_this_machine():
    reader = TopologyReader()
    topology = reader.read()
    if "online CPUs cannot be used" in reader.why_not:
        pytest.skip(f"no topology here: {reader.why_not}")
    assert os.sched_getaffinity(0) <= topology.ids
    assert len(topology.cores()) <= len(topology.cpus)
