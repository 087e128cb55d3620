from __future__ import annotations

import numpy as np
import pytest

from predictor.history import Batch, open_history
from predictor.slots import SLOT_MILLIS, percentile_90, slot_of
from tests.predictor.support import make_sample

START = 1_700_000_100_000 // SLOT_MILLIS * SLOT_MILLIS


def samples(first, count, step=1000, **values):
    return [make_sample(i, START + i * step, **values) for i in range(first, first + count)]


def rows(history, query):
    return history._connection.execute(query).fetchall()


@pytest.fixture
def history(tmp_path):
    store = open_history(str(tmp_path / "history"))
    yield store
    store.close()


def as_set(window):
    cells = zip(window.node, window.slot, window.cpu_millis, window.memory_bytes, strict=True)
    return {(window.names[n], int(s), float(c), float(m)) for n, s, c, m in cells}


def test_what_was_appended_is_there_after_reopening(tmp_path):
    directory = str(tmp_path)
    history = open_history(directory)
    batch = Batch("n1", "b1", samples(1, 400, ls_cpu_mean=7000))
    assert history.append([batch, Batch("n2", "b9", samples(1, 3))]) == (403, 0)
    before = as_set(history.window(0))
    history.close()
    history = open_history(directory)
    assert as_set(history.window(0)) == before
    assert history.append([batch]) == (0, 400)
    assert ("n1", slot_of(START + 1), 7500.0, float((2 << 30) + (1 << 29))) in before
    history.close()


def test_duplicates_and_reorders_are_stored_once(history):
    given = samples(1, 20)
    assert history.append([Batch("n1", "b", given[5:10])]) == (5, 0)
    assert history.append([Batch("n1", "b", [given[2], given[12], given[7]])]) == (2, 1)
    assert history.append([Batch("n1", "b", given), Batch("n1", "b", given)]) == (13, 27)
    assert rows(history, "SELECT count(*), count(DISTINCT sequence) FROM samples") == [(20, 20)]


def test_the_same_sequence_of_another_boot_or_node_is_another_sample(history):
    assert history.append([Batch(n, b, samples(1, 2)) for n in ("n1", "n2") for b in ("b1", "b2")]) == (8, 0)


def test_missing_values_are_stored_as_null(history):
    history.append([Batch("n1", "b", samples(1, 3, ls_cpu_mean=None, system_memory_max=None, ls_pressure=None))])
    found = rows(
        history, "SELECT count(ls_cpu_mean), count(system_memory_max), count(ls_pressure), count(*) FROM samples"
    )
    assert found == [(0, 0, 0, 3)]
    window = history.window(0)
    assert np.isnan(window.cpu_millis).all()
    assert np.isnan(window.memory_bytes).all()


def test_fold_keeps_mean_p90_maximum_and_requests_of_each_kind(history):
    given = [
        make_sample(i, START + i * 1000, ls_cpu_mean=i * 10, ls_cpu_max=i * 20, system_cpu_mean=1, system_cpu_max=2)
        for i in range(1, 301)
    ]
    history.append([Batch("n1", "b", given)])
    assert history.fold(START + SLOT_MILLIS) == 300

    def cpu(kind):
        (found,) = rows(history, f"SELECT {kind}_cpu_mean, {kind}_cpu_p90, {kind}_cpu_max FROM node_slots")
        return found

    assert cpu("ls") == (1505, 2700, 6000)
    assert cpu("system") == (1, 1, 2)
    assert cpu("protected") == (1506, 2701, 6002)
    assert cpu("be") == (100, 100, 200)
    rest = "covered_millis, ls_requested_cpu, be_requested_memory, capacity_cpu, be_memory_max, imported"
    assert rows(history, f"SELECT {rest} FROM node_slots") == [(300_000, 8000, 0, 32000, 1 << 20, False)]
    assert rows(history, "SELECT count(*) FROM samples") == [(0,)]


