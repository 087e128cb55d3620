"""Use from elsewhere, and the history as a file for others."""

from __future__ import annotations

import os
import subprocess
import sys

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.export import export_history
from predictor.history import Batch, open_history
from predictor.slots import SLOT_MILLIS, SLOT_SECONDS, slot_of
from predictor.storage import HistoryError
from predictor.store.columns import PodReport, SlotColumns
from slacktide.errors import StateError
from tests.predictor.support import make_sample
from tests.predictor.test_history_pods import HOUR, hours, pod

START = 1_700_000_100_000 // SLOT_MILLIS * SLOT_MILLIS
SLOT = slot_of(START + 1)


def columns(*rows, covered=300_000):
    """Rows of (node, slot, value): CPU has the value, memory a thousand times it, requests ten times."""
    names = sorted({node for node, _, _ in rows})
    value = np.array([v for _, _, v in rows], dtype=np.float64)
    return SlotColumns(
        names,
        np.array([names.index(node) for node, _, _ in rows], dtype=np.int64),
        np.array([slot for _, slot, _ in rows], dtype=np.int64),
        np.full(len(rows), covered),
        *(value, value, value),
        *(value * 1000, value * 1000, value * 1000),
        *(value * 10, value * 10_000),
    )


def cells(history):
    window = history.window(0)
    return {
        (window.names[n], int(s)): float(c) for n, s, c in zip(window.node, window.slot, window.cpu_millis, strict=True)
    }


def stored(history, what="*"):
    return history._connection.execute(f"SELECT {what} FROM node_slots ORDER BY slot, node").fetchall()


@pytest.fixture
def history(tmp_path):
    store = open_history(str(tmp_path / "history"))
    yield store
    store.close()


def test_use_of_all_kinds_lands_in_one_row(history):
    nothing = columns(("n1", SLOT, np.nan))
    capacity = columns(("n1", SLOT, 32000))._replace(requested_cpu=np.array([np.nan]))
    kinds = {
        "ls": columns(("n1", SLOT, 1000)),
        "protected": columns(("n1", SLOT, 1500.4)),
        "be": nothing,
        "capacity": capacity,
    }
    assert history.import_slots(kinds) == (1, 0)
    what = "slot, imported, covered_millis, ls_cpu_p90, protected_cpu_mean, protected_memory_max, be_cpu_max"
    assert stored(history, what) == [(SLOT, True, 300_000, 1000, 1500, 1_500_400, None)]
    assert stored(history, "capacity_cpu, capacity_memory, be_requested_cpu, system_cpu_p90") == [
        (32000, 32_000_000, None, None)
    ]
    assert cells(history) == {("n1", SLOT): 1500}


def test_doing_it_again_changes_nothing_and_what_is_new_is_added(history):
    given_ = columns(("n1", SLOT, 100), ("n2", SLOT, 200), ("n1", SLOT + 1, 300))
    assert history.import_slots({"protected": given_}) == (3, 0)
    before = stored(history)
    assert history.import_slots({"protected": given_}) == (3, 0)
    assert stored(history) == before
    assert history.import_slots({"ls": columns(("n1", SLOT, 70))}) == (1, 0)
    assert stored(history, "ls_cpu_p90, protected_cpu_p90") == [(70, 100), (None, 200), (None, 300)]


def test_time_that_was_measured_here_is_left_alone(history):
    history.append([Batch("n1", "b", [make_sample(1, START + 1000), make_sample(2, START + SLOT_MILLIS + 1000)])])
    history.fold(START + SLOT_MILLIS)
    given_ = columns(*((node, SLOT + k, 9) for node in ("n1", "n2") for k in (-1, 0, 1, 2)))
    assert history.import_slots({"protected": given_, "ls": given_}) == (6, 2)
    found = cells(history)
    assert found["n1", SLOT] == found["n1", SLOT + 1] == 4500
    assert found["n1", SLOT - 1] == found["n1", SLOT + 2] == found["n2", SLOT] == 9


