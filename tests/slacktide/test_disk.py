import os
import stat

import pytest

from slacktide.disk import try_lock, write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_whole_and_private(tmp_path, durable):
    path = tmp_path / "state.json"
    write_atomically(str(path), b"old", durable=durable)
    before = os.stat(path).st_ino
    with open(path, "rb") as reader:
        write_atomically(str(path), b"x" * 100_000, durable=durable)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"x" * 100_000
    assert os.stat(path).st_ino != before
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_write_that_the_kernel_takes_in_parts_is_written_to_its_end(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:3])))
    write_atomically(str(tmp_path / "a"), b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_what_cannot_be_written_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(str(path), b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(str(path), b"new")
    assert path.read_bytes() == b"old"


def test_a_relative_path_is_as_good(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomically("a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_one_holder_at_a_time_and_the_next_once_it_lets_go(tmp_path):
    path = str(tmp_path / "lock")
    first = try_lock(path)
    assert try_lock(path) is None
    os.close(first)
    second = try_lock(path)
    assert second is not None
    os.close(second)


def test_a_lock_that_is_not_there_is_made_only_on_demand(tmp_path):
    with pytest.raises(FileNotFoundError):
        try_lock(str(tmp_path / "lock"), create=False)
    assert os.listdir(tmp_path) == []
