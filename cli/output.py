"""What goes to the terminal: tables for people, JSON for programs, remarks to stderr.

Standard output carries the result and nothing else. When it is no terminal there are no colours, no redrawing,
and no line is cut to a width.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from cli.exits import USAGE, CommandError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Format = Literal["table", "wide", "json", "yaml", "name"]
FORMATS: Final[tuple[Format, ...]] = ("table", "wide", "json", "yaml", "name")

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
        return self.format in {"json", "yaml"}

    @property
    def wide(self) -> bool:
        """Whether columns that few need are asked for too."""
        return self.format == "wide"

    def console(self) -> Console:
        """The terminal, made anew so that redirected streams are seen."""
        from rich.console import Console

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
        return Console(width=width, highlight=False, soft_wrap=False)

    def document(self, value: Any) -> None:
        """Print one document, as JSON or YAML."""
        if self.format == "yaml":
            import msgspec
            import yaml

            self.text(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True).rstrip())
            return
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
        sys.stdout.flush()

    def line(self, value: Any) -> None:
        """Print one object of a stream: a line of JSON, or a document of YAML."""
        if self.format == "yaml":
            self.text("---")
            self.document(value)
            return
        import msgspec

        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table without frame, as people know it from kubectl."""
        if self.format == "name":
            raise CommandError("there are no names to list here: use --output table, json or yaml", USAGE)
        self.draw(make_table(columns, rows))

    def listing(self, kind: str, names: Iterable[str], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table of named things, or with `--output name` a line KIND/NAME for each."""
        if self.format == "name":
            for name in names:
                self.text(f"{kind}/{name}")
        else:
            self.table(columns, rows)

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
