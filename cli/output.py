"""What goes to the terminal: tables for people, JSON for programs, remarks to stderr.

Standard output carries the result and nothing else. When it is no terminal there are no colours, no redrawing,
and no line is cut to a width.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Format = Literal["table", "json"]

_UNLIMITED: Final = 10_000
MISSING: Final = "-"
"""Shown for what is not known: never 0."""


class Output:
    """Writes results in one format; `--output` chooses it."""

    def __init__(self, fmt: Format = "table") -> None:
        self.format: Format = fmt

    @property
    def json(self) -> bool:
        """Whether a program reads."""
        return self.format == "json"

    def console(self) -> Console:
        """The terminal, made anew so that redirected streams are seen."""
        from rich.console import Console

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
        return Console(width=width, highlight=False, soft_wrap=False)

    def document(self, value: Any) -> None:
        """Print one JSON document."""
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
        sys.stdout.flush()

    def line(self, value: Any) -> None:
        """Print one line of JSON of a stream."""
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table without frame, as people know it from kubectl."""
        self.draw(make_table(columns, rows))

    def draw(self, picture: RenderableType) -> None:
        """Print something that rich can draw, without the blanks that it puts at the ends of lines."""
        console = self.console()
        if console.is_terminal:
            console.print(picture)
            return
        with console.capture() as capture:
            console.print(picture)
        for line in capture.get().splitlines():
            self.text(line.rstrip())

    def text(self, text: str) -> None:
        """Print a line of the result as it is."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """A remark for the person at the terminal; never part of the result."""
        sys.stderr.write(f"slacktide: {text}\n")
        sys.stderr.flush()


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A frameless rich table. Cells are plain text: brackets in a pod's message are no markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column, no_wrap=column not in {"REASON", "DETAIL", "MESSAGE", "CONSEQUENCE", "WHAT"}, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table


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
    "problem": "bold red",
    "crash loop": "bold red",
    "Failed": "bold red",
}
"""Words that carry a colour, in every table alike."""
