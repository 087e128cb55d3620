import errno
import os
import stat
import subprocess
import sys
import tempfile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.errors import StateError
from standalone import state
from standalone.process import ProcessId, alive, identify, send, stop, wait_gone
from standalone.state import Lock, StateDir, check_socket_paths, create, find, holder, prepare, resolve


@pytest.fixture
def root():
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        yield os.path.join(folder, "s")


def made(root):
    create(root)
    with Lock(root):
        return prepare(root)


@pytest.mark.parametrize(
    ("option", "environ", "euid", "expected"),
    [
        ("/a/b", {"SLACKTIDE_STATE": "/c"}, 0, "/a/b"),
        (None, {"SLACKTIDE_STATE": "/c/../d"}, 0, "/d"),
        (None, {}, 0, "/var/lib/slacktide"),
        (None, {"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1000, "/x/slacktide"),
        (None, {"HOME": "/h"}, 1000, "/h/.local/state/slacktide"),
        ("", {"SLACKTIDE_STATE": ""}, 0, "/var/lib/slacktide"),
    ],
)
def test_where_the_state_directory_is(option, environ, euid, expected):
    assert resolve(option, environ, euid) == expected


def test_a_relative_directory_is_made_absolute():
    assert resolve("here", {}, 0) == os.path.join(os.getcwd(), "here")


def test_new_directory_is_private_and_keeps_its_instance(root):
    first = made(root)
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
    assert {entry for entry in os.listdir(root) if os.path.isdir(os.path.join(root, entry))} >= {"run", "log", "logs"}
    assert made(root) == first == find(root)
    assert first.cgroup_root == f"slacktide-{first.instance}"


def test_two_directories_are_two_instances(root):
    assert made(root + "1").instance != made(root + "2").instance


def test_open_directory_is_closed_to_others(root):
    os.mkdir(root, 0o755)
    made(root)
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700


def test_nothing_there_is_not_an_error_for_a_reader(root):
    assert find(root) is None
    assert holder(root) is None


def test_somebody_elses_directory_is_left_alone(root):
    os.mkdir(root)
    with open(os.path.join(root, "thesis.tex"), "w"):
        pass
    with pytest.raises(StateError, match="no state directory and not empty"):
        create(root)
    assert os.listdir(root) == ["thesis.tex"]


def test_a_file_in_the_way_is_named(root):
    with open(root, "w"):
        pass
    with pytest.raises(StateError, match=f"{root} cannot be used"):
        create(root)


def test_newer_format_is_refused_and_untouched(root):
    made(root)
    path = os.path.join(root, "state.json")
    with open(path, "wb") as file:
        file.write(msgspec.json.encode({"format": 2, "instance": "new-style", "extra": []}))
    before = os.stat(path)
    with Lock(root), pytest.raises(StateError, match=r"format 2.*knows up to 1.*newer Slacktide"):
        prepare(root)
    with pytest.raises(StateError, match="format 2"):
        find(root)
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "one"}', b'{"format": 1, "instance": "../../etc"}'])
def test_damaged_state_file_is_an_error_and_no_instance(root, content):
    os.mkdir(root)
    with open(os.path.join(root, "state.json"), "wb") as file:
        file.write(content)
    with pytest.raises(StateError, match=r"damaged|instance id"):
        find(root)


def test_second_holder_is_refused_and_told_who_holds(root):
    create(root)
    with Lock(root), pytest.raises(StateError, match=rf"in use.*pid {os.getpid()}.*slacktide down"), Lock(root):
        pass


def test_lock_names_its_holder_and_is_given_back(root):
    create(root)
    with Lock(root):
        assert holder(root) == identify(os.getpid())
    assert holder(root) is None
    with Lock(root):
        pass


def test_lock_of_a_killed_holder_is_free(root):
    create(root)
    code = (
        "import sys,time;from standalone.state import Lock\n"
        f"with Lock({root!r}):\n print('held', flush=True)\n time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        assert holder(root) == identify(process.pid)
        with pytest.raises(StateError, match=f"pid {process.pid}"), Lock(root):
            pass
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert holder(root) is None
    with Lock(root):
        pass


def test_lock_is_not_inherited_by_children(root):
    create(root)
    child = None
    try:
        with Lock(root):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
        with Lock(root):
            pass
    finally:
        child.kill()
        child.wait()


@given(st.integers(min_value=1, max_value=200))
def test_socket_path_check_agrees_with_the_kernels_limit(length):
    root = "/" + "r" * length
    longest = max(len(os.fsencode(path)) for path in StateDir(root, "").sockets())
    if longest <= 107:
        check_socket_paths(root)
    else:
        with pytest.raises(StateError, match=rf"has {longest} bytes.*{longest - 107} bytes shorter"):
            check_socket_paths(root)


def test_too_long_path_is_refused_before_anything_is_made(root):
    long = root + "x" * 100
    with pytest.raises(StateError, match="a Unix socket may have 107"):
        create(long)
    assert not os.path.exists(long)


def test_bytes_count_not_letters():
    with pytest.raises(StateError, match="bytes"):
        check_socket_paths("/" + "\N{SNOWMAN}" * 30)


def test_full_file_system_is_said_with_numbers(root):
    os.mkdir(root)
    with pytest.raises(StateError, match=r"has \d+ MiB left, \d+ MiB are needed"):
        state.check_space(root, minimum=1 << 62)
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "full"), (errno.EROFS, "read-only"), (errno.EACCES, "no permission"), (errno.EIO, "Input/output")],
)
def test_each_reason_has_its_advice(number, words):
    error = OSError(number, os.strerror(number), "/state/run")
    assert words in str(state._unusable("/state", error))
    assert "/state/run" in str(state._unusable("/state", error))


def test_really_full_file_system(root):
    os.mkdir(root)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", root], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        with pytest.raises(StateError, match="0 MiB left"):
            made(root)
    finally:
        subprocess.run(["umount", root], check=True)


def test_really_read_only_file_system(root):
    os.mkdir(root)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", root], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        with pytest.raises(StateError, match="read-only"):
            made(root)
    finally:
        subprocess.run(["umount", root], check=True)


def test_process_is_named_by_pid_and_start_time():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        me = identify(child.pid)
        assert alive(me)
        impostor = ProcessId(child.pid, me.start_time - 1)
        assert not alive(impostor)
        assert not send(impostor, 9)
        assert stop(impostor, 1.0)
        assert alive(me)
        assert not wait_gone(me, 0.01)
    finally:
        child.kill()
        assert wait_gone(me, 5)
        assert not alive(me)
        child.wait()
    assert identify(child.pid) is None


def test_stubborn_process_is_killed():
    code = "import signal,time;signal.signal(15,signal.SIG_IGN);print(1,flush=True);time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert not stop(identify(child.pid), 0.05)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert child.returncode == -9