def test_samples_that_come_after_the_import_take_its_place(history):
    history.import_slots({"protected": columns(("n1", SLOT, 9999), ("n1", SLOT + 1, 9999), ("n2", SLOT, 9999))})
    history.append([Batch("n1", "b", [make_sample(1, START + 1000)])])
    history.fold(START + SLOT_MILLIS)
    assert cells(history) == {("n1", SLOT): 4500, ("n1", SLOT + 1): 9999, ("n2", SLOT): 9999}


def test_a_node_that_was_only_imported_may_come_alive(history, tmp_path):
    history.import_slots({"protected": columns(("n1", SLOT - 5, 10))})
    history.close()
    again = open_history(str(tmp_path / "history"))
    assert again.append([Batch("n1", "b", [make_sample(1, START + 1000)])]) == (1, 0)
    assert cells(again) == {("n1", SLOT - 5): 10, ("n1", SLOT): 4500}
    again.forget_unused()
    again.prune(START)
    assert set(cells(again)) == {("n1", SLOT)}
    again.close()


def test_absurd_numbers_are_not_known(history):
    given_ = columns(("n1", SLOT, 1), ("n2", SLOT, 1), ("n3", SLOT, 1))
    given_ = given_._replace(cpu_p90=np.array([np.inf, -np.inf, 1e30]))
    history.import_slots({"protected": given_})
    assert stored(history, "protected_cpu_p90, protected_cpu_max") == [(None, 1)] * 3


def test_an_import_that_fails_leaves_nothing(history):
    broken = columns(("n1", SLOT, 1))._replace(slot=np.array([2**40]))
    with pytest.raises(HistoryError):
        history.import_slots({"protected": broken})
    assert stored(history) == []
    assert history.window(0).names == []
    assert history.import_slots({"protected": columns(("n1", SLOT, 1))}) == (1, 0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 10**6)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=8),
    st.integers(0, 6),
)
@settings(max_examples=25, deadline=None)
def test_in_any_order_measured_beats_imported(tmp_path_factory, imported, measured, folded):
    history = open_history(str(tmp_path_factory.mktemp("order")))
    rows = {(f"n{n}", SLOT + s): v for n, s, v in imported}
    given_ = columns(*((node, slot, v) for (node, slot), v in rows.items()))
    for count, (node, slot) in enumerate(measured, 1):
        sample = make_sample(count, START + slot * SLOT_MILLIS + 1000, ls_cpu_mean=count * 10, ls_cpu_max=count * 10)
        history.append([Batch(f"n{node}", "b", [sample])])
        if count == folded:
            history.fold(START + 10 * SLOT_MILLIS)
            history.import_slots({"protected": given_})
    history.import_slots({"protected": given_})
    history.fold(START + 10 * SLOT_MILLIS)
    expected = {key: float(v) for key, v in rows.items()}
    here = {}
    for count, (node, slot) in enumerate(measured, 1):
        key = (f"n{node}", SLOT + slot)
        here[key] = max(here.get(key, 0.0), count * 10 + 500.0)
    assert cells(history) == {**expected, **here}
    assert len(stored(history)) == len({*expected, *here})
    history.close()


def exported(path, what="*"):
    return duckdb.sql(f"SELECT {what} FROM '{path}' ORDER BY series, time").fetchall()


def filled(tmp_path):
    history = open_history(str(tmp_path / "history"))
    for node in ("n1", "n2"):
        history.append([Batch(node, "b", [make_sample(i, START + i * 1000) for i in range(1, 500)])])
    history.append([Batch("n3", "b", [make_sample(1, START + 1000, ls_cpu_mean=None, ls_memory_max=None)])])
    history.fold(START + SLOT_MILLIS)
    history.append([Batch("n2", "c", [make_sample(1, START + 1000, ls_cpu_mean=6000)])])
    history.fold(START + 2 * SLOT_MILLIS)
    history.save_pods(PodReport(hours((pod("a"), HOUR, 12, 10, 20), (pod("b"), HOUR + 1, 12, 1, 2)), hours()))
    history.close()
    return str(tmp_path / "history"), str(tmp_path / "out.parquet")


