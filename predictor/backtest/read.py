"""Recorded usage from files: long CSV and Parquet, wide trace files, several of them as one timeline.

Wide files that count their slots from 0 and have no days are timelines of their own: nothing says how they lie to
each other. All others of one form are joined in time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import PurePath

import duckdb

from predictor.backtest import columns, wide
from predictor.backtest.columns import Wide
from predictor.backtest.grid import on_grid
from predictor.backtest.long import read_long, source
from predictor.backtest.trace import BadInput, Reading, Trace, judged


def read(paths: Sequence[str], reading: Reading | None = None) -> list[Trace]:
    """The traces in the files, most often one. Raises BadInput, with file, row and remedy."""
    reading = reading or Reading()
    layouts = {path: _layout(path) for path in dict.fromkeys(paths)}
    long = [path for path, layout in layouts.items() if layout is None]
    parts = [wide.read_part(path, layout, reading) for path, layout in layouts.items() if layout is not None]
    traces = [on_grid(_name(long), read_long(long, reading), reading)] if long else []
    dated = [part for part in parts if not part.counted]
    if dated:
        traces.append(wide.join(_name([part.path for part in dated]), dated))
    traces += [wide.join(_name([part.path]), [part]) for part in parts if part.counted]
    return [judged(trace) for trace in _told_apart(traces)]


def _layout(path: str) -> Wide | None:
    """Columns of a wide file; None for a long one."""
    with duckdb.connect() as connection:
        if path.casefold().endswith((".csv", ".csv.gz", ".tsv", ".txt")):
            return columns.wide(_heading(path)) or None
        return columns.wide(source(connection, path).columns)


def _heading(path: str) -> list[str]:
    """Names in the first line of a CSV; the quick look tells a wide file before anything is parsed."""
    import gzip

    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8-sig") if packed else open(path, encoding="utf-8-sig") as text:
            line = text.readline()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}; name a CSV or Parquet file") from error
    if not line.strip():
        raise BadInput(f"{path}: is empty; its first line has to name the columns")
    return [name.strip().strip('"') for name in re.split(r"[,;\t|]", line.rstrip("\r\n"))]


def _name(paths: Sequence[str]) -> str:
    first = re.sub(r"\.(csv|parquet|pq|tsv|txt|gz|zst)\b", "", PurePath(paths[0]).name)
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _told_apart(traces: list[Trace]) -> list[Trace]:
    """Names that differ, also for files of one name in several folders."""
    seen: dict[str, int] = {}
    named = []
    for trace in traces:
        count = seen[trace.name] = seen.get(trace.name, 0) + 1
        named.append(trace if count == 1 else dataclasses.replace(trace, name=f"{trace.name} ({count})"))
    return named
