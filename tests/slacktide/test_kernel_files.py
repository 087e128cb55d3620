from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.errors import Gone, KernelError, NotPermitted, Refused, SlacktideError, Unsupported
from slacktide.kernel import files
from slacktide.kernel.hierarchy import checked_group

# reference/kernel.md, section 2.1: what the kernel answers, and what it means here.
ERRNO = [
    (errno.ENOENT, Gone),  # path below a removed cgroup
    (errno.ENODEV, Gone),  # held descriptor after rmdir
    (errno.ESRCH, Gone),  # cgroup.procs: dead pid
    (errno.EOPNOTSUPP, Unsupported),  # PSI disabled at boot; cgroup.kill of a threaded cgroup
    (errno.ENOSYS, Unsupported),
    (errno.ENXIO, Unsupported),
    (errno.EACCES, NotPermitted),
    (errno.EPERM, NotPermitted),
    (errno.EROFS, NotPermitted),
    (errno.EINVAL, Refused),  # quota 999, burst above quota, cpu.idle 2
    (errno.EBUSY, Refused),  # rmdir populated, memory limit below usage
    (errno.ERANGE, Refused),  # cgroup.freeze 2
    (errno.ENOSPC, Refused),  # attach to a cpuset without CPUs
    (errno.E2BIG, Refused),  # 5000 bytes
    (errno.EAGAIN, Refused),  # memory.reclaim short of its target
]


@pytest.mark.parametrize(("code", "meaning"), ERRNO, ids=[errno.errorcode[code] for code, _ in ERRNO])
def test_errno_table(code, meaning):
    error = files.translate("/sys/x", OSError(code, os.strerror(code)))
    assert type(error) is meaning
    assert (error.path, error.errno) == ("/sys/x", code)
    assert str(error) == f"/sys/x: {os.strerror(code)}"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_lack_of_our_own_is_no_answer_about_the_value(code):
    error = files.translate("/sys/x", OSError(code, os.strerror(code)))
    assert type(error) is KernelError
    assert isinstance(error, SlacktideError)


def test_an_error_without_errno_keeps_its_text():
    assert files.translate("/sys/x", OSError("odd")).detail == "odd"


def test_read_missing_is_gone(tmp_path):
    with pytest.raises(Gone, match=r"cpu\.stat: No such file"):
        files.read_text(str(tmp_path / "cpu.stat"))


def test_read_whole_file_and_broken_utf8(tmp_path):
    path = tmp_path / "memory.stat"
    path.write_bytes(b"a 1\n" * 50_000 + b"\xff")
    text = files.read_text(str(path))
    assert len(text) == 200_001
    assert text.endswith("\N{REPLACEMENT CHARACTER}")


def test_read_and_write_relative_to_a_directory_that_is_held(tmp_path):
    group = tmp_path / "group"
    group.mkdir()
    (group / "cpu.idle").write_text("0\n")
    held = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files.write_value("cpu.idle", 1, dir_fd=held)
        assert files.read_int("cpu.idle", dir_fd=held) == 1
        (group / "cpu.idle").unlink()
        group.rmdir()
        group.mkdir()
        (group / "cpu.idle").write_text("0\n")
        with pytest.raises(Gone):
            files.read_int("cpu.idle", dir_fd=held)
    finally:
        os.close(held)


def test_write_replaces_a_longer_value(tmp_path):
    path = tmp_path / "cpu.max"
    path.write_text("1000000 100000\n")
    files.write_value(str(path), "max")
    assert path.read_text() == "max"


def test_write_never_creates_a_file(tmp_path):
    with pytest.raises(Gone):
        files.write_value(str(tmp_path / "cpu.max"), "max")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_write_is_refused_because_the_kernel_would_ignore_it(tmp_path):
    path = tmp_path / "cpuset.cpus"
    path.write_text("0-1")
    with pytest.raises(Refused, match="newline clears"):
        files.write_value(str(path), "")
    assert path.read_text() == "0-1"