def test_use_of_nodes_as_parquet(tmp_path):
    directory, out = filled(tmp_path)
    told = []
    assert export_history(directory, out, progress=told.append) == 4
    end = (SLOT + 1) * SLOT_SECONDS
    assert exported(out, "time, series, node, usage, request") == [
        (end, "n1", "n1", 4.5, 8.0),
        (end + SLOT_SECONDS, "n1", "n1", 4.5, 8.0),
        # One row although a sample of another boot came after the fold.
        (end, "n2", "n2", 6.5, 8.0),
        (end + SLOT_SECONDS, "n2", "n2", 4.5, 8.0),
    ]
    assert all(0 <= share <= 1 for share in told)
    assert export_history(directory, out, "ls", "memory", since=end) == 2
    assert exported(out, "series, usage, request") == [("n1", 2 << 30, 4 << 30), ("n2", 2 << 30, 4 << 30)]
    assert export_history(directory, out, "capacity") == 5
    assert exported(out, "usage, request")[0] == (32.0, None)


def test_use_of_pods_as_parquet(tmp_path):
    directory, out = filled(tmp_path)
    assert export_history(directory, out, "pods") == 2
    assert exported(out)[0] == ((HOUR + 1) * 3600, "shop/web-a/a", "n1", 0.02, 0.5, 0.01)
    assert export_history(directory, out, "pods", "memory", since=(HOUR + 1) * 3600) == 1
    assert exported(out, "usage, request") == [(2000.0, float(1 << 30))]


def test_no_series_has_a_time_twice(tmp_path):
    directory, out = filled(tmp_path)
    history = open_history(directory)
    history.save_pods(PodReport(hours((pod("a"), HOUR, 4, 50, 15)), hours()))
    history.retire("n1")
    history.append([Batch("n1", "z", [make_sample(1, START + 2000, ls_cpu_mean=100)])])
    history.fold(START + 2 * SLOT_MILLIS)
    history.close()
    assert export_history(directory, out) == 5
    assert [(s, u) for s, u in exported(out, "series, usage") if s.startswith("n1")] == [
        ("n1", 0.6),
        ("n1#1", 4.5),
        ("n1#1", 4.5),
    ]
    assert export_history(directory, out, "pods") == 2
    assert exported(out, "usage, usage_mean")[0] == (0.02, 0.02)


def test_an_export_that_cannot_be_written_says_so_and_leaves_the_old_file(tmp_path):
    directory, out = filled(tmp_path)
    with pytest.raises(HistoryError, match="nowhere"):
        export_history(directory, str(tmp_path / "nowhere" / "out.parquet"))
    os.mkdir(out)
    with pytest.raises(HistoryError, match=r"out\.parquet"):
        export_history(directory, out)
    assert set(os.listdir(tmp_path)) == {"history", "out.parquet"}


def test_what_cannot_be_exported_is_said(tmp_path):
    with pytest.raises(StateError, match="no history"):
        export_history(str(tmp_path), str(tmp_path / "out.parquet"))
    assert os.listdir(tmp_path) == []
    directory, out = filled(tmp_path)
    with pytest.raises(ValueError, match="kinds: ls, system, be, protected, capacity, pods"):
        export_history(directory, out, "lse")
    with pytest.raises(ValueError, match="resources: cpu, memory"):
        export_history(directory, out, "ls", "gpu")


def test_an_export_while_the_predictor_runs_is_refused(tmp_path):
    directory, out = filled(tmp_path)
    code = f"from predictor.history import open_history\nh = open_history({directory!r})\nprint(1, flush=True)\ninput()"
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    try:
        assert owner.stdout.readline() == "1\n"
        with pytest.raises(StateError, match="in use by another process"):
            export_history(directory, out)
    finally:
        owner.communicate("\n", timeout=30)
    assert export_history(directory, out) == 4
