"""The lanes of `python -m tests.run`: every test is in one, and in one only."""

from __future__ import annotations

from pathlib import Path

from tests.run import HERE, lanes


def test_every_file_with_tests_is_in_one_lane(tmp_path):
    given = [Path(path) for lane in lanes(tmp_path) for path in lane.paths]
    assert len(given) == len(set(given))
    files = set(HERE.rglob("test_*.py"))
    assert {file for file in files if not any(file == path or path in file.parents for path in given)} == set()


def test_what_wants_a_cpu_of_its_own_comes_last_in_its_lane(tmp_path):
    first = lanes(tmp_path)[0]
    assert [Path(path).name for path in first.paths[-2:]] == ["kernel", "whole"]
