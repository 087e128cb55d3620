"""The writer of resctrl on an emulated machine: one class for BE, made, kept, measured, rebuilt and removed."""

import errno
import fcntl
import os
import threading
import time

import pytest

from agent.act.resctrl import COUNTED, RdtWriter, remove_all
from agent.host.resctrl.groups import BE_GROUP
from agent.host.resctrl.mount import RdtPlaces
from agent.resctrl import Schemata
from slacktide.kernel.files import translate, write_value
from slacktide.kernel.hierarchy import Version
from tests.agent.rdt_node import BE, BE2, rdt_node
from tests.emulators.resctrl import missing
from tests.patience import PATIENCE

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

NARROW = Schemata(values={"L3": {0: 0x3, 1: 0x3}, "MB": {0: 20, 1: 20}})


@pytest.fixture
def node(tmp_path):
    with rdt_node("intel-2s", tmp_path) as node:
        yield node


@pytest.mark.parametrize("version", [Version.V1, Version.V2])
def test_be_has_one_open_class_with_all_its_threads(tmp_path, version):
    with rdt_node("intel-2s", tmp_path, version) as node:
        tids = {*node.pod(BE, 3), *node.pod(BE2, 1)}
        reading = node.look()
        assert node.rdt.groups().classes == {BE_GROUP}
        assert node.rdt.tasks(BE_GROUP) == tids
        assert node.held() == {0: 0xFFFFF, 1: 0xFFFFF}
        assert node.held("MB") == {0: 100, 1: 100}
        assert reading.held is not None
        assert reading.problem == ""
        assert reading.info.closids == 7


def test_values_are_in_force_before_the_first_thread_enters(tmp_path):
    order = []

    def write(name, value, dir_fd=None):
        order.append(name)
        write_value(name, value, dir_fd)

    with rdt_node("intel-2s", tmp_path) as node:
        node.pod(BE, 2)
        node.writer = node.new_writer(write=write)
        node.look(NARROW)
        assert order == ["schemata", "tasks", "tasks"]
        assert node.held() == {0: 0x3, 1: 0x3}


def test_a_cut_and_its_way_back(node):
    node.pod(BE, 1)
    assert node.look(NARROW).held == Schemata(values={"L3": {0: 0x3, 1: 0x3}, "MB": {0: 20, 1: 20}})
    writes = node.writer.counters["rdt_writes"]
    node.look(NARROW)
    assert node.writer.counters["rdt_writes"] == writes
    node.look(None)
    assert node.held() == {0: 0xFFFFF, 1: 0xFFFFF}
    assert node.held("MB") == {0: 100, 1: 100}


def test_bandwidth_that_the_kernel_rounds_up_is_not_written_for_ever(node):
    odd = Schemata(values={"MB": {0: 33, 1: 33}})
    node.look(odd)
    assert node.held("MB") == {0: 40, 1: 40}
    writes = node.writer.counters["rdt_writes"]
    for _ in range(3):
        assert node.look(odd).problem == ""
    assert node.writer.counters["rdt_writes"] == writes
    assert node.writer.counters["rdt_drift"] == node.writer.counters["rdt_mismatch"] == 0


def test_row_1_sparse_domain_ids_are_all_written_and_a_change_at_a_high_id_is_seen(tmp_path):
    ids = [*range(8), *range(16, 24)]
    wanted = Schemata(values={"L3": dict.fromkeys(ids, 0xFF), "MB": dict.fromkeys(ids, 400)})
    with rdt_node("amd-rome", tmp_path) as node:
        node.look(wanted)
        assert node.held() == dict.fromkeys(ids, 0xFF)
        assert node.held("MB") == dict.fromkeys(ids, 400)
        node.rdt.write_schemata(BE_GROUP, "L3:23=ffff\n")
        node.look(wanted)
        assert node.held()[23] == 0xFF
        assert node.writer.counters["rdt_drift"] == 1


