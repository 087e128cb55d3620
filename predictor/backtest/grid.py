"""Samples of a long file on a grid of slots: sorted, duplicates settled, several samples a slot made one."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.backtest.long import Rows
from predictor.backtest.replay import carry_forward
from predictor.backtest.trace import MOST_CELLS, BadInput, Reading, Trace, usual_step
from predictor.models.base import Floats, Integers
from predictor.slots import SLOT_SECONDS

_MICROS: Final = 1_000_000
_NO_EPOCH_SECONDS: Final = 100_000_000


def on_grid(name: str, rows: Rows, reading: Reading) -> Trace:
    """The series of the rows. Raises BadInput for contradictory rows and for a timeline that cannot be held."""
    notes = list(rows.notes)
    _note_disorder(rows, notes)
    rows = _distinct(rows, reading, notes)
    _note_overuse(rows, notes)
    slot, at0, number = _slots(rows)
    _note_counted(name, rows, notes)
    length = int(number.max()) + 1
    if length * len(rows.keys) > MOST_CELLS:
        raise BadInput(
            f"{name}: {length} slots x {len(rows.keys)} series do not fit into memory; split it by node or by time"
        )
    usage = np.full((length, len(rows.keys)), np.nan)
    first, picked = _standing(rows, number, reading)
    usage[number[first], rows.key[first]] = rows.usage[picked]
    named = rows.keys[0][0] is not None or any(node is not None for node, _ in rows.keys)
    return Trace(
        name=name,
        slot_seconds=slot / _MICROS,
        at0=at0 / _MICROS,
        usage=usage,
        requested=_requests(rows, number, length),
        series=tuple(series for _, series in rows.keys),
        node=tuple(node or series for node, series in rows.keys) if named else None,
        notes=tuple(notes),
    )


def _note_disorder(rows: Rows, notes: list[str]) -> None:
    """Rows are in the order of time by now: where they stood in one file shows whether they had been."""
    alike = (rows.key[1:] == rows.key[:-1]) & (rows.file[1:] == rows.file[:-1])
    back = np.flatnonzero(alike & (rows.row[1:] < rows.row[:-1]))
    if len(back):
        notes.append(f"times were not in order and have been sorted (first: {rows.place(int(back[0]))})")


def _distinct(rows: Rows, reading: Reading, notes: list[str]) -> Rows:
    """Rows without repeats. Raises BadInput when two rows say different things about one moment."""
    twice = (rows.key[1:] == rows.key[:-1]) & (rows.micros[1:] == rows.micros[:-1])
    if not twice.any():
        return rows
    unlike = twice & ~(_alike(rows.usage) & _alike(rows.requested))
    if unlike.any():
        index = int(np.flatnonzero(unlike)[0])
        series = rows.keys[int(rows.key[index])][1]
        said = (
            f"{rows.place(index + 1)}: usage of series {series!r} at the time of {rows.place(index)} differs"
            f" ({rows.usage[index]:g} and {rows.usage[index + 1]:g}; {int(unlike.sum())} such rows)"
        )
        if not reading.skip_bad_rows:
            raise BadInput(f"{said}: keep one row a series and time, or let --skip-bad-rows keep the highest")
        notes.append(f"{said}: the highest is kept")
    notes.append(f"{int(twice.sum())} repeated rows merged")
    starts = np.flatnonzero(np.concatenate([[True], ~twice]))
    return dataclasses.replace(
        rows,
        usage=np.fmax.reduceat(rows.usage, starts),
        requested=np.fmax.reduceat(rows.requested, starts),
        **{field: getattr(rows, field)[starts] for field in ("micros", "key", "file", "row")},
    )


def _alike(values: Floats) -> npt.NDArray[np.bool_]:
    """Whether each value is the one before it; one that is not known contradicts none."""
    one, other = values[1:], values[:-1]
    return np.asarray((one == other) | np.isnan(one) | np.isnan(other))


def _note_overuse(rows: Rows, notes: list[str]) -> None:
    over = np.flatnonzero(rows.usage > rows.requested * (1 + 1e-9))
    if len(over):
        index = int(over[0])
        notes.append(
            f"{len(over)} of {len(rows.usage)} usages are above the request of their series (first:"
            f" {rows.place(index)}: {rows.usage[index]:g} of {rows.requested[index]:g}): forecasts are cut at the"
            " requests of a node, so a peak above these is never covered; check that both have one unit"
        )


def _note_counted(name: str, rows: Rows, notes: list[str]) -> None:
    """Times that count slots instead of seconds look like samples a second apart, from the start of the epoch."""
    steps = np.diff(rows.micros)[rows.key[1:] == rows.key[:-1]]
    if usual_step(steps) <= _MICROS and int(rows.micros.max()) < _NO_EPOCH_SECONDS * _MICROS:
        notes.append(
            f"{name}: samples are taken to be a second apart; if the time counts slots, multiply it by their seconds"
        )


def _slots(rows: Rows) -> tuple[int, int, Integers]:
    """Length of a slot and label of the first in microseconds, and the slot of each row.

    Samples that are a slot apart keep their own times as labels; others fall into whole slots of the epoch.
    """
    steps = np.diff(rows.micros)[rows.key[1:] == rows.key[:-1]]
    slot = max(SLOT_SECONDS * _MICROS, round(usual_step(steps) / _MICROS) * _MICROS)
    first = int(rows.micros.min())
    if ((rows.micros - first) % slot).any():
        first = first // slot * slot
    return slot, first, (rows.micros - first) // slot


def _standing(rows: Rows, number: Integers, reading: Reading) -> tuple[Integers, Integers]:
    """First row of each (series, slot), and the row whose usage stands for it: as the product does it, see slots.py."""
    changes = (rows.key[1:] != rows.key[:-1]) | (number[1:] != number[:-1])
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    if len(starts) == len(number):
        return starts, starts
    ranked = np.lexsort((rows.usage, number, rows.key))
    known = np.add.reduceat((~np.isnan(rows.usage)).astype(np.int64), starts)
    rank = (9 * known + 9) // 10 - 1 if reading.resource == "cpu" else known - 1
    return starts, ranked[starts + np.maximum(rank, 0)]


def _requests(rows: Rows, number: Integers, length: int) -> Floats:
    """(series,) where no request changes, else (slots, series) with each standing until the next."""
    count = len(rows.keys)
    highest = np.full(count, -np.inf)
    lowest = np.full(count, np.inf)
    told = np.zeros(count, dtype=np.int64)
    known = ~np.isnan(rows.requested)
    np.maximum.at(highest, rows.key[known], rows.requested[known])
    np.minimum.at(lowest, rows.key[known], rows.requested[known])
    np.add.at(told, rows.key[known], 1)
    every: npt.NDArray[Any] = told == np.bincount(rows.key, minlength=count)
    if bool(np.all((told == 0) | (every & (highest == lowest)))):
        return np.where(told > 0, highest, np.nan)
    asked = np.full((length, count), np.nan)
    asked[number[known], rows.key[known]] = rows.requested[known]
    return np.asarray(carry_forward(asked), dtype=np.float64)
