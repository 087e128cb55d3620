from __future__ import annotations

import os
import threading

import pytest

from predictor.history import Batch, open_history
from predictor.slots import SLOT_SECONDS, slot_of
from predictor.storage import FILE_NAME, HistoryCorrupt, HistoryError, set_aside
from predictor.upkeep import FOLD_LAG_SECONDS
from predictor.writer import Place, Writer, WriterRules
from slacktide.errors import StateError
from tests.predictor.support import WALL_MILLIS, eventually, make_sample

RULES = WriterRules(commit_seconds=0.0, queue_samples=100, retention_days=1.0, window_days=1.0, max_bytes=1 << 30)


class Store:
    """A history on disk of which single calls can be made to fail."""

    def __init__(self, directory):
        self.inner = open_history(directory)
        self.failures = {}

    def __getattr__(self, name):
        def call(*arguments):
            if self.failures.get(name):
                raise self.failures[name].pop() if isinstance(self.failures[name], list) else self.failures[name]
            return getattr(self.inner, name)(*arguments)

        return call


@pytest.fixture
def stage(tmp_path, clock, metrics):
    class Stage:
        directory = str(tmp_path)

        def __init__(self):
            self.stores = []
            self.windows = []
            self.writer = Writer(
                Place(self.open, lambda: set_aside(self.directory)), RULES, clock, metrics, self.windows.append
            )

        def open(self):
            self.stores.append(Store(self.directory))
            return self.stores[-1]

        def write(self, *samples, node="n1"):
            answer, told = [], threading.Event()

            def done(durable):
                answer.append(durable)
                told.set()

            assert self.writer.submit(Batch(node, "b", samples), done)
            assert told.wait(10)
            return answer[0]

    stage = Stage()
    yield stage
    if stage.writer._thread.ident is not None:
        assert stage.writer.stop(10)


def test_a_damaged_history_is_set_aside_at_the_start_and_the_service_goes_on_cold(stage, tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    stage.writer.start()
    assert stage.writer.problem() is None
    assert stage.write(make_sample(1))
    assert [name for name in os.listdir(tmp_path) if ".corrupt-" in name]
    assert stage.windows[0].names == []


def test_damage_found_while_running_is_set_aside_too(stage, tmp_path):
    stage.writer.start()
    assert stage.write(make_sample(1))
    stage.stores[0].failures["append"] = [HistoryCorrupt("history is damaged: checksum")]
    assert not stage.write(make_sample(2))
    assert stage.write(make_sample(2))
    assert len([name for name in os.listdir(tmp_path) if ".corrupt-" in name]) == 1


def test_a_newer_history_stops_the_start(stage):
    history = open_history(stage.directory)
    history._connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    history.close()
    with pytest.raises(StateError, match="format 99"):
        stage.writer.start()


def test_a_failed_write_is_said_and_tried_again_after_a_pause(stage, clock):
    stage.writer.start()
    stage.stores[0].failures["append"] = HistoryError("history: No space left on device")
    assert not stage.write(make_sample(1))
    assert "No space left" in stage.writer.problem()
    assert not stage.write(make_sample(1))
    assert len(stage.stores) == 1
    clock.advance(1.5)
    assert stage.write(make_sample(1))
    assert len(stage.stores) == 2
    assert stage.writer.problem() is None


def test_an_unforeseen_error_fails_its_batch_and_not_the_writer(stage, clock):
    stage.writer.start()
    stage.stores[0].failures["append"] = [ValueError("nobody foresaw this")]
    assert not stage.write(make_sample(1))
    assert "nobody foresaw this" in stage.writer.problem()
    clock.advance(1.5)
    assert stage.write(make_sample(1))


def test_past_slots_are_folded_and_old_ones_removed(stage, clock, registry):
    stage.writer.start()
    old = WALL_MILLIS - 2 * 86_400_000
    assert stage.write(make_sample(1, old), make_sample(2, WALL_MILLIS), make_sample(3, WALL_MILLIS + 50_000_000))
    clock.advance(SLOT_SECONDS + FOLD_LAG_SECONDS + 31)

    def rows(table):
        return registry.get_sample_value("slacktide_predictor_history_rows", {"table": table})

    # Sample 1 was too old to keep, sample 3 has not ended yet.
    eventually(lambda: rows("slots") == 1)
    assert rows("samples") == 1
    assert registry.get_sample_value("slacktide_predictor_history_bytes") > 0


def test_a_fold_that_fails_keeps_the_samples(stage, clock):
    stage.writer.start()
    assert stage.write(make_sample(1))
    stage.stores[0].failures["fold"] = HistoryError("history: No space left on device")
    clock.advance(1000)
    eventually(lambda: stage.writer.problem())
    clock.advance(2)
    assert stage.write(make_sample(2))
    eventually(lambda: len(stage.stores) == 2)


def test_upkeep_that_breaks_does_not_end_the_writer(stage, clock):
    stage.writer.start()
    assert stage.write(make_sample(1))
    stage.stores[0].failures["sizes"] = ValueError("nobody foresaw this")
    clock.advance(40)
    eventually(lambda: "nobody foresaw this" in (stage.writer.problem() or ""))
    clock.advance(2)
    assert stage.write(make_sample(2))
    assert stage.writer.ended() is None


def test_what_waits_is_written_before_the_end_and_nothing_is_taken_after_it(stage):
    stage.writer.start()
    answers = []
    for sequence in range(1, 20):
        assert stage.writer.submit(Batch("n1", "b", [make_sample(sequence)]), answers.append)
    assert stage.writer.stop(10)
    assert answers == [True] * 19
    assert not stage.writer.submit(Batch("n1", "b", [make_sample(20)]), answers.append)
    history = open_history(stage.directory)
    assert history.sizes().samples == 19
    history.close()


def test_the_window_is_handed_on_at_the_start(stage):
    history = open_history(stage.directory)
    history.append([Batch("n1", "b", [make_sample(1, WALL_MILLIS - 3_600_000)])])
    history.close()
    stage.writer.start()
    (window,) = stage.windows
    assert window.names == ["n1"]
    assert list(window.slot) == [slot_of(WALL_MILLIS - 3_600_000)]
    assert list(window.cpu_millis) == [4500.0]
