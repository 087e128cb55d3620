"""The history stays within its limit: the oldest days go, and what they leave is used again or given back."""

from __future__ import annotations

import os
import shutil

import pytest

from predictor import history as module
from predictor.history import open_history
from predictor.storage import FILE_NAME, HistoryError
from predictor.store.columns import PodReport, no_hours
from predictor.store.schema import VALUES
from predictor.store.size import space
from tests.predictor.test_history_pods import hours, pod

FIRST_DAY = 19_676
SLOTS = 288
NODES = 430


def fill(history, days, first=FIRST_DAY):
    """Days of slots that do not compress well: about 12 MB and one row group each."""
    values = ", ".join(f"hash(s * 31 + n * 7 + {k}) % 100000000 AS {column}" for k, column in enumerate(VALUES))
    names = [f"n{n}" for n in range(NODES)]
    history._boots.adopt(history._boots.ids_of(names), {})
    for day in range(first, first + days):
        history._connection.execute(
            f"INSERT INTO node_slots BY NAME SELECT s AS slot, n AS node, false AS imported, 300000 AS covered_millis, "
            f"{values} FROM range({day * SLOTS}, {(day + 1) * SLOTS}) a(s), range(1, {NODES + 1}) b(n)"
        )
    history._connection.execute("CHECKPOINT")


def days(history):
    rows = history._connection.execute(f"SELECT DISTINCT slot // {SLOTS} FROM node_slots ORDER BY 1").fetchall()
    return [day - FIRST_DAY for (day,) in rows]


def file_bytes(directory):
    return os.path.getsize(os.path.join(directory, FILE_NAME))


@pytest.fixture(scope="module")
def four_days(tmp_path_factory):
    directory = tmp_path_factory.mktemp("four-days")
    history = open_history(str(directory))
    fill(history, 4)
    rows = [(pod("a"), (FIRST_DAY + day) * 24, 12, 1, 2) for day in range(4)]
    history.save_pods(PodReport(hours(*rows), no_hours()))
    history.save_state("key", b"value")
    history.close()
    return directory / FILE_NAME


@pytest.fixture
def filled(tmp_path, four_days):
    shutil.copy(four_days, tmp_path / FILE_NAME)
    history = open_history(str(tmp_path))
    yield history
    history.close()


def test_the_oldest_days_go_until_the_rest_has_room(filled):
    found = space(filled._connection, filled.path)
    used = found.file_bytes - found.free_bytes
    limit = int(used * 0.7 / 0.8)
    dropped = filled.limit(limit)
    assert dropped.until_slot == (FIRST_DAY + 1) * SLOTS
    assert dropped.bytes_before == used
    assert days(filled) == [1, 2, 3]
    assert [int(part.hour[0]) // 24 - FIRST_DAY for part in filled.pod_hours(0) if len(part.hour)] == [1]
    assert filled.limit(limit) is not None
    assert filled.limit(limit) is None
    assert days(filled) == [2, 3]


def test_what_was_removed_is_used_again(filled, tmp_path):
    before = file_bytes(tmp_path)
    for day in range(4, 6):
        filled.prune((FIRST_DAY + day - 3) * 86_400_000)
        filled._connection.execute("CHECKPOINT")
        fill(filled, 1, FIRST_DAY + day)
    assert days(filled) == [2, 3, 4, 5]
    assert file_bytes(tmp_path) < before * 1.5


def test_the_newest_day_stays_whatever_the_limit(filled):
    while filled.limit(1 << 20) is not None:
        pass
    assert days(filled) == [3]


def test_a_history_within_its_limit_is_left_alone(filled):
    assert filled.limit(1 << 30) is None
    assert days(filled) == [0, 1, 2, 3]


def test_after_the_limit_was_lowered_the_file_shrinks_at_the_start(filled, tmp_path):
    before = file_bytes(tmp_path)
    window = filled.window((FIRST_DAY + 3) * 86_400_000)
    filled.close()
    history = open_history(str(tmp_path), before // 2)
    assert file_bytes(tmp_path) <= before // 2
    assert days(history)[-1] == 3
    assert 0 not in days(history)
    again = history.window((FIRST_DAY + 3) * 86_400_000)
    assert again.names == window.names
    for one, other in zip(again[1:], window[1:], strict=True):
        assert sorted(one) == sorted(other)
    assert history.load_state("key") == b"value"
    assert os.listdir(tmp_path) == [FILE_NAME]
    history.close()


def test_without_room_for_a_copy_the_history_goes_on_as_large_as_it_is(filled, tmp_path, monkeypatch):
    before = file_bytes(tmp_path)
    filled.close()

    def full(*_):
        raise HistoryError("history: No space left on device")

    monkeypatch.setattr(module, "copy_rows", full)
    history = open_history(str(tmp_path), before // 2)
    assert days(history)[-1] == 3
    assert file_bytes(tmp_path) >= before // 2
    history.close()
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_what_a_killed_process_moved_out_of_memory_is_removed(tmp_path):
    (tmp_path / f"{FILE_NAME}.tmp").mkdir()
    (tmp_path / f"{FILE_NAME}.tmp" / "duckdb_temp_storage-0.tmp").write_bytes(b"rows")
    open_history(str(tmp_path)).close()
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_a_copy_that_was_cut_off_is_removed(tmp_path):
    (tmp_path / f"{FILE_NAME}.copy").write_bytes(b"half")
    (tmp_path / f"{FILE_NAME}.copy.wal").write_bytes(b"half")
    open_history(str(tmp_path)).close()
    assert os.listdir(tmp_path) == [FILE_NAME]
