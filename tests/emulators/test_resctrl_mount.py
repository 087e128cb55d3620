"""What only a mount shows: errors as processes get them, real threads, concurrency, and that nothing stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from tests.emulators.mounts import child, fails, read, wait_for, write
from tests.emulators.resctrl import ResctrlError, mounted
from tests.emulators.resctrl.fixture import resctrl  # noqa: F401  # pytest finds a fixture by its name in the module
from tests.emulators.resctrl.mounting import is_mounted, missing
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with mounted("intel-2s", tmp_path_factory.mktemp("machine")) as handle:
        yield handle


@pytest.fixture
def machine(shared):
    """One mount for all tests, as new for each."""
    shared.control.reset()
    shared.tell_mounts()
    return shared


FORKS = """
import os, sys, time
print(os.getpid(), flush=True)
sys.stdin.readline()
os.fork()
os.fork()
time.sleep(60)
"""

THREADS = """
import sys, threading, time
print(threading.get_native_id(), flush=True)
for line in sys.stdin:
    thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    thread.start()
    print(thread.native_id, flush=True)
"""


def test_a_write_is_one_command_and_the_status_tells_why(machine):
    os.mkdir(f"{machine.path}/be")
    write(machine, "be/schemata", "L3:0=f;1=ff\nMB:0=33\n")
    assert read(machine, "be/schemata") == "    MB:0=40;1=100\n    L3:0=f;1=ff\n"
    assert fails(write, machine, "be/schemata", "L3:0=f7\n") == "EINVAL"
    assert read(machine, "info/last_cmd_status") == "The mask f7 has non-consecutive 1-bits\n"
    assert fails(write, machine, "be/schemata", "L3:0=f\n" + "x" * 5000) == "E2BIG"


def test_shells_may_truncate_and_append(machine):
    done = subprocess.run(f"echo 'MB:0=20' > {machine.path}/schemata", shell=True, capture_output=True, check=False)
    assert (done.returncode, read(machine, "schemata").splitlines()[0]) == (0, "    MB:0=20;1=100")
    done = subprocess.run(f"echo 'MB:0=30' >> {machine.path}/schemata", shell=True, capture_output=True, check=False)
    assert (done.returncode, read(machine, "schemata").splitlines()[0]) == (0, "    MB:0=30;1=100")


def test_files_are_not_made_nor_removed(machine):
    assert fails(os.open, f"{machine.path}/size", os.O_WRONLY) == "EACCES"
    assert fails(os.open, f"{machine.path}/size", os.O_RDWR) == "EACCES"
    assert fails(os.open, f"{machine.path}/new", os.O_WRONLY | os.O_CREAT) == "EACCES"
    assert fails(os.unlink, f"{machine.path}/tasks") == "EPERM"
    assert fails(os.symlink, "tasks", f"{machine.path}/link") == "EPERM"
    assert fails(os.link, f"{machine.path}/tasks", f"{machine.path}/link") == "EPERM"


def test_modes_sizes_and_inodes(machine):
    os.mkdir(f"{machine.path}/be")
    found = {entry.name: entry for entry in os.scandir(f"{machine.path}/be")}
    modes = {name: stat.S_IMODE(entry.stat().st_mode) for name, entry in found.items()}
    assert (modes["schemata"], modes["size"], modes["mon_data"]) == (0o644, 0o444, 0o755)
    assert {entry.stat().st_size for entry in found.values() if entry.is_file()} == {0}
    assert {name: entry.inode() for name, entry in found.items()} == {
        name: entry.stat().st_ino for name, entry in found.items()
    }
    before = os.stat(f"{machine.path}/be").st_ino
    os.rmdir(f"{machine.path}/be")
    os.mkdir(f"{machine.path}/be")
    assert os.stat(f"{machine.path}/be").st_ino != before
    os.chmod(f"{machine.path}/be/tasks", 0o600)
    assert stat.S_IMODE(os.stat(f"{machine.path}/be/tasks").st_mode) == 0o600


def test_a_group_is_removed_with_all_that_is_in_it(machine):
    os.makedirs(f"{machine.path}/be/mon_groups/pod")
    held = os.open(f"{machine.path}/be", os.O_RDONLY | os.O_DIRECTORY)
    opened = os.open("mon_groups/pod/mon_data/mon_L3_00/llc_occupancy", os.O_RDONLY, dir_fd=held)
    assert os.read(opened, 100) == b"0\n"
    os.rmdir(f"{machine.path}/be")
    try:
        assert fails(os.read, opened, 100) == "ENODEV"
        assert fails(os.open, "tasks", os.O_RDONLY, dir_fd=held) == "ENOENT"
        machine.control.gone(code=errno.ENOENT)
        assert fails(os.pread, opened, 100, 0) == "ENOENT"
        os.mkdir(f"{machine.path}/be")
        assert fails(os.open, "tasks", os.O_RDONLY, dir_fd=held) == "ENOENT"
    finally:
        os.close(opened)
        os.close(held)


def test_a_group_vanishes_during_a_read(machine):
    os.mkdir(f"{machine.path}/be")
    machine.control.vanish_during_read(path="be/schemata", after_bytes=6)
    assert fails(read, machine, "be/schemata") == "ENODEV"
    assert not os.path.exists(f"{machine.path}/be")


def test_threads_are_moved_one_by_one_and_new_ones_inherit(machine):
    os.mkdir(f"{machine.path}/be")
    with child(THREADS) as process:
        first = process.stdout.readline().strip()
        process.stdin.write("\n")
        process.stdin.flush()
        second = process.stdout.readline().strip()
        write(machine, "be/tasks", first)
        assert read(machine, "be/tasks").split() == [first]
        process.stdin.write("\n")
        process.stdin.flush()
        third = process.stdout.readline().strip()
        assert read(machine, "be/tasks").split() == sorted([first, third], key=int)
        assert second in read(machine, "tasks").split()
        write(machine, "be/tasks", second)
        assert set(read(machine, "be/tasks").split()) == {first, second, third}
        assert machine.control.proc_text(tid=int(second)) == "res:be\nmon:\n"
    wait_for(lambda: read(machine, "be/tasks") == "")


def test_children_of_children_are_members(machine):
    os.mkdir(f"{machine.path}/be")
    with child(FORKS) as process:
        pid = process.stdout.readline().strip()
        write(machine, "be/tasks", pid)
        process.stdin.write("\n")
        process.stdin.flush()
        try:
            wait_for(lambda: len(read(machine, "be/tasks").split()) == 4)
        finally:
            for member in set(read(machine, "be/tasks").split()) - {pid}:
                os.kill(int(member), signal.SIGKILL)


def test_zero_moves_the_thread_that_writes(machine):
    os.mkdir(f"{machine.path}/be")
    done, go = threading.Event(), threading.Event()
    seen = []

    def work():
        write(machine, "be/tasks", "0")
        seen.append(str(threading.get_native_id()))
        done.set()
        go.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert done.wait(10 * PATIENCE)
        assert read(machine, "be/tasks").split() == seen
        assert seen != [str(os.getpid())]
    finally:
        go.set()
        thread.join()


def test_a_task_that_is_not_there(machine):
    os.mkdir(f"{machine.path}/be")
    with child("import time; print(flush=True); time.sleep(60)") as process:
        pid = process.pid
    assert fails(write, machine, "be/tasks", f"{pid}") == "ESRCH"
    assert read(machine, "info/last_cmd_status") == f"No task {pid}\nError while processing task {pid}\n"


NAMESPACE = """
import os, sys
path = sys.argv[1]
def put(name, text):
    descriptor = os.open(f"{path}/{name}", os.O_WRONLY)
    try:
        os.write(descriptor, text)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)
    return 0
