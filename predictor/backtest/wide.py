"""Wide trace files: one row a series, one column a slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import numpy as np
import pandas as pd

from predictor.backtest import columns
from predictor.backtest.columns import Wide
from predictor.backtest.long import is_parquet
from predictor.backtest.trace import BadInput, Reading, Trace, usual_step
from predictor.models.base import Floats, Integers
from predictor.slots import SLOT_SECONDS

_DAY_SLOTS: Final = 86400 // SLOT_SECONDS
_MICROS: Final = 1_000_000
_MISSING: Final = frozenset({"", "nan", "null", "none", "na", "n/a", "-"})
_MEDIAN_TIMES: Final = 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One wide file: usage (slots, series) with the time of each slot in microseconds, rising."""

    path: str
    counted: bool
    micros: Integers
    usage: Floats
    series: tuple[str, ...]
    node: tuple[str, ...] | None
    requested: Floats
    notes: tuple[str, ...]


def read_part(path: str, layout: Wide, reading: Reading) -> Part:
    """The file as it is. Raises BadInput with row and column of the first cell that cannot be used."""
    frame = _frame(path)
    notes: list[str] = []
    values = _numbers(path, frame[[name for name, _ in layout.slots]], reading, notes)
    scale = SLOT_SECONDS * _MICROS if layout.counted else 0
    stamps = [round(number) * scale if scale else columns.to_micros(number) for _, number in layout.slots]
    micros: Integers = np.array(stamps, dtype=np.int64)
    names, node, day = _names(path, frame, layout)
    if day is not None:
        micros, values, names = _join_days(path, micros, values, names, day)
    else:
        kept, names = _told_apart(path, names, values, notes)
        frame, values = frame.iloc[kept], values[kept]
        node = None if node is None else [node[row] for row in kept]
    order = np.argsort(micros, kind="stable")
    if (np.diff(micros) < 0).any():
        notes.append(f"{path}: columns were not in the order of time and have been sorted")
    if (np.diff(micros[order]) == 0).any():
        raise BadInput(f"{path}: two columns are the same slot; keep one")
    request = columns.find(layout.ids, "request")
    asked = np.full(len(frame), np.nan) if request is None else pd.to_numeric(frame[request], errors="coerce")
    return Part(
        path=path,
        counted=layout.counted,
        micros=micros[order],
        usage=np.ascontiguousarray(values.T[order]),
        series=tuple(names),
        node=None if node is None or day is not None else tuple(node),
        requested=np.asarray(asked, dtype=np.float64) if day is None else np.full(len(names), np.nan),
        notes=tuple(notes),
    )