def test_folding_changes_neither_the_window_nor_what_is_known_as_durable(tmp_path):
    history = open_history(str(tmp_path))
    given = samples(1, 700)
    history.append([Batch("n1", "b", given[:300] + given[310:])])
    before = as_set(history.window(0))
    assert history.fold(START + 2 * SLOT_MILLIS + 1234) == 590
    assert as_set(history.window(0)) == before
    history.close()
    history = open_history(str(tmp_path))
    assert as_set(history.window(0)) == before
    assert history.append([Batch("n1", "b", given)]) == (10, 690)
    history.close()


def test_memory_and_disk_agree_on_what_stands_for_a_slot(history):
    rng = np.random.default_rng(1)
    given = samples(1, 700)
    given = [s._replace(ls_cpu_mean=int(v)) for s, v in zip(given, rng.integers(0, 20000, len(given)), strict=True)]
    expected = {}
    for sample in given:
        expected.setdefault(slot_of(sample.end_millis), []).append(sample.protected_cpu_mean)
    history.append([Batch("n1", "b", given)])
    history.fold(START + SLOT_MILLIS)
    window = history.window(0)
    found = dict(zip(window.slot.tolist(), window.cpu_millis.tolist(), strict=True))
    assert found == {slot: percentile_90(values) for slot, values in expected.items()}
    assert len(found) == 3


def test_gaps_stay_gaps(history):
    history.append([Batch("n1", "b", [make_sample(1, START + 1000), make_sample(2, START + 5 * SLOT_MILLIS + 1000)])])
    history.fold(START + 10 * SLOT_MILLIS)
    assert sorted(history.window(0).slot) == [slot_of(START + 1), slot_of(START + 5 * SLOT_MILLIS + 1)]
    unmeasured = samples(10, 2, ls_cpu_mean=None, ls_cpu_max=None, ls_memory_mean=None, ls_memory_max=None)
    history.append([Batch("n2", "b", unmeasured)])
    history.fold(START + 10 * SLOT_MILLIS)
    values = "ls_cpu_p90, protected_cpu_p90, protected_memory_max, be_cpu_p90, system_memory_max, capacity_cpu"
    query = f"SELECT {values} FROM node_slots JOIN nodes ON node = nodes.id WHERE name = 'n2'"
    assert rows(history, query) == [(None, None, None, 100, 1 << 29, 32000)]


def test_samples_that_come_after_the_fold_count_too(history):
    history.append([Batch("n1", "b", samples(1, 100, ls_cpu_mean=1000))])
    history.fold(START + SLOT_MILLIS)
    history.append([Batch("n1", "b", samples(101, 100, ls_cpu_mean=9000))])
    history.fold(START + SLOT_MILLIS)
    window = history.window(0)
    assert list(window.cpu_millis) == [9500.0]


def test_retention_removes_old_rows_and_what_belonged_to_them(history):
    history.append([Batch("old", "b", samples(1, 5)), Batch("n1", "b", samples(1, 700))])
    history.fold(START + 2 * SLOT_MILLIS)
    history.prune(START + SLOT_MILLIS)
    history.forget_unused()
    assert set(history.window(0).names) == {"n1"}
    assert sorted(set(history.window(0).slot)) == [
        slot_of(START + SLOT_MILLIS + 1),
        slot_of(START + 2 * SLOT_MILLIS + 1),
    ]
    assert rows(history, "SELECT name FROM nodes") == [("n1",)]
    assert history.append([Batch("n1", "b", samples(690, 11))]) == (0, 11)
    assert history.append([Batch("newer", "b", samples(701, 2))]) == (2, 0)
    assert set(history.window(0).names) == {"n1", "newer"}


def test_the_window_begins_where_it_is_asked_to(history):
    history.append([Batch("n1", "b", samples(1, 700))])
    history.fold(START + SLOT_MILLIS)
    assert sorted(history.window(START + SLOT_MILLIS).slot) == [slot_of(START + k * SLOT_MILLIS + 1) for k in (1, 2)]


def test_sizes(history):
    history.append([Batch("n1", "b", samples(1, 7))])
    sizes = history.sizes()
    assert (sizes.samples, sizes.slots) == (7, 0)
    assert sizes.file_bytes > 0