results = put("be/tasks", b"1"), put("be/tasks", sys.argv[2].encode())
print(os.getpid(), *results, open(f"{path}/be/tasks").read().split())
"""


def test_a_private_pid_namespace_has_its_own_numbers(machine):
    """Its own first process is 1 there; threads outside it are left out, and cannot be moved."""
    os.mkdir(f"{machine.path}/be")
    write(machine, "be/tasks", str(os.getpid()))
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", NAMESPACE, machine.path, str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30 * PATIENCE, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip("no pid namespace can be made here")
    write(machine, "tasks", str(os.getpid()))
    assert done.stdout.split() == ["1", "0", str(errno.ESRCH), "['1']"], done.stderr


def test_traffic_follows_the_cpu_time_of_members(machine):
    os.mkdir(f"{machine.path}/be")
    with child("print(flush=True)\nwhile True: pass") as process:
        process.stdout.readline()
        write(machine, "be/tasks", str(process.pid))

        def moved():
            return sum(int(read(machine, f"be/mon_data/mon_L3_0{domain}/mbm_total_bytes")) for domain in (0, 1))

        wait_for(lambda: moved() > 1 << 26)
        assert any(int(read(machine, f"be/mon_data/mon_L3_0{domain}/llc_occupancy")) > 0 for domain in (0, 1))


def test_a_script_sets_rates_and_time(machine):
    os.mkdir(f"{machine.path}/be")
    control = machine.control
    control.freeze()
    control.rates(group="be", bytes_per_second=1e9, occupancy_bytes=1 << 20, domain=1)
    control.advance(seconds=2)
    assert int(read(machine, "be/mon_data/mon_L3_01/mbm_total_bytes")) == pytest.approx(2e9, rel=0.001)
    assert read(machine, "be/mon_data/mon_L3_01/llc_occupancy") == f"{1 << 20}\n"
    control.say(group="be", domain=1, event="llc_occupancy", text="Unavailable", times=1)
    assert read(machine, "be/mon_data/mon_L3_01/llc_occupancy") == "Unavailable\n"
    assert set(control.groups()) == {"", "be"}
    with pytest.raises(ResctrlError, match="No such file"):
        control.demand(group="none", bytes_per_second=1, footprint_bytes=1)
    with pytest.raises(ValueError, match="no command"):
        control.nothing()
    with pytest.raises(ValueError, match="TypeError"):
        control.advance(minutes=1)


def test_a_read_only_mount(resctrl):  # noqa: F811  # the parameter is the fixture
    handle = resctrl("intel-2s", read_only=True)
    assert fails(os.mkdir, f"{handle.path}/be") == "EROFS"
    assert fails(os.open, f"{handle.path}/schemata", os.O_WRONLY) == "EROFS"
    assert read(handle, "schemata").startswith("    MB:0=100;")
    assert " resctrl ro,relatime 0 0" in Path(handle.mounts_file).read_text(encoding="utf-8")


def test_a_slow_file_keeps_no_one_else(machine):
    machine.control.slow(path="schemata", seconds=100)
    code = "import sys; print(flush=True); print(open(sys.argv[1]).read(), flush=True)"
    with child(code, f"{machine.path}/schemata") as process:
        try:
            process.stdout.readline()
            wait_for(lambda: psutil.Process(process.pid).status() != psutil.STATUS_RUNNING)
            assert read(machine, "mode") == "shareable\n"
            assert process.poll() is None
        finally:
            machine.control.slow(path="schemata", seconds=0)
        assert process.stdout.readline() == "    MB:0=100;1=100\n"


def test_locks_on_the_root(machine):
    one, other = (os.open(machine.path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX)
        assert fails(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB) == "EAGAIN"
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(one)
        os.close(other)


def test_the_mounts_file_tells_the_options(resctrl):  # noqa: F811  # the parameter is the fixture
    handle = resctrl("intel-2s", ["cdp", "mba_MBps"])
    with open(handle.mounts_file, encoding="utf-8") as file:
        assert f"resctrl {handle.path} resctrl rw,relatime,cdp,mba_MBps 0 0\n" in file.readlines()
    handle.unmount()
    assert handle.path not in Path(handle.mounts_file).read_text(encoding="utf-8")
    assert os.listdir(handle.path) == []


def test_unmounting_wipes_and_is_refused_while_something_is_open(machine):
    os.mkdir(f"{machine.path}/be")
    write(machine, "schemata", "MB:0=20\n")
    held = os.open(f"{machine.path}/be", os.O_RDONLY)
    assert fails(machine.unmount) == "EBUSY"
    os.close(held)
    machine.unmount()
    assert not is_mounted(machine.path)
    machine.mount()
    assert fails(machine.mount) == "EBUSY"
    assert not os.path.exists(f"{machine.path}/be")
    assert read(machine, "schemata").startswith("    MB:0=100;")


def test_someone_mounts_it_again_with_other_options(machine):
    os.mkdir(f"{machine.path}/be")
    machine.control.remount(options=["cdp"])
    machine.tell_mounts()
    assert not os.path.exists(f"{machine.path}/be")
    assert "L3CODE:" in read(machine, "schemata")
    assert "rw,relatime,cdp " in Path(machine.mounts_file).read_text(encoding="utf-8")


def test_many_at_once_do_not_hang(machine):
    """Eight threads make, fill, read and remove groups of few classes; all of them end."""
    failures: list[str] = []
    allowed = {errno.ENOSPC, errno.EBUSY, errno.ENOENT, errno.ENODEV, errno.EEXIST}

    def work(number):
        for turn in range(12):
            name = f"{machine.path}/g{(number + turn) % 5}"
            try:
                os.mkdir(name)
                write(machine, f"g{(number + turn) % 5}/tasks", "0")
                os.listdir(f"{name}/mon_data")
                read(machine, f"g{(number + turn) % 5}/mon_data/mon_L3_00/llc_occupancy")
                read(machine, "tasks")
                os.rmdir(name)
            except OSError as error:
                if error.errno not in allowed:
                    failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60 * PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


AS_NOBODY = """
import os, sys
path, pid = sys.argv[1:]
os.setresuid(65534, 65534, 65534)
def put(name, text):
    try:
        descriptor = os.open(f"{path}/{name}", os.O_WRONLY)
    except OSError as error:
        return error.errno
    try:
        os.write(descriptor, text)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)
    return 0
own = str(os.getpid()).encode()
print(put("schemata", b"MB:0=20\\n"), put("tasks", own), put("be/tasks", pid.encode()), put("be/tasks", own))
"""


def test_users_may_move_their_own_threads_where_the_file_lets_them():
    with tempfile.TemporaryDirectory() as directory, mounted("intel-2s", Path(directory), everyone=True) as handle:
        os.chmod(directory, 0o755)
        os.mkdir(f"{handle.path}/be")
        os.chmod(f"{handle.path}/be/tasks", 0o666)
        command = [sys.executable, "-c", AS_NOBODY, handle.path, str(os.getpid())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
        wanted = [errno.EACCES, errno.EACCES, errno.EPERM, 0]
        assert done.stdout.split() == [str(code) for code in wanted], done.stderr
