from __future__ import annotations

import os
import shutil
import threading

import pytest

from predictor import upkeep
from predictor.history import Batch, open_history
from predictor.slots import SLOT_SECONDS, slot_of
from predictor.storage import FILE_NAME, HistoryCorrupt, HistoryError, set_aside, set_log_aside
from predictor.store.columns import PodReport, no_hours
from predictor.store.size import Dropped
from predictor.upkeep import FOLD_LAG_SECONDS
from predictor.writer import Place, Writer, WriterRules, gather_seconds
from slacktide.errors import StateError
from tests.predictor.support import WALL_MILLIS, eventually, make_sample
from tests.predictor.test_history_pods import HOUR, hours, pod

RULES = WriterRules(commit_seconds=0.0, queue_samples=100, retention_days=1.0, window_days=1.0, max_bytes=1 << 30)


class Store:
    """A history on disk of which single calls can be made to fail."""

    def __init__(self, directory):
        self.inner = open_history(directory)
        self.failures = {}
        self.done = []

    def __getattr__(self, name):
        def call(*arguments):
            if self.failures.get(name):
                raise self.failures[name].pop() if isinstance(self.failures[name], list) else self.failures[name]
            result = getattr(self.inner, name)(*arguments)
            self.done.append((name, *arguments))
            return result

        return call


@pytest.fixture
def stage(tmp_path, clock, metrics):
    class Stage:
        directory = str(tmp_path)

        def __init__(self):
            self.stores = []
            self.windows = []
            self.pods = []
            self.reports = []
            place = Place(self.open, lambda: set_aside(self.directory), lambda: set_log_aside(self.directory))
            self.writer = Writer(place, RULES, clock, metrics, self.windows.append, self.pods.append, self.take_pods)

        def take_pods(self):
            return self.reports.pop(0) if self.reports else PodReport(no_hours(), no_hours())

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


def damage_log(directory):
    """Leave a history whose newest minutes, in the log, are damaged."""
    live = directory / "live"
    history = open_history(str(live))
    history.append([Batch("n1", "b", [make_sample(1, WALL_MILLIS - 3_600_000)])])
    history.save_state("key", b"value")
    history._connection.execute("CHECKPOINT")
    history.append([Batch("n2", "b", [make_sample(1)])])
    for name in (FILE_NAME, FILE_NAME + ".wal"):
        shutil.copy(live / name, directory / name)
    history.close()
    shutil.rmtree(live)
    log = directory / (FILE_NAME + ".wal")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)


def test_damage_in_the_log_costs_the_newest_minutes_only(stage, tmp_path):
    damage_log(tmp_path)
    stage.writer.start()
    assert stage.writer.problem() is None
    assert [window.names for window in stage.windows] == [["n1"]]
    assert stage.writer.load_state("key") == b"value"
    assert stage.write(make_sample(2))
    (kept,) = [name for name in os.listdir(tmp_path) if ".corrupt-" in name]
    assert kept.endswith(".wal")


def test_damage_in_both_sets_both_aside(stage, tmp_path):
    damage_log(tmp_path)
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    # The first block tells where everything else is.
    path.write_bytes(data[:12_288] + os.urandom(len(data) - 12_288))
    stage.writer.start()
    assert stage.writer.problem() is None
    assert stage.write(make_sample(1))
    assert len([name for name in os.listdir(tmp_path) if ".corrupt-" in name]) >= 2


def test_states_are_saved_soon_and_come_back(stage, tmp_path, clock, metrics):
    stage.writer.start()
    assert stage.writer.load_state("engine") is None
    stage.writer.save_state("engine", b"1")
    stage.writer.save_state("engine", b"2")
    assert stage.writer.load_state("engine") == b"2"
    eventually(lambda: ("save_state", "engine", b"2") in stage.stores[0].done)
    assert stage.writer.stop(10)
    again = Writer(Place(stage.open, lambda: ""), RULES, clock, metrics, lambda _: None)
    again.start()
    assert again.load_state("engine") == b"2"
    assert again.stop(10)


def test_a_state_saved_in_the_last_moment_is_kept(stage):
    stage.writer.start()
    stage.writer.save_state("engine", b"last")
    assert stage.writer.stop(10)
    history = open_history(stage.directory)
    assert history.load_state("engine") == b"last"
    history.close()


def test_states_outlive_a_history_that_was_set_aside(stage):
    stage.writer.start()
    stage.writer.save_state("engine", b"learned")
    eventually(lambda: ("save_state", "engine", b"learned") in stage.stores[0].done)
    stage.stores[0].failures["append"] = [HistoryCorrupt("history is damaged: checksum")]
    assert not stage.write(make_sample(1))
    assert stage.write(make_sample(1))
    eventually(lambda: ("save_state", "engine", b"learned") in stage.stores[1].done)