def test_a_directory_is_no_value(tmp_path):
    with pytest.raises(Refused):
        files.read_text(str(tmp_path))
    with pytest.raises(Refused):
        files.write_value(str(tmp_path), 1)


class WriteStub:
    """Stands in for os.write, the one call whose kernel answers a plain file cannot give."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    def __call__(self, descriptor, data):
        self.calls.append(data)
        if isinstance(self.answer, int):
            return self.answer
        raise self.answer


@pytest.fixture
def kernel_says(monkeypatch, tmp_path):
    path = tmp_path / "knob"
    path.write_text("old")

    def arrange(answer):
        stub = WriteStub(answer)
        monkeypatch.setattr(files.os, "write", stub)
        return str(path), stub

    return arrange


def test_a_value_is_one_write(kernel_says):
    path, stub = kernel_says(9)
    files.write_value(path, "max 10000")
    assert stub.calls == [b"max 10000"]


def test_a_short_write_is_refused_and_not_continued(kernel_says):
    path, stub = kernel_says(3)
    with pytest.raises(Refused, match="short write: 3 of 9"):
        files.write_value(path, "max 10000")
    assert len(stub.calls) == 1


def test_eacces_on_the_write_itself_is_about_the_value(kernel_says):
    path, _ = kernel_says(OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(Refused):
        files.write_value(path, "7")


@pytest.mark.parametrize(
    ("code", "meaning"), [(errno.EPERM, NotPermitted), (errno.ENODEV, Gone), (errno.EINVAL, Refused)]
)
def test_any_other_errno_of_the_write_keeps_its_meaning(kernel_says, code, meaning):
    path, _ = kernel_says(OSError(code, os.strerror(code)))
    with pytest.raises(meaning):
        files.write_value(path, "7")


def test_descriptors_are_closed_whatever_happens(tmp_path, kernel_says):
    path, _ = kernel_says(OSError(errno.EINVAL, "Invalid argument"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(Refused):
            files.write_value(path, "7")
        with pytest.raises(Refused):
            files.read_text(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("text", "value"), [("5\n", 5), ("-1\n", -1), ("9223372036854771712", 9223372036854771712), (" 7 ", 7)]
)
def test_read_int(tmp_path, text, value):
    path = tmp_path / "knob"
    path.write_text(text)
    assert files.read_int(str(path)) == value


@pytest.mark.parametrize("text", ["max\n", "", "1 2", "1_0", "\u0661", "0x1", "1.5"])
def test_read_int_of_anything_else_is_refused(tmp_path, text):
    path = tmp_path / "knob"
    path.write_text(text)
    with pytest.raises(Refused, match="expected one number"):
        files.read_int(str(path))


def test_parse_flat_skips_what_it_does_not_know():
    text = "nr_periods 10\nthrottled_usec 5\nnew a b\n\nneg -3\nodd --5\npower \u00b2\nhalf 0.5\nlast 1\n"
    assert files.parse_flat(text) == {"nr_periods": 10, "throttled_usec": 5, "neg": -3, "last": 1}


@given(st.text(max_size=200))
def test_parse_flat_never_raises(text):
    assert all(isinstance(value, int) for value in files.parse_flat(text).values())


@pytest.mark.parametrize("group", ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\nb", "a\0b"])
def test_a_group_that_leaves_its_root_is_refused(group):
    with pytest.raises(ValueError, match="leaves its root"):
        checked_group(group)


@given(
    st.lists(st.sampled_from(["a", "..", ".", "", "/", "kubepods", "pod1.slice", "x y", "\n", "\\", "~"]), max_size=6)
)
def test_checked_group_never_escapes(parts):
    group = "/".join(parts)
    try:
        path = os.path.join("/sys/fs/cgroup/cpu", checked_group(group))
    except ValueError:
        return
    normal = os.path.normpath(path)
    assert normal == path
    assert normal.startswith("/sys/fs/cgroup/cpu/")


@given(st.text(max_size=30))
def test_checked_group_never_escapes_for_any_text(group):
    try:
        path = os.path.join("/root", checked_group(group))
    except ValueError:
        return
    assert os.path.normpath(path).startswith("/root/")
