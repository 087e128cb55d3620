"""What goes to the terminal: tables for people, JSON for programs, remarks to stderr.

Standard output carries the result and nothing else. When it is no terminal there are no colours, no redrawing,
and no line is cut to a width. Where it takes no UTF-8, what it cannot show becomes `?`, and JSON and YAML are escaped.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from cli.exits import USAGE, CommandError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from cli.grid import Grid

Format = Literal["table", "wide", "json", "yaml", "name"]
FORMATS: Final[tuple[Format, ...]] = ("table", "wide", "json", "yaml", "name")

_UNLIMITED: Final = 10_000
_COLUMNS: Final = 80
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

        width = terminal_columns(os.environ) if sys.stdout.isatty() else _UNLIMITED
        return Console(width=width, highlight=False, soft_wrap=False)

    def document(self, value: Any) -> None:
        """Print one document, as JSON or YAML."""
        if self.format == "yaml":
            import msgspec
            import yaml

            plain, unicode = mended(msgspec.to_builtins(value)), takes_unicode()
            self.text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=unicode).rstrip())
            return
        import msgspec

        self.text(_escaped(msgspec.json.format(_encoded(value), indent=2).decode()))

    def line(self, value: Any) -> None:
        """Print one object of a stream: a line of JSON, or a document of YAML."""
        if self.format == "yaml":
            self.text("---")
            self.document(value)
            return
        self.text(_escaped(_encoded(value).decode()))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table without frame, as people know it from kubectl."""
        if self.format == "name":
            raise CommandError("there are no names to list here: use --output table, json or yaml", USAGE)
        from cli.grid import Grid

        self.grid(Grid(columns, rows))

    def grid(self, table: Grid) -> None:
        """Print a table: as wide as the terminal, or as wide as it is where there is none."""
        from cli.grid import ansi, bare

        terminal = sys.stdout.isatty()
        show = ansi if terminal and colours(os.environ) else bare
        lines = table.lines(terminal_columns(os.environ) if terminal else None)
        self.text("\n".join(show(line).rstrip() for line in lines))

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


def terminal_columns(environ: Mapping[str, str]) -> int:
    """Columns of the terminal: COLUMNS, or what it says itself, or 80. As shutil has it, whose import takes longer."""
    said = environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def takes_unicode() -> bool:
    """Whether standard output shows every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def colours(environ: Mapping[str, str]) -> bool:
    """Whether a terminal is to have colours. Source: no-color.org."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def make_lenient() -> None:
    """What a standard stream cannot show becomes `?`, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _encoded(value: Any) -> bytes:
    """JSON of a document, also of one with words in it that the locale could not read."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(mended(msgspec.to_builtins(value)))


def mended(value: Any) -> Any:
    """Plain data whose texts can all be encoded: bytes that the locale could not read (PEP 383) are read as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {mended(name): mended(part) for name, part in value.items()}
    return [mended(part) for part in value] if isinstance(value, list | tuple) else value


def _escaped(json: str) -> str:
    """JSON in ASCII where standard output takes nothing else. Source: RFC 8259 section 7."""
    return json if takes_unicode() else _BEYOND_ASCII.sub(_escape, json)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_BEYOND_ASCII: Final = re.compile("[^\x00-\x7f]+")