def test_a_state_that_cannot_be_written_is_tried_again(stage, clock):
    stage.writer.start()
    stage.stores[0].failures["save_state"] = [HistoryError("history: No space left on device")]
    stage.writer.save_state("engine", b"1")
    eventually(lambda: stage.writer.problem())
    clock.advance(2)
    assert stage.write(make_sample(1))
    eventually(lambda: ("save_state", "engine", b"1") in stage.stores[1].done)


def stored_hours(store):
    return {
        (p.pods[k].uid, int(h)): int(n)
        for p in store.pod_hours(0)
        for k, h, n in zip(p.pod, p.hour, p.slots, strict=True)
    }


def test_pods_are_asked_for_every_few_minutes_and_at_the_end(stage, clock):
    stage.reports = [
        PodReport(hours((pod("a"), HOUR, 12, 1, 2)), hours((pod("a"), HOUR + 1, 2, 1, 2))),
        PodReport(no_hours(), hours((pod("a"), HOUR + 1, 5, 1, 2))),
    ]
    stage.writer.start()
    assert stage.write(make_sample(1))
    clock.advance(400)
    eventually(lambda: len(stage.reports) == 1)
    assert stage.writer.stop(10)
    assert stage.reports == []
    history = open_history(stage.directory)
    assert stored_hours(history) == {("a", HOUR): 12, ("a", HOUR + 1): 5}
    history.close()


def test_hours_that_could_not_be_stored_are_not_lost(stage, clock):
    stage.reports = [
        PodReport(hours((pod("a"), HOUR, 12, 1, 2)), no_hours()),
        PodReport(hours((pod("b"), HOUR, 11, 1, 2)), no_hours()),
    ]
    stage.writer.start()
    stage.stores[0].failures["save_pods"] = [HistoryError("history: No space left on device")]
    assert stage.write(make_sample(1))
    clock.advance(400)
    eventually(lambda: stage.writer.problem())
    clock.advance(2)
    assert stage.write(make_sample(2))
    assert stage.writer.stop(10)
    history = open_history(stage.directory)
    assert stored_hours(history) == {("a", HOUR): 12, ("b", HOUR): 11}
    history.close()


def test_pods_of_the_history_are_handed_on_at_the_start(stage):
    history = open_history(stage.directory)
    hour = WALL_MILLIS // 3_600_000
    rows = [(pod("old"), hour - 10 * 24, 12, 1, 2), (pod("a"), hour - 2, 12, 1, 2)]
    history.save_pods(PodReport(hours(*rows), hours((pod("a"), hour, 3, 1, 2))))
    history.close()
    stage.writer.start()
    handed = {
        (p.pods[k].uid, int(h)): int(n) for p in stage.pods for k, h, n in zip(p.pod, p.hour, p.slots, strict=True)
    }
    assert handed == {("a", hour - 2): 12, ("a", hour): 3}


def test_many_nodes_are_folded_in_several_steps_with_commits_between(stage, clock, monkeypatch, registry):
    monkeypatch.setattr(upkeep, "NODES_AT_ONCE", 3)
    stage.writer.start()
    for node in range(8):
        assert stage.write(make_sample(1), node=f"n{node}")
    clock.advance(SLOT_SECONDS + FOLD_LAG_SECONDS + 31)
    eventually(lambda: registry.get_sample_value("slacktide_predictor_history_rows", {"table": "slots"}) == 8)
    assert registry.get_sample_value("slacktide_predictor_history_rows", {"table": "samples"}) == 0
    (edge,) = {call[1] for call in stage.stores[0].done if call[0] == "fold" and call[3] == 3}
    assert [call[2:] for call in stage.stores[0].done if call[:2] == ("fold", edge)] == [(0, 3), (1, 3), (2, 3)]
    assert stage.write(make_sample(2), node="n3")


def test_a_node_that_was_made_anew(stage):
    stage.writer.start()
    assert stage.write(make_sample(1))
    stage.writer.retire("n1")
    eventually(lambda: ("retire", "n1") in stage.stores[0].done)
    assert stage.write(make_sample(2))


def test_days_that_go_for_lack_of_room_are_counted(stage, clock, registry):
    stage.writer.start()
    assert stage.write(make_sample(1))
    given = [Dropped(100, 1 << 40), Dropped(388, 1 << 39)]
    stage.stores[0].inner.limit = lambda _: given.pop(0) if given else None
    clock.advance(31)
    name = "slacktide_predictor_history_days_dropped_total"
    eventually(lambda: registry.get_sample_value(name) == 2)


@pytest.mark.parametrize(
    ("commit_seconds", "took", "waits"),
    [(0.05, 0.0, 0.05), (0.05, 0.004, 0.05), (0.05, 0.02, 0.18), (0.05, 3.0, 0.5), (2.0, 0.02, 2.0), (2.0, 9.0, 2.0)],
)
def test_samples_gather_longer_where_a_durable_write_takes_long_up_to_half_a_second(commit_seconds, took, waits):
    assert gather_seconds(commit_seconds, took) == pytest.approx(waits)