@pytest.mark.parametrize(
    "profile", ["cdp", "cdpl2", "old-kernel", "mbps", "abmc", "l2", "haswell", "snc", "new-events"]
)
def test_every_machine_gets_a_class_that_is_open(tmp_path, profile):
    with rdt_node(profile, tmp_path) as node:
        tids = node.pod(BE, 1)
        reading = node.look()
        assert reading.problem == ""
        assert node.rdt.tasks(BE_GROUP) == set(tids)
        assert node.rdt.schemata(BE_GROUP) == node.rdt.schemata("")


def test_monitoring_only_measures_be_without_a_class(tmp_path):
    with rdt_node("mon-only", tmp_path) as node:
        tids = node.pod(BE, 2)
        reading = node.look(NARROW)
        assert node.rdt.groups().classes == frozenset()
        assert node.rdt.tasks("mon_groups/slacktide-be") == set(tids)
        assert reading.held is None
        assert "controls neither cache nor memory bandwidth" in reading.problem
        assert reading.be is not None


def test_rows_5_and_7_no_class_left_falls_to_monitoring_and_takes_a_class_once_there_is_one(node):
    for number in range(7):
        os.mkdir(f"{node.handle.path}/COS{number}")
    tids = node.pod(BE, 1)
    reading = node.look(NARROW)
    assert reading.held is None
    assert "no class for BE: all ids are in use" in reading.problem
    assert "CLOSIDs" in reading.problem
    assert reading.foreign == 7
    assert node.rdt.tasks("mon_groups/slacktide-be") == set(tids)
    refused = node.writer.counters["rdt_refused"]
    node.look(NARROW, seconds=0.5)
    assert node.writer.counters["rdt_refused"] == refused
    os.rmdir(f"{node.handle.path}/COS3")
    node.look(NARROW, seconds=61)
    assert node.held() == {0: 0x3, 1: 0x3}
    assert node.rdt.tasks(BE_GROUP) == set(tids)
    assert node.rdt.groups().monitors == frozenset()


def test_monitoring_ids_in_limbo_are_waited_for_with_longer_pauses(node):
    node.handle.control.fail(path="/slacktide-be", operation="mkdir", code=errno.EBUSY)
    node.handle.control.fail(path="/mon_groups/slacktide-be", operation="mkdir", code=errno.EBUSY)
    tries = []
    for _ in range(20):
        before = node.writer.counters["rdt_refused"]
        reading = node.look()
        tries.append(node.writer.counters["rdt_refused"] > before)
    assert "cache lines are gone" in reading.problem
    assert 2 <= sum(tries) <= 6
    node.handle.control.heal()
    assert node.look(seconds=61).held is not None


def test_no_monitoring_id_at_all_leaves_be_without_a_group(tmp_path):
    with rdt_node("few-rmids", tmp_path) as node:
        for number in range(3):
            os.mkdir(f"{node.handle.path}/mon_groups/m{number}")
        reading = node.look()
        assert reading.held is None
        assert reading.be is None
        assert "no class for BE" in reading.problem
        assert reading.ls is not None


def test_groups_of_others_are_counted_and_their_threads_left(tmp_path):
    with rdt_node("foreign", tmp_path) as node:
        one, two, three = node.pod(BE, 3)
        root = node.handle.path
        write_value(f"{root}/COS1/tasks", one)
        write_value(f"{root}/mon_groups/7b0ffb6c/tasks", two)
        before = node.state(foreign=True)
        for wanted in (None, NARROW, None):
            reading = node.look(wanted)
        assert reading.foreign == 4
        assert node.rdt.tasks(BE_GROUP) == {three}
        assert "2 threads of BE are in groups of others" in reading.problem
        assert node.writer.counters["rdt_left"] == 2
        remove_all(node.places)
        assert node.state(foreign=True) == before


def test_threads_born_later_are_found_and_ended_ones_are_no_error(node):
    one, two = node.pod(BE, 2)
    node.look()
    node.workers.end(one)
    node.pods[BE].append(three := node.workers.start())
    node.tell(BE)
    reading = node.look()
    assert reading.problem == ""
    assert node.rdt.tasks(BE_GROUP) == {two, three}


