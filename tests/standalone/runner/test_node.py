"""The node object, its pressure conditions and the thread that reports them."""

from __future__ import annotations

import msgspec
import pytest

from slacktide.cluster.kinds import LEASES, NODES
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version, discover
from slacktide.objects import NodeStatus
from standalone.runner.heartbeat import Heartbeat
from standalone.runner.machine import Machine, Pressure, read_machine, read_pressure
from standalone.runner.nodeobject import NodeFacts, Thresholds, status_patch
from tests.standalone.runner.twin import FakeApi, wait_for

MACHINE = Machine(
    cpu_millis=2000,
    memory_bytes=8 << 30,
    kernel="6.18",
    os_image="Linux",
    architecture="amd64",
    machine_id="m",
    boot_id="b",
)
FACTS = NodeFacts(name="n1", address="127.0.0.1", machine=MACHINE, max_pods=110, cgroups="v1")
WELL = Pressure(
    memory_available_bytes=1 << 30, disk_free_bytes=1 << 40, disk_total_bytes=1 << 41, tasks=10, tasks_max=100
)
THRESHOLDS = Thresholds(memory_bytes=100, disk_bytes=1000)


def built(pressure=WELL, problem=None, before=(), now=1.8e9, facts=FACTS):
    return status_patch(facts, pressure, problem, before, THRESHOLDS, now)["status"]


def states(status):
    return {one["type"]: one["status"] for one in status["conditions"]}


def test_amounts_and_conditions():
    status = built()
    assert status["capacity"] == status["allocatable"] == {"cpu": "2", "memory": "8388608Ki", "pods": "110"}
    assert states(status) == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }


@pytest.mark.parametrize(
    ("change", "condition", "status"),
    [
        ({"memory_available_bytes": 99}, "MemoryPressure", "True"),
        ({"memory_available_bytes": None}, "MemoryPressure", "Unknown"),
        ({"disk_free_bytes": 999}, "DiskPressure", "True"),
        ({"disk_free_bytes": None}, "DiskPressure", "Unknown"),
        ({"tasks": 96}, "PIDPressure", "True"),
        ({"tasks_max": None}, "PIDPressure", "Unknown"),
    ],
)
def test_pressure(change, condition, status):
    fields = {field: getattr(WELL, field) for field in WELL.__slots__}
    assert states(built(Pressure(**{**fields, **change})))[condition] == status


def test_not_ready_says_why():
    ready = built(problem="stuck")["conditions"][-1]
    assert (ready["status"], ready["message"]) == ("False", "stuck")


def test_cgroups_off_is_said_in_the_ready_condition():
    facts = NodeFacts(
        name="n1", address="a", machine=MACHINE, max_pods=1, cgroups="off", cgroups_note="cgroups are off: why"
    )
    assert built(facts=facts)["conditions"][-1]["message"] == "cgroups are off: why"


def test_transition_times_stay_while_heartbeats_move():
    first = msgspec.convert(built(), NodeStatus)
    later = built(before=first.conditions, now=1.8e9 + 100)["conditions"][-1]
    assert later["lastTransitionTime"] == first.conditions[-1].last_transition_time
    assert later["lastHeartbeatTime"] > first.conditions[-1].last_heartbeat_time


@pytest.fixture
def api():
    return FakeApi()


def heartbeat(api, **options):
    options = {"seconds": 60.0, "problem": lambda: None, **options}
    return Heartbeat(api, FACTS, pressure=lambda: WELL, thresholds=THRESHOLDS, lease_seconds=40, **options)


def test_creates_node_and_lease(api):
    beat = heartbeat(api)
    assert beat.trouble()
    beat.report()
    assert beat.trouble() is None
    node = api.get_dict(NODES, "n1")
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
    assert node["metadata"]["annotations"] == {"slacktide.io/cgroups": "v1"}
    lease = api.get_dict(LEASES, "n1", "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == "n1"
    assert lease["spec"]["leaseDurationSeconds"] == 40


def test_leaves_what_others_wrote(api):
    amounts = {"kubernetes.io/batch-cpu": "1500", "cpu": "1"}
    api.add(
        {
            "kind": "Node",
            "metadata": {"name": "n1", "labels": {"mine": "1"}, "annotations": {"slacktide.io/forecast": "{}"}},
            "spec": {"unschedulable": True},
            "status": {
                "capacity": dict(amounts),
                "allocatable": dict(amounts),
                "conditions": [{"type": "Foreign", "status": "True"}],
            },
        }
    )
    heartbeat(api).report()
    node = api.get_dict(NODES, "n1")
    assert node["metadata"]["labels"]["mine"] == "1"
    assert node["metadata"]["annotations"]["slacktide.io/forecast"] == "{}"
    assert node["spec"] == {"unschedulable": True}
    for key in ("capacity", "allocatable"):
        assert node["status"][key]["kubernetes.io/batch-cpu"] == "1500"
        assert node["status"][key]["cpu"] == "2"
    assert "Foreign" in {one["type"] for one in node["status"]["conditions"]}


def test_a_second_report_patches_metadata_no_more(api):
    beat = heartbeat(api)
    beat.report()
    api.calls.clear()
    beat.report()
    assert [call[0] for call in api.calls].count("patch") == 2


def test_the_thread_waits_out_an_absent_server(api):
    api.away = True
    beat = heartbeat(api, seconds=0.02)
    beat.start()
    try:
        wait_for(lambda: api.calls)
        assert beat.trouble()
        api.away = False
        wait_for(lambda: beat.trouble() is None)
    finally:
        beat.stop()


def test_machine_from_a_tree(tmp_path):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:  1000 kB\nMemAvailable:   0 kB\nShadowCallStack:10373888 kB\nHugePages_Total:       0\n"
    )
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("bb\n")
    (tmp_path / "proc/sys/kernel/pid_max").write_text("100\n")
    (tmp_path / "proc/loadavg").write_text("0.1 0.2 0.3 2/345 99\n")
    (tmp_path / "etc/os-release").write_text('NAME=x\nPRETTY_NAME="Tide 1"\n')
    machine = read_machine(Hierarchy({}, None), str(tmp_path))
    assert (machine.memory_bytes, machine.os_image, machine.boot_id, machine.machine_id) == (
        1_024_000,
        "Tide 1",
        "bb",
        "",
    )
    pressure = read_pressure([str(tmp_path), str(tmp_path / "nowhere")], str(tmp_path))
    assert (pressure.memory_available_bytes, pressure.tasks, pressure.tasks_max) == (None, 345, 100)
    assert pressure.disk_free_bytes is not None
    unknown = read_pressure([], str(tmp_path / "nowhere"))
    assert (unknown.memory_available_bytes, unknown.disk_free_bytes, unknown.tasks) == (None, None, None)


def test_memory_is_bounded_by_the_cgroup_that_the_mount_begins_at(tmp_path):
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\n")
    hierarchy = Hierarchy({"memory": Mount(str(tmp_path), Version.V2)}, str(tmp_path))
    assert read_machine(hierarchy, str(tmp_path)).memory_bytes == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert read_machine(hierarchy, str(tmp_path)).memory_bytes == 1_024_000


def test_this_machine():
    machine = read_machine(discover())
    assert machine.cpu_millis >= 1000
    assert machine.memory_bytes > 1 << 26
    assert machine.boot_id
