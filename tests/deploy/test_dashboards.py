"""Dashboards: what is checked in is what the code makes, and no panel asks for what nobody exports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from deploy.grafana.__main__ import BOARDS, DIRECTORY
from tests.deploy.test_rules import ROOT, RUNBOOKS, SERIES, named
from tests.test_docs import anchors

QUESTIONS = [(board, question) for board in BOARDS for question in board.questions]
KNOWN_UNITS = {"short", "bytes", "s", "percentunit"}


def test_the_json_is_what_the_code_makes():
    made = subprocess.run(
        [sys.executable, "-m", "deploy.grafana", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert {path.stem for path in DIRECTORY.iterdir()} == {board.uid for board in BOARDS}


@pytest.mark.parametrize(("board", "question"), QUESTIONS, ids=lambda one: getattr(one, "title", ""))
def test_a_panel_asks_a_question_has_a_unit_a_runbook_and_asks_for_what_is_exported(board, question):
    assert question.title.endswith("?")
    assert question.unit in KNOWN_UNITS or question.unit.startswith("suffix:")
    assert question.runbook in anchors(RUNBOOKS)
    for query in question.queries:
        assert named(query.expr), query.expr
        assert named(query.expr) <= SERIES
        assert ("$node" in query.expr) <= (board.variable is not None)


def test_panels_of_one_board_do_not_overlap_and_titles_are_not_repeated():
    for board in BOARDS:
        panels = json.loads((DIRECTORY / f"{board.uid}.json").read_text())["panels"]
        cells = [
            (x, y)
            for panel in panels
            for at in [panel["gridPos"]]
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(cells) == len(set(cells))
        assert all(x < 24 for x, _ in cells)
        titles = [question.title for question in board.questions]
        assert len(titles) == len(set(titles))