def test_threads_of_nested_cgroups_count_too(node):
    """Koordinator 2541: threads below a container's own cgroup were missed."""
    tid = node.workers.start()
    node.pod(BE, 0)
    node.tree.group(f"{BE}/{'c' * 64}/payload/deeper", tasks=f"{tid}\n")
    node.look()
    assert node.rdt.tasks(BE_GROUP) == {tid}


def test_a_thread_that_is_not_bes_any_more_goes_back(node):
    one, two = node.pod(BE, 2)
    node.look(NARROW)
    node.pods[BE] = [two]
    node.tell(BE)
    node.look(NARROW)
    assert node.rdt.tasks(BE_GROUP) == {two}
    assert one in node.rdt.tasks("")
    assert node.writer.counters["rdt_returned"] == 1


def test_what_was_not_read_moves_nothing_back(node, monkeypatch):
    tids = node.pod(BE, 2)
    node.look(NARROW)
    path = node.tree.path(f"{BE}/{'c' * 64}", "tasks")
    path.unlink()
    path.mkdir()
    reading = node.look(NARROW)
    assert node.rdt.tasks(BE_GROUP) == set(tids)
    assert "could not be read" in reading.problem
    reading = node.look(NARROW, pods=False)
    assert node.rdt.tasks(BE_GROUP) == set(tids)


def test_a_pod_made_anew_under_the_same_path_is_another_one(node):
    node.pod(BE, 1)
    stale = node.groups()
    node.tree.group("spare")
    old = node.tree.path(BE, "").parent
    old.rename(old.with_name("kept"))
    node.tree.group(BE)
    node.tell(BE)
    node.look()
    node.now += 2
    node.writer.want(None, [type(pod)(pod.group, pod.inode + 1, pod.uid, pod.containers) for pod in stale])
    node.writer.look()
    assert node.rdt.tasks(BE_GROUP) == frozenset()


def test_an_unmount_wipes_everything_and_one_look_rebuilds_it(node):
    tids = node.pod(BE, 2)
    node.look(NARROW)
    node.handle.unmount()
    reading = node.look(NARROW)
    assert reading.problem == "resctrl is not mounted"
    assert reading.held is None
    node.handle.mount()
    node.look(NARROW)
    assert node.held() == {0: 0x3, 1: 0x3}
    assert node.rdt.tasks(BE_GROUP) == set(tids)
    assert node.writer.counters["rdt_lost"] == 1


def test_a_remount_between_two_looks_is_rebuilt_in_one(node):
    tids = node.pod(BE, 2)
    node.look(NARROW)
    node.handle.control.remount()
    reading = node.look(NARROW)
    assert node.held() == {0: 0x3, 1: 0x3}
    assert node.rdt.tasks(BE_GROUP) == set(tids)
    assert reading.be is not None
    assert reading.be_bandwidth_rate is None
    assert node.writer.counters["rdt_drift"] == 0


def test_a_remount_with_other_options_is_written_in_its_own_terms(node):
    node.pod(BE, 1)
    node.look(NARROW)
    node.handle.control.remount(options=["cdp"])
    node.handle.tell_mounts()
    reading = node.look(NARROW)
    assert "L3: this mount does not offer it" in reading.problem
    node.look(Schemata(values={"L3CODE": {0: 0x3, 1: 0x3}, "L3DATA": {0: 0x3, 1: 0x3}}))
    assert node.held("L3CODE") == node.held("L3DATA") == {0: 0x3, 1: 0x3}


def test_a_mount_that_goes_while_it_is_read_leaves_an_old_reading(node):
    node.pod(BE, 1)
    first = node.look(NARROW)
    node.handle.control.fail(path="/info", operation="open", code=errno.ENOENT)
    node.handle.control.fail(path="/schemata", operation="open", code=errno.EIO)
    second = node.look(NARROW)
    assert second.at == first.at
    assert second.held == first.held
    assert second.problem != ""
    assert node.writer.counters["rdt_errors"] == 1
    node.handle.control.heal()
    assert node.look(NARROW).problem == ""