def join(name: str, parts: Sequence[Part]) -> Trace:
    """Parts on one timeline, series matched by name. Raises BadInput when two say different things about a slot."""
    first = min(int(part.micros[0]) for part in parts)
    slot = usual_step(np.concatenate([np.diff(part.micros) for part in parts]))
    series = tuple(dict.fromkeys(key for part in parts for key in _keys(part)))
    index = {key: number for number, key in enumerate(series)}
    length = max((int(part.micros[-1]) - first) // slot for part in parts) + 1
    usage = np.full((length, len(series)), np.nan)
    requested = np.full(len(series), np.nan)
    for part in parts:
        rows = (part.micros - first) // slot
        if ((part.micros - first) % slot).any() or len(np.unique(rows)) < len(rows):
            raise BadInput(f"{part.path}: its columns are not {slot / _MICROS:g} s apart throughout; give one grid")
        mine = np.array([index[key] for key in _keys(part)], dtype=np.int64)
        place = np.ix_(rows, mine)
        before = usage[place]
        if ((before != part.usage) & ~np.isnan(before) & ~np.isnan(part.usage)).any():
            raise BadInput(f"{part.path}: says otherwise than another file about the same series and slot; keep one")
        usage[place] = np.where(np.isnan(part.usage), before, part.usage)
        requested[mine] = np.fmax(requested[mine], part.requested)
    return Trace(
        name=name,
        slot_seconds=slot / _MICROS,
        at0=first / _MICROS,
        usage=usage,
        requested=requested,
        series=tuple(key for _, key in series),
        node=None if any(part.node is None for part in parts) else tuple(str(node) for node, _ in series),
        notes=tuple(note for part in parts for note in part.notes),
    )


def _keys(part: Part) -> list[tuple[str | None, str]]:
    nodes: Sequence[str | None] = part.node or [None] * len(part.series)
    return list(zip(nodes, part.series, strict=True))


def _frame(path: str) -> Any:
    """All columns; pandas reads thousands of them several times faster than DuckDB."""
    if is_parquet(path):
        with duckdb.connect() as connection:
            return connection.from_parquet(path).df()
    try:
        return pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise BadInput(f"{path}: cannot be read as CSV: {error}") from error


def _numbers(path: str, frame: Any, reading: Reading, notes: list[str]) -> Floats:
    """(series, slots) as numbers; missing cells are NaN."""
    bad: list[tuple[int, int, str, str]] = []
    if all(kind.kind in "fiu" for kind in frame.dtypes):
        values: Floats = frame.to_numpy(dtype=np.float64).copy()
    else:
        values = np.column_stack([_text(column, place, bad) for place, (_, column) in enumerate(frame.items())])
    for mask, why in ((np.isinf(values), "not finite"), (values < 0, "negative")):
        bad += [(int(row), int(place), str(frame.columns[place]), why) for row, place in np.argwhere(mask)]
        values[mask] = np.nan
    bad += _absurd(values, frame)
    if bad:
        row, place, name, why = min(bad)
        shown = frame.iloc[row, place]
        said = f"{path} {_row(path, row)} column {name}: {shown!r} is {why} ({len(bad)} such cells)"
        if not reading.skip_bad_rows:
            raise BadInput(f"{said}: leave a cell empty where nothing was measured, or let --skip-bad-rows do so")
        notes.append(f"{said}: taken as gaps")
    return values


def _absurd(values: Floats, frame: Any) -> list[tuple[int, int, str, str]]:
    """Cells over a million times the median, made gaps."""
    positive = values[values > 0]
    if not len(positive):
        return []
    found = np.argwhere(values > _MEDIAN_TIMES * np.median(positive))
    for row, place in found:
        values[row, place] = np.nan
    return [(int(r), int(p), str(frame.columns[p]), "over a million times the median") for r, p in found]


def _text(column: Any, place: int, bad: list[tuple[int, int, str, str]]) -> Floats:
    """A column of text as numbers; what is none is added to `bad`."""
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    missing = np.asarray(column.isna() | column.astype(str).str.strip().str.casefold().isin(_MISSING))
    bad += [(int(row), place, str(column.name), "no number") for row in np.flatnonzero(np.isnan(numbers) & ~missing)]
    return numbers


def _names(path: str, frame: Any, layout: Wide) -> tuple[list[str], list[str] | None, Any]:
    """Series and node of each row, and its day where the file has days."""
    day = next((name for name in layout.ids if columns.plain(name) == columns.DAY), None)
    node, request = columns.find(layout.ids, "node"), columns.find(layout.ids, "request")
    ids = [name for name in layout.ids if name not in {day, request, node}] or ([node] if node else [])
    if not ids:
        raise BadInput(f"{path}: no column names the series; put one before the slots, such as 'series'")
    empty = np.flatnonzero(frame[ids].isna().any(axis=1))
    if len(empty):
        raise BadInput(f"{path} {_row(path, int(empty[0]))}: the series is empty; name it")
    text = [frame[name].astype(str) for name in ids]
    names = ["/".join(parts) for parts in zip(*text, strict=True)]
    return names, None if node is None else frame[node].astype(str).tolist(), None if day is None else frame[day]


def _join_days(
    path: str, micros: Integers, values: Floats, names: list[str], day: Any
) -> tuple[Integers, Floats, list[str]]:
    """Rows of a series on several days as one row: the first begins with day 1 (or 0), a day that lacks is a gap."""
    number = np.asarray(pd.to_numeric(day, errors="coerce"), dtype=np.float64)
    if not np.all(number >= 0) or np.any(number % 1):
        row = int(np.flatnonzero(~(number >= 0) | (number % 1 != 0))[0])
        raise BadInput(f"{path} {_row(path, row)}: day {day.iloc[row]!r} is no whole number; count days from 1")
    days = number.astype(np.int64) - int(number.min())
    series = sorted(set(names))
    index = {name: place for place, name in enumerate(series)}
    rows = np.array([index[name] for name in names])
    if len(set(zip(rows.tolist(), days.tolist(), strict=True))) < len(rows):
        raise BadInput(f"{path}: a series has two rows for one day; keep one")
    joined = np.full((len(series), int(days.max()) + 1, len(micros)), np.nan)
    joined[rows, days] = values
    before = max(0, int(number.min()) - 1)
    starts = (before + np.arange(joined.shape[1])) * _DAY_SLOTS * SLOT_SECONDS * _MICROS
    times = starts[:, None] + micros
    return times.reshape(-1), joined.reshape(len(series), -1), series


def _told_apart(path: str, names: list[str], values: Floats, notes: list[str]) -> tuple[list[int], list[str]]:
    """Rows to keep and their names, of which none repeats: a row that says the same again is left out, one of the
    same name that says something else is called NAME#2, as nothing says that they are one series."""
    rows: dict[str, list[int]] = {}
    kept, told = [], []
    for row, name in enumerate(names):
        before = rows.setdefault(name, [])
        if any(np.array_equal(values[row], values[other], equal_nan=True) for other in before):
            notes.append(f"{path} {_row(path, row)}: repeats the row of series {name!r} and is left out")
            continue
        before.append(row)
        kept.append(row)
        told.append(name if len(before) == 1 else f"{name}#{len(before)}")
        if len(before) > 1:
            notes.append(f"{path} {_row(path, row)}: another row of series {name!r}, called {told[-1]!r} here")
    return kept, told


def _row(path: str, row: int) -> str:
    return f"row {row + 1}" if is_parquet(path) else f"line {row + 2}"
