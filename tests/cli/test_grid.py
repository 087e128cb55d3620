"""Tables for any terminal: nothing is lost, nothing is wider than the terminal, and no cell steers it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.grid import GAP, STYLES, Grid, ansi, bare, cells_of, fit, plain, wrap

COLUMNS = ("NAME", "STATUS", "REASON")
ROWS = (
    ("web", "Running", ""),
    ("batch-7", "Pending", "0/3 nodes: 2 have no room for 1500 millicores, 1 is closed: memory is low"),
)
TEXT = st.text(max_size=60)


def drawn(width=None, columns=COLUMNS, rows=ROWS, note=""):
    return [bare(line) for line in Grid(columns, rows, note).lines(width)]


def test_without_a_terminal_a_row_is_a_line():
    assert drawn() == [
        "NAME     STATUS   REASON",
        "web      Running",
        "batch-7  Pending  0/3 nodes: 2 have no room for 1500 millicores, 1 is closed: memory is low",
    ]


def test_sentences_are_wrapped_where_they_do_not_fit():
    assert drawn(60) == [
        "NAME     STATUS   REASON",
        "web      Running",
        "batch-7  Pending  0/3 nodes: 2 have no room for 1500",
        "                  millicores, 1 is closed: memory is low",
    ]


def test_sentences_stand_below_their_row_where_there_is_no_place_beside():
    assert drawn(33) == [
        "NAME     STATUS",
        "web      Running",
        "batch-7  Pending",
        "    0/3 nodes: 2 have no room for",
        "    1500 millicores, 1 is closed:",
        "    memory is low",
    ]


def test_where_columns_do_not_fit_rows_become_records():
    assert drawn(15) == [
        "NAME    web",
        "STATUS  Running",
        "",
        "NAME    batch-7",
        "STATUS  Pending",
        "REASON  0/3",
        "        nodes:",
        "        2 have",
        "        no room",
        "        for",
        "        1500",
        "        millico",
        "        res, 1",
        "        is",
        "        closed:",
        "        memory",
        "        is low",
    ]


def test_a_note_stands_below():
    assert drawn(note="... 3 more")[-1] == "... 3 more"


def test_two_columns_of_sentences_share_what_is_left():
    widths = fit(("CHECK", "EVIDENCE", "REMEDY"), (8, 20, 200), 100)
    assert widths == [8, 20, 100 - 8 - 20 - 2 * GAP]


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=4), st.integers(20, 200))
def test_no_line_is_wider_than_the_terminal_and_no_character_is_lost(rows, width):
    lines = drawn(width, rows=rows)
    assert all(cells_of(line) <= width for line in lines)
    shown = "".join("".join(lines).split())
    for row in rows:
        for cell in row:
            for character in "".join(plain(cell).split()):
                assert character in shown


@given(TEXT, st.integers(2, 40))
def test_wrapped_text_is_the_text(text, width):
    text = " ".join(plain(text).split())
    lines = wrap(text, width)
    assert all(cells_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(TEXT)
def test_what_is_shown_has_no_control_characters(text):
    assert plain(text) == plain(plain(text))
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in plain(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines", "two lines"),
        ("\x1b[2J\x1b]0;gone\x07", "?[2J?]0;gone?"),
        ("\u202egnp.exe", "?gnp.exe"),
        ("Zürich", "Zürich"),
    ],
)
def test_what_could_steer_a_terminal_does_not_get_through(text, shown):
    assert plain(text) == shown


def test_wide_characters_take_two_cells_and_marks_none():
    assert [cells_of(text) for text in ("abc", "日本", "e\u0301", "▁▂")] == [3, 4, 1, 2]
    assert drawn(rows=[("日本", "ok", ""), ("ab", "ok", "")])[1:] == ["日本  ok", "ab    ok"]


def test_words_carry_their_colour_and_nothing_else_does():
    line = Grid(COLUMNS, ROWS).lines(None)[1]
    assert ansi(line) == "web      \x1b[32mRunning\x1b[0m"
    assert STYLES["Running"] == "green"
    assert "\x1b" not in bare(line)
