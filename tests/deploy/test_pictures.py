"""Pictures of the dashboards: one of each on its page, small; and how answers are drawn."""

from __future__ import annotations

import io
import math

import pytest
from PIL import Image

from deploy.grafana.__main__ import BOARDS
from deploy.grafana.panels import BYTES, CORES, COUNT, RATE, SECONDS, SHARE, Board, Query, Question, Section, Shape
from deploy.grafana.picture import COLUMNS, PANEL_PIXELS, Series, last, name, picture, shown
from tests.deploy.test_rules import ROOT

PICTURES = ROOT / "docs" / "pictures"
PAGE = (ROOT / "docs" / "dashboards.md").read_text()
MOST_BYTES = 1 << 20


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_dashboard_has_a_picture_on_its_page(board):
    assert f"(pictures/{board.uid}.png)" in PAGE
    with Image.open(PICTURES / f"{board.uid}.png") as image:
        # One that was drawn before a panel came has a row too few.
        rows = math.ceil(len(board.questions) / COLUMNS)
        assert image.height == pytest.approx(rows * PANEL_PIXELS, abs=2)


def test_all_pictures_together_are_small():
    assert sum(path.stat().st_size for path in PICTURES.glob("*.png")) < MOST_BYTES


def board(*questions):
    return Board("uid", "title", "about", (Section("row", questions),))


def pixels(made):
    with Image.open(io.BytesIO(made)) as image:
        return image.convert("RGB").tobytes()


def test_every_shape_is_drawn_and_shows_its_answer():
    for shape in Shape:
        one = board(Question("Is it?", CORES, (Query("a", "{{tier}}"),), "x", shape=shape, warn=1, bad=2))
        answers = [
            [Series({"tier": "BE"}, [(0.0, 1.0), (60.0, math.nan), (120.0, 3.0)])],
            [Series({"tier": "LS"}, [(0.0, 9.0), (60.0, 2.0)])],
            [],
        ]
        drawn = {pixels(picture(one, lambda query, answer=answer: answer)) for answer in answers}
        assert len(drawn) == 3, shape


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, SHARE, "50 %"),
        (3 * 1024**3, BYTES, "3 GiB"),
        (0.0421, SECONDS, "42.1 ms"),
        (0.0, SECONDS, "0 s"),
        (90.0, SECONDS, "90 s"),
        (1.5, CORES, "1.5 cores"),
        (2.0, RATE, "2/s"),
        (12_345.0, COUNT, "12,345"),
        (math.nan, CORES, "no data"),
    ],
)
def test_values_are_shown_as_people_read_them(value, unit, text):
    assert shown(value, unit) == text


def test_legends_are_made_of_labels_and_the_newest_known_value_counts():
    one = Series({"kind": "psi"}, [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan)])
    assert name(Query("x", "pressure, {{kind}}"), one) == "pressure, psi"
    assert last(one) == 2.0
    assert math.isnan(last(Series({}, [])))
