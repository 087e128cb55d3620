"""docs/tested-facts.md: every test that it names exists, and no row was lost."""

from __future__ import annotations

import ast
import json
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "tested-facts.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[^`:]+)::([^`]+)`", PAGE)))
UNTESTED = "Rows without a test here"
ROWS = {
    "Values of resctrl": 24,
    "What the kernel answers": 21,
    "Failures": 20,
    "Bug reports": 20,
    "Koordinator, on the node": 40,
    "Other peers, on the node": 23,
    "Beside a real kubelet": 12,
    UNTESTED: 4,
}


def tables():
    """Title -> cells of each row below it."""
    found = {}
    for part in PAGE.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
        found[title] = cells[2:]
    return found


@lru_cache
def names_in(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".json"):
        return frozenset(vector["name"] for vector in json.loads(text)["vectors"])
    return frozenset(node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path}::{name}" for path, name in NAMED])
def test_it_exists(path, name):
    assert (ROOT / path).is_file(), f"{path} is gone: name the test that has the fact now"
    assert name in names_in(path), f"{name} is not in {path}: name the test that has the fact now"
    assert path.endswith(".json") or name.startswith("test_")


def test_every_fact_has_a_test_or_a_reason():
    for title, rows in tables().items():
        for row in rows:
            assert len(row) == (2 if title == UNTESTED else 3), row
            assert title == UNTESTED or re.search(r"`tests/[^`:]+::[^`]+`", row[-1]), row
            assert all(row), row


def test_no_row_was_lost():
    """A row that is added or merged changes a number here, on purpose."""
    assert {title: len(rows) for title, rows in tables().items()} == ROWS
