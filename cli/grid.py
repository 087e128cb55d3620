"""A table without frame, as people know it from kubectl: laid out for a width, or one line a row without one. Pure.

Where a row does not fit, sentences are wrapped, or stand below their row; where even that is too wide, each row becomes
a few lines `COLUMN value`.
Cells are plain text: brackets are no markup, and control characters, which could steer a terminal, do not get through.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

Piece = tuple[str, str]
"""Some text and its style."""

HEADER: Final = "bold"
STYLES: Final = {
    "ready": "green",
    "ok": "green",
    "Running": "green",
    "Succeeded": "green",
    "skipped": "yellow",
    "starting": "yellow",
    "restarting": "yellow",
    "not ready": "yellow",
    "Pending": "yellow",
    "Terminating": "yellow",
    "warning": "yellow",
    "problem": "bold red",
    "crash loop": "bold red",
    "Failed": "bold red",
}
"""Words that carry a colour, in every table alike."""

ANSI: Final = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "bold red": "1;31"}
"""Codes of the styles, ECMA-48 SGR."""

WRAPPED: Final = frozenset({"REASON", "DETAIL", "MESSAGE", "CONSEQUENCE", "WHAT", "EVIDENCE", "REMEDY", "FOUND", "WHY"})
"""Columns of sentences, which may go over several lines."""

GAP: Final = 2
INDENT: Final = "    "
LEAST: Final = 16
"""A column of sentences is not made narrower than this."""


class Grid:
    """Columns and rows of text. `note` is a line below that is no row."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> None:
        self._columns = list(columns)
        self._rows = [[plain(cell) for cell in row] for row in rows]
        self._note = note

    def lines(self, width: int | None) -> list[list[Piece]]:
        """Lines of pieces for a terminal of `width` cells; None is any width."""
        widths = [
            max([cells_of(column), *(cells_of(row[index]) for row in self._rows)])
            for index, column in enumerate(self._columns)
        ]
        fitted = widths if width is None else fit(self._columns, widths, width)
        if fitted is not None:
            made = self._table(fitted)
        elif width is not None and self._sentences_last and (fitted := fit(self._columns[:-1], widths[:-1], width)):
            made = self._table(fitted, below=width)
        else:
            made = self._records(width or 1)
        if self._note:
            made.append([(self._note, "dim")])
        return made

    @property
    def _sentences_last(self) -> bool:
        return len(self._columns) > 1 and self._columns[-1] in WRAPPED

    def _table(self, widths: Sequence[int], below: int | None = None) -> list[list[Piece]]:
        """A line a row. With `below` the last column has no place beside the others: it follows, so wide at most."""
        count = len(widths)
        made = [_line(self._columns[:count], [HEADER] * count, widths)]
        for row in self._rows:
            made += _row(row[:count], widths)
            if below is not None and row[-1]:
                made += [[(INDENT + part, "")] for part in wrap(row[-1], max(1, below - len(INDENT)))]
        return made

    def _records(self, width: int) -> list[list[Piece]]:
        """Each row as lines of its own: the column, and what stands in it."""
        label = max(map(cells_of, self._columns))
        room = max(1, width - label - GAP)
        made: list[list[Piece]] = []
        for row in self._rows:
            if made:
                made.append([])
            for column, cell in zip(self._columns, row, strict=True):
                for number, part in enumerate(wrap(cell, room) if cell else ()):
                    head = "" if number else column
                    made.append([(head + " " * (label - cells_of(head) + GAP), HEADER), (part, STYLES.get(cell, ""))])
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """For live pictures, which rich draws."""
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text.assemble(*line, no_wrap=True, overflow="crop")


def fit(columns: Sequence[str], widths: Sequence[int], width: int) -> list[int] | None:
    """Widths of columns so that a row takes at most `width` cells; None where that cannot be."""
    spare = width - sum(widths) - GAP * (len(widths) - 1)
    if spare >= 0:
        return list(widths)
    least = [min(have, LEAST) if name in WRAPPED else have for name, have in zip(columns, widths, strict=True)]
    spare = width - sum(least) - GAP * (len(widths) - 1)
    if spare < 0:
        return None
    made = list(least)
    # The narrow ones get all they want first, so that what is left serves the long sentences.
    for index in sorted(range(len(widths)), key=lambda index: widths[index] - least[index]):
        hungry = sum(made[other] < widths[other] for other in range(len(widths))) or 1
        more = min(widths[index] - least[index], spare // hungry)
        made[index] += more
        spare -= more
    return made


def _row(row: Sequence[str], widths: Sequence[int]) -> list[list[Piece]]:
    styles = [STYLES.get(cell, "") for cell in row]
    parts = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(1, *map(len, parts))
    return [
        _line([part[number] if number < len(part) else "" for part in parts], styles, widths)
        for number in range(height)
    ]


def _line(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int]) -> list[Piece]:
    """One line; blanks at its end are left out."""
    last = max((index for index, text in enumerate(texts) if text), default=-1)
    made: list[Piece] = []
    for index, (text, style, width) in enumerate(zip(texts[: last + 1], styles, widths, strict=False)):
        made.append((text, style))
        if index < last:
            made.append((" " * (width - cells_of(text) + GAP), ""))
    return made


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at blanks where there are any."""
    if cells_of(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if cells_of(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        *full, line = _folded(word, width)
        lines += full
    return [*lines, line]


def _folded(word: str, width: int) -> list[str]:
    """A word in pieces of at most `width` cells; a character wider than that is a piece of its own."""
    pieces = [""]
    used = 0
    for character in word:
        size = cells_of(character)
        if used + size > width and pieces[-1]:
            pieces.append("")
            used = 0
        pieces[-1] += character
        used += size
    return pieces


def cells_of(text: str) -> int:
    """Cells of a terminal that a text takes: 2 for East Asian wide characters, 0 for marks that join the one before."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def plain(text: str) -> str:
    """One line of text without control characters: line ends and tabs become blanks, the others `?`."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text).rstrip(" ")


def _shown(character: str) -> str:
    if character in "\t\n\r":
        return " "
    # Cc are control characters, Cf among others those that turn the direction of writing.
    return "?" if unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Cs"} else character


def ansi(line: Iterable[Piece]) -> str:
    """A line with the codes of its styles."""
    return "".join(f"\x1b[{ANSI[style]}m{text}\x1b[0m" if style in ANSI and text else text for text, style in line)


def bare(line: Iterable[Piece]) -> str:
    """A line without styles."""
    return "".join(text for text, _ in line)
