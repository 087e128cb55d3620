"""A history of an older format is read on."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from predictor.history import FORMAT, Batch, open_history
from predictor.samples import Sample
from predictor.slots import SLOT_MILLIS, slot_of
from predictor.storage import FILE_NAME
from tests.predictor.support import make_sample

START = 1_700_000_100_000 // SLOT_MILLIS * SLOT_MILLIS
SLOT = slot_of(START + 1)

INTEGERS = [name for name in Sample._fields if name != "ls_pressure"]
SAMPLE_COLUMNS = ", ".join(f"{name} {'BIGINT' if name in INTEGERS else 'DOUBLE'}" for name in Sample._fields)
FORMAT_1 = f"""
CREATE TABLE meta (key VARCHAR, value VARCHAR);
CREATE TABLE nodes (id INTEGER, name VARCHAR);
CREATE TABLE boots (id INTEGER, node INTEGER, boot VARCHAR, high BIGINT, newest_millis BIGINT, holes VARCHAR);
CREATE TABLE series (id INTEGER, node INTEGER, kind VARCHAR, key VARCHAR);
CREATE TABLE samples (boot INTEGER, {SAMPLE_COLUMNS});
CREATE TABLE slots (
    series INTEGER, slot BIGINT, covered_millis BIGINT,
    cpu_mean DOUBLE, cpu_p90 DOUBLE, cpu_max BIGINT,
    memory_mean DOUBLE, memory_p90 DOUBLE, memory_max BIGINT,
    requested_cpu BIGINT, requested_memory BIGINT);
INSERT INTO meta VALUES ('format', '1'), ('created_by', '0.1');
INSERT INTO nodes VALUES (1, 'n1'), (2, 'n2');
INSERT INTO boots VALUES (1, 1, 'b', 300, {START + 300_000}, '7-9'), (2, 2, 'c', 0, 0, '');
INSERT INTO series VALUES (1, 1, 'ls', ''), (2, 1, 'be', ''), (3, 1, 'system', ''), (4, 1, 'protected', ''),
    (5, 1, 'capacity', ''), (6, 2, 'protected', '');
INSERT INTO slots VALUES
    (1, {SLOT}, 297000, 1000.4, 1500, 1600, 10, 11, 12, 8000, 99),
    (2, {SLOT}, 297000, 1, 2, 3, 4, 5, 6, 7, 8),
    (4, {SLOT}, 297000, 1200.6, 1700, 1800, 20, 21, 22, 8000, 99),
    (5, {SLOT}, 297000, 32000, 32000, 32000, 64, 64, 64, NULL, NULL),
    -- A late sample added a row, as format 1 did.
    (4, {SLOT}, 3000, 100, 1750, 1900, 20, 21, 30, 8000, 99),
    (6, {SLOT + 3}, 300000, NULL, NULL, NULL, 40, 41, 42, NULL, NULL);
"""


@pytest.fixture
def history(tmp_path):
    with duckdb.connect(str(tmp_path / FILE_NAME)) as connection:
        connection.execute(FORMAT_1)
        values = ", ".join(repr(v) if v is not None else "NULL" for v in make_sample(301, START + 301_000))
        connection.execute(f"INSERT INTO samples VALUES (1, {values})")
    store = open_history(str(tmp_path))
    yield store
    store.close()


def test_slots_of_format_1_become_rows_of_format_2(history):
    def of(columns, node):
        return history._connection.execute(f"SELECT {columns} FROM node_slots WHERE node = {node}").fetchall()

    assert of("slot, covered_millis, imported, ls_cpu_mean, ls_cpu_p90, ls_cpu_max", 1) == [
        (SLOT, 297000, False, 1000, 1500, 1600)
    ]
    assert of("be_cpu_mean, be_cpu_p90, be_cpu_max, be_memory_max, be_requested_cpu", 1) == [(1, 2, 3, 6, 7)]
    assert of("protected_cpu_mean, protected_cpu_p90, protected_memory_max, ls_requested_memory", 1) == [
        (1201, 1750, 30, 99)
    ]
    assert of("capacity_cpu, capacity_memory, system_cpu_mean, system_memory_max", 1) == [(32000, 64, None, None)]
    assert of("protected_cpu_p90, protected_memory_max, ls_cpu_p90, capacity_cpu", 2) == [(None, 42, None, None)]


def test_the_window_and_what_is_durable_are_as_before(history):
    window = history.window(0)
    cells = {
        (window.names[n], int(s)): (c, m)
        for n, s, c, m in zip(window.node, window.slot, window.cpu_millis, window.memory_bytes, strict=True)
    }
    assert cells["n1", SLOT] == (1750, 30)
    assert cells["n1", SLOT + 1] == (4500, (2 << 30) + (1 << 29))
    assert np.isnan(cells["n2", SLOT + 3][0])
    assert cells["n2", SLOT + 3][1] == 42
    again = [make_sample(i, START + i * 1000) for i in (6, 8, 300, 301, 302)]
    assert history.append([Batch("n1", "b", again)]) == (2, 3)


def test_the_file_says_its_new_format_and_opens_again(history, tmp_path):
    history.append([Batch("n3", "b", [make_sample(1, START)])])
    history.fold(START + 10 * SLOT_MILLIS)
    history.close()
    with duckdb.connect(str(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchall() == [(str(FORMAT),)]
        tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    assert "slots" not in tables
    assert "series" not in tables
    store = open_history(str(tmp_path))
    assert set(store.window(0).names) == {"n1", "n2", "n3"}
    store.close()


def test_a_history_that_cannot_be_brought_up_to_date_stays_as_it_was(tmp_path):
    with duckdb.connect(str(tmp_path / FILE_NAME)) as connection:
        connection.execute(FORMAT_1)
        # A table in the way of a new one makes the change fail half way.
        connection.execute("CREATE TABLE state (something INTEGER)")
    from predictor.storage import HistoryError

    with pytest.raises(HistoryError, match="state"):
        open_history(str(tmp_path))
    with duckdb.connect(str(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchall() == [("1",)]
        assert connection.execute("SELECT count(*) FROM slots").fetchall() == [(6,)]
