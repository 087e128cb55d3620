from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.errors import StateError
from standalone.runner.attempts import Phase, Stopping
from standalone.runner.records import Config, CorruptRecord, ExitRecord, Store
from standalone.runner.shim.files import Reserved, write_json

CID = "c" * 64
BOOT = "boot-1"


def config(cid=CID, **fields):
    base = {
        "id": cid,
        "pod_uid": "u",
        "namespace": "default",
        "pod": "web",
        "container": "main",
        "number": 2,
        "crashes": 1,
        "created_at": 1.0,
        "argv": ["true"],
        "env": {},
        "cwd": "",
        "dirs": [],
        "kill_file": "",
        "freezer": "",
        "oom_file": "",
        "oom_score_adj": 0,
        "log_path": "",
        "log_max_bytes": 1,
        "log_keep": 1,
        "wake": "",
    }
    return Config(**{**base, **fields})


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path), BOOT)
    yield made
    made.close()


def exit_record(**fields):
    return ExitRecord(**{"exit_code": 3, "finished_at": 9.0, "finished_monotonic": 8.0, "boot_id": BOOT, **fields})


def test_the_lock_tells_life_and_death(store):
    lock = store.create(config())
    assert store.read(CID).attempt.phase is Phase.STARTING
    write_json(
        store.path(CID, "started.json"), {"pid": 1, "start_ticks": 1, "started_at": 2.0, "started_monotonic": 3.0}
    )
    assert store.read(CID).attempt.phase is Phase.RUNNING
    os.close(lock)
    assert store.read(CID).attempt.phase is Phase.LOST
    store.note_exit(CID, exit_record())
    attempt = store.read(CID).attempt
    assert attempt.phase is Phase.EXITED
    assert (attempt.exit.code, attempt.exit.finished, attempt.number, attempt.crashes) == (3, 8.0, 2, 1)


def test_monotonic_times_of_another_boot_mean_nothing(store):
    os.close(store.create(config()))
    store.note_stopping(CID, Stopping(signalled=5.0, grace_seconds=3.0))
    store.note_exit(CID, exit_record(started_monotonic=2.0))
    assert store.read(CID).attempt.stopping.kill_at() == 8.0
    store._boot_id = "boot-2"
    attempt = store.read(CID).attempt
    assert attempt.stopping is None
    assert attempt.exit.finished is None
    assert attempt.exit.ran_seconds == 6.0


def test_one_runner_a_directory(store, tmp_path):
    with pytest.raises(StateError, match="another runner"):
        Store(str(tmp_path), BOOT)


def test_a_directory_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="--state-dir"):
        Store(str(tmp_path / "file"), BOOT)


def test_a_half_made_attempt_is_swept_at_the_start(tmp_path):
    (tmp_path / "containers" / ".new-x").mkdir(parents=True)
    store = Store(str(tmp_path), BOOT)
    store.close()
    assert os.listdir(tmp_path / "containers") == []


@pytest.mark.parametrize("name", ["config.json", "exit.json", "started.json", "shim.json", "stopping.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"exit_code": "x"}', '{"a": 1}"', "\x00" * 10])
def test_torn_files_are_corrupt_and_can_be_set_aside(store, name, content):
    os.close(store.create(config()))
    with open(store.path(CID, name), "w", encoding="utf-8") as file:
        file.write(content)
    with pytest.raises(CorruptRecord, match=name):
        store.read(CID)
    where = store.set_aside(CID)
    assert os.path.isdir(where)
    assert store.ids() == []


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_crash_the_reader(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("records")
    store = Store(str(directory), BOOT)
    try:
        os.close(store.create(config()))
        with open(store.path(CID, "exit.json"), "wb") as file:
            file.write(data)
        with contextlib.suppress(CorruptRecord):
            store.read(CID)
    finally:
        store.close()


def test_a_record_of_another_format_is_not_guessed_at(store):
    os.close(store.create(config(format=2)))
    with pytest.raises(CorruptRecord, match="format 2"):
        store.read(CID)


def test_a_directory_of_a_newer_version_is_refused_and_left_alone(tmp_path):
    store = Store(str(tmp_path), BOOT)
    os.close(store.create(config(format=2)))
    store.close()
    with pytest.raises(StateError, match=f"{CID} has format 2.*use the newer Slacktide"):
        Store(str(tmp_path), BOOT)
    assert os.path.exists(store.path(CID, "config.json"))


def test_a_record_that_cannot_be_read_does_not_stop_the_start(tmp_path):
    store = Store(str(tmp_path), BOOT)
    os.close(store.create(config()))
    Path(store.path(CID, "config.json")).write_bytes(b"{torn")
    store.close()
    Store(str(tmp_path), BOOT).close()


def test_reserved_space_is_used_in_place_and_read_back(tmp_path):
    path = str(tmp_path / "x.json")
    reserved = Reserved(path)
    before = os.stat(f"{path}.reserve").st_ino
    reserved.write({"a": 1})
    assert os.stat(path).st_ino == before
    assert json.loads(Path(path).read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_what_does_not_fit_the_reserve_is_written_anew(tmp_path):
    path = str(tmp_path / "x.json")
    Reserved(path).write({"a": "b" * 5000})
    assert json.loads(Path(path).read_text())["a"] == "b" * 5000
