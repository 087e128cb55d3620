from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.spool import FILE_NAME, Spool

PLENTY = 1 << 20


@pytest.fixture
def opened(tmp_path):
    """Opens spools in one directory and closes them all in the end."""
    spools = []

    def make(limit=PLENTY):
        spools.append(Spool(str(tmp_path), limit))
        return spools[-1]

    yield make
    for spool in spools:
        spool.close()


def test_oldest_first_and_an_acknowledged_sample_is_gone(opened):
    spool = opened()
    assert [spool.append("b", bytes([n])) for n in range(5)] == [1, 2, 3, 4, 5]
    assert spool.batch("b", 0, 2) == [(1, b"\x00"), (2, b"\x01")]
    assert spool.batch("b", 2, 9) == [(3, b"\x02"), (4, b"\x03"), (5, b"\x04")]
    assert spool.acknowledge("b", 3) == 3
    assert spool.acknowledge("b", 3) == 0
    assert [sequence for sequence, _ in spool.batch("b", 0, 9)] == [4, 5]
    assert spool.waiting() == 2


def test_the_sequence_of_a_boot_goes_on_after_a_restart(opened):
    spool = opened()
    for _ in range(3):
        spool.append("b1", b"x")
    spool.acknowledge("b1", 3)
    spool.close()
    again = opened()
    assert again.append("b1", b"x") == 4
    assert again.append("b2", b"x") == 1
    assert again.oldest_boot() == "b1"
    assert again.dropped == 0


def test_the_bound_drops_the_oldest_and_counts(opened):
    spool = opened(limit=1000)
    for number in range(10):
        spool.append("b", bytes([number]) * 100)
    kept = [sequence for sequence, _ in spool.batch("b", 0, 99)]
    assert kept == [5, 6, 7, 8, 9, 10]
    assert spool.dropped == 4
    assert spool.size_bytes <= 1000


def test_one_sample_beyond_the_bound_is_kept_rather_than_nothing(opened):
    spool = opened(limit=10)
    spool.append("b", b"x" * 100)
    assert spool.waiting() == 1


def test_a_receipt_beyond_our_sequence_moves_it_on(opened):
    # The database was lost in the middle of a boot: 1 would be an old sample to the predictor.
    spool = opened()
    spool.append("b", b"x")
    spool.acknowledge("b", 500)
    assert spool.append("b", b"x") == 501


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to look at" * 40, b""])
def test_a_file_that_is_no_database_is_set_aside_or_filled(tmp_path, opened, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    spool = opened()
    assert spool.append("b", b"x") == 1
    assert bool(spool.problem) == bool(content)
    assert (tmp_path / f"{FILE_NAME}.bad").exists() == bool(content)


def test_a_newer_database_is_set_aside(tmp_path, opened):
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("PRAGMA user_version = 9")
    database.close()
    spool = opened()
    assert "version 9" in spool.problem
    assert spool.append("b", b"x") == 1


def test_without_any_file_samples_are_kept_in_memory(tmp_path, opened):
    for suffix in ("", ".bad"):
        (tmp_path / f"{FILE_NAME}{suffix}" / "occupied").mkdir(parents=True)
    spool = opened()
    assert "in memory only" in spool.problem
    assert spool.append("b", b"x") == 1
    assert spool.batch("b", 0, 9) == [(1, b"x")]


def test_a_closed_spool_has_nothing_more_to_send(opened):
    spool = opened()
    spool.append("b", b"x")
    spool.close()
    assert spool.batch("b", 0, 9) == []
    assert spool.oldest_boot() is None


def test_a_full_disk_costs_neither_the_agent_nor_the_newest_samples(opened):
    spool = opened()
    spool._db.execute("PRAGMA max_page_count = 1")
    results = [spool.append("b", b"x" * 5000) for _ in range(80)]
    assert None in results
    assert "could not be kept on disk" in spool.problem
    kept = [sequence for sequence, _ in spool.batch("b", 0, 999)]
    assert kept == list(range(81 - len(kept), 81))
    assert len(kept) >= 60
    assert spool.dropped == 80 - len(kept)
    spool.acknowledge("b", 80)
    assert spool.waiting() == len([result for result in results if result is not None])
    spool._db.execute("PRAGMA max_page_count = 100000")
    assert spool.append("b", b"x") == 81


def test_what_is_too_old_goes_and_the_newest_stays(tmp_path):
    now = [1_000_000.0]
    spool = Spool(str(tmp_path), 1 << 20, limit_seconds=100, wall=lambda: now[0])
    try:
        for _ in range(3):
            spool.append("b", b"x")
        now[0] += 101
        assert spool.waiting() == 3
        spool.append("b", b"x")
        assert [sequence for sequence, _ in spool.batch("b", 0, 9)] == [4]
        assert spool.dropped == 3
        now[0] -= 5000
        spool.append("b", b"x")
        assert spool.waiting() == 2
    finally:
        spool.close()


def test_a_spool_of_the_version_before_is_read_and_goes_on(tmp_path, opened):
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.executescript(
        "CREATE TABLE sample (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, sequence INTEGER NOT NULL,"
        " payload BLOB NOT NULL, UNIQUE (boot_id, sequence));"
        "CREATE TABLE boot (boot_id TEXT PRIMARY KEY, last_sequence INTEGER NOT NULL);"
        "INSERT INTO sample (boot_id, sequence, payload) VALUES ('b', 7, x'41'); INSERT INTO boot VALUES ('b', 7);"
        "PRAGMA user_version = 1;"
    )
    database.close()
    spool = opened()
    assert spool.problem == ""
    assert spool.append("b", b"B") == 8
    assert spool.batch("b", 0, 9) == [(7, b"A"), (8, b"B")]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 200), st.just("ack")), max_size=40))
def test_what_waits_is_always_the_newest_in_order(tmp_path_factory, steps):
    spool = Spool(str(tmp_path_factory.mktemp("spool")), 2000)
    try:
        last, acknowledged = 0, 0
        for step in steps:
            if step == "ack":
                acknowledged = max(acknowledged, last - 1)
                spool.acknowledge("b", acknowledged)
            else:
                last = spool.append("b", b"x" * step)
            kept = [sequence for sequence, _ in spool.batch("b", 0, 999)]
            assert kept == list(range(kept[0], last + 1)) if kept else last <= acknowledged
            assert spool.size_bytes == spool._measure() <= 2000
    finally:
        spool.close()
