from __future__ import annotations

import os
import subprocess
import sys

import duckdb
import pytest

from predictor.history import FORMAT, Batch, open_history
from predictor.storage import FILE_NAME, HistoryCorrupt, HistoryError, set_aside
from slacktide.errors import StateError
from tests.predictor.support import make_sample


def filled(directory):
    history = open_history(str(directory))
    history.append([Batch("n1", "b", [make_sample(i) for i in range(1, 2000)])])
    history.close()
    return directory / FILE_NAME


def garbage(path):
    path.write_bytes(os.urandom(20_000))


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def flip(path):
    data = bytearray(path.read_bytes())
    for offset in range(4096 * 3, len(data), 512):
        data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [garbage, truncate, empty, flip])
def test_a_damaged_file_is_told_and_can_be_set_aside(tmp_path, damage):
    path = filled(tmp_path)
    damage(path)

    def read_all():
        history = open_history(str(tmp_path))
        try:
            history.window(0)
        finally:
            history.close()

    with pytest.raises(HistoryCorrupt):
        read_all()
    kept = set_aside(str(tmp_path))
    assert os.path.exists(kept)
    history = open_history(str(tmp_path))
    assert history.window(0).names == []
    assert history.append([Batch("n1", "b", [make_sample(1)])]) == (1, 0)
    history.close()


def test_setting_aside_twice_keeps_both(tmp_path):
    kept = []
    for _ in range(2):
        garbage(tmp_path / FILE_NAME)
        kept.append(set_aside(str(tmp_path)))
    assert len({*kept}) == 2
    assert all(os.path.exists(path) for path in kept)


def test_a_newer_format_is_refused_and_left_alone(tmp_path):
    path = filled(tmp_path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", [str(FORMAT + 1)])
    before = path.read_bytes()
    with pytest.raises(StateError, match=rf"history format {FORMAT + 1}.*upgrade"):
        open_history(str(tmp_path))
    assert path.read_bytes() == before


def test_a_history_in_use_is_refused(tmp_path):
    history = open_history(str(tmp_path))
    code = f"from predictor.history import open_history\nopen_history({str(tmp_path)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    history.close()
    assert other.returncode == 1
    assert "StateError" in other.stderr
    assert "in use by another process" in other.stderr


def test_a_directory_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="--history-dir"):
        open_history(str(tmp_path / "file" / "below"))


def test_a_half_made_file_of_a_process_that_died_while_creating_it_is_finished(tmp_path):
    duckdb.connect(str(tmp_path / FILE_NAME)).close()
    history = open_history(str(tmp_path))
    assert history.append([Batch("n1", "b", [make_sample(1)])]) == (1, 0)
    history.close()


@pytest.fixture
def tiny(tmp_path):
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_loses_nothing_that_was_stored(tiny):
    history = open_history(str(tiny))
    stored = 0

    def fill():
        nonlocal stored
        while True:
            batch = [make_sample(i, ls_cpu_max=(i * 7919) % 32000) for i in range(stored + 1, stored + 1001)]
            history.append([Batch("n1", "b", batch)])
            stored += 1000

    with pytest.raises(HistoryError, match="No space left"):
        fill()
    assert stored > 0
    history.close()
    history = open_history(str(tiny))
    assert history.sizes().samples >= stored
    history.close()