def test_a_class_that_vanishes_during_a_read_is_made_again(node):
    tids = node.pod(BE, 1)
    node.look(NARROW)
    node.handle.control.vanish_during_read(path="/slacktide-be/schemata", after_bytes=5)
    node.look(NARROW)
    node.look(NARROW)
    assert node.held() == {0: 0x3, 1: 0x3}
    assert node.rdt.tasks(BE_GROUP) == set(tids)


def test_a_refused_value_is_told_with_the_kernels_words_and_not_tried_in_each_look(node):
    node.pod(BE, 1)
    node.look(None)
    node.handle.control.fail(path="/slacktide-be/schemata", operation="write", code=errno.EINVAL)
    reading = node.look(NARROW)
    assert "Invalid argument" in reading.problem
    assert "L3:0=3;1=3" in reading.problem
    refused = node.writer.counters["rdt_refused"]
    node.look(NARROW, seconds=0.1)
    assert node.writer.counters["rdt_refused"] == refused
    assert node.held() == {0: 0xFFFFF, 1: 0xFFFFF}
    node.handle.control.heal()
    node.look(NARROW, seconds=10)
    assert node.held() == {0: 0x3, 1: 0x3}


@pytest.mark.parametrize(
    "values",
    [
        {"L3": {0: 0}},
        {"L3": {0: 0xF7}},
        {"L3": {0: 0x1FFFFF}},
        {"MB": {0: 5}},
        {"MB": {0: 110}},
        {"L9": {0: 1}},
        {"L3": {0: 0x3}, "MB": {0: 0}},
    ],
)
def test_row_5_values_that_the_kernel_would_refuse_are_never_written(node, values):
    node.look(NARROW)
    writes = node.writer.counters["rdt_writes"]
    reading = node.look(Schemata(values=values))
    assert "not written" in reading.problem
    assert node.writer.counters["rdt_writes"] == writes
    assert node.held() == {0: 0x3, 1: 0x3}


def test_a_domain_that_is_gone_is_left_out_and_the_rest_is_written(node):
    node.look(None)
    node.handle.control.domain_offline(domain=1)
    reading = node.look(NARROW)
    assert reading.problem == ""
    assert node.held() == {0: 0x3}


def test_bits_of_an_exclusive_group_are_not_asked_for(node):
    root = node.handle.path
    write_value(f"{root}/schemata", "L3:0=ffff0;1=ffff0\n")
    os.mkdir(f"{root}/theirs")
    write_value(f"{root}/theirs/schemata", "L3:0=f;1=f\n")
    write_value(f"{root}/theirs/mode", "exclusive\n")
    reading = node.look(None)
    assert reading.problem == ""
    assert node.held() == {0: 0xFFFF0, 1: 0xFFFF0}
    reading = node.look(NARROW)
    assert "exclusive" in reading.problem
    assert node.held() == {0: 0xFFFF0, 1: 0xFFFF0}


def test_values_that_someone_changes_are_put_back_then_slower_and_told(node):
    node.look(NARROW)
    back = []
    for _ in range(12):
        node.rdt.write_schemata(BE_GROUP, "L3:0=fffff\n")
        reading = node.look(NARROW)
        back.append(node.held()[0] == 0x3)
    assert back[:3] == [True, True, True]
    assert 4 <= sum(back) < 12
    assert "someone else writes slacktide-be/schemata" in reading.problem
    assert node.writer.counters["rdt_fights"] >= 1
    wider = Schemata(values={"L3": {0: 0x1, 1: 0x1}})
    node.look(wider)
    assert node.held()[0] == 0x1


