"""`slacktide-agent restore`: gives back what agents that are no longer running left in the kernel."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from agent.act.restore import Restored, restore
from agent.settings import AgentSettings
from slacktide.errors import SlacktideError

EXIT_OK: Final = 0
EXIT_LEFT: Final = 1
EXIT_REFUSED: Final = 2

COLUMNS: Final = ("CGROUP", "WHAT", "HELD", "ORIGINAL", "RESULT", "REASON")


def main(arguments: Sequence[str]) -> int:
    """Restore and print what was done.

    Returns 0 when nothing is left, 1 when something could not be given back, 2 when it refused to do anything.
    """
    usual = AgentSettings()
    parser = argparse.ArgumentParser(prog="slacktide-agent restore", description=__doc__)
    parser.add_argument("--state-dir", default=usual.state_dir, help="the agent's state directory (%(default)s)")
    parser.add_argument("--cgroup-root", default=usual.cgroup_root, help="the agent's cgroup root (the whole mount)")
    parser.add_argument("--proc-root", default=usual.proc_root, help="where the host's /proc is mounted (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be given back, write nothing")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    asked = parser.parse_args(arguments)
    try:
        done = restore(asked.state_dir, asked.cgroup_root, asked.proc_root, dry_run=asked.dry_run)
    except SlacktideError as error:
        sys.stderr.write(f"slacktide-agent: {error}\n")
        return EXIT_REFUSED
    if asked.output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(done), indent=2).decode() + "\n")
    else:
        _print(done)
    return EXIT_OK if done.complete else EXIT_LEFT


def cells(done: Restored) -> list[tuple[str, ...]]:
    """Rows of a table for people, without head."""
    return [(row.cgroup, row.what, _shown(row.held), _shown(row.original), row.result, row.reason) for row in done.rows]


def _shown(value: int | str | None) -> str:
    return "-" if value is None else str(value).replace("\n", "; ")


def _print(done: Restored) -> None:
    rows = cells(done)
    if rows:
        widths = [max(len(row[column]) for row in (COLUMNS, *rows)) for column in range(len(COLUMNS))]
        for row in (COLUMNS, *rows):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write(f"{line.rstrip()}\n")
    else:
        sys.stderr.write("slacktide-agent: the journal has nothing to give back\n")
    for problem in done.problems:
        sys.stderr.write(f"slacktide-agent: {problem}\n")
