from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standalone.api.podlogs import STREAMS, Joined, LogReader, Wanted, parse_line, rotated, since, tail


def line(number, stream="stdout", mark="F", text=None):
    return f"2026-01-01T00:00:{number:02}.123456789Z {stream} {mark} {text or f'line {number}'}\n"


def read(path):
    with contextlib.closing(LogReader(path)) as reader:
        return drained(reader)


def drained(reader):
    found = []
    while (entries := reader.poll()) is not None:
        found += entries
    return found


def shown(entries, **wanted):
    joined = Joined(Wanted(**wanted))
    return b"".join(map(joined.text, entries)).decode()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "0.log")


def write(path, *lines, mode="a"):
    with open(path, mode) as file:
        file.write("".join(lines))


def test_lines_of_the_cri_format():
    entry = parse_line(line(1)[:-1].encode())
    assert (entry.stream, entry.text, entry.whole) == (b"stdout", b"line 1\n", True)
    assert parse_line(b"2026-01-01T00:00:00Z stderr P part").text == b"part"
    assert parse_line(b"2026-01-01T00:00:00Z stdout F ").text == b"\n"
    assert parse_line(b"2026-01-01T00:00:00Z stdout F").text == b"\n"
    assert parse_line(b"2026-01-01T00:00:00Z stdout F:tag x").text == b"x\n"
    for torn in (b"", b"x", b"a b", b"time other F x"):
        assert parse_line(torn) is None


def test_streams_parts_and_times(path):
    write(path, line(1), line(2, "stderr"), line(3, mark="P", text="half "), line(4, "stderr"), line(5, text="whole"))
    entries = read(path)
    assert shown(entries) == "line 1\nline 2\nhalf line 4\nwhole\n"
    assert shown(entries, streams=STREAMS["Stdout"]) == "line 1\nhalf whole\n"
    assert shown(entries, streams=STREAMS["Stderr"]) == "line 2\nline 4\n"
    times = shown(entries, streams=STREAMS["Stdout"], timestamps=True)
    assert times == "2026-01-01T00:00:01.123456789Z line 1\n2026-01-01T00:00:03.123456789Z half whole\n"
    late = shown(entries, since=datetime(2026, 1, 1, 0, 0, 4, tzinfo=UTC))
    assert late == "line 4\nwhole\n"


def test_a_torn_last_line_waits_for_its_end(path):
    write(path, line(1), line(2)[:-5])
    with contextlib.closing(LogReader(path)) as reader:
        assert len(drained(reader)) == 1
        write(path, line(2)[-5:])
        assert shown(drained(reader)) == "line 2\n"
        assert reader.poll() is None


def test_the_file_may_come_later(path):
    with contextlib.closing(LogReader(path)) as reader:
        assert reader.poll() is None
        write(path, line(1))
        assert shown(drained(reader)) == "line 1\n"


def rotate(path):
    for number in range(len(rotated(path)) - 1, 0, -1):
        os.rename(f"{path}.{number}", f"{path}.{number + 1}")
    os.rename(path, f"{path}.1")


def test_older_files_are_read_first(path):
    for number in (1, 2, 3):
        write(path, line(number))
        rotate(path)
    write(path, line(4))
    assert [os.path.basename(found) for found in rotated(path)] == ["0.log.3", "0.log.2", "0.log.1", "0.log"]
    assert shown(read(path)) == "line 1\nline 2\nline 3\nline 4\n"


@given(st.lists(st.sampled_from(["write", "rotate", "read"]), max_size=30))
def test_nothing_is_lost_or_repeated_over_rotations(tmp_path_factory, steps):
    path = str(tmp_path_factory.mktemp("log") / "0.log")
    reader, written, got = LogReader(path), [], ""
    for step in steps:
        if step == "write":
            written.append(f"line {len(written)}")
            write(path, line(0, text=written[-1]))
        elif step == "rotate" and os.path.exists(path):
            rotate(path)
        else:
            got += shown(drained(reader))
    got += shown(drained(reader))
    reader.close()
    assert got.splitlines() == written


@pytest.mark.parametrize(("count", "expected"), [(0, ""), (1, "c\n"), (2, "b1b2\nc\n"), (9, "a\nb1b2\nc\n")])
def test_tail_counts_whole_lines(path, count, expected):
    write(
        path, line(1, text="a"), line(2, mark="P", text="b1"), line(3, "stderr"), line(4, text="b2"), line(5, text="c")
    )
    wanted = Wanted(streams=STREAMS["Stdout"], tail_lines=count)
    assert shown(tail(read(path), wanted), streams=STREAMS["Stdout"]) == expected


def test_since():
    now = datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert since(now, 3600, "") == datetime(2026, 1, 1, tzinfo=UTC)
    assert since(now, None, "2026-01-01T00:00:00.123456789Z") == datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
    assert since(now, None, "") is None