def test_cpus_that_someone_puts_into_the_class_go_back_before_ls_runs_there(node):
    node.look(NARROW)
    write_value(f"{node.handle.path}/{BE_GROUP}/cpus", "f\n")
    reading = node.look(NARROW)
    assert node.rdt.cpus(BE_GROUP) == 0
    assert "CPUs" in reading.problem


def test_another_tool_that_holds_the_lock_is_not_disturbed(node):
    node.look(None)
    descriptor = os.open(node.handle.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        reading = node.look(NARROW)
        assert "lock" in reading.problem
        assert node.held() == {0: 0xFFFFF, 1: 0xFFFFF}
        assert node.writer.counters["rdt_locked"] == 1
    finally:
        os.close(descriptor)
    node.look(NARROW)
    assert node.held() == {0: 0x3, 1: 0x3}


def test_rates_come_from_two_readings_of_one_counter_and_one_clock(node):
    node.pod(BE, 1)
    node.handle.control.freeze()
    node.look(None)
    for group in ("", BE_GROUP):
        for domain in (0, 1):
            node.handle.control.count(group=group, domain=domain, event="mbm_total_bytes", value=0)
    node.look(None)
    for domain in (0, 1):
        node.handle.control.count(group=BE_GROUP, domain=domain, event="mbm_total_bytes", value=2 * (64 << 10) * 10)
    reading = node.look(None)
    assert reading.be_bandwidth_rate == pytest.approx(2 * (64 << 10) * 10)
    assert reading.ls_bandwidth_rate == 0
    for domain in (0, 1):
        node.handle.control.count(group=BE_GROUP, domain=domain, event="mbm_total_bytes", value=0)
    assert node.look(None).be_bandwidth_rate is None
    assert node.look(None).be_bandwidth_rate == 0


def test_a_removed_monitoring_group_is_a_new_baseline_for_the_default_class(node):
    os.mkdir(f"{node.handle.path}/mon_groups/theirs")
    node.look(None)
    assert node.look(None).ls_bandwidth_rate is not None
    os.rmdir(f"{node.handle.path}/mon_groups/theirs")
    assert node.look(None).ls_bandwidth_rate is None
    assert node.look(None).ls_bandwidth_rate is not None


@pytest.mark.parametrize("word", ["Unavailable", "Error", "Unassigned"])
def test_row_6_a_domain_without_a_number_is_missing_alone(node, word):
    node.look(None)
    node.handle.control.say(group=BE_GROUP, domain=1, event="mbm_total_bytes", text=word)
    node.look(None)
    reading = node.look(None)
    assert reading.be is not None
    assert reading.be.total_bytes[1] is None
    assert reading.be.total_bytes[0] is not None
    assert reading.be.rates[1] is None
    assert reading.be.rates[0] is not None
    assert reading.be_bandwidth_rate is None
    assert word in reading.be.missing["mbm_total_bytes of domain 1"]
    assert reading.be_occupancy_bytes is not None


def test_what_a_dead_agent_left_is_kept_until_somebody_who_saw_it_decides(node):
    tids = node.pod(BE, 1)
    node.look(NARROW)
    os.mkdir(f"{node.handle.path}/slacktide-old")
    os.mkdir(f"{node.handle.path}/mon_groups/slacktide-ls")
    node.writer = node.new_writer()
    node.writer.want(None, ())
    reading = node.writer.look()
    assert reading.held == NARROW
    assert node.held() == {0: 0x3, 1: 0x3}
    node.look(NARROW)
    assert node.rdt.groups().classes == {BE_GROUP}
    assert node.rdt.groups().monitors == frozenset()
    assert node.rdt.tasks(BE_GROUP) == set(tids)
    assert node.writer.counters["rdt_stale"] == 2
    assert node.writer.counters["rdt_writes"] == 0


def test_observing_writes_nothing(node):
    node.pod(BE, 1)
    before = node.state()
    node.writer = node.new_writer(observe=True)
    reading = node.look(NARROW)
    assert node.state() == before
    assert reading.ls is not None


def test_restore_leaves_nothing_and_threads_are_in_the_default_class(node):
    before = set(node.state())
    tids = node.pod(BE, 2)
    node.look(NARROW)
    assert node.writer.restore() == []
    assert set(node.state()) == before
    assert set(tids) <= node.rdt.tasks("")
    assert remove_all(node.places) == []


def test_a_class_with_groups_of_others_in_it_is_left_wide_open(node):
    tids = node.pod(BE, 1)
    node.look(NARROW)
    os.mkdir(f"{node.handle.path}/{BE_GROUP}/mon_groups/theirs")
    write_value(f"{node.handle.path}/{BE_GROUP}/mon_groups/theirs/tasks", tids[0])
    node.look(NARROW)
    assert node.rdt.tasks(f"{BE_GROUP}/mon_groups/theirs") == set(tids)
    left = node.writer.restore()
    assert "left, wide open" in left[0]
    assert node.held() == {0: 0xFFFFF, 1: 0xFFFFF}
    assert node.rdt.tasks(f"{BE_GROUP}/mon_groups/theirs") == set(tids)


def test_restore_does_not_wait_for_ever_for_a_lock(node):
    node.look(NARROW)
    descriptor = os.open(node.handle.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert node.writer.restore() == []
    finally:
        os.close(descriptor)
    assert node.rdt.groups().classes == frozenset()


def test_nothing_keeps_the_administrator_from_unmounting(node):
    node.pod(BE, 1)
    node.look(NARROW)
    node.handle.unmount(lazy=False)
    assert node.look(NARROW).problem == "resctrl is not mounted"


def wait_for(condition):
    deadline = time.monotonic() + 10 * PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def test_the_thread_puts_the_newest_wish_in_force_and_stops_without_a_trace(node):
    node.pod(BE, 1)
    writer = RdtWriter(node.places, node.tree.lister(), period_seconds=60)
    writer.start()
    try:
        wait_for(lambda: writer.view() is not None)
        writer.want(None, node.groups())
        writer.want(NARROW, node.groups())
        wait_for(lambda: (view := writer.view()) is not None and view.held == NARROW)
    finally:
        assert writer.stop(restore=True, timeout_seconds=20 * PATIENCE)
    assert node.rdt.groups().classes == frozenset()


def test_a_reader_that_hangs_holds_up_nobody_and_its_view_grows_old(node):
    release, hanging = threading.Event(), threading.Event()

    def write(name, value, dir_fd=None):
        if name == "schemata":
            hanging.set()
            release.wait(60)
        write_value(name, value, dir_fd)

    writer = RdtWriter(node.places, node.tree.lister(), period_seconds=60, write=write)
    writer.start()
    try:
        wait_for(lambda: writer.view() is not None)
        first = writer.view()
        writer.want(NARROW, ())
        assert hanging.wait(10 * PATIENCE)
        writer.want(None, ())
        assert writer.view() == first
        assert not writer.stop(restore=True, timeout_seconds=0.05)
    finally:
        release.set()
        assert writer.stop(restore=True, timeout_seconds=20 * PATIENCE)


def test_no_mount_at_all_is_told(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\nhalf a line\n\n")
    writer = RdtWriter(RdtPlaces(mounts=str(mounts)), None)
    assert writer.look().problem == "resctrl is not mounted"
    assert remove_all(RdtPlaces(mounts=str(mounts))) == []
    mounts.unlink()
    assert "mounts" in writer.look().problem


def test_a_mount_that_is_read_only_for_us_is_told_and_left(tmp_path):
    def write(name, value, dir_fd=None):
        raise translate(name, OSError(errno.EROFS, os.strerror(errno.EROFS)))

    with rdt_node("intel-2s", tmp_path) as node:
        node.pod(BE, 1)
        node.writer = node.new_writer(write=write)
        reading = node.look(NARROW)
        assert "Read-only file system" in reading.problem


def test_every_counter_is_documented(node):
    node.pod(BE, 1)
    node.look(NARROW)
    node.look(None)
    assert set(node.writer.counters) <= set(COUNTED)
