from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

import duckdb
import pytest

from predictor.history import FORMAT, Batch, open_history
from predictor.storage import FILE_NAME, HistoryCorrupt, HistoryError, set_aside, set_log_aside
from predictor.store.columns import PodReport
from slacktide.errors import StateError
from tests.predictor.support import WALL_MILLIS, make_sample
from tests.predictor.test_history_pods import HOUR, hours, pod


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


READ_COPIES = """
import sys
from predictor.history import open_history
from predictor.storage import HistoryCorrupt

for directory in sys.argv[1:]:
    try:
        history = open_history(directory)
        list(history.windows(0)), list(history.pod_hours(0)), history.states()
        print("read", history.sizes().samples + history.sizes().slots)
        history.close()
    except HistoryCorrupt as error:
        print("corrupt", "log" if error.in_log else "file")
"""


def unclosed(directory):
    """A history with rows in every table, some in the file and some in its log, as a killed process leaves it."""
    history = open_history(str(directory / "live"))
    history.append([Batch("n1", "b", [make_sample(i) for i in range(1, 1001)])])
    history.fold(WALL_MILLIS + 600_000)
    history.save_pods(PodReport(hours((pod("a"), HOUR, 12, 1, 2)), hours((pod("a"), HOUR + 1, 12, 1, 2))))
    history.save_state("key", bytes(range(256)) * 1000)
    history._connection.execute("CHECKPOINT")
    history.append([Batch("n1", "b", [make_sample(i) for i in range(1001, 1201)])])
    shutil.copytree(directory / "live", directory / "killed")
    history.close()
    return directory / "killed"


def copies(source, count, damage):
    """Copies of `source`, each damaged at a place of its own."""
    made = []
    for seed in range(count):
        made.append(source.with_name(f"copy-{seed}"))
        shutil.copytree(source, made[-1])
        damage(made[-1], random.Random(seed))
    return made


def outcomes(directories):
    """What reading them in another process says; that process must live."""
    command = [sys.executable, "-c", READ_COPIES, *map(str, directories)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=os.getcwd())
    assert done.returncode == 0, done.stderr
    return [tuple(line.split()) for line in done.stdout.splitlines()]


def flip_one_bit(name):
    def damage(directory, rng):
        path = directory / name
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

    return damage


def cut(name):
    def damage(directory, rng):
        os.truncate(directory / name, rng.randrange((directory / name).stat().st_size))

    return damage


def test_one_flipped_bit_in_the_file_is_found_or_does_no_harm(tmp_path):
    source = unclosed(tmp_path)
    (whole,) = outcomes([source])
    found = outcomes(copies(source, 15, flip_one_bit(FILE_NAME)))
    assert {what for what, _ in found} <= {"corrupt", "read"}
    assert all(outcome == whole for outcome in found if outcome[0] == "read")
    assert ("corrupt", "file") in found


def test_a_file_that_was_cut_is_damaged(tmp_path):
    assert set(outcomes(copies(unclosed(tmp_path), 6, cut(FILE_NAME)))) == {("corrupt", "file")}


def test_a_flipped_bit_in_the_log_costs_the_log_only(tmp_path):
    source = unclosed(tmp_path)
    damaged = copies(source, 10, flip_one_bit(FILE_NAME + ".wal"))
    assert set(outcomes(damaged)) == {("corrupt", "log")}
    for directory in damaged:
        kept = set_log_aside(str(directory))
        assert kept.endswith(".wal")
        assert os.path.exists(kept)
    # What the last checkpoint held: the slots, and the samples of the slot that had not ended.
    assert len(set(outcomes(damaged))) == 1
    history = open_history(str(damaged[0]))
    assert history.sizes().slots > 0
    assert history.load_state("key") == bytes(range(256)) * 1000
    history.close()


def test_a_log_that_ends_in_the_middle_is_what_a_kill_leaves(tmp_path):
    assert {what for what, _ in outcomes(copies(unclosed(tmp_path), 6, cut(FILE_NAME + ".wal")))} == {"read"}


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
